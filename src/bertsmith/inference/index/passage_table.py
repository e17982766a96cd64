"""The LanceDB table of an index: passages with their vectors, their words and their metadata, by version.

E passages, D width of a vector. Every change makes a new version of the table, and old ones stay readable
for an hour; which version counts is index.json's to say (see manifest.py).

Over many vectors there is an approximate index. They are grouped (IVF) and shortened to one byte for every
four numbers or more (product quantisation). A query is compared with the short vectors of the nearest groups,
and the best of these with the whole vectors. How many groups are looked at is raised until recall@10 is what
was asked for, so that the figure is one of these vectors and not of some benchmark. A filter has further ones
looked at, for its rows may lie anywhere.
"""

import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from bertsmith.errors import FilterError, InputError, ResourceError, require
from bertsmith.inference.index.manifest import FOLDED_TEXT, Approximate, ColumnKind, folds_first
from bertsmith.inference.index.metadata import ARROW, OWN, filter_problem, filter_reason
from bertsmith.text.words import has_blanks

Vectors = npt.NDArray[np.float32]
TABLE = "passages"
OLD_VERSIONS_STAY = timedelta(hours=1)  # longer than any search takes
_IDS_AT_A_TIME = 500
_LONGEST_WORD = 1000  # characters: hashes and compounds are found, and lines of base64 fill no index
_LANCE_ERRORS = (RuntimeError, ValueError, OSError)
_NOT_THERE = "`no.such`"  # no column of an index has a point in its name
_OF_A_FILTER = re.compile("Query Execution error|Arrow error|Cast error")
_OF_A_FILE = re.compile(
    "[Nn]ot found|failed to fill whole buffer|size is too small|Invalid range|Protobuf"
    "|not appear to be a Lance file|outside metadata region|no longer exists|future panicked"
)
# Languages that LanceDB has stems and stop words for; of any other it takes words as they are.
_STEMMED = {
    "ar": "Arabic",
    "da": "Danish",
    "de": "German",
    "el": "Greek",
    "en": "English",
    "es": "Spanish",
    "fi": "Finnish",
    "fr": "French",
    "hu": "Hungarian",
    "it": "Italian",
    "nl": "Dutch",
    "nb": "Norwegian",
    "no": "Norwegian",
    "pt": "Portuguese",
    "ro": "Romanian",
    "ru": "Russian",
    "sv": "Swedish",
    "ta": "Tamil",
    "tr": "Turkish",
}
_ICU_WORDS = "icu/split"  # ICU's dictionaries find words where no blanks do; comes with LanceDB since 0.36
RECALL = 0.95
LEAST_ROWS = 256  # what product quantisation needs: as many as a byte has values
_NEIGHBOURS = 10
_ROUNDING = 1e-6  # of a cosine in float32
_REFINE = 10  # times as many candidates as hits are compared exactly
_PROBES = (8, 16, 32, 64, 128, 256)
_ROWS_IN_A_GROUP = 4096
_NUMBERS_IN_A_BYTE = 4


class IndexedDocument(NamedTuple):
    """What the index holds of a document: the hash it was embedded at, and whether `add` put it there."""

    sha256: str
    added: bool


