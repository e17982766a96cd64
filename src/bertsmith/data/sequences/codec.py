"""How rows become symbols: found once on the training rows, kept beside the store, used on every later file.

    sequences.json    kind, columns, and the bins of a table's numbers

Of a table's typed columns a number is the bin it falls into, a category itself:

    age = 41, city = Oslo    →    age:3  city=Oslo          an empty cell is age=?
                                  age:41 city=Oslo          where numbers are read as they are

Bins are quantiles (Gorishniy et al. 2022, section 3.2), so that each holds about as many cells. The position
of a cell in its row is its column.
"""

import math
import random
import re
from array import array
from bisect import bisect_right
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field, ValidationError
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers, processors

from bertsmith.data.sequences.records import SEQUENCE, SequenceRow
from bertsmith.data.store import CODEC_FILE
from bertsmith.errors import InputError, StoreError
from bertsmith.files import read_json
from bertsmith.text.files.columns import listed, unknown_column
from bertsmith.text.files.values import LARGEST, as_category, as_number, is_printed, shown
from bertsmith.text.tokens.tokenizer import Tokenizer
from bertsmith.text.tokens.tokenizer_json import MAX_PIECES
from bertsmith.text.tokens.value_tokenizers import NumberScale, NumberScales
from bertsmith.validation import Strict, first_problem

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
LONGEST_SYMBOL = 1000  # characters
_BLANK = re.compile(r"\s+")
_HALF_OF_A_PAIR = re.compile(r"[\ud800-\udfff]")
_NEVER = " "  # what a continued piece begins with: no symbol holds a blank, so there is none
SAMPLE = 100_000  # rows that are looked at: 8 bytes for each of their cells
_FEW = 12  # a column of so many different numbers or fewer is a category
_MOST = 0.5  # the share of numbers from which a column is one of numbers
NAMES = (SEQUENCE, "sequences", "events", "symbols", "tokens", "ids", "input_ids", "text")
NUMBERS = (SEQUENCE, "series", "values", "image", "images", "pixels")
_AROUND = 2  # special tokens of a sequence: [CLS] and [SEP]
Kind = Literal["symbols", "table", "series", "images"]


def as_symbol(value: object, where: str) -> str:
    """One item of a sequence as a symbol: integers and strings, white space in a string as "_".

    Raises InputError for anything else: numbers with a fraction have no vocabulary, and nulls no meaning.
    """
    if isinstance(value, bool) or not isinstance(value, int | str):
        if isinstance(value, float) and value.is_integer():  # pandas makes these of integers beside a null
            return str(int(value))
        raise InputError(
            f"{where}: expected integers or strings as the items of a sequence, found {shown(value)}. "
            "Measured numbers are read with --kind table, one a column."
        )
    symbol = _BLANK.sub("_", value.strip()) if isinstance(value, str) else str(value)
    if not symbol or symbol in SPECIAL or len(symbol) > LONGEST_SYMBOL:
        raise InputError(
            f"{where}: {shown(value)} can't be an item of a sequence: it is empty, longer than "
            f"{LONGEST_SYMBOL:,} characters, or a special token. Rename it."
        )
    if _HALF_OF_A_PAIR.search(symbol):
        raise InputError(
            f"{where}: {shown(value)} can't be an item of a sequence: it has half of a character, which was "
            "cut within a UTF-16 pair. Mend the text."
        )
    return symbol


def spell_number(number: float) -> str:
    """With every digit that it takes to read the same number again: 3 for 3.0."""
    return repr(number).removesuffix(".0")


def choose_symbols(counts: Counter[str], min_count: int, vocab_size: int) -> list[str]:
    """The most frequent symbols that occur at least `min_count` times, at most `vocab_size` tokens with the
    special ones; of equally frequent ones those first in the alphabet. Raises InputError when none is left.
    """
    frequent = ((symbol, count) for symbol, count in counts.items() if count >= min_count)
    ranked = sorted(frequent, key=lambda each: (-each[1], each[0]))
    kept = [symbol for symbol, _ in ranked[: min(vocab_size, MAX_PIECES) - len(SPECIAL)]]
    if not kept:
        raise InputError(
            f"None of {len(counts):,} different symbols occurs {min_count} times or more. Lower --min-count."
        )
    return kept


def build_symbol_tokenizer(symbols: Iterable[str]) -> Tokenizer:
    """A tokenizer whose ids are the five special tokens', then the symbols' in their order."""
    vocabulary = {piece: number for number, piece in enumerate((*SPECIAL, *symbols))}
    model = models.WordPiece(
        vocabulary,
        unk_token="[UNK]",
        max_input_chars_per_word=LONGEST_SYMBOL,
        continuing_subword_prefix=_NEVER,
    )
    backend = Backend(model)
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.decoder = decoders.WordPiece(prefix=_NEVER, cleanup=False)
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS]:0 $A:0 [SEP]:0",
        pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
        special_tokens=[(token, vocabulary[token]) for token in ("[CLS]", "[SEP]")],
    )
    backend.add_special_tokens(list(SPECIAL))
    roles = ("pad", "unk", "cls", "sep", "mask")
    return Tokenizer(backend, dict(zip(roles, SPECIAL, strict=True)))


