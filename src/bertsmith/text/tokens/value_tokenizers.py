"""Tokenizers whose tokens carry numbers, and which tokenizer a folder has.

Models that read such tokens read no running text, but rows:

numbers of tables   A row is words with blanks between them: age:41.5 city=Oslo. A number is its column's
piece with the number beside it, normalised: the embedding is that of the piece plus the number times one
vector (after Golkar et al. 2023, arXiv 2310.02989, section 2). Other cells are pieces of their own. patches
A row of numbers is cut into patches of P values each: squares of an image (Dosovitskiy et al. 2021, section
3.1) or windows of a series (Nie et al. 2023, section 3.1). Each is the token [PATCH] with its values beside
it, normalised.

n tokens of a row: its cells or its patches; P values of a token, of a cell 1; C channels.
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
from bertsmith.validation import Strict, first_problem

PATCHES, NUMBERS = "patches.json", "numbers.json"
VALUE_FILES = (PATCHES, NUMBERS)  # beside tokenizer.json, where tokens carry values
PATCH = "[PATCH]"
MOST_VALUES = 65_536  # of a patch
VALUE = "[VALUE0]"
_FURTHEST = 10.0  # deviations from the mean: what lies beyond is taken for that
Settings = TypeVar("Settings", bound=Strict)


@dataclass(frozen=True)
class RowEncoding:
    """A row as pieces: ids (n,), and the values (n, P) beside them."""

    ids: Sequence[int]
    offsets: Int32s
    values: Float32s


class ValueTokenizer(Tokenizer):
    """Reads rows whose tokens have values. The vocabulary's last P pieces stand for the values' places: their
    embeddings are the linear layer that reads them, and the one that predicts them (see
    bertsmith.model.layers.embeddings).
    """

    file: ClassVar[str]  # beside tokenizer.json, with the scaling

    @property
    def reads(self) -> str:
        """What it reads, for messages: images, series."""
        raise NotImplementedError

    @property
    def scaling(self) -> Strict:
        """What beside the vocabulary decides which values a row has."""
        raise NotImplementedError

    @cached_property
    def sha256(self) -> str:
        """Of the vocabulary and the scaling: that of another data set's rows would give other values."""
        return hashlib.sha256((self._json + self.scaling.model_dump_json()).encode()).hexdigest()

    def encode_pieces(self, texts: Sequence[str], enough: int | None = None) -> Sequence[TextEncoding]:
        """The tokens of each row, at most `enough`. Raises InputError for what is no such row."""
        return [self.pieces_of_row(text, enough) for text in texts]

    def pieces_of_row(self, text: str, enough: int | None) -> RowEncoding:
        """Of one row."""
        raise NotImplementedError

    def encode(self, text: str, *, read_special_tokens: bool = False) -> Encoding:
        raise self._only_rows()

    def encode_batch(self, texts: Sequence[str], enough: int | None = None) -> list[Sequence[int]]:
        raise self._only_rows()

    def encode_words(self, words: Sequence[str]) -> WordEncodings:
        raise self._only_rows()

    def save(self, folder: Path | str, *, segments: bool = True, max_length: int = 512) -> None:
        """As `Tokenizer.save`, and the scaling."""
        super().save(folder, segments=segments, max_length=max_length)
        write_json(Path(folder) / self.file, self.scaling.model_dump(mode="json"))

    def _only_rows(self) -> InputError:
        return InputError(
            f"This model reads {self.reads}, not text: classification and regression take it, other tasks "
            "and commands don't."
        )


def require_text(tokenizer: Tokenizer, what: str) -> None:
    """Raises InputError where `what` is for text, and the model reads values."""
    if isinstance(tokenizer, ValueTokenizer):
        raise InputError(
            f"{what} is for models of text and symbols; this one reads {tokenizer.reads}. Use predict."
        )


class NumberScale(Strict):
    """The mean and the deviation of the training rows' numbers in a column, whose piece ends with a colon."""

    piece: str = Field(pattern=":$")
    mean: float = Field(allow_inf_nan=False)
    deviation: float = Field(gt=0, allow_inf_nan=False)

    def normalised(self, number: float) -> float:
        """In deviations from the mean, ten at most."""
        return min(max((number - self.mean) / self.deviation, -_FURTHEST), _FURTHEST)


class NumberScales(Strict):
    """Those of a table's columns of numbers."""

    format_version: Literal[1] = 1
    columns: tuple[NumberScale, ...]


class SpelledNumber(NamedTuple):
    """A word such as age:41.5, taken apart."""

    scale: NumberScale
    number: str


