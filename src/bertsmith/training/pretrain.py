"""A recipe becomes a run: inputs are opened, the loop trains, a model and a report are written.

out/recipe.toml     the resolved recipe        out/checkpoints/   training state
out/tokens/         the token store            out/model/         the trained model
out/log.jsonl       the truth                  out/report.html    the same to look at
out/generator/      of objective=replaced-tokens
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from torch import Tensor

from bertsmith.door import door, either, flag, kind, optional, several, text
from bertsmith.model.cpu.process import keep_memory
from bertsmith.model.layers.embeddings import share_segment, shares_segment
from bertsmith.model.meta_init import meta_init
from bertsmith.tasks.golden.records import write_golden
from bertsmith.tasks.pretraining.objectives import GENERATOR, MODEL, PretrainedModel, PretrainingObjective
from bertsmith.tasks.pretraining.pretraining import start_at_frequencies
from bertsmith.tasks.pretraining.reconstruction import add_decoder, without_decoder
from bertsmith.training.extending import extension_writer
from bertsmith.training.inputs import Inputs, open_inputs
from bertsmith.training.loop import Loop
from bertsmith.training.machine import text_of_first, wait
from bertsmith.training.observer import run_facts
from bertsmith.training.pretraining_report import (
    Fills,
    baseline_warnings,
    forgetting_warnings,
    gains_and_losses,
    left_out,
    logged_before,
    write_summary,
)
from bertsmith.training.recipe import Recipe, as_recipe
from bertsmith.training.run import Run
from bertsmith.training.run_folder import (
    as_begun,
    open_run,
    require_its_own_folder,
    require_same_data,
    require_same_text,
    run_of,
    with_stable_checkpoint,
)
from bertsmith.training.sharding import whole_tensors
from bertsmith.training.streams import build_task_inputs

_FAR_NUMBERS = 10  # how much farther their losses vary than those of text


@dataclass(frozen=True)
class PretrainingResult:
    """Where the trained model is, and its held-out metrics; `before` are those before the first step, of a
    run with general text.
    """

    model: Path
    report: Path
    metrics: dict[str, float]
    before: dict[str, Any] | None = None


@door(
    recipe=either(text, kind(Recipe)), overrides=several(text), resume=flag, console=optional(kind(Console))
)
def pretrain(
    recipe: str | Recipe, *overrides: str, resume: bool = False, console: Console | None = None
) -> PretrainingResult:
    """Trains by a recipe (a name, a file, or settings) changed by `dotted.key=value` overrides.

    Shows the run on `console` if one is given. With `resume`, goes on from the last whole checkpoint of
    `out`, or begins if there is none. Under torchrun, every process calls this. Raises RecipeError,
    CorpusError, StoreError, ModelError, ResourceError before anything is trained, and TrainingStopped when
    the guard ends the run.
    """
    given, recipe = recipe, as_recipe(recipe, overrides)
    if resume and isinstance(given, str) and not any(each.startswith("out=") for each in overrides):
        require_its_own_folder(Path(given), recipe)
    begun = as_begun(recipe, resume)
    with Run.open(lambda: with_stable_checkpoint(begun, open_run(begun, resume)), resume, console) as run:
        return _run(run)


def _run(run: Run[Recipe]) -> PretrainingResult:
    keep_memory()
    recipe, out, machine = run.recipe, run.out, run.machine
    if recipe.decay_from is not None:  # the long run may have saved another one between two ranks' looks
        recipe = recipe.model_copy(update={"decay_from": text_of_first(recipe.decay_from)})

    inputs = open_inputs(recipe, out, machine, run.hardware, run.console)
    require_same_text(recipe, inputs.tokenizer, inputs.train)
    if run.resume:
        require_same_data(out, inputs.hashes)
    if recipe.decay_from is not None:
        require_same_data(run_of(Path(recipe.decay_from)), inputs.hashes)
    write_beside = extension_writer(inputs.init)
    objective = inputs.objective(recipe)
    run.begin(recipe, inputs.hashes)

    in_one_segment = _begin(recipe, objective, inputs)
    inputs.model.to(machine.device)
    streams = build_task_inputs(recipe, inputs, objective.sentence_order, machine.device)
    task = objective.task(inputs.model, streams, recipe.objective_choices())
    fills = Fills(out, inputs, objective.masked_language(inputs.model), recipe.decay_from)
    if run.is_first:
        fills.write()
    facts = run_facts(inputs.model, inputs.model.config, Path(recipe.corpus or "").name, machine)
    if recipe.decay_from is not None:
        facts["begun_from"] = f"decay from {recipe.decay_from}"
    observer = run.observer("Pre-training", facts, recipe)
    settings = recipe
    if inputs.train.values is not None:  # a few far from the mean make squared errors that are no spike
        far = recipe.guard.model_copy(update={"spike_factor": _FAR_NUMBERS * recipe.guard.spike_factor})
        settings = recipe.model_copy(update={"guard": far})
    loop = Loop(task, settings, machine, out, observer)
    notes = [*inputs.notes, *(loop.resume() if run.resume else [])]
    if recipe.decay_from is not None and loop.is_new:
        loop.begin_from(Path(recipe.decay_from))

    with observer.open(loop.progress.step, notes):
        at_first: dict[str, Any] | None = None
        if recipe.general is not None:  # what is forgotten of it is asked for
            at_first = logged_before(out)
            if at_first is None and not loop.progress.step:
                at_first = loop.evaluate()
        loop.run()
        metrics = loop.evaluate()
        warnings = (*baseline_warnings(metrics), *forgetting_warnings(at_first, metrics), *left_out(recipe))
        for warning in warnings:
            observer.record("warning", loop.progress.step, message=warning)
        observer.record("end", loop.progress.step, elapsed=loop.progress.elapsed, reason="finished")

    weights = whole_tensors(inputs.model.state_dict(), keep=run.is_first)
    if run.is_first:
        model = _in_one_piece(inputs.model, weights, in_one_segment).to(machine.device)
        done = {"steps": loop.progress.step, "tokens": loop.progress.tokens, "metrics": metrics}
        objective.save(out, model, inputs.tokenizer, done | inputs.provenance(recipe), write_beside)
        for folder in filter(Path.is_dir, (out / MODEL, out / GENERATOR)):
            write_golden(folder)
        fills.write_after(objective.masked_language(model))
        write_summary(out, recipe, model, run.hardware, gains_and_losses(at_first, metrics))
    wait()
    return PretrainingResult(out / MODEL, out / "report.html", metrics, at_first)


def _begin(recipe: Recipe, objective: PretrainingObjective[Any], inputs: Inputs) -> bool:
    """Gives the model what it has before its first step: the frequencies of pieces, or a decoder of values.
    Returns whether its segments have one embedding, as they should in the end.
    """
    model = objective.masked_language(inputs.model)
    if inputs.train.values is None:
        start_at_frequencies(model.masked_language, inputs.train, inputs.tokenizer)
    else:
        add_decoder(model, recipe.loss.decoder_layers)
    if recipe.init is None and not recipe.data.next_sentence:
        share_segment(inputs.model)
    return not recipe.data.next_sentence and shares_segment(inputs.model)


def _in_one_piece(
    model: PretrainedModel, weights: dict[str, Tensor], in_one_segment: bool
) -> PretrainedModel:
    """The same, however it was divided between the ranks, with all its weights and no decoder."""
    another: Callable[[], PretrainedModel] = model.another
    whole = meta_init(another)
    whole.load_state_dict(without_decoder(weights), assign=True)
    if in_one_segment:
        share_segment(whole)
    return whole
