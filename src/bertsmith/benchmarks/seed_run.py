"""One task of a benchmark on a model: searches its settings on dev alone, within a budget of hours; and runs
a seed: fine-tunes, predicts, and computes the official metrics.

OUT/TASK/search is the folder of `bertsmith tune`, with the result in OUT/TASK/search/chosen.json.
OUT/TASK/seed-N is the folder of `bertsmith finetune`, with the result in OUT/TASK/seed-N/score.json; a seed
without that file is trained further.
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
_MOST_TRIALS = 100_000  # the hours end the search, not the number of trials


class ChosenSettings(NamedTuple):
    """The settings with the best score on dev, the number of trials, and the seconds that these took
    together.
    """

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
    """Runs trials until they have taken `hours` together, finishing the last one. Settings in `overrides` and
    `values` aren't searched.

    A killed search goes on, and a finished one is read. `values` are the files and the model, as arguments of
    `tune`. Raises as `tune` does.
    """
    stored = out / CHOSEN
    if not stored.exists():
        trials = _run_trials(task, overrides, values, out, hours, on_trial)
        result = tune(task, *overrides, **values, out=str(out), trials=trials, resume=True)
        seconds = sum(trial.seconds for trial in result.trials)
        write_json(stored, ChosenSettings(result.best.choice, len(result.trials), seconds)._asdict())
    for folder in ("trials", "model"):  # the seeds train it again, and `tune` can't go on without them
        shutil.rmtree(out / folder, ignore_errors=True)
    return ChosenSettings(**read_json(stored))


def _run_trials(
    task: str,
    overrides: Sequence[str],
    values: dict[str, Any],
    out: Path,
    hours: float,
    on_trial: Callable[[Trial], None],
) -> int:
    """Runs trials until the budget is spent, and returns their number, with those of earlier calls."""
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
        tune(task, *overrides, **values, out=str(out), trials=_MOST_TRIALS, resume=True, on_trial=count)
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
    """Trains and judges a seed. A killed run goes on, and a finished one is read. Raises RecipeError where it
    was trained on other rows.
    """
    out = seed_folder(task_folder, seed)
    if (score := read_seed(task_folder, seed)) is not None:
        require_same_data(out, {"train": sha256(files.train), "dev": sha256(files.dev)})
        return score
    values = run_values(task, files, model) | {"seed": seed}
    result = finetune(task.head, *overrides, **values, out=str(out), resume=True, console=console)
    results = result.results
    figures = {DEV: task.figures(files.dev, predictions_path(out, DEV))}
    rows = {"train": results.train_rows, DEV: results.evaluations["dev"].rows}
    predictor = Predictor.load(result.model, compute_dtype=torch.float32) if files.judged else None
    for part, path in files.judged.items():
        assert predictor is not None
        rows[part] = predict_part(predictor, path, out, part)
        figures[part] = task.figures(path, predictions_path(out, part))
    error = task.standard_error(files.dev, predictions_path(out, DEV), results.standard_errors["dev"])
    seconds = sum(restart.seconds for restart in results.restarts)
    score = SeedScore(seed, figures, error, rows, seconds, results.warnings)
    write_json(out / _SCORE_FILE, as_json_value(asdict(score)))
    return score


def run_values(task: BenchmarkTask, files: TaskFiles, model: str) -> dict[str, Any]:
    """The arguments of `finetune` and `tune` for the model, the rows and the task's settings."""
    return {"model": model, "train": str(files.train), "dev": str(files.dev), **task.settings}


def read_seed(task_folder: Path, seed: int) -> SeedScore | None:
    """The score of a seed; None for one that hasn't finished."""
    path = seed_folder(task_folder, seed) / _SCORE_FILE
    return SeedScore(**read_json(path)) if path.exists() else None


def keep_leading_model(task_folder: Path, scores: Sequence[SeedScore]) -> SeedScore:
    """Removes the weights of all seeds but the one with the best score on dev, among equal ones the first,
    and returns its score.
    """
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
    """Writes the files for the benchmark's server, predicted by the model of one seed, to the folder `out`,
    and returns their paths; dev's too, where the benchmark has a file for it.
    """
    run = seed_folder(task_folder, seed)
    make_folder(out)
    missing = {
        part: path for part, path in files.predicted.items() if not predictions_path(run, part).exists()
    }
    if missing:
        predictor = Predictor.load(run / "model", compute_dtype=torch.float32)
        for part, path in missing.items():
            predict_part(predictor, path, run, part, progress)
    parts = {DEV: files.dev, **files.predicted}
    written = (task.hand_in(part, rows, predictions_path(run, part), out) for part, rows in parts.items())
    return [path for path in written if path is not None]


def predict_part(
    predictor: Predictor, rows: Path, run: Path, part: str, progress: Progress | None = None
) -> int:
    """Predicts a split into the run's folder, and returns the number of rows."""
    return predictor.predict_file(rows, predictions_path(run, part), progress, overwrite=True)


def predictions_path(run: Path, part: str) -> Path:
    return run / "predictions" / f"{part}.jsonl"


def seed_folder(task_folder: Path, seed: int) -> Path:
    return task_folder / f"seed-{seed}"
