"""A question's scores in SQuAD v1.1 (Rajpurkar et al. 2016) and v2.0 (2018), by their published rules.

    Q   questions

A question's golds are the texts of its right answers, none when it can't be answered; an empty prediction
says that it can't.
"""

import re
import string
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from bertsmith.arrays import Floats

Golds = Sequence[Sequence[str]]

_ARTICLES = re.compile(r"\b(a|an|the)\b")
# ASCII only, as officially: a typographic quote or a dash stays, and costs the match.
_WITHOUT_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalise(text: str) -> str:
    """Lower case, without punctuation and English articles, single blanks."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_WITHOUT_PUNCTUATION)).split())


def exact_match(prediction: str, gold: str) -> float:
    """1.0 when both normalise to the same text, else 0.0."""
    return float(normalise(prediction) == normalise(gold))


def token_f1(prediction: str, gold: str) -> float:
    """F1 of the words that both share, as often as they occur in both; 0.0 when they share none (v1.1)."""
    predicted, right = normalise(prediction).split(), normalise(gold).split()
    shared = (Counter(predicted) & Counter(right)).total()
    if shared == 0:
        return 0.0
    precision, recall = shared / len(predicted), shared / len(right)
    return 2 * precision * recall / (precision + recall)


def question_scores(predictions: Sequence[str], golds: Golds) -> tuple[Floats, Floats]:
    """Exact match (Q,) and F1 (Q,) by the rules of v2.0: without golds, saying nothing is right.

    A gold of which nothing is left after normalising is passed over, unless it is all there is.
    """
    _check_aligned(predictions, golds)
    counted = [[gold for gold in texts if normalise(gold)] or [""] for texts in golds]
    exact = np.array(list(_best_over_golds(exact_match, predictions, counted)))
    f1 = np.array(list(_best_over_golds(_f1_or_both_empty, predictions, counted)))
    return exact, f1


def _f1_or_both_empty(prediction: str, gold: str) -> float:
    return token_f1(prediction, gold) if normalise(gold) else exact_match(prediction, gold)


def _best_over_golds(
    score: Callable[[str, str], float], predictions: Sequence[str], golds: Golds
) -> Iterator[float]:
    for prediction, texts in zip(predictions, golds, strict=True):
        yield max(score(prediction, gold) for gold in texts)


def _check_aligned(predictions: Sequence[str], golds: Golds) -> None:
    if len(predictions) != len(golds):
        raise ValueError(
            f"expected one prediction for each of {len(golds)} questions, found {len(predictions)}"
        )
    if not len(golds):
        raise ValueError("there is no question to score")
