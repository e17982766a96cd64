"""A search for the settings that suit a task: trials of fine-tuning, the best of which is kept.

out/search.json      what is searched          out/trials/N/       the log, and the leading trial's weights
out/trials.json      every trial that is over  out/best.toml       the recipe that did best
out/report.html      the trials to look at     out/model/          its model, which transformers opens too

Optuna proposes; what it proposed is kept here, since its own storage needs a lock that a kill leaves behind.
Each proposal is a function of the seed and the trials before it: a killed trial comes again with the same
settings, and the search goes on as if nothing had happened.
"""

import json
import math
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertsmith.errors import MissingExtra, RecipeError, TrainingStopped
from bertsmith.model.locate import locate_model
from bertsmith.model.lora import merge_lora
from bertsmith.tasks.finetuning import Finetuning, Split, encode_examples
from bertsmith.tasks.judging import judge
from bertsmith.tasks.registry import find_task
from bertsmith.tasks.task import Metrics, Task
from bertsmith.tasks.task_checkpoint import save_task_model
from bertsmith.tasks.task_model import outputs_of
from bertsmith.text.tokenizer import Tokenizer
from bertsmith.training.best import Best
from bertsmith.training.distributed import leave
from bertsmith.training.finetune_recipe import FinetuneRecipe, task_settings
from bertsmith.training.hardware import Hardware
from bertsmith.training.labelled_data import LabelledData, read_labelled_data
from bertsmith.training.loop import Loop
from bertsmith.training.machine import Machine, set_up_machine
from bertsmith.training.observer import RunObserver
from bertsmith.training.optimizer import make_optimizer
from bertsmith.training.results import Restart, Results, data_hashes, write_results
from bertsmith.training.search_folder import (
    begin_search,
    keep_trials,
    open_search,
    trial_folder,
    write_best_recipe,
)
from bertsmith.training.search_space import Search, make_search
from bertsmith.training.settings import CheckpointSettings
from bertsmith.training.start import start_model
from bertsmith.training.trials import (
    COMPLETE,
    DIVERGED,
    PRUNED,
    Trial,
    importance_of,
    leading_trial,
    study_of,
)
from bertsmith.training.tune_report import write_tune_report

Hear = Callable[[Trial], None]


@dataclass(frozen=True)
class TuneResult:
    """Trial 0 is the baseline. `importance`: how much of the spread each setting explains, 1 in sum."""

    out: Path
    trials: list[Trial]
    importance: dict[str, float]
    results: Results
    recipe: FinetuneRecipe

    @property
    def best(self) -> Trial:
        """The trial whose model was kept."""
        best = leading_trial(self.trials)
        assert best is not None
        return best


@dataclass(frozen=True)
class _Bench:
    """What all trials share: examples are read and encoded once."""

    search: Search
    space: dict[str, Any]
    layers: int
    out: Path
    source: Path
    task: Task[Any]
    data: LabelledData
    train: Split
    dev: Split
    tokenizer: Tokenizer
    machine: Machine


def tune(
    task: str,
    *overrides: str,
    model: str,
    train: str,
    out: str,
    dev: str | None = None,
    test: str | None = None,
    resume: bool = False,
    hear: Hear | None = None,
    **values: Any,
) -> TuneResult:
    """Searches learning rate, layer decay, epochs, batch size and frozen layers by the score on dev.

    Arguments are those of `finetune`, with `trials`, `prune` and bounds such as `search.learning_rate=[1e-5,
    1e-3]` among the settings; what is given is not searched. `hear` is told of each trial that is over. With
    `resume`, goes on where a search was interrupted, or to more `trials`. One process only.
    Raises MissingExtra without optuna, and what `finetune` raises, before anything is trained.
    """
    _require_optuna()
    given = {"task": task, "model": model, "train": train, "out": out, "dev": dev, "test": test}
    search = make_search({k: v for k, v in (given | values).items() if v is not None}, list(overrides))
    trials = open_search(search, Path(out), resume)
    machine = set_up_machine(search.recipe.hardware, search.recipe.micro_batch_tokens, Hardware.detect())
    try:
        bench = _prepare(search, Path(out), machine)
        return _run(bench, trials, hear)
    finally:
        leave()


def _prepare(search: Search, out: Path, machine: Machine) -> _Bench:
    """Reads, checks and encodes; refuses what can't be trained before anything is written."""
    recipe = search.recipe
    if machine.ranks.count > 1:
        raise RecipeError("tune runs in one process. Start it without torchrun.")
    kind = find_task(recipe.task)
    task = kind(task_settings(recipe, kind))
    source = locate_model(recipe.model).folder
    tokenizer = Tokenizer.load(source)
    data = read_labelled_data(task, recipe)
    train, dev = (encode_examples(task, examples, tokenizer) for examples in (data.train, data.dev))
    layers = len(start_model(recipe, task, source).encoder.layers)
    space = search.distributions(layers)
    if not space:
        raise RecipeError(
            "tune: every setting is given, so nothing is left to search. Leave one of them out."
        )
    bench = _Bench(search, space, layers, out, source, task, data, train, dev, tokenizer, machine)
    begin_search(search, out)
    return bench


