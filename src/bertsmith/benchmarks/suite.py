"""A benchmark of fine-tuned tasks run whole: each task and seed in a folder of its own, all in one table.

OUT/benchmark.json     what was begun          OUT/TASK/data/      the official rows
OUT/results.json       every figure            OUT/TASK/search/    settings searched on dev, with a budget
OUT/report.html        the same to look at     OUT/TASK/seed-1 …   a fine-tuning run a seed
OUT/submission/        files for the server   OUT/TASK/parts.json which rows were predicted
                                              OUT/TASK/notes.json sentences on the rows

Several processes of torchrun may work on one benchmark: each takes tasks of its own, on a device of its own.
"""

import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch
from rich.console import Console

from bertsmith.benchmarks.benchmark import BenchmarkTask, Suite, TaskFiles, begin, model_hash
from bertsmith.benchmarks.results import BenchmarkResult, TaskResult, gather_seeds, write_benchmark_report
from bertsmith.benchmarks.seed_run import (
    CHOSEN,
    DEV,
    SeedScore,
    hand_in,
    keep_leading_model,
    read_seed,
    run_seed,
    run_values,
    search_settings,
    seed_folder,
)
from bertsmith.errors import BertsmithError, InputError, RecipeError, did_you_mean, require
from bertsmith.files import make_folder, read_json, sha256, write_json
from bertsmith.progress import Progress
from bertsmith.reporting.formatting import counted
from bertsmith.reporting.page import REPORT_FILE
from bertsmith.training.finetune_recipe import make_finetune_recipe
from bertsmith.training.finetuning.search import make_search
from bertsmith.training.log import as_json_value
from bertsmith.training.machine import join_ranks, leave_ranks, wait_for_ranks
from bertsmith.training.run_folder import require_unchanged

T = TypeVar("T")
_VISIBLE = "CUDA_VISIBLE_DEVICES"
_RESULTS, _SUBMISSION, _PARTS, _NOTES = "results.json", "submission", "parts.json", "notes.json"
_OWN = ("seed", "restarts", "out", "model", "train", "dev", "test", "resume", "unlabelled", "trials")
_OF_SEARCH = ("search", "prune")  # settings of `tune` that `finetune` doesn't have
_HOURS_A_TASK = "hours_a_task"
OnSeed = Callable[[str, SeedScore], None]


@dataclass(frozen=True)
class SuiteSettings:
    """`tasks` None: all whose files are there. `hours` of search, divided evenly among the tasks that a
    benchmark is begun with, while one that is added has as many as each of them; 0 takes the defaults. `rows`
    of each part, for a trial; None takes all. `overrides` are settings of `finetune`, and with `hours` those
    of the search alone, such as search.epochs=[1,3].
    """

    tasks: tuple[str, ...] | None = None
    seeds: int = 3
    hours: float = 0.0
    rows: int | None = None
    overrides: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.seeds < 1:
            raise RecipeError(f"seeds must be 1 or more, found {self.seeds}.")
        if not 0 <= self.hours < float("inf"):
            raise RecipeError(f"hours of search must be 0 or more, found {self.hours:g}.")
        if self.rows is not None and self.rows < 50:
            raise RecipeError(f"rows must be 50 or more of each part, found {self.rows}: fewer say nothing.")
        for override in self.overrides:
            key = override.partition("=")[0]
            if key in _OWN:
                raise RecipeError(f"{key} is the benchmark's to set. Leave out {override}.")
            if _is_of_search(override) and not self.hours:
                raise RecipeError(f"{key} is for the search alone. Give --hours, or leave out {override}.")

    def begun_as(self) -> dict[str, Any]:
        """What must be the same when a benchmark goes on; tasks and seeds may be added."""
        return {"hours": self.hours, "rows": self.rows, "overrides": list(self.overrides)}

    def of_seeds(self) -> list[str]:
        """The overrides that `finetune` is told."""
        return [override for override in self.overrides if not _is_of_search(override)]


def _is_of_search(override: str) -> bool:
    return override.partition("=")[0].split(".")[0] in _OF_SEARCH


class Share(NamedTuple):
    """The share of one process among several that divide a suite's tasks: its number `rank` of `ranks`."""

    rank: int = 0
    ranks: int = 1

    def of(self, tasks: Sequence[T]) -> list[T]:
        """The tasks of this process: every `ranks`-th one from number `rank` on."""
        return list(tasks[self.rank :: self.ranks])


_ALONE = Share()


@dataclass
class _SuiteRun:
    """What all tasks of one call share."""

    suite: Suite
    folder: Path
    model: str
    out: Path
    settings: SuiteSettings
    command: str
    console: Console | None
    progress: Progress
    hours_a_task: float
    notes: dict[str, list[str]] = field(default_factory=dict)


