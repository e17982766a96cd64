"""Labelled files become a trained, evaluated model: the run of each seed, the best of them, and its results.

out/recipe.toml    the resolved recipe      out/restarts/1 …   the run of each seed: log, checkpoints, best
out/results.json   every figure             out/model/         the best, which transformers opens too
out/report.html    the same to look at      out/adapter/       with LoRA, the added weights alone
out/choice.json    on few rows: the methods tried by cross-validation
"""

import math
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from rich.console import Console

from bertsmith.door import door, either, flag, kind, optional, place, several, text
from bertsmith.errors import RecipeError
from bertsmith.files import make_folder
from bertsmith.machine import Hardware
from bertsmith.model.adaptation import trained_share
from bertsmith.model.cpu.process import keep_memory
from bertsmith.model.lora import merge_lora
from bertsmith.progress import Progress
from bertsmith.reporting import formatting
from bertsmith.tasks.task import Task
from bertsmith.tasks.task_model import TaskModel, outputs_of
from bertsmith.training.finetune_recipe import (
    FLOP_A_MINUTE,
    FinetuneRecipe,
    FinetuneRun,
    make_finetune_recipe,
)
from bertsmith.training.finetuning.adaptation import adapt
from bertsmith.training.finetuning.choosing import Choice, as_sentence, pass_work, read_choice, write_choice
from bertsmith.training.finetuning.finetune_session import FinetuneSession
from bertsmith.training.finetuning.labelled_data import LabelledData
from bertsmith.training.finetuning.methods import (
    AUTO,
    LINEAR,
    TRAINED,
    UNTRAINED,
    named_method,
)
from bertsmith.training.finetuning.report import write_finetune_report
from bertsmith.training.finetuning.results import (
    Restart,
    Results,
    data_hashes,
    leading,
    measure,
    save_model,
    write_results,
)
from bertsmith.training.finetuning.task_run import WORST, Best, Silent, TaskRun
from bertsmith.training.machine import plain_machine, wait
from bertsmith.training.observer import run_facts
from bertsmith.training.run import Run
from bertsmith.training.run_folder import (
    given_when_begun,
    open_finetuning,
    require_same_data,
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
    given = given_when_begun(given, resume)
    with Run.open(lambda: open_finetuning(given, resume), resume, console) as run:
        return _run(run, given)


def _run(run: Run[FinetuneRecipe], given: FinetuneRecipe) -> FinetuneResult:
    """`given` says what the user chose, for a method has its own epochs and rates where nobody did; of a run
    that goes on, its own recipe has what was chosen when it began.
    """
    keep_memory()
    recipe, out, machine, first = run.recipe, run.out, run.machine, run.is_first
    given = given.model_copy(update={"method": recipe.method})  # the one that the run has settled on
    with _telling(run.console, "Reading what the head begins with") as progress:
        bench = FinetuneSession.open(given, machine, folds=machine.ranks.count == 1, progress=progress)
    steps = bench.steps_per_epoch(recipe)
    method = bench.uncompared_method(recipe)
    trained = bench.completed(method, recipe)
    trained.resolved(steps, recipe.seed)  # refuses, before anything is written
    hashes = data_hashes(recipe)
    require_same_data(out, hashes)
    run.begin(trained, hashes, given.given)
    if recipe.unlabelled is not None:
        bench = adapt(run, given, bench)
    choice = None if bench.folds is None else _choose(run, given, bench)
    if choice is not None:
        method = choice.method
        if recipe.method == AUTO:  # until now the folder had what full training would have
            trained = bench.completed(method, given).model_copy(update={"method": method})
            write_recipe(trained, out)
    elif method not in UNTRAINED and not run.resume and run.console is not None:
        _say_length(run.console, trained, bench.usually_completed(method, given), bench, method)
    restarts: list[Restart] = []
    for number in range(trained.restarts if method not in UNTRAINED else 1):
        settings = trained.resolved(steps, trained.seed + number)
        restarts.append(_train_once(run, trained, settings, bench, method, choice))
        # Until here a rank may still read the checkpoint that is now removed; after it all read the best
        # weights, which the first one alone wrote, maybe a moment ago.
        wait()
        if first:
            _keep_best_only(out, restarts)
    adapter = out / "adapter" if trained.lora.rank and first and method not in UNTRAINED else None
    model = bench.finish(trained, _restart_folder(out, leading(restarts) + 1), adapter, method)
    with _telling(run.console, "Evaluating") as progress:
        results = measure(bench, given, model, restarts, choice, method, progress)
    if first:
        save_model(bench, out / "model", model, trained, results, method=method, judged_by=results.judge)
        write_results(out, trained, results)
        write_finetune_report(out, trained, results, _as_typed(given, trained, choice))
    wait()
    return FinetuneResult(out / "model", out / "report.html", results)


def _as_typed(given: FinetuneRecipe, trained: FinetuneRecipe, choice: Choice | None) -> FinetuneRecipe:
    """What brings the same run about again. A method brings its own settings, beside which it isn't to be
    given them; and where rows judge in turn, each fold has epochs of its own unless they are given.
    """
    if choice is not None:
        return given.model_copy(update={"method": choice.method})
    return given.model_copy(update={"epochs": trained.epochs, "optimizer": trained.optimizer})


@contextmanager
def _telling(console: Console | None, what: str) -> Iterator[Progress]:
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


def _choose(run: Run[FinetuneRecipe], recipe: FinetuneRecipe, bench: FinetuneSession) -> Choice:
    """By cross-validation, once."""
    folds = bench.folds
    assert folds is not None
    if run.resume and (made := read_choice(run.out)) is not None:
        return made
    shown, work, speed = run.console or Console(quiet=True), bench.work(recipe), bench.speed(recipe)
    untried, minutes = work.out_of_reach(), math.ceil(work.of_all() / FLOP_A_MINUTE)
    seconds = {method: work.whole(method) / speed for method in work.methods if work.whole(method)}
    counted = len(set(folds.tolist()))
    if seconds:
        lengths = (
            f"{name} {formatting.duration(of)}{' (not tried)' if name in untried else ''}"
            for name, of in seconds.items()
        )
        _say(shown, f"About the time, by {counted} folds and then on all rows: {', '.join(lengths)}.")
    with shown.status("") as status:

        def tell(method: str, number: int) -> None:
            status.update(f"Choosing a method: {method}, fold {number} of {counted}")

        choice = bench.choose(recipe, work, tell)
    tried = (
        replace(each, seconds=seconds[each.method], minutes=minutes) if each.method in untried else each
        for each in choice.tried
    )
    choice = replace(choice, tried=tuple(tried))
    for each in choice.tried:
        _say(shown, as_sentence(each, bench.task.main_metric))
    write_choice(run.out, choice)
    return choice


def _say_length(
    console: Console, trained: FinetuneRecipe, usual: FinetuneRecipe, bench: FinetuneSession, method: str
) -> None:
    """How long the training takes about, before it begins; and what was cut short, if it was."""
    speed = bench.speed(trained)

    def about(recipe: FinetuneRecipe) -> str:
        evaluations = pass_work(bench.config, bench.dev.encoded) * recipe.epochs * recipe.evaluations
        work = recipe.restarts * (bench.training_work(method, recipe) + evaluations)
        rows = f"{recipe.epochs:g} epochs of {len(bench.train):,} rows"
        return f"{rows} take about {formatting.duration(work / speed)}"

    _say(console, f"{about(trained)}.")
    if trained.epochs < usual.epochs:
        minutes = math.ceil(bench.training_work(method, usual) / FLOP_A_MINUTE)
        _say(console, f"The usual {about(usual)}: minutes={minutes} allows them.")


def _say(console: Console, sentence: str) -> None:
    console.print(sentence, markup=False, highlight=False, soft_wrap=True)


def _train_once(
    run: Run[FinetuneRecipe],
    recipe: FinetuneRecipe,
    settings: FinetuneRun,
    bench: FinetuneSession,
    method: str,
    choice: Choice | None,
) -> Restart:
    """The training of one seed; a finished one is not repeated."""
    folder = _restart_folder(run.out, settings.seed - recipe.seed + 1)
    if run.resume and (folder / "restart.json").exists():
        return Restart.read(folder / "restart.json")
    best, steps, elapsed = None, 0, 0.0
    if method not in UNTRAINED:
        best, steps, elapsed = _train(run, recipe, settings, bench, method, folder)
    elif bench.linear is not None:
        elapsed = bench.linear.seconds
    if choice is not None:
        score = next(each.score for each in choice.tried if each.method == choice.method)
    elif method in TRAINED:
        assert best is not None
        score = best.score
    else:
        score = bench.score(bench.finish(recipe, folder, method=method))
    at = best.step if best is not None else 0
    restart = Restart(settings.seed, WORST if score is None else score, at, steps, elapsed)
    if run.is_first:
        make_folder(folder)
        restart.write(folder / "restart.json")
    return restart


def _train(
    run: Run[FinetuneRecipe],
    recipe: FinetuneRecipe,
    settings: FinetuneRun,
    bench: FinetuneSession,
    method: str,
    folder: Path,
) -> tuple[Best, int, float]:
    """What was best, after how many steps and seconds."""
    model = bench.start(recipe, settings.seed)
    facts = run_facts(model, model.config, Path(recipe.train_name).name, run.machine)
    if trained_share(model) < 1:
        facts["trained"] = f"{trained_share(model):.1%} trained"
    title = bench.task.name.capitalize()
    if recipe.restarts > 1:
        title += f" {settings.seed - recipe.seed + 1} of {recipe.restarts}"
    observer = run.observer(title, facts, settings, folder)
    task, train, dev = bench.task, bench.train, bench.dev if len(bench.dev) else None
    teaching = bench.teaching(method)
    if teaching is not None:
        task, train, dev = teaching, teaching.examples(train), None
        model.head = task.head(model.config).to(run.machine.device)
    training = TaskRun(
        *(task, model, train, dev, settings, run.machine, folder, observer),
        resumable=True,
        measure_first=LINEAR in bench.methods,
        progress=observer.evaluating,
    )
    elapsed = training.run_watched(observer, run.resume)
    return training.best, training.step, elapsed


def _restart_folder(out: Path, number: int) -> Path:
    return out / "restarts" / str(number)


def _keep_best_only(out: Path, restarts: list[Restart]) -> None:
    """A finished run needs no checkpoints, and of all weights those of the leading one are enough."""
    for number in range(1, len(restarts) + 1):
        folder = _restart_folder(out, number)
        shutil.rmtree(folder / "checkpoints", ignore_errors=True)
        if number - 1 != leading(restarts):
            (folder / "best" / "weights.safetensors").unlink(missing_ok=True)


# -- examples in memory --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Trained:
    """The model, in evaluation mode on the host; the recipe with what was chosen for it, its method among
    this; and, where rows judged in turn, what each method reached.
    """

    model: TaskModel
    recipe: FinetuneRecipe
    choice: Choice | None


def finetune_examples(
    task: Task[Any],
    recipe: FinetuneRecipe,
    source: Path,
    train: Sequence[Any],
    dev: Sequence[Any] = (),
) -> Trained:
    """Head, loop and settings of a run without its folder, for callers that train many small models and keep
    what they want of them, as scikit-learn's searches do. Trains on `train` and teaches `task` its labels.

    With `dev` the best evaluation's weights are kept, `recipe.patience` ends the run, and confidence is
    calibrated. Without, a few rows choose the method by cross-validation and calibrate; all of them train.
    A method that the recipe names trains once, and is judged and calibrated by folds only where the recipe
    asks for these, or where they cost next to nothing: for linear. The caller's torch generators stay as they
    were.
    Raises InputError for labels nothing can be learnt of, RecipeError, and TrainingStopped.
    """
    if recipe.restarts > 1:
        raise RecipeError("restarts are for runs with files. Train once for each seed instead.")
    if recipe.folds is not None and dev:
        raise RecipeError(f"folds = {recipe.folds} would judge where a dev set does: leave one of them out.")
    task.fit(train)
    task.check([*train, *dev])
    machine = plain_machine(recipe.hardware, recipe.micro_batch_tokens, Hardware.detect())
    devices = [machine.device] if machine.device.type == "cuda" else []
    with torch.random.fork_rng(devices):
        bench = FinetuneSession.prepare(
            task, recipe, source, LabelledData(list(train), list(dev), None, ()), machine
        )
        named, method, choice = named_method(recipe), bench.uncompared_method(recipe), None
        if bench.folds is not None and (named in (AUTO, LINEAR) or recipe.folds is not None):
            choice = bench.choose(recipe)
            method = choice.method
        completed = bench.completed(method, recipe)
        if method in TRAINED and dev:
            model = _best_on_dev(bench, completed)
        else:
            model = bench.learn(method, completed, bench.train)
    if choice is not None:
        judged = bench.train.some(choice.rows)
        task.calibrate(choice.outputs, judged.examples, judged.encoded)
    elif dev:
        task.calibrate(outputs_of(model, bench.dev.encoded), dev, bench.dev.encoded)
    return Trained(model.cpu().eval(), completed.model_copy(update={"method": method}), choice)


def _best_on_dev(bench: FinetuneSession, recipe: FinetuneRecipe) -> TaskModel:
    settings = recipe.resolved(bench.steps_per_epoch(recipe), recipe.seed)
    model = bench.start(recipe, recipe.seed)
    with TemporaryDirectory() as folder:
        run = TaskRun(
            *(bench.task, model, bench.train, bench.dev, settings, bench.machine, Path(folder), Silent()),
            measure_first=LINEAR in bench.methods,
        )
        run.run()
        run.best.restore(model)
    model.head.finish()
    merge_lora(model.encoder)
    bench.task.bind(model.head)
    return model