def _run(bench: _Bench, trials: list[Trial], hear: Hear | None) -> TuneResult:
    while len(trials) < bench.search.settings.trials:
        trial = _try_next(bench, trials)
        trials.append(trial)
        keep_trials(bench.out, trials)
        if hear is not None:
            hear(trial)
    best = leading_trial(trials)
    if best is None:
        raise TrainingStopped("Every trial diverged. Search lower rates: search.learning_rate=[1e-6,1e-5].")
    recipe = bench.search.recipe_of(best.choice)
    write_best_recipe(bench.out, recipe, best)
    results = _save_best(bench, recipe, best, len(trials))
    importance = importance_of(trials, bench.space, recipe.seed)
    write_tune_report(bench.out, trials, importance, recipe, results)
    return TuneResult(bench.out, trials, importance, results, recipe)


# -- one trial ---------------------------------------------------------------------------------------------


def _try_next(bench: _Bench, trials: list[Trial]) -> Trial:
    """Asks for settings and trains with them."""
    study = study_of(trials, bench.space, bench.search.recipe.seed)
    if not trials:
        study.enqueue_trial(bench.search.baseline(bench.layers))
    asked = study.ask(fixed_distributions=bench.space)
    number, choice = len(trials), dict(asked.params)
    prunes = bench.search.settings.prune and number > 0

    def hopeless(evaluation: int, score: float) -> bool:
        asked.report(score, evaluation)
        return prunes and asked.should_prune()

    recipe = bench.search.recipe_of(choice)
    begun = time.monotonic()
    try:
        steps, scores, pruned = _train(bench, recipe, trial_folder(bench.out, number), hopeless)
    except TrainingStopped:
        return Trial(number, choice, DIVERGED, None, time.monotonic() - begun, 0)
    finite = [score for score in scores if math.isfinite(score)]  # a constant output has no correlation
    state = DIVERGED if not finite else PRUNED if pruned else COMPLETE
    return Trial(number, choice, state, max(finite, default=None), time.monotonic() - begun, steps, scores)


def _train(
    bench: _Bench, recipe: FinetuneRecipe, folder: Path, hopeless: Callable[[int, float], bool]
) -> tuple[int, list[float], bool]:
    """Steps, the score of each evaluation, and whether it was given up. The same steps as a run's of
    `finetune` with this recipe.
    """
    shutil.rmtree(folder, ignore_errors=True)  # of a trial that was killed
    model = start_model(recipe, bench.task, bench.source, recipe.seed)
    model.to(bench.machine.device)
    objective = Finetuning(
        bench.task, model, bench.train, bench.dev, recipe.batch_size, recipe.seed, bench.machine.device
    )
    settings = recipe.resolved(objective.steps_per_epoch, recipe.seed)
    assert settings.steps is not None
    never = CheckpointSettings(every=settings.steps + 1)  # a killed trial is short: it is run again
    settings = settings.model_copy(update={"checkpoint": never})
    adam = settings.optimizer
    optimizer = make_optimizer(
        model, adam.weight_decay, (adam.beta1, adam.beta2), adam.epsilon, adam.layer_decay
    )
    best = Best(folder / "best", bench.task.main_metric, recipe.patience)
    pruned = False

    def after_evaluation(step: int, metrics: Metrics) -> bool:
        nonlocal pruned
        best.consider(step, metrics, model)
        pruned = hopeless(len(best.history), best.history[-1][1]) and step < (settings.steps or 0)
        return best.stopped or pruned

    observer = RunObserver(folder, "", {}, settings, bench.machine, None)
    loop = Loop(objective, optimizer, settings, bench.machine, folder, observer, after_evaluation)
    with observer.open(0):
        loop.run()
        if not best.history or best.history[-1][0] != loop.progress.step:
            after_evaluation(loop.progress.step, loop.evaluate())
    shutil.rmtree(folder / "checkpoints", ignore_errors=True)  # the loop ends with one
    return loop.progress.step, [score for _, score in best.history], pruned


# -- the search as a whole ---------------------------------------------------------------------------------


def _save_best(bench: _Bench, recipe: FinetuneRecipe, best: Trial, trials: int) -> Results:
    """The leading trial's model, calibrated and measured as `finetune` does."""
    task, device = bench.task, bench.machine.device
    model = start_model(recipe, task, bench.source)
    Best(trial_folder(bench.out, best.number) / "best", task.main_metric).restore(model)
    model.head.finish()
    merge_lora(model.encoder)
    task.bind(model.head)
    model.to(device)
    outputs = outputs_of(model, bench.dev.encoded, device)
    figures = task.calibrate(outputs, bench.dev.examples, bench.dev.encoded)
    sides = {"dev": judge(task, outputs, bench.data.train, bench.dev)}
    if bench.data.test is not None:
        test = encode_examples(task, bench.data.test, bench.tokenizer)
        sides["test"] = judge(task, outputs_of(model, test.encoded, device), bench.data.train, test)
    restart = Restart(recipe.seed, best.score or 0.0, best.steps, best.steps, best.seconds)
    results = Results(task, (restart,), 0, sides, figures, bench.data.warnings, len(bench.data.train))
    provenance = {
        "recipe": json.loads(recipe.model_dump_json()),
        "metrics": {name: side.model for name, side in sides.items()},
        "sha256": data_hashes(recipe),
        "trials": trials,
    }
    save_task_model(bench.out / "model", model, task, bench.tokenizer, provenance, replace=True)
    write_results(bench.out, recipe, results)
    return results


def _require_optuna() -> None:
    try:
        import optuna  # noqa: F401
    except ImportError as error:
        raise MissingExtra("optuna", "tune", "bertsmith tune") from error