class TableColumn(Strict):
    """A column as it was found. A number has `edges` between its bins, ascending, or where it is read as it
    is `scale`: the mean and the deviation of its numbers. A category has neither.
    """

    name: str
    kind: Literal["number", "category"]
    edges: tuple[float, ...] = Field(())
    scale: tuple[float, float] | None = None

    def symbol(self, value: Any, where: str) -> str:
        """A cell as its symbol. Raises InputError for a number that is none."""
        if _is_empty(value):
            return as_symbol(f"{self.name}=?", where)
        if self.kind == "number":
            number = as_number(value, f"{where}, column {self.name}")
            bin_or_number = bisect_right(self.edges, number) if self.scale is None else spell_number(number)
            return as_symbol(f"{self.name}:{bin_or_number}", where)
        if isinstance(value, list | tuple | dict):
            raise InputError(
                f"{where}, column {self.name}: expected one value a cell, found {shown(value)}. Leave the "
                "column out (--leave-out), or make columns of its parts."
            )
        return as_symbol(f"{self.name}={as_category(value)}", where)


def find_columns(
    rows: Iterable[SequenceRow], names: Sequence[str], bins: int | None, categories: Collection[str] = ()
) -> tuple[TableColumn, ...]:
    """What each column holds: a number where every cell that isn't empty is one and more than a dozen differ,
    unless it is among the `categories`. `bins` None: numbers stay.

    Told from a sample of all `rows`, the same at every call, for a file may be sorted (Vitter 1985, algorithm
    R): each row is as likely to be in it as any other. Raises InputError naming the cell of a column of
    numbers that is none, such as NA: it would make a category of each number.
    """
    seen, chance = {name: _ColumnSample() for name in names}, random.Random(0)
    for number, row in enumerate(rows):
        place = number if number < SAMPLE else int(chance.random() * (number + 1))
        if place < SAMPLE:
            for name, found in seen.items():
                found.put(place, row.values.get(name), row.where)
    return tuple(
        TableColumn(name=name, kind="category") if name in categories else found.column(name, bins)
        for name, found in seen.items()
    )


class _ColumnSample:
    """A column's cells in the sample: its numbers, NaN for an empty cell and infinity for any other; and the
    first that was neither, perhaps no longer in the sample.
    """

    def __init__(self) -> None:
        self.cells = array("d")
        self.other: tuple[Any, str] | None = None

    def put(self, place: int, value: Any, where: str) -> None:
        """In the place of the cell that was there, or behind the last one."""
        number = math.nan
        if not _is_empty(value):
            try:
                number = as_number(value, "")
            except InputError:
                number, self.other = math.inf, self.other or (value, where)
        self.cells[place : place + 1] = array("d", [number])

    def column(self, name: str, bins: int | None) -> TableColumn:
        cells = np.array(self.cells)
        cells = cells[~np.isnan(cells)]
        numbers = cells[np.isfinite(cells)]
        if len(numbers) < _MOST * len(cells) or len(np.unique(numbers)) <= _FEW:
            return TableColumn(name=name, kind="category")
        if self.other is not None:
            value, where = self.other
            others = max(len(cells) - len(numbers), 1)  # this one, where another row took its place
            raise InputError(
                f"{where}: the column {name} holds numbers in {len(numbers):,} of {len(numbers) + others:,} "
                f"cells, here {shown(value)}. Leave such cells empty, or say that each number is a category "
                f"of its own: --categories {name}."
            )
        if bins is None:
            return TableColumn(
                name=name, kind="number", scale=(float(numbers.mean()), float(numbers.std()) or 1.0)
            )
        inner = np.linspace(0, 1, bins + 1)[1:-1]
        edges = sorted(set(np.quantile(numbers, inner).tolist()))
        return TableColumn(name=name, kind="number", edges=tuple(edges))


def _is_empty(value: Any) -> bool:
    if value is None or (isinstance(value, str) and not value.strip()):
        return True
    return isinstance(value, float) and math.isnan(value)


