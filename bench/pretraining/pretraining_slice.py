"""A slice of a side's time in pretraining_quality.py: it trains, and is measured as all are.

Imported by the script's workers. A slice goes on from what the side's folder holds: ours from its checkpoint,
after the Ctrl-C that ended the slice before; a plain loop from its state.
"""

import contextlib
import json
import signal
import threading
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pretraining_sides import LENGTH, Plain

_POLL = 0.1  # seconds
_TAIL = 8192  # bytes of a log


@dataclass(frozen=True)
class Point:
    """After `seconds` of training: real tokens seen, and what the held-out text says."""

    seconds: float
    tokens: int
    accuracy: float
    perplexity: float
    most_frequent: float
    finished: bool


def train_and_measure(request: dict[str, Any]) -> dict[str, Any]:
    """A worker's work: the side trains until a second of its clock, and is measured."""
    from bertsmith.text.tokens.tokenizer import Tokenizer

    tokenizer = Tokenizer.load(Path(request["tokenizer"]))
    train = _train_plain if request["plain"] else _train_ours
    model, seconds, tokens, finished = train(request, tokenizer)
    found = measure(model, tokenizer, Path(request["measured"]), request["measured_tokens"])
    scores = (found["mlm_accuracy"], found["mlm_perplexity"], found["mlm_majority"])
    return asdict(Point(seconds, tokens, *scores, finished))


def measure(model: Any, tokenizer: Any, split: Path, most_tokens: int) -> dict[str, float]:
    """The same texts and masks for every model: 15 %, and of those 80 % [MASK], 10 % random, 10 % kept."""
    import torch

    from bertsmith.data.masking import Masker, MaskingRates
    from bertsmith.data.store import TokenStore
    from bertsmith.data.stream import PretrainingStream
    from bertsmith.tasks.pretraining.pretraining import PretrainingTask

    store = TokenStore.open(split, tokenizer)
    stream = PretrainingStream(store, tokenizer, 0, False, LENGTH, 16 * LENGTH)
    masker = Masker(tokenizer, MaskingRates())
    task = PretrainingTask(model, [stream], masker, stream, most_tokens, torch.device("cpu"))
    return task.metrics(task.sum_heldout(0, 1))


# -- ours --------------------------------------------------------------------------------------------------


def _train_ours(request: dict[str, Any], tokenizer: Any) -> tuple[Any, float, int, bool]:
    from bertsmith.tasks.pretraining.pretraining_checkpoint import load_pretraining_model
    from bertsmith.training.log import RunLog
    from bertsmith.training.pretrain import pretrain

    run = Path(request["folder"]) / "run"
    if not (run / "model").exists():
        with interrupted_at(run, request["until"]):
            pretrain("budget", *request["ours"], f"out={run}", resume=(run / "recipe.toml").exists())
    if not (run / "model").exists():
        return *_checkpoint(run, tokenizer), False
    model, _ = load_pretraining_model(run / "model", next_sentence=False)
    last = [record for record in RunLog.read(run) if record["kind"] == "step"][-1]
    return model, last["elapsed"], last["tokens"], True


@contextlib.contextmanager
def interrupted_at(run: Path, until: float) -> Iterator[None]:
    """Ctrl-C for what is within the block once the run's own clock, by its log, is at `until`."""
    over = threading.Event()
    watch = threading.Thread(target=_watch, args=(run / "log.jsonl", until, over), daemon=True)
    watch.start()
    try:
        with contextlib.suppress(KeyboardInterrupt):
            yield
    finally:
        over.set()
        watch.join()


def _watch(log: Path, until: float, over: threading.Event) -> None:
    """What an earlier process has written doesn't count: its last lines may be taken back."""
    earlier = log.stat().st_mtime_ns if log.exists() else None
    while not over.wait(_POLL):
        if log.exists() and log.stat().st_mtime_ns != earlier and _last_elapsed(log) >= until:
            signal.raise_signal(signal.SIGINT)
            return


def _last_elapsed(log: Path) -> float:
    """By the last whole line that has it; a long run's log is not read whole ten times a second."""
    with log.open("rb") as file:
        file.seek(max(log.stat().st_size - _TAIL, 0))
        lines = file.read().split(b"\n")[1:-1]
    for line in reversed(lines):
        elapsed = json.loads(line).get("elapsed")
        if elapsed is not None:
            return float(elapsed)
    return 0.0


def _checkpoint(run: Path, tokenizer: Any) -> tuple[Any, float, int]:
    """The model of the newest checkpoint, its second, its tokens."""
    from bertsmith.model.locate import locate_model
    from bertsmith.tasks.pretraining.pretraining import PretrainingModel
    from bertsmith.tasks.pretraining.pretraining_checkpoint import load_pretraining_model
    from bertsmith.training.checkpoint import load_training_state
    from bertsmith.training.recipe import read_recipe

    recipe = read_recipe(str(run / "recipe.toml"), [])
    if recipe.init:
        init = locate_model(recipe.init).folder
        model, _ = load_pretraining_model(init, next_sentence=False, allow_new_heads=True)
    else:
        shape = recipe.model.config(tokenizer.vocab_size, tokenizer.pad_id)
        model = PretrainingModel(shape, next_sentence=False)
    state, _ = load_training_state(run / "checkpoints")
    assert state is not None, "a run that was interrupted has a checkpoint"
    wanted = model.state_dict().keys()
    model.load_state_dict({name: state.weights[name] for name in wanted})
    return model.eval(), state.progress.elapsed, state.progress.tokens


# -- the plain loops -----------------------------------------------------------------------------------------


def _train_plain(request: dict[str, Any], tokenizer: Any) -> tuple[Any, float, int, bool]:
    from bertsmith.tasks.pretraining.pretraining_checkpoint import load_pretraining_model
    from plain_loop import PlainLoop

    folder, settings = Path(request["folder"]), Plain(**request["plain"])
    store = Path(request["store"]) / "train"
    loop = PlainLoop(folder, settings, request["shape"], request["seconds"], store, tokenizer)
    if loop.elapsed < request["until"] and not loop.finished:
        loop.train(request["until"])
    loop.model.save_pretrained(folder / "model")
    model, _ = load_pretraining_model(folder / "model", next_sentence=False)
    return model, loop.elapsed, loop.tokens, loop.finished
