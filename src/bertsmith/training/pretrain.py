"""A recipe becomes a run: inputs are opened, the loop trains, a model and a report are written.

out/recipe.toml     the resolved recipe        out/checkpoints/   training state
out/tokens/         the token store            out/model/         the trained model
out/log.jsonl       the truth                  out/report.html    the same to look at
out/generator/      of objective=replaced-tokens
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from bertsmith.data.masking import Masker, MaskingRates
from bertsmith.data.sequences.codec import table_row_length
from bertsmith.data.store import TokenStore
from bertsmith.data.stream import MixedStream, PretrainingStream, divided
from bertsmith.door import door, either, flag, kind, optional, several, text
from bertsmith.errors import BertsmithError, RecipeError
from bertsmith.model.card import checked_against, contamination_provenance
from bertsmith.model.cpu.process import keep_memory
from bertsmith.model.layers.embeddings import share_segment, shares_segment
from bertsmith.model.locate import locate_model
from bertsmith.model.meta_init import meta_init
from bertsmith.tasks.golden.records import write_golden
from bertsmith.tasks.objective import Objective
from bertsmith.tasks.pretraining.fill_mask import masked_examples
from bertsmith.tasks.pretraining.objectives import (
    GENERATOR,
    MODEL,
    OBJECTIVES,
    VALUES,
    PretrainedModel,
    PretrainingObjective,
    TaskInputs,
)
from bertsmith.tasks.pretraining.pretraining import start_at_frequencies
from bertsmith.tasks.pretraining.reconstruction import add_decoder, no_better_than_mean, without_decoder
from bertsmith.text.corpus.corpus import Corpus
from bertsmith.text.tokens.value_tokenizers import PatchTokenizer, ValueTokenizer
from bertsmith.training.checkpoint import RunProgress
from bertsmith.training.extending import read_extension, write_extension
from bertsmith.training.inputs import Inputs, learned_row_length, open_inputs, require_masks, rows_provenance
from bertsmith.training.log import LOG_FILE, RunLog, task_metrics
from bertsmith.training.loop import Loop
from bertsmith.training.machine import Machine, text_of_first, wait
from bertsmith.training.observer import run_facts
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
from bertsmith.training.run_report import (
    filled_at_first,
    filled_masks,
    first_evaluation,
    forgetting_warnings,
    gains_and_losses,
    left_out,
    write_fills,
    write_summary,
)
from bertsmith.training.sharding import whole_tensors

_EXAMPLES = 8
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
    recipe, out, machine, first = run.recipe, run.out, run.machine, run.is_first
    if recipe.decay_from is not None:  # the long run may have saved another one between two ranks' looks
        recipe = recipe.model_copy(update={"decay_from": text_of_first(recipe.decay_from)})
    inputs = open_inputs(recipe, out, machine, run.hardware, run.console)
    require_same_text(recipe, inputs.tokenizer, inputs.train)
    hashes = inputs.hashes
    if run.resume:
        require_same_data(out, hashes)
    if recipe.decay_from is not None:
        require_same_data(run_of(Path(recipe.decay_from)), hashes)
    write_beside = _with_extension(recipe)
    objective = _objective(recipe, inputs)
    run.begin(recipe, hashes)
    head = objective.masked_language(inputs.model).masked_language
    if inputs.train.values is None:
        start_at_frequencies(head, inputs.train, inputs.tokenizer)
    else:
        add_decoder(objective.masked_language(inputs.model), recipe.loss.decoder_layers)
    if recipe.init is None and not recipe.data.next_sentence:
        share_segment(inputs.model)
    in_one_segment = not recipe.data.next_sentence and shares_segment(inputs.model)
    inputs.model.to(machine.device)
    task = _task(recipe, objective, inputs, machine)
    count = 0 if isinstance(inputs.tokenizer, ValueTokenizer) else _EXAMPLES  # rows of numbers are no text
    longest = inputs.model.config.max_length
    examples = masked_examples(inputs.heldout or inputs.train, inputs.tokenizer, count, longest)
    texts = [text for text, _ in examples]
    filling = objective.masked_language(inputs.model)
    before = filled_at_first(out, inputs.model, filling, inputs.tokenizer, texts, recipe.decay_from)
    if first:
        write_fills(out, examples, before=before)
    facts = run_facts(inputs.model, inputs.model.config, Path(recipe.corpus or "").name, machine)
    if recipe.decay_from is not None:
        facts["begun_from"] = f"decay from {recipe.decay_from}"
    observer = run.observer("Pre-training", facts, recipe)
    loop = Loop(task, _for_far_numbers(recipe, inputs), machine, out, observer)
    notes = [*inputs.notes, *(loop.resume() if run.resume else [])]
    if recipe.decay_from is not None and loop.is_new:
        loop.begin_from(Path(recipe.decay_from))
    with observer.open(loop.progress.step, notes):
        at_first = _measured_before(recipe, out, loop)
        loop.run()
        metrics = loop.evaluate()
        warnings = (*_baseline_warnings(metrics), *forgetting_warnings(at_first, metrics), *left_out(recipe))
        for warning in warnings:
            observer.record("warning", loop.progress.step, message=warning)
        observer.record("end", loop.progress.step, elapsed=loop.progress.elapsed, reason="finished")
    weights = whole_tensors(inputs.model.state_dict(), keep=first)
    if first:
        another: Callable[[], PretrainedModel] = inputs.model.another
        model = meta_init(another)  # in one piece, however it was divided between the ranks
        model.load_state_dict(without_decoder(weights), assign=True)
        if in_one_segment:
            share_segment(model)
        model.to(machine.device)
        provenance = _provenance(recipe, inputs, loop.progress, metrics)
        objective.save(out, model, inputs.tokenizer, provenance, write_beside)
        for folder in filter(Path.is_dir, (out / MODEL, out / GENERATOR)):
            write_golden(folder)
        after = filled_masks(objective.masked_language(model), inputs.tokenizer, texts)
        write_fills(out, examples, before=before, after=after)
        write_summary(out, recipe, model, run.hardware, gains_and_losses(at_first, metrics))
    wait()
    return PretrainingResult(out / MODEL, out / "report.html", metrics, at_first)


def _objective(recipe: Recipe, inputs: Inputs) -> PretrainingObjective[Any]:
    """What the recipe names; of a store with values their reconstruction. Raises RecipeError for settings
    that are the other kind's.
    """
    if recipe.loss.decoder_layers and not isinstance(inputs.tokenizer, PatchTokenizer):
        raise RecipeError("loss.decoder_layers is for series and images: leave it out for other sequences.")
    if inputs.train.values is None:
        return OBJECTIVES[recipe.objective]
    if recipe.objective != "masked-language" or recipe.data.next_sentence or recipe.general is not None:
        raise RecipeError(
            "Rows of numbers are pre-trained by objective=masked-language, whose masked values are "
            "predicted, with data.next_sentence=false and without general."
        )
    return VALUES


def _for_far_numbers(recipe: Recipe, inputs: Inputs) -> Recipe:
    """A few numbers far from the mean make squared errors several times the usual ones, without a spike."""
    if inputs.train.values is None:
        return recipe
    guard = recipe.guard.model_copy(update={"spike_factor": _FAR_NUMBERS * recipe.guard.spike_factor})
    return recipe.model_copy(update={"guard": guard})


def _measured_before(recipe: Recipe, out: Path, loop: Loop) -> dict[str, Any] | None:
    """Held-out figures before the first step, from the log where it has them, if `general` asks for what is
    forgotten.
    """
    if recipe.general is None:
        return None
    logged = first_evaluation(RunLog.read(out)) if (out / LOG_FILE).exists() else None
    if logged is not None:
        return task_metrics(logged)
    return None if loop.progress.step else loop.evaluate()


def _with_extension(recipe: Recipe) -> Callable[[Path], None] | None:
    """What writes the words that `init` was extended by beside the model, to be taken out again by them.

    Raises as `read_extension` does, which must be before the run.
    """
    extension = read_extension(locate_model(recipe.init).folder) if recipe.init else None
    if extension is None:
        return None
    return lambda folder: write_extension(folder, extension)


def _baseline_warnings(metrics: dict[str, float]) -> list[str]:
    """A score that equals always giving the same answer is said to; of replaced tokens the loss, since long
    after it has begun to learn a discriminator calls none replaced.
    """
    warnings = [
        f"held-out {name.upper()} accuracy {metrics[f'{name}_accuracy']:.1%} is no better than always giving "
        f"the most frequent answer ({metrics[f'{name}_majority']:.1%}): this model has learned nothing yet"
        for name in ("mlm", "nsp", "sop")
        if f"{name}_accuracy" in metrics
        and metrics[f"{name}_accuracy"] <= metrics[f"{name}_majority"] + 0.005
    ]
    if "rtd_loss" in metrics and metrics["rtd_loss"] >= metrics["rtd_majority_loss"]:
        warnings.append(
            f"held-out RTD loss {metrics['rtd_loss']:.3f} is no better than knowing the share of replaced "
            f"tokens alone ({metrics['rtd_majority_loss']:.3f}): the discriminator has learned nothing yet"
        )
    return warnings + no_better_than_mean(metrics)


def _task(
    recipe: Recipe, objective: PretrainingObjective[Any], inputs: Inputs, machine: Machine
) -> Objective:
    """What the loop computes: the objective on the phases' streams, masked as the recipe says."""
    data = recipe.data

    def stream(store: TokenStore, length: int, batch_tokens: int, seed: int) -> PretrainingStream:
        return PretrainingStream(
            store, inputs.tokenizer, seed, data.next_sentence, length, batch_tokens,
            data.short_seq_prob, objective.sentence_order,
        )  # fmt: skip

    def mixed(length: int) -> PretrainingStream | MixedStream:
        if inputs.general is None or not data.general_share:
            return stream(inputs.train, length, data.batch_size * length, recipe.seed)
        main, general = divided(data.batch_size, data.general_share)
        return MixedStream(
            stream(inputs.train, length, main * length, recipe.seed),
            stream(inputs.general, length, general * length, recipe.seed + 1),  # other masks
        )

    first_length = data.sequence_lengths[0]
    measured = inputs.measured
    heldout = None if measured is None else stream(measured, first_length, 16 * first_length, 0)
    rates = MaskingRates(**recipe.masking.model_dump())
    masker = Masker(inputs.tokenizer, rates, machine.device)
    streams = list(map(mixed, data.sequence_lengths))
    require_masks(streams[0], Masker(inputs.tokenizer, rates))
    general = inputs.general_measured
    if general is not None:  # single texts: of pairs nothing is asked there
        texts = PretrainingStream(general, inputs.tokenizer, 0, False, first_length, 16 * first_length)
    made_of = TaskInputs(
        streams,
        masker,
        heldout,
        recipe.evaluation.tokens,
        machine.device,
        recipe.loss.sampled_pieces,
        recipe.seed,
        None if general is None else texts,
    )
    return objective.task(inputs.model, made_of, recipe.objective_choices())


