"""The codec turns rows into symbols: it is fitted to the training rows, saved beside the store and used for
every later file.

    sequences.json    kind, columns, and the bins of a table's numbers

In a table a number becomes its bin, and a category becomes itself:

    age = 41, city = Oslo    →    age:3  city=Oslo          an empty cell is age=?
                                  age:41 city=Oslo          if numbers are read as they are

Bins are quantiles (Gorishniy et al. 2022, section 3.2), so that all have about as many cells. The position of
a cell in its row identifies its column.
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
from bertsmith.validation import Strict, describe_problem

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
LONGEST_SYMBOL = 1000  # characters
_BLANK = re.compile(r"\s+")
_LONE_SURROGATE = re.compile(r"[\ud800-\udfff]")
_UNUSED_PREFIX = " "  # of continuing tokens: no symbol contains a blank, so there are none
SAMPLE = 100_000  # rows of which the columns' types are found: 8 bytes for each of their cells
_MAX_CATEGORIES = 12  # a column of at most so many different numbers is a category
_LEAST_NUMBERS = 0.5  # the share of numbers from which on a column is one of numbers
NAMES = (SEQUENCE, "sequences", "events", "symbols", "tokens", "ids", "input_ids", "text")
NUMBERS = (SEQUENCE, "series", "values", "image", "images", "pixels")
_SPECIAL_TOKENS = 2  # special tokens of a sequence: [CLS] and [SEP]
Kind = Literal["symbols", "table", "series", "images"]


def as_symbol(value: object, where: str) -> str:
    """An item of a sequence, an integer or a string, as a symbol; white space in a string becomes "_".

    `where` is the row's location for messages. Raises InputError for anything else: numbers with a fraction
    would have no vocabulary, and nulls no meaning.
    """
    if isinstance(value, bool) or not isinstance(value, int | str):
        if isinstance(value, float) and value.is_integer():  # pandas turns integers beside a null into floats
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
    if _LONE_SURROGATE.search(symbol):
        raise InputError(
            f"{where}: {shown(value)} can't be an item of a sequence: it has half of a character, which was "
            "cut within a UTF-16 pair. Mend the text."
        )
    return symbol


def spell_number(number: float) -> str:
    """The shortest text from which the same number is read again: "3" for 3.0."""
    return repr(number).removesuffix(".0")


def choose_symbols(counts: Counter[str], min_count: int, vocab_size: int) -> list[str]:
    """The most frequent symbols that occur at least `min_count` times, at most `vocab_size` with the special
    tokens.

    Of equally frequent ones the first in the alphabet are taken. Raises InputError if there is none.
    """
    frequent = ((symbol, count) for symbol, count in counts.items() if count >= min_count)
    ranked = sorted(frequent, key=lambda item: (-item[1], item[0]))
    chosen = [symbol for symbol, _ in ranked[: min(vocab_size, MAX_PIECES) - len(SPECIAL)]]
    if not chosen:
        raise InputError(
            f"None of {len(counts):,} different symbols occurs {min_count} times or more. Lower --min-count."
        )
    return chosen


def build_symbol_tokenizer(symbols: Iterable[str]) -> Tokenizer:
    """A tokenizer whose vocabulary is the five special tokens and then the symbols, in their order."""
    vocabulary = {piece: number for number, piece in enumerate((*SPECIAL, *symbols))}
    model = models.WordPiece(
        vocabulary,
        unk_token="[UNK]",
        max_input_chars_per_word=LONGEST_SYMBOL,
        continuing_subword_prefix=_UNUSED_PREFIX,
    )
    backend = Backend(model)
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.decoder = decoders.WordPiece(prefix=_UNUSED_PREFIX, cleanup=False)
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS]:0 $A:0 [SEP]:0",
        pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
        special_tokens=[(token, vocabulary[token]) for token in ("[CLS]", "[SEP]")],
    )
    backend.add_special_tokens(list(SPECIAL))
    roles = ("pad", "unk", "cls", "sep", "mask")
    return Tokenizer(backend, dict(zip(roles, SPECIAL, strict=True)))


class TableColumn(Strict):
    """A column of a table and how its cells become symbols.

    A column of numbers has the ascending `edges` between its bins or, if numbers are read as they are, their
    `scale`: mean and standard deviation. A column of categories has neither.
    """

    name: str
    kind: Literal["number", "category"]
    edges: tuple[float, ...] = Field(())
    scale: tuple[float, float] | None = None

    def encode_cell(self, value: Any, where: str) -> str:
        """The symbol of a cell. Raises InputError for a cell that should be a number, and for a list."""
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
    """The columns `names` of a table, and which of them are numbers.

    These are columns whose cells are all empty or numbers, of which more than a dozen differ, unless they are
    among the `categories`. With `bins` None, numbers are read as they are. The types are found from a random
    sample of all `rows`, since a file may be sorted; it is the same at every call (Vitter 1985, algorithm R).
    Raises InputError, which names the cell, for a cell such as NA in a column of numbers: it would turn each
    number into a category.
    """
    samples, generator = {name: _ColumnSample() for name in names}, random.Random(0)
    for row_number, row in enumerate(rows):
        slot = row_number if row_number < SAMPLE else int(generator.random() * (row_number + 1))
        if slot < SAMPLE:
            for name, sample in samples.items():
                sample.put(slot, row.values.get(name), row.where)
    return tuple(
        TableColumn(name=name, kind="category") if name in categories else sample.describe(name, bins)
        for name, sample in samples.items()
    )


class _ColumnSample:
    """A column's cells in the sample: its numbers, NaN for an empty cell and infinity for any other cell.

    `other` is the first cell that was neither empty nor a number, even if it has left the sample.
    """

    def __init__(self) -> None:
        self.cells = array("d")
        self.other: tuple[Any, str] | None = None

    def put(self, slot: int, value: Any, where: str) -> None:
        """Puts a cell into a slot of the sample, or appends it if the slot is the next one."""
        number = math.nan
        if not _is_empty(value):
            try:
                number = as_number(value, "")
            except InputError:
                number, self.other = math.inf, self.other or (value, where)
        self.cells[slot : slot + 1] = array("d", [number])

    def describe(self, name: str, bins: int | None) -> TableColumn:
        """The column as the sample shows it. Raises InputError as `find_columns` does."""
        cells = np.array(self.cells)
        cells = cells[~np.isnan(cells)]
        numbers = cells[np.isfinite(cells)]
        if len(numbers) < _LEAST_NUMBERS * len(cells) or len(np.unique(numbers)) <= _MAX_CATEGORIES:
            return TableColumn(name=name, kind="category")
        if self.other is not None:
            value, where = self.other
            others = max(len(cells) - len(numbers), 1)  # at least `other`, which may have left the sample
            raise InputError(
                f"{where}: the column {name} holds numbers in {len(numbers):,} of {len(numbers) + others:,} "
                f"cells, here {shown(value)}. Leave such cells empty, or say that each number is a category "
                f"of its own: --categories {name}."
            )
        if bins is None:
            return TableColumn(
                name=name, kind="number", scale=(float(numbers.mean()), float(numbers.std()) or 1.0)
            )
        quantiles = np.linspace(0, 1, bins + 1)[1:-1]
        edges = sorted(set(np.quantile(numbers, quantiles).tolist()))
        return TableColumn(name=name, kind="number", edges=tuple(edges))


def _is_empty(value: Any) -> bool:
    if value is None or (isinstance(value, str) and not value.strip()):
        return True
    return isinstance(value, float) and math.isnan(value)


class Codec(Strict):
    """How rows become symbols; the content of sequences.json.

    - symbols: `column` holds the sequence, a list or a string, whose items are separated by blanks or are its
      `characters`.
    - table: a row is the sequence of the cells of its `columns`.
    - series, images: `column` holds lists of numbers, which the store's tokenizer cuts into patches.
    """

    format_version: Literal[1] = 1
    kind: Kind
    column: str | None = None
    characters: bool = False
    columns: tuple[TableColumn, ...] = ()

    @property
    def has_patches(self) -> bool:
        """Whether rows become patches of numbers rather than symbols."""
        return self.kind in ("series", "images")

    @property
    def has_fixed_positions(self) -> bool:
        """Whether each position of a row has one meaning: a column of a table, a square of an image."""
        return self.kind in ("table", "images")

    @property
    def scales(self) -> NumberScales:
        """The scales of a table's columns whose numbers are read as they are; there may be none."""
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
    def input_columns(self) -> tuple[str, ...]:
        """The columns of a row from which its symbols are made."""
        if self.kind == "table":
            return tuple(column.name for column in self.columns)
        return () if self.column is None else (self.column,)

    def read_symbols(self, row: SequenceRow) -> list[str]:
        """The symbols of a row, possibly none. Raises InputError, which names file and row."""
        missing = next((name for name in self.input_columns if name not in row.values), None)
        if missing is not None:
            raise unknown_column(missing, list(row.values), row.where)
        if self.kind == "table":
            return [column.encode_cell(row.values[column.name], row.where) for column in self.columns]
        return [as_symbol(item, row.where) for item in self._split_items(row)]

    def format_row(self, row: SequenceRow) -> str:
        """The text of a row for the store's tokenizer: symbols, or numbers, separated by blanks."""
        if not self.has_patches:
            return " ".join(self.read_symbols(row))
        return " ".join(map(spell_number, self.read_numbers(row).reshape(-1).tolist()))

    def read_numbers(self, row: SequenceRow) -> npt.NDArray[np.float64]:
        """The numbers of a series or image in the row's shape. Raises InputError, naming file and row."""
        if self.column not in row.values:
            raise unknown_column(str(self.column), list(row.values), row.where)
        value = row.values[self.column]
        try:
            cells = value.split() if isinstance(value, str) else value
            numbers = np.array(cells, np.float64)
            if any(isinstance(cell, str) and "_" in cell for cell in cells):  # NumPy reads 1_0 as 10
                numbers = np.zeros(0)
        except (ValueError, TypeError):
            numbers = np.zeros(0)
        if not numbers.ndim or not numbers.size or not np.isfinite(numbers).all():
            raise InputError(
                f"{row.where}: expected a list of finite numbers in the column {self.column}, as many in "
                f"one part of it as in another; found {shown(value)}. Mend the row, or name another "
                "with --column."
            )
        if (largest := float(np.abs(numbers).max())) > LARGEST:
            raise InputError(
                f"{row.where}: expected numbers within ±{LARGEST:g} in the column {self.column}, found one "
                f"of {largest:g}. Divide all of them."
            )
        return numbers

    def _split_items(self, row: SequenceRow) -> Sequence[Any]:
        """The items of a row's sequence, without padding. Raises InputError for what is no sequence."""
        value = row.values[str(self.column)]
        if value is None:
            return []
        if isinstance(value, str):
            # A list as pandas and NumPy print it. Brackets between blanks are items, and braces may be code.
            stripped = value.strip()
            if stripped.startswith(("[", "(")) and not stripped[-2:-1].isspace() and is_printed(stripped):
                raise InputError(
                    f"{row.where}: expected a sequence in the column {self.column}, found a printed list, "
                    f"{shown(value)}. Save the table as JSON lines or Parquet, which hold lists."
                )
            return list("".join(value.split())) if self.characters else value.split()
        if isinstance(value, list | tuple):
            end = len(value)
            for item in reversed(
                value
            ):  # negative integers at the end pad the rows of an array to equal length
                if not (isinstance(item, int | float) and item < 0 and float(item).is_integer()):
                    break
                end -= 1
            return value[:end]
        raise InputError(
            f"{row.where}: expected a sequence in the column {self.column}: a list, or a string of items "
            f"with blanks between them; found {shown(value)}. Name another with --column."
        )


