"""Tokenizers whose tokens carry numbers, and `load_tokenizer`, which finds the tokenizer of any folder.

Models with such tokens don't read running text, but rows:

- Numbers of tables: a row is words with blanks between them, such as age:41.5 city=Oslo. A number is the
  token of its column with the normalised number as its value: its embedding is the token's plus the value
  times one vector (after Golkar et al. 2023, arXiv 2310.02989, section 2). Every other cell is a token.
- Patches: a row of numbers is cut into patches of P values each: squares of an image (Dosovitskiy et al.
  2021, section 3.1) or windows of a series (Nie et al. 2023, section 3.1). Each one is the token [PATCH]
  with its normalised values.

n tokens of a row: its cells or its patches; P values of a token, 1 for a cell; C channels.
"""

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, Self, TypeVar

import numpy as np
import numpy.typing as npt
from pydantic import Field, ValidationError, model_validator

from bertsmith.arrays import Float32s, Int32s
from bertsmith.errors import InputError, TokenizerError
from bertsmith.files import read_json, write_json
from bertsmith.text.files.values import LARGEST, as_number
from bertsmith.text.tokens.long_texts import TextEncoding, WordEncodings
from bertsmith.text.tokens.tokenizer import Encoding, Tokenizer
from bertsmith.validation import Strict, describe_problem

PATCHES, NUMBERS = "patches.json", "numbers.json"
VALUE_FILES = (PATCHES, NUMBERS)  # beside tokenizer.json, where tokens carry values
PATCH = "[PATCH]"
MAX_PATCH_VALUES = 65_536
VALUE = "[VALUE0]"
_MAX_DEVIATIONS = 10.0  # numbers further from the mean are clipped to this many standard deviations
Settings = TypeVar("Settings", bound=Strict)


@dataclass(frozen=True)
class RowEncoding:
    """A row's tokens: ids (n,), values (n, P), and offsets (n, 2), which are zeros: rows have none."""

    ids: Sequence[int]
    offsets: Int32s
    values: Float32s


class ValueTokenizer(Tokenizer):
    """Reads rows whose tokens have values.

    The last P tokens of the vocabulary stand for the P positions of a value: their embeddings are the weights
    of the linear layer that reads the values, and of the one that predicts them
    (bertsmith.model.layers.embeddings).
    """

    file: ClassVar[str]  # the name of the file with the scaling, beside tokenizer.json

    @property
    def row_kind(self) -> str:
        """What kind of rows it reads, for messages: images, series."""
        raise NotImplementedError

    @property
    def scaling(self) -> Strict:
        """The settings that turn numbers into values, saved beside the vocabulary."""
        raise NotImplementedError

    @cached_property
    def sha256(self) -> str:
        """The SHA-256 of the vocabulary and the scaling, since another scaling gives other values."""
        return hashlib.sha256((self._json + self.scaling.model_dump_json()).encode()).hexdigest()

    def encode_pieces(self, texts: Sequence[str], enough: int | None = None) -> Sequence[TextEncoding]:
        """The tokens of each row, at most `enough` of each. Raises InputError for what is no such row."""
        return [self.encode_row(text, enough) for text in texts]

    def encode_row(self, text: str, enough: int | None) -> RowEncoding:
        """The tokens and values of one row, at most `enough`. Raises InputError for a text that is no row."""
        raise NotImplementedError

    def encode(self, text: str, *, read_special_tokens: bool = False) -> Encoding:
        raise self._not_text_error()

    def encode_batch(self, texts: Sequence[str], enough: int | None = None) -> list[Sequence[int]]:
        raise self._not_text_error()

    def encode_words(self, words: Sequence[str]) -> WordEncodings:
        raise self._not_text_error()

    def save(self, folder: Path | str, *, segments: bool = True, max_length: int = 512) -> None:
        """Writes the files that `Tokenizer.save` writes, and the scaling beside them."""
        super().save(folder, segments=segments, max_length=max_length)
        write_json(Path(folder) / self.file, self.scaling.model_dump(mode="json"))

    def _not_text_error(self) -> InputError:
        return InputError(
            f"This model reads {self.row_kind}, not text: classification and regression take it, other tasks "
            "and commands don't."
        )


def require_text(tokenizer: Tokenizer, what: str) -> None:
    """Raises InputError if the tokenizer reads rows of values; `what` names what needs text."""
    if isinstance(tokenizer, ValueTokenizer):
        raise InputError(
            f"{what} is for models of text and symbols; this one reads {tokenizer.row_kind}. Use predict."
        )


class NumberScale(Strict):
    """A column's token, which ends with a colon, and the mean and standard deviation of its numbers."""

    piece: str = Field(pattern=":$")
    mean: float = Field(allow_inf_nan=False)
    deviation: float = Field(gt=0, allow_inf_nan=False)

    def normalise(self, number: float) -> float:
        """The number in standard deviations from the mean, clipped to ±10."""
        return min(max((number - self.mean) / self.deviation, -_MAX_DEVIATIONS), _MAX_DEVIATIONS)


