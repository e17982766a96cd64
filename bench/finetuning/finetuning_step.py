"""Fine-tuning steps at SST-2's and CoNLL-2003's lengths beside transformers' Trainer: real tokens per second.
Last answer (2026-11-24, Zen 4, each side's default): 5.1 times on SST-2, 4.4 on CoNLL-2003.

    python bench/finetuning/finetuning_step.py [--rounds 5] [--steps 60] [--data sst2 conll]

Both sides train the MiniLM weights on the same sentences in batches of 32, in turn: a class for each of
SST-2's sentences, a tag for each word of CoNLL-2003's; ours by the real loop, and the Trainer as it comes,
which pads to the longest of a batch. Products are in float32 and, where the processor computes in it, in
bfloat16 by autocast, the same on both sides, and as each side has them by default: ours as
`hardware.precision = auto` says, the Trainer's in float32. The target: 2.5 times its speed.
"""

import argparse
import itertools
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(1, str(Path(__file__).parents[1]))  # harness.py, and what else all folders share

from harness import Worker, described, interleave, precisions, ratio, report, serve, spread
from labelled import DATA_SETS, MODEL, find, quiet

_BATCH = 32
_DEFAULT = "default"
_NAMES = {"sst2": "SST-2, classes", "conll": "CoNLL-2003, tags"}
_SETTINGS = {
    "epochs": 1,
    "batch_size": _BATCH,
    "optimizer.learning_rate": 5e-5,
    "optimizer.weight_decay": 0.01,
    "optimizer.warmup": 0.1,
}


def main() -> None:
    """Parses, and is either the parent or a worker."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--data", nargs="+", choices=tuple(_NAMES), default=list(_NAMES))
    parser.add_argument("--precisions", nargs="+", choices=("float32", "bfloat16", _DEFAULT), default=())
    parser.add_argument("--quick", action="store_true", help="one round of a step; nothing is written")
    parser.add_argument("--worker", choices=("ours", "transformers"))
    options = parser.parse_args()
    if options.worker:
        (name,) = options.data
        serve(quiet({"ours": _Ours, "transformers": _Transformers}[options.worker](name)))
    elif options.quick:
        compare(1, 1, options.data, write=False)
    else:
        compare(options.rounds, options.steps, options.data, options.precisions)


def compare(
    rounds: int,
    steps: int,
    data: Sequence[str] = tuple(_NAMES),
    asked: Sequence[str] = (),
    *,
    write: bool = True,
) -> None:
    """Times both sides and reports."""
    for name in data:
        find(DATA_SETS[name].train)
    rows = [_row(name, precision, rounds, steps) for name in data for precision in asked or precisions()]
    notes = [
        f"{rounds} rounds of {steps} steps on each side in turn, the same sentences on both, after a round "
        "that is not counted; medians. MiniLM weights, dropout as in the checkpoint, gradients clipped at 1."
    ]
    title = "Steps of fine-tuning beside transformers' Trainer"
    report("finetuning-step", title, rows, notes, write=write)


def _row(name: str, precision: str, rounds: int, steps: int) -> dict[str, Any]:
    sides = {side: Worker(__file__, side, "--data", name) for side in ("ours", "transformers")}
    answers = interleave(sides, rounds, steps=steps, precision=precision)
    for worker in sides.values():
        worker.close()
    speed = {side: [a["tokens"] / a["seconds"] for a in given] for side, given in answers.items()}
    return {
        "data": f"{_NAMES[name]}, batches of {_BATCH}",
        "precision": described(precision),
        "ours, real tokens/s": f"{statistics.median(speed['ours']):,.0f}",
        "transformers, real tokens/s": f"{statistics.median(speed['transformers']):,.0f}",
        "ratio": spread(ratio(speed["ours"], speed["transformers"])),
        "ours, ms a step": f"{_milliseconds(answers['ours'], steps):.0f}",
        "transformers, ms a step": f"{_milliseconds(answers['transformers'], steps):.0f}",
    }


def _milliseconds(answers: list[dict[str, Any]], steps: int) -> float:
    return statistics.median(answer["seconds"] for answer in answers) / steps * 1000


class _Sentences:
    """A data set's training sentences, the next ones for every request."""

    def __init__(self, name: str) -> None:
        from bertsmith.tasks.registry import find_task

        data = DATA_SETS[name]
        kind = find_task(data.task)
        self.task = kind(kind.Settings(**data.columns))
        self.examples = self.task.read(find(data.train))
        self.task.fit(self.examples)
        self.place = 0

    def take(self, steps: int) -> list[Any]:
        """Sentences for so many batches."""
        chosen = self.examples[self.place :][: steps * _BATCH]
        self.place += len(chosen)
        if len(chosen) < steps * _BATCH:
            raise SystemExit(f"There are {len(self.examples):,} sentences: too few for so many steps.")
        return chosen


