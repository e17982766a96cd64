"""Labelled files become a trained, evaluated model: the run of each seed, the best of them, and its results.

out/recipe.toml    the resolved recipe      out/restarts/1 …   the run of each seed: log, checkpoints, best
out/results.json   every figure             out/model/         the best, which transformers opens too
out/report.html    the same to look at      out/adapter/       with LoRA, the added weights alone
"""

import json
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from bertsmith.files import read_json, write_json
from bertsmith.model.adaptation import trained_share
from bertsmith.model.adapter import save_adapter
from bertsmith.model.locate import locate_model
from bertsmith.model.lora import merge_lora
from bertsmith.tasks.finetuning import Finetuning, Split, encode_examples
from bertsmith.tasks.judging import judge
from bertsmith.tasks.registry import find_task
from bertsmith.tasks.task import Metrics, Task
from bertsmith.tasks.task_checkpoint import head_tensors, save_task_model
from bertsmith.tasks.task_model import TaskModel, outputs_of
from bertsmith.text.tokenizer import Tokenizer
from bertsmith.training.allocator import keep_memory
from bertsmith.training.best import Best
from bertsmith.training.distributed import leave, wait
from bertsmith.training.finetune_recipe import FinetuneRecipe, make_finetune_recipe, task_settings
from bertsmith.training.finetune_report import write_finetune_report
from bertsmith.training.hardware import Hardware
from bertsmith.training.labelled_data import LabelledData, read_labelled_data
from bertsmith.training.loop import Loop
from bertsmith.training.machine import Machine, set_up_machine
from bertsmith.training.observer import RunObserver, run_facts
from bertsmith.training.optimizer import make_optimizer
from bertsmith.training.results import Restart, Results, data_hashes, leading, write_results
from bertsmith.training.run_folder import open_finetuning, write_recipe
from bertsmith.training.start import start_model


@dataclass(frozen=True)
class FinetuneResult:
    """Where the trained model is, and every figure about it."""

    model: Path
    report: Path
    results: Results


def finetune(
    task: str,
    *overrides: str,
    model: str,
    train: str,
    out: str,
    dev: str | None = None,
    test: str | None = None,
    resume: bool = False,
    console: Console | None = None,
    **values: Any,
) -> FinetuneResult:
    """Fine-tunes `model` (a path, an alias or a hub name) on the file `train`.

    Settings are `dotted.key=value` overrides, or keyword arguments for those of the top level. Without `dev`,
    `dev_share` of the training rows are held out. With `resume`, goes on where a run was interrupted.
    Raises InputError, RecipeError, ModelError and ResourceError before anything is trained.
    """
    given = {"task": task, "model": model, "train": train, "out": out, "dev": dev, "test": test}
    recipe = make_finetune_recipe(
        {k: v for k, v in (given | values).items() if v is not None}, list(overrides)
    )
    folder = open_finetuning(recipe, resume)
    hardware = Hardware.detect()
    machine = set_up_machine(recipe.hardware, recipe.micro_batch_tokens, hardware)
    try:
        return _run(recipe, folder, resume, machine, console if machine.ranks.is_first else None)
    finally:
        leave()


def _run(
    recipe: FinetuneRecipe, out: Path, resume: bool, machine: Machine, console: Console | None
) -> FinetuneResult:
    keep_memory()
    kind = find_task(recipe.task)
    task = kind(task_settings(recipe, kind))
    source = locate_model(recipe.model).folder
    tokenizer = Tokenizer.load(source)
    data = read_labelled_data(task, recipe)
    train, dev = encode_examples(task, data.train, tokenizer), encode_examples(task, data.dev, tokenizer)
    start_model(recipe, task, source)  # refuses what can't be trained before anything is written
    if machine.ranks.is_first:
        write_recipe(recipe, out)
    restarts: list[Restart] = []
    for number in range(1, recipe.restarts + 1):
        restarts.append(_train_once(recipe, number, out, task, source, train, dev, resume, machine, console))
        _keep_best_only(out, restarts)
    best = leading(restarts)
    model = start_model(recipe, task, source)
    Best(out / "restarts" / str(best + 1) / "best", task.main_metric).restore(model)
    model.head.finish()
    if recipe.lora.rank and machine.ranks.is_first:
        heads, _ = head_tensors(model.head)
        save_adapter(out / "adapter", model.encoder, heads=heads, base_model=recipe.model, replace=True)
    merge_lora(model.encoder)
    task.bind(model.head)
    model.to(machine.device)
    results = _judge(task, model, data, dev, restarts, best, tokenizer, machine)
    if machine.ranks.is_first:
        save_task_model(out / "model", model, task, tokenizer, _provenance(recipe, results), replace=True)
        write_results(out, recipe, results)
        write_finetune_report(out, recipe, results)
    wait()
    return FinetuneResult(out / "model", out / "report.html", results)


