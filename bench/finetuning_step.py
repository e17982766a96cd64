"""Fine-tuning steps on SST-2's sentences beside transformers' Trainer: real tokens per second.

    python bench/finetuning_step.py [--rounds 5] [--steps 60]

Both sides train the MiniLM weights on the same sentences in batches of 32, in turn: ours by the real loop,
and the Trainer as it comes, which pads to the longest of a batch.
"""

import argparse
import itertools
import statistics
import time
from typing import Any

from harness import Worker, interleave, ratio, report, serve
from labelled import DATA_SETS, MODEL, find, quiet

_BATCH = 32
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
    parser.add_argument("--worker", choices=("ours", "transformers"))
    options = parser.parse_args()
    if options.worker:
        serve(quiet({"ours": _Ours, "transformers": _Transformers}[options.worker]()))
    else:
        compare(options.rounds, options.steps)


def compare(rounds: int, steps: int) -> None:
    """Times both sides and reports."""
    find(DATA_SETS["sst2"].train)
    sides = {name: Worker(__file__, name) for name in ("ours", "transformers")}
    answers = interleave(sides, rounds, steps=steps)
    speed = {side: [a["tokens"] / a["seconds"] for a in given] for side, given in answers.items()}
    faster = ratio(speed["ours"], speed["transformers"])
    row = {
        "data": f"SST-2, batches of {_BATCH}",
        "ours, real tokens/s": f"{statistics.median(speed['ours']):,.0f}",
        "transformers, real tokens/s": f"{statistics.median(speed['transformers']):,.0f}",
        "ratio": f"{faster['median']:.2f} ({faster['lowest']:.2f} – {faster['highest']:.2f})",
        "ours, ms a step": f"{_milliseconds(answers['ours'], steps):.0f}",
        "transformers, ms a step": f"{_milliseconds(answers['transformers'], steps):.0f}",
    }
    notes = [
        f"{rounds} rounds of {steps} steps on each side in turn, the same sentences on both, after a round "
        "that is not counted; medians. MiniLM weights, dropout as in the checkpoint, gradients clipped at 1."
    ]
    command = f"python bench/finetuning_step.py --rounds {rounds} --steps {steps}"
    report("finetuning-step", "Steps of fine-tuning beside transformers' Trainer", command, [row], notes)


def _milliseconds(answers: list[dict[str, Any]], steps: int) -> float:
    return statistics.median(answer["seconds"] for answer in answers) / steps * 1000


class _Sentences:
    """SST-2's training sentences, the next ones for every request."""

    def __init__(self) -> None:
        from bertsmith.tasks.classification import Task

        data = DATA_SETS["sst2"]
        self.task = Task(Task.Settings(**data.columns))
        self.examples = self.task.read(find(data.train))
        self.task.learn_labels(self.examples)
        self.place = 0

    def take(self, steps: int) -> list[Any]:
        """Sentences for so many batches."""
        chosen = self.examples[self.place :][: steps * _BATCH]
        self.place += len(chosen)
        if len(chosen) < steps * _BATCH:
            raise SystemExit(f"SST-2 has {len(self.examples):,} sentences: too few for so many steps.")
        return chosen


class _Ours(_Sentences):
    """The real loop, one `advance` a step."""

    def __init__(self) -> None:
        from bertsmith.model.locate import locate_model
        from bertsmith.tasks.task_checkpoint import begin_task_model
        from bertsmith.text.tokenizer import Tokenizer
        from bertsmith.training.allocator import keep_memory
        from bertsmith.training.hardware import Hardware
        from bertsmith.training.machine import set_up_machine
        from bertsmith.training.settings import HardwareSettings

        super().__init__()
        keep_memory()
        folder = locate_model(MODEL).folder
        self.tokenizer = Tokenizer.load(folder)
        self.machine = set_up_machine(HardwareSettings(), None, Hardware.detect())
        self.model = begin_task_model(folder, self.task).model.to(self.machine.device).train()

    def __call__(self, request: dict[str, Any]) -> dict[str, Any]:
        from bertsmith.tasks.finetuning import Finetuning, encode_examples

        steps = request["steps"]
        split = encode_examples(self.task, self.take(steps), self.tokenizer)
        objective = Finetuning(self.task, self.model, split, None, _BATCH, 0, self.machine.device)
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

    def __init__(self) -> None:
        from trainer import load_model, load_tokenizer
        from trainer_tasks import Classes

        super().__init__()
        self.usual = Classes(load_tokenizer(), list(self.task.labels), 128)
        self.model = load_model("classification", self.task.labels, 0)

    def __call__(self, request: dict[str, Any]) -> dict[str, Any]:
        from trainer import fit

        rows = self.usual.encode(self.take(request["steps"]))
        return fit(self.model, self.usual.collate, rows, _SETTINGS, 0)


if __name__ == "__main__":
    main()