def guess_column(names: Sequence[str], where: str, known: Sequence[str] = NAMES) -> str:
    """The column of the sequences: the only column, or the only one with one of the `known` names.

    Raises InputError, with the file's name `where`, if there is no such column or more than one.
    """
    matching = [name for name in names if name.lower() in known]
    if len(names) == 1:
        return names[0]
    if len(matching) != 1:
        which = "more than one column has" if matching else "no column has"
        raise InputError(
            f"{where}: {which} a name that says it holds the sequences ({', '.join(known)}). There are: "
            f"{listed(names)}. Name one with --column."
        )
    return matching[0]


def table_row_length(folder: Path | str) -> int | None:
    """How many tokens a row of a table's store has, [CLS] and [SEP] included; None for any other folder.

    None of them may be cut off, since the position of a cell identifies its column.
    """
    if not (Path(folder) / CODEC_FILE).is_file():
        return None
    codec = read_codec(folder)
    return len(codec.columns) + _SPECIAL_TOKENS if codec.kind == "table" else None


def read_codec(store: Path | str) -> Codec:
    """The codec of a store. Raises StoreError if it is missing or was altered."""
    path = Path(store) / CODEC_FILE
    if not path.is_file():
        raise StoreError(
            f"{store} holds no {CODEC_FILE}. Make one: `bertsmith sequences build FILE --out {store}`."
        )
    try:
        return Codec.model_validate(read_json(path))
    except ValidationError as error:
        raise StoreError(
            f"{path} was altered: {describe_problem(error, Codec)} Build the store again."
        ) from error
