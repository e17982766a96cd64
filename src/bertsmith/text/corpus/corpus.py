"""A corpus on disk: Parquet files with documents as sentences, and a manifest that accounts for them.

`Corpus` opens and reads one; `ShardWriter` writes the files of a split.
"""

import os
import random
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import NamedTuple, get_args

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import ValidationError

from bertsmith.argument_checks import check_arguments, check_path
from bertsmith.errors import CorpusError
from bertsmith.files import read_json, sha256
from bertsmith.progress import Progress
from bertsmith.text.corpus.manifest import CorpusManifest, CorpusShard, Split
from bertsmith.validation import describe_problem

SCHEMA = pa.schema([("id", pa.string()), ("source", pa.string()), ("sentences", pa.list_(pa.string()))])
ROW_GROUP_BYTES = 8 << 20  # in memory; a reader holds one row group
SHARD_BYTES = 512 << 20  # in memory; about 150 MB on disk


class CorpusDocument(NamedTuple):
    """One document: an id that is unique in the corpus, the name of its source, its sentences in order."""

    id: str
    source: str
    sentences: list[str]


class Corpus:
    """A corpus on disk. To open it reads only the manifest and compares the sizes of the files."""

    def __init__(self, path: Path, manifest: CorpusManifest) -> None:
        self.path = path
        self.manifest = manifest

    @classmethod
    @check_arguments(path=check_path)
    def open(cls, path: Path | str) -> "Corpus":
        """Opens the corpus in the folder `path`.

        Raises CorpusError if the folder is no corpus, or a file is missing or has another size.
        """
        path = Path(path)
        if not (path / "manifest.json").is_file():
            raise CorpusError(
                f"{path} is not a corpus: it has no manifest.json. Make one with `bertsmith corpus build`."
            )
        content = read_json(path / "manifest.json")
        if isinstance(content, dict) and "tokenizer_sha256" in content:
            raise CorpusError(f"{path} is a token store. Name the corpus that it was made of.")
        try:
            manifest = CorpusManifest.model_validate(content)
        except ValidationError as error:
            raise CorpusError(
                f"{path / 'manifest.json'} is not the manifest of a corpus of this version: "
                f"{describe_problem(error, CorpusManifest)} Build the corpus again."
            ) from error
        corpus = cls(path, manifest)
        for shard in (shard for split in manifest.splits for shard in corpus._shards(split)):
            file = path / shard.file
            size = file.stat().st_size if file.is_file() else None
            if size != shard.size:
                actual = "no such file" if size is None else f"{size:,} bytes"
                raise CorpusError(
                    f"{file}: expected {shard.size:,} bytes, found {actual}. Build the corpus again."
                )
        return corpus

    def documents(self, split: Split) -> Iterator[CorpusDocument]:
        """The documents of a split in the order of the sources, with a few megabytes in memory at a time."""
        for shard in self._shards(split):
            for batch in read_shard(self.path / shard.file):
                columns = batch.to_pydict()
                yield from map(CorpusDocument, columns["id"], columns["source"], columns["sentences"])

    def verify(self, progress: Progress | None = None) -> None:
        """Reads every file. Raises CorpusError for a file whose hash differs from the manifest's."""
        shards = [shard for split in self.manifest.splits for shard in self._shards(split)]
        for done, shard in enumerate(shards, start=1):
            digest = sha256(self.path / shard.file)
            if digest != shard.sha256:
                raise CorpusError(
                    f"{self.path / shard.file} was altered: expected SHA-256 {shard.sha256}, found {digest}. "
                    "Build the corpus again."
                )
            if progress:
                progress(done, len(shards), "files verified")

    def _shards(self, split: Split) -> tuple[CorpusShard, ...]:
        if split not in get_args(Split):
            raise CorpusError(f"A corpus has the splits train and heldout, not {split!r}.")
        return self.manifest.splits[split].shards


def open_corpus(corpus: Corpus | Path | str) -> Corpus:
    """The corpus itself, or the one at this path. Raises what `Corpus.open` raises."""
    return Corpus.open(corpus) if isinstance(corpus, str | os.PathLike) else corpus


class ShardWriter:
    """Writes one split as `<split>-00000.parquet` and so on, cut by the documents' sizes alone."""

    def __init__(self, folder: Path, split: Split) -> None:
        self._folder, self._split = folder, split
        self._pending: list[pa.Table] = []
        self._writer: pq.ParquetWriter | None = None
        self._shard_bytes = 0  # of the open shard, in memory
        self._files: list[tuple[Path, int]] = []  # each with its number of documents

    def write(self, documents: pa.Table) -> None:
        """Adds a table of documents; they are written to disk a row group at a time."""
        if documents.num_rows:
            self._pending.append(documents)
        if sum(table.nbytes for table in self._pending) >= ROW_GROUP_BYTES:
            self._flush()

    def close(self) -> tuple[CorpusShard, ...]:
        """Closes the last file and returns the manifest's entries of all files."""
        self._flush()
        self._close_shard()
        return tuple(
            CorpusShard(file=path.name, documents=documents, size=path.stat().st_size, sha256=sha256(path))
            for path, documents in self._files
        )

    def _flush(self) -> None:
        if not self._pending:
            return
        group = pa.concat_tables(self._pending).combine_chunks()
        self._pending = []
        if self._writer is None:
            path = self._folder / f"{self._split}-{len(self._files):05d}.parquet"
            self._writer = pq.ParquetWriter(path, SCHEMA, compression="zstd", use_dictionary=["source"])
            self._files.append((path, 0))
        self._writer.write_table(group, row_group_size=group.num_rows)
        path, documents = self._files[-1]
        self._files[-1] = (path, documents + group.num_rows)
        self._shard_bytes += group.nbytes
        if self._shard_bytes >= SHARD_BYTES:
            self._close_shard()

    def _close_shard(self) -> None:
        if self._writer is not None:
            self._writer.close()
        self._writer, self._shard_bytes = None, 0


def read_shard(path: Path, only_group: int | None = None) -> Iterator[pa.RecordBatch]:
    """The documents of a shard in order, or those of one row group, up to 512 at a time.

    One row group is in memory at a time. Raises CorpusError for a file that can't be read.
    """
    try:
        with pq.ParquetFile(path, pre_buffer=False) as table:
            # One group at a time: otherwise a batch could span many groups of long documents.
            for group in range(table.num_row_groups) if only_group is None else [only_group]:
                yield from table.iter_batches(
                    batch_size=512, row_groups=[group], columns=SCHEMA.names, use_threads=False
                )
    except (pa.ArrowException, OSError) as error:
        raise CorpusError(f"{path} was altered or is damaged ({error}). Build the corpus again.") from error


def sample_documents(corpus: Corpus, count: int, seed: int) -> list[CorpusDocument]:
    """A random sample of `count` documents of the train split, or all if it has fewer, in their order."""
    total = corpus.manifest.splits["train"].counts.documents
    chosen = sorted(random.Random(seed).sample(range(total), min(count, total)))
    documents, position = corpus.documents("train"), 0
    sample: list[CorpusDocument] = []
    for index in chosen:
        sample += islice(documents, index - position, index - position + 1)
        position = index + 1
    return sample
