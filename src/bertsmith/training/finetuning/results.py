"""What a fine-tuning run found out: the model beside its baselines, on dev, on test, or by cross-validation,
over restarts, with what to mistrust and what is to be expected of other texts. measuring.py finds it out.

out/results.json            every figure
out/predictions/dev.jsonl   what the model says of each row, with the right answer
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, cast

from bertsmith.files import sha256, write_json
from bertsmith.tasks.evaluating.error_analysis import ErrorAnalysis
from bertsmith.tasks.evaluating.evaluation import (
    Evaluation,
    groups_of,
    is_always_right,
    standard_error,
)
from bertsmith.tasks.task import Metrics, Task
from bertsmith.text.files.jsonl import write_jsonl
from bertsmith.training.finetune_recipe import FinetuneRecipe
from bertsmith.training.finetuning.choosing import MethodScore
from bertsmith.training.finetuning.column_study import ColumnStudy
from bertsmith.training.finetuning.methods import FULL
from bertsmith.training.finetuning.restarts import Restart
from bertsmith.training.log import as_json_value

_SURE = 1.96  # of a normal distribution, 95 %
_SHARED = 1.5  # measured: LOG.md, 2026-11-25, "How far is a cross-validated score from the truth?"


@dataclass(frozen=True)
class LearningCurve:
    """The main metric by how many rows were learned from: a quarter, half and all of the other folds. Twice
    the rows would bring `gain`, as far as `error`, its standard error, lets one say.
    """

    rows: tuple[int, ...]
    scores: tuple[float, ...]
    gain: float
    error: float

    def as_sentence(self, metric: str) -> str:
        """'Twice the rows would bring a linear model about +0.0210 ± 0.0080 accuracy.'"""
        return (
            f"Twice the rows would bring a linear model about {self.gain:+.4f} ± {self.error:.4f} {metric}."
        )


@dataclass(frozen=True)
class Expectation:
    """Of the main metric: the likeliest score, and the ends of its 95 % interval."""

    score: float
    low: float
    high: float

    def as_sentence(self, metric: str) -> str:
        """'Expected of other texts: accuracy 0.8450 (95 % interval 0.7912 to 0.8901).'"""
        interval = f"95 % interval {self.low:.4f} to {self.high:.4f}"
        return f"Expected of other texts: {metric} {self.score:.4f} ({interval})."


@dataclass(frozen=True)
class Results:
    """Of the whole run. `best` is the index of the restart whose weights were kept; `tried` are the methods
    that were compared by cross-validation, `method` the one by which the model was trained;
    `learning_curve` what more rows would bring, where few judged in turn, in so many `folds`; `columns` what
    those beside the text add to it.
    """

    task: Task[Any]
    restarts: tuple[Restart, ...]
    best: int
    evaluations: dict[str, Evaluation]
    figures: Metrics
    data_warnings: tuple[str, ...]
    train_rows: int
    tried: tuple[MethodScore, ...] = ()
    method: str = FULL
    learning_curve: LearningCurve | None = None
    folds: int = 0
    columns: ColumnStudy | None = None

    @property
    def judge(self) -> str:
        """What the model was chosen by: dev, or cross-validation."""
        return next(iter(self.evaluations))

    @property
    def degenerate(self) -> int:
        """How many restarts did no better than always giving the most frequent answer; none where that is
        always right.
        """
        metric = self.task.main_metric
        majority = next(iter(self.evaluations[self.judge].baselines.values()), None)
        if majority is None or is_always_right(majority, metric):
            return 0
        return sum(each.score <= majority[metric] + 1e-6 for each in self.restarts)

    @property
    def warnings(self) -> list[str]:
        """Sentences on what to mistrust."""
        found = list(self.data_warnings)
        for name, evaluation in self.evaluations.items():
            found += evaluation.warnings(name, self.task.main_metric)
        if self.degenerate and len(self.restarts) > 1:
            found.append(f"{self.degenerate} of {len(self.restarts)} restarts learned nothing")
        unscored = len(self.restarts) - len(self.scores)
        if unscored:
            found.append(
                f"{unscored} of {len(self.restarts)} restarts have no {self.task.main_metric} that is a "
                "number: the model gives all rows the same"
            )
        return found

    @cached_property
    def error_analysis(self) -> dict[str, ErrorAnalysis]:
        """Of each evaluation, where the model errs."""
        return {
            name: self.task.error_analysis(evaluation.predictions, evaluation.split.examples)
            for name, evaluation in self.evaluations.items()
        }

    @cached_property
    def standard_errors(self) -> dict[str, float | None]:
        """Of each evaluation's main metric."""
        return {
            name: standard_error(self.task, evaluation, self.error_analysis[name].answers)
            for name, evaluation in self.evaluations.items()
        }

    @cached_property
    def expected(self) -> Expectation | None:
        """What the model will reach on other texts; None where a dev was judge."""
        if not self.folds:
            return None
        judged = self.evaluations[self.judge]
        score, error = judged.model[self.task.main_metric], self.standard_errors[self.judge]
        if not math.isfinite(score):
            return None
        groups = len(groups_of(self.task, judged.split.examples))
        return estimate_score(score, error, groups, self.folds, self.learning_curve)

    @property
    def scores(self) -> list[float]:
        """Of the restarts on dev, those that are numbers."""
        return [each.score for each in self.restarts if math.isfinite(each.score)]

    def summary(self) -> dict[str, float]:
        """Mean, spread, best and worst of `scores`; NaN where there are too few."""
        scores = self.scores
        if not scores:
            return dict.fromkeys(("mean", "spread", "best", "worst"), math.nan)
        spread = statistics.stdev(scores) if len(scores) > 1 else math.nan
        return {"mean": statistics.mean(scores), "spread": spread, "best": max(scores), "worst": min(scores)}

    def record(self) -> dict[str, Any]:
        """results.json, in which a figure that is no number is null."""
        record = {
            "task": self.task.name,
            "main_metric": self.task.main_metric,
            "labels": list(self.task.labels),
            "train_rows": self.train_rows,
            "evaluations": {
                name: {
                    "rows": evaluation.rows,
                    "model": evaluation.model,
                    "standard_error": self.standard_errors[name],
                    "baselines": evaluation.baselines,
                }
                for name, evaluation in self.evaluations.items()
            },
            "method": self.method,
            "tried": [asdict(each) for each in self.tried],
            "learning_curve": asdict(self.learning_curve) if self.learning_curve else None,
            "expected": asdict(self.expected) if self.expected else None,
            "columns": asdict(self.columns) if self.columns else None,
            "figures": self.figures,
            "restarts": [each._asdict() for each in self.restarts],
            "best_restart": self.best + 1,
            "over_restarts": self.summary() | {"degenerate": self.degenerate},
            "remarks": self.task.remarks(),
            "warnings": self.warnings,
        }
        return cast(dict[str, Any], as_json_value(record))


