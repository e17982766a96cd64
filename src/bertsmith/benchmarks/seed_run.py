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
    """The result of one seed. `figures` are the official metrics of each split by the split's name, `dev`
    first: metric -> value. `standard_error` is that of dev's score over its rows (for MultiRC its questions),
    `rows` the number of rows of each split, the training rows' too, `seconds` the time of training, and
    `warnings` are those of `finetune`.
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
    head_task: str,
    overrides: Sequence[str],
    arguments: dict[str, Any],
    out: Path,
    hours: float,
    on_trial: Callable[[Trial], None],
) -> ChosenSettings:
    """Runs trials until they have taken `hours` together, finishing the last one. Resumes a killed search,
    and returns the result of a finished one.

    `arguments` are further arguments of `tune`, see `finetune_arguments`. Settings in `overrides` and
    `arguments` aren't searched. Raises as `tune` does.
    """
    stored = out / CHOSEN
    if not stored.exists():
        trials = _run_trials(head_task, overrides, arguments, out, hours, on_trial)
        # Returns at once, with the result: an exception ended the search in `_run_trials`.
        result = tune(head_task, *overrides, **arguments, out=str(out), trials=trials, resume=True)
        seconds = sum(trial.seconds for trial in result.trials)
        write_json(stored, ChosenSettings(result.best.choice, len(result.trials), seconds)._asdict())
    # The result is stored, so `tune` won't be resumed, which would need these folders.
    for folder in ("trials", "model"):
        shutil.rmtree(out / folder, ignore_errors=True)
    return ChosenSettings(**read_json(stored))


def _run_trials(
    head_task: str,
    overrides: Sequence[str],
    arguments: dict[str, Any],
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

    def count_trial(trial: Trial) -> None:
        """Counts a trial and its seconds, and ends the search when the hours are spent."""
        nonlocal spent, done
        spent, done = spent + trial.seconds, done + 1
        on_trial(trial)
        if spent >= hours * 3600:
            raise _BudgetSpent

    with suppress(_BudgetSpent):
        tune(
            head_task,
            *overrides,
            **arguments,
            out=str(out),
            trials=_MOST_TRIALS,
            resume=True,
            on_trial=count_trial,
        )
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
    """Fine-tunes with a seed and evaluates on all splits with labels. Resumes a killed run, and returns the
    score of a finished one. Raises RecipeError if that one was trained on other rows.
    """
    out = seed_folder(task_folder, seed)
    if (score := read_seed_score(task_folder, seed)) is not None:
        require_same_data(out, {"train": sha256(files.train), "dev": sha256(files.dev)})
        return score
    arguments = finetune_arguments(task, files, model) | {"seed": seed}
    result = finetune(task.head, *overrides, **arguments, out=str(out), resume=True, console=console)
    results = result.results
    figures = {DEV: task.figures(files.dev, predictions_path(out, DEV))}
    rows = {"train": results.train_rows, DEV: results.evaluations["dev"].rows}
    predictor = Predictor.load(result.model, compute_dtype=torch.float32) if files.labelled else None
    for part, path in files.labelled.items():
        assert predictor is not None
        rows[part] = predict_part(predictor, path, out, part)
        figures[part] = task.figures(path, predictions_path(out, part))
    error = task.standard_error(files.dev, predictions_path(out, DEV), results.standard_errors["dev"])
    # A restart is one training from scratch; there are several if the recipe says so.
    seconds = sum(restart.seconds for restart in results.restarts)
    score = SeedScore(seed, figures, error, rows, seconds, results.warnings)
    write_json(out / _SCORE_FILE, as_json_value(asdict(score)))
    return score


def finetune_arguments(task: BenchmarkTask, files: TaskFiles, model: str) -> dict[str, Any]:
    """The arguments of `finetune` and `tune` that name the model and the rows, and the task's own."""
    return {"model": model, "train": str(files.train), "dev": str(files.dev), **task.settings}


def read_seed_score(task_folder: Path, seed: int) -> SeedScore | None:
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


def write_submissions(
    task: BenchmarkTask, files: TaskFiles, task_folder: Path, seed: int, out: Path, progress: Progress
) -> list[Path]:
    """Writes the files for the benchmark's server, predicted by the model of one seed, to the folder `out`,
    and returns their paths. If the benchmark's format has a file for dev, that one is written too.
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
    written = (
        task.write_submission(part, rows, predictions_path(run, part), out) for part, rows in parts.items()
    )
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