def _provenance(
    recipe: Recipe, inputs: Inputs, done: RunProgress, metrics: dict[str, float]
) -> dict[str, object]:
    init = locate_model(recipe.init).folder if recipe.init else None
    return {
        "steps": done.step,
        "tokens": done.tokens,
        "metrics": metrics,
        **_text(recipe, inputs),
        "recipe": json.loads(recipe.model_dump_json()),
        "tokenizer_sha256": inputs.tokenizer.sha256,
        "corpus_sha256": inputs.train.corpus_sha256,
        **contamination_provenance(
            inputs.train.manifest.checked_against,
            checked_against(init),
        ),
        **rows_provenance(table_row_length(inputs.train.path.parent) or learned_row_length(init)),
    }


def _text(recipe: Recipe, inputs: Inputs) -> dict[str, object]:
    """What the corpus says of itself, or else the token store, which knows neither words nor a licence.
    Nothing of rows of numbers.
    """
    try:
        manifest = Corpus.open(recipe.corpus or "").manifest
    except BertsmithError:
        if isinstance(inputs.tokenizer, ValueTokenizer):
            return {}
        stored = inputs.train.manifest.splits["train"]
        return {"text": {"documents": stored.documents, "tokens": stored.tokens}}
    counts = manifest.splits["train"].counts
    facts = {"documents": counts.documents, "words": counts.words, "licence": manifest.licence}
    return {"text": facts}
