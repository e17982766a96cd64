"""What cross-validation says of the final model: Wilson's interval, wider, moved by the learning curve."""

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import binomtest

from bertsmith.arrays import Floats, Ints
from bertsmith.tasks.examples.held_out import folds_of
from bertsmith.tasks.examples.text_task import TextExample
from bertsmith.tasks.finetuning import EncodedExamples
from bertsmith.tasks.heads.name_training import NameTraining
from bertsmith.tasks.registry import find_task
from bertsmith.training.finetuning import results as expectation
from bertsmith.training.finetuning.measuring import measure_learning_curve
from bertsmith.training.finetuning.results import LearningCurve, estimate_score


def curve(*scores: float) -> LearningCurve:
    return LearningCurve((10, 20, 40), scores, 0.0, 0.0)


@pytest.mark.parametrize(("right", "rows"), [(30, 40), (40, 40), (0, 10), (1, 16)])
def test_without_a_widening_it_is_wilson_s_interval(
    right: int, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(expectation, "_SHARED", 1.0)
    share = right / rows
    error = (share * (1 - share) / rows) ** 0.5 or None
    found = estimate_score(share, error, rows, 5, None)
    wilson = binomtest(right, rows).proportion_ci(method="wilson")
    assert (found.low, found.high) == pytest.approx((wilson.low, wilson.high), abs=1e-4)
    assert found.low <= found.score <= found.high


def test_where_rows_say_less_than_independent_ones_it_is_that_of_fewer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A score whose error is twice that of so many answers is known as well as from a quarter of them."""
    monkeypatch.setattr(expectation, "_SHARED", 1.0)
    found = estimate_score(0.8, 0.04, 400, 5, None)
    wilson = binomtest(80, 100).proportion_ci(method="wilson")
    assert (found.low, found.high) == pytest.approx((wilson.low, wilson.high), abs=1e-4)


def test_all_rows_leave_as_much_less_as_the_curve_falls() -> None:
    """From 40 % missing to 20 % by a doubling: five folds are 0.32 doublings short."""
    found = estimate_score(0.8, 0.02, 400, 5, curve(0.3, 0.6, 0.8))
    assert 1 - found.score == pytest.approx(0.2 * 0.5**0.3219, abs=1e-4)
    assert found.high - found.low > 2 * 1.5 * 1.9 * 0.02
    assert estimate_score(0.8, 0.02, 400, 5, curve(0.3, 0.8, 0.6)).score == pytest.approx(0.8)
    assert estimate_score(0.8, 0.02, 400, 10, curve(0.3, 0.6, 0.8)).score < found.score


def test_names_are_rows_that_do_not_become_fewer() -> None:
    """From 20 and 40 rows to 40 and 60 by 20 rows of names: five folds are 0.38 of such a step short."""
    named = LearningCurve((10, 20, 40), (0.3, 0.6, 0.8), 0.0, 0.0, names=20)
    assert 1 - estimate_score(0.8, 0.02, 400, 5, named).score == pytest.approx(0.2 * 0.5**0.3802, abs=1e-4)


def test_a_correlation_may_be_below_zero() -> None:
    found = estimate_score(-0.1, 0.1, 50, 5, None)
    assert (found.low, found.score, found.high) == pytest.approx((-0.394, -0.1, 0.194))


def test_rows_drawn_at_random_are_not_flattered_by_stratified_folds() -> None:
    """A model takes a text for its class or for a rival's, the likelier the more rows that one has. Of 40
    classes some have more rows by chance; these judge more often. Rows drawn by class are another matter.
    """
    expected, by_stratified, truths = [], [], []
    for seed in range(12):
        draw = np.random.default_rng(seed)
        curve, score, truth = _study(draw.integers(0, 40, 160), draw.random(160))
        assert curve is not None and curve.stratified == score
        expected.append(estimate_score(score, 0.03, 160, 5, curve).score)
        by_stratified.append(score)
        truths.append(truth)
    assert np.mean(by_stratified) > np.mean(truths) + 0.04
    assert np.mean(expected) == pytest.approx(np.mean(truths), abs=0.02)
    curve, score, _ = _study(np.arange(160) % 40, np.random.default_rng(0).random(160))
    assert curve is not None and curve.stratified is None and curve.scores[-1] == score


def test_other_texts_may_have_labels_that_no_row_has() -> None:
    """Names that only the rows tell help a held-out row of a class whose other rows are few or none, but no
    other text of a class without a row.
    """
    expected, with_names, truths = [], [], []
    for seed in range(4):
        draw = np.random.default_rng(seed)
        centres, sizes = draw.normal(size=(80, 24)), draw.dirichlet(np.ones(80))
        classes = draw.choice(80, 3160, p=sizes)
        texts = torch.from_numpy(centres[classes] + 1.1 * draw.normal(size=(3160, 24))).float()
        present, targets = np.unique(classes[:160], return_inverse=True)
        names = torch.from_numpy(centres[present] + 0.7 * draw.normal(size=(12, len(present), 24))).float()
        training = NameTraining(texts[:160], targets, names, None)
        task: Any = find_task("classification")(find_task("classification").Settings())
        rows = [TextExample(f"text {row}", None, f"class {targets[row]:02}", "") for row in range(160)]
        task.fit(rows)
        folds, encoded = folds_of(task, rows, 5), EncodedExamples(rows, rows)  # type: ignore[arg-type]
        learn = partial(training.judge, texts=False)
        start = training.fit(texts=False)
        right = present[(texts[160:] @ start.weight.T + start.bias).argmax(1).numpy()] == classes[160:]
        truths.append(right.mean())
        for scores, drawn in ((with_names, None), (expected, partial(learn, unseen=False))):
            curve = measure_learning_curve(task, learn, encoded, folds, 100.0, drawn)
            assert curve is not None and curve.stratified is not None
            scores.append(estimate_score(curve.stratified, 0.03, 160, 5, curve).score)
    assert np.mean(with_names) > np.mean(truths) + 0.04
    assert np.mean(expected) == pytest.approx(np.mean(truths), abs=0.02)


def _study(classes: Ints, luck: Floats) -> tuple[LearningCurve | None, float, float]:
    """The learning curve, the score by stratified folds, and the share of right answers of another text."""
    task: Any = find_task("classification")(find_task("classification").Settings())
    names = [f"class {label:02}" for label in classes.tolist()]
    rows = [TextExample(f"text {row}", None, name, "") for row, name in enumerate(names)]
    task.fit(rows)

    def share_right(learned: Ints) -> Floats:
        counts = np.bincount(learned, minlength=41) ** 2
        counts[40] = counts[0]
        return counts[:-1] / np.maximum(counts[:-1] + counts[1:] + 0.5, 1)

    def learn(folds: Ints, share: float = 1.0) -> list[Any]:
        outputs = np.zeros((len(rows), len(task.labels)))
        for fold in range(5):
            others = np.random.default_rng(fold).permutation(np.flatnonzero(folds != fold))
            right = share_right(classes[others[: round(share * len(others))]])
            for row in np.flatnonzero(folds == fold).tolist():
                wrong = luck[row] >= right[classes[row]]
                outputs[row, task.target(names[row]) - int(wrong)] = 1
        return list(outputs)

    folds = folds_of(task, rows, 5)
    targets = [task.target(name) for name in names]
    score = float((np.argmax(learn(folds), axis=1) == targets).mean())
    encoded = EncodedExamples(rows, rows)  # type: ignore[arg-type]
    return measure_learning_curve(task, learn, encoded, folds), score, float(share_right(classes).mean())
