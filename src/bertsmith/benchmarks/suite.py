"""Runs a benchmark of fine-tuned tasks: each task and seed in a folder of its own, all results in one table.

OUT/benchmark.json     the settings           OUT/TASK/data/       the official rows
OUT/results.json       every figure           OUT/TASK/search/     the search for settings on dev, with a
budget OUT/report.html        the results as a page  OUT/TASK/seed-1 …    the fine-tuning run of each seed
OUT/submission/        files for the server   OUT/TASK/parts.json  hashes of the predicted splits
                                              OUT/TASK/notes.json  sentences on the rows

Several processes of torchrun may work on one benchmark: each has tasks and a device of its own.
"""

import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch
from rich.console import Console

from bertsmith.benchmarks.benchmark import BenchmarkTask, Suite, TaskFiles, begin_benchmark, hash_model
from bertsmith.benchmarks.results import BenchmarkResult, TaskResult, gather_seeds, write_benchmark_report
from bertsmith.benchmarks.seed_run import (
    CHOSEN,
    DEV,
    SeedScore,
    finetune_arguments,
    keep_leading_model,
    read_seed_score,
    run_seed,
    search_settings,
    seed_folder,
    write_submissions,
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
    """The settings of a benchmark. `tasks` None means all whose files exist. The `hours` of search are
    divided evenly among the first call's tasks, and one that is added later gets as many as each of these; 0
    means no search but the default settings. `rows` is the number of rows of each split, for a trial run;
    None means all. `overrides` are settings of `finetune` and, with `hours`, of the search alone, such as
    search.epochs=[1,3].
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

    def recorded_settings(self) -> dict[str, Any]:
        """The settings that must be the same when a benchmark is resumed; tasks and seeds may be added."""
        return {"hours": self.hours, "rows": self.rows, "overrides": list(self.overrides)}

    def finetune_overrides(self) -> list[str]:
        """The overrides for `finetune`, without those of the search."""
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
    """The arguments of one call that all its tasks share."""

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
    """Runs the tasks of a benchmark: trains, judges and collects their seeds. The result has the tasks of
    earlier calls too.

    With `resume` a killed run goes on, and finished seeds aren't run again; `tasks` and `seeds` may be added.
    `share` tells which tasks are this process's, among several. `on_seed` is called with the score of each
    finished seed. Raises InputError and RecipeError, and as `finetune` does; unreadable tasks and unknown
    settings are refused before anything is trained.
    """
    chosen, absent = _choose(suite, folder, settings.tasks)
    for task in chosen:  # raises now what the search and `finetune` would raise in the middle of a benchmark
        values = finetune_arguments(task, TaskFiles(Path("train"), Path("dev")), model)
        values |= {"task": task.head, "out": str(out)}
        make_finetune_recipe(values | {"seed": 1}, settings.finetune_overrides())
        if settings.hours:
            require("optuna", "tune", "A search with --hours")
            make_search(values, list(settings.overrides))
    recorded = {
        "benchmark": suite.name,
        "model": model,
        "model_files": hash_model(model),
        **settings.recorded_settings(),
    }
    if share.rank == 0:
        begin_benchmark(out, recorded, resume, {_HOURS_A_TASK: settings.hours / len(chosen)})
    wait_for_all(share)
    hours = begin_benchmark(out, recorded, resume=True)[_HOURS_A_TASK]
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
            notes_file = _task_folder(out, task) / _NOTES
            if task in chosen:
                run.notes[task.name] = list(files[task.name].notes)
            elif notes_file.exists():  # of an earlier call
                run.notes[task.name] = list(read_json(notes_file))
        for task in share.of(chosen):
            write_json(_task_folder(out, task) / _NOTES, run.notes[task.name])
            _run_task(run, chosen, task, files[task.name], on_seed)
    except BertsmithError:
        was_trained = any(out.glob("*/seed-*")) or any(out.glob("*/search"))
        if share.rank == 0 and not resume and not was_trained:
            shutil.rmtree(out)  # otherwise the corrected command would find other settings there
        raise
    return _gather(run, chosen)


def _choose(
    suite: Suite, folder: Path, names: tuple[str, ...] | None
) -> tuple[list[BenchmarkTask], list[str]]:
    """The tasks to run, and a sentence on each task whose files are missing. Raises InputError for unknown
    names, and for named tasks whose files are missing.
    """
    if not folder.is_dir():
        raise InputError(f"{folder} is not a folder. {suite.tasks[0].source()}")
    known = {task.name.lower(): task for task in suite.tasks}
    if names is None:
        present = [task for task in suite.tasks if task.is_in(folder)]
        absent = [
            f"{task.name} is not in {folder.name}. {task.source()}"
            for task in suite.tasks
            if task not in present
        ]
        if not present:
            raise InputError(f"{folder} has no task of {suite.name}. {suite.tasks[0].source()}")
        return present, absent
    for name in names:
        if name.lower() not in known:
            meant = did_you_mean(name, [task.name for task in suite.tasks])
            known_names = ", ".join(task.name for task in suite.tasks)
            raise InputError(f"{suite.name} has no task {name!r}.{meant} There are: {known_names}.")
        if not known[name.lower()].is_in(folder):
            raise InputError(f"{folder} has no {known[name.lower()].name}. {known[name.lower()].source()}")
    chosen_names = {name.lower() for name in names}
    return [task for task in suite.tasks if task.name.lower() in chosen_names], []


def _require_no_more_seeds(out: Path, chosen: Sequence[BenchmarkTask], seeds: int) -> None:
    """Raises RecipeError where there are more seeds than `seeds`: only the best seed's model was kept, and
    the best of fewer seeds may be another one.
    """
    for task in chosen:
        if read_seed_score(_task_folder(out, task), seeds + 1) is not None:
            raise RecipeError(
                f"{out} has more than {seeds} seeds of {task.name} already. Ask for as many, or for more."
            )


def _require_same_parts(folder: Path, files: TaskFiles) -> None:
    """Raises RecipeError where a predicted split has other rows than before, since its predictions are kept.
    Splits may be added, but not with labels, since the models of finished seeds are gone.
    """
    for seed in gather_seeds(folder):
        if seed.figures.keys() != {DEV, *files.labelled}:
            raise RecipeError(
                f"{seed_folder(folder, seed.seed)} was judged on {', '.join(sorted(seed.figures))}, and the "
                f"official files now have labels for {', '.join(sorted({DEV, *files.labelled}))}. All seeds "
                "are judged on the same parts: put the files back as they were, or choose another --out."
            )
    make_folder(folder)  # SQuAD's official files stay where they are
    hashes = {part: sha256(path) for part, path in files.predicted.items()}
    begun = hashes | (read_json(folder / _PARTS) if (folder / _PARTS).exists() else {})
    require_unchanged({part: begun[part] for part in hashes}, hashes, f"the runs in {folder}")
    write_json(folder / _PARTS, begun)


def _run_task(
    run: _SuiteRun,
    chosen: Sequence[BenchmarkTask],
    task: BenchmarkTask,
    files: TaskFiles,
    on_seed: OnSeed | None,
) -> None:
    folder = _task_folder(run.out, task)
    overrides = run.settings.finetune_overrides()
    if run.settings.hours:
        console = run.console or Console(quiet=True)

        def tell(trial: Any) -> None:
            console.print(f"{task.name}: trial {trial.number} of the search, dev {trial.score}", markup=False)

        values = finetune_arguments(task, files, run.model)
        chosen_settings = search_settings(
            task.head, run.settings.overrides, values, folder / "search", run.hours_a_task, tell
        )
        overrides += chosen_settings.overrides()
    scores = []
    for seed in range(1, run.settings.seeds + 1):
        scores.append(run_seed(task, files, run.model, folder, seed, overrides, run.console))
        keep_leading_model(folder, scores)
        _gather(run, chosen)
        if on_seed is not None:
            on_seed(task.name, scores[-1])
    leading = keep_leading_model(folder, scores)
    write_submissions(task, files, folder, leading.seed, run.out / _SUBMISSION, run.progress)


def _gather(run: _SuiteRun, chosen: Sequence[BenchmarkTask]) -> BenchmarkResult:
    """Collects the results of all finished seeds, those of earlier calls too, and writes results.json and the
    report.
    """
    tasks = []
    for task in run.suite.tasks:
        folder = _task_folder(run.out, task)
        searched = folder / "search" / CHOSEN
        if seeds := gather_seeds(folder):
            search = read_json(searched) if searched.exists() else None
            tasks.append(TaskResult(task.name, task.judged_by, seeds, search))
    notes = [sentence for sentences in run.notes.values() for sentence in sentences]
    seed_count, names = run.settings.seeds, [task.name for task in chosen]
    differing = {task.name: len(task.seeds) for task in tasks if len(task.seeds) != seed_count}
    for name, count in differing.items():
        if name not in names:
            notes.insert(0, f"{name}, of an earlier call, has {counted(count, 'seed')}, not {seed_count}")
    ended = {task.name for task in tasks} - differing.keys()
    if unfinished := [name for name in names if name not in ended]:
        notes.insert(
            0, f"still to come: {', '.join(unfinished)}; {REPORT_FILE} will have them when they have ended"
        )
    if run.settings.rows is not None:
        notes.insert(
            0, f"a trial on {run.settings.rows:,} rows of each part: not to be compared with anything"
        )
    facts = run.settings.recorded_settings() | {"seeds": run.settings.seeds}
    result = BenchmarkResult(
        run.suite.name, run.model, tuple(tasks), facts, tuple(notes), run.suite.published
    )
    if tasks:
        write_json(run.out / _RESULTS, as_json_value(result.to_json()))
        write_benchmark_report(run.out, result, run.command)
    return result


def _task_folder(out: Path, task: BenchmarkTask) -> Path:
    return out / task.name.replace(" ", "-")


def find_own_share() -> Share:
    """This process's share of the tasks, with a GPU of its own: a benchmark's trainings are small, and one on
    each GPU is faster than all GPUs on one. To be called before CUDA is used. Raises RecipeError where this
    machine has fewer GPUs than processes.
    """
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    if "RANK" not in os.environ or ranks == 1:
        return Share()
    rank, local = int(os.environ["RANK"]), int(os.environ.get("LOCAL_RANK", "0"))
    gpus, visible = _count_gpus(), os.environ.get(_VISIBLE)
    if gpus == 0 or visible == "":  # empty hides them all
        return Share(rank, ranks)
    processes = int(os.environ.get("LOCAL_WORLD_SIZE", local + 1))
    devices = visible.split(",") if visible else [str(number) for number in range(processes)]
    gpu_count = len(devices) if gpus is None else min(gpus, len(devices))
    if processes > gpu_count:
        raise RecipeError(
            f"{processes} processes were started on this machine, which has {counted(gpu_count, 'GPU')} for "
            f"them. Start as many: torchrun --nproc-per-node {gpu_count}. To train on the processor alone, "
            f"hide the GPUs by {_VISIBLE}= before the command."
        )
    os.environ[_VISIBLE] = devices[local]
    return Share(rank, ranks)


def _count_gpus() -> int | None:
    """The number of GPUs that CUDA will see, from NVML, without initialising CUDA; None where it isn't
    known.
    """
    if not torch.backends.cuda.is_built():
        return 0
    count: int = getattr(torch.cuda, "_device_count_nvml", lambda: -1)()
    return None if count < 0 else count


def wait_for_all(share: Share) -> None:
    """Waits for all processes, then leaves their group: each one trains alone from now on."""
    if share.ranks > 1 and "RANK" in os.environ:
        join_ranks("cpu")
        wait_for_ranks()
        leave_ranks()
        del os.environ["RANK"]
