"""Files of sequences or table rows → a token store with its tokenizer and codec, in two passes.

STORE/manifest.json, train/, heldout/     a token store like any other (bertsmith.data.store_manifest)
STORE/tokenizer/                          its vocabulary, one symbol a token
STORE/sequences.json                      how rows became symbols (bertsmith.data.sequences.codec)
"""

import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Literal

import numpy as np
from pydantic import Field

import bertsmith
from bertsmith.data.sequences.codec import FILE, Codec, Kind, guess_column
from bertsmith.data.sequences.records import Row, column_names, stream_records
from bertsmith.data.sequences.symbol_tokenizer import SPECIAL, choose_symbols, symbol_tokenizer
from bertsmith.data.sequences.table_columns import SAMPLE, find_columns
from bertsmith.data.store_manifest import (
    DOCUMENTS,
    OFFSETS,
    SENTENCES,
    SPLITS,
    TOKENS,
    StoredSplit,
    StoreManifest,
)
from bertsmith.data.tokenizing import ArrayFile
from bertsmith.door import door, function, kind, optional, place, several
from bertsmith.errors import InputError
from bertsmith.files import atomic_folder, refuse_existing, sha256, write_json
from bertsmith.progress import Progress
from bertsmith.text.corpus.manifest import Split
from bertsmith.text.files.columns import unknown_column
from bertsmith.text.tokens.tokenizer import Tokenizer
from bertsmith.validation import UserSettings

_EVERY = 1000  # rows between two words on progress


class SequenceSettings(UserSettings):
    """Every choice of `bertsmith sequences build`; the defaults live here and nowhere else."""

    kind: Kind = Field("symbols", description="symbols: a column of sequences; table: each row is one")
    column: str | None = Field(None, description="where the sequences are, if the name doesn't say it")
    characters: bool = Field(False, description="each character of a string is an item (proteins, DNA)")
    leave_out: tuple[str, ...] = Field((), description="columns of a table that aren't read: ids, labels")
    bins: int = Field(16, ge=2, le=1000, description="bins of a table's numbers, of about as many cells each")
    min_count: int = Field(1, ge=1, description="rarer symbols become [UNK]")
    vocab_size: int = Field(100_000, ge=len(SPECIAL) + 1, description="tokens at most, special ones included")
    heldout: float = Field(0.05, ge=0, lt=1, description="share of rows kept for evaluation")


@dataclass(frozen=True)
class BuiltSequences:
    """What came of a build: rows by split, rows without any item, tokens, and the size of the vocabulary."""

    rows: dict[Split, int]
    tokens: int
    empty: int
    vocab_size: int
    unknown: int
    codec: Codec


@door(files=several(place), out=place, settings=kind(SequenceSettings), progress=optional(function))
def build_sequences(
    files: Sequence[Path | str],
    out: Path | str,
    settings: SequenceSettings | None = None,
    progress: Progress | None = None,
) -> BuiltSequences:
    """Writes the store, whole or not at all, with one row in memory at a time (of .npz, the file).

    Which rows are held out depends on their content alone: equal rows are on the same side. Raises
    InputError for files that can't be read, naming the row, and when `out` exists.
    """
    settings, out = settings or SequenceSettings(), Path(out)
    refuse_existing(out)
    if not files:
        raise InputError("Name at least one file: Parquet, JSON lines, CSV, .npy or .npz.")
    codec = find_codec(files, settings)
    counts, rows = Counter[str](), 0
    for symbols in _sequences(files, codec):
        counts.update(symbols)
        rows += 1
        if progress is not None and not rows % _EVERY:
            progress(rows, None, "rows counted")
    tokenizer = symbol_tokenizer(choose_symbols(counts, settings.min_count, settings.vocab_size))
    with atomic_folder(out) as folder:
        written = _Writer(folder, tokenizer, settings.heldout)
        with written:
            for done, symbols in enumerate(_sequences(files, codec), start=1):
                written.add(symbols)
                if progress is not None and (not done % _EVERY or done == rows):
                    progress(done, rows, "rows written")
        if not written.splits["train"].rows:
            raise InputError(f"{files[0]}: no row with an item is left to train on. Lower --heldout.")
        write_json(folder / "manifest.json", written.manifest(files).model_dump(mode="json"))
        write_json(folder / FILE, codec.model_dump(mode="json"))
        tokenizer.save(folder / "tokenizer")
    return BuiltSequences(
        {split: written.splits[split].rows for split in SPLITS},
        sum(each.tokens.length for each in written.splits.values()),
        written.empty,
        tokenizer.vocab_size,
        sum(counts.values()) - sum(counts[piece] for piece in tokenizer.pieces),
        codec,
    )


