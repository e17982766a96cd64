"""Numbers as patches: the tokenizer of models that read images and series.

A row of numbers is cut into patches of P values each: squares of an image (Dosovitskiy et al. 2021, section
3.1) or windows of a series (Nie et al. 2023, section 3.1). Each is the token [PATCH] with its values beside
it, normalised.

n patches of a row, P values of a patch, C channels.
"""

import math
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import numpy.typing as npt
from pydantic import Field, model_validator

from bertsmith.errors import InputError, TokenizerError
from bertsmith.files import write_json
from bertsmith.text.files.values import LARGEST
from bertsmith.text.tokens.tokenizer import Tokenizer
from bertsmith.text.tokens.value_tokenizer import ValuePieces, ValueTokenizer
from bertsmith.validation import Strict

PATCHES = "patches.json"  # beside tokenizer.json
PATCH = "[PATCH]"
MOST_VALUES = 65_536  # of a patch
Floats = npt.NDArray[np.float32]


class PatchShape(Strict):
    """How a row of numbers becomes patches. images: a row is `height` x `width` x `channels` numbers, cut
    into squares of `size`. series: steps of `channels` numbers, cut into windows of `size` steps, the last
    one filled up with the mean. `mean` and `deviation` (C,) are those of all rows that a store was built of.
    """

    format_version: Literal[1] = 1
    kind: Literal["images", "series"]
    size: int = Field(ge=1, le=4096)
    channels: int = Field(1, ge=1, le=4096)
    height: int = Field(0, ge=0, le=65_536)
    width: int = Field(0, ge=0, le=65_536)
    mean: tuple[float, ...]
    deviation: tuple[float, ...]

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.kind == "images" and (
            not self.height or not self.width or self.height % self.size or self.width % self.size
        ):
            raise ValueError(
                f"images of {self.height} x {self.width} can't be cut into squares of {self.size}: choose a "
                "side that divides both"
            )
        if self.values > MOST_VALUES:
            raise ValueError(f"a patch has {self.values:,} values; at most {MOST_VALUES:,} are possible")
        if not len(self.mean) == len(self.deviation) == self.channels:
            raise ValueError(f"expected {self.channels} means and deviations, one a channel")
        if not all(map(math.isfinite, self.mean)) or not all(0 < each < math.inf for each in self.deviation):
            raise ValueError("means must be finite, and deviations positive too")
        return self

    @property
    def values(self) -> int:
        """P."""
        return self.channels * self.size ** (2 if self.kind == "images" else 1)

    def require_row(self, shape: tuple[int, ...], where: str) -> None:
        """Raises InputError for a nested row whose axes are others than those of the store's rows, which has
        as many numbers all the same. A flat row may be any.
        """
        inner = () if self.channels == 1 else (self.channels,)
        expected = (self.height, self.width, *inner) if self.kind == "images" else (shape[0], *inner)
        alike = {expected, (*expected, 1)} if self.channels == 1 else {expected}
        if len(shape) > 1 and shape not in alike:
            axes = " x ".join(map(str, expected if self.kind == "images" else ("steps", *inner)))
            raise InputError(
                f"{where}: expected rows of {axes} numbers, as the store was built of; found "
                f"{' x '.join(map(str, shape))}. Put its axes into that order."
            )

    def cut(self, numbers: npt.ArrayLike, where: str) -> Floats:
        """(n, P) of a row, normalised. Raises InputError for a wrong number of values, or one not finite."""
        flat = np.asarray(numbers, np.float64).reshape(-1)
        if not np.isfinite(flat).all():
            raise InputError(f"{where}: expected finite numbers, found {flat[~np.isfinite(flat)][0]}.")
        if self.kind == "images":
            expected = self.height * self.width * self.channels
            if len(flat) != expected:
                raise InputError(
                    f"{where}: expected an image of {self.height} x {self.width} x {self.channels}, so "
                    f"{expected:,} numbers, found {len(flat):,}."
                )
            side, rows, columns = self.size, self.height // self.size, self.width // self.size
            whole = self._normalised(flat, where).reshape(rows, side, columns, side, self.channels)
            squares: Floats = whole.transpose(0, 2, 1, 3, 4).reshape(rows * columns, self.values)
            return squares
        if not len(flat) or len(flat) % self.channels:
            raise InputError(
                f"{where}: expected steps of {self.channels} numbers, at least one step, found "
                f"{len(flat):,} numbers."
            )
        steps = self._normalised(flat, where)  # (T, C)
        return np.pad(steps, ((0, -len(steps) % self.size), (0, 0))).reshape(-1, self.values)

    def _normalised(self, flat: npt.NDArray[np.float64], where: str) -> Floats:
        """(T·C,) -> (T, C). Raises InputError for what is so far from the mean that float32 can't hold it."""
        steps = (flat.reshape(-1, self.channels) - np.array(self.mean)) / np.array(self.deviation)
        far = np.abs(steps) > LARGEST
        if far.any():
            step, channel = map(int, np.argwhere(far)[0])
            raise InputError(
                f"{where}: {flat[step * self.channels + channel]:g} is more than {LARGEST:g} deviations from "
                "the mean of the rows that the store was built of. Mend the row, or build the store with "
                "rows like it."
            )
        single: Floats = steps.astype(np.float32)
        return single


class PatchTokenizer(ValueTokenizer):
    """Reads rows of numbers with blanks between them."""

    shape: PatchShape
    patch_id: int

    @classmethod
    def of(cls, tokenizer: Tokenizer, shape: PatchShape) -> "PatchTokenizer":
        """A vocabulary that ends with the places of a patch's values, and the shape of a row."""
        made = cls(tokenizer.backend, tokenizer._special)
        made.shape, made.patch_id = shape, tokenizer.token_to_id(PATCH)
        if made.vocab_size != made.patch_id + 1 + shape.values:
            raise TokenizerError(
                f"{PATCHES} describes patches of {shape.values:,} values, but the vocabulary has places for "
                f"{made.vocab_size - made.patch_id - 1:,}. The files don't belong together."
            )
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        return _again, (super().__reduce__(), self.shape)

    @property
    def reads(self) -> str:
        return self.shape.kind

    @property
    def scaling(self) -> str:
        return self.shape.model_dump_json()

    def save(self, folder: Path | str, *, segments: bool = True, max_length: int = 512) -> None:
        """As `Tokenizer.save`, and the shape of a row."""
        super().save(folder, segments=segments, max_length=max_length)
        write_json(Path(folder) / PATCHES, self.shape.model_dump(mode="json"))

    def pieces_of_row(self, text: str, enough: int | None) -> ValuePieces:
        """[PATCH] n times, and the values. Raises InputError for what are no numbers."""
        try:
            numbers = np.array(text.split(), np.float64)
        except ValueError as error:
            raise InputError(
                f"Expected numbers with blanks between them, for the model reads {self.shape.kind}; found "
                f"{text[:60]!r}. `bertsmith sequences encode` writes such rows."
            ) from error
        values = self.shape.cut(numbers, f"The row {text[:40]}…")[:enough]
        return ValuePieces([self.patch_id] * len(values), np.zeros((len(values), 2), np.int32), values)


def _again(parts: tuple[Any, ...], shape: PatchShape) -> PatchTokenizer:
    make, arguments = parts
    return PatchTokenizer.of(make(*arguments), shape)
