"""Builds a token store, with its tokenizer and codec, from files of sequences or table rows.

One pass counts the symbols, the next one writes them; for a table an earlier pass finds the types of its
columns. For series and images, which become patches of numbers, the first pass finds the mean and the
standard deviation of each of C channels.

STORE/manifest.json, train/, heldout/     a token store like any other (bertsmith.data.store)
STORE/tokenizer/                          its vocabulary, one symbol a token
STORE/sequences.json                      how rows become symbols (bertsmith.data.sequences.codec)
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
from bertsmith.argument_checks import (
    check_arguments,
    check_function,
    check_path,
    instance_of,
    list_of,
    optional,
)
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
from bertsmith.errors import InputError, StoreError
from bertsmith.files import atomic_folder, require_new_folder, sha256, write_json
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
from bertsmith.validation import UserSettings, describe_problem

_PROGRESS_ROWS = 1000  # rows between two calls of progress
_FILE_SETTINGS = ("heldout", "header", "format", "encoding")  # settings that don't decide what a token is
_KINDS_OF_SETTING: dict[str, tuple[Kind, ...]] = {  # of settings that only some kinds use
    "column": ("symbols", "series", "images"),
    "characters": ("symbols",),
    "leave_out": ("table",),
    "categories": ("table",),
    "patch": ("series", "images"),
    "numbers": ("table",),
    "bins": ("table",),
    "min_count": ("symbols", "table"),
    "vocab_size": ("symbols", "table"),
}
_ROUNDING = 1e-12  # a deviation this small relative to the mean is a rounding error: a constant channel
NumberRows = Iterator[tuple[npt.NDArray[np.float64], str]]  # with their locations
_EXPECTED = {
    "images": "an image as rows of pixels (height x width, or height x width x channels)",
    "series": "a series as a list of numbers, or of steps of several numbers",
}


@dataclass(frozen=True)
class BuiltSequences:
    """The result of a build: rows by split, tokens, rows without any item, the size of the vocabulary, and
    how many tokens are unknown to it.
    """

    rows: dict[Split, int]
    tokens: int
    empty: int
    vocab_size: int
    unknown: int
    codec: Codec


class _SplitFiles:
    """The array files of one split, to which rows are appended; each row is a document of one sentence."""

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
    """Writes the rows of both splits; a context manager. `heldout` is the share of rows held out."""

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
        """Adds a row; a hash of its `content` decides the split, so that equal rows are in the same one."""
        if not len(ids):
            self.empty += 1
            return
        hashed = int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "little")
        split: Split = "heldout" if hashed < self.heldout * 2**64 else "train"
        self.splits[split].add(ids, values)

    def finish(self, files: Sequence[Path | str], codec: Codec, unknown: int = 0) -> BuiltSequences:
        """Writes the manifest, the codec and the tokenizer; call it once the array files are closed.

        `files` are those the rows were read from, `unknown` is the number of unknown tokens. Raises
        InputError if no row is left to train on.
        """
        if not self.splits["train"].rows:
            raise InputError(f"{files[0]}: no row with an item is left to train on. Lower --heldout.")
        hashes = "".join(sha256(Path(path)) for path in files)  # the files stand for the corpus
        manifest = StoreManifest(
            created_by=f"bertsmith {bertsmith.__version__}",
            dtype=self.dtype,
            vocab_size=self.tokenizer.vocab_size,
            tokenizer_sha256=self.tokenizer.sha256,
            corpus_sha256=hashlib.sha256(hashes.encode()).hexdigest(),
            splits={split: files.entry() for split, files in self.splits.items()},
        )
        write_json(self._folder / "manifest.json", manifest.model_dump(mode="json"))
        write_json(self._folder / CODEC_FILE, codec.model_dump(mode="json"))
        self.tokenizer.save(self._folder / "tokenizer")
        return BuiltSequences(
            {split: self.splits[split].rows for split in SPLITS},
            sum(files.tokens.length for files in self.splits.values()),
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
        """The files at `paths`, each with the options by which these settings read it."""
        return [RowFile(path, self.header, self.format, self.encoding) for path in paths]


@check_arguments(
    files=list_of(check_path),
    out=check_path,
    settings=instance_of(SequenceSettings),
    progress=optional(check_function),
    like=optional(check_path),
)
def build_sequences(
    files: Sequence[Path | str],
    out: Path | str,
    settings: SequenceSettings | None = None,
    progress: Progress | None = None,
    *,
    like: Path | str | None = None,
) -> BuiltSequences:
    """Writes the store, whole or not at all, with one row in memory at a time (for .npz the whole file), and
    for a table 8 bytes for each cell of at most 100,000 rows.

    With `like`, rows become tokens as in that store, so that a model that learned from it can continue with
    this one. Which rows are held out depends on their content alone: equal rows are in the same split. Raises
    InputError for files that can't be read, naming the row, if `out` exists, for settings that `like`
    decides, and for those without effect on the kind of rows; StoreError if `like` is no store of sequences.
    """
    settings, out = settings or SequenceSettings(), Path(out)
    require_new_folder(out)
    if not files:
        raise InputError("Name at least one file: Parquet, JSON lines, CSV, .npy or .npz.")
    row_files = settings.files(files)
    if like is None:
        _refuse_ineffective(settings)
        codec, known_tokenizer = find_codec(row_files, settings, progress), None
    else:
        if refused := sorted(settings.model_fields_set.difference(_FILE_SETTINGS)):
            raise InputError(
                f"Leave out {' and '.join(refused)}: the store that the new one is to be like says what a "
                "token is."
            )
        codec, known_tokenizer = read_codec(like), load_tokenizer(Path(like) / "tokenizer")
    if codec.has_patches:
        if known_tokenizer is None:
            patches, row_count = fit_patches(row_files, codec, settings.patch, progress)
        elif isinstance(known_tokenizer, PatchTokenizer):
            patches, row_count = known_tokenizer, None
        else:
            raise StoreError(f"{like}: its tokenizer knows no patches. Build that store again.")
        return write_patches(row_files, out, codec, patches, settings.heldout, row_count, progress)
    rows, counts = _count_symbols(row_files, codec, progress)
    tokenizer = _build_tokenizer(counts, codec, settings) if known_tokenizer is None else known_tokenizer
    ids = {piece: number for number, piece in enumerate(tokenizer.pieces)}
    unknown = sum(counts.values()) - sum(counts[piece] for piece in ids)
    with_values = isinstance(tokenizer, NumberTokenizer)
    with atomic_folder(out) as folder:
        writer = StoreWriter(folder, tokenizer, settings.heldout, with_values=with_values)
        with writer:
            for row_number, symbols in enumerate(_stream_symbols(row_files, codec), start=1):
                content = " ".join(symbols)
                if isinstance(tokenizer, NumberTokenizer):
                    row = tokenizer.encode_row(content, None)
                    writer.add(row.ids, content.encode(errors="surrogatepass"), row.values)
                else:
                    token_ids = [ids.get(symbol, tokenizer.unk_id) for symbol in symbols]
                    writer.add(token_ids, content.encode(errors="surrogatepass"))
                if progress is not None and (not row_number % _PROGRESS_ROWS or row_number == rows):
                    progress(row_number, rows, "rows written")
        return writer.finish(files, codec, unknown)


def _refuse_ineffective(settings: SequenceSettings) -> None:
    """Raises InputError for a setting that was changed and has no effect on rows of this kind."""
    for name, kinds in _KINDS_OF_SETTING.items():
        if (
            settings.kind not in kinds
            and getattr(settings, name) != type(settings).model_fields[name].default
        ):
            raise InputError(
                f"{name} has no effect with kind={settings.kind}: it is for {' and '.join(kinds)}. Leave it "
                "out, or choose the kind that the rows are of."
            )
    if settings.numbers == "continuous" and settings.bins != type(settings).model_fields["bins"].default:
        raise InputError("bins has no effect with numbers=continuous. Leave one of them out.")


def _count_symbols(
    files: Sequence[RowFile], codec: Codec, progress: Progress | None
) -> tuple[int, Counter[str]]:
    """The number of rows, and how often each symbol occurs, without the numbers that are read as they are."""
    counts, rows = Counter[str](), 0
    scales = {scale.piece: scale for scale in codec.scales.columns}
    for symbols in _stream_symbols(files, codec):
        counts.update(symbol for symbol in symbols if parse_spelled_number(symbol, scales) is None)
        rows += 1
        if progress is not None and not rows % _PROGRESS_ROWS:
            progress(rows, None, "rows counted")
    return rows, counts


def _build_tokenizer(counts: Counter[str], codec: Codec, settings: SequenceSettings) -> Tokenizer:
    """The tokenizer of the most frequent symbols, and of a token per column of numbers read as they are."""
    scales = codec.scales
    if not scales.columns:
        return build_symbol_tokenizer(choose_symbols(counts, settings.min_count, settings.vocab_size))
    chosen = choose_symbols(counts, settings.min_count, settings.vocab_size) if counts else []
    column_tokens = [scale.piece for scale in scales.columns]
    if len({*column_tokens}) < len(column_tokens):
        raise InputError("Two columns of numbers have names that differ by white space alone. Rename one.")
    return NumberTokenizer.of(build_symbol_tokenizer([*chosen, *column_tokens, VALUE]), scales)


def find_codec(
    files: Sequence[RowFile], settings: SequenceSettings, progress: Progress | None = None
) -> Codec:
    """The codec for some files: with the columns of the first one, and the types of these in all rows.

    Raises InputError for a column that doesn't exist, and as `find_columns` and `guess_column` do.
    """
    first_path = str(files[0].path)
    columns = read_columns(files[0], padded=settings.kind == "symbols")
    if settings.kind != "table":
        usual_names = NAMES if settings.kind == "symbols" else NUMBERS
        column = settings.column or guess_column(columns, first_path, usual_names)
        if column not in columns:
            raise unknown_column(column, columns, first_path)
        return Codec(kind=settings.kind, column=column, characters=settings.characters)
    for name in (*settings.leave_out, *settings.categories):
        if name not in columns:
            raise unknown_column(name, columns, first_path)
    input_columns = [name for name in columns if name not in settings.leave_out]
    if not input_columns:
        raise InputError(f"{first_path}: --leave-out leaves no column to read.")
    bins = settings.bins if settings.numbers == "bins" else None
    return Codec(
        kind="table",
        columns=find_columns(_report_rows(files, progress), input_columns, bins, settings.categories),
    )


def _report_rows(files: Sequence[RowFile], progress: Progress | None) -> Iterator[SequenceRow]:
    """The rows of all files, reported to `progress`."""
    for number, row in enumerate(_stream_rows(files), start=1):
        yield row
        if progress is not None and not number % _PROGRESS_ROWS:
            progress(number, None, "rows looked at")


def _stream_rows(files: Sequence[RowFile], *, padded: bool = False) -> Iterator[SequenceRow]:
    for file in files:
        yield from stream_records(file, padded=padded)


def _stream_symbols(files: Sequence[RowFile], codec: Codec) -> Iterator[list[str]]:
    return (codec.read_symbols(row) for row in _stream_rows(files, padded=codec.kind == "symbols"))


def fit_patches(
    files: Sequence[RowFile], codec: Codec, size: int, progress: Progress | None
) -> tuple[PatchTokenizer, int]:
    """The tokenizer for rows shaped like the first one, with the scaling of all rows; and their number.

    `size` is that of a patch. Raises InputError for a row of another shape, which it names, and for a size
    that doesn't divide an image.
    """
    first, where = next(_stream_numbers(files, codec))
    row_shape = first.shape if codec.kind == "images" else first.shape[1:]
    if len(first.shape) not in ((2, 3) if codec.kind == "images" else (1, 2)):
        raise InputError(
            f"{where}: expected {_EXPECTED[codec.kind]}, found {' x '.join(map(str, first.shape))} numbers."
        )
    channels = first.shape[2] if len(first.shape) == 3 else (first.shape[1:] or (1,))[0]
    if codec.kind == "images" and len(first.shape) == 2:
        channels = 1
    rows, mean, deviation = _measure_channels(files, codec, row_shape, channels, progress)
    fields: dict[str, Any] = {"kind": codec.kind, "size": size, "channels": channels}
    fields |= {"mean": tuple(mean), "deviation": tuple(deviation)}
    if codec.kind == "images":
        fields |= {"height": first.shape[0], "width": first.shape[1]}
    try:
        shape = PatchShape.model_validate(fields)
    except ValidationError as error:
        raise InputError(f"{files[0].path}: {describe_problem(error, PatchShape)} Change --patch.") from error
    value_tokens = [f"[VALUE{number}]" for number in range(shape.values)]
    return PatchTokenizer.of(build_symbol_tokenizer([PATCH, *value_tokens]), shape), rows


def write_patches(
    files: Sequence[RowFile],
    out: Path,
    codec: Codec,
    tokenizer: PatchTokenizer,
    heldout: float,
    rows: int | None,
    progress: Progress | None,
) -> BuiltSequences:
    """Writes the store of series or images, with one row in memory at a time.

    `rows` is their number, if known. Raises InputError, which names the row, for one whose shape doesn't fit
    the tokenizer.
    """
    with atomic_folder(out) as folder:
        writer = StoreWriter(folder, tokenizer, heldout, with_values=True)
        with writer:
            for row_number, (numbers, where) in enumerate(_stream_numbers(files, codec), start=1):
                tokenizer.shape.require_row(numbers.shape, where)
                values = tokenizer.shape.cut(numbers, where)
                writer.add([tokenizer.patch_id] * len(values), values.tobytes(), values)
                if progress is not None and (not row_number % _PROGRESS_ROWS or row_number == rows):
                    progress(row_number, rows, "rows written")
        return writer.finish([file.path for file in files], codec)


def _stream_numbers(files: Sequence[RowFile], codec: Codec) -> NumberRows:
    for file in files:
        for row in stream_records(file):
            yield codec.read_numbers(row), row.where


def _measure_channels(
    files: Sequence[RowFile],
    codec: Codec,
    row_shape: tuple[int, ...],
    channels: int,
    progress: Progress | None,
) -> tuple[int, list[float], list[float]]:
    """The number of rows, and each channel's mean and standard deviation (Chan et al. 1979, row by row).

    Raises InputError for a row whose shape isn't `row_shape`. A constant channel has the deviation 1.
    """
    rows, count = 0, 0
    mean, squares = np.zeros(channels), np.zeros(channels)
    for rows, (numbers, where) in enumerate(_stream_numbers(files, codec), start=1):
        shape = numbers.shape if codec.kind == "images" else numbers.shape[1:]
        if shape != row_shape:
            raise InputError(f"{where}: expected the shape of the first row, {row_shape}, found {shape}.")
        steps = numbers.reshape(-1, channels)
        delta, total = steps.mean(0) - mean, count + len(steps)
        squares += steps.var(0) * len(steps) + delta**2 * count * len(steps) / total
        mean += delta * len(steps) / total
        count = total
        if progress is not None and not rows % _PROGRESS_ROWS:
            progress(rows, None, "rows measured")
    deviation = np.sqrt(squares / max(count, 1))
    varies = deviation > _ROUNDING * np.abs(mean)
    return rows, mean.tolist(), np.where(varies, deviation, 1.0).tolist()
