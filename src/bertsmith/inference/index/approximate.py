"""An approximate index over many vectors, with its answers held against exact search before it counts.

Vectors are grouped (IVF) and shortened to one byte for every four numbers or more (product quantisation). A
query is compared with the short vectors of the nearest groups, and the best of these with the whole vectors.
How many groups are looked at is raised until recall@10 is what was asked for, so that the figure is one of
these vectors and not of some benchmark. A filter has further ones looked at, for its rows may lie anywhere.

D width of a vector.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from bertsmith.inference.index.manifest import Approximate
from bertsmith.inference.index.passage_table import PassageTable, index_errors, require_lancedb

Vector = npt.NDArray[np.float32]
RECALL = 0.95
LEAST_ROWS = 256  # what product quantisation needs: as many as a byte has values
_NEIGHBOURS = 10
_ROUNDING = 1e-6  # of a cosine in float32
_REFINE = 10  # times as many candidates as hits are compared exactly
_PROBES = (8, 16, 32, 64, 128, 256)
_ROWS_IN_A_GROUP = 4096
_NUMBERS_IN_A_BYTE = 4


def build_approximate(table: PassageTable, rows: int, queries: int = 100, seed: int = 0) -> Approximate:
    """Trains the index on the table's vectors, replacing an earlier one, and measures it."""
    dimension = table.table.schema.field("vector").type.list_size
    config = require_lancedb().index.IvfPq(
        distance_type="cosine",
        num_partitions=max(1, rows // _ROWS_IN_A_GROUP),
        num_sub_vectors=_bytes_of(dimension),
    )
    with index_errors(table.folder):
        table.table.create_index("vector", config=config, replace=True)
    return measured(table, rows, queries, seed)


def measured(table: PassageTable, rows: int, queries: int = 100, seed: int = 0) -> Approximate:
    """The smallest number of groups that reaches `RECALL`, or the largest tried, and what it reaches.

    Queries are vectors of the table, drawn at random; the row itself doesn't count among the neighbours. Any
    row as near as the last of the exact ones counts: of equal passages it is chance which are found.
    """
    with index_errors(table.folder):
        drawn = _draw(table, rows, queries, seed)
        exact = [_distances(table, row, None) for row in drawn]
        for probes in _PROBES:
            found = [_distances(table, row, probes) for row in drawn]
            recall = float(np.mean([np.mean(a <= b[-1] + _ROUNDING) for a, b in zip(found, exact)]))
            if recall >= RECALL or probes * _ROWS_IN_A_GROUP >= rows:
                break
    return Approximate(rows=rows, probes=probes, refine=_REFINE, recall=recall, queries=len(drawn))


def with_settings(search: Any, approximate: Approximate | None, filtered: bool = False) -> Any:
    """A LanceDB search that asks the approximate index as it was measured, or compares every vector."""
    if approximate is None:
        return search.bypass_vector_index()
    search = search.nprobes(approximate.probes).refine_factor(approximate.refine)
    # nprobes is a maximum too: a filter whose rows lie in other groups would find nothing. 0 is no maximum.
    return search.maximum_nprobes(0) if filtered else search


def _bytes_of(dimension: int) -> int:
    """Of a shortened vector: as many as divide D, for each byte must stand for equally many numbers."""
    most = max(1, dimension // _NUMBERS_IN_A_BYTE)
    return next(count for count in range(most, 0, -1) if dimension % count == 0)


def _draw(table: PassageTable, rows: int, queries: int, seed: int) -> list[tuple[str, Vector]]:
    """Passages by their ids, with their vectors."""
    places = np.random.default_rng(seed).choice(rows, min(queries, rows), replace=False)
    taken = table.table.take_offsets(sorted(map(int, places))).select(["id", "vector"]).to_arrow()
    flat = taken.column("vector").combine_chunks().flatten().to_numpy(zero_copy_only=False)
    return list(zip(taken.column("id").to_pylist(), flat.reshape(taken.num_rows, -1), strict=True))


def _distances(table: PassageTable, row: tuple[str, Vector], probes: int | None) -> npt.NDArray[np.float64]:
    """Of the nearest others, sorted; infinite where fewer were found."""
    own, vector = row
    search = table.table.search(vector, vector_column_name="vector").distance_type("cosine")
    search = search.bypass_vector_index() if probes is None else search.nprobes(probes).refine_factor(_REFINE)
    found = search.limit(_NEIGHBOURS + 1).select(["id", "_distance"]).to_arrow().to_pylist()
    others = sorted(each["_distance"] for each in found if each["id"] != own)[:_NEIGHBOURS]
    return np.array(others + [np.inf] * (_NEIGHBOURS - len(others)))
