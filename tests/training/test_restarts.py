"""What is said over the restarts of a run when some of them have no score."""

import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bertsmith.training.finetuning.restarts import Restart
from bertsmith.training.finetuning.results import Results


def results_of(*scores: float) -> Results:
    """Of a task measured by a correlation, which a constant output has not."""
    task: Any = SimpleNamespace(main_metric="pearson", name="regression", labels=(), remarks=dict)
    dev: Any = SimpleNamespace(rows=3, model={"pearson": math.nan}, baselines={}, warnings=lambda *_: [])
    restarts = tuple(Restart(seed, score, 1, 1, 1.0) for seed, score in enumerate(scores))
    results = Results(task, restarts, 0, {"dev": dev}, {}, (), 3)
    results.__dict__["standard_errors"] = {"dev": None}  # it is cached there
    return results


@pytest.mark.parametrize(
    ("scores", "expected"),
    [
        ([-math.inf, 0.5], {"mean": 0.5, "spread": None, "best": 0.5, "worst": 0.5}),
        ([0.25, -math.inf, 0.75], {"mean": 0.5, "spread": math.sqrt(0.125), "best": 0.75, "worst": 0.25}),
        ([-math.inf, -math.inf], {"mean": None, "spread": None, "best": None, "worst": None}),
    ],
)
def test_restarts_without_a_score_are_left_out_and_told(
    scores: list[float], expected: dict[str, float | None]
) -> None:
    results = results_of(*scores)
    record = json.loads(json.dumps(results.record(), allow_nan=False))
    assert record["over_restarts"] == expected | {"degenerate": 0}
    assert [each["score"] for each in record["restarts"]] == [
        score if math.isfinite(score) else None for score in scores
    ]
    (warning,) = record["warnings"]
    assert warning.startswith(f"{scores.count(-math.inf)} of {len(scores)} restarts have no pearson")


def test_restarts_are_not_held_against_a_majority_that_is_always_right() -> None:
    results = results_of(1.0, 0.95)
    results.evaluations["dev"].baselines["majority"] = {"pearson": 1.0}
    assert results.degenerate == 0
    results.evaluations["dev"].baselines["majority"] = {"pearson": 0.95}
    assert results.degenerate == 1


def test_a_restart_is_read_as_it_was(tmp_path: Path) -> None:
    restart = Restart(3, -math.inf, 10, 20, 1.5)
    restart.write(tmp_path / "restart.json")
    assert '"score": null' in (tmp_path / "restart.json").read_text()
    assert Restart.read(tmp_path / "restart.json") == restart
