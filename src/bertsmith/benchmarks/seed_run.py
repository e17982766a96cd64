"""One task of a benchmark on a model: its settings searched on dev alone, within a budget of hours; and one
seed, fine-tuned, predicted, judged by the official metrics.

OUT/TASK/search is the folder of `bertsmith tune`, and OUT/TASK/search/chosen.json what came of it.
OUT/TASK/seed-N is the folder of `bertsmith finetune`, and OUT/TASK/seed-N/score.json what came of it, without
which the seed is trained on.
"""

import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from rich.console import Console

from bertsmith.benchmarks.benchmark import SCORE, BenchmarkTask, Figures, TaskFiles
from bertsmith.files import make_folder, read_json, sha256, write_json
from bertsmith.inference.predictor import Predictor
from bertsmith.progress import Progress
from bertsmith.training.finetuning.finetune import finetune
from bertsmith.training.finetuning.search import Choice, Trial
from bertsmith.training.finetuning.tune import tune
from bertsmith.training.log import as_json_value
from bertsmith.training.run_folder import require_same_data

DEV = "dev"
CHOSEN = "chosen.json"
_SCORE_FILE = "score.json"
_MANY = 100_000  # trials: the hours end the search, not their number


class ChosenSettings(NamedTuple):
    """The settings that did best on dev, after how many trials that took so many seconds together."""

    choice: Choice
    trials: int
    seconds: float

    def overrides(self) -> list[str]:
        """The settings that the search chose, as arguments of `finetune`."""
        return [f"{name}={value!r}" for name, value in self.choice.items()]


@dataclass(frozen=True)
class SeedScore:
    """The result of one seed: the official figures of each split by name, `dev` first; the standard error of
    dev's score over its rows (for MultiRC its questions); the number of rows of each split; the seconds of
    training.
    """

    seed: int
    figures: dict[str, Figures]
    standard_error: float | None
    rows: dict[str, int]
    seconds: float
    warnings: list[str]

    @property
    def score(self) -> float:
        """The task's score on dev, as a share of 1."""
        return self.figures[DEV][SCORE]


def search_settings(
    task: str,
    overrides: Sequence[str],
    values: dict[str, Any],
    out: Path,
    hours: float,
    on_trial: Callable[[Trial], None],
) -> ChosenSettings:
    """Trials until their seconds exceed `hours`, the last one finished; what was given is not searched.

    A search that was killed goes on, and one that ended is read. `values` are the files and the model, as
    `tune` is told them. Raises what `tune` does.
    """
    stored = out / CHOSEN
    if not stored.exists():
        trials = _trials_until(task, overrides, values, out, hours, on_trial)
        result = tune(task, *overrides, **values, out=str(out), trials=trials, resume=True)
        seconds = sum(trial.seconds for trial in result.trials)
        write_json(stored, ChosenSettings(result.best.choice, len(result.trials), seconds)._asdict())
    for folder in ("trials", "model"):  # the seeds train it again, and `tune` can't go on without them
        shutil.rmtree(out / folder, ignore_errors=True)
    return ChosenSettings(**read_json(stored))


def _trials_until(
    task: str,
    overrides: Sequence[str],
    values: dict[str, Any],
    out: Path,
    hours: float,
    on_trial: Callable[[Trial], None],
) -> int:
    """Trains trial after trial; how many there are when the budget is spent."""
    path = out / "trials.json"
    before = [record["seconds"] for record in read_json(path)] if path.exists() else []
    spent, done = sum(before), len(before)
    if done and spent >= hours * 3600:
        return done

    def count(trial: Trial) -> None:
        nonlocal spent, done
        spent, done = spent + trial.seconds, done + 1
        on_trial(trial)
        if spent >= hours * 3600:
            raise _BudgetSpent

    with suppress(_BudgetSpent):
        tune(task, *overrides, **values, out=str(out), trials=_MANY, resume=True, on_trial=count)
    return done