class _Ours(_Sentences):
    """The real loop, one `advance` a step."""

    def __init__(self, name: str) -> None:
        from bertsmith.machine import Hardware
        from bertsmith.model.cpu.process import keep_freed_memory
        from bertsmith.model.locate import locate_model
        from bertsmith.tasks.checkpoints.task_checkpoint import begin_task_model
        from bertsmith.text.tokens.tokenizer import Tokenizer
        from bertsmith.training.machine import set_up_machine
        from bertsmith.training.settings import HardwareSettings

        super().__init__(name)
        keep_freed_memory()
        folder = locate_model(MODEL).folder
        self.tokenizer = Tokenizer.load(folder)
        self.machine = set_up_machine(HardwareSettings(), None, Hardware.detect())
        self.usual = self.machine.precision
        self.model = begin_task_model(folder, self.task).model.to(self.machine.device).train()

    def __call__(self, request: dict[str, Any]) -> dict[str, Any]:
        import torch

        from bertsmith.tasks.finetuning import FinetuningObjective, encode_examples

        steps = request["steps"]
        asked = request["precision"]
        self.machine.precision = self.usual if asked == _DEFAULT else getattr(torch, asked)
        split = encode_examples(self.task, self.take(steps), self.tokenizer)
        objective = FinetuningObjective(self.task, self.model, split, None, _BATCH, 0, self.machine.device)
        loop, tokens = self._loop(objective), 0
        started = time.perf_counter()
        for batch in itertools.islice(objective.batches(loop.progress.cursor), steps):
            loop.advance(batch)
            tokens += int(batch.sequences.lengths.sum())
        return {"seconds": time.perf_counter() - started, "tokens": tokens}

    def _loop(self, objective: Any) -> Any:
        from bertsmith.training.finetune_recipe import FinetuneRun
        from bertsmith.training.loop import Loop

        never = {"every": 1_000_000}
        recipe = FinetuneRun(steps=1_000_000, evaluation=never, checkpoint=never)
        return Loop(objective, recipe, self.machine, None, _Silent())


class _Silent:
    def record(self, kind: str, step: int, **values: Any) -> None:
        """Nothing."""

    def rewind(self, step: int) -> None:
        """Nothing."""


class _Transformers(_Sentences):
    """An epoch of the Trainer, its start and end left out."""

    def __init__(self, name: str) -> None:
        from trainer import load_model, load_tokenizer
        from trainer_tasks import USUAL

        super().__init__(name)
        self.usual = USUAL[self.task.name](load_tokenizer(), list(self.task.labels), 128)
        self.model = load_model(self.task.name, self.task.labels, 0)

    def __call__(self, request: dict[str, Any]) -> dict[str, Any]:
        from trainer import fit

        rows = self.usual.encode(self.take(request["steps"]))
        precision = "float32" if request["precision"] == _DEFAULT else request["precision"]
        return fit(self.model, self.usual.collate, rows, _SETTINGS, 0, precision=precision)


if __name__ == "__main__":
    main()
