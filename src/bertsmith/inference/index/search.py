"""Searches an index's table: by vectors, by words or by both, optionally re-ranked by a cross-encoder.

| mode | ranks by | score |
| --- | --- | --- |
| vector | the cosine of query and passage | the cosine |
| text | BM25 over the passages' words, stemmed | BM25 |
| hybrid | both rankings joined by their ranks | sum of 1 / (60 + rank) |

A re-ranker reads the mode's best candidates together with the query, and its scores decide. Searches per
document return different documents, each by its best passage.
"""

import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from bertsmith.errors import InputError
from bertsmith.inference.index.manifest import IndexManifest
from bertsmith.inference.index.passage_table import PassageTable, require_lancedb, with_settings
from bertsmith.inference.ranking.ranking import reciprocal_rank_fusion
from bertsmith.inference.ranking.reranker import Reranker, scores_of
from bertsmith.text.retrieval.documents import strip_part
from bertsmith.text.words import (
    IN_ONE_RUN,
    LETTER_WITHOUT_BLANKS,
    SYLLABIC,
    WITHOUT_BLANKS,
    word_pattern,
)

Mode = Literal["hybrid", "vector", "text"]
Vector = npt.NDArray[np.float32]
IndexRow = dict[str, Any]
MOST_HITS = 100_000  # LanceDB counts them in 32 bits, and whole passages are held in memory
CANDIDATES = 50  # from each ranking that is fused or re-ranked; more cost time and seldom help
_SHOWN = ["id", "document_id", "source", "start", "end", "line", "title", "text"]
_PARTS: dict[Mode, Sequence[str]] = {"hybrid": ("vector", "text"), "vector": ("vector",), "text": ("text",)}
_ENDINGS = re.compile(r"(?:ing|edly|ed|ies|es|ly|s|y|e)$")
# English stop words, which full-text search leaves out as well: nearly every passage has them.
_STOP_WORDS = frozenset(
    """
    a an and are as at be but by can did do does for from had has have how i if in into is it its my no not of
    on or our so such that the their then there these they this to was we were what when where which who why
    will with would you your
    """.split()  # noqa: SIM905
)
# A run of a script without blanks, or a word of another script.
_RUN = re.compile(
    f"(?P<characters>[{WITHOUT_BLANKS}]+)|(?P<syllables>[{SYLLABIC}]+)|" + word_pattern(f"[^\\W{IN_ONE_RUN}]")
)
_LETTER = re.compile(LETTER_WITHOUT_BLANKS)
# How many letters in a row must be in both texts, to be marked in such a run. On random pairs of the Parallel
# Universal Dependencies (words of one Thai sentence, another sentence), 98 % of the marked characters are of
# shared words, and 91 % of these are marked; by two letters 90 and 94 %. In Chinese, by two, 99 and 89 %.
_SHARED = {"characters": 2, "syllables": 3}


@dataclass(frozen=True)
class Hit:
    """A passage that a search found. `start` and `end` are its offsets in the source, in characters.

    `line` is its line there, from 1; None if the text isn't a file's own (rows of tables, HTML). `matches`
    are the spans (start, end) in `text` of the words that the query has too.
    """

    score: float
    document_id: str
    source: str
    title: str
    text: str
    start: int
    end: int
    line: int | None
    matches: tuple[tuple[int, int], ...]
    metadata: Mapping[str, Any]

    @property
    def place(self) -> str:
        """Where the passage stands: 'docs/guide.md:42', or the document's id if it has no lines."""
        return self.document_id if self.line is None else f"{self.source}:{self.line}"


@dataclass(frozen=True)
class IndexQuery:
    """A query to a table with all its settings. `vector` is (D,), None in mode text."""

    query: str
    vector: Vector | None
    k: int
    mode: Mode
    where: str | None
    per_document: bool = False


def check_query(query: str, k: int, mode: str) -> None:
    """Raises InputError for an unknown mode, a number of hits out of range, and an empty query."""
    if mode not in get_args(Mode):
        raise InputError(f"mode must be {', '.join(get_args(Mode))}, found {mode!r}.")
    if not 1 <= k <= MOST_HITS:
        raise InputError(f"k, the number of hits, must be 1 to {MOST_HITS:,}, found {k:,}.")
    if not query.strip():
        raise InputError("The query is empty. Ask something.")


