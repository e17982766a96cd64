"""A recipe becomes a run: inputs are opened, the loop trains, a model and a report are written.

out/recipe.toml     the resolved recipe        out/checkpoints/   training state
out/tokens/         the token store            out/model/         the trained model
out/log.jsonl       the truth                  out/report.html    the same to look at
"""

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from rich.console import Console
from torch import Tensor

from bertsmith.data.masking import Masker, MaskingRates
from bertsmith.data.store import TokenStore
from bertsmith.data.stream import PretrainingStream
from bertsmith.door import door, either, flag, kind, optional, several, text
from bertsmith.errors import RecipeError
from bertsmith.files import write_json
from bertsmith.machine.hardware import Hardware
from bertsmith.model.contamination import checked_against, contamination_provenance
from bertsmith.model.cpu.allocator import keep_memory
from bertsmith.model.locate import locate_model
from bertsmith.model.meta_init import meta_init
from bertsmith.tasks.pretraining.fill_mask import Candidate, fill_mask, masked_examples
from bertsmith.tasks.pretraining.patch_reconstruction import (
    PatchReconstruction,
    add_decoder,
    no_better_than_mean,
)
from bertsmith.tasks.pretraining.pretraining import PretrainingModel, PretrainingTask, start_at_frequencies
from bertsmith.tasks.pretraining.pretraining_checkpoint import save_pretraining_model
from bertsmith.training.distributed import leave, text_of_first, wait
from bertsmith.training.inputs import Inputs, open_inputs
from bertsmith.training.loop import Loop
from bertsmith.training.machine import Machine, set_up_machine
from bertsmith.training.observer import RunObserver, run_facts
from bertsmith.training.recipe import Recipe, read_recipe
from bertsmith.training.run_folder import as_begun, open_run, write_recipe
from bertsmith.training.run_lock import sole_run
from bertsmith.training.run_summary import write_summary
from bertsmith.training.sharding import whole_tensors
from bertsmith.training.stable_checkpoint import require_same_text, with_stable_checkpoint

_EXAMPLES = 8


@dataclass(frozen=True)
class PretrainingResult:
    """Where the trained model is, and its held-out metrics."""

    model: Path
    report: Path
    metrics: dict[str, float]


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
    if isinstance(recipe, str):
        recipe = read_recipe(recipe, list(overrides))
    elif overrides:
        raise RecipeError(
            "Overrides go with a recipe's name or file; change the settings themselves instead."
        )
    recipe = as_begun(recipe, resume)
    out = open_run(recipe, resume)
    recipe = with_stable_checkpoint(recipe, out)
    hardware = Hardware.detect()
    machine = set_up_machine(recipe.hardware, recipe.data.micro_batch_tokens, hardware)
    try:
        if recipe.decay_from is not None:  # the long run may have saved another one between two ranks' looks
            recipe = recipe.model_copy(update={"decay_from": text_of_first(recipe.decay_from)})
        with sole_run(out, machine):
            open_run(recipe, resume)  # once more: another may have begun meanwhile
            return _run(recipe, out, resume, machine, hardware, console)
    finally:
        leave()


