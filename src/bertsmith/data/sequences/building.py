"""Files of sequences or table rows → a token store with its tokenizer and codec: symbols are counted, then
written; of a table a pass before these finds what its columns hold.

STORE/manifest.json, train/, heldout/     a token store like any other (bertsmith.data.store_manifest)
STORE/tokenizer/                          its vocabulary, one symbol a token
STORE/sequences.json                      how rows became symbols (bertsmith.data.sequences.codec)
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

from pydantic import Field

from bertsmith.data.sequences.codec import NAMES, NUMBERS, Codec, Kind, guess_column, read_codec
from bertsmith.data.sequences.patch_building import fit_patches, write_patches
from bertsmith.data.sequences.records import Row, RowFile, column_names, stream_records
from bertsmith.data.sequences.store_writer import BuiltSequences, StoreWriter
from bertsmith.data.sequences.symbol_tokenizer import SPECIAL, choose_symbols, symbol_tokenizer
from bertsmith.data.sequences.table_columns import find_columns
from bertsmith.door import door, function, kind, optional, place, several
from bertsmith.errors import InputError, StoreError
from bertsmith.files import atomic_folder, require_free
from bertsmith.progress import Progress
from bertsmith.text.files.columns import unknown_column
from bertsmith.text.tokens.any_tokenizer import load_tokenizer
from bertsmith.text.tokens.number_tokenizer import VALUE, NumberTokenizer, as_spelled_number
from bertsmith.text.tokens.patch_tokenizer import PatchTokenizer
from bertsmith.text.tokens.tokenizer import Tokenizer
from bertsmith.validation import UserSettings

_EVERY = 1000  # rows between two words on progress
_OF_FILES = ("heldout", "header", "format", "encoding")  # settings that don't say what a token is


class SequenceSettings(UserSettings):
    """Every choice of `bertsmith sequences build`; the defaults live here and nowhere else."""

    kind: Kind = Field(
        "symbols",
        description="A column of sequences, the rows of a table, or numbers in patches (series, images).",
    )
    column: str | None = Field(
        None, description="The column of the sequences, if its name isn't a usual one."
    )
    characters: bool = Field(False, description="Each character of a string is an item (proteins, DNA).")
    leave_out: tuple[str, ...] = Field((), description="Columns of a table to leave out: ids, labels.")
    categories: tuple[str, ...] = Field(
        (), description="Columns of a table whose numbers are categories: codes, districts."
    )
    patch: int = Field(8, ge=1, le=4096, description="Steps in a series' patch, or the side of an image's.")
    numbers: Literal["bins", "continuous"] = Field(
        "bins", description="A table's numbers as bins, or as they are, so that nothing is lost within a bin."
    )
    bins: int = Field(
        16, ge=2, le=1000, description="Bins for a column's numbers, each with about as many cells."
    )
    min_count: int = Field(1, ge=1, description="Rarer symbols become [UNK].")
    vocab_size: int = Field(
        100_000, ge=len(SPECIAL) + 1, description="Tokens, at most, special ones included."
    )
    heldout: float = Field(0.05, ge=0, lt=1, description="Share of rows held out for evaluation.")
    header: bool = Field(True, description="Whether the first row of CSV or TSV names the columns.")
    format: str | None = Field(
        None, description="csv, tsv, jsonl, json, parquet or lines. By default the file's ending decides."
    )
    encoding: str = Field("utf-8", description="The text's encoding, such as latin-1.")

    def files(self, paths: Sequence[Path | str]) -> list[RowFile]:
        """What is read as these settings say."""
        return [RowFile(path, self.header, self.format, self.encoding) for path in paths]


@door(
    files=several(place),
    out=place,
    settings=kind(SequenceSettings),
    progress=optional(function),
    like=optional(place),
)
def build_sequences(
    files: Sequence[Path | str],
    out: Path | str,
    settings: SequenceSettings | None = None,
    progress: Progress | None = None,
    *,
    like: Path | str | None = None,
) -> BuiltSequences:
    """Writes the store, whole or not at all, with one row in memory at a time (of .npz, the file), and of a
    table 8 bytes for each cell of at most 100,000 rows. With `like`, rows become tokens as in that store, so
    that a model which learned from it can go on with this one.

    Which rows are held out depends on their content alone: equal rows are on the same side. Raises
    InputError for files that can't be read, naming the row, when `out` exists, and for settings that `like`
    decides; StoreError when `like` is no store of sequences.
    """
    settings, out = settings or SequenceSettings(), Path(out)
    require_free(out)
    if not files:
        raise InputError("Name at least one file: Parquet, JSON lines, CSV, .npy or .npz.")
    read = settings.files(files)
    if like is None:
        codec, known = find_codec(read, settings, progress), None
    else:
        _require_of_files(settings)
        codec, known = read_codec(like), load_tokenizer(Path(like) / "tokenizer")
    if codec.of_patches:
        if known is None:
            patches, total = fit_patches(read, codec, settings.patch, progress)
        elif isinstance(known, PatchTokenizer):
            patches, total = known, None
        else:
            raise StoreError(f"{like}: its tokenizer knows no patches. Build that store again.")
        return write_patches(read, out, codec, patches, settings.heldout, total, progress)
    rows, counts = _count(read, codec, progress)
    tokenizer = _tokenizer(counts, codec, settings) if known is None else known
    ids = {piece: number for number, piece in enumerate(tokenizer.pieces)}
    unknown = sum(counts.values()) - sum(counts[piece] for piece in ids)
    with_values = isinstance(tokenizer, NumberTokenizer)
    with atomic_folder(out) as folder:
        writer = StoreWriter(folder, tokenizer, settings.heldout, with_values=with_values)
        with writer:
            for done, symbols in enumerate(_sequences(read, codec), start=1):
                content = " ".join(symbols)
                if isinstance(tokenizer, NumberTokenizer):
                    pieces = tokenizer.pieces_of_row(content, None)
                    writer.add(pieces.ids, content.encode(errors="surrogatepass"), pieces.values)
                else:
                    found = [ids.get(symbol, tokenizer.unk_id) for symbol in symbols]
                    writer.add(found, content.encode(errors="surrogatepass"))
                if progress is not None and (not done % _EVERY or done == rows):
                    progress(done, rows, "rows written")
        return writer.finish(files, codec, unknown)


def _require_of_files(settings: SequenceSettings) -> None:
    """Raises InputError for settings that the store named by `like` has made already."""
    if given := sorted(settings.model_fields_set.difference(_OF_FILES)):
        raise InputError(
            f"Leave out {' and '.join(given)}: the store that the new one is to be like says what a token is."
        )


def _count(files: Sequence[RowFile], codec: Codec, progress: Progress | None) -> tuple[int, Counter[str]]:
    """How many rows there are, and how often each symbol occurs that has a piece of its own."""
    counts, rows = Counter[str](), 0
    scales = {scale.piece: scale for scale in codec.scales.columns}
    for symbols in _sequences(files, codec):
        counts.update(symbol for symbol in symbols if as_spelled_number(symbol, scales) is None)
        rows += 1
        if progress is not None and not rows % _EVERY:
            progress(rows, None, "rows counted")
    return rows, counts


def _tokenizer(counts: Counter[str], codec: Codec, settings: SequenceSettings) -> Tokenizer:
    """Of the most frequent symbols, and where numbers are read as they are of a piece for each column."""
    scales = codec.scales
    if not scales.columns:
        return symbol_tokenizer(choose_symbols(counts, settings.min_count, settings.vocab_size))
    chosen = choose_symbols(counts, settings.min_count, settings.vocab_size) if counts else []
    columns = [scale.piece for scale in scales.columns]
    if len({*columns}) < len(columns):
        raise InputError("Two columns of numbers have names that differ by white space alone. Rename one.")
    return NumberTokenizer.of(symbol_tokenizer([*chosen, *columns, VALUE]), scales)


def find_codec(
    files: Sequence[RowFile], settings: SequenceSettings, progress: Progress | None = None
) -> Codec:
    """How the rows are to be read: which columns there are, the first file says, and what those of a table
    hold, the rows of all files. Raises InputError.
    """
    first = str(files[0].path)
    names = column_names(files[0], padded=settings.kind == "symbols")
    if settings.kind != "table":
        known = NAMES if settings.kind == "symbols" else NUMBERS
        column = settings.column or guess_column(names, first, known)
        if column not in names:
            raise unknown_column(column, names, first)
        return Codec(kind=settings.kind, column=column, characters=settings.characters)
    for name in (*settings.leave_out, *settings.categories):
        if name not in names:
            raise unknown_column(name, names, first)
    read = [name for name in names if name not in settings.leave_out]
    if not read:
        raise InputError(f"{first}: --leave-out leaves no column to read.")
    bins = settings.bins if settings.numbers == "bins" else None
    return Codec(
        kind="table", columns=find_columns(_looked_at(files, progress), read, bins, settings.categories)
    )


def _looked_at(files: Sequence[RowFile], progress: Progress | None) -> Iterator[Row]:
    for number, row in enumerate(_records(files), start=1):
        yield row
        if progress is not None and not number % _EVERY:
            progress(number, None, "rows looked at")


def _records(files: Sequence[RowFile], *, padded: bool = False) -> Iterator[Row]:
    for file in files:
        yield from stream_records(file, padded=padded)


def _sequences(files: Sequence[RowFile], codec: Codec) -> Iterator[list[str]]:
    return (codec.symbols(row) for row in _records(files, padded=codec.kind == "symbols"))
