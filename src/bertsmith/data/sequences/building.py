"""Files of sequences or table rows → a token store with its tokenizer and codec: symbols are counted, then
written; of a table a pass before these finds what its columns hold. Of series and images, which become
patches of numbers, the first pass finds mean and deviation of each of C channels.

STORE/manifest.json, train/, heldout/     a token store like any other (bertsmith.data.store)
STORE/tokenizer/                          its vocabulary, one symbol a token
STORE/sequences.json                      how rows became symbols (bertsmith.data.sequences.codec)
"""

import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field, ValidationError

import bertsmith
from bertsmith.data.sequences.codec import (
    NAMES,
    NUMBERS,
    SPECIAL,
    Codec,
    Kind,
    build_symbol_tokenizer,
    choose_symbols,
    find_columns,
    guess_column,
    read_codec,
)
from bertsmith.data.sequences.records import RowFile, SequenceRow, read_columns, stream_records
from bertsmith.data.store import (
    CODEC_FILE,
    DOCUMENTS,
    OFFSETS,
    SENTENCES,
    SPLITS,
    TOKENS,
    VALUES,
    StoredSplit,
    StoreManifest,
)
from bertsmith.data.tokenizing import ArrayFile
from bertsmith.door import door, function, kind, optional, place, several
from bertsmith.errors import InputError, StoreError
from bertsmith.files import atomic_folder, require_free, sha256, write_json
from bertsmith.progress import Progress
from bertsmith.text.corpus.manifest import Split
from bertsmith.text.files.columns import unknown_column
from bertsmith.text.tokens.tokenizer import Tokenizer
from bertsmith.text.tokens.value_tokenizers import (
    PATCH,
    VALUE,
    NumberTokenizer,
    PatchShape,
    PatchTokenizer,
    load_tokenizer,
    parse_spelled_number,
)
from bertsmith.validation import UserSettings, first_problem

_EVERY = 1000  # rows between two words on progress
_OF_FILES = ("heldout", "header", "format", "encoding")  # settings that don't say what a token is
_ROUNDING = 1e-12  # a deviation this small beside the mean is rounding: the channel is constant
Rows = Iterator[tuple[npt.NDArray[np.float64], str]]
_EXPECTED = {
    "images": "an image as rows of pixels (height x width, or height x width x channels)",
    "series": "a series as a list of numbers, or of steps of several numbers",
}


@dataclass(frozen=True)
class BuiltSequences:
    """What came of a build: rows by split, tokens, rows without any item, the size of the vocabulary, and how
    many tokens are not in it.
    """

    rows: dict[Split, int]
    tokens: int
    empty: int
    vocab_size: int
    unknown: int
    codec: Codec


class _SplitFiles:
    """The arrays of one split, growing by rows: each is a document of one sentence."""

    def __init__(self, folder: Path, dtype: str, with_values: bool, stack: ExitStack) -> None:
        folder.mkdir()
        self.tokens = stack.enter_context(ArrayFile(folder / TOKENS, dtype))
        self.sentences = stack.enter_context(ArrayFile(folder / SENTENCES, OFFSETS))
        self.documents = stack.enter_context(ArrayFile(folder / DOCUMENTS, OFFSETS))
        self.values = stack.enter_context(ArrayFile(folder / VALUES, "<f4")) if with_values else None
        self.rows = 0
        self.sentences.append(np.zeros(1))
        self.documents.append(np.zeros(1))

    def add(self, ids: Sequence[int], values: npt.NDArray[np.float32] | None) -> None:
        self.rows += 1
        self.tokens.append(np.array(ids))
        self.sentences.append(np.array([self.tokens.length]))
        self.documents.append(np.array([self.rows]))
        if self.values is not None and values is not None:
            self.values.append(values.reshape(-1))

    def entry(self) -> StoredSplit:
        files = (self.tokens, self.sentences, self.documents, *([self.values] if self.values else []))
        return StoredSplit(
            documents=self.rows,
            sentences=self.rows,
            tokens=self.tokens.length,
            files={array.path.name: array.entry() for array in files},
        )


