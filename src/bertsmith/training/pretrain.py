"""A recipe becomes a run: corpus, tokenizer and model are found and checked, the loop trains, a report is
written.

out/recipe.toml     the resolved recipe        out/checkpoints/   training state
out/tokens/         the token store            out/model/         the trained model
out/log.jsonl       the truth                  out/report.html    the same to look at
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from rich.console import Console

from bertsmith.data.masking import Masker, MaskingRates
from bertsmith.data.store import TokenStore, tokenize_corpus
from bertsmith.data.stream import PretrainingStream, require_documents
from bertsmith.errors import CorpusError, RecipeError, StoreError
from bertsmith.files import sha256, write_json
from bertsmith.model.config import BertConfig
from bertsmith.model.locate import locate_model
from bertsmith.tasks.fill_mask import Candidate, fill_mask, masked_examples
from bertsmith.tasks.pretraining import PretrainingModel, PretrainingTask
from bertsmith.tasks.pretraining_checkpoint import load_pretraining_model, save_pretraining_model
from bertsmith.text.corpus import Corpus
from bertsmith.text.tokenizer import Tokenizer
from bertsmith.training.allocator import keep_memory
from bertsmith.training.distributed import Ranks, join, leave, wait
from bertsmith.training.hardware import Hardware, matmul_flops
from bertsmith.training.loop import Loop, Machine
from bertsmith.training.observer import RunObserver
from bertsmith.training.optimizer import make_optimizer
from bertsmith.training.recipe import Recipe, read_recipe
from bertsmith.training.resources import require_resources
from bertsmith.training.run_folder import open_run, write_recipe
from bertsmith.training.summary import write_summary

_EXAMPLES = 8
CPU_MICRO_BATCH, CUDA_MICRO_BATCH = 4096, 32_768  # tokens: a CPU's should stay in cache, a GPU's fill it


@dataclass(frozen=True)
class PretrainingResult:
    """Where the trained model is, and its held-out metrics."""

    model: Path
    report: Path
    metrics: dict[str, float]


@dataclass(frozen=True)
class Inputs:
    """What a recipe names, found and opened."""

    tokenizer: Tokenizer
    train: TokenStore
    heldout: TokenStore | None
    model: PretrainingModel
    notes: tuple[str, ...]


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
    out = open_run(recipe, resume)
    hardware = Hardware.detect()
    device = _device(recipe, hardware)
    ranks = join(device.type)
    try:
        return _run(recipe, out, resume, _machine(recipe, hardware, device, ranks), hardware, console)
    finally:
        leave()


def _run(
    recipe: Recipe, out: Path, resume: bool, machine: Machine, hardware: Hardware, console: Console | None
) -> PretrainingResult:
    keep_memory()
    first = machine.ranks.is_first
    inputs = _open_inputs(recipe, out, machine, hardware, console if first else None)
    if first:
        write_recipe(recipe, out)
    inputs.model.to(machine.device)
    task = _task(recipe, inputs, machine)
    settings = recipe.optimizer
    optimizer = make_optimizer(
        inputs.model, settings.weight_decay, (settings.beta1, settings.beta2), settings.epsilon
    )
    examples = masked_examples(inputs.heldout or inputs.train, inputs.tokenizer, _EXAMPLES)
    before = [fill_mask(inputs.model, inputs.tokenizer, text) for text, _ in examples]
    loop_observer = RunObserver(out, recipe, inputs.model, machine, console if first else None)
    loop = Loop(task, optimizer, recipe, machine, out, loop_observer)
    notes = [*inputs.notes, *(loop.resume() if resume else [])]
    with loop_observer.open(loop.progress.step):
        for note in notes:
            loop_observer.record("warning", loop.progress.step, message=note)
        loop.run()
        metrics = loop.evaluate()
        for warning in _baseline_warnings(metrics):
            loop_observer.record("warning", loop.progress.step, message=warning)
        loop_observer.record("end", loop.progress.step, elapsed=loop.progress.elapsed, reason="finished")
    after = [fill_mask(inputs.model, inputs.tokenizer, text) for text, _ in examples]
    if first:
        provenance = _provenance(recipe, inputs, loop.progress.step, metrics)
        save_pretraining_model(out / "model", inputs.model, inputs.tokenizer, provenance, replace=True)
        fills = [_fill(*each) for each in zip(examples, before, after, strict=True)]
        write_json(out / "fills.json", fills)
        write_summary(out, recipe, inputs.model, hardware)
    wait()
    return PretrainingResult(out / "model", out / "report.html", metrics)


def _baseline_warnings(metrics: dict[str, float]) -> list[str]:
    """A score that equals always giving the same answer is said to."""
    return [
        f"held-out {name.upper()} accuracy {metrics[f'{name}_accuracy']:.1%} is no better than always giving "
        f"the most frequent answer ({metrics[f'{name}_majority']:.1%}): this model has learned nothing yet"
        for name in ("mlm", "nsp")
        if f"{name}_accuracy" in metrics
        and metrics[f"{name}_accuracy"] <= metrics[f"{name}_majority"] + 0.005
    ]


def _device(recipe: Recipe, hardware: Hardware) -> torch.device:
    if recipe.hardware.device == "auto":
        return hardware.device
    if recipe.hardware.device == "cuda" and not hardware.gpus:
        raise RecipeError("hardware.device = cuda, but this machine has no CUDA device. Use device=auto.")
    return torch.device(recipe.hardware.device)


def _machine(recipe: Recipe, hardware: Hardware, device: torch.device, ranks: Ranks) -> Machine:
    if device.type == "cuda":
        device = torch.device("cuda", ranks.local)
        torch.cuda.set_device(device)
    torch.set_num_threads(recipe.hardware.threads or max(1, hardware.threads // ranks.count))
    named = {"float32": torch.float32, "bfloat16": torch.bfloat16, "auto": None}[recipe.hardware.precision]
    precision = named or (hardware.precision if device.type == hardware.device.type else torch.float32)
    default = CUDA_MICRO_BATCH if device.type == "cuda" else CPU_MICRO_BATCH
    peak = matmul_flops(precision, device=device)
    return Machine(device, precision, peak, ranks, recipe.data.micro_batch_tokens or default)


def _open_inputs(
    recipe: Recipe, out: Path, machine: Machine, hardware: Hardware, console: Console | None
) -> Inputs:
    """What can be refused is refused before the first file is written: the token store comes last."""
    init = locate_model(recipe.init).folder if recipe.init else None
    tokenizer = _tokenizer(recipe, init)
    model, notes = _model(recipe, tokenizer, init)
    _check_fit(recipe, tokenizer, model.config, machine.ranks)
    require_resources(model, recipe, machine, hardware, out)
    train, heldout = _stores(recipe, tokenizer, out, machine.ranks, console)
    _check_text(recipe, train)
    return Inputs(tokenizer, train, heldout, model, notes)


def _model(
    recipe: Recipe, tokenizer: Tokenizer, init: Path | None
) -> tuple[PretrainingModel, tuple[str, ...]]:
    """A new model, or the one to go on from with sentences on what was added to it or left out."""
    torch.manual_seed(recipe.seed)
    if init is None:
        config = recipe.model.config(tokenizer.vocab_size, tokenizer.pad_id)
        return PretrainingModel(config, _next_sentence(recipe, config)), ()
    wanted = recipe.data.next_sentence
    model, notes = load_pretraining_model(init, next_sentence=wanted, allow_new_heads=True)
    apply_dropout(model, recipe.model.dropouts(model.config))
    return model, notes


def _tokenizer(recipe: Recipe, init: Path | None) -> Tokenizer:
    if recipe.tokenizer is not None:
        return Tokenizer.load(Path(recipe.tokenizer))
    if init is not None:
        return Tokenizer.load(init)
    raise RecipeError("The run needs a tokenizer: tokenizer=FOLDER (bertsmith tokenizer train makes one).")


def _stores(
    recipe: Recipe, tokenizer: Tokenizer, out: Path, ranks: Ranks, console: Console | None
) -> tuple[TokenStore, TokenStore | None]:
    """The corpus's token store: as given, or made in the run's folder from a corpus of text."""
    if recipe.corpus is None:
        raise RecipeError("The run needs a corpus: corpus=FOLDER (bertsmith corpus build makes one).")
    path = Path(recipe.corpus)
    if not path.is_dir():
        raise CorpusError(
            f"{path} is not a folder. bertsmith corpus build SOURCE --out {path} makes a corpus."
        )
    if not (path / "train" / "tokens.bin").exists():
        path = _tokenised(path, tokenizer, out / "tokens", ranks, console)
    train = TokenStore.open(path / "train", tokenizer)
    train.verify()
    heldout = TokenStore.open(path / "heldout", tokenizer) if (path / "heldout").exists() else None
    return train, heldout


def _tokenised(path: Path, tokenizer: Tokenizer, store: Path, ranks: Ranks, console: Console | None) -> Path:
    """The run's own store, made by the first rank. Raises StoreError when it was made of another corpus."""
    corpus = Corpus.open(path)
    if ranks.is_first and not store.exists():
        if console is not None:
            console.print(f"Tokenising {path} …")
        tokenize_corpus(corpus, tokenizer, store)
    wait()
    if TokenStore.open(store / "train").corpus_sha256 != sha256(path / "manifest.json"):
        raise StoreError(
            f"{store} was made of another corpus than {path} now is. Remove it, or choose another out=."
        )
    return store


