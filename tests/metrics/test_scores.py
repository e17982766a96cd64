"""Scores equal scikit-learn's and scipy's on thousands of random and edge cases, and cases done by hand."""

import warnings
from itertools import pairwise

import numpy as np
import pytest
from scipy import stats
from sklearn import metrics

from bertsmith.errors import InputError
from bertsmith.metrics import scores

CASES = pytest.mark.parametrize("cases", [60, pytest.param(3000, marks=pytest.mark.slow)])


def random_classes(generator: np.random.Generator) -> tuple[np.ndarray, np.ndarray, int]:
    """Few examples of up to seven classes: classes absent from either side, one class only, all right."""
    classes, examples = int(generator.integers(1, 8)), int(generator.integers(1, 25))
    gold = generator.integers(generator.integers(1, classes + 1), size=examples)
    predicted = generator.integers(generator.integers(1, classes + 1), size=examples)
    return gold, np.where(generator.random(examples) < generator.random(), gold, predicted), classes


@pytest.fixture
def generator() -> np.random.Generator:
    return np.random.default_rng(3)


@CASES
def test_classification_equals_scikit_learn(generator: np.random.Generator, cases: int) -> None:
    for _ in range(cases):
        gold, predicted, classes = random_classes(generator)
        ours = scores.classification(gold, predicted, [f"class {c}" for c in range(classes)])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            theirs = {
                "accuracy": metrics.accuracy_score(gold, predicted),
                "macro_f1": metrics.f1_score(gold, predicted, average="macro", zero_division=0),
                "matthews": metrics.matthews_corrcoef(gold, predicted),
            }
            if classes == 2:
                theirs["f1"] = metrics.f1_score(gold, predicted, pos_label=1, zero_division=0)
        assert ours == pytest.approx(theirs, abs=1e-12)


@CASES
def test_each_class_and_the_confusion_equal_scikit_learn(generator: np.random.Generator, cases: int) -> None:
    for _ in range(cases):
        gold, predicted, classes = random_classes(generator)
        numbers = list(range(classes))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            table = metrics.confusion_matrix(gold, predicted, labels=numbers)
            columns = metrics.precision_recall_fscore_support(
                gold, predicted, labels=numbers, zero_division=0
            )
        assert np.array_equal(scores.confusion(gold, predicted, classes), table)
        ours = scores.per_class(gold, predicted, list(map(str, numbers)))
        assert [row.label for row in ours] == list(map(str, numbers))
        assert [(r.precision, r.recall, r.f1, r.support) for r in ours] == [
            pytest.approx(row) for row in zip(*columns)
        ]


@CASES
def test_several_labels_equal_scikit_learn(generator: np.random.Generator, cases: int) -> None:
    for _ in range(cases):
        shape = (int(generator.integers(1, 12)), int(generator.integers(2, 6)))
        gold, predicted = generator.random((2, *shape)) < generator.random((2, 1, shape[1]))
        theirs = {
            "micro_f1": metrics.f1_score(gold, predicted, average="micro", zero_division=0),
            "macro_f1": metrics.f1_score(gold, predicted, average="macro", zero_division=0),
            "subset_accuracy": metrics.accuracy_score(gold, predicted),
        }
        assert scores.multilabel(gold, predicted) == pytest.approx(theirs, abs=1e-12)
        columns = metrics.precision_recall_fscore_support(gold, predicted, zero_division=0)
        ours = scores.per_class(gold, predicted, [str(c) for c in range(shape[1])])
        assert [(r.precision, r.recall, r.f1, r.support) for r in ours] == [
            pytest.approx(row) for row in zip(*columns)
        ]


@CASES
def test_regression_equals_scipy_ties_included(generator: np.random.Generator, cases: int) -> None:
    compared = 0
    for _ in range(cases):
        examples = int(generator.integers(2, 30))
        gold = generator.integers(0, 6, examples) / 2
        predicted = generator.normal(size=examples).round(int(generator.integers(0, 4)))
        ours = scores.regression(gold, predicted)
        assert ours["mean_absolute_error"] == pytest.approx(metrics.mean_absolute_error(gold, predicted))
        if np.ptp(gold) and np.ptp(predicted):
            compared += 1
            assert ours["pearson"] == pytest.approx(stats.pearsonr(gold, predicted).statistic, abs=1e-12)
            assert ours["spearman"] == pytest.approx(stats.spearmanr(gold, predicted).statistic, abs=1e-12)
    assert compared > 0.8 * cases


@pytest.mark.parametrize("constant", [0.0, 0.1, -7.0, 1e300])
def test_a_constant_side_correlates_with_nothing(constant: float) -> None:
    """No NaN, and no warning: the suite turns warnings into errors."""
    varied, flat = np.array([1.0, 2.0, 4.0]), np.full(3, constant)
    for gold, predicted in ((varied, flat), (flat, varied), (flat, flat)):
        ours = scores.regression(gold, predicted)
        assert (ours["pearson"], ours["spearman"]) == (0.0, 0.0)
    assert scores.regression([3.0], [2.5]) == {"pearson": 0, "spearman": 0, "mean_absolute_error": 0.5}


