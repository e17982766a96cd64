"""Writes a safetensors file past the system's page cache, so that training beside it is slowed down little.

A write through the cache copies every byte into memory that the system has to find first, which takes a core
up to 2.5 s a gigabyte, and it evicts what training reads. Tensors that lie in memory in the file's order, as
those of `allocate_like` do, go to the disk from where they are, and the processor only computes their
checksum. Other tensors are copied into a block first.

The format (huggingface.co/docs/safetensors) is the length of the header in 8 bytes, the header as JSON, and
the bytes of the tensors.
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

_BLOCK = 16 << 20  # bytes that are written at a time
SECTOR = 4096  # bytes; transfers without the cache begin and end at multiples, in memory and in the file
_UNCACHED = getattr(os, "O_DIRECT", 0)  # Linux's
_NAMES = {
    torch.float64: "F64",
    torch.int64: "I64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.bool: "BOOL",
}


def allocate_like(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Allocates uninitialised tensors of the same names, shapes and types, one behind the other as in a file.

    If any tensor is on a GPU, each copy gets pinned memory of its own, which the link fills at full speed.
    They aren't allocated as one, because torch rounds pinned memory up to a power of two.
    """
    if any(tensor.is_cuda for tensor in tensors.values()):
        return {
            name: torch.empty_like(tensor, device="cpu", pin_memory=True) for name, tensor in tensors.items()
        }
    memory = torch.empty(sum(tensor.nbytes for tensor in tensors.values()) + SECTOR, dtype=torch.uint8)
    copies, start = {}, -memory.data_ptr() % SECTOR
    for name in _file_order(tensors):
        tensor = tensors[name]
        end = start + tensor.nbytes
        copies[name] = memory[start:end].view(tensor.dtype).view(tensor.shape)
        start = end
    return copies


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> str:
    """Writes the file, syncs it to the disk, and returns its CRC-32 as eight hexadecimal digits.

    Raises OSError as the system does, and KeyError for a type that no training state has.
    """
    names = _file_order(tensors)
    contiguous = _view_as_one([tensors[name] for name in names])
    with _UncachedFile(path) as file:
        file.write(_build_header([(name, tensors[name]) for name in names]))
        if contiguous is not None:
            file.write_in_place(contiguous)
        else:
            for name in names:
                flat = tensors[name].detach().cpu().contiguous().reshape(-1)
                flat = flat.as_strided(flat.shape, (1,))  # a contiguous single value may have another stride
                file.write(flat.view(torch.uint8).numpy())
    return f"{file.crc32:08x}"


def _file_order(tensors: Mapping[str, Tensor]) -> list[str]:
    """The names by falling size of an element, so that every tensor is aligned, then by the alphabet."""
    return sorted(tensors, key=lambda name: (-tensors[name].itemsize, name))


def _view_as_one(tensors: Sequence[Tensor]) -> Bytes | None:
    """Returns one view of all bytes if the tensors lie one behind the other from the start of a sector, as
    those of `allocate_like` do, else None.
    """
    filled = [tensor for tensor in tensors if tensor.nbytes]
    if not filled or filled[0].data_ptr() % SECTOR:
        return None
    memory = filled[0].untyped_storage()
    start = end = filled[0].data_ptr()
    for tensor in filled:
        is_next = tensor.untyped_storage().data_ptr() == memory.data_ptr() and tensor.data_ptr() == end
        if tensor.device.type != "cpu" or not tensor.is_contiguous() or not is_next:
            return None
        end += tensor.nbytes
    view = torch.empty(0, dtype=torch.uint8).set_(memory, start - memory.data_ptr(), (end - start,), (1,))
    content: Bytes = view.numpy()
    return content


def _build_header(tensors: list[tuple[str, Tensor]]) -> Bytes:
    """The header's length and the header, padded with blanks to whole sectors."""
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
    """A file that is written without the page cache: in whole sectors, from memory aligned to a page. At the
    end it is truncated to the bytes that were written. Where the file system refuses such transfers, the
    rest goes through the cache.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.crc32 = path, 0
        self._size = self._filled = 0
        self._memory = memoryview(mmap.mmap(-1, _BLOCK))
        self._block: Bytes = np.frombuffer(self._memory, np.uint8)

    def __enter__(self) -> Self:
        self._file = self.path.open("wb", buffering=0)
        self._set_uncached(_UNCACHED)
        return self

    def write(self, content: Bytes) -> None:
        """Writes these bytes through the block."""
        for part in _split_blocks(content, _BLOCK - self._filled):
            self._block[self._filled : self._filled + len(part)] = part
            self._filled += len(part)
            if self._filled == _BLOCK:
                self._write_block()

    def write_in_place(self, content: Bytes) -> None:
        """Writes these bytes without a copy, but for the last part of a sector. What was written before has
        to end with a sector, and `content` has to begin with one in memory.
        """
        self._write_block()
        sectors_end = len(content) - len(content) % SECTOR
        for part in _split_blocks(content[:sectors_end], _BLOCK):
            self._write(part.data, len(part))
        self.write(content[sectors_end:])

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
        """Writes whole sectors, of which the first `size` bytes belong to the file."""
        self.crc32 = crc32(sectors[:size], self.crc32)
        self._size += size
        while sectors:
            try:
                sectors = sectors[self._file.write(sectors) :]
            except OSError as error:
                if error.errno != errno.EINVAL or not self._set_uncached(0):
                    raise

    def _set_uncached(self, flag: int) -> bool:
        """Sets or clears O_DIRECT; returns whether that changed anything."""
        if not _UNCACHED:
            return False
        import fcntl  # every system with O_DIRECT has it

        descriptor = self._file.fileno()
        before = fcntl.fcntl(descriptor, fcntl.F_GETFL)
        after = before & ~_UNCACHED | flag
        try:
            fcntl.fcntl(descriptor, fcntl.F_SETFL, after)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            return False
        return after != before


def _split_blocks(content: Bytes, first: int) -> Iterator[Bytes]:
    """Splits `content` into a part of `first` bytes and blocks of the usual size."""
    yield content[:first]
    for start in range(first, len(content), _BLOCK):
        yield content[start : start + _BLOCK]