def _run(
    recipe: Recipe, out: Path, resume: bool, machine: Machine, hardware: Hardware, console: Console | None
) -> PretrainingResult:
    keep_memory()
    wait()  # a rank that comes late must not find the run that the first one is about to begin
    first = machine.ranks.is_first
    inputs = open_inputs(recipe, out, machine, hardware, console if first else None)
    require_same_text(recipe, inputs.tokenizer, inputs.train)
    if first:
        write_recipe(recipe, out)
    if inputs.train.values is not None:
        add_decoder(inputs.model, recipe.loss.decoder_layers)
    elif recipe.loss.decoder_layers:
        raise RecipeError("loss.decoder_layers is for series and images; leave it out for other sequences.")
    else:
        start_at_frequencies(inputs.model, inputs.train, inputs.tokenizer)
    inputs.model.to(machine.device)
    task = _task(recipe, inputs, machine)
    examples = masked_examples(inputs.heldout or inputs.train, inputs.tokenizer, _EXAMPLES)
    before = [fill_mask(inputs.model, inputs.tokenizer, text) for text, _ in examples]
    facts = run_facts(inputs.model, inputs.model.config, Path(recipe.corpus or "").name, machine)
    if recipe.decay_from is not None:
        facts["begun_from"] = f"decay from {recipe.decay_from}"
    loop_observer = RunObserver(out, "Pre-training", facts, recipe, machine, console if first else None)
    loop = Loop(task, recipe, machine, out, loop_observer)
    notes = [*inputs.notes, *(loop.resume() if resume else [])]
    if recipe.decay_from is not None and loop.is_new:
        loop.begin_from(Path(recipe.decay_from))
    with loop_observer.open(loop.progress.step):
        for note in notes:
            loop_observer.record("warning", loop.progress.step, message=note)
        loop.run()
        metrics = loop.evaluate()
        for warning in _baseline_warnings(metrics):
            loop_observer.record("warning", loop.progress.step, message=warning)
        loop_observer.record("end", loop.progress.step, elapsed=loop.progress.elapsed, reason="finished")
    weights = whole_tensors(inputs.model.state_dict(), keep=first)
    if first:
        model = _whole_model(weights, inputs.model).to(machine.device)
        after = [fill_mask(model, inputs.tokenizer, text) for text, _ in examples]
        provenance = _provenance(recipe, inputs, loop.progress.step, metrics)
        save_pretraining_model(out / "model", model, inputs.tokenizer, provenance, replace=True)
        fills = [_fill(*each) for each in zip(examples, before, after, strict=True)]
        write_json(out / "fills.json", fills)
        write_summary(out, recipe, model, hardware)
    wait()
    return PretrainingResult(out / "model", out / "report.html", metrics)


def _whole_model(weights: dict[str, Tensor], trained: PretrainingModel) -> PretrainingModel:
    """The trained model in one piece, whether or not it was divided between the ranks."""
    model = meta_init(lambda: PretrainingModel(trained.config, trained.next_sentence is not None))
    kept = {name: tensor for name, tensor in weights.items() if not name.startswith("decoder.")}
    model.load_state_dict(kept, assign=True)
    return model


def _baseline_warnings(metrics: dict[str, float]) -> list[str]:
    """A score that equals always giving the same answer is said to."""
    return no_better_than_mean(metrics) + [
        f"held-out {name.upper()} accuracy {metrics[f'{name}_accuracy']:.1%} is no better than always giving "
        f"the most frequent answer ({metrics[f'{name}_majority']:.1%}): this model has learned nothing yet"
        for name in ("mlm", "nsp")
        if f"{name}_accuracy" in metrics
        and metrics[f"{name}_accuracy"] <= metrics[f"{name}_majority"] + 0.005
    ]


def _task(recipe: Recipe, inputs: Inputs, machine: Machine) -> PretrainingTask:
    data = recipe.data

    def stream(store: TokenStore, length: int, batch_tokens: int, seed: int) -> PretrainingStream:
        return PretrainingStream(
            store, inputs.tokenizer, seed, data.next_sentence, length, batch_tokens, data.short_seq_prob
        )

    streams = [
        stream(inputs.train, length, data.batch_size * length, recipe.seed)
        for length in data.sequence_lengths
    ]
    first_length = data.sequence_lengths[0]
    measured = inputs.measured
    heldout = None if measured is None else stream(measured, first_length, 16 * first_length, 0)
    rates = MaskingRates(**recipe.masking.model_dump())
    kind = PretrainingTask
    if inputs.train.values is not None:
        kind, rates = PatchReconstruction, replace(rates, masked=1.0, random=0.0)
    masker = Masker(inputs.tokenizer, rates, machine.device)
    return kind(
        inputs.model,
        streams,
        masker,
        heldout,
        recipe.evaluation.tokens,
        machine.device,
        recipe.loss.sampled_pieces,
        recipe.seed,
    )


def _provenance(recipe: Recipe, inputs: Inputs, step: int, metrics: dict[str, float]) -> dict[str, object]:
    return {
        "steps": step,
        "metrics": metrics,
        "recipe": json.loads(recipe.model_dump_json()),
        "tokenizer_sha256": inputs.tokenizer.sha256,
        "corpus_sha256": inputs.train.corpus_sha256,
        **contamination_provenance(
            inputs.train.manifest.checked_against,
            checked_against(locate_model(recipe.init).folder if recipe.init else None),
        ),
    }


def _fill(
    example: tuple[str, str], before: list[list[Candidate]], after: list[list[Candidate]]
) -> dict[str, object]:
    text, answer = example
    sides = {"before": before[0], "after": after[0]}
    return {"text": text, "answer": answer} | {
        side: [tuple(asdict(candidate).values()) for candidate in candidates]
        for side, candidates in sides.items()
    }