class _BudgetSpent(Exception):
    """Ends a search between two trials."""


def run_seed(
    task: BenchmarkTask,
    files: TaskFiles,
    model: str,
    task_folder: Path,
    seed: int,
    overrides: Sequence[str],
    console: Console | None,
) -> SeedScore:
    """Trains, or goes on where a killed run was, and judges. One that has ended is read. Raises RecipeError
    where it was trained on other rows.
    """
    out = seed_folder(task_folder, seed)
    if (known := read_seed(task_folder, seed)) is not None:
        require_same_data(out, {"train": sha256(files.train), "dev": sha256(files.dev)})
        return known
    values = run_values(task, files, model) | {"seed": seed}
    result = finetune(task.head, *overrides, **values, out=str(out), resume=True, console=console)
    results = result.results
    figures = {DEV: task.figures(files.dev, predictions_of(out, DEV))}
    rows = {"train": results.train_rows, DEV: results.evaluations["dev"].rows}
    predictor = Predictor.load(result.model, compute_dtype=torch.float32) if files.judged else None
    for part, path in files.judged.items():
        assert predictor is not None
        rows[part] = predict_part(predictor, path, out, part)
        figures[part] = task.figures(path, predictions_of(out, part))
    error = task.standard_error(files.dev, predictions_of(out, DEV), results.standard_errors["dev"])
    seconds = sum(restart.seconds for restart in results.restarts)
    found = SeedScore(seed, figures, error, rows, seconds, results.warnings)
    write_json(out / _SCORE_FILE, as_json_value(asdict(found)))
    return found


def run_values(task: BenchmarkTask, files: TaskFiles, model: str) -> dict[str, Any]:
    """What `finetune` and `tune` are told of the model and the rows."""
    return {"model": model, "train": str(files.train), "dev": str(files.dev), **task.settings}


def read_seed(task_folder: Path, seed: int) -> SeedScore | None:
    """What came of a seed; None for one that has not ended."""
    path = seed_folder(task_folder, seed) / _SCORE_FILE
    return SeedScore(**read_json(path)) if path.exists() else None


def keep_leading_model(task_folder: Path, scores: Sequence[SeedScore]) -> SeedScore:
    """The seed that did best on dev, of equals the first; the weights of the others are removed."""
    leading = max(scores, key=lambda score: (score.score, -score.seed))
    for score in scores:
        folder = seed_folder(task_folder, score.seed)
        shutil.rmtree(folder / "restarts", ignore_errors=True)
        if score is not leading:
            shutil.rmtree(folder / "model", ignore_errors=True)
    return leading


def hand_in(
    task: BenchmarkTask, files: TaskFiles, task_folder: Path, seed: int, out: Path, progress: Progress
) -> list[Path]:
    """The files for the benchmark's server, by the model of one seed, into the folder `out`; dev's too, where
    the benchmark has a file of it.
    """
    run = seed_folder(task_folder, seed)
    make_folder(out)
    missing = {part: path for part, path in files.predicted.items() if not predictions_of(run, part).exists()}
    if missing:
        predictor = Predictor.load(run / "model", compute_dtype=torch.float32)
        for part, path in missing.items():
            predict_part(predictor, path, run, part, progress)
    parts = {DEV: files.dev, **files.predicted}
    written = (task.hand_in(part, rows, predictions_of(run, part), out) for part, rows in parts.items())
    return [path for path in written if path is not None]


def predict_part(
    predictor: Predictor, rows: Path, run: Path, part: str, progress: Progress | None = None
) -> int:
    """Into the run's folder; returns how many."""
    return predictor.predict_file(rows, predictions_of(run, part), progress, overwrite=True)


def predictions_of(run: Path, part: str) -> Path:
    return run / "predictions" / f"{part}.jsonl"


def seed_folder(task_folder: Path, seed: int) -> Path:
    return task_folder / f"seed-{seed}"