class StoreWriter:
    """Both splits; a context manager. `heldout` is the share of rows that are kept for evaluation."""

    def __init__(
        self, folder: Path, tokenizer: Tokenizer, heldout: float, *, with_values: bool = False
    ) -> None:
        self.tokenizer, self.heldout, self.empty = tokenizer, heldout, 0
        self.dtype: Literal["<u2", "<u4"] = "<u2" if tokenizer.vocab_size <= 2**16 else "<u4"
        self._folder, self._with_values, self._stack = folder, with_values, ExitStack()

    def __enter__(self) -> "StoreWriter":
        self.splits = {
            split: _SplitFiles(self._folder / split, self.dtype, self._with_values, self._stack)
            for split in SPLITS
        }
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def add(self, ids: Sequence[int], content: bytes, values: npt.NDArray[np.float32] | None = None) -> None:
        """A row; its `content` chooses the split, so that equal rows are on the same side."""
        if not len(ids):
            self.empty += 1
            return
        place = int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "little")
        split: Split = "heldout" if place < self.heldout * 2**64 else "train"
        self.splits[split].add(ids, values)

    def finish(self, files: Sequence[Path | str], codec: Codec, unknown: int = 0) -> BuiltSequences:
        """Writes what stands beside the arrays, once these are closed. Raises InputError where nothing is
        left to train on.
        """
        if not self.splits["train"].rows:
            raise InputError(f"{files[0]}: no row with an item is left to train on. Lower --heldout.")
        hashes = "".join(sha256(Path(path)) for path in files)  # the corpus is the files
        manifest = StoreManifest(
            created_by=f"bertsmith {bertsmith.__version__}",
            dtype=self.dtype,
            vocab_size=self.tokenizer.vocab_size,
            tokenizer_sha256=self.tokenizer.sha256,
            corpus_sha256=hashlib.sha256(hashes.encode()).hexdigest(),
            splits={split: each.entry() for split, each in self.splits.items()},
        )
        write_json(self._folder / "manifest.json", manifest.model_dump(mode="json"))
        write_json(self._folder / CODEC_FILE, codec.model_dump(mode="json"))
        self.tokenizer.save(self._folder / "tokenizer")
        return BuiltSequences(
            {split: self.splits[split].rows for split in SPLITS},
            sum(each.tokens.length for each in self.splits.values()),
            self.empty,
            self.tokenizer.vocab_size,
            unknown,
            codec,
        )


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
        if given := sorted(settings.model_fields_set.difference(_OF_FILES)):
            raise InputError(
                f"Leave out {' and '.join(given)}: the store that the new one is to be like says what a "
                "token is."
            )
        codec, known = read_codec(like), load_tokenizer(Path(like) / "tokenizer")
    if codec.of_patches:
        if known is None:
            patches, total = fit_patches(read, codec, settings.patch, progress)
        elif isinstance(known, PatchTokenizer):
            patches, total = known, None
        else:
            raise StoreError(f"{like}: its tokenizer knows no patches. Build that store again.")
        return write_patches(read, out, codec, patches, settings.heldout, total, progress)
    rows, counts = _count_symbols(read, codec, progress)
    tokenizer = _build_tokenizer(counts, codec, settings) if known is None else known
    ids = {piece: number for number, piece in enumerate(tokenizer.pieces)}
    unknown = sum(counts.values()) - sum(counts[piece] for piece in ids)
    with_values = isinstance(tokenizer, NumberTokenizer)
    with atomic_folder(out) as folder:
        writer = StoreWriter(folder, tokenizer, settings.heldout, with_values=with_values)
        with writer:
            for done, symbols in enumerate(_stream_symbols(read, codec), start=1):
                content = " ".join(symbols)
                if isinstance(tokenizer, NumberTokenizer):
                    pieces = tokenizer.encode_row(content, None)
                    writer.add(pieces.ids, content.encode(errors="surrogatepass"), pieces.values)
                else:
                    found = [ids.get(symbol, tokenizer.unk_id) for symbol in symbols]
                    writer.add(found, content.encode(errors="surrogatepass"))
                if progress is not None and (not done % _EVERY or done == rows):
                    progress(done, rows, "rows written")
        return writer.finish(files, codec, unknown)


def _count_symbols(
    files: Sequence[RowFile], codec: Codec, progress: Progress | None
) -> tuple[int, Counter[str]]:
    """How many rows there are, and how often each symbol occurs that has a piece of its own."""
    counts, rows = Counter[str](), 0
    scales = {scale.piece: scale for scale in codec.scales.columns}
    for symbols in _stream_symbols(files, codec):
        counts.update(symbol for symbol in symbols if parse_spelled_number(symbol, scales) is None)
        rows += 1
        if progress is not None and not rows % _EVERY:
            progress(rows, None, "rows counted")
    return rows, counts


