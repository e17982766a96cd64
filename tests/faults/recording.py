"""What each rank was given at every step, the gradients of the first step, and what it held, as files."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.torch import save_file
from torch import Tensor

from bertsmith.data.batch import PackedBatch, Sequences
from bertsmith.tasks.pretraining.pretraining import PretrainingTask
from bertsmith.training.gradients import Gradients
from bertsmith.training.loop import Loop
from bertsmith.training.sharding import gather_tensors, own_rows

Step = dict[str, Any]


@dataclass(frozen=True)
class Recording:
    """Of one rank. Each step: `batch`, the keys of the global batch in order; `given`, what this rank
    computed on: for every sequence its key, and its token ids and labels after masking.
    """

    path: Path

    def install(self) -> None:
        given: list[tuple[int, list[list[int]]]] = []
        loss, compute = PretrainingTask.loss, Gradients.compute

        def recorded_loss(task: PretrainingTask, sequences: Sequences) -> Any:
            given.extend(masked(task, sequences))
            return loss(task, sequences)

        def recorded_step(step: Gradients, sequences: Sequences, *arguments: Any, **named: Any) -> Any:
            given.clear()
            result = compute(step, sequences, *arguments, **named)
            self._write({"batch": sequences.keys.tolist(), "given": given})
            first = self.path.with_suffix(".gradients")
            if not first.exists():
                gradients = {name: p.grad for name, p in step.task.model.named_parameters()}
                save_file(gather_tensors(gradients), first)
            return result

        PretrainingTask.loss, Gradients.compute = recorded_loss, recorded_step

    def steps(self) -> list[Step]:
        return [json.loads(line) for line in self.path.read_text().splitlines()]

    def _write(self, step: Step) -> None:
        with self.path.open("a") as file:
            file.write(json.dumps(step) + "\n")


@dataclass(frozen=True)
class Holdings:
    """Bytes that one rank holds when a checkpoint is due, in a file: of weights, and of AdamW's moments."""

    path: Path

    def install(self) -> None:
        save = Loop.save

        def measured(loop: Loop) -> None:
            weights = dict(loop.task.model.named_parameters())
            moments = {
                f"{number}.{name}": value
                for number, state in enumerate(loop.optimizer.state.values())
                for name, value in state.items()
            }
            self.path.write_text(json.dumps({"weights": held(weights), "moments": held(moments)}))
            save(loop)

        Loop.save = measured

    def bytes(self) -> dict[str, int]:
        found: dict[str, int] = json.loads(self.path.read_text())
        return found


def held(tensors: dict[str, Tensor]) -> int:
    """Of the memory behind the tensors, padding included."""
    return sum(tensor.untyped_storage().nbytes() for tensor in own_rows(tensors).values())


def masked(task: PretrainingTask, sequences: Sequences) -> list[tuple[int, list[list[int]]]]:
    """Key, token ids and labels of each sequence; a token that isn't predicted has the label -1."""
    batch = PackedBatch.of(sequences)
    draw = task.masker.draw(sequences, batch)
    labels = np.full(len(batch.token_ids), -1)
    labels[draw.positions.numpy()] = draw.labels.numpy()
    ends = np.cumsum(sequences.lengths)
    spans = [slice(end - length, end) for end, length in zip(ends, sequences.lengths, strict=True)]
    return [
        (int(key), [draw.token_ids[span].tolist(), labels[span].tolist()])
        for key, span in zip(sequences.keys, spans, strict=True)
    ]