def _train_once(
    recipe: FinetuneRecipe,
    number: int,
    out: Path,
    task: Task[Any],
    source: Path,
    train: Split,
    dev: Split,
    resume: bool,
    machine: Machine,
    console: Console | None,
) -> Restart:
    """The run of one seed; a finished one is not repeated."""
    folder = out / "restarts" / str(number)
    if resume and (folder / "restart.json").exists():
        return Restart(**read_json(folder / "restart.json"))
    seed = recipe.seed + number - 1
    model = start_model(recipe, task, source, seed)
    model.to(machine.device)
    objective = Finetuning(task, model, train, dev, recipe.batch_size, seed, machine.device)
    settings = recipe.resolved(objective.steps_per_epoch, seed)
    adam = settings.optimizer
    optimizer = make_optimizer(
        model, adam.weight_decay, (adam.beta1, adam.beta2), adam.epsilon, adam.layer_decay
    )
    facts = run_facts(model, model.config, Path(recipe.train).name, machine)
    if trained_share(model) < 1:
        facts["trained"] = f"{trained_share(model):.1%} trained"
    title = task.name.capitalize() + (f" {number} of {recipe.restarts}" if recipe.restarts > 1 else "")
    observer = RunObserver(folder, title, facts, settings, machine, console)
    best = Best(folder / "best", task.main_metric, recipe.patience)

    def after_evaluation(step: int, metrics: Metrics) -> bool:
        best.consider(step, metrics, model, machine.ranks.is_first)
        return best.stopped

    loop = Loop(objective, optimizer, settings, machine, folder, observer, after_evaluation)
    complaints = loop.resume() if resume else []
    best.resume(loop.progress.step)
    begun = time.monotonic()
    with observer.open(loop.progress.step):
        for complaint in complaints:
            observer.record("warning", loop.progress.step, message=complaint)
        if not best.stopped:
            loop.run()
        if not best.stopped and (not best.history or best.history[-1][0] != loop.progress.step):
            after_evaluation(loop.progress.step, loop.evaluate())
        observer.record("end", loop.progress.step, elapsed=loop.progress.elapsed, reason="finished")
    assert best.score is not None
    step = max(best.history, key=lambda each: each[1])[0]
    restart = Restart(
        seed, best.score, step, loop.progress.step, loop.progress.elapsed or time.monotonic() - begun
    )
    if machine.ranks.is_first:
        write_json(folder / "restart.json", restart._asdict())
    return restart


def _keep_best_only(out: Path, restarts: list[Restart]) -> None:
    """A finished run needs no checkpoints, and of all weights those of the leading one are enough."""
    for number in range(1, len(restarts) + 1):
        folder = out / "restarts" / str(number)
        shutil.rmtree(folder / "checkpoints", ignore_errors=True)
        if number - 1 != leading(restarts):
            (folder / "best" / "weights.safetensors").unlink(missing_ok=True)


def _judge(
    task: Task[Any],
    model: TaskModel,
    data: LabelledData,
    dev: Split,
    restarts: list[Restart],
    best: int,
    tokenizer: Tokenizer,
    machine: Machine,
) -> Results:
    """Calibrates on dev, and measures the model and its baselines there and, once, on test."""
    outputs = outputs_of(model, dev.encoded, machine.device)
    figures = task.calibrate(outputs, dev.examples, dev.encoded)
    sides = {"dev": judge(task, outputs, data.train, dev)}
    if data.test is not None:
        test = encode_examples(task, data.test, tokenizer)
        sides["test"] = judge(task, outputs_of(model, test.encoded, machine.device), data.train, test)
    return Results(task, tuple(restarts), best, sides, figures, data.warnings, len(data.train))


def _provenance(recipe: FinetuneRecipe, results: Results) -> dict[str, Any]:
    return {
        "recipe": json.loads(recipe.model_dump_json()),
        "metrics": {name: side.model for name, side in results.sides.items()},
        "sha256": data_hashes(recipe),
    }
