"""Fine-tunes a model on labelled files: trains it once for each seed, keeps the best, and evaluates it.

out/recipe.toml    the resolved recipe      out/restarts/1 …   the run of each seed: log, checkpoints, best
out/results.json   every figure             out/model/         the best model, for transformers too
out/report.html    the figures as a page    out/adapter/       with LoRA: the added weights alone
out/choice.json    on few rows: the methods compared by cross-validation
"""

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from bertsmith.argument_checks import (
    any_of,
    check_arguments,
    check_flag,
    check_path,
    check_text,
    instance_of,
    list_of,
    optional,
)
from bertsmith.model.cpu.process import keep_freed_memory
from bertsmith.progress import Progress
from bertsmith.reporting import formatting
from bertsmith.tasks.checkpoints.task_checkpoint import complete_task_adapter
from bertsmith.training.finetune_recipe import (
    FLOP_A_MINUTE,
    FinetuneRecipe,
    make_finetune_recipe,
)
from bertsmith.training.finetuning.adaptation import adapt
from bertsmith.training.finetuning.choosing import (
    MethodChoice,
    choose_method,
    describe_score,
    read_choice,
    write_choice,
)
from bertsmith.training.finetuning.effort import (
    complete_recipe,
    count_pass_work,
    count_training_work,
    default_method,
    measure_training_speed,
    plan_comparison,
    unlimited_recipe,
)
from bertsmith.training.finetuning.finetune_session import FinetuneSession
from bertsmith.training.finetuning.measuring import measure, save_model
from bertsmith.training.finetuning.methods import (
    AUTO,
    UNTRAINED,
    describe_methods,
)
from bertsmith.training.finetuning.report import write_finetune_report
from bertsmith.training.finetuning.restarts import (
    Restart,
    best_restart_index,
    keep_best_only,
    restart_folder,
    train_restart,
)
from bertsmith.training.finetuning.results import Results, hash_data, write_results
from bertsmith.training.machine import wait_for_ranks
from bertsmith.training.run import Run
from bertsmith.training.run_folder import (
    open_finetuning,
    require_same_data,
    restore_given_settings,
    write_recipe,
)

_SECONDS_BETWEEN_LINES = 10.0


@dataclass(frozen=True)
class FinetuneResult:
    """The folder of the trained model, the path of its report, and every figure about it."""

    model: Path
    report: Path
    results: Results


@check_arguments(
    task=check_text,
    overrides=list_of(check_text),
    model=check_path,
    train=optional(any_of(check_path, list_of(check_path))),
    out=check_path,
    dev=optional(check_path),
    test=optional(check_path),
    resume=check_flag,
    console=optional(instance_of(Console)),
)
def finetune(
    task: str,
    *overrides: str,
    model: str,
    train: str | Sequence[str] | None = None,
    out: str,
    dev: str | None = None,
    test: str | None = None,
    resume: bool = False,
    console: Console | None = None,
    **values: Any,
) -> FinetuneResult:
    """Fine-tunes `model` (a path, an alias or a hub name) on the rows of `train`: a file,
    or several, or folders of them. A classification also learns from the `names` of its labels, a list or a
    mapping to descriptions, and from the texts of the file `unlabelled`: then `train` may be left out.

    Settings are `dotted.key=value` overrides, or keyword arguments for those of the top level. Without `dev`,
    few rows judge in turn by cross-validation, and of many `dev_share` are held out. With `resume`, goes on
    where a run was interrupted. Raises InputError, RecipeError, ModelError and ResourceError before anything
    is trained.
    """
    files = {"task": task, "model": model, "train": train, "out": out, "dev": dev, "test": test}
    given = make_finetune_recipe(
        {k: v for k, v in (files | values).items() if v is not None}, list(overrides)
    )
    given = restore_given_settings(given, resume)
    with Run.open(lambda: open_finetuning(given, resume), resume, console) as run:
        return _run(run, given)


def _run(run: Run[FinetuneRecipe], given: FinetuneRecipe) -> FinetuneResult:
    """Runs fine-tuning in a run folder that is open. `given` is the recipe with the user's settings only,
    since a method chooses epochs and rates that the user didn't give. `run.recipe` of a run that goes on has
    what was chosen when it began.
    """
    keep_freed_memory()
    recipe, out, machine, first = run.recipe, run.out, run.machine, run.is_first
    given = given.model_copy(update={"method": recipe.method})  # a resumed run has chosen one
    with _show_progress(run.console, "Encoding the rows for the start of the training") as progress:
        session = FinetuneSession.open(given, machine, folds=machine.ranks.count == 1, progress=progress)
    steps = session.steps_per_epoch(recipe)
    method = default_method(session, recipe)
    trained = complete_recipe(session, method, recipe)
    trained.resolve(steps, recipe.seed)  # raises before anything is written
    hashes = hash_data(recipe)
    require_same_data(out, hashes)
    run.begin(trained, hashes, given.given)
    if run.console is not None:
        for warning in session.data.warnings:
            _print_line(run.console, f"Warning: {warning}")
    if recipe.unlabelled is not None and session.data.is_judged:
        session = adapt(run, given, session)
    choice = None if session.folds is None else _choose(run, given, session)
    if choice is not None:
        method = choice.method
        if recipe.method == AUTO:  # recipe.toml has the settings of full training so far
            trained = complete_recipe(session, method, given).model_copy(update={"method": method})
            write_recipe(trained, out)
    elif recipe.method == AUTO and not session.data.is_judged:
        trained = trained.model_copy(update={"method": method})
        write_recipe(trained, out)
    elif method not in UNTRAINED and not run.resume and run.console is not None:
        _announce_duration(run.console, trained, unlimited_recipe(session, method, given), session, method)
    restarts: list[Restart] = []
    count = 0 if not session.data.is_judged else trained.restarts if method not in UNTRAINED else 1
    for number in range(count):
        settings = trained.resolve(steps, trained.seed + number)
        restarts.append(train_restart(run, trained, settings, session, method, choice))
        # Before this barrier a rank may still read the checkpoint that is removed below. After it all ranks
        # read the best weights, which the first rank alone may have written only just now.
        wait_for_ranks()
        if first:
            keep_best_only(out, restarts)
    adapter = out / "adapter" if trained.lora.rank and first and method not in UNTRAINED else None
    best = best_restart_index(restarts) if restarts else 0
    model = session.finish(trained, restart_folder(out, best + 1), adapter, method)
    with _show_progress(run.console, "Evaluating") as progress:
        results = measure(session, given, model, restarts, choice, method, progress)
    if first:
        save_model(session, out / "model", model, trained, results, method=method, judged_by=results.judge)
        if adapter is not None:
            complete_task_adapter(adapter, out / "model", session.source)
        write_results(out, results)
        # The settings of the command that repeats this run. A chosen method is enough where there are folds:
        # it brings its own settings, and each fold has epochs of its own unless they are given.
        repeated: dict[str, Any] = {"epochs": trained.epochs, "optimizer": trained.optimizer}
        if choice is not None or not session.data.is_judged:
            repeated = {"method": results.method}
        write_finetune_report(out, trained, results, given.model_copy(update=repeated))
    wait_for_ranks()
    return FinetuneResult(out / "model", out / "report.html", results)