def parse_spelled_number(word: str, scales: Mapping[str, NumberScale]) -> SpelledNumber | None:
    """None for a word that is none of a column of numbers; `scales` are by their pieces."""
    name, colon, number = word.rpartition(":")
    scale = scales.get(name + colon) if colon else None
    return None if scale is None else SpelledNumber(scale, number)


class NumberTokenizer(ValueTokenizer):
    """Of one table's columns; `scales` are by their pieces."""

    file = NUMBERS
    scales: dict[str, NumberScale]
    ids: dict[str, int]

    @classmethod
    def of(cls, tokenizer: Tokenizer, scales: NumberScales) -> "NumberTokenizer":
        """A vocabulary that has the columns' pieces, and ends with the place of their value."""
        made = cls(tokenizer.backend, tokenizer._special)
        made.scales = {scale.piece: scale for scale in scales.columns}
        made.ids = {piece: number for number, piece in enumerate(tokenizer.pieces)}
        lacking = [piece for piece in made.scales if piece not in made.ids]
        if lacking or tokenizer.pieces[-1] != VALUE:
            raise TokenizerError(
                f"{NUMBERS} names {', '.join(lacking) or VALUE}, which the vocabulary doesn't have in its "
                "place. The files don't belong together."
            )
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (NumberTokenizer.of, super().__reduce__(), self.scaling)

    @property
    def reads(self) -> str:
        return "tables with their numbers as they are"

    @property
    def scaling(self) -> NumberScales:
        return NumberScales(columns=tuple(self.scales.values()))

    def pieces_of_row(self, text: str, enough: int | None) -> RowEncoding:
        """A piece a cell, and the numbers (n, 1). Raises InputError for a number that is none."""
        words = text.split()[:enough]
        ids, values = [], np.zeros((len(words), 1), np.float32)
        for place, word in enumerate(words):
            spelled = parse_spelled_number(word, self.scales)
            if spelled is None:
                ids.append(self.ids.get(word, self.unk_id))
            else:
                number = as_number(spelled.number, f"The cell {word[:60]!r}")
                ids.append(self.ids[spelled.scale.piece])
                values[place] = spelled.scale.normalised(number)
        return RowEncoding(ids, np.zeros((len(ids), 2), np.int32), values)


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

    def cut(self, numbers: npt.ArrayLike, where: str) -> Float32s:
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
            squares: Float32s = whole.transpose(0, 2, 1, 3, 4).reshape(rows * columns, self.values)
            return squares
        if not len(flat) or len(flat) % self.channels:
            raise InputError(
                f"{where}: expected steps of {self.channels} numbers, at least one step, found "
                f"{len(flat):,} numbers."
            )
        steps = self._normalised(flat, where)  # (T, C)
        return np.pad(steps, ((0, -len(steps) % self.size), (0, 0))).reshape(-1, self.values)

    def _normalised(self, flat: npt.NDArray[np.float64], where: str) -> Float32s:
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
        single: Float32s = steps.astype(np.float32)
        return single


class PatchTokenizer(ValueTokenizer):
    """Reads rows of numbers with blanks between them."""

    file = PATCHES
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
        return _restore, (PatchTokenizer.of, super().__reduce__(), self.shape)

    @property
    def reads(self) -> str:
        return self.shape.kind

    @property
    def scaling(self) -> PatchShape:
        return self.shape

    def pieces_of_row(self, text: str, enough: int | None) -> RowEncoding:
        """[PATCH] n times, and the values. Raises InputError for what are no numbers."""
        try:
            numbers = np.array(text.split(), np.float64)
        except ValueError as error:
            raise InputError(
                f"Expected numbers with blanks between them, for the model reads {self.shape.kind}; found "
                f"{text[:60]!r}. `bertsmith sequences encode` writes such rows."
            ) from error
        values = self.shape.cut(numbers, f"The row {text[:40]}…")[:enough]
        return RowEncoding([self.patch_id] * len(values), np.zeros((len(values), 2), np.int32), values)


def _restore(
    of: Callable[[Tokenizer, Settings], Tokenizer], parts: tuple[Any, ...], scaling: Settings
) -> Tokenizer:
    """What pickle calls: `parts` are those of the tokenizer that the vocabulary belongs to."""
    make, arguments = parts
    return of(make(*arguments), scaling)


def load_tokenizer(folder: Path | str) -> Tokenizer:
    """A folder's tokenizer, by its files: of text, of patches, or of a table's numbers.

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
        problem = first_problem(error, settings) if isinstance(error, ValidationError) else str(error)
        raise TokenizerError(f"{path} was cut or altered: {problem}") from error
