"""Golden queries of an index: what fixed texts find in it, kept whenever it was changed, to be asked again.

golden-….json   of each text its vector, and the best hits by meaning and by words
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from bertsmith.inference.index.hashes import read_hashed, write_hashed
from bertsmith.inference.index.manifest import IndexManifest
from bertsmith.inference.index.passage_table import PassageTable, Vectors
from bertsmith.inference.index.search import Hit, Question, find
from bertsmith.tasks.golden.subject import FIXED
from bertsmith.validation import Strict

GOLDEN = "golden"
QUERIES = tuple(text for text in FIXED if isinstance(text, str))[:8]
HITS = 10
_DIGITS = 7
_WORDS = 200  # characters
Hits = tuple[tuple[str, float], ...]  # ids of passages with their scores, best first


class GoldenQuery(Strict):
    """`vector` is that of `text`. `words`, which are asked for in full text, are those of its best hit: of
    the fixed texts most indexes have none.
    """

    text: str
    vector: tuple[float, ...]
    words: str
    by_vector: Hits
    by_words: Hits


def ask_golden(
    table: PassageTable, manifest: IndexManifest, text: str, vector: Sequence[float], words: str | None = None
) -> GoldenQuery:
    """Without `words` those are chosen. Raises InputError where the table can't be read."""
    by_vector = find(table, manifest, Question(text, np.array(vector, np.float32), HITS, "vector", None))
    if words is None:
        words = by_vector[0].text[:_WORDS] if by_vector else text
    by_words = find(table, manifest, Question(words, None, HITS, "text", None))
    return GoldenQuery(
        text=text,
        vector=tuple(vector),
        words=words,
        by_vector=_scores(by_vector),
        by_words=_scores(by_words),
    )


def write_golden_queries(
    folder: Path, table: PassageTable, manifest: IndexManifest, vectors: Vectors | Sequence[Sequence[float]]
) -> str:
    """What they find now, by the vectors (E, D) of QUERIES. Returns the hash that index.json names."""
    rounded = np.asarray(vectors, np.float64).round(_DIGITS).tolist()
    found = [ask_golden(table, manifest, *each) for each in zip(QUERIES, rounded, strict=True)]
    return write_hashed(folder, GOLDEN, [each.model_dump(mode="json") for each in found])


def read_golden_queries(folder: Path, manifest: IndexManifest) -> list[GoldenQuery]:
    """None in an index that an older Bertsmith changed last, and of which a change was interrupted. Raises
    InputError where they were damaged.
    """
    if not manifest.golden:
        return []
    return [GoldenQuery.model_validate(each) for each in read_hashed(folder, GOLDEN, manifest.golden)]


def _scores(hits: Sequence[Hit]) -> Hits:
    return tuple((f"{hit.document_id}@{hit.start}", hit.score) for hit in hits)
