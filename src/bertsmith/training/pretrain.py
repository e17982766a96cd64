"""Pre-training: opens the inputs that a recipe names, trains, and writes the model and a report.

out/recipe.toml     the resolved recipe        out/checkpoints/   training state
out/tokens/         the token store            out/model/         the trained model
out/log.jsonl       the log                    out/report.html    the run as a page
out/generator/      the generator, with objective=replaced-tokens
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from torch import Tensor

from bertsmith.argument_checks import (
    any_of,
    check_arguments,
    check_flag,
    check_text,
    instance_of,
    list_of,
    optional,
)
from bertsmith.model.cpu.process import keep_freed_memory
from bertsmith.model.layers.embeddings import share_segment, shares_segment
from bertsmith.model.layers.initialisation import meta_init
from bertsmith.tasks.golden.records import write_golden
from bertsmith.tasks.pretraining.objectives import GENERATOR, MODEL, PretrainedModel, PretrainingObjective
from bertsmith.tasks.pretraining.pretraining import start_at_frequencies
from bertsmith.tasks.pretraining.reconstruction import add_decoder, without_decoder
from bertsmith.training.extending import extension_writer
from bertsmith.training.inputs import Inputs, open_inputs
from bertsmith.training.loop import Loop
from bertsmith.training.machine import broadcast_text, wait_for_ranks
from bertsmith.training.observer import describe_run
from bertsmith.training.pretraining_report import (
    Fills,
    check_against_baselines,
    check_forgetting,
    compare_with_start,
    find_unreadable_reports,
    read_first_evaluation,
    write_summary,
)
from bertsmith.training.recipe import Recipe, as_recipe
from bertsmith.training.run import Run
from bertsmith.training.run_folder import (
    find_run_folder,
    open_run,
    require_its_own_folder,
    require_same_data,
    require_same_text,
    resolve_decay_start,
    restore_decay_start,
)
from bertsmith.training.sharding import gather_tensors
from bertsmith.training.streams import build_task_inputs

_VALUE_SPIKE_FACTOR = 10  # how many times farther the losses of numbers vary than those of text


@dataclass(frozen=True)
class PretrainingResult:
    """The folder of the trained model, the path of the report, and held-out metrics after the training;
    `before` are those before the first step, in a run with general text.
    """

    model: Path
    report: Path
    metrics: dict[str, float]
    before: dict[str, Any] | None = None


@check_arguments(
    recipe=any_of(check_text, instance_of(Recipe)),
    overrides=list_of(check_text),
    resume=check_flag,
    console=optional(instance_of(Console)),
)
def pretrain(
    recipe: str | Recipe, *overrides: str, resume: bool = False, console: Console | None = None
) -> PretrainingResult:
    """Pre-trains by a recipe: a name, a file, or settings, changed by `dotted.key=value` overrides.

    Shows the run on `console` if one is given. With `resume`, goes on from the last undamaged checkpoint in
    `out`, or begins if there is none. Under torchrun, every process calls this. Raises RecipeError,
    CorpusError, StoreError, ModelError, ResourceError before anything is trained, and TrainingStopped when
    the loss guard ends the run.
    """
    file = recipe if isinstance(recipe, str) else None
    recipe = as_recipe(recipe, overrides)
    if resume and file is not None and not any(override.startswith("out=") for override in overrides):
        require_its_own_folder(Path(file), recipe)
    initial = restore_decay_start(recipe, resume)
    with Run.open(lambda: resolve_decay_start(initial, open_run(initial, resume)), resume, console) as run:
        return _run(run)


def _run(run: Run[Recipe]) -> PretrainingResult:
    keep_freed_memory()
    recipe, out, machine = run.recipe, run.out, run.machine
    if recipe.decay_from is not None:
        # the long run may have saved another checkpoint after the first rank looked and before others did
        recipe = recipe.model_copy(update={"decay_from": broadcast_text(recipe.decay_from)})

    inputs = open_inputs(recipe, out, machine, run.hardware, run.console)
    require_same_text(recipe, inputs.tokenizer, inputs.train)
    if run.resume:
        require_same_data(out, inputs.hashes)
    if recipe.decay_from is not None:
        require_same_data(find_run_folder(Path(recipe.decay_from)), inputs.hashes)
    write_extra_files = extension_writer(inputs.init)
    objective = inputs.objective(recipe)
    run.begin(recipe, inputs.hashes)

    has_one_segment = _initialise(recipe, objective, inputs)
    inputs.model.to(machine.device)
    streams = build_task_inputs(recipe, inputs, objective.sentence_order, machine.device)
    task = objective.task(inputs.model, streams, recipe.objective_choices())
    fills = Fills(out, inputs, objective.masked_language(inputs.model), recipe.decay_from)
    if run.is_first:
        fills.write()
    facts = describe_run(inputs.model, inputs.model.config, Path(recipe.corpus or "").name, machine)
    if recipe.decay_from is not None:
        facts["begun_from"] = f"decay from {recipe.decay_from}"
    observer = run.observer("Pre-training", facts, recipe)
    settings = recipe
    if inputs.train.values is not None:  # few values far from the mean make squared errors look like a spike
        guard = recipe.guard.model_copy(
            update={"spike_factor": _VALUE_SPIKE_FACTOR * recipe.guard.spike_factor}
        )
        settings = recipe.model_copy(update={"guard": guard})
    loop = Loop(task, settings, machine, out, observer)
    notes = [*inputs.notes, *(loop.resume() if run.resume else [])]
    if recipe.decay_from is not None and loop.is_new:
        loop.begin_from(Path(recipe.decay_from))

    with observer.open(loop.progress.step, notes):
        metrics_before: dict[str, Any] | None = None
        if recipe.general is not None:  # to compare with at the end: what the model has forgotten of it
            metrics_before = read_first_evaluation(out)
            if metrics_before is None and not loop.progress.step:
                metrics_before = loop.evaluate()
        loop.run()
        metrics = loop.evaluate()
        warnings = (
            *check_against_baselines(metrics),
            *check_forgetting(metrics_before, metrics),
            *find_unreadable_reports(recipe),
        )
        for warning in warnings:
            observer.record("warning", loop.progress.step, message=warning)
        observer.record("end", loop.progress.step, elapsed=loop.progress.elapsed, reason="finished")

    weights = gather_tensors(inputs.model.state_dict(), keep=run.is_first)
    if run.is_first:
        model = _reassemble(inputs.model, weights, has_one_segment).to(machine.device)
        training_facts = {"steps": loop.progress.step, "tokens": loop.progress.tokens, "metrics": metrics}
        objective.save(
            out, model, inputs.tokenizer, training_facts | inputs.provenance(recipe), write_extra_files
        )
        for folder in filter(Path.is_dir, (out / MODEL, out / GENERATOR)):
            write_golden(folder)
        fills.write_after(objective.masked_language(model))
        write_summary(out, recipe, model, run.hardware, compare_with_start(metrics_before, metrics))
    wait_for_ranks()
    return PretrainingResult(out / MODEL, out / "report.html", metrics, metrics_before)


def _initialise(recipe: Recipe, objective: PretrainingObjective[Any], inputs: Inputs) -> bool:
    """Prepares the model for its first step: sets its output bias to the tokens' frequencies, or adds a
    decoder of values. Returns whether its segments share one embedding, and should still do so after the
    training.
    """
    model = objective.masked_language(inputs.model)
    if inputs.train.values is None:
        start_at_frequencies(model.masked_language, inputs.train, inputs.tokenizer)
    else:
        add_decoder(model, recipe.loss.decoder_layers)
    if recipe.init is None and not recipe.data.next_sentence:
        share_segment(inputs.model)
    return not recipe.data.next_sentence and shares_segment(inputs.model)


def _reassemble(model: PretrainedModel, weights: dict[str, Tensor], has_one_segment: bool) -> PretrainedModel:
    """A model like `model`, which may be sharded, with the full `weights` and without a decoder."""
    make_model: Callable[[], PretrainedModel] = model.another
    full_model = meta_init(make_model)
    full_model.load_state_dict(without_decoder(weights), assign=True)
    if has_one_segment:
        share_segment(full_model)
    return full_model