def find_passages(
    table: PassageTable, manifest: IndexManifest, query: IndexQuery, reranker: Reranker | None = None
) -> list[Hit]:
    """Returns the k best hits, best first. Raises InputError for an unusable filter or a damaged index."""
    table.check_filter(query.where)
    is_single_ranking = query.mode != "hybrid" and reranker is None
    depth = query.k if is_single_ranking else max(CANDIDATES, query.k)
    while True:
        with table.answering(query.where):
            rankings = [_rank_passages(way, table, manifest, query, depth) for way in _PARTS[query.mode]]
        ranked = rankings[0]
        if len(rankings) > 1:
            by_id = {row["id"]: row for ranking in rankings for row, _ in ranking}
            fused = reciprocal_rank_fusion([[row["id"] for row, _ in ranking] for ranking in rankings])
            ranked = [(by_id[id], score) for id, score in fused]
        if reranker is not None:  # equal scores keep their order: the sort is stable
            rows = [row for row, _ in ranked[:depth]]
            scores = scores_of(reranker, query.query, [row["text"] for row in rows])
            ranked = sorted(zip(rows, scores, strict=True), key=lambda pair: -pair[1])
        if not query.per_document:
            break
        best_of_document: dict[str, tuple[IndexRow, float]] = {}  # parts of a long document are one
        for row, score in ranked:
            best_of_document.setdefault(strip_part(row["document_id"]), (row, score))
        ranked = list(best_of_document.values())
        if len(ranked) >= query.k or depth >= MOST_HITS or all(len(ranking) < depth for ranking in rankings):
            break
        depth = min(4 * depth, MOST_HITS)  # the best passages belong to few documents
    return [_make_hit(row, score, query.query, manifest) for row, score in ranked[: query.k]]


def _rank_passages(
    way: str, table: PassageTable, manifest: IndexManifest, query: IndexQuery, depth: int
) -> list[tuple[IndexRow, float]]:
    """The best `depth` passages by one way, "vector" or "text", with their scores."""
    if way == "vector":
        score = "_distance"
        search = table.table.search(query.vector, vector_column_name="vector").distance_type("cosine")
        search = with_settings(search, manifest.approximate, query.where is not None)
    else:
        score, words = "_score", manifest.searchable_text(query.query)
        match = require_lancedb().query.MatchQuery(
            words, manifest.full_text
        )  # a match query has no syntax to escape
        search = table.table.search(match, query_type="fts")
    if query.where is not None:
        search = search.where(query.where, prefilter=True)
    hits: pa.Table = search.limit(depth).select([*_SHOWN, *manifest.metadata, score]).to_arrow()
    rows: list[IndexRow] = hits.to_pylist()
    # Ties are ordered by id, so that equal scores don't depend on the files on disk. Only which of the
    # passages that tie with the last are among the `depth` is LanceDB's choice.
    rows.sort(key=lambda row: (row[score] if way == "vector" else -row[score], row["id"]))
    return [(row, 1.0 - row[score] if way == "vector" else row[score]) for row in rows]


def _make_hit(row: IndexRow, score: float, query: str, manifest: IndexManifest) -> Hit:
    query = manifest.shown_text(query)  # composed, as the passage is
    fields = {name: row[name] for name in _SHOWN if name != "id"}
    metadata = {name: row[name] for name in manifest.metadata}
    return Hit(
        score=score,
        matches=tuple(matching_spans(row["text"], query, manifest.passages.language)),
        metadata=metadata,
        **fields,
    )


def matching_spans(passage: str, query: str, language: str = "en") -> list[tuple[int, int]]:
    """The spans (start, end) in `passage`, in characters and in order, of every word that the query has too.

    Stop words don't count, unless the query has no other words. Stop words and word endings are known for
    English only. Runs of a script without blanks, such as Chinese or Thai, match wherever they share letters
    in a row with a run of the query, as many as `_SHARED` says, or all of a shorter run.
    """
    is_english = language.partition("-")[0] == "en"
    normal_form = _stem_english if is_english else _fold
    ignored = _STOP_WORDS if is_english else frozenset()
    words, sequences = set[str](), set[str]()
    for match in _RUN.finditer(query):
        if match.lastgroup is None:
            words.add(match.group())
            continue
        letters = _LETTER.findall(match.group())
        length = min(_SHARED[match.lastgroup], len(letters))
        sequences |= {"".join(letters[at : at + length]) for at in range(len(letters) - length + 1)}
    query_forms = {normal_form(word) for word in words if _fold(word) not in ignored}
    if not query_forms and not sequences:
        query_forms = set(map(normal_form, words))
    spans = list[tuple[int, int]]()
    for match in _RUN.finditer(passage):
        if match.lastgroup is None:
            spans += [match.span()] if normal_form(match.group()) in query_forms else []
            continue
        letter_spans = [letter.span() for letter in _LETTER.finditer(passage, *match.span())]
        for at, (start, _) in enumerate(letter_spans):
            in_a_row = letter_spans[at : at + _SHARED[match.lastgroup]]
            ends = [end for _, end in in_a_row if passage[start:end] in sequences]
            if ends and spans and start < spans[-1][1]:
                spans[-1] = spans[-1][0], max(ends[-1], spans[-1][1])
            elif ends:
                spans.append((start, ends[-1]))
    return spans


def _fold(word: str) -> str:
    decomposed = unicodedata.normalize("NFKD", word)
    return "".join(letter for letter in decomposed if not unicodedata.combining(letter)).casefold()


def _stem_english(word: str) -> str:
    """A rough stem, enough to highlight words and cheaper than a stemmer: 'indexed' and 'index'
    become one.
    """
    word = _fold(word)
    stem = _ENDINGS.sub("", word)
    return stem if len(stem) >= 3 else word
