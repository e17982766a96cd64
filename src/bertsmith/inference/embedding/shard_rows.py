"""Rows of a table → texts, shard by shard, those of finished shards checked against what was embedded."""

import hashlib
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from bertsmith.errors import InputError
from bertsmith.text.files.values import as_text, is_blank
from bertsmith.text.labelled.rows import LabelledRow
from bertsmith.text.tokens.tokenizer import LONE_SURROGATE


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

    rows: Iterable[LabelledRow]
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
            ids.append(_id(row, number))
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
            raise _changed(self.shards)
        self.sha256 = whole.hexdigest()

    def _close(self, ids: list[str], sha256: str) -> None:
        if self.shards >= len(self.done):
            self.waiting.append(ShardRows(ids, sha256))
        elif sha256 != self.done[self.shards]:
            raise _changed(self.shards)
        self.shards += 1


def _id(row: LabelledRow, number: int) -> str:
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


def _changed(shard: int) -> InputError:
    return InputError(
        f"The input has changed since its first vectors were made: shard {shard} has other rows now. "
        "Restore the input, or remove the unfinished parts and embed it anew."
    )