@contextmanager
def _show_progress(console: Console | None, what: str) -> Iterator[Progress]:
    """Yields a function that shows how far a pass over the rows is, which takes minutes if there are many: in
    a line that changes in a terminal, else in a new line every ten seconds.
    """
    output, last = console or Console(quiet=True), time.monotonic()
    with output.status("") as status:

        def show(done: int, total: int | None, unit: str) -> None:
            nonlocal last
            line = f"{what}: {done:,} / {total or done:,} {unit}"
            if output.is_terminal:
                status.update(line)
            elif time.monotonic() - last >= _SECONDS_BETWEEN_LINES:
                last = time.monotonic()
                output.print(line, markup=False, highlight=False)

        yield show


def _choose(run: Run[FinetuneRecipe], recipe: FinetuneRecipe, session: FinetuneSession) -> MethodChoice:
    """Chooses a method by cross-validation and writes the choice; a resumed run reads it instead."""
    folds = session.folds
    assert folds is not None
    if run.resume and (stored := read_choice(run.out)) is not None:
        return stored
    console = run.console or Console(quiet=True)
    work, speed = plan_comparison(session, recipe), measure_training_speed(session, recipe)
    untried, minutes = work.out_of_reach(), math.ceil(work.total() / FLOP_A_MINUTE)
    seconds = {method: work.total_of(method) / speed for method in work.methods if work.total_of(method)}
    fold_count = len(set(folds.tolist()))
    if len(work.methods) > 1:
        _print_line(console, f"Methods to compare: {describe_methods(work.methods, session.task)}.")
    if seconds:
        durations = (
            f"{name} {formatting.duration(estimate)}{' (not tried)' if name in untried else ''}"
            for name, estimate in seconds.items()
        )
        listed = ", ".join(durations)
        _print_line(
            console,
            f"Expected time for {fold_count} folds of cross-validation, then all rows: {listed}.",
        )
        if untried:
            _print_line(
                console,
                "minutes=N, which decides what is tried, counts work and not the clock, so that every "
                "machine chooses alike: at the speed measured now a minute of work takes about "
                f"{formatting.duration(FLOP_A_MINUTE / speed)}.",
            )
    with console.status("") as status:

        def show_fold(method: str, number: int) -> None:
            status.update(f"Choosing a method: {method}, fold {number} of {fold_count}")

        choice = choose_method(session, recipe, work, show_fold)
    scores = (
        replace(score, seconds=seconds[score.method], minutes=minutes) if score.method in untried else score
        for score in choice.tried
    )
    choice = replace(choice, tried=tuple(scores))
    for score in choice.tried:
        _print_line(console, describe_score(score, session.task.main_metric))
    if len(choice.tried) > 1:
        _print_line(console, f"Taken: {choice.method}. (+ and ±: beside the first, on the same rows.)")
    write_choice(run.out, choice)
    return choice


def _announce_duration(
    console: Console, trained: FinetuneRecipe, usual: FinetuneRecipe, session: FinetuneSession, method: str
) -> None:
    """Prints about how long the training will take, and that of the `usual` recipe if `trained` has fewer
    epochs.
    """
    speed = measure_training_speed(session, trained)

    def estimate(recipe: FinetuneRecipe) -> str:
        evaluations = (
            count_pass_work(session.config, session.dev.encoded) * recipe.epochs * recipe.evaluations
        )
        work = recipe.restarts * (count_training_work(session, method, recipe) + evaluations)
        rows = f"{recipe.epochs:g} epoch{'' if recipe.epochs == 1 else 's'} of {len(session.train):,} rows"
        return f"{rows} take about {formatting.duration(work / speed)}"

    _print_line(console, f"{estimate(trained)}.")
    if trained.epochs < usual.epochs:
        minutes = math.ceil(count_training_work(session, method, usual) / FLOP_A_MINUTE)
        _print_line(console, f"The usual {estimate(usual)}: minutes={minutes} allows them.")


def _print_line(console: Console, sentence: str) -> None:
    console.print(sentence, markup=False, highlight=False, soft_wrap=True)
