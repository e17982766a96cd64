"""The LanceDB table of an index: passages with their vectors, words and metadata, in versions.

E passages, D width of a vector. Every change makes a new version of the table, and old versions stay readable
for an hour. index.json says which version is the committed one (see manifest.py).

Large tables have an approximate index: vectors are grouped (IVF) and compressed to one byte for four numbers
or more (product quantisation). A query is compared with the compressed vectors of the nearest groups, and the
best of these with the full vectors. `build_approximate` raises the number of groups that are probed until
recall@10, measured on the table's own vectors, is high enough. A search with a filter may probe further
groups, because the filter's rows may lie in any of them.
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
_LONGEST_WORD = 1000  # characters: hashes and compounds can be found, but lines of base64 aren't indexed
_LANCE_ERRORS = (RuntimeError, ValueError, OSError)
_NOT_THERE = "`no.such`"  # no column of an index has a point in its name
_OF_A_FILTER = re.compile("Query Execution error|Arrow error|Cast error")
_OF_A_FILE = re.compile(
    "[Nn]ot found|failed to fill whole buffer|size is too small|Invalid range|Protobuf"
    "|not appear to be a Lance file|outside metadata region|no longer exists|future panicked"
)
# Languages that LanceDB has stems and stop words for; it indexes words of any other language unchanged.
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
# What LanceDB takes for words: runs of letters and digits; for languages without blanks, what ICU finds by
# dictionaries (since 0.36), divided into such runs. They end at a virama, and at a tone mark of Thai: हिन्दी
# would be हिन and दी, บ้าน and ร้าน share าน. So for scripts that have these, ICU's words as they are.
_RUNS, _RUNS_OF_ICU, _ICU_WORDS = "simple", "icu/split", "icu"
_WITH_SUCH_MARKS = {"as", "bn", "gu", "hi", "kn", "ml", "mr", "ne", "or", "pa", "sa", "si", "ta", "te"}
_WITH_SUCH_MARKS |= {"km", "lo", "my", "th", "mul"}  # mul: several languages, of any script
RECALL = 0.95
LEAST_ROWS = 256  # product quantisation needs as many rows as a byte has values
_NEIGHBOURS = 10
_ROUNDING = 1e-6  # of a cosine in float32
_REFINE = 10  # times as many candidates as hits are compared exactly
_PROBES = (8, 16, 32, 64, 128, 256)
_ROWS_IN_A_GROUP = 4096
_NUMBERS_IN_A_BYTE = 4


class IndexedDocument(NamedTuple):
    """A document in the index: the hash of the text that was embedded, and whether `add` put it there."""

    sha256: str
    added: bool


class PassageTable:
    """One version of the table: a committed one for readers, the latest one for the writer."""

    def __init__(self, folder: Path, table: Any) -> None:
        self.folder = folder
        self.table = table
        self._passed: str | None = None  # the filter that was checked last: a check plans two queries

    @classmethod
    def create(
        cls, folder: Path, dimension: int, metadata: Mapping[str, ColumnKind], language: str
    ) -> "PassageTable":
        """Creates an empty table with its full-text index."""
        index = require_lancedb().index
        code = language.partition("-")[0]
        stemmed = _STEMMED.get(code)
        words_by = _RUNS if has_blanks(language) else _RUNS_OF_ICU
        words = index.FTS(
            language=stemmed or "English",
            stem=stemmed is not None,
            remove_stop_words=stemmed is not None,
            ascii_folding=True,
            with_position=False,
            max_token_length=_LONGEST_WORD,
            base_tokenizer=_ICU_WORDS if code in _WITH_SUCH_MARKS else words_by,
        )
        with index_errors(folder):
            folded = folds_first(language)
            table = _connect(folder).create_table(TABLE, schema=_table_schema(dimension, metadata, folded))
            table.create_index(FOLDED_TEXT if folded else "text", config=words)
        return cls(folder, table)

    @classmethod
    def open(cls, folder: Path, version: int | None = None) -> "PassageTable":
        """Opens the latest version, or the given one. Raises InputError when it can't be read."""
        with index_errors(folder):
            table = _connect(folder).open_table(TABLE)
            if version is not None:
                table.checkout(version)
        return cls(folder, table)

    @property
    def version(self) -> int:
        """The number of the version that is open."""
        return int(self.table.version)

    def rows(self) -> int:
        """Counts the passages of this version."""
        with index_errors(self.folder):
            return int(self.table.count_rows())

    def roll_back(self, version: int) -> None:
        """Undoes what was written after `version`, by a new version with the old one's content."""
        with index_errors(self.folder):
            self.table.checkout(version)
            self.table.restore()

    def documents(self) -> dict[str, IndexedDocument]:
        """Reads all documents, by id. Takes one pass over three columns."""
        documents: dict[str, IndexedDocument] = {}
        for batch in self.scan(["document_id", "sha256", "added"]):
            values = (batch.column(name).to_pylist() for name in ("document_id", "sha256", "added"))
            documents.update({id: IndexedDocument(sha256, added) for id, sha256, added in zip(*values)})
        return documents

    def scan(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Reads the given columns of every row, 8,192 rows at a time."""
        with index_errors(self.folder):
            yield from self.table.search().select(list(columns)).to_batches(8192)

    def require_columns(self, metadata: Mapping[str, ColumnKind]) -> None:
        """Raises InputError when the table lacks a column of metadata that index.json names, or has it in
        another kind.
        """
        schema = self.table.schema
        for name, kind in metadata.items():
            if name in OWN or name not in schema.names or schema.field(name).type != ARROW[kind]:
                raise InputError(
                    f"The index {self.folder} is damaged: index.json says that the column {name!r} holds "
                    f"{kind}, and the table has no such column. Take it from a copy, or remove the folder "
                    "and build it again."
                )

    def remove(self, ids: Collection[str]) -> None:
        """Deletes every passage of these documents."""
        with index_errors(self.folder):
            for where in _document_filters(ids):
                self.table.delete(where)

    def keep(self, ids: Collection[str]) -> None:
        """Marks every passage of these documents as put there by `add`."""
        with index_errors(self.folder):
            for where in _document_filters(ids):
                self.table.update(where=where, values={"added": True})

    def add(self, rows: Sequence[Mapping[str, Any]], vectors: Vectors) -> None:
        """Adds passages with their vectors (E, D). Metadata that a row lacks is null."""
        schema = self.table.schema
        columns = {name: [row.get(name) for row in rows] for name in schema.names if name != "vector"}
        arrays = {name: pa.array(values, schema.field(name).type) for name, values in columns.items()}
        flat = pa.array(np.ascontiguousarray(vectors, np.float32).reshape(-1))  # without a copy
        arrays["vector"] = pa.FixedSizeListArray.from_arrays(flat, vectors.shape[1])
        with index_errors(self.folder):
            self.table.add(pa.table([arrays[name] for name in schema.names], schema=schema))

    def add_columns(self, metadata: Mapping[str, ColumnKind]) -> None:
        """Adds columns, which are null in the rows that exist."""
        if metadata:
            with index_errors(self.folder):
                self.table.add_columns(
                    pa.schema([pa.field(name, ARROW[kind]) for name, kind in metadata.items()])
                )

    def optimise(self) -> None:
        """Joins small files and takes new rows into the indexes.

        Keeps all old versions: the committed one may be a year old, and the new one isn't committed yet.
        """
        with index_errors(self.folder):
            self.table.optimize(cleanup_older_than=timedelta(days=36500))

    def forget_old_versions(self) -> None:
        """Deletes files that no version of the last hour needs, and what a killed writer left behind.

        Call it as the writer, right after a commit: it deletes files that belong to no version yet, too.
        """
        with index_errors(self.folder):
            self.table.optimize(cleanup_older_than=OLD_VERSIONS_STAY, delete_unverified=True)

    def check_filter(self, where: str | None) -> None:
        """Raises FilterError for a filter that isn't one SQL expression, or that names unknown columns."""
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
            # LanceDB ignores whatever follows the first expression: then this unknown column goes unnoticed.
            self._plan(f"{where}\nAND {_NOT_THERE}")
        except _LANCE_ERRORS:
            self._passed = where
            return
        raise self._filter_error(where, "something follows the expression")

    @contextmanager
    def answering(self, where: str | None) -> Iterator[None]:
        """Wraps a search: raises FilterError if the filter fails for some rows, as by a division by 0."""
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
    """Trains the approximate index on the table's vectors, replacing an earlier one, and measures it. Chooses
    the smallest number of probed groups that reaches a recall of `RECALL`, or the largest one tried.

    Queries are vectors of the table, drawn at random; a row is no neighbour of itself. Any row as near as the
    last of the exact neighbours counts as found, because it is chance which of equal passages are returned.
    """
    dimension = table.table.schema.field("vector").type.list_size
    most_bytes = max(1, dimension // _NUMBERS_IN_A_BYTE)
    config = require_lancedb().index.IvfPq(
        distance_type="cosine",
        num_partitions=max(1, rows // _ROWS_IN_A_GROUP),
        # bytes of a compressed vector: a divisor of D, because each byte stands for equally many numbers
        num_sub_vectors=next(count for count in range(most_bytes, 0, -1) if dimension % count == 0),
    )
    with index_errors(table.folder):
        table.table.create_index("vector", config=config, replace=True)
        queried = _draw_passages(table, rows, queries)
        exact = [_nearest_distances(table, row, None) for row in queried]
        for probes in _PROBES:
            approximate = [_nearest_distances(table, row, probes) for row in queried]
            recall = float(np.mean([np.mean(a <= b[-1] + _ROUNDING) for a, b in zip(approximate, exact)]))
            if recall >= RECALL or probes * _ROWS_IN_A_GROUP >= rows:
                break
    return Approximate(rows=rows, probes=probes, refine=_REFINE, recall=recall, queries=len(queried))


def _draw_passages(table: PassageTable, rows: int, queries: int) -> list[tuple[str, Vectors]]:
    """Draws passages at random, always the same: (id, vector) of each."""
    offsets = np.random.default_rng(0).choice(rows, min(queries, rows), replace=False)
    passages = table.table.take_offsets(sorted(map(int, offsets))).select(["id", "vector"]).to_arrow()
    flat = passages.column("vector").combine_chunks().flatten().to_numpy(zero_copy_only=False)
    return list(zip(passages.column("id").to_pylist(), flat.reshape(passages.num_rows, -1), strict=True))


def _nearest_distances(
    table: PassageTable, row: tuple[str, Vectors], probes: int | None
) -> npt.NDArray[np.float64]:
    """Distances to the nearest other rows, ascending; infinite where fewer were found. `probes` is the number
    of groups searched, None for an exact search.
    """
    own_id, vector = row
    search = table.table.search(vector, vector_column_name="vector").distance_type("cosine")
    search = search.bypass_vector_index() if probes is None else search.nprobes(probes).refine_factor(_REFINE)
    hits = search.limit(_NEIGHBOURS + 1).select(["id", "_distance"]).to_arrow().to_pylist()
    others = sorted(hit["_distance"] for hit in hits if hit["id"] != own_id)[:_NEIGHBOURS]
    return np.array(others + [np.inf] * (_NEIGHBOURS - len(others)))


def with_settings(search: Any, approximate: Approximate | None, filtered: bool = False) -> Any:
    """Sets a LanceDB search to use the approximate index as it was measured, or to compare every vector."""
    if approximate is None:
        return search.bypass_vector_index()
    search = search.nprobes(approximate.probes).refine_factor(approximate.refine)
    # nprobes is a maximum too, with which a filter whose rows lie in other groups finds nothing. 0 lifts it.
    return search.maximum_nprobes(0) if filtered else search


@contextmanager
def index_errors(folder: Path) -> Iterator[None]:
    """Turns LanceDB's errors, which differ only in their words, into errors that a user can act on. Includes
    its panic about a manifest whose length is wrong.
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
                "Free some space and run this again; it continues where it stopped."
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
    """LanceDB's message without the line of source code that it came from."""
    return str(error).removeprefix("lance error: ").partition(", /")[0]


def require_lancedb() -> Any:
    """Imports lancedb. Raises MissingExtra if it isn't installed. Silences its warnings, which are meant for
    its own developers.
    """
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
    """SQL filters that select the passages of these documents, `_IDS_AT_A_TIME` documents each."""
    sorted_ids = sorted(ids)
    for start in range(0, len(sorted_ids), _IDS_AT_A_TIME):
        quoted = ("'" + id.replace("'", "''") + "'" for id in sorted_ids[start : start + _IDS_AT_A_TIME])
        yield f"document_id IN ({', '.join(quoted)})"
