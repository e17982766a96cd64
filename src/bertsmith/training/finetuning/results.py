"""The results of a fine-tuning run, which measuring.py measures: the model beside its baselines on dev and
test or by cross-validation, its restarts, warnings, and the score to expect on other texts.

out/results.json            every figure
out/predictions/dev.jsonl   the prediction and the right answer of each row
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, cast

from bertsmith.files import sha256, write_json, write_jsonl
from bertsmith.tasks.evaluating.error_analysis import ErrorAnalysis
from bertsmith.tasks.evaluating.evaluation import (
    Evaluation,
    groups_of,
    is_always_right,
    standard_error,
)
from bertsmith.tasks.heads.name_training import NamesStudy
from bertsmith.tasks.task import Metrics, Task
from bertsmith.text.labelled.label_names import is_label_table
from bertsmith.training.finetune_recipe import FinetuneRecipe
from bertsmith.training.finetuning.choosing import MethodScore, discount
from bertsmith.training.finetuning.column_study import ColumnStudy
from bertsmith.training.finetuning.methods import FULL
from bertsmith.training.finetuning.restarts import Restart
from bertsmith.training.log import as_json_value

_SURE = 1.96  # standard deviations: 95 % of a normal distribution
# How much wider intervals are because folds share rows, as measured: LOG.md, 2026-11-25, "How far is a
# cross-validated score from the truth?"
_SHARED = 1.5


@dataclass(frozen=True)
class LearningCurve:
    """The main metric (`scores`) by the number of training rows (`rows`): a quarter, half and all of the
    other folds. `gain` is what twice the rows are expected to bring, `error` its standard error. `stratified`
    is the score of all by stratified folds, if these are folds drawn at random. `names` is how many rows the
    names of the labels count for, which are learned from beside them.
    """

    rows: tuple[int, ...]
    scores: tuple[float, ...]
    gain: float
    error: float
    stratified: float | None = None
    names: float = 0.0

    def as_sentence(self, metric: str) -> str:
        """Formats as 'Twice the rows would bring about +0.0210 ± 0.0080 accuracy (estimated with …).'"""
        return (
            f"Twice the rows would bring about {self.gain:+.4f} ± {self.error:.4f} {metric} "
            "(estimated with a linear model on the encoder as it is)."
        )


@dataclass(frozen=True)
class Expectation:
    """The main metric to expect on other texts: the likeliest score, and the ends of its 95 % interval."""

    score: float
    low: float
    high: float

    def as_sentence(self, metric: str) -> str:
        """Formats as 'Expected of other texts: accuracy 0.8450 (95 % interval 0.7912 to 0.8901).'"""
        interval = f"95 % interval {self.low:.4f} to {self.high:.4f}"
        return f"Expected of other texts: {metric} {self.score:.4f} ({interval})."


@dataclass(frozen=True)
class Results:
    """The results of a whole run.

    `evaluations` has those on dev or by cross-validation, which the model was chosen by, first, then test.
    `best` is the index of the restart whose weights were kept. `method` is the one that the model was trained
    by, and `tried` are the scores of the methods compared by cross-validation. `folds` is the number of
    folds, 0 without cross-validation, and `learning_curve` says what more rows would bring. `columns` says
    what the columns beside the text add to it, `names` what the names of the labels say of unlabelled texts,
    where a model learned from both. `figures` are those of calibration.
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
    names: NamesStudy | None = None

    @property
    def judge(self) -> str:
        """The name of the evaluation that the model was chosen by: dev or cross-validation; test or "" where
        the model was learned from names, and no row has judged it.
        """
        return next(iter(self.evaluations), "")

    @property
    def degenerate(self) -> int:
        """The number of restarts that are no better than always giving the most frequent answer; 0 if that is
        always right.
        """
        metric = self.task.main_metric
        if not self.judge:
            return 0
        majority = next(iter(self.evaluations[self.judge].baselines.values()), None)
        if majority is None or is_always_right(majority, metric):
            return 0
        return sum(restart.score <= majority[metric] + 1e-6 for restart in self.restarts)

    @property
    def warnings(self) -> list[str]:
        """Sentences for the user on what to mistrust in the data, the evaluations and the restarts."""
        sentences = [*self.data_warnings, *(self.names.warnings() if self.names else [])]
        for name, evaluation in self.evaluations.items():
            sentences += evaluation.warnings(name, self.task.main_metric)
        if self.degenerate and len(self.restarts) > 1:
            sentences.append(f"{self.degenerate} of {len(self.restarts)} restarts learned nothing")
        unscored = len(self.restarts) - len(self.scores)
        if unscored:
            sentences.append(
                f"{unscored} of {len(self.restarts)} restarts have no {self.task.main_metric} that is a "
                "number: the model gives all rows the same"
            )
        before, after = self.figures.get("ece_before", 1.0), self.figures.get("ece_after", 0.0)
        if after > before + 0.02:  # on few rows both are rough
            sentences.append(
                f"the calibration error is {before:.4f} without the temperature and {after:.4f} with it. "
                "The temperature makes the right labels likelier on the whole (it minimises the log loss); "
                "on few rows the calibration error is rough: set a threshold by rows of your own"
            )
        return sentences

    @cached_property
    def error_analysis(self) -> dict[str, ErrorAnalysis]:
        """The analysis of the model's errors, by evaluation."""
        return {
            name: self.task.error_analysis(evaluation.predictions, evaluation.split.examples)
            for name, evaluation in self.evaluations.items()
        }

    @cached_property
    def standard_errors(self) -> dict[str, float | None]:
        """The standard error of the model's main metric, by evaluation; None if all rows agree."""
        return {
            name: standard_error(self.task, evaluation, self.error_analysis[name].answers)
            for name, evaluation in self.evaluations.items()
        }

    @cached_property
    def expected(self) -> Expectation | None:
        """The score to expect on other texts; None without cross-validation, or if its score isn't finite."""
        if not self.folds:
            return None
        evaluation = self.evaluations[self.judge]
        score, error = evaluation.model[self.task.main_metric], self.standard_errors[self.judge]
        if not math.isfinite(score):
            return None
        groups = len(groups_of(self.task, evaluation.split.examples))
        change = sum(discount(tried) for tried in self.tried if tried.method == self.method)
        score = min(max(score + change, min(score, 0.0)), 1.0)
        return estimate_score(score, error, groups, self.folds, self.learning_curve)

    @property
    def scores(self) -> list[float]:
        """The finite scores of the restarts on dev."""
        return [restart.score for restart in self.restarts if math.isfinite(restart.score)]

    def summary(self) -> dict[str, float]:
        """The mean, spread (standard deviation), best and worst of `scores`; NaN if there are too few."""
        scores = self.scores
        if not scores:
            return dict.fromkeys(("mean", "spread", "best", "worst"), math.nan)
        spread = statistics.stdev(scores) if len(scores) > 1 else math.nan
        return {"mean": statistics.mean(scores), "spread": spread, "best": max(scores), "worst": min(scores)}

    def record(self) -> dict[str, Any]:
        """The content of results.json, where figures that aren't finite are null."""
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
            "tried": [asdict(score) for score in self.tried],
            "learning_curve": asdict(self.learning_curve) if self.learning_curve else None,
            "expected": asdict(self.expected) if self.expected else None,
            "columns": asdict(self.columns) if self.columns else None,
            "names": asdict(self.names) if self.names else None,
            "figures": self.figures,
            "restarts": [restart._asdict() for restart in self.restarts],
            "best_restart": self.best + 1,
            "over_restarts": self.summary() | {"degenerate": self.degenerate},
            "remarks": self.task.remarks(),
            "warnings": self.warnings,
        }
        return cast(dict[str, Any], as_json_value(record))