def write_results(out: Path, results: Results) -> None:
    """results.json and the predictions of each evaluation."""
    write_json(out / "results.json", results.record())
    (out / "predictions").mkdir(exist_ok=True)
    for name, evaluation in results.evaluations.items():
        lines = (
            results.task.line(example, prediction)
            for example, prediction in zip(evaluation.split.examples, evaluation.predictions, strict=True)
        )
        write_jsonl(lines, out / "predictions" / f"{name}.jsonl")


def hash_data(recipe: FinetuneRecipe) -> dict[str, str]:
    """The SHA-256 of each file the run was made from."""
    others = {name: getattr(recipe, name) for name in ("dev", "test", "unlabelled")}
    return hash_files(recipe.train_files, others)


def hash_files(train: Sequence[str], others: Mapping[str, str | None]) -> dict[str, str]:
    """The SHA-256 of training files, which are numbered where they are several, and of others by name."""
    files: dict[str, str | None] = {f"train {n}": file for n, file in enumerate(train, 1)}
    if len(train) == 1:
        files = {"train": train[0]}
    return {name: sha256(Path(path)) for name, path in (files | {**others}).items() if path is not None}


def estimate_score(
    score: float, error: float | None, rows: int, folds: int, curve: LearningCurve | None
) -> Expectation:
    """What a model that learned from all rows will reach on others, as far as cross-validation can tell: from
    the score of so many rows, those of one source counted as one, its standard error (None: all rows alike),
    and how a linear model's score grows with rows: what is missing to 1 is taken to fall as its does.

    Folds learn from fewer rows, which costs most where a label has few; and they share their rows, so that
    their score moves by half as much again as rows that are independent would have it.

    The interval is Wilson's (1927), made wider; for a score that may be below 0 the normal one.
    """
    left = 1.0  # of the errors of learning from all folds but one, by learning from all rows
    if curve is not None and folds > 1:
        before, now = (max(1 - reached, 1e-9) for reached in curve.scores[-2:])
        left = float(min(now / before, 1.0) ** math.log2(folds / (folds - 1)))
    gain = (1 - score) * (1 - left)
    if not 0 <= score <= 1:
        half = _SHARED * _SURE * (error or 0.0)
        return Expectation(score + gain, score + gain - half, min(score + gain + half, 1.0))
    independent = rows if error is None else max(score * (1 - score) / error**2, 1.0)
    squared = _SURE**2 / independent
    middle = (score + squared / 2) / (1 + squared)
    spread = score * (1 - score) / independent + squared / (4 * independent)
    half = _SHARED * _SURE / (1 + squared) * math.sqrt(spread)
    low, high = max(middle + gain - half, 0.0), min(middle + gain + half, 1.0)
    return Expectation(min(max(score + gain, low), high), low, high)
