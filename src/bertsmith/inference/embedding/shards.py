"""OUT.parts: the finished shards of an embedding job, from which a killed one goes on; and the job's rows
shard by shard, those of finished shards checked against what was embedded.

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
from bertsmith.files import atomic_write, flush, read_json, write_json
from bertsmith.inference.embedding.vector_file import ROWS, About, vector_schema
from bertsmith.text.files.tables import Row
from bertsmith.text.files.values import as_text, is_blank
from bertsmith.text.tokens.tokenizer import LONE_SURROGATE

_ABOUT, _WHOLE = "about.json", "whole.parquet"
_TOKENS = "tokens"
# Vectors don't compress and don't repeat: looking for either only costs.
_PLAIN = {"compression": "none", "use_dictionary": False}


class _JobFile(About):
    """about.json."""

    shard_rows: int


@dataclass
class ShardFolder:
    """The parts beside `out`, each but the last of `shard_rows` rows. `about` may learn int8's ranges with
    the first one.
    """

    out: Path
    about: About
    shard_rows: int

    @property
    def folder(self) -> Path:
        return self.out.with_name(f"{self.out.name}.parts")

    def open(self, resume: bool) -> None:
        """In a folder that is there. Raises InputError when it holds another job's parts, or any without
        `resume`.
        """
        if not self.shards():
            self.note(self.about)
            return
        if not resume:
            raise InputError(
                f"{self.folder} holds the parts of an unfinished job. --resume goes on with it; "
                "remove the folder to begin anew."
            )
        try:
            noted = _JobFile.model_validate(read_json(self.folder / _ABOUT))
        except ValidationError as error:
            raise InputError(
                f"{self.folder / _ABOUT} wasn't written by this version. Remove the folder to begin anew."
            ) from error
        require_same(noted, self.about, self.folder)
        if noted.shard_rows != self.shard_rows:
            raise InputError(
                f"{self.folder} holds shards of {noted.shard_rows} rows, not {self.shard_rows}. Resume with "
                f"--shard-rows {noted.shard_rows}, or remove the folder to begin anew."
            )
        self.about = About.model_validate(noted.model_dump(exclude={"shard_rows"}))

    def note(self, about: About) -> None:
        """Writes down what makes the vectors."""
        self.about = about
        write_json(self.folder / _ABOUT, about.model_dump() | {"shard_rows": self.shard_rows})

    def shards(self) -> list[Path]:
        """The finished ones, in order, up to the first that is missing."""
        return list(takewhile(Path.exists, map(self._path, count())))

    def done(self) -> tuple[list[str], int, int]:
        """Of the finished shards: each one's SHA-256, all rows, all tokens. InputError for a damaged one."""
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
        """One shard. Raises ResourceError when the disk is full."""
        noted = {**(table.schema.metadata or {}), ROWS: rows_sha256, _TOKENS: str(tokens)}
        buffer = pa.BufferOutputStream()
        pq.write_table(table.replace_schema_metadata(noted), buffer, **_PLAIN)
        atomic_write(self._path(number), buffer.getvalue().to_pybytes())

    def join(self, shards: int, rows_sha256: str) -> None:
        """So many shards become `out`, one in memory at a time; the parts are removed. The hash is that of
        all rows. Raises InputError when a shard has gone.
        """
        whole = self.folder / _WHOLE
        schema = vector_schema(self.about, **{ROWS: rows_sha256})
        found = self.shards()
        if len(found) < shards:
            raise InputError(f"{self._path(len(found))} is gone. Run this again with --resume.")
        with pq.ParquetWriter(whole, schema, **_PLAIN) as writer:
            for path in found[:shards]:
                writer.write_table(pq.read_table(path).replace_schema_metadata(schema.metadata))
        flush(whole)
        whole.replace(self.out)
        flush(self.out.parent)
        self.remove()

    def remove(self) -> None:
        """What is left of the parts once `out` stands."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _path(self, number: int) -> Path:
        return self.folder / f"shard-{number:05d}.parquet"


def require_same(noted: About, wanted: About, where: Path) -> None:
    """Raises InputError naming the first setting that differs; int8's ranges count only where given, a
    vocabulary only where noted.
    """
    for name in About.model_fields:
        before, now = getattr(noted, name), getattr(wanted, name)
        unknown = (name == "ranges" and now is None) or (name == "tokenizer_sha256" and not before)
        if before != now and not unknown:
            said = "other int8 ranges" if name == "ranges" else f"{name} {before!r}, not {now!r}"
            raise InputError(
                f"{where} was made with {said}. Resume with the same settings, or choose another --out."
            )


class ShardRows(NamedTuple):
    """The ids of a shard's rows in order, and the SHA-256 of its ids and texts."""

    ids: list[str]
    sha256: str


@dataclass
class ShardedRows:
    """Texts of `rows`, each (text,) or (text, id), `size` a shard. `texts` yields those that remain after the
    `done` shards, given by their SHA-256; the rows of each shard that was read lie in `waiting`, in order.
    `sha256` is that of all rows, once they are read. Rows without a text, whose vector is that of the special
    tokens alone, are counted in `blank`; `first_blank` is the first one's place.
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
        """Raises InputError when a finished shard's rows have changed, and for what is no text or no id."""
        ids, digest, whole = list[str](), hashlib.sha256(), hashlib.sha256()
        for number, row in enumerate(self.rows, 1):
            text = as_text(row.values[0], row.where)
            if is_blank(text):
                self.blank += 1
                self.first_blank = self.first_blank or row.where
            ids.append(_row_id(row, number))
            for part in (ids[-1], text):
                encoded = part.encode(errors="surrogatepass")
                for each in (digest, whole):
                    each.update(len(encoded).to_bytes(8) + encoded)
            remains = self.shards >= len(self.done)
            if len(ids) == self.size:  # before its last text is given out: whoever takes that looks here
                self._close(ids, digest.hexdigest())
                ids, digest = [], hashlib.sha256()
            if remains:
                yield text
        if ids:
            self._close(ids, digest.hexdigest())
        if self.shards < len(self.done):
            raise _changed_rows_error(self.shards)
        self.sha256 = whole.hexdigest()

    def _close(self, ids: list[str], sha256: str) -> None:
        if self.shards >= len(self.done):
            self.waiting.append(ShardRows(ids, sha256))
        elif sha256 != self.done[self.shards]:
            raise _changed_rows_error(self.shards)
        self.shards += 1


def _row_id(row: Row, number: int) -> str:
    """The row's own, or its number."""
    if len(row.values) < 2:
        return str(number)
    if not isinstance(row.values[1], str | int) or row.values[1] == "":
        raise InputError(f"{row.where}: expected an id, a string or a whole number; found {row.values[1]!r}.")
    id = str(row.values[1])
    if LONE_SURROGATE.search(id):
        raise InputError(
            f"{row.where}: the id {id!r} holds half of a UTF-16 pair, which is no character. Mend it."
        )
    return id


def _changed_rows_error(shard: int) -> InputError:
    return InputError(
        f"The input has changed since its first vectors were made: shard {shard} has other rows now. "
        "Restore the input, or remove the unfinished parts and embed it anew."
    )
