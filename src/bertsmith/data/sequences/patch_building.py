"""Rows of numbers → a token store of patches: a pass for mean and deviation, a pass that writes.

C channels.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from pydantic import ValidationError

from bertsmith.data.sequences.codec import Codec
from bertsmith.data.sequences.records import RowFile, stream_records
from bertsmith.data.sequences.store_writer import BuiltSequences, StoreWriter
from bertsmith.data.sequences.symbol_tokenizer import symbol_tokenizer
from bertsmith.errors import InputError
from bertsmith.files import atomic_folder
from bertsmith.progress import Progress
from bertsmith.text.tokens.patch_tokenizer import PATCH, PatchShape, PatchTokenizer
from bertsmith.validation import first_problem

_ROUNDING = 1e-12  # a deviation this small beside the mean is rounding: the channel is constant
Rows = Iterator[tuple[npt.NDArray[np.float64], str]]


def fit_patches(
    files: Sequence[RowFile], codec: Codec, size: int, progress: Progress | None
) -> tuple[PatchTokenizer, int]:
    """The tokenizer of rows of the first one's shape, which scales by the mean and the deviation of all, and
    how many there are. Raises InputError naming the row that has another shape, and for a size that doesn't
    divide an image.
    """
    first, where = next(_rows(files, codec))
    shape_of_row = first.shape if codec.kind == "images" else first.shape[1:]
    if len(first.shape) not in ((2, 3) if codec.kind == "images" else (1, 2)):
        raise InputError(
            f"{where}: expected {_EXPECTED[codec.kind]}, found {' x '.join(map(str, first.shape))} numbers."
        )
    channels = first.shape[2] if len(first.shape) == 3 else (first.shape[1:] or (1,))[0]
    if codec.kind == "images" and len(first.shape) == 2:
        channels = 1
    rows, mean, deviation = _moments(files, codec, shape_of_row, channels, progress)
    shape = _shape(codec.kind, size, channels, first.shape, mean, deviation, str(files[0].path))
    places = [f"[VALUE{number}]" for number in range(shape.values)]
    return PatchTokenizer.of(symbol_tokenizer([PATCH, *places]), shape), rows


def write_patches(
    files: Sequence[RowFile],
    out: Path,
    codec: Codec,
    tokenizer: PatchTokenizer,
    heldout: float,
    rows: int | None,
    progress: Progress | None,
) -> BuiltSequences:
    """Writes the store, with one row in memory at a time; `rows` is how many come, if known. Raises
    InputError naming the row that has another shape than the tokenizer's.
    """
    with atomic_folder(out) as folder:
        writer = StoreWriter(folder, tokenizer, heldout, with_values=True)
        with writer:
            for done, (numbers, where) in enumerate(_rows(files, codec), start=1):
                tokenizer.shape.require_row(numbers.shape, where)
                values = tokenizer.shape.cut(numbers, where)
                writer.add([tokenizer.patch_id] * len(values), values.tobytes(), values)
                if progress is not None and (not done % 1000 or done == rows):
                    progress(done, rows, "rows written")
        return writer.finish([file.path for file in files], codec)


_EXPECTED = {
    "images": "an image as rows of pixels (height x width, or height x width x channels)",
    "series": "a series as a list of numbers, or of steps of several numbers",
}


def _rows(files: Sequence[RowFile], codec: Codec) -> Rows:
    for file in files:
        for row in stream_records(file):
            yield codec.numbers(row), row.where


def _moments(
    files: Sequence[RowFile],
    codec: Codec,
    shape_of_row: tuple[int, ...],
    channels: int,
    progress: Progress | None,
) -> tuple[int, list[float], list[float]]:
    """How many rows there are, and each channel's mean and deviation (Chan et al. 1979, row by row)."""
    rows, count = 0, 0
    mean, squares = np.zeros(channels), np.zeros(channels)
    for rows, (numbers, where) in enumerate(_rows(files, codec), start=1):
        found = numbers.shape if codec.kind == "images" else numbers.shape[1:]
        if found != shape_of_row:
            raise InputError(f"{where}: expected the shape of the first row, {shape_of_row}, found {found}.")
        steps = numbers.reshape(-1, channels)
        delta, total = steps.mean(0) - mean, count + len(steps)
        squares += steps.var(0) * len(steps) + delta**2 * count * len(steps) / total
        mean += delta * len(steps) / total
        count = total
        if progress is not None and not rows % 1000:
            progress(rows, None, "rows measured")
    deviation = np.sqrt(squares / max(count, 1))
    varies = deviation > _ROUNDING * np.abs(mean)
    return rows, mean.tolist(), np.where(varies, deviation, 1.0).tolist()


def _shape(
    kind: str,
    size: int,
    channels: int,
    row: tuple[int, ...],
    mean: Sequence[float],
    deviation: Sequence[float],
    where: str,
) -> PatchShape:
    values: dict[str, Any] = {"kind": kind, "size": size, "channels": channels}
    values |= {"mean": tuple(mean), "deviation": tuple(deviation)}
    if kind == "images":
        values |= {"height": row[0], "width": row[1]}
    try:
        return PatchShape.model_validate(values)
    except ValidationError as error:
        raise InputError(f"{where}: {first_problem(error, PatchShape)} Change --patch.") from error
