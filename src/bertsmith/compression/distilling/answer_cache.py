"""A teacher's outputs, computed once and kept: a killed run goes on, and other students learn from the same.

FOLDER/<key>/00000.safetensors   the outputs to some examples, whole or absent
The key is a hash of the teacher and of the sequences that it is to read, in their order.
"""

import hashlib
from collections.abc import Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError
from safetensors.numpy import load, save

from bertsmith.arrays import Ints
from bertsmith.compression.distilling.teacher import Teacher
from bertsmith.files import atomic_write, make_folder
from bertsmith.progress import Progress
from bertsmith.tasks.examples.encoding import Encoded
from bertsmith.tasks.task import Outputs

_SHARD_TOKENS = 1 << 17  # some seconds of a small teacher on two cores
_LONGEST_KEY = 16


def cached_outputs(
    teacher: Teacher, encoded: Sequence[Encoded], folder: Path, progress: Progress | None = None
) -> list[Outputs]:
    """The teacher's outputs of each example, from `folder` where it has them. A damaged shard is computed
    again.
    """
    own = folder / key_of(teacher, encoded)
    make_folder(own)
    found: list[Outputs] = []
    for number, (start, end) in enumerate(_shards(encoded)):
        path = own / f"{number:05d}.safetensors"
        outputs = _read(path, end - start)
        if outputs is None:
            outputs = teacher.outputs(encoded[start:end])
            atomic_write(path, _as_bytes(outputs))
        found += outputs
        if progress is not None:
            progress(end, len(encoded), "texts")
    return found


def key_of(teacher: Teacher, encoded: Sequence[Encoded]) -> str:
    """Names what was read by whom: all of it that decides an answer."""
    digest = hashlib.sha256(teacher.sha256.encode())
    for each in encoded:
        digest.update(len(each.windows).to_bytes(4, "little"))
        for window in each.windows:
            for array in (window.token_ids, window.segment_ids, window.rows):
                _add(digest, array, np.int32)
            digest.update(window.text.to_bytes(4, "little"))
            if window.values is not None:  # patches, whose ids are all alike
                _add(digest, window.values, np.float32)
        if each.columns is not None:
            _add(digest, each.columns, np.float32)
    return digest.hexdigest()[:_LONGEST_KEY]


def _add(digest: "hashlib._Hash", array: npt.NDArray[Any], kind: type[np.generic]) -> None:
    digest.update(array.size.to_bytes(4, "little"))
    digest.update(np.ascontiguousarray(array, kind).tobytes())


def _shards(encoded: Sequence[Encoded]) -> Iterator[tuple[int, int]]:
    """Where each begins and ends."""
    shard_of = [before // _SHARD_TOKENS for before in accumulate((e.tokens for e in encoded), initial=0)][:-1]
    starts = [n for n in range(len(encoded)) if n == 0 or shard_of[n] != shard_of[n - 1]]
    yield from zip(starts, [*starts[1:], len(encoded)], strict=True)


def _as_bytes(outputs: Sequence[Outputs]) -> bytes:
    """One array, and the rows of each where these differ."""
    flat = outputs[0].ndim == 1
    values = np.stack(outputs) if flat else np.concatenate(outputs)
    tensors = {"values": np.ascontiguousarray(values)}
    if not flat:
        tensors["rows"] = np.array([len(each) for each in outputs], np.int64)
    return save(tensors)


def _read(path: Path, count: int) -> list[Outputs] | None:
    """None where it isn't there, or isn't whole."""
    try:
        tensors = load(path.read_bytes())
    except (OSError, SafetensorError):
        return None
    values: Outputs = tensors["values"]
    rows: Ints | None = tensors.get("rows")
    outputs = list(values) if rows is None else np.split(values, np.cumsum(rows)[:-1])
    return outputs if len(outputs) == count else None
