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

from bertsmith.door import door, place
from bertsmith.errors import CorpusError
from bertsmith.files import read_json, sha256
from bertsmith.progress import Progress
from bertsmith.text.corpus.manifest import CorpusManifest, CorpusShard, Split
from bertsmith.validation import first_problem

SCHEMA = pa.schema([("id", pa.string()), ("source", pa.string()), ("sentences", pa.list_(pa.string()))])
ROW_GROUP_BYTES = 8 << 20  # in memory; a reader holds one row group
SHARD_BYTES = 512 << 20  # in memory; about 150 MB on disk


class CorpusDocument(NamedTuple):
    """One document: a name unique in the corpus, the file or package it is from, its sentences in order."""

    id: str
    source: str
    sentences: list[str]


class Corpus:
    """A corpus on disk. Opening it reads the manifest and compares the sizes of the files, nothing more."""

    def __init__(self, path: Path, manifest: CorpusManifest) -> None:
        self.path = path
        self.manifest = manifest

    @classmethod
    @door(path=place)
    def open(cls, path: Path | str) -> "Corpus":
        """Raises CorpusError when the folder is no corpus, or a file is missing or has another size."""
        path = Path(path)
        if not (path / "manifest.json").is_file():
            raise CorpusError(
                f"{path} is not a corpus: it has no manifest.json. Make one with `bertsmith corpus build`."
            )
        found = read_json(path / "manifest.json")
        if isinstance(found, dict) and "tokenizer_sha256" in found:
            raise CorpusError(f"{path} is a token store. Name the corpus that it was made of.")
        try:
            manifest = CorpusManifest.model_validate(found)
        except ValidationError as error:
            raise CorpusError(
                f"{path / 'manifest.json'} is not the manifest of a corpus of this version: "
                f"{first_problem(error, CorpusManifest)} Build the corpus again."
            ) from error
        corpus = cls(path, manifest)
        for shard in (shard for split in manifest.splits for shard in corpus._shards(split)):
            place = path / shard.file
            size = place.stat().st_size if place.is_file() else None
            if size != shard.size:
                there = "no such file" if size is None else f"{size:,} bytes"
                raise CorpusError(
                    f"{place}: expected {shard.size:,} bytes, found {there}. Build the corpus again."
                )
        return corpus

    def documents(self, split: Split) -> Iterator[CorpusDocument]:
        """The documents of a split in the order of the sources; a few megabytes in memory at a time."""
        for shard in self._shards(split):
            for batch in read_shard(self.path / shard.file):
                columns = batch.to_pydict()
                yield from map(CorpusDocument, columns["id"], columns["source"], columns["sentences"])

    def verify(self, progress: Progress | None = None) -> None:
        """Reads every file; raises CorpusError for one whose hash differs from the manifest's."""
        shards = [shard for split in self.manifest.splits for shard in self._shards(split)]
        for done, shard in enumerate(shards, start=1):
            found = sha256(self.path / shard.file)
            if found != shard.sha256:
                raise CorpusError(
                    f"{self.path / shard.file} was altered: expected SHA-256 {shard.sha256}, found {found}. "
                    "Build the corpus again."
                )
            if progress:
                progress(done, len(shards), "files verified")

    def _shards(self, split: Split) -> tuple[CorpusShard, ...]:
        if split not in get_args(Split):
            raise CorpusError(f"A corpus has the splits train and heldout, not {split!r}.")
        return self.manifest.splits[split].shards


def open_corpus(corpus: Corpus | Path | str) -> Corpus:
    """What a function was handed as a corpus: one, or the path of one. Raises as `Corpus.open` does."""
    return Corpus.open(corpus) if isinstance(corpus, str | os.PathLike) else corpus


class ShardWriter:
    """Writes one split as `<split>-00000.parquet` and so on; the cuts depend on the documents alone."""

    def __init__(self, folder: Path, split: Split) -> None:
        self._folder, self._split = folder, split
        self._pending: list[pa.Table] = []
        self._writer: pq.ParquetWriter | None = None
        self._written = 0  # bytes of memory in the open shard
        self._files: list[tuple[Path, int]] = []  # with their documents

    def write(self, documents: pa.Table) -> None:
        """Adds documents; they reach the disk a row group at a time."""
        if documents.num_rows:
            self._pending.append(documents)
        if sum(table.nbytes for table in self._pending) >= ROW_GROUP_BYTES:
            self._flush()

    def close(self) -> tuple[CorpusShard, ...]:
        """Finishes the last shard and returns all of them."""
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
        self._written += group.nbytes
        if self._written >= SHARD_BYTES:
            self._close_shard()

    def _close_shard(self) -> None:
        if self._writer is not None:
            self._writer.close()
        self._writer, self._written = None, 0


def read_shard(path: Path, only_group: int | None = None) -> Iterator[pa.RecordBatch]:
    """A shard's documents in order, or those of one row group, a few hundred at a time; holds one row group.

    Raises CorpusError for a file that was altered so that it can't be read.
    """
    try:
        with pq.ParquetFile(path, pre_buffer=False) as table:
            # one by one: a batch could otherwise span many of long documents
            for group in range(table.num_row_groups) if only_group is None else [only_group]:
                yield from table.iter_batches(
                    batch_size=512, row_groups=[group], columns=SCHEMA.names, use_threads=False
                )
    except (pa.ArrowException, OSError) as error:
        raise CorpusError(f"{path} was altered or is damaged ({error}). Build the corpus again.") from error


def sample_documents(corpus: Corpus, count: int, seed: int) -> list[CorpusDocument]:
    """So many documents at random places of the training split, in order."""
    there = corpus.manifest.splits["train"].counts.documents
    places = sorted(random.Random(seed).sample(range(there), min(count, there)))
    documents, at = corpus.documents("train"), 0
    found: list[CorpusDocument] = []
    for number in places:
        found += islice(documents, number - at, number - at + 1)
        at = number + 1
    return found
