"""A safetensors file written past the system's cache, so that what computes beside it loses little.

Through the cache every byte is copied into memory that the system has to find first, at up to 2.5 s of a core
a gigabyte, and what training reads is pushed out. Tensors that lie in memory as in the file, as in what
`room_for` gives, go to the disk from there, and a processor only sums them up; others are copied into a block
first. The format (huggingface.co/docs/safetensors): the header's length in 8 bytes, the header as JSON, the
tensors' bytes.
"""

import errno
import json
import mmap
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from bertsmith.files import crc32

Bytes = npt.NDArray[np.uint8]

_BLOCK = 16 << 20  # bytes at a time
SECTOR = 4096  # bytes: where a transfer without the cache begins and ends, in memory and in the file
_UNCACHED = getattr(os, "O_DIRECT", 0)  # Linux's
_NAMES = {
    torch.float64: "F64",
    torch.int64: "I64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.bool: "BOOL",
}


def room_for(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Memory for copies of these, one behind the other as in their file.

    For a GPU's apart, in memory that stays where it is (pinned), which its link fills at full speed: torch
    rounds such up to a power of two, which would be far more than one model's.
    """
    if any(tensor.is_cuda for tensor in tensors.values()):
        return {name: torch.empty_like(each, device="cpu", pin_memory=True) for name, each in tensors.items()}
    memory = torch.empty(sum(tensor.nbytes for tensor in tensors.values()) + SECTOR, dtype=torch.uint8)
    room, start = {}, -memory.data_ptr() % SECTOR
    for name in _in_order(tensors):
        tensor = tensors[name]
        end = start + tensor.nbytes
        room[name] = memory[start:end].view(tensor.dtype).view(tensor.shape)
        start = end
    return room


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> str:
    """Writes the file, which is on the disk then; returns its CRC-32 as hexadecimal digits.

    Raises OSError as the system does, KeyError for a type that no training state has.
    """
    names = _in_order(tensors)
    together = _as_one([tensors[name] for name in names])
    with _UncachedFile(path) as file:
        file.write(_header([(name, tensors[name]) for name in names]))
        if together is not None:
            file.write_in_place(together)
        else:
            for name in names:
                flat = tensors[name].detach().cpu().contiguous().reshape(-1)
                file.write(flat.view(torch.uint8).numpy())
    return f"{file.crc32:08x}"


def _in_order(tensors: Mapping[str, Tensor]) -> list[str]:
    """Large values first, so that all are aligned."""
    return sorted(tensors, key=lambda name: (-tensors[name].itemsize, name))


def _as_one(tensors: Sequence[Tensor]) -> Bytes | None:
    """All of their bytes where they lie one behind the other from a sector's beginning, as in `room_for`."""
    filled = [tensor for tensor in tensors if tensor.nbytes]
    if not filled or filled[0].data_ptr() % SECTOR:
        return None
    memory = filled[0].untyped_storage()
    start = end = filled[0].data_ptr()
    for tensor in filled:
        is_next = tensor.untyped_storage().data_ptr() == memory.data_ptr() and tensor.data_ptr() == end
        if tensor.is_cuda or not tensor.is_contiguous() or not is_next:
            return None
        end += tensor.nbytes
    whole = torch.empty(0, dtype=torch.uint8).set_(memory, start - memory.data_ptr(), (end - start,), (1,))
    found: Bytes = whole.numpy()
    return found


def _header(tensors: list[tuple[str, Tensor]]) -> Bytes:
    """The first two parts, in whole sectors."""
    entries, end = {}, 0
    for name, tensor in tensors:
        start, end = end, end + tensor.nbytes
        entries[name] = {
            "dtype": _NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [start, end],
        }
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % SECTOR)
    return np.frombuffer(len(text).to_bytes(8, "little") + text, np.uint8)


class _UncachedFile:
    """Bytes that go to the disk in whole sectors from memory that begins with a page; the last sector is cut
    off where the bytes end. Through the cache after all where a file system wants it.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.crc32 = path, 0
        self._size = self._filled = 0
        self._memory = memoryview(mmap.mmap(-1, _BLOCK))
        self._block: Bytes = np.frombuffer(self._memory, np.uint8)

    def __enter__(self) -> Self:
        self._file = self.path.open("wb", buffering=0)
        self._set(_UNCACHED)
        return self

    def write(self, content: Bytes) -> None:
        """By way of the block."""
        for part in _parts(content, _BLOCK - self._filled):
            self._block[self._filled : self._filled + len(part)] = part
            self._filled += len(part)
            if self._filled == _BLOCK:
                self._write_block()

    def write_in_place(self, content: Bytes) -> None:
        """From where it is, after whole sectors."""
        self._write_block()
        whole = len(content) - len(content) % SECTOR
        for part in _parts(content[:whole], _BLOCK):
            self._write(part.data, len(part))
        self.write(content[whole:])

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._file:
            if kind is None:
                self._write_block()
                self._file.truncate(self._size)
                os.fsync(self._file.fileno())

    def _write_block(self) -> None:
        self._write(self._memory[: self._filled + -self._filled % SECTOR], self._filled)
        self._filled = 0

    def _write(self, sectors: memoryview, size: int) -> None:
        """Of which so many bytes count."""
        self.crc32 = crc32(sectors[:size], self.crc32)
        self._size += size
        while sectors:
            try:
                sectors = sectors[self._file.write(sectors) :]
            except OSError as error:
                if error.errno != errno.EINVAL or not self._set(0):
                    raise

    def _set(self, uncached: int) -> bool:
        """Whether that changed anything."""
        if not _UNCACHED:
            return False
        import fcntl  # is where O_DIRECT is

        descriptor = self._file.fileno()
        before = fcntl.fcntl(descriptor, fcntl.F_GETFL)
        after = before & ~_UNCACHED | uncached
        try:
            fcntl.fcntl(descriptor, fcntl.F_SETFL, after)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            return False
        return after != before


def _parts(content: Bytes, first: int) -> Iterator[Bytes]:
    """As many bytes, then a block at a time."""
    yield content[:first]
    for start in range(first, len(content), _BLOCK):
        yield content[start : start + _BLOCK]