def test_values_at_the_ends_of_floating_point_still_correlate() -> None:
    big = np.array([1e300, 2e300, 4e300])
    assert scores.regression(big, big / 1e305)["pearson"] == pytest.approx(1.0)
    assert scores.regression(big, -big)["spearman"] == pytest.approx(-1.0)


def test_a_case_done_by_hand() -> None:
    """Gold a a a b b c, predicted a a b b c c."""
    ours = scores.classification([0, 0, 0, 1, 1, 2], [0, 0, 1, 1, 2, 2], "abc")
    assert ours["accuracy"] == pytest.approx(4 / 6)
    assert ours["macro_f1"] == pytest.approx((4 / 5 + 2 / 4 + 2 / 3) / 3)
    assert ours["matthews"] == pytest.approx((4 * 6 - 12) / np.sqrt((36 - 14) * (36 - 12)))
    assert scores.classification([0, 1, 1], [1, 1, 0], "ab")["f1"] == pytest.approx(2 / 4)


def test_the_majority_answer_scores_as_it_should() -> None:
    """MRPC's trap: the majority class has a fine accuracy and F1, and is worth nothing."""
    ours = scores.classification([1] * 68 + [0] * 32, [1] * 100, ["different", "same"])
    assert ours["accuracy"] == 0.68
    assert ours["f1"] == pytest.approx(2 * 0.68 / 1.68)
    assert ours["matthews"] == 0.0


def test_quantiles_of_length_never_divide_texts_of_one_length(generator: np.random.Generator) -> None:
    for _ in range(200):
        lengths = generator.integers(1, generator.integers(2, 40), size=int(generator.integers(1, 60)))
        seen: list[np.ndarray] = []

        def count(rows: np.ndarray, seen: list[np.ndarray] = seen) -> float:
            seen.append(rows)
            return len(rows) / 2

        bins = scores.by_length(lengths, count, bins=4)
        assert np.array_equal(np.sort(np.concatenate(seen)), np.arange(len(lengths)))
        assert 1 <= len(bins) <= 4
        assert [b.score for b in bins] == [b.count / 2 for b in bins]
        for earlier, later in pairwise(bins):
            assert earlier.longest < later.shortest
        for b, rows in zip(bins, seen):
            assert (b.shortest, b.longest) == (lengths[rows].min(), lengths[rows].max())


def test_bins_by_length_hold_equally_many_of_different_lengths() -> None:
    bins = scores.by_length(np.arange(100, 0, -1), lambda rows: 0.0, bins=4)
    assert [(b.shortest, b.longest, b.count) for b in bins] == [
        (1, 25, 25), (26, 50, 25), (51, 75, 25), (76, 100, 25),
    ]  # fmt: skip


def test_the_standard_error_of_an_accuracy_is_the_binomial_one() -> None:
    correct = np.arange(400) % 5 > 0
    errors = scores.standard_errors(lambda rows: {"accuracy": correct[rows].mean()}, 400, resamples=1000)
    assert errors["accuracy"] == pytest.approx(np.sqrt(0.8 * 0.2 / 400), rel=0.08)
    again = scores.standard_errors(lambda rows: {"accuracy": correct[rows].mean()}, 400, resamples=1000)
    assert again == errors


def test_nothing_to_score_and_numbers_that_are_none_get_a_sentence() -> None:
    empty = np.zeros(0, np.int64)
    for call in (
        lambda: scores.classification(empty, empty, ["a", "b"]),
        lambda: scores.regression([], []),
        lambda: scores.multilabel(np.zeros((0, 3)), np.zeros((0, 3))),
        lambda: scores.by_length([], lambda rows: 0.0),
        lambda: scores.standard_errors(lambda rows: {}, 0),
    ):
        with pytest.raises(InputError, match=r"no (example|text)"):
            call()
    with pytest.raises(InputError, match=r"finite numbers as predictions, found nan in row 2 \(1 such"):
        scores.regression([1.0, 2.0], [1.0, np.nan])


def test_shapes_and_classes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="one prediction an example"):
        scores.classification([0, 1], [0], "ab")
    with pytest.raises(ValueError, match="classes 0 to 1, found 0 to 2"):
        scores.classification([0, 2], [0, 1], "ab")
    with pytest.raises(ValueError, match="class numbers"):
        scores.classification([0.5, 1.0], [0.5, 1.0], "ab")
    with pytest.raises(ValueError, match="expected 2 columns"):
        scores.per_class(np.ones((2, 3)), np.ones((2, 3)), "ab")