def run_suite(
    suite: Suite,
    folder: Path,
    model: str,
    out: Path,
    settings: SuiteSettings,
    *,
    resume: bool = False,
    share: Share = _ALONE,
    command: str = "",
    console: Console | None = None,
    progress: Progress = lambda done, total, unit: None,
    on_seed: OnSeed | None = None,
) -> BenchmarkResult:
    """Trains, judges and gathers. With `resume` a run that was killed goes on, and what has ended is not done
    again; more `tasks` and `seeds` may be asked for. `share`: of several processes, which of the tasks are
    this one's. `on_seed` hears of each seed that has ended. Raises InputError, RecipeError and what
    `finetune` raises; a task that can't be read, and settings that it doesn't have, are refused before
    anything is trained. The result has the tasks of earlier calls too.
    """
    chosen, absent = _choose(suite, folder, settings.tasks)
    for task in chosen:  # raises what the search and `finetune` would raise in the middle of a benchmark
        told = run_values(task, TaskFiles(Path("train"), Path("dev")), model)
        told |= {"task": task.head, "out": str(out)}
        make_finetune_recipe(told | {"seed": 1}, settings.of_seeds())
        if settings.hours:
            require("optuna", "tune", "A search with --hours")
            make_search(told, list(settings.overrides))
    asked = {"benchmark": suite.name, "model": model, "model_files": model_hash(model), **settings.begun_as()}
    if share.rank == 0:
        begin(out, asked, resume, {_HOURS_A_TASK: settings.hours / len(chosen)})
    part_after(share)
    hours = begin(out, asked, resume=True)[_HOURS_A_TASK]
    run = _SuiteRun(suite, folder, model, out, settings, command, console, progress, hours)
    _require_no_more_seeds(out, chosen, settings.seeds)
    try:
        files = {
            task.name: task.prepare(folder, _task_folder(out, task) / "data", settings.rows)
            for task in chosen
        }
        for task in share.of(chosen):
            _require_same_parts(_task_folder(out, task), files[task.name])
        run.notes[""] = absent
        for task in suite.tasks:
            noted = _task_folder(out, task) / _NOTES
            if task in chosen:
                run.notes[task.name] = list(files[task.name].notes)
            elif noted.exists():  # by an earlier call
                run.notes[task.name] = list(read_json(noted))
        for task in share.of(chosen):
            write_json(_task_folder(out, task) / _NOTES, run.notes[task.name])
            _run_task(run, chosen, task, files[task.name], on_seed)
    except BertsmithError:
        was_trained = any(out.glob("*/seed-*")) or any(out.glob("*/search"))
        if share.rank == 0 and not resume and not was_trained:
            shutil.rmtree(out)  # or the command, corrected, would find other settings there
        raise
    return _gather(run, chosen)


def _choose(
    suite: Suite, folder: Path, names: tuple[str, ...] | None
) -> tuple[list[BenchmarkTask], list[str]]:
    """The tasks to run, and a sentence on each that isn't there."""
    if not folder.is_dir():
        raise InputError(f"{folder} is not a folder. {suite.tasks[0].source()}")
    known = {task.name.lower(): task for task in suite.tasks}
    if names is None:
        there = [task for task in suite.tasks if task.is_in(folder)]
        absent = [
            f"{task.name} is not in {folder.name}. {task.source()}"
            for task in suite.tasks
            if task not in there
        ]
        if not there:
            raise InputError(f"{folder} has no task of {suite.name}. {suite.tasks[0].source()}")
        return there, absent
    for name in names:
        if name.lower() not in known:
            meant = did_you_mean(name, [task.name for task in suite.tasks])
            there_are = ", ".join(task.name for task in suite.tasks)
            raise InputError(f"{suite.name} has no task {name!r}.{meant} There are: {there_are}.")
        if not known[name.lower()].is_in(folder):
            raise InputError(f"{folder} has no {known[name.lower()].name}. {known[name.lower()].source()}")
    wanted = {name.lower() for name in names}
    return [task for task in suite.tasks if task.name.lower() in wanted], []


def _require_no_more_seeds(out: Path, chosen: Sequence[BenchmarkTask], seeds: int) -> None:
    """Of more, the leading one's model alone is kept: fewer seeds might lack theirs."""
    for task in chosen:
        if read_seed(_task_folder(out, task), seeds + 1) is not None:
            raise RecipeError(
                f"{out} has more than {seeds} seeds of {task.name} already. Ask for as many, or for more."
            )


def _require_same_parts(folder: Path, files: TaskFiles) -> None:
    """Raises RecipeError where a part that is predicted has other rows than before: its predictions stand.
    Parts may come along, but not such with labels, for the models of the seeds that have ended are gone.
    """
    for seed in gather_seeds(folder):
        if seed.figures.keys() != {DEV, *files.judged}:
            raise RecipeError(
                f"{seed_folder(folder, seed.seed)} was judged on {', '.join(sorted(seed.figures))}, and the "
                f"official files now have labels for {', '.join(sorted({DEV, *files.judged}))}. All seeds "
                "are judged on the same parts: put the files back as they were, or choose another --out."
            )
    make_folder(folder)  # SQuAD's official files stay where they are
    hashes = {part: sha256(path) for part, path in files.predicted.items()}
    begun = hashes | (read_json(folder / _PARTS) if (folder / _PARTS).exists() else {})
    require_unchanged(begun, hashes, f"the runs in {folder}")
    write_json(folder / _PARTS, begun)


