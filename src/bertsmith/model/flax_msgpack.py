"""Reads flax_model.msgpack, in which transformers' Flax models were saved, as tensors under Hugging Face's
names.

The file is one MessagePack map of maps, one for each module, down to the arrays. An array is an extension of
type 1 that holds (shape, name of its type, bytes). Leaves have other names than in Hugging Face's files, and
kernels are transposed.

Only the MessagePack types of such files are read, and every length is checked against the file before memory
is allocated for it.
"""

from collections.abc import Iterator, Mapping
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bertsmith.errors import ModelError

_ARRAY = 1  # the extension's type
_MOST_DEPTH = 32  # of maps within maps; an encoder has about ten
_MOST_DIMENSIONS = 16
_TYPES = ("float32", "float16", "bfloat16", "float64", "int32", "int64")
_LEAVES = {"kernel": "weight", "embedding": "weight", "scale": "weight", "bias": "bias"}
_CHUNKED = "__msgpack_chunked_array__"


class _FlaxFormatError(ValueError):
    """Data that breaks the format; the message says how."""


def read_flax_tensors(path: Path) -> dict[str, Tensor]:
    """The file's tensors by name, on the CPU. Raises ModelError for a truncated or altered file, and for
    other content.
    """
    content = memoryview(path.read_bytes())
    try:
        modules, end = _read_value(content, 0, 0)
        if end != len(content) or not isinstance(modules, dict):
            raise _FlaxFormatError("it is not one map from its first byte to its last")
        tensors: dict[str, Tensor] = {}
        for name, tensor in _name_tensors(modules, ()):
            if name in tensors:
                raise _FlaxFormatError(f"{name} is given twice")
            tensors[name] = tensor
        return tensors
    except _FlaxFormatError as error:
        raise ModelError(f"{path} can't be read as Flax' weights: {error}. It may have been cut.") from error


def _name_tensors(module: Mapping[str, Any], above: tuple[str, ...]) -> Iterator[tuple[str, Tensor]]:
    if _CHUNKED in module:
        raise _FlaxFormatError(f"{'.'.join(above)} was saved in chunks, which isn't supported")
    for name, value in module.items():
        if isinstance(value, dict):
            yield from _name_tensors(value, (*above, name))
        elif isinstance(value, Tensor):
            leaf = _LEAVES.get(name)
            if leaf is None:
                raise _FlaxFormatError(
                    f"{'.'.join((*above, name))} has a leaf that is none of {', '.join(_LEAVES)}"
                )
            is_kernel = name == "kernel" and value.dim() == 2
            yield ".".join((*above, leaf)), value.t().contiguous() if is_kernel else value
        else:
            raise _FlaxFormatError(f"{'.'.join((*above, name))} is no array")


def _read_value(data: memoryview, at: int, depth: int) -> tuple[Any, int]:
    """Reads one value, of any type that such a file has. Returns it and the offset after it."""
    tag = _read_bytes(data, at, 1)[0]
    at += 1
    if tag < 0x80:
        return tag, at
    if tag < 0x90:
        return _read_map(data, at, tag & 15, depth)
    if tag < 0xA0:
        return _read_list(data, at, tag & 15, depth)
    if tag < 0xC0:
        return _read_text(data, at, tag & 31)
    if tag not in _LENGTH_BYTES:
        raise _FlaxFormatError(f"a value of the kind 0x{tag:02x}, which weights don't have")
    size = _LENGTH_BYTES[tag]
    length, at = int.from_bytes(_read_bytes(data, at, size), "big"), at + size
    if tag in (0xCC, 0xCD, 0xCE, 0xCF):
        return length, at
    if tag in (0xC4, 0xC5, 0xC6):
        return _read_bytes(data, at, length), at + length
    if tag in (0xC7, 0xC8, 0xC9):
        return _read_array(data, at, length, depth)
    if tag in (0xD9, 0xDA, 0xDB):
        return _read_text(data, at, length)
    return (_read_list if tag in (0xDC, 0xDD) else _read_map)(data, at, length, depth)


# The number of bytes of a length, or of a number, after each tag: bin, ext, uint, str, array, map.
_LENGTH_BYTES = (
    {0xC4: 1, 0xC5: 2, 0xC6: 4, 0xC7: 1, 0xC8: 2, 0xC9: 4}
    | {0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8}
    | {0xD9: 1, 0xDA: 2, 0xDB: 4, 0xDC: 2, 0xDD: 4, 0xDE: 2, 0xDF: 4}
)


def _read_bytes(data: memoryview, at: int, length: int) -> memoryview:
    if at + length > len(data):
        raise _FlaxFormatError("it ends within a value")
    return data[at : at + length]


def _read_text(data: memoryview, at: int, length: int) -> tuple[str, int]:
    try:
        return str(_read_bytes(data, at, length), "utf-8"), at + length
    except UnicodeDecodeError as error:
        raise _FlaxFormatError("a name is not UTF-8") from error


def _read_list(data: memoryview, at: int, length: int, depth: int) -> tuple[list[Any], int]:
    _check_container(data, at, length, depth)
    values = []
    for _ in range(length):
        value, at = _read_value(data, at, depth + 1)
        values.append(value)
    return values, at


def _read_map(data: memoryview, at: int, length: int, depth: int) -> tuple[dict[str, Any], int]:
    _check_container(data, at, length, depth)
    entries: dict[str, Any] = {}
    for _ in range(length):
        name, at = _read_value(data, at, depth + 1)
        value, at = _read_value(data, at, depth + 1)
        if not isinstance(name, str) or name in entries:
            raise _FlaxFormatError(f"a map has {name!r} for a key, or has it twice")
        entries[name] = value
    return entries, at


def _check_container(data: memoryview, at: int, length: int, depth: int) -> None:
    if depth > _MOST_DEPTH:
        raise _FlaxFormatError(f"maps lie more than {_MOST_DEPTH} deep")
    _read_bytes(data, at, length)  # raises where data is short: each element has at least a byte


def _read_array(data: memoryview, at: int, length: int, depth: int) -> tuple[Tensor, int]:
    _check_container(data, at, 1 + length, depth)
    kind, end = data[at], at + 1 + length
    parts, reached = _read_value(data[:end], at + 1, depth + 1)
    if kind != _ARRAY or reached != end or not isinstance(parts, list) or len(parts) != 3:
        raise _FlaxFormatError("an extension that is no array")
    shape, name, content = parts
    is_shape = (
        isinstance(shape, list)
        and len(shape) <= _MOST_DIMENSIONS
        and all(isinstance(n, int) and n <= len(data) for n in shape)
    )
    if name not in _TYPES or not is_shape:
        raise _FlaxFormatError(f"an array of the type {str(name)[:40]!r}")
    dtype = getattr(torch, name)
    if not isinstance(content, memoryview) or len(content) != prod(shape) * dtype.itemsize:
        raise _FlaxFormatError(f"an array whose bytes don't fit its shape {tuple(shape)}")
    if not content:
        return torch.empty(shape, dtype=dtype), end
    return torch.frombuffer(bytearray(content), dtype=dtype).reshape(shape), end
