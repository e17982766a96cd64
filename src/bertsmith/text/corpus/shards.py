"""The documents of a corpus as Parquet: id, source, sentences."""

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from bertsmith.errors import CorpusError
from bertsmith.files import sha256
from bertsmith.text.corpus.manifest import Shard, Split

SCHEMA = pa.schema([("id", pa.string()), ("source", pa.string()), ("sentences", pa.list_(pa.string()))])
ROW_GROUP_BYTES = 8 << 20  # in memory; a reader holds one row group
SHARD_BYTES = 512 << 20  # in memory; about 150 MB on disk


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

    def close(self) -> tuple[Shard, ...]:
        """Finishes the last shard and returns all of them."""
        self._flush()
        self._close_shard()
        return tuple(
            Shard(file=path.name, documents=documents, size=path.stat().st_size, sha256=sha256(path))
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