def write_results(out: Path, results: Results) -> None:
    """Writes results.json and the predictions of each evaluation to the run folder."""
    write_json(out / "results.json", results.record())
    (out / "predictions").mkdir(exist_ok=True)
    for name, evaluation in results.evaluations.items():
        lines = (
            results.task.line(example, prediction)
            for example, prediction in zip(evaluation.split.examples, evaluation.predictions, strict=True)
        )
        write_jsonl(lines, out / "predictions" / f"{name}.jsonl")


def hash_data(recipe: FinetuneRecipe) -> dict[str, str]:
    """The SHA-256 of each data file of the recipe, by its role: train, dev, test, unlabelled."""
    others = {name: getattr(recipe, name) for name in ("dev", "test", "unlabelled")}
    if isinstance(recipe.names, str) and is_label_table(recipe.names):
        others["names"] = recipe.names
    return hash_files(recipe.train_files, others)


def hash_files(train: Sequence[str], others: Mapping[str, str | None]) -> dict[str, str]:
    """The SHA-256 of the training files, numbered if there are several, and of `others` by name; those
    without a path are left out.
    """
    files: dict[str, str | None] = {f"train {n}": file for n, file in enumerate(train, 1)}
    if len(train) == 1:
        files = {"train": train[0]}
    return {name: sha256(Path(path)) for name, path in (files | {**others}).items() if path is not None}


def estimate_score(
    score: float, error: float | None, rows: int, folds: int, curve: LearningCurve | None
) -> Expectation:
    """Estimates the score on other texts of a model that is trained on all rows, from a cross-validated
    score.

    `error` is the score's standard error (None if all rows agree), `rows` the number of rows, where those of
    one group count once. Models of folds are trained on fewer rows: the errors (1 - score) of training on all
    of them are taken to fall as those of the linear model of the learning `curve` do, and to be more as its
    errors are by folds drawn at random, if it has these. Folds share their rows, so that their score varies
    half as much again as that of independent rows.

    The interval is Wilson's (1927), widened by that; for a score outside [0, 1] the normal one.
    """
    factor = 1.0  # by which training on all rows, not on all folds but one, reduces the errors
    if curve is not None and folds > 1:
        half_error, full_error = (max(1 - curve_score, 1e-9) for curve_score in curve.scores[-2:])
        others = curve.rows[-1]
        doublings = math.log((others * folds / (folds - 1) + curve.names) / (others + curve.names))
        doublings /= math.log((others + curve.names) / (others / 2 + curve.names))
        factor = float(min(full_error / half_error, 1.0) ** doublings)
        if curve.stratified is not None:
            factor *= (full_error + 1 / rows) / (1 - curve.stratified + 1 / rows)
    gain = (1 - score) * (1 - factor)
    if not 0 <= score <= 1:
        half = _SHARED * _SURE * (error or 0.0)
        return Expectation(score + gain, score + gain - half, min(score + gain + half, 1.0))
    independent = rows if error is None else max(score * (1 - score) / error**2, 1.0)
    squared = _SURE**2 / independent
    centre = (score + squared / 2) / (1 + squared)
    variance = score * (1 - score) / independent + squared / (4 * independent)
    half = _SHARED * _SURE / (1 + squared) * math.sqrt(variance)
    low, high = max(centre + gain - half, 0.0), min(centre + gain + half, 1.0)
    return Expectation(min(max(score + gain, low), high), low, high)
