"""TensorFlow's checkpoint of several files → tensors: PREFIX.index, and PREFIX.data-00000-of-00001 and so on.

The index is a table whose key "" holds a BundleHeaderProto, and whose other keys are names of tensors, each
with a BundleEntryProto of type, shape, shard, offset, size and checksum (TensorFlow's tensor_bundle.proto).
A data file is the tensors' bytes, little-endian.

Only tensors that are asked for are read. A size that shape and type don't give, a place outside of its file,
and a checksum that the bytes don't have are each an error that names the tensor.
"""

from collections.abc import Callable, Iterator
from math import prod
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from bertsmith.errors import ModelError
from bertsmith.model.tensorflow.crc32c import crc32c, unmasked
from bertsmith.model.tensorflow.table import Damaged, read_table, varint
from bertsmith.model.untrusted import plain_file

INDEX = ".index"
_OBJECTS = b"_CHECKPOINTABLE_OBJECT_GRAPH"
_MOST_SHARDS = 10_000
_MOST_DIMENSIONS = 16
_MOST_VALUES = 1 << 40
# Of DataType in types.proto those that weights have, and the counter of steps.
_TYPES = {1: "float32", 2: "float64", 3: "int32", 9: "int64", 14: "bfloat16", 19: "float16"}
_VARINT, _EIGHT_BYTES, _LENGTH, _FOUR_BYTES = 0, 1, 2, 5


class _Entry(NamedTuple):
    """Where a tensor lies; `type` is a number of DataType."""

    type: int
    shape: tuple[int, ...]
    shard: int
    offset: int
    size: int
    checksum: int
    is_sliced: bool


def read_bundle(index: Path, wanted: Callable[[str], bool]) -> dict[str, Tensor]:
    """The tensors for whose names `wanted` is true, by name, on the CPU.

    `index` is the file PREFIX.index; the data files lie beside it. Raises ModelError for what is cut, altered
    or larger than the files, for variables that were saved in slices and for types that weights don't have.
    """
    table = read_table(index)
    shards = _shard_files(index, table.pop(b"", None))
    if _OBJECTS in table:
        raise ModelError(
            f"{index} is a checkpoint of TensorFlow 2's objects, whose tensors are named by places in a "
            "program and not by what they are. Take the model's original checkpoint of TensorFlow 1, or "
            "convert it where TensorFlow is installed, with transformers 4."
        )
    tensors = {}
    budget = sum(path.stat().st_size for path in shards)
    for key, value in table.items():
        name = key.decode("utf-8", "replace")
        if not wanted(name):
            continue
        where = f"{index}, tensor {name!r}"
        entry = _parsed(value, where)
        _check(entry, shards, where)
        budget -= entry.size
        if budget < 0:
            raise ModelError(f"{index} claims tensors that are larger than its files; it was refused.")
        tensors[name] = _read(entry, shards[entry.shard], where)
    return tensors


def _shard_files(index: Path, header: bytes | None) -> list[Path]:
    if header is None:
        raise ModelError(f"{index} has no header: it is not the index of a TensorFlow checkpoint.")
    fields: dict[int, int] = {}
    try:
        fields = {number: value for number, value in _fields(header) if isinstance(value, int)}
    except Damaged as error:
        raise ModelError(f"{index}: the header can't be read ({error}). It may have been altered.") from error
    count = fields.get(1, 0)
    if not 0 < count <= _MOST_SHARDS or fields.get(2, 0) != 0:
        raise ModelError(
            f"{index}: expected 1 to {_MOST_SHARDS:,} data files in little-endian order, found {count:,} in "
            f"order {fields.get(2, 0)}."
        )
    prefix = index.name.removesuffix(INDEX)
    return [plain_file(index.parent, f"{prefix}.data-{n:05d}-of-{count:05d}") for n in range(count)]


