"""BertFeatures gives what Features gives, and stands in scikit-learn's pipelines."""

import pickle
from pathlib import Path

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline

from bertsmith.errors import InputError
from bertsmith.estimators.estimators import BertFeatures
from bertsmith.inference.features import Features

TEXTS = [
    f"{size} {colour} {animal}"
    for colour in ("red", "blue")
    for size in ("small", "large", "old", "new")
    for animal in ("cat", "dog", "bird")
]
LABELS = [text.split()[1] for text in TEXTS]


def test_vectors_are_those_of_features(tiny_bert: Path) -> None:
    transformer = BertFeatures(tiny_bert, layers="last4-concat", pooling="max")
    found = transformer.fit_transform(TEXTS)
    assert (found == Features(tiny_bert, "last4-concat", "max").encode(TEXTS)).all()
    assert transformer.get_feature_names_out().tolist() == [f"bertfeatures{n}" for n in range(96)]


def test_a_search_over_layers_in_front_of_logistic_regression(tiny_bert: Path) -> None:
    pipeline = make_pipeline(BertFeatures(tiny_bert), LogisticRegression(max_iter=1000))
    search = GridSearchCV(pipeline, {"bertfeatures__layers": [0, "last"]}, cv=2).fit(TEXTS, LABELS)
    assert search.best_score_ > 0.8  # the mean of the embeddings says which words there are


def test_a_pickle_is_small_and_reads_the_model_again(tiny_bert: Path) -> None:
    transformer = BertFeatures(tiny_bert).fit(TEXTS)
    content = pickle.dumps(transformer)
    assert len(content) < 2000
    assert (pickle.loads(content).transform(TEXTS) == transformer.transform(TEXTS)).all()


def test_a_clone_has_read_nothing_yet(tiny_bert: Path) -> None:
    transformer = BertFeatures(tiny_bert, layers=1).fit(TEXTS)
    copy = clone(transformer)
    assert copy.get_params() == transformer.get_params()
    with pytest.raises(NotFittedError):
        copy.transform(TEXTS)


@pytest.mark.parametrize("pooling", ["tokens", "words"])
def test_many_vectors_a_text_are_no_row_of_a_table(tiny_bert: Path, pooling: str) -> None:
    with pytest.raises(ValueError, match=r"gives many vectors per text\. Use Features for them"):
        BertFeatures(tiny_bert, pooling=pooling).fit(TEXTS)


def test_numbers_are_refused(tiny_bert: Path) -> None:
    with pytest.raises(InputError, match=r"X\[0\]: expected a text, found"):
        BertFeatures(tiny_bert).fit(np.zeros((2, 2)))
