"""flax_model.msgpack → tensors under Hugging Face's names, as transformers' Flax models were saved.

The file is one MessagePack map of maps: module in module, down to the arrays. An array is an extension of
type 1 that holds (shape, name of its type, bytes). Leaves have other names, and kernels are transposed.

Of MessagePack's types only those are read that such a file has; every length is checked against the file
before anything is made of it.
"""

from collections.abc import Iterator, Mapping
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bertsmith.errors import ModelError

_ARRAY = 1  # the extension's type
_DEEPEST = 32  # maps within maps; an encoder has some ten
_MOST_DIMENSIONS = 16
_TYPES = ("float32", "float16", "bfloat16", "float64", "int32", "int64")
_LEAVES = {"kernel": "weight", "embedding": "weight", "scale": "weight", "bias": "bias"}
_CHUNKED = "__msgpack_chunked_array__"


class _FlaxFormatError(ValueError):
    """What is not as the format has it; the message says what."""


def read_flax_tensors(path: Path) -> dict[str, Tensor]:
    """Every tensor, on the CPU. Raises ModelError for a file that is cut, altered, or holds anything else."""
    content = memoryview(path.read_bytes())
    try:
        found, end = _value(content, 0, 0)
        if end != len(content) or not isinstance(found, dict):
            raise _FlaxFormatError("it is not one map from its first byte to its last")
        tensors: dict[str, Tensor] = {}
        for name, tensor in _named(found, ()):
            if name in tensors:
                raise _FlaxFormatError(f"{name} is given twice")
            tensors[name] = tensor
        return tensors
    except _FlaxFormatError as error:
        raise ModelError(f"{path} can't be read as Flax' weights: {error}. It may have been cut.") from error


def _named(found: Mapping[str, Any], above: tuple[str, ...]) -> Iterator[tuple[str, Tensor]]:
    if _CHUNKED in found:
        raise _FlaxFormatError(f"{'.'.join(above)} was saved in chunks, which isn't supported")
    for name, value in found.items():
        if isinstance(value, dict):
            yield from _named(value, (*above, name))
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


def _value(data: memoryview, at: int, depth: int) -> tuple[Any, int]:
    """One value of the types that occur, and the place behind it."""
    tag = _bytes(data, at, 1)[0]
    at += 1
    if tag < 0x80:
        return tag, at
    if tag < 0x90:
        return _map(data, at, tag & 15, depth)
    if tag < 0xA0:
        return _list(data, at, tag & 15, depth)
    if tag < 0xC0:
        return _text(data, at, tag & 31)
    if tag not in _SIZES:
        raise _FlaxFormatError(f"a value of the kind 0x{tag:02x}, which weights don't have")
    size = _SIZES[tag]
    length, at = int.from_bytes(_bytes(data, at, size), "big"), at + size
    if tag in (0xCC, 0xCD, 0xCE, 0xCF):
        return length, at
    if tag in (0xC4, 0xC5, 0xC6):
        return _bytes(data, at, length), at + length
    if tag in (0xC7, 0xC8, 0xC9):
        return _array(data, at, length, depth)
    if tag in (0xD9, 0xDA, 0xDB):
        return _text(data, at, length)
    return (_list if tag in (0xDC, 0xDD) else _map)(data, at, length, depth)


# Of each tag how many bytes of a length, or of a number, follow: bin, ext, uint, str, array, map.
_SIZES = (
    {0xC4: 1, 0xC5: 2, 0xC6: 4, 0xC7: 1, 0xC8: 2, 0xC9: 4}
    | {0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8}
    | {0xD9: 1, 0xDA: 2, 0xDB: 4, 0xDC: 2, 0xDD: 4, 0xDE: 2, 0xDF: 4}
)


def _bytes(data: memoryview, at: int, length: int) -> memoryview:
    if at + length > len(data):
        raise _FlaxFormatError("it ends within a value")
    return data[at : at + length]


def _text(data: memoryview, at: int, length: int) -> tuple[str, int]:
    try:
        return str(_bytes(data, at, length), "utf-8"), at + length
    except UnicodeDecodeError as error:
        raise _FlaxFormatError("a name is not UTF-8") from error


def _list(data: memoryview, at: int, length: int, depth: int) -> tuple[list[Any], int]:
    _require(data, at, length, depth)
    found = []
    for _ in range(length):
        value, at = _value(data, at, depth + 1)
        found.append(value)
    return found, at


def _map(data: memoryview, at: int, length: int, depth: int) -> tuple[dict[str, Any], int]:
    _require(data, at, length, depth)
    found: dict[str, Any] = {}
    for _ in range(length):
        name, at = _value(data, at, depth + 1)
        value, at = _value(data, at, depth + 1)
        if not isinstance(name, str) or name in found:
            raise _FlaxFormatError(f"a map has {name!r} for a key, or has it twice")
        found[name] = value
    return found, at


def _require(data: memoryview, at: int, length: int, depth: int) -> None:
    if depth > _DEEPEST:
        raise _FlaxFormatError(f"maps lie more than {_DEEPEST} deep")
    _bytes(data, at, length)  # each element of a map or a list has a byte at least


def _array(data: memoryview, at: int, length: int, depth: int) -> tuple[Tensor, int]:
    _require(data, at, 1 + length, depth)
    kind, end = data[at], at + 1 + length
    parts, reached = _value(data[:end], at + 1, depth + 1)
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
