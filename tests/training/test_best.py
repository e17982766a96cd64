"""The best weights of a run, and when it stops waiting for better ones."""

import json
import math
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from bertsmith.training.finetuning.task_run import BestWeights

SCORES = st.lists(st.sampled_from([0.1, 0.2, 0.3, 0.4, 0.5]), min_size=1, max_size=12)


def considered(
    folder: Path, scores: list[float], patience: int | None = None
) -> tuple[BestWeights, nn.Linear]:
    """Evaluations at the steps 10, 20, …; the model's weights are the step they were seen at."""
    best, model = BestWeights(folder / "best", "f1", patience), nn.Linear(2, 1)
    for number, score in enumerate(scores, start=1):
        nn.init.constant_(model.weight, 10.0 * number)
        best.consider(10 * number, {"f1": score, "loss": -score}, model)
    return best, model


def test_the_weights_of_the_first_of_the_highest_scores_are_kept(tmp_path: Path) -> None:
    best, model = considered(tmp_path, [0.3, 0.7, 0.5, 0.7])
    assert best.score == 0.7
    best.restore(model)
    assert model.weight.tolist() == [[20.0, 20.0]]


@pytest.mark.parametrize(
    ("scores", "patience", "stopped"),
    [
        ([0.5], 1, False),
        ([0.5, 0.4], 1, True),
        ([0.5, 0.5], 1, True),
        ([0.5, 0.4], 2, False),
        ([0.5, 0.4, 0.45], 2, True),
        ([0.5, 0.4, 0.6], 2, False),
        ([0.1, 0.0, 0.0, 0.0], None, False),
    ],
)
def test_patience_counts_evaluations_without_a_better_one(
    scores: list[float], patience: int | None, stopped: bool, tmp_path: Path
) -> None:
    assert considered(tmp_path, scores, patience)[0].stopped is stopped


@given(scores=SCORES, patience=st.integers(1, 4))
def test_stopped_means_that_the_best_is_at_least_patience_evaluations_old(
    scores: list[float], patience: int
) -> None:
    best = BestWeights(Path("unused"), "f1", patience)
    for number, score in enumerate(scores):
        best.consider(number, {"f1": score}, nn.Linear(1, 1), write=False)
    assert best.stopped is (len(scores) - 1 - scores.index(max(scores)) >= patience)


def test_a_run_that_goes_back_forgets_what_came_after(tmp_path: Path) -> None:
    best, model = considered(tmp_path, [0.3, 0.7, 0.5])
    again = BestWeights(tmp_path / "best", "f1")
    again.resume(20)
    assert again.history == [(10, 0.3), (20, 0.7)]
    again.consider(20, {"f1": 0.9}, model)
    assert again.history == best.history[:2], "an evaluation was counted twice"
    again.consider(30, {"f1": 0.5}, model)
    again.restore(model)
    assert torch.equal(model.weight, torch.full((1, 2), 20.0))


def test_going_back_before_the_best_keeps_the_weights_that_come_again(tmp_path: Path) -> None:
    considered(tmp_path, [0.3, 0.7])
    again, model = BestWeights(tmp_path / "best", "f1"), nn.Linear(2, 1)
    again.resume(10)
    nn.init.constant_(model.weight, 21.0)
    again.consider(20, {"f1": 0.7}, model)
    nn.init.zeros_(model.weight)
    again.restore(model)
    assert model.weight.tolist() == [[21.0, 21.0]]


def test_a_score_that_is_no_number_is_null_and_worse_than_any(tmp_path: Path) -> None:
    best, model = considered(tmp_path, [math.nan, -2.0, math.nan])
    assert json.loads((tmp_path / "best" / "history.json").read_text(), parse_constant=pytest.fail)[
        "history"
    ] == [[10, None], [20, -2.0], [30, None]]
    again = BestWeights(tmp_path / "best", "f1")
    again.resume(30)
    assert again.history == best.history == [(10, -math.inf), (20, -2.0), (30, -math.inf)]
    again.restore(model)
    assert model.weight.tolist() == [[20.0, 20.0]]


def test_nothing_to_resume_is_a_fresh_start(tmp_path: Path) -> None:
    best = BestWeights(tmp_path / "best", "f1")
    best.resume(0)
    assert (best.history, best.score, best.stopped) == ([], None, False)
