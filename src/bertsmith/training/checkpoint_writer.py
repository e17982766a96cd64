"""Checkpoints written beside the training, which waits for a copy in memory and not for the disk.

One is written at a time, and memory holds one copy: as much again as weights and moments. A run that
ends, however it ends, waits for the one that is being written.
"""

from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Self

import torch
from torch import Tensor

from bertsmith.training.checkpoint import TrainingState, save_training_state
from bertsmith.training.checkpoint_shards import Shard
from bertsmith.training.tensor_file import room_for


class CheckpointWriter:
    """Writes one process's `part` of each state it is given, and keeps the newest `keep`."""

    def __init__(self, keep: int, part: Shard) -> None:
        self.keep, self.part = keep, part
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._writing: Future[Path] | None = None
        self._weights: dict[str, Tensor] = {}  # the copies' memory, kept: the system gives new memory slowly
        self._optimizer: dict[str, Tensor] = {}

    def write(self, folder: Path, state: TrainingState) -> None:
        """Copies the state, which may change from then on, and begins to write it under `folder`.

        Waits for the one before, and raises what that one failed with.
        """
        self.finish()
        self._weights = _copied(state.weights, self._weights)
        self._optimizer = _copied(state.optimizer, self._optimizer)
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()
        copy = TrainingState(state.progress, self._weights, self._optimizer)
        self._writing = self._thread.submit(save_training_state, folder, copy, self.keep, self.part)

    def check(self) -> None:
        """Raises what the writing has failed with, as soon as that is known.

        Processes that write together would know it in different steps: they hear of it in `finish`.
        """
        if self._writing is not None and self._writing.done() and self.part.count == 1:
            self.finish()

    def finish(self) -> None:
        """Waits until what was given stands. Raises ResourceError when the disk is full."""
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._thread.shutdown()


def _copied(tensors: dict[str, Tensor], room: dict[str, Tensor]) -> dict[str, Tensor]:
    """Into this memory, or into new memory where it is another state's."""
    if room.keys() != tensors.keys():
        room = room_for(tensors)
    for name, tensor in tensors.items():
        room[name].copy_(tensor.detach(), non_blocking=tensor.is_cuda)
    return room
