"""A table of token embeddings that stays in its file until its rows are read.

V tokens in the vocabulary, E width of the embeddings, N tokens in a batch.
"""

import mmap
import os
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import torch
from torch import Tensor, nn

from bertsmith.errors import ModelError
from bertsmith.files import parse_json, with_distinct_keys
from bertsmith.model.untrusted import check_header_size

SMALLEST = 1 << 23  # values; a smaller table is copied like all other weights
_ENDINGS = ("word_embeddings.weight", "tok_embeddings.weight")
# torch's type, the integers of its size, and the first one that, without its sign, is no finite number
_TYPES: dict[str, tuple[torch.dtype, type[np.signedinteger[Any]], int]] = {
    "F32": (torch.float32, np.int32, 0x7F800000),
    "F16": (torch.float16, np.int16, 0x7C00),
    "BF16": (torch.bfloat16, np.int16, 0x7F80),
}
_CHECKED_AT_ONCE = 1 << 22  # values
COMPARED_AT_ONCE = (
    1 << 18
)  # bytes; read, not mapped, since what is mapped counts as memory; so few fit the cache


class FileTable(nn.Embedding):
    """Embeddings (V, E) in the precision of their file. A row is read from it when a text needs it, and given
    in float32. So at the start a table of 250,000 rows takes no memory, and the time for one look at it.

    The file may be removed, or replaced by another one, as all our commands do: the table stays what it was.
    What is written to `weight` stays in this process. Where another program writes into the file itself, no
    row is looked up any more, and ModelError says why; if it cuts the file while they are looked up, the
    system ends this process. A deep or pickled copy is an ordinary table in memory.
    """

    def __init__(self, path: Path, name: str) -> None:
        """The table called `name` in a whole safetensors file. Raises ModelError for a number that isn't
        finite, and for a header that names a tensor twice.
        """
        self._path, self._file = path, os.open(path, os.O_RDONLY)
        weakref.finalize(self, os.close, self._file)
        with open(self._file, "rb", closefd=False) as file:
            length = int.from_bytes(file.read(8), "little")
            try:
                entry = parse_json(file.read(length).decode(), with_distinct_keys)[name]
            except ValueError as error:
                raise ModelError(f"{path} has a header that is not valid ({error}).") from error
        self._state = self._read_state()
        dtype, integer, infinity = _TYPES[entry["dtype"]]
        begin, end = (8 + length + offset for offset in entry["data_offsets"])
        mapping = mmap.mmap(self._file, 0, access=mmap.ACCESS_COPY)  # private to this process
        numbers = np.frombuffer(mapping, integer, (end - begin) // np.dtype(integer).itemsize, begin)
        for start in range(0, len(numbers), _CHECKED_AT_ONCE):
            magnitudes = numbers[start : start + _CHECKED_AT_ONCE] & np.iinfo(integer).max
            mapping.madvise(mmap.MADV_DONTNEED)  # what was read is no memory of this process any more
            if magnitudes.max() >= infinity:
                raise ModelError(f"{path}: values of {name} are not finite. Take another copy of the model.")
        rows = torch.frombuffer(mapping, dtype=dtype, count=len(numbers), offset=begin)
        vocabulary, width = entry["shape"]
        super().__init__(vocabulary, width, _weight=rows.view(vocabulary, width), _freeze=True)
        self._begin, self._version = begin, self.weight._version

    def forward(self, token_ids: Tensor) -> Tensor:
        """The rows (N, E) of tokens (N,), in float32."""
        if self.weight.device.type == "cpu" and self._read_state() != self._state:
            raise ModelError(
                f"{self._path} was written to while this model was open, so its rows belong to another one. "
                "Open the model again. To replace a model that is in use, write the new file beside it and "
                "rename it."
            )
        return super().forward(token_ids).float()

    def has_rows_of(self, other: "FileTable") -> bool:
        """Whether both tables are the same, bit for bit, and neither was written to. Reads both files."""
        sizes = {(table.weight.dtype, *table.weight.shape) for table in (self, other)}
        if len(sizes) > 1 or any(
            table._read_state() != table._state or table.weight._version != table._version
            for table in (self, other)
        ):
            return False
        size = self.weight.nbytes
        return all(
            os.pread(self._file, min(COMPARED_AT_ONCE, size - start), self._begin + start)
            == os.pread(other._file, min(COMPARED_AT_ONCE, size - start), other._begin + start)
            for start in range(0, size, COMPARED_AT_ONCE)
        )

    def _read_state(self) -> tuple[int, int]:
        status = os.fstat(self._file)
        return status.st_size, status.st_mtime_ns

    def __reduce__(self) -> tuple[Any, ...]:
        return nn.Embedding.from_pretrained, (self.weight.detach().to(torch.float32, copy=True),)


def find_table(path: Path, rows: int, width: int) -> str | None:
    """The name of the token embeddings in a safetensors file, if they have this shape, are large, the only
    table of so many rows, and in a precision that FileTable reads; else None. Raises ModelError for a header
    that is too large.
    """
    check_header_size(path)
    try:
        with safetensors.safe_open(path, framework="np") as file:
            parts = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
            shapes = {name: part.get_shape() for name, part in parts.items()}
            tables = [name for name, shape in shapes.items() if len(shape) == 2 and shape[0] == rows]
            if len(tables) != 1 or not tables[0].endswith(_ENDINGS):
                return None
            is_read = shapes[tables[0]] == [rows, width] and parts[tables[0]].get_dtype() in _TYPES
    except safetensors.SafetensorError:  # whoever reads the other tensors says what is wrong
        return None
    return tables[0] if is_read and rows * width >= SMALLEST else None
