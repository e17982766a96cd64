"""Tensors of several processes in as many files, to be read by any other number of processes.

Every process holds neighbouring rows of each tensor, the first process the first ones, and writes a file of
them. The rows of a whole tensor are therefore those of all files in their order, and a process that reads
takes its own rows from the files that have them. A tensor without dimensions is in every file.

R rows of a whole tensor.
"""

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor


@dataclass(frozen=True)
class Shard:
    """What one process of several holds: part `number` (from 0) of `count`.

    `gather` gives the texts that all of them say, in their order, and so waits for all of them.
    """

    number: int = 0
    count: int = 1
    gather: Callable[[str], list[str]] = lambda text: [text]

    def rows(self, length: int) -> slice:
        """Which of `length` rows, divided as torch.chunk and FSDP do: the last parts are shorter or empty."""
        share = -(-length // self.count)
        return slice(min(self.number * share, length), min((self.number + 1) * share, length))


WHOLE = Shard()


def part_names(kind: str, count: int) -> list[str]:
    """The files of `count` parts, numbered as Hugging Face numbers those of large models."""
    if count == 1:
        return [f"{kind}.safetensors"]
    return [f"{kind}-{number:05d}-of-{count:05d}.safetensors" for number in range(1, count + 1)]


def read_part(paths: Sequence[Path], part: Shard) -> dict[str, Tensor]:
    """The rows of `part` of each tensor in the files `paths`, all parts of the process that wrote them."""
    with contextlib.ExitStack() as stack:
        files = [stack.enter_context(safe_open(path, framework="pt")) for path in paths]
        names = files[0].keys()
        return {name: _rows([file.get_slice(name) for file in files], part) for name in names}


def _rows(pieces: Sequence[Any], part: Shard) -> Tensor:
    """(R, …) in pieces -> the part's (r, …)."""
    if not pieces[0].get_shape():
        scalar: Tensor = pieces[0][...]
        return scalar
    lengths = [piece.get_shape()[0] for piece in pieces]
    wanted = part.rows(sum(lengths))
    found, start = [], 0
    for piece, length in zip(pieces, lengths, strict=True):
        first, end = max(wanted.start - start, 0), min(wanted.stop - start, length)
        if first < end:
            found.append(piece[first:end])
        start += length
    return torch.cat(found) if found else pieces[0][:0]
