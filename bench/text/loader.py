"""The loader beside the model that it feeds: tokens per second, and how many times what a step consumes.
Last answer (2026-11-23, Zen 4): 11.7 M tokens/s, 2,507 times what BERT-mini consumes.

    python bench/text/loader.py [--rounds 5] [--sizes tiny mini] [--json]

The text is --store with its --tokenizer, or what corpora.py finds. The loader shuffles, makes pairs (or full
segments, for a model without next-sentence prediction), truncates them and packs batches of 32 x 128
tokens. The model trains on such batches: masks, forward, backward, clipping, AdamW. Both work in one thread
and are timed by their processor time, so that other programs on the machine don't count; the model is taken
to consume what all cores together would, if they scaled perfectly.
"""

import argparse
import itertools
import json
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(1, str(Path(__file__).parents[1]))  # harness.py, and what else all folders share

import corpora
from harness import Worker, environment, interleave, ratio, report, serve

PAIRS, LENGTH = 32, 128
KINDS = {"pairs": True, "full segments": False}  # with next-sentence prediction or without


def main() -> None:
    """Parses, and is either the parent or a worker."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    corpora.add_options(parser)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0, help="processor time of each side in a round")
    parser.add_argument("--sizes", nargs="+", default=["tiny", "mini"])
    parser.add_argument("--json", action="store_true", help="print JSON and write nothing")
    parser.add_argument("--worker", choices=("loader", "model"))
    options = parser.parse_args()
    if options.worker:
        serve({"loader": Loader, "model": Model}[options.worker](options))
        return
    store, tokenizer = corpora.find(options)
    files = ("--store", store, "--tokenizer", tokenizer)
    sides = {name: Worker(__file__, name, *files) for name in ("loader", "model")}
    rows = [compare(sides, size, kind, options) for size, kind in itertools.product(options.sizes, KINDS)]
    for worker in sides.values():
        worker.close()
    if options.json:
        print(json.dumps({"environment": environment(), "rows": rows}, indent=1))
        return
    report("loader", "The loader beside the model", rows, [" ".join(__doc__.split("\n\n")[2].split())])


def compare(sides: dict[str, Worker], size: str, kind: str, options: argparse.Namespace) -> dict[str, Any]:
    """One row of the table."""
    answers = interleave(sides, options.rounds, size=size, kind=kind, seconds=options.seconds)
    speed = {name: [a["tokens"] / a["seconds"] for a in given] for name, given in answers.items()}
    cores = len(os.sched_getaffinity(0))
    times = ratio(speed["loader"], [cores * each for each in speed["model"]])
    return {
        "model": f"BERT-{size}",
        "sequences": kind,
        "loader on one core, tokens/s": f"{statistics.median(speed['loader']):,.0f}",
        f"model on {cores} cores, tokens/s": f"{cores * statistics.median(speed['model']):,.0f}",
        "loader / model": f"{times['median']:.0f} ({times['lowest']:.0f} – {times['highest']:.0f})",
    }


def open_stream(options: argparse.Namespace, kind: str) -> Any:
    """The loader as training opens it."""
    from bertsmith.data.store import TokenStore
    from bertsmith.data.stream import PretrainingStream
    from bertsmith.text.tokens.tokenizer import Tokenizer

    tokenizer = Tokenizer.load(Path(options.tokenizer))
    store = TokenStore.open(Path(options.store) / "train", tokenizer)
    return PretrainingStream(store, tokenizer, 0, KINDS[kind], LENGTH, PAIRS * LENGTH)


def timed(work: Any, seconds: float) -> dict[str, float]:
    """Calls `work`, which returns tokens, until the processor time is over."""
    tokens, started = 0, time.process_time()
    while time.process_time() - started < seconds:
        tokens += work()
    return {"tokens": tokens, "seconds": time.process_time() - started}


class Loader:
    """Makes batches and throws them away; the stream goes on from round to round, over blocks and epochs."""

    def __init__(self, options: argparse.Namespace) -> None:
        from bertsmith.data.stream import Cursor

        self.batches = {kind: open_stream(options, kind).batches(Cursor()) for kind in KINDS}

    def __call__(self, request: dict[str, Any]) -> dict[str, float]:
        batches = self.batches[request["kind"]]
        return timed(lambda: int(next(batches).sequences.lengths.sum()), request["seconds"])


class Model:
    """Trains on batches made beforehand: nothing of the loader is in its time."""

    def __init__(self, options: argparse.Namespace) -> None:
        import torch

        from bertsmith.model.cpu.process import keep_freed_memory

        keep_freed_memory()
        torch.set_num_threads(1)
        self.options, self.trained = options, {}

    def __call__(self, request: dict[str, Any]) -> dict[str, float]:
        key = request["size"], request["kind"]
        step = self.trained.get(key) or self.trained.setdefault(key, self._training(*key))
        return timed(step, request["seconds"])

    def _training(self, size: str, kind: str) -> Any:
        import torch

        from bertsmith.data.batch import split
        from bertsmith.data.masking import Masker, MaskingRates
        from bertsmith.data.stream import Cursor
        from bertsmith.model.config import preset
        from bertsmith.tasks.pretraining.pretraining import PretrainingModel, PretrainingTask
        from bertsmith.training.optimizer import make_optimizer
        from bertsmith.training.settings import OptimizerSettings

        stream = open_stream(self.options, kind)
        config = preset(size, vocab_size=stream.tokenizer.vocab_size)
        model = PretrainingModel(config, KINDS[kind]).train()
        masker, device = Masker(stream.tokenizer, MaskingRates()), torch.device("cpu")
        task = PretrainingTask(model, [stream], masker, None, 0, device)
        optimizer = make_optimizer(model, OptimizerSettings())
        made = itertools.cycle(list(itertools.islice(stream.batches(Cursor()), 20)))

        def step() -> int:
            sequences = next(made).sequences
            counts = task.counts(sequences)
            for part in split(sequences, 1, 2048)[0]:
                torch.stack([loss / counts[name] for name, loss in task.loss(part).items()]).sum().backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=False)
            return int(sequences.lengths.sum())

        return step


if __name__ == "__main__":
    main()