class NumberScales(Strict):
    """The content of numbers.json: the scales of a table's columns of numbers."""

    format_version: Literal[1] = 1
    columns: tuple[NumberScale, ...]


class SpelledNumber(NamedTuple):
    """A word such as age:41.5, parsed: the scale of its column, and the number as it is spelled."""

    scale: NumberScale
    number: str


def parse_spelled_number(word: str, scales: Mapping[str, NumberScale]) -> SpelledNumber | None:
    """The column and number of a word such as age:41.5; None for any other word.

    `scales` maps the tokens of the columns ("age:") to their scales.
    """
    name, colon, number = word.rpartition(":")
    scale = scales.get(name + colon) if colon else None
    return None if scale is None else SpelledNumber(scale, number)


class NumberTokenizer(ValueTokenizer):
    """Reads the rows of a table with numbers. `scales` and `ids` are looked up by token."""

    file = NUMBERS
    scales: dict[str, NumberScale]
    ids: dict[str, int]

    @classmethod
    def of(cls, tokenizer: Tokenizer, scales: NumberScales) -> "NumberTokenizer":
        """A tokenizer with the vocabulary of `tokenizer`: the columns' tokens, and [VALUE0] as its last.

        Raises TokenizerError for any other vocabulary.
        """
        result = cls(tokenizer.backend, tokenizer._special)
        result.scales = {scale.piece: scale for scale in scales.columns}
        result.ids = {token: token_id for token_id, token in enumerate(tokenizer.pieces)}
        missing = [token for token in result.scales if token not in result.ids]
        if missing or tokenizer.pieces[-1] != VALUE:
            raise TokenizerError(
                f"{NUMBERS} names {', '.join(missing) or VALUE}, which the vocabulary doesn't have in its "
                "place. The files don't belong together."
            )
        return result

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (NumberTokenizer.of, super().__reduce__(), self.scaling)

    @property
    def row_kind(self) -> str:
        return "tables with their numbers as they are"

    @property
    def scaling(self) -> NumberScales:
        return NumberScales(columns=tuple(self.scales.values()))

    def encode_row(self, text: str, enough: int | None) -> RowEncoding:
        """A token for each cell, and its value (n, 1). Raises InputError for what should be a number."""
        words = text.split()[:enough]
        ids, values = [], np.zeros((len(words), 1), np.float32)
        for index, word in enumerate(words):
            spelled = parse_spelled_number(word, self.scales)
            if spelled is None:
                ids.append(self.ids.get(word, self.unk_id))
            else:
                number = as_number(spelled.number, f"The cell {word[:60]!r}")
                ids.append(self.ids[spelled.scale.piece])
                values[index] = spelled.scale.normalise(number)
        return RowEncoding(ids, np.zeros((len(ids), 2), np.int32), values)