class Codec(Strict):
    """symbols: `column` holds the sequence, a list or a string, whose items stand between blanks or are its
    `characters`. table: a row is the sequence of its `columns`' cells. series, images: `column` holds lists
    of numbers, which the store's tokenizer cuts into patches.
    """

    format_version: Literal[1] = 1
    kind: Kind
    column: str | None = None
    characters: bool = False
    columns: tuple[TableColumn, ...] = ()

    @property
    def of_patches(self) -> bool:
        """Whether rows become patches of numbers rather than symbols."""
        return self.kind in ("series", "images")

    @property
    def has_fixed_places(self) -> bool:
        """Whether each place of a row means one thing: a column of a table, a square of an image."""
        return self.kind in ("table", "images")

    @property
    def scales(self) -> NumberScales:
        """Of a table's columns whose numbers are read as they are, perhaps none."""
        return NumberScales(
            columns=tuple(
                NumberScale(
                    piece=as_symbol(f"{column.name}:", ""), mean=column.scale[0], deviation=column.scale[1]
                )
                for column in self.columns
                if column.scale is not None
            )
        )

    @property
    def reads(self) -> tuple[str, ...]:
        """The columns that become symbols."""
        if self.kind == "table":
            return tuple(column.name for column in self.columns)
        return () if self.column is None else (self.column,)

    def symbols(self, row: SequenceRow) -> list[str]:
        """A row's symbols, perhaps none. Raises InputError naming file and row."""
        lacking = next((name for name in self.reads if name not in row.values), None)
        if lacking is not None:
            raise unknown_column(lacking, list(row.values), row.where)
        if self.kind == "table":
            return [column.symbol(row.values[column.name], row.where) for column in self.columns]
        return [as_symbol(item, row.where) for item in self._items(row)]

    def text(self, row: SequenceRow) -> str:
        """What the store's tokenizer reads of a row: symbols, or numbers, with blanks between them."""
        if not self.of_patches:
            return " ".join(self.symbols(row))
        return " ".join(map(spell_number, self.numbers(row).reshape(-1).tolist()))

    def numbers(self, row: SequenceRow) -> npt.NDArray[np.float64]:
        """A row of a series or an image, as it is nested. Raises InputError naming file and row."""
        if self.column not in row.values:
            raise unknown_column(str(self.column), list(row.values), row.where)
        value = row.values[self.column]
        try:
            found = np.array(value.split() if isinstance(value, str) else value, np.float64)
        except (ValueError, TypeError):
            found = np.zeros(0)
        if not found.ndim or not found.size or not np.isfinite(found).all():
            raise InputError(
                f"{row.where}: expected a list of finite numbers in the column {self.column}, as many in "
                f"one part of it as in another; found {shown(value)}. Mend the row, or name another "
                "with --column."
            )
        if (largest := float(np.abs(found).max())) > LARGEST:
            raise InputError(
                f"{row.where}: expected numbers within ±{LARGEST:g} in the column {self.column}, found one "
                f"of {largest:g}. Divide all of them."
            )
        return found

    def _items(self, row: SequenceRow) -> Sequence[Any]:
        value = row.values[str(self.column)]
        if value is None:
            return []
        if isinstance(value, str):
            # As pandas and NumPy print one. Brackets with blanks around them are items, braces perhaps code.
            closed = value.strip()
            if closed.startswith(("[", "(")) and not closed[-2:-1].isspace() and is_printed(closed):
                raise InputError(
                    f"{row.where}: expected a sequence in the column {self.column}, found a printed list, "
                    f"{shown(value)}. Save the table as JSON lines or Parquet, which hold lists."
                )
            return list("".join(value.split())) if self.characters else value.split()
        if isinstance(value, list | tuple):
            end = len(value)
            for item in reversed(value):  # negative numbers there make rows of an array equally long
                if not (isinstance(item, int | float) and item < 0 and float(item).is_integer()):
                    break
                end -= 1
            return value[:end]
        raise InputError(
            f"{row.where}: expected a sequence in the column {self.column}: a list, or a string of items "
            f"with blanks between them; found {shown(value)}. Name another with --column."
        )


def guess_column(names: Sequence[str], where: str, known: Sequence[str] = NAMES) -> str:
    """The column that holds the sequences: by its name, or since there is no other. Raises InputError."""
    found = [name for name in names if name.lower() in known]
    if len(names) == 1:
        return names[0]
    if len(found) != 1:
        which = "more than one column has" if found else "no column has"
        raise InputError(
            f"{where}: {which} a name that says it holds the sequences ({', '.join(known)}). There are: "
            f"{listed(names)}. Name one with --column."
        )
    return found[0]


def table_row_length(folder: Path | str) -> int | None:
    """How many tokens a row of a table's store has, [CLS] and [SEP] included, none of which may be left out:
    a cell's position is its column. None for other stores, and for folders that are none.
    """
    if not (Path(folder) / CODEC_FILE).is_file():
        return None
    codec = read_codec(folder)
    return len(codec.columns) + _AROUND if codec.kind == "table" else None


def read_codec(store: Path | str) -> Codec:
    """The one of a store. Raises StoreError when it is missing or was altered."""
    path = Path(store) / CODEC_FILE
    if not path.is_file():
        raise StoreError(
            f"{store} holds no {CODEC_FILE}. Make one: `bertsmith sequences build FILE --out {store}`."
        )
    try:
        return Codec.model_validate(read_json(path))
    except ValidationError as error:
        raise StoreError(
            f"{path} was altered: {first_problem(error, Codec)} Build the store again."
        ) from error