def _parsed(message: bytes, where: str) -> _Entry:
    """A BundleEntryProto."""
    numbers: dict[int, int] = {}
    shape: tuple[int, ...] = ()
    try:
        for number, value in _fields(message):
            if isinstance(value, int):
                numbers[number] = value
            elif number == 2:
                shape = _shape(value)
        is_sliced = any(number == 7 for number, _ in _fields(message))
    except Damaged as error:
        raise ModelError(f"{where}: its entry can't be read ({error}). It may have been altered.") from error
    shard, offset, size, checksum = (numbers.get(field, 0) for field in (3, 4, 5, 6))
    return _Entry(numbers.get(1, 0), shape, shard, offset, size, checksum, is_sliced)


def _shape(message: bytes) -> tuple[int, ...]:
    """A TensorShapeProto: each dimension is a message with its size."""
    sizes = []
    for number, value in _fields(message):
        if number == 3 and value:
            raise Damaged("a shape without a number of dimensions")
        if number == 2 and isinstance(value, bytes):
            sizes.append(next((size for n, size in _fields(value) if n == 1 and isinstance(size, int)), 0))
    if len(sizes) > _MOST_DIMENSIONS or prod(max(size, 1) for size in sizes) >= _MOST_VALUES:
        raise Damaged("a shape that no tensor has")
    return tuple(sizes)


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """The fields of a protocol buffer: numbers as int, messages and texts as bytes."""
    at = 0
    while at < len(message):
        tag, at = varint(message, at)
        number, kind = tag >> 3, tag & 7
        if kind == _VARINT:
            value, at = varint(message, at)
            yield number, value
            continue
        if kind == _LENGTH:
            size, at = varint(message, at)
        elif kind in (_FOUR_BYTES, _EIGHT_BYTES):
            size = 4 if kind == _FOUR_BYTES else 8
        else:
            raise Damaged(f"a field of the unknown kind {kind}")
        if at + size > len(message):
            raise Damaged("a field was cut")
        piece, at = message[at : at + size], at + size
        yield number, piece if kind == _LENGTH else int.from_bytes(piece, "little")


def _check(entry: _Entry, shards: list[Path], where: str) -> None:
    if entry.is_sliced:
        raise ModelError(
            f"{where} was saved in slices of several machines, which Bertsmith doesn't join. Save the "
            "checkpoint again without partitioned variables."
        )
    if entry.type not in _TYPES:
        known = ", ".join(_TYPES.values())
        raise ModelError(f"{where} is of the type {entry.type} of TensorFlow; weights are {known}.")
    expected = prod(entry.shape) * _item_size(entry.type)
    if entry.size != expected:
        raise ModelError(
            f"{where}: expected {expected:,} bytes for the shape {entry.shape} of {_TYPES[entry.type]}, "
            f"found {entry.size:,}."
        )
    if entry.shard >= len(shards):
        raise ModelError(f"{where} is in data file {entry.shard}, but there are {len(shards)} from 0.")
    size = shards[entry.shard].stat().st_size
    if entry.offset + entry.size > size:
        raise ModelError(
            f"{where}: expected bytes {entry.offset:,} to {entry.offset + entry.size:,} of "
            f"{shards[entry.shard].name}, which has {size:,}. It may have been cut."
        )


def _read(entry: _Entry, path: Path, where: str) -> Tensor:
    with path.open("rb") as file:
        file.seek(entry.offset)
        data = bytearray(entry.size)
        file.readinto(data)
    if crc32c(memoryview(data)) != unmasked(entry.checksum):
        raise ModelError(
            f"{where}: its bytes in {path.name} don't have their checksum. The file was altered."
        )
    dtype = getattr(torch, _TYPES[entry.type])
    if not data:
        return torch.empty(entry.shape, dtype=dtype)
    return torch.frombuffer(data, dtype=dtype).reshape(entry.shape)


def _item_size(kind: int) -> int:
    return 2 if kind == 14 else np.dtype(_TYPES[kind]).itemsize