def find_codec(files: Sequence[Path | str], settings: SequenceSettings) -> Codec:
    """How the rows are to be read, told from the first file. Raises InputError."""
    names = column_names(files[0])
    if settings.kind == "symbols":
        column = settings.column or guess_column(names, str(files[0]))
        if column not in names:
            raise unknown_column(column, names, str(files[0]))
        return Codec(kind="symbols", column=column, characters=settings.characters)
    strange = next((name for name in settings.leave_out if name not in names), None)
    if strange is not None:
        raise unknown_column(strange, names, str(files[0]))
    read = [name for name in names if name not in settings.leave_out]
    if not read:
        raise InputError(f"{files[0]}: --leave-out leaves no column to read.")
    sample = (row.values for row in islice(_records(files), SAMPLE))
    return Codec(kind="table", columns=find_columns(sample, read, settings.bins))


def _records(files: Sequence[Path | str]) -> Iterator[Row]:
    for path in files:
        yield from stream_records(path)


def _sequences(files: Sequence[Path | str], codec: Codec) -> Iterator[list[str]]:
    return (codec.symbols(row) for row in _records(files))


class _SplitFiles:
    """The three arrays of one split, growing by rows: each is a document of one sentence."""

    def __init__(self, folder: Path, dtype: str, stack: ExitStack) -> None:
        folder.mkdir()
        self.tokens = stack.enter_context(ArrayFile(folder / TOKENS, dtype))
        self.sentences = stack.enter_context(ArrayFile(folder / SENTENCES, OFFSETS))
        self.documents = stack.enter_context(ArrayFile(folder / DOCUMENTS, OFFSETS))
        self.rows = 0
        self.sentences.append(np.zeros(1))
        self.documents.append(np.zeros(1))

    def add(self, ids: list[int]) -> None:
        self.rows += 1
        self.tokens.append(np.array(ids))
        self.sentences.append(np.array([self.tokens.length]))
        self.documents.append(np.array([self.rows]))

    def entry(self) -> StoredSplit:
        files = (self.tokens, self.sentences, self.documents)
        return StoredSplit(
            documents=self.rows,
            sentences=self.rows,
            tokens=self.tokens.length,
            files={array.path.name: array.entry() for array in files},
        )


class _Writer:
    """Rows into the split that their content chooses."""

    def __init__(self, folder: Path, tokenizer: Tokenizer, heldout: float) -> None:
        self.tokenizer, self.heldout, self.empty = tokenizer, heldout, 0
        self.dtype: Literal["<u2", "<u4"] = "<u2" if tokenizer.vocab_size <= 2**16 else "<u4"
        self._ids = {piece: number for number, piece in enumerate(tokenizer.pieces)}
        self._folder, self._stack = folder, ExitStack()

    def __enter__(self) -> "_Writer":
        self.splits = {split: _SplitFiles(self._folder / split, self.dtype, self._stack) for split in SPLITS}
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def add(self, symbols: Sequence[str]) -> None:
        if not symbols:
            self.empty += 1
            return
        digest = hashlib.blake2b(" ".join(symbols).encode(errors="surrogatepass"), digest_size=8).digest()
        split: Split = "heldout" if int.from_bytes(digest, "little") < self.heldout * 2**64 else "train"
        unknown = self.tokenizer.unk_id
        self.splits[split].add([self._ids.get(symbol, unknown) for symbol in symbols])

    def manifest(self, files: Sequence[Path | str]) -> StoreManifest:
        """The corpus is the files: its hash is of theirs."""
        hashes = "".join(sha256(Path(path)) for path in files)
        return StoreManifest(
            created_by=f"bertsmith {bertsmith.__version__}",
            dtype=self.dtype,
            vocab_size=self.tokenizer.vocab_size,
            tokenizer_sha256=self.tokenizer.sha256,
            corpus_sha256=hashlib.sha256(hashes.encode()).hexdigest(),
            splits={split: each.entry() for split, each in self.splits.items()},
        )