def _run_task(
    run: _SuiteRun,
    chosen: Sequence[BenchmarkTask],
    task: BenchmarkTask,
    files: TaskFiles,
    on_seed: OnSeed | None,
) -> None:
    folder = _task_folder(run.out, task)
    overrides = run.settings.of_seeds()
    if run.settings.hours:
        shown = run.console or Console(quiet=True)

        def tell(trial: Any) -> None:
            shown.print(f"{task.name}: trial {trial.number} of the search, dev {trial.score}", markup=False)

        values = run_values(task, files, run.model)
        found = search_settings(
            task.head, run.settings.overrides, values, folder / "search", run.hours_a_task, tell
        )
        overrides += found.overrides()
    scores = []
    for seed in range(1, run.settings.seeds + 1):
        scores.append(run_seed(task, files, run.model, folder, seed, overrides, run.console))
        keep_leading_model(folder, scores)
        _gather(run, chosen)
        if on_seed is not None:
            on_seed(task.name, scores[-1])
    leading = keep_leading_model(folder, scores)
    hand_in(task, files, folder, leading.seed, run.out / _SUBMISSION, run.progress)


def _gather(run: _SuiteRun, chosen: Sequence[BenchmarkTask]) -> BenchmarkResult:
    """All that has ended, in earlier calls too, written anew."""
    tasks = []
    for task in run.suite.tasks:
        folder = _task_folder(run.out, task)
        searched = folder / "search" / CHOSEN
        if seeds := gather_seeds(folder):
            found = read_json(searched) if searched.exists() else None
            tasks.append(TaskResult(task.name, task.judged_by, seeds, found))
    notes = [sentence for sentences in run.notes.values() for sentence in sentences]
    wanted, names = run.settings.seeds, [task.name for task in chosen]
    differing = {task.name: len(task.seeds) for task in tasks if len(task.seeds) != wanted}
    for name, count in differing.items():
        if name not in names:
            notes.insert(0, f"{name}, of an earlier call, has {counted(count, 'seed')}, not {wanted}")
    ended = {task.name for task in tasks} - differing.keys()
    if still := [name for name in names if name not in ended]:
        notes.insert(
            0, f"still to come: {', '.join(still)}; {REPORT_FILE} will have them when they have ended"
        )
    if run.settings.rows is not None:
        notes.insert(
            0, f"a trial on {run.settings.rows:,} rows of each part: not to be compared with anything"
        )
    facts = run.settings.begun_as() | {"seeds": run.settings.seeds}
    result = BenchmarkResult(
        run.suite.name, run.model, tuple(tasks), facts, tuple(notes), run.suite.published
    )
    if tasks:
        write_json(run.out / _RESULTS, as_json_value(result.to_json()))
        write_benchmark_report(run.out, result, run.command)
    return result


def _task_folder(out: Path, task: BenchmarkTask) -> Path:
    return out / task.name.replace(" ", "-")


def own_share() -> Share:
    """This process's share, on a device of its own: a benchmark's trainings are small, and one a device is
    faster than all devices on one. To be called before CUDA is asked for anything. Raises RecipeError where
    this machine has fewer GPUs than processes.
    """
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    if "RANK" not in os.environ or ranks == 1:
        return Share()
    rank, local = int(os.environ["RANK"]), int(os.environ.get("LOCAL_RANK", "0"))
    gpus, visible = _gpus(), os.environ.get(_VISIBLE)
    if gpus == 0 or visible == "":  # empty hides them all
        return Share(rank, ranks)
    processes = int(os.environ.get("LOCAL_WORLD_SIZE", local + 1))
    devices = visible.split(",") if visible else [str(number) for number in range(processes)]
    there = len(devices) if gpus is None else min(gpus, len(devices))
    if processes > there:
        raise RecipeError(
            f"{processes} processes were started on this machine, which has {counted(there, 'GPU')} for "
            f"them. Start as many: torchrun --nproc-per-node {there}. To train on the processor alone, hide "
            f"the GPUs by {_VISIBLE}= before the command."
        )
    os.environ[_VISIBLE] = devices[local]
    return Share(rank, ranks)


def _gpus() -> int | None:
    """How many CUDA will see, as NVML says without beginning CUDA; None where it doesn't say."""
    if not torch.backends.cuda.is_built():
        return 0
    count: int = getattr(torch.cuda, "_device_count_nvml", lambda: -1)()
    return None if count < 0 else count


def part_after(share: Share) -> None:
    """Waits until every process is here; from then on each trains as if it were alone."""
    if share.ranks > 1 and "RANK" in os.environ:
        join_ranks("cpu")
        wait_for_ranks()
        leave_ranks()
        del os.environ["RANK"]