class PatchShape(Strict):
    """How a row of numbers becomes patches; the content of patches.json.

    An image is a row of `height` x `width` x `channels` numbers, cut into squares with sides of `size`. A
    series is steps of `channels` numbers, cut into windows of `size` steps, the last one padded with the
    mean. `mean` and `deviation` (C,) are those of all rows that the store was built from.
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
    def _check_sizes(self) -> Self:
        if self.kind == "images" and (
            not self.height or not self.width or self.height % self.size or self.width % self.size
        ):
            raise ValueError(
                f"images of {self.height} x {self.width} can't be cut into squares of {self.size}: choose a "
                "side that divides both"
            )
        if self.values > MAX_PATCH_VALUES:
            raise ValueError(f"a patch has {self.values:,} values; at most {MAX_PATCH_VALUES:,} are possible")
        if not len(self.mean) == len(self.deviation) == self.channels:
            raise ValueError(f"expected {self.channels} means and deviations, one a channel")
        if not all(map(math.isfinite, self.mean)) or not all(
            0 < deviation < math.inf for deviation in self.deviation
        ):
            raise ValueError("means must be finite, and deviations positive too")
        return self

    @property
    def values(self) -> int:
        """P, the number of values of a patch."""
        return self.channels * self.size ** (2 if self.kind == "images" else 1)

    def require_row(self, shape: tuple[int, ...], where: str) -> None:
        """Raises InputError for a nested row with other axes than the store's rows, such as channels first.

        Its numbers may be as many and would be read in the wrong order. A flat row always passes. `where`
        names the row in the message.
        """
        inner = () if self.channels == 1 else (self.channels,)
        expected = (self.height, self.width, *inner) if self.kind == "images" else (shape[0], *inner)
        allowed = {expected, (*expected, 1)} if self.channels == 1 else {expected}
        if len(shape) > 1 and shape not in allowed:
            axes = " x ".join(map(str, expected if self.kind == "images" else ("steps", *inner)))
            raise InputError(
                f"{where}: expected rows of {axes} numbers, as the store was built of; found "
                f"{' x '.join(map(str, shape))}. Put its axes into that order."
            )

    def cut(self, numbers: npt.ArrayLike, where: str) -> Float32s:
        """The normalised values (n, P) of a row's patches.

        Raises InputError, with the row's name `where`, for a wrong number of values and for one not finite.
        """
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
            image = self._normalise(flat, where).reshape(rows, side, columns, side, self.channels)
            squares: Float32s = image.transpose(0, 2, 1, 3, 4).reshape(rows * columns, self.values)
            return squares
        if not len(flat) or len(flat) % self.channels:
            raise InputError(
                f"{where}: expected steps of {self.channels} numbers, at least one step, found "
                f"{len(flat):,} numbers."
            )
        steps = self._normalise(flat, where)  # (T, C)
        return np.pad(steps, ((0, -len(steps) % self.size), (0, 0))).reshape(-1, self.values)

    def _normalise(self, flat: npt.NDArray[np.float64], where: str) -> Float32s:
        """(T·C,) → (T, C), T steps or pixels. Raises InputError for what is too large for float32."""
        steps = (flat.reshape(-1, self.channels) - np.array(self.mean)) / np.array(self.deviation)
        too_far = np.abs(steps) > LARGEST
        if too_far.any():
            step, channel = map(int, np.argwhere(too_far)[0])
            raise InputError(
                f"{where}: {flat[step * self.channels + channel]:g} is more than {LARGEST:g} deviations from "
                "the mean of the rows that the store was built of. Mend the row, or build the store with "
                "rows like it."
            )
        values: Float32s = steps.astype(np.float32)
        return values


class PatchTokenizer(ValueTokenizer):
    """Reads images or series: rows of numbers with blanks between them, cut into patches of `shape`."""

    file = PATCHES
    shape: PatchShape
    patch_id: int

    @classmethod
    def of(cls, tokenizer: Tokenizer, shape: PatchShape) -> "PatchTokenizer":
        """A tokenizer with the vocabulary of `tokenizer`, which ends with [PATCH] and a token per value.

        Raises TokenizerError for any other vocabulary.
        """
        result = cls(tokenizer.backend, tokenizer._special)
        result.shape, result.patch_id = shape, tokenizer.token_to_id(PATCH)
        if result.vocab_size != result.patch_id + 1 + shape.values:
            raise TokenizerError(
                f"{PATCHES} describes patches of {shape.values:,} values, but the vocabulary has places for "
                f"{result.vocab_size - result.patch_id - 1:,}. The files don't belong together."
            )
        return result

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (PatchTokenizer.of, super().__reduce__(), self.shape)

    @property
    def row_kind(self) -> str:
        return self.shape.kind

    @property
    def scaling(self) -> PatchShape:
        return self.shape

    def encode_row(self, text: str, enough: int | None) -> RowEncoding:
        """[PATCH] n times, and the values (n, P). Raises InputError for a text that isn't numbers."""
        try:
            numbers = np.array(text.replace("_", "?").split(), np.float64)  # NumPy reads 1_0 as 10
        except ValueError as error:
            raise InputError(
                f"Expected numbers with blanks between them, for the model reads {self.shape.kind}; found "
                f"{text[:60]!r}. `bertsmith sequences encode` writes such rows."
            ) from error
        values = self.shape.cut(numbers, f"The row {text[:40]}…")[:enough]
        return RowEncoding([self.patch_id] * len(values), np.zeros((len(values), 2), np.int32), values)


def _restore(
    wrap: Callable[[Tokenizer, Settings], Tokenizer], parts: tuple[Any, ...], scaling: Settings
) -> Tokenizer:
    """Unpickles a tokenizer; `parts` is what the pickled `Tokenizer.__reduce__` returned."""
    build_tokenizer, arguments = parts
    return wrap(build_tokenizer(*arguments), scaling)


def load_tokenizer(folder: Path | str) -> Tokenizer:
    """The tokenizer of a folder: a plain one, or one of patches or of a table's numbers if its file is there.

    Raises TokenizerError for files that are cut, altered, or don't belong together.
    """
    tokenizer, folder = Tokenizer.load(folder), Path(folder)
    if (folder / PATCHES).is_file():
        return PatchTokenizer.of(tokenizer, _read_scaling(folder / PATCHES, PatchShape))
    if (folder / NUMBERS).is_file():
        return NumberTokenizer.of(tokenizer, _read_scaling(folder / NUMBERS, NumberScales))
    return tokenizer


def _read_scaling(path: Path, settings: type[Settings]) -> Settings:
    try:
        return settings.model_validate(read_json(path))
    except (ValidationError, InputError) as error:
        problem = describe_problem(error, settings) if isinstance(error, ValidationError) else str(error)
        raise TokenizerError(f"{path} was cut or altered: {problem}") from error
