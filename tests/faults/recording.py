"""What each rank was given at every step, and the gradients of the first step, as files."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.torch import save_file

from bertsmith.data.batch import PackedBatch, Sequences
from bertsmith.tasks.pretraining import PretrainingTask
from bertsmith.training.gradients import Gradients

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
                save_file({name: p.grad for name, p in step.task.model.named_parameters()}, first)
            return result

        PretrainingTask.loss, Gradients.compute = recorded_loss, recorded_step

    def steps(self) -> list[Step]:
        return [json.loads(line) for line in self.path.read_text().splitlines()]

    def _write(self, step: Step) -> None:
        with self.path.open("a") as file:
            file.write(json.dumps(step) + "\n")


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
