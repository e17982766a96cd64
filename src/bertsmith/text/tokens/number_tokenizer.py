"""Rows of tables whose numbers are read as they are: the tokenizer of models that read such tables.

A row is words with blanks between them: age:41.5 city=Oslo. A number is its column's piece with the number
beside it, normalised: the embedding is that of the piece plus the number times one vector (after Golkar et
al. 2023, arXiv 2310.02989, section 2). Other cells are pieces of their own.

n cells of a row; P is 1.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from pydantic import Field

from bertsmith.errors import TokenizerError
from bertsmith.files import write_json
from bertsmith.text.files.values import as_number
from bertsmith.text.tokens.tokenizer import Tokenizer
from bertsmith.text.tokens.value_tokenizer import ValuePieces, ValueTokenizer
from bertsmith.validation import Strict

NUMBERS = "numbers.json"  # beside tokenizer.json
VALUE = "[VALUE0]"
_FURTHEST = 10.0  # deviations from the mean: what lies beyond is taken for that


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


def as_spelled_number(word: str, scales: Mapping[str, NumberScale]) -> SpelledNumber | None:
    """None for a word that is none of a column of numbers; `scales` are by their pieces."""
    name, colon, number = word.rpartition(":")
    scale = scales.get(name + colon) if colon else None
    return None if scale is None else SpelledNumber(scale, number)


class NumberTokenizer(ValueTokenizer):
    """Of one table's columns; `scales` are by their pieces."""

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
        return _again, (super().__reduce__(), self._saved_scales())

    @property
    def reads(self) -> str:
        return "tables with their numbers as they are"

    @property
    def scaling(self) -> str:
        return self._saved_scales().model_dump_json()

    def pieces_of_row(self, text: str, enough: int | None) -> ValuePieces:
        """A piece a cell, and the numbers (n, 1). Raises InputError for a number that is none."""
        words = text.split()[:enough]
        ids, values = [], np.zeros((len(words), 1), np.float32)
        for place, word in enumerate(words):
            spelled = as_spelled_number(word, self.scales)
            if spelled is None:
                ids.append(self.ids.get(word, self.unk_id))
            else:
                number = as_number(spelled.number, f"The cell {word[:60]!r}")
                ids.append(self.ids[spelled.scale.piece])
                values[place] = spelled.scale.normalised(number)
        return ValuePieces(ids, np.zeros((len(ids), 2), np.int32), values)

    def save(self, folder: Path | str, *, segments: bool = True, max_length: int = 512) -> None:
        """As `Tokenizer.save`, and the columns' scales."""
        super().save(folder, segments=segments, max_length=max_length)
        write_json(Path(folder) / NUMBERS, self._saved_scales().model_dump(mode="json"))

    def _saved_scales(self) -> NumberScales:
        return NumberScales(columns=tuple(self.scales.values()))


def _again(parts: tuple[Any, ...], scales: NumberScales) -> NumberTokenizer:
    make, arguments = parts
    return NumberTokenizer.of(make(*arguments), scales)