class PassageTable:
    """One version of the table for a reader, the latest one for the writer."""

    def __init__(self, folder: Path, table: Any) -> None:
        self.folder = folder
        self.table = table
        self._passed: str | None = None  # the filter that was checked last: it costs two plans of a query

    @classmethod
    def create(
        cls, folder: Path, dimension: int, metadata: Mapping[str, ColumnKind], language: str
    ) -> "PassageTable":
        """An empty table with its full-text index."""
        index = require_lancedb().index
        stemmed = _STEMMED.get(language.partition("-")[0])
        words = index.FTS(
            language=stemmed or "English",
            stem=stemmed is not None,
            remove_stop_words=stemmed is not None,
            ascii_folding=True,
            with_position=False,
            max_token_length=_LONGEST_WORD,
            base_tokenizer="simple" if has_blanks(language) else _ICU_WORDS,
        )
        with index_errors(folder):
            folded = folds_first(language)
            table = _connect(folder).create_table(TABLE, schema=_table_schema(dimension, metadata, folded))
            table.create_index(FOLDED_TEXT if folded else "text", config=words)
        return cls(folder, table)

    @classmethod
    def open(cls, folder: Path, version: int | None = None) -> "PassageTable":
        """The latest version, or the one that is asked for. Raises InputError when it can't be read."""
        with index_errors(folder):
            table = _connect(folder).open_table(TABLE)
            if version is not None:
                table.checkout(version)
        return cls(folder, table)

    @property
    def version(self) -> int:
        """Of the table as it is opened."""
        return int(self.table.version)

    def rows(self) -> int:
        """How many passages this version has."""
        with index_errors(self.folder):
            return int(self.table.count_rows())

    def roll_back(self, version: int) -> None:
        """What was written after `version` is undone, by a new version with the content of the old one."""
        with index_errors(self.folder):
            self.table.checkout(version)
            self.table.restore()

    def documents(self) -> dict[str, IndexedDocument]:
        """Every document by its id: one pass over three columns."""
        found: dict[str, IndexedDocument] = {}
        for batch in self.scan(["document_id", "sha256", "added"]):
            columns = (batch.column(name).to_pylist() for name in ("document_id", "sha256", "added"))
            found.update({id: IndexedDocument(sha256, added) for id, sha256, added in zip(*columns)})
        return found

    def scan(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Every row, some thousands at a time."""
        with index_errors(self.folder):
            yield from self.table.search().select(list(columns)).to_batches(8192)

    def require_columns(self, metadata: Mapping[str, ColumnKind]) -> None:
        """Raises InputError where the table lacks what index.json says of its metadata."""
        schema = self.table.schema
        for name, kind in metadata.items():
            if name in OWN or name not in schema.names or schema.field(name).type != ARROW[kind]:
                raise InputError(
                    f"The index {self.folder} is damaged: index.json says that the column {name!r} holds "
                    f"{kind}, and the table has no such column. Take it from a copy, or remove the folder "
                    "and build it again."
                )

    def remove(self, ids: Collection[str]) -> None:
        """Every passage of these documents."""
        with index_errors(self.folder):
            for where in _document_filters(ids):
                self.table.delete(where)

    def keep(self, ids: Collection[str]) -> None:
        """Notes of every passage of these documents that `add` put it there."""
        with index_errors(self.folder):
            for where in _document_filters(ids):
                self.table.update(where=where, values={"added": True})

    def add(self, rows: Sequence[Mapping[str, Any]], vectors: Vectors) -> None:
        """Passages with their vectors, (E, D); metadata that a row doesn't name is null."""
        schema = self.table.schema
        columns = {name: [row.get(name) for row in rows] for name in schema.names if name != "vector"}
        arrays = {name: pa.array(values, schema.field(name).type) for name, values in columns.items()}
        flat = pa.array(np.ascontiguousarray(vectors, np.float32).reshape(-1))  # without a copy
        arrays["vector"] = pa.FixedSizeListArray.from_arrays(flat, vectors.shape[1])
        with index_errors(self.folder):
            self.table.add(pa.table([arrays[name] for name in schema.names], schema=schema))

    def add_columns(self, metadata: Mapping[str, ColumnKind]) -> None:
        """New columns, null in all rows that stand."""
        if metadata:
            with index_errors(self.folder):
                self.table.add_columns(
                    pa.schema([pa.field(name, ARROW[kind]) for name, kind in metadata.items()])
                )

    def optimise(self) -> None:
        """Joins small files, and takes rows that are new into the indexes. Old versions stay.

        They must: the committed one may be of last year, and this isn't committed yet.
        """
        with index_errors(self.folder):
            self.table.optimize(cleanup_older_than=timedelta(days=36500))

    def forget_old_versions(self) -> None:
        """Removes what no version of the last hour needs, and whatever a killed writer left.

        Only for the writer, behind a commit: files that belong to no version yet are taken for leavings.
        """
        with index_errors(self.folder):
            self.table.optimize(cleanup_older_than=OLD_VERSIONS_STAY, delete_unverified=True)

    def check_filter(self, where: str | None) -> None:
        """Raises FilterError for a filter that isn't one expression of SQL, or names what there isn't."""
        if where is None or where == self._passed:
            return
        problem = filter_problem(where)
        if problem is not None:
            raise self._filter_error(where, problem)
        try:
            self._plan(where)
        except _LANCE_ERRORS as error:
            raise self._filter_error(where, filter_reason(error)) from error
        try:
            # LanceDB reads one expression and ignores what follows it, as it then does this.
            self._plan(f"{where}\nAND {_NOT_THERE}")
        except _LANCE_ERRORS:
            self._passed = where
            return
        raise self._filter_error(where, "something follows the expression")

    @contextmanager
    def answering(self, where: str | None) -> Iterator[None]:
        """Around a search: where a filter fails at some rows only, as by dividing by 0, it is the filter."""
        with index_errors(self.folder):
            try:
                yield
            except _LANCE_ERRORS as error:
                if where is None or not _OF_A_FILTER.search(str(error)):
                    raise
                raise self._filter_error(where, filter_reason(error)) from error

    def _plan(self, where: str) -> None:
        self.table.search().where(where).limit(1).explain_plan()

    def _filter_error(self, where: str, reason: str) -> FilterError:
        names = ", ".join(name for name in self.table.schema.names if name not in ("vector", FOLDED_TEXT))
        return FilterError(
            f"The filter {where[:200]!r} can't be used: {reason}. Write it as SQL, such as \"year >= 2015 "
            f"AND source LIKE 'docs/%'\", with these columns: {names}; odd names in `backticks`."
        )


def build_approximate(table: PassageTable, rows: int, queries: int = 100) -> Approximate:
    """Trains the index on the table's vectors, replacing an earlier one, and measures it: the smallest number
    of groups that reaches `RECALL`, or the largest tried, and what it reaches.

    Queries are vectors of the table, drawn at random; the row itself doesn't count among the neighbours. Any
    row as near as the last of the exact ones counts: of equal passages it is chance which are found.
    """
    dimension = table.table.schema.field("vector").type.list_size
    most = max(1, dimension // _NUMBERS_IN_A_BYTE)
    config = require_lancedb().index.IvfPq(
        distance_type="cosine",
        num_partitions=max(1, rows // _ROWS_IN_A_GROUP),
        # bytes of a short vector: as many as divide D, for each must stand for equally many numbers
        num_sub_vectors=next(count for count in range(most, 0, -1) if dimension % count == 0),
    )
    with index_errors(table.folder):
        table.table.create_index("vector", config=config, replace=True)
        drawn = _draw_passages(table, rows, queries)
        exact = [_nearest_distances(table, row, None) for row in drawn]
        for probes in _PROBES:
            found = [_nearest_distances(table, row, probes) for row in drawn]
            recall = float(np.mean([np.mean(a <= b[-1] + _ROUNDING) for a, b in zip(found, exact)]))
            if recall >= RECALL or probes * _ROWS_IN_A_GROUP >= rows:
                break
    return Approximate(rows=rows, probes=probes, refine=_REFINE, recall=recall, queries=len(drawn))


def _draw_passages(table: PassageTable, rows: int, queries: int) -> list[tuple[str, Vectors]]:
    """Passages by their ids, with their vectors."""
    places = np.random.default_rng(0).choice(rows, min(queries, rows), replace=False)
    taken = table.table.take_offsets(sorted(map(int, places))).select(["id", "vector"]).to_arrow()
    flat = taken.column("vector").combine_chunks().flatten().to_numpy(zero_copy_only=False)
    return list(zip(taken.column("id").to_pylist(), flat.reshape(taken.num_rows, -1), strict=True))


def _nearest_distances(
    table: PassageTable, row: tuple[str, Vectors], probes: int | None
) -> npt.NDArray[np.float64]:
    """Of the nearest others, sorted; infinite where fewer were found."""
    own, vector = row
    search = table.table.search(vector, vector_column_name="vector").distance_type("cosine")
    search = search.bypass_vector_index() if probes is None else search.nprobes(probes).refine_factor(_REFINE)
    found = search.limit(_NEIGHBOURS + 1).select(["id", "_distance"]).to_arrow().to_pylist()
    others = sorted(each["_distance"] for each in found if each["id"] != own)[:_NEIGHBOURS]
    return np.array(others + [np.inf] * (_NEIGHBOURS - len(others)))


def with_settings(search: Any, approximate: Approximate | None, filtered: bool = False) -> Any:
    """A LanceDB search that asks the approximate index as it was measured, or compares every vector."""
    if approximate is None:
        return search.bypass_vector_index()
    search = search.nprobes(approximate.probes).refine_factor(approximate.refine)
    # nprobes is a maximum too: a filter whose rows lie in other groups would find nothing. 0 is no maximum.
    return search.maximum_nprobes(0) if filtered else search


@contextmanager
def index_errors(folder: Path) -> Iterator[None]:
    """LanceDB says what happened in words only; here they become errors that the user can mend. Of a manifest
    that is longer than it says it panics.
    """
    try:
        yield
    except Exception as error:
        text = str(error)
        if type(error).__name__ != "RustPanic" and not isinstance(error, _LANCE_ERRORS):
            raise
        if "os error 28" in text or "No space left" in text or "os error 122" in text:
            raise ResourceError(
                f"The disk is full: {folder} was not changed any further. All that was committed stays. "
                "Free some space and run this again; it goes on where it stopped."
            ) from error
        if "Permission denied" in text or "Read-only file system" in text:
            raise ResourceError(
                f"No permission to write {folder}. Choose a folder you may write to."
            ) from error
        if _OF_A_FILE.search(text):
            raise InputError(
                f"The index {folder} is damaged: a file is missing or was cut ({_lance_reason(error)}). Take "
                "it from a copy, or remove the folder and build it again."
            ) from error
        if not text.startswith("lance error"):
            raise
        raise ResourceError(
            f"LanceDB gave up on {folder}: {_lance_reason(error)}. All that was committed stays. Run this "
            f"again; `bertsmith index info {folder} --verify` says whether every passage can be read."
        ) from error


def _lance_reason(error: Exception) -> str:
    """What LanceDB says, without the line of its own source that says it."""
    return str(error).removeprefix("lance error: ").partition(", /")[0]


def require_lancedb() -> Any:
    """The package, or MissingExtra. Its warnings on stderr are meant for its own developers."""
    os.environ.setdefault("LANCEDB_LOG", "error")
    require("lancedb.index", "retrieval", "An index")
    import lancedb

    return lancedb


def _connect(folder: Path) -> Any:
    return require_lancedb().connect(str(folder))


def _table_schema(dimension: int, metadata: Mapping[str, ColumnKind], folded: bool) -> pa.Schema:
    return pa.schema(
        [
            pa.field("id", pa.string(), nullable=False),
            pa.field("document_id", pa.string(), nullable=False),
            pa.field("source", pa.string()),
            pa.field("start", pa.int64()),
            pa.field("end", pa.int64()),
            pa.field("line", pa.int64()),
            pa.field("title", pa.string()),
            pa.field("text", pa.string()),
            *([pa.field(FOLDED_TEXT, pa.string())] if folded else []),
            pa.field("vector", pa.list_(pa.float32(), dimension)),
            pa.field("sha256", pa.string()),
            pa.field("added", pa.bool_()),
            *(pa.field(name, ARROW[kind]) for name, kind in metadata.items()),
        ]
    )


def _document_filters(ids: Collection[str]) -> Iterator[str]:
    """Filters that choose the passages of some documents at a time."""
    listed = sorted(ids)
    for start in range(0, len(listed), _IDS_AT_A_TIME):
        quoted = ("'" + id.replace("'", "''") + "'" for id in listed[start : start + _IDS_AT_A_TIME])
        yield f"document_id IN ({', '.join(quoted)})"
