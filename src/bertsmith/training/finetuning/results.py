"""What a fine-tuning run found out: the model beside its baselines, over restarts, with what to mistrust.

out/results.json            every figure
out/predictions/dev.jsonl   what the model says of each row, with the right answer
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, cast

from bertsmith.files import read_json, sha256, write_json
from bertsmith.tasks.evaluating.error_analysis import ErrorAnalysis
from bertsmith.tasks.evaluating.evaluation import Evaluation, is_always_right
from bertsmith.tasks.evaluating.uncertainty import groups_of, standard_error
from bertsmith.tasks.task import Metrics, Task
from bertsmith.text.files.jsonl import write_jsonl
from bertsmith.training.finetune_recipe import FinetuneRecipe
from bertsmith.training.finetuning.best import WORST
from bertsmith.training.finetuning.choice import Tried
from bertsmith.training.finetuning.column_study import ColumnStudy
from bertsmith.training.finetuning.expectation import Expectation, expect
from bertsmith.training.finetuning.learning_curve import LearningCurve
from bertsmith.training.finetuning.methods import FULL
from bertsmith.training.log import json_value


class Restart(NamedTuple):
    """The run of one seed: its best score on dev, at which step, of how many, in how many seconds.

    Without any that is a number, as where the model gives all rows the same, the score is minus infinity.
    """

    seed: int
    score: float
    step: int
    steps: int
    seconds: float

    def write(self, path: Path) -> None:
        """A score that is no number is null."""
        write_json(path, json_value(self._asdict()))

    @classmethod
    def read(cls, path: Path) -> "Restart":
        """As it was written. Raises InputError."""
        record = read_json(path)
        return cls(**record | {"score": WORST if record["score"] is None else record["score"]})


def leading(restarts: Sequence[Restart]) -> int:
    """The index of the best restart; of equals the first."""
    return max(range(len(restarts)), key=lambda index: restarts[index].score)


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
    tried: tuple[Tried, ...] = ()
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
        return expect(score, error, groups, self.folds, self.learning_curve)

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
        return cast(dict[str, Any], json_value(record))


def write_results(out: Path, recipe: FinetuneRecipe, results: Results) -> None:
    """results.json and the predictions of each evaluation."""
    write_json(out / "results.json", results.record())
    (out / "predictions").mkdir(exist_ok=True)
    for name, evaluation in results.evaluations.items():
        lines = (
            results.task.line(example, prediction)
            for example, prediction in zip(evaluation.split.examples, evaluation.predictions, strict=True)
        )
        write_jsonl(lines, out / "predictions" / f"{name}.jsonl")


def data_hashes(recipe: FinetuneRecipe) -> dict[str, str]:
    """The SHA-256 of each file the run was made from."""
    others = {name: getattr(recipe, name) for name in ("dev", "test", "unlabelled")}
    return file_hashes(recipe.train_files, others)


def file_hashes(train: Sequence[str], others: Mapping[str, str | None]) -> dict[str, str]:
    """The SHA-256 of training files, which are numbered where they are several, and of others by name."""
    files: dict[str, str | None] = {f"train {n}": file for n, file in enumerate(train, 1)}
    if len(train) == 1:
        files = {"train": train[0]}
    return {name: sha256(Path(path)) for name, path in (files | {**others}).items() if path is not None}