def _next_sentence(recipe: Recipe, config: BertConfig) -> bool:
    if recipe.data.next_sentence and not config.has_next_sentence:
        raise RecipeError(f"{config.model_type} has no next-sentence prediction: data.next_sentence=false.")
    return recipe.data.next_sentence


def _check_fit(recipe: Recipe, tokenizer: Tokenizer, config: BertConfig, ranks: Ranks) -> None:
    """Raises RecipeError when recipe, tokenizer, model and ranks don't belong together."""
    if tokenizer.vocab_size != config.vocab_size:
        raise RecipeError(
            f"init has a vocabulary of {config.vocab_size:,} pieces, the tokenizer {tokenizer.vocab_size:,}. "
            "Leave tokenizer= out to use init's own."
        )
    longest = max(recipe.data.sequence_lengths)
    if longest > config.max_length:
        raise RecipeError(
            f"data.sequence_lengths has {longest}, but the model has positions for {config.max_length} "
            "tokens. Shorten it, or raise model.max_position_embeddings."
        )
    if recipe.data.batch_size < ranks.count:
        raise RecipeError(
            f"data.batch_size = {recipe.data.batch_size} leaves some of the {ranks.count} ranks without a "
            "sequence. Raise it, or start fewer ranks."
        )


def _check_text(recipe: Recipe, train: TokenStore) -> None:
    """Raises when the corpus has nothing to train on."""
    if len(train) == 0:
        raise CorpusError(f"{train.path} holds no document. Build the corpus with a smaller held-out share.")
    if recipe.data.next_sentence:
        require_documents(train)


