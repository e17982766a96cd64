"""The first tier: logistic regression over TF-IDF, in the format that a student reads without scikit-learn.

E texts, F features, C outputs.
"""

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bertsmith.arrays import Floats
from bertsmith.metrics.baselines import MOST_FEATURES, MOST_WEIGHTS, TOKEN
from bertsmith.metrics.calibration import fit_temperature
from bertsmith.mirror.candidate import Candidate
from bertsmith.mirror.field_heads import FieldHead
from bertsmith.mirror.fields import AnswerShape
from bertsmith.mirror.learned_calls import LearnedCall
from bertsmith.mirror.student_file import MODEL
from bertsmith.mirror.targets import LEAST, heads_of, targets_of
from bertsmith.mirror.word_model import WordModel

_STRENGTH, _ITERATIONS = 10.0, 200  # scikit-learn's C
_RARE_FROM = 500  # texts, from which a word that only one has tells nothing
_CERTAIN = 12.0  # logit of a label that always or never was given


def train_words(
    train: Sequence[LearnedCall], dev: Sequence[LearnedCall], shape: AnswerShape
) -> Candidate | None:
    """With temperatures by `dev`. None where an answer has quotes, which words don't find, or texts have no
    words.
    """
    if any(field.kind == "spans" for field in shape.fields):
        return None
    heads = heads_of(shape, train)
    model = fit_words(train, heads, shape)
    if model is None:
        return None
    logits = model.logits([call.text for call in dev])
    heads = tuple(tempered(head, shape, logits[head.path], dev) for head in heads)

    def guesses(texts: Sequence[str]) -> Any:
        found = model.logits(texts)
        return {head.path: head.guesses(shape.field(head.path), found[head.path]) for head in heads}

    def save(folder: Path) -> None:
        (folder / MODEL).mkdir()
        model.save(folder / MODEL)

    return Candidate("tf-idf", heads, guesses, save, {})


def fit_words(
    train: Sequence[LearnedCall], heads: Sequence[FieldHead], shape: AnswerShape
) -> WordModel | None:
    """None where no text has a word."""
    from sklearn.feature_extraction.text import TfidfVectorizer

    most = min(MOST_FEATURES, MOST_WEIGHTS // max(sum(len(head.classes) for head in heads), 1))
    vectoriser = TfidfVectorizer(
        ngram_range=(1, 2),
        token_pattern=TOKEN,
        sublinear_tf=True,
        max_features=most,
        min_df=2 if len(train) >= _RARE_FROM else 1,
        dtype=np.float32,
    )
    try:
        features = vectoriser.fit_transform([call.text for call in train])
    except ValueError:  # an empty vocabulary
        return None
    weights = {
        head.path: _weights(features, targets_of(head, shape.field(head.path), train), shape, head).astype(
            np.float32
        )
        for head in heads
    }
    return WordModel(vectoriser.get_feature_names_out().tolist(), vectoriser.idf_, weights)


def tempered(head: FieldHead, shape: AnswerShape, logits: Floats, dev: Sequence[LearnedCall]) -> FieldHead:
    """With the temperature that suits what the teacher said most of `dev`."""
    field = shape.field(head.path)
    targets = targets_of(head, field, dev)
    known = ~np.isnan(targets).any(axis=1)
    if not known.any() or not head.classes:
        return head
    gold = targets[known] > 0.5 if field.kind == "labels" else targets[known].argmax(axis=1)
    return head.model_copy(update={"temperature": fit_temperature(logits[known], gold)})


def _weights(features: Any, targets: Floats, shape: AnswerShape, head: FieldHead) -> Floats:
    """(F + 1, C), the last row what all texts have."""
    known = np.flatnonzero(~np.isnan(targets).any(axis=1))
    if shape.field(head.path).kind == "labels":
        return _by_label(features[known], targets[known])
    return _by_class(features[known], targets[known])


def _by_class(features: Any, targets: Floats) -> Floats:
    """Softmax over classes. Where the teacher was unsure, a text counts for several, as much as it said."""
    from sklearn.linear_model import LogisticRegression

    weights = np.zeros((features.shape[1] + 1, targets.shape[1]))
    rows, classes = np.nonzero(targets >= LEAST)
    if len(taught := np.unique(classes)) < 2:
        weights[-1] = -_CERTAIN
        weights[-1, taught] = 0.0
        return weights
    learner = LogisticRegression(C=_STRENGTH, max_iter=_ITERATIONS)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # one that hasn't converged is a model too, and is judged as any
        learner.fit(features[rows], classes, targets[rows, classes])
    found = np.vstack([learner.coef_.T, learner.intercept_])
    if len(learner.classes_) == 2:  # of two, scikit-learn has the second's log-odds
        found = np.hstack([np.zeros_like(found), found])
    weights[-1] = found[-1].min() - _CERTAIN  # classes without a text
    weights[:, learner.classes_] = found
    return weights


def _by_label(features: Any, targets: Floats) -> Floats:
    """A sigmoid a label."""
    from sklearn.linear_model import LogisticRegression

    weights = np.zeros((features.shape[1] + 1, targets.shape[1]))
    for place, given in enumerate(targets.T > 0.5):
        if given.all() or not given.any():
            weights[-1, place] = _CERTAIN if given.all() else -_CERTAIN
            continue
        learner = LogisticRegression(C=_STRENGTH, solver="liblinear").fit(features, given)
        weights[:-1, place], weights[-1, place] = learner.coef_[0], learner.intercept_[0]
    return weights
