"""OUT.parts, the folder of an embedding job's finished shards: a job that was killed resumes from it.

`ShardFolder` reads and writes the folder. `ShardedRows` reads the job's rows shard by shard and verifies by
their hashes that the rows of finished shards haven't changed.

about.json            what makes the vectors, and the rows of a shard; another job's parts are refused
shard-00000.parquet   one shard, whole or absent; its metadata has the SHA-256 of its rows and its tokens
"""

import hashlib
import shutil
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count, takewhile
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import ValidationError

from bertsmith.errors import InputError
from bertsmith.files import atomic_write, copy_mode, flush, read_json, write_json
from bertsmith.inference.embedding.vector_file import ROWS, About, vector_schema
from bertsmith.text.files.tables import Row
from bertsmith.text.files.values import as_text, is_blank
from bertsmith.text.tokens.tokenizer import LONE_SURROGATE

_ABOUT, _WHOLE = "about.json", "whole.parquet"
_TOKENS = "tokens"
# Vectors don't compress and don't repeat: looking for either only costs.
_PLAIN = {"compression": "none", "use_dictionary": False}


class _JobFile(About):
    """The content of about.json: what makes the vectors, and the number of rows of a shard."""

    shard_rows: int


@dataclass
class ShardFolder:
    """The folder of shards beside `out`. Each shard but the last has `shard_rows` rows.

    For int8, `about` has no ranges until the first shard is computed, unless they were given.
    """

    out: Path
    about: About
    shard_rows: int

    @property
    def folder(self) -> Path:
        return self.out.with_name(f"{self.out.name}.parts")

    def open(self, resume: bool) -> None:
        """Prepares the folder, which must exist: writes about.json, or verifies the one of the job that is
        resumed. Raises InputError if the folder holds another job's shards, or any shards without `resume`.
        """
        if not self.shards():
            self.note(self.about)
            return
        if not resume:
            raise InputError(
                f"{self.folder} holds the parts of an unfinished job. With --resume the command continues "
                "where it stopped; remove the folder to begin anew."
            )
        try:
            job = _JobFile.model_validate(read_json(self.folder / _ABOUT))
        except ValidationError as error:
            raise InputError(
                f"{self.folder / _ABOUT} wasn't written by this version. Remove the folder to begin anew."
            ) from error
        require_same(job, self.about, self.folder)
        if job.shard_rows != self.shard_rows:
            raise InputError(
                f"{self.folder} holds shards of {job.shard_rows} rows, not {self.shard_rows}. Resume with "
                f"--shard-rows {job.shard_rows}, or remove the folder to begin anew."
            )
        self.about = About.model_validate(job.model_dump(exclude={"shard_rows"}))

    def note(self, about: About) -> None:
        """Sets `about`, and writes it with the number of rows of a shard to about.json."""
        self.about = about
        write_json(self.folder / _ABOUT, about.model_dump() | {"shard_rows": self.shard_rows})

    def shards(self) -> list[Path]:
        """Paths of the finished shards, in order, up to the first that is missing."""
        return list(takewhile(Path.exists, map(self._path, count())))

    def done(self) -> tuple[list[str], int, int]:
        """The SHA-256 of each finished shard, and the numbers of their rows and tokens together. Raises
        InputError for a damaged shard.
        """
        hashes, rows, tokens = list[str](), 0, 0
        for path in self.shards():
            try:
                file = pq.read_metadata(path)
                hashes.append(file.metadata[ROWS.encode()].decode())
                rows, tokens = rows + file.num_rows, tokens + int(file.metadata[_TOKENS.encode()])
            except (pa.ArrowInvalid, OSError, KeyError, ValueError) as error:
                raise InputError(f"{path} is damaged ({error}). Remove it, and run this again.") from error
        return hashes, rows, tokens

    def write(self, number: int, table: pa.Table, rows_sha256: str, tokens: int) -> None:
        """Writes one shard. Raises ResourceError when the disk is full."""
        metadata = {**(table.schema.metadata or {}), ROWS: rows_sha256, _TOKENS: str(tokens)}
        buffer = pa.BufferOutputStream()
        pq.write_table(table.replace_schema_metadata(metadata), buffer, **_PLAIN)
        atomic_write(self._path(number), buffer.getvalue().to_pybytes())

    def join(self, shards: int, rows_sha256: str) -> None:
        """Joins the first `shards` shards into `out`, one in memory at a time, and removes the folder.
        `rows_sha256` is the hash of all rows. Raises InputError when a shard is missing.
        """
        joined = self.folder / _WHOLE
        schema = vector_schema(self.about, **{ROWS: rows_sha256})
        finished = self.shards()
        if len(finished) < shards:
            raise InputError(f"{self._path(len(finished))} is gone. Run this again with --resume.")
        with pq.ParquetWriter(joined, schema, **_PLAIN) as writer:
            for path in finished[:shards]:
                writer.write_table(pq.read_table(path).replace_schema_metadata(schema.metadata))
        copy_mode(self.out, joined)
        flush(joined)
        joined.replace(self.out)
        flush(self.out.parent)
        self.remove()

    def remove(self) -> None:
        """Deletes the folder with whatever is left in it."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _path(self, number: int) -> Path:
        return self.folder / f"shard-{number:05d}.parquet"


def require_same(before: About, now: About, path: Path) -> None:
    """Raises InputError naming the first setting that differs. int8's ranges are compared only if they were
    given, the tokenizer only if the file names it.
    """
    for name in About.model_fields:
        old, new = getattr(before, name), getattr(now, name)
        is_unstated = (name == "ranges" and new is None) or (name == "tokenizer_sha256" and not old)
        if old != new and not is_unstated:
            difference = "other int8 ranges" if name == "ranges" else f"{name} {old!r}, not {new!r}"
            raise InputError(
                f"{path} was made with {difference}. Resume with the same settings, or choose another --out."
            )


class ShardRows(NamedTuple):
    """The ids of a shard's rows in order, and the SHA-256 of these ids and the rows' texts."""

    ids: list[str]
    sha256: str


@dataclass
class ShardedRows:
    """Reads `rows`, each (text,) or (text, id), in shards of `size`.

    `done` has the SHA-256 of each finished shard. `texts` yields the texts behind these; once all of a
    shard's texts are read, its ids and hash are appended to `waiting`. `sha256` is the hash of all rows, set
    at the end. `blank` counts rows without a text, whose vector is that of the special tokens alone, and
    `first_blank` says where the first one stands.
    """

    rows: Iterable[Row]
    size: int
    done: Sequence[str] = ()
    waiting: deque[ShardRows] = field(default_factory=deque)
    shards: int = 0  # read so far
    sha256: str = ""
    blank: int = 0
    first_blank: str = ""

    def texts(self) -> Iterator[str]:
        """Yields the texts that are still to be embedded. Raises InputError when a finished shard's rows have
        changed, and for a row whose text is no text or whose id is no id.
        """
        ids, shard_digest, total_digest = list[str](), hashlib.sha256(), hashlib.sha256()
        for number, row in enumerate(self.rows, 1):
            text = as_text(row.values[0], row.where)
            if is_blank(text):
                self.blank += 1
                self.first_blank = self.first_blank or row.where
            ids.append(_row_id(row, number))
            for part in (ids[-1], text):
                data = part.encode(errors="surrogatepass")
                for sha in (shard_digest, total_digest):
                    sha.update(len(data).to_bytes(8) + data)
            is_pending = self.shards >= len(self.done)
            if len(ids) == self.size:  # before the last text is yielded: its consumer pops `waiting`
                self._close(ids, shard_digest.hexdigest())
                ids, shard_digest = [], hashlib.sha256()
            if is_pending:
                yield text
        if ids:
            self._close(ids, shard_digest.hexdigest())
        if self.shards < len(self.done):
            raise _changed_rows_error(self.shards)
        self.sha256 = total_digest.hexdigest()

    def _close(self, ids: list[str], sha256: str) -> None:
        if self.shards >= len(self.done):
            self.waiting.append(ShardRows(ids, sha256))
        elif sha256 != self.done[self.shards]:
            raise _changed_rows_error(self.shards)
        self.shards += 1


def _row_id(row: Row, number: int) -> str:
    """The row's id, or its number if rows have no ids. Raises InputError for an id that can't be stored."""
    if len(row.values) < 2:
        return str(number)
    if not isinstance(row.values[1], str | int) or row.values[1] == "":
        raise InputError(f"{row.where}: expected an id, a string or a whole number; found {row.values[1]!r}.")
    row_id = str(row.values[1])
    if LONE_SURROGATE.search(row_id):
        raise InputError(
            f"{row.where}: the id {row_id!r} holds half of a UTF-16 pair, which is no character. Mend it."
        )
    return row_id


def _changed_rows_error(shard: int) -> InputError:
    return InputError(
        f"The input has changed since its first vectors were made: shard {shard} has other rows now. "
        "Restore the input, or remove the unfinished parts and embed it anew."
    )