def apply_dropout(model: PretrainingModel, config: BertConfig) -> None:
    """Sets a loaded model's dropout rates to the recipe's."""
    model.encoder.embeddings.dropout.probability = config.hidden_dropout_prob
    for layer in model.encoder.layers:
        layer.dropout.probability = config.hidden_dropout_prob  # type: ignore[union-attr]
        layer.attention.dropout.probability = config.attention_probs_dropout_prob  # type: ignore[union-attr]


def _task(recipe: Recipe, inputs: Inputs, machine: Machine) -> PretrainingTask:
    data = recipe.data

    def stream(store: TokenStore, length: int, batch_tokens: int, seed: int) -> PretrainingStream:
        return PretrainingStream(
            store, inputs.tokenizer, seed, data.next_sentence, length, batch_tokens, data.short_probability
        )

    streams = [
        stream(inputs.train, length, data.batch_size * length, recipe.seed)
        for length in data.sequence_lengths
    ]
    first_length = data.sequence_lengths[0]
    heldout = _usable_heldout(inputs.heldout, data.next_sentence)
    held = None if heldout is None else stream(heldout, first_length, 16 * first_length, 0)
    rates = MaskingRates(**recipe.masking.model_dump())
    masker = Masker(inputs.tokenizer, rates, machine.device)
    return PretrainingTask(inputs.model, streams, masker, held, recipe.evaluation.tokens, machine.device)


def _usable_heldout(store: TokenStore | None, next_sentence: bool) -> TokenStore | None:
    """A held-out split too small for pairs is no use."""
    return store if store is not None and len(store) >= (2 if next_sentence else 1) else None


def _provenance(recipe: Recipe, inputs: Inputs, step: int, metrics: dict[str, float]) -> dict[str, object]:
    return {
        "steps": step,
        "metrics": metrics,
        "recipe": json.loads(recipe.model_dump_json()),
        "tokenizer_sha256": inputs.tokenizer.sha256,
        "corpus_sha256": inputs.train.corpus_sha256,
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
