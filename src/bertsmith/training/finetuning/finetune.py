"""Labelled files become a trained, evaluated model: the run of each seed, the best of them, and its results.

out/recipe.toml    the resolved recipe      out/restarts/1 …   the run of each seed: log, checkpoints, best
out/results.json   every figure             out/model/         the best, which transformers opens too
out/report.html    the same to look at      out/adapter/       with LoRA, the added weights alone
out/choice.json    on few rows: the methods tried by cross-validation
"""

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from bertsmith.door import door, either, flag, kind, optional, place, several, text
from bertsmith.model.cpu.process import keep_memory
from bertsmith.progress import Progress
from bertsmith.reporting import formatting
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
    """Where the trained model is, and every figure about it."""

    model: Path
    report: Path
    results: Results


@door(
    task=text,
    overrides=several(text),
    model=place,
    train=either(place, several(place)),
    out=place,
    dev=optional(place),
    test=optional(place),
    resume=flag,
    console=optional(kind(Console)),
)
def finetune(
    task: str,
    *overrides: str,
    model: str,
    train: str | Sequence[str],
    out: str,
    dev: str | None = None,
    test: str | None = None,
    resume: bool = False,
    console: Console | None = None,
    **values: Any,
) -> FinetuneResult:
    """Fine-tunes `model` (a path, an alias or a hub name) on the rows of `train`: a file,
    or several, or folders of them.

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
    """`given` says what the user chose, for a method has its own epochs and rates where nobody did; of a run
    that goes on, its own recipe has what was chosen when it began.
    """
    keep_memory()
    recipe, out, machine, first = run.recipe, run.out, run.machine, run.is_first
    given = given.model_copy(update={"method": recipe.method})  # the one that the run has settled on
    with _show_progress(run.console, "Encoding the rows for the start of the training") as progress:
        bench = FinetuneSession.open(given, machine, folds=machine.ranks.count == 1, progress=progress)
    steps = bench.steps_per_epoch(recipe)
    method = default_method(bench, recipe)
    trained = complete_recipe(bench, method, recipe)
    trained.resolved(steps, recipe.seed)  # refuses, before anything is written
    hashes = hash_data(recipe)
    require_same_data(out, hashes)
    run.begin(trained, hashes, given.given)
    if recipe.unlabelled is not None:
        bench = adapt(run, given, bench)
    choice = None if bench.folds is None else _choose(run, given, bench)
    if choice is not None:
        method = choice.method
        if recipe.method == AUTO:  # until now the folder had what full training would have
            trained = complete_recipe(bench, method, given).model_copy(update={"method": method})
            write_recipe(trained, out)
    elif method not in UNTRAINED and not run.resume and run.console is not None:
        _announce_duration(run.console, trained, unlimited_recipe(bench, method, given), bench, method)
    restarts: list[Restart] = []
    for number in range(trained.restarts if method not in UNTRAINED else 1):
        settings = trained.resolved(steps, trained.seed + number)
        restarts.append(train_restart(run, trained, settings, bench, method, choice))
        # Until here a rank may still read the checkpoint that is now removed; after it all read the best
        # weights, which the first one alone wrote, maybe a moment ago.
        wait_for_ranks()
        if first:
            keep_best_only(out, restarts)
    adapter = out / "adapter" if trained.lora.rank and first and method not in UNTRAINED else None
    model = bench.finish(trained, restart_folder(out, best_restart_index(restarts) + 1), adapter, method)
    with _show_progress(run.console, "Evaluating") as progress:
        results = measure(bench, given, model, restarts, choice, method, progress)
    if first:
        save_model(bench, out / "model", model, trained, results, method=method, judged_by=results.judge)
        write_results(out, results)
        # What brings the same run about again: a method brings its own settings, beside which it isn't to be
        # given them; and where rows judge in turn, each fold has epochs of its own unless they are given.
        chosen: dict[str, Any] = {"epochs": trained.epochs, "optimizer": trained.optimizer}
        if choice is not None:
            chosen = {"method": choice.method}
        write_finetune_report(out, trained, results, given.model_copy(update=chosen))
    wait_for_ranks()
    return FinetuneResult(out / "model", out / "report.html", results)


@contextmanager
def _show_progress(console: Console | None, what: str) -> Iterator[Progress]:
    """How far a pass over the rows is: minutes, where there are many. A line every ten seconds, or one that
    changes in a terminal.
    """
    shown, last = console or Console(quiet=True), time.monotonic()
    with shown.status("") as status:

        def tell(done: int, total: int | None, unit: str) -> None:
            nonlocal last
            said = f"{what}: {done:,} / {total or done:,} {unit}"
            if shown.is_terminal:
                status.update(said)
            elif time.monotonic() - last >= _SECONDS_BETWEEN_LINES:
                last = time.monotonic()
                shown.print(said, markup=False, highlight=False)

        yield tell


def _choose(run: Run[FinetuneRecipe], recipe: FinetuneRecipe, bench: FinetuneSession) -> MethodChoice:
    """By cross-validation, once."""
    folds = bench.folds
    assert folds is not None
    if run.resume and (made := read_choice(run.out)) is not None:
        return made
    shown, work, speed = (
        run.console or Console(quiet=True),
        plan_comparison(bench, recipe),
        measure_training_speed(bench, recipe),
    )
    untried, minutes = work.out_of_reach(), math.ceil(work.of_all() / FLOP_A_MINUTE)
    seconds = {method: work.whole(method) / speed for method in work.methods if work.whole(method)}
    counted = len(set(folds.tolist()))
    if len(work.methods) > 1:
        _print_line(shown, f"Methods to compare: {describe_methods(work.methods, bench.task)}.")
    if seconds:
        lengths = (
            f"{name} {formatting.duration(of)}{' (not tried)' if name in untried else ''}"
            for name, of in seconds.items()
        )
        _print_line(shown, f"About the time, by {counted} folds and then on all rows: {', '.join(lengths)}.")
    with shown.status("") as status:

        def tell(method: str, number: int) -> None:
            status.update(f"Choosing a method: {method}, fold {number} of {counted}")

        choice = choose_method(bench, recipe, work, tell)
    tried = (
        replace(each, seconds=seconds[each.method], minutes=minutes) if each.method in untried else each
        for each in choice.tried
    )
    choice = replace(choice, tried=tuple(tried))
    for each in choice.tried:
        _print_line(shown, describe_score(each, bench.task.main_metric))
    write_choice(run.out, choice)
    return choice


def _announce_duration(
    console: Console, trained: FinetuneRecipe, usual: FinetuneRecipe, bench: FinetuneSession, method: str
) -> None:
    """How long the training takes about, before it begins; and what was cut short, if it was."""
    speed = measure_training_speed(bench, trained)

    def about(recipe: FinetuneRecipe) -> str:
        evaluations = count_pass_work(bench.config, bench.dev.encoded) * recipe.epochs * recipe.evaluations
        work = recipe.restarts * (count_training_work(bench, method, recipe) + evaluations)
        rows = f"{recipe.epochs:g} epochs of {len(bench.train):,} rows"
        return f"{rows} take about {formatting.duration(work / speed)}"

    _print_line(console, f"{about(trained)}.")
    if trained.epochs < usual.epochs:
        minutes = math.ceil(count_training_work(bench, method, usual) / FLOP_A_MINUTE)
        _print_line(console, f"The usual {about(usual)}: minutes={minutes} allows them.")


def _print_line(console: Console, sentence: str) -> None:
    console.print(sentence, markup=False, highlight=False, soft_wrap=True)