def _build_tokenizer(counts: Counter[str], codec: Codec, settings: SequenceSettings) -> Tokenizer:
    """Of the most frequent symbols, and where numbers are read as they are of a piece for each column."""
    scales = codec.scales
    if not scales.columns:
        return build_symbol_tokenizer(choose_symbols(counts, settings.min_count, settings.vocab_size))
    chosen = choose_symbols(counts, settings.min_count, settings.vocab_size) if counts else []
    columns = [scale.piece for scale in scales.columns]
    if len({*columns}) < len(columns):
        raise InputError("Two columns of numbers have names that differ by white space alone. Rename one.")
    return NumberTokenizer.of(build_symbol_tokenizer([*chosen, *columns, VALUE]), scales)


def find_codec(
    files: Sequence[RowFile], settings: SequenceSettings, progress: Progress | None = None
) -> Codec:
    """How the rows are to be read: which columns there are, the first file says, and what those of a table
    hold, the rows of all files. Raises InputError.
    """
    first = str(files[0].path)
    names = read_columns(files[0], padded=settings.kind == "symbols")
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
        kind="table", columns=find_columns(_report_rows(files, progress), read, bins, settings.categories)
    )


def _report_rows(files: Sequence[RowFile], progress: Progress | None) -> Iterator[SequenceRow]:
    for number, row in enumerate(_stream_rows(files), start=1):
        yield row
        if progress is not None and not number % _EVERY:
            progress(number, None, "rows looked at")


def _stream_rows(files: Sequence[RowFile], *, padded: bool = False) -> Iterator[SequenceRow]:
    for file in files:
        yield from stream_records(file, padded=padded)


def _stream_symbols(files: Sequence[RowFile], codec: Codec) -> Iterator[list[str]]:
    return (codec.symbols(row) for row in _stream_rows(files, padded=codec.kind == "symbols"))


def fit_patches(
    files: Sequence[RowFile], codec: Codec, size: int, progress: Progress | None
) -> tuple[PatchTokenizer, int]:
    """The tokenizer of rows of the first one's shape, which scales by the mean and the deviation of all, and
    how many there are. Raises InputError naming the row that has another shape, and for a size that doesn't
    divide an image.
    """
    first, where = next(_stream_numbers(files, codec))
    shape_of_row = first.shape if codec.kind == "images" else first.shape[1:]
    if len(first.shape) not in ((2, 3) if codec.kind == "images" else (1, 2)):
        raise InputError(
            f"{where}: expected {_EXPECTED[codec.kind]}, found {' x '.join(map(str, first.shape))} numbers."
        )
    channels = first.shape[2] if len(first.shape) == 3 else (first.shape[1:] or (1,))[0]
    if codec.kind == "images" and len(first.shape) == 2:
        channels = 1
    rows, mean, deviation = _measure_channels(files, codec, shape_of_row, channels, progress)
    said: dict[str, Any] = {"kind": codec.kind, "size": size, "channels": channels}
    said |= {"mean": tuple(mean), "deviation": tuple(deviation)}
    if codec.kind == "images":
        said |= {"height": first.shape[0], "width": first.shape[1]}
    try:
        shape = PatchShape.model_validate(said)
    except ValidationError as error:
        raise InputError(f"{files[0].path}: {first_problem(error, PatchShape)} Change --patch.") from error
    places = [f"[VALUE{number}]" for number in range(shape.values)]
    return PatchTokenizer.of(build_symbol_tokenizer([PATCH, *places]), shape), rows


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
            for done, (numbers, where) in enumerate(_stream_numbers(files, codec), start=1):
                tokenizer.shape.require_row(numbers.shape, where)
                values = tokenizer.shape.cut(numbers, where)
                writer.add([tokenizer.patch_id] * len(values), values.tobytes(), values)
                if progress is not None and (not done % 1000 or done == rows):
                    progress(done, rows, "rows written")
        return writer.finish([file.path for file in files], codec)


def _stream_numbers(files: Sequence[RowFile], codec: Codec) -> Rows:
    for file in files:
        for row in stream_records(file):
            yield codec.numbers(row), row.where


def _measure_channels(
    files: Sequence[RowFile],
    codec: Codec,
    shape_of_row: tuple[int, ...],
    channels: int,
    progress: Progress | None,
) -> tuple[int, list[float], list[float]]:
    """How many rows there are, and each channel's mean and deviation (Chan et al. 1979, row by row)."""
    rows, count = 0, 0
    mean, squares = np.zeros(channels), np.zeros(channels)
    for rows, (numbers, where) in enumerate(_stream_numbers(files, codec), start=1):
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
