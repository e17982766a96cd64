"""Places in a fine-tuning run where a process sends itself a signal."""

import os
from collections.abc import Callable
from pathlib import Path

import torch
from places import PLACES, Fault, Strike, _after, _before
from torch import Tensor

from bertsmith.tasks.finetuning import FinetuningObjective
from bertsmith.training.finetuning import finetune, measuring
from bertsmith.training.finetuning import task_run as best


class FinetuneFault(Fault):
    """A signal at the `time`-th arrival of a process at a place of `FINETUNE_PLACES`."""

    @property
    def places(self) -> dict[str, Callable[[Strike], None]]:
        return FINETUNE_PLACES


def _half_of_the_best_weights(strike: Strike) -> None:
    original = best.save_file

    def save_file(tensors: dict[str, Tensor], path: Path) -> None:
        original(tensors, path)
        os.truncate(path, path.stat().st_size // 2)
        strike()
        original(tensors, path)

    best.save_file = save_file


FINETUNE_PLACES: dict[str, Callable[[Strike], None]] = {
    "before a micro-batch": _before(FinetuningObjective, "loss"),
    "after the weights changed": _after(torch.optim.AdamW, "step"),
    "during evaluation": _before(FinetuningObjective, "evaluate"),
    "before an evaluation counts": _before(best.BestWeights, "consider"),
    "after an evaluation counts": _after(best.BestWeights, "consider"),
    "in the middle of the best weights": _half_of_the_best_weights,
    "between the best weights and their history": _before(best.BestWeights, "_write_history"),
    "in the middle of a log line": PLACES["in the middle of a log line"],
    "in the middle of a checkpoint": PLACES["in the middle of a tensor file"],
    "in the middle of removing a checkpoint": PLACES["in the middle of removing a checkpoint"],
    "before a folder gets its name": _before(Path, "rename"),
    "before a file gets its name": _before(Path, "replace"),
    "before a restart is noted as finished": _before(finetune.Restart, "write"),
    "between two restarts": _before(finetune, "keep_best_only"),
    "before the model is saved": _before(measuring, "save_task_model"),
    "after the model was saved": _after(measuring, "save_task_model"),
    "before the results are written": _before(finetune, "write_results"),
    "while files are forced to disk": PLACES["while files are forced to disk"],
}
