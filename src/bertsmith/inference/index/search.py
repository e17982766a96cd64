"""A query → the passages that answer it: by vectors, by words, by both, and read again by a cross-encoder.

| mode | ranks by | score |
| --- | --- | --- |
| vector | the cosine of query and passage | the cosine |
| text | BM25 over the passages' words, stemmed | BM25 |
| hybrid | both rankings joined by their ranks | sum of 1 / (60 + rank) |

With a re-ranker the best candidates of the mode are read again beside the query, and its scores decide. Hits
per document are of different documents, each by its best passage.
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
from bertsmith.text.retrieval.documents import part_of
from bertsmith.text.words import WITHOUT_BLANKS, WORD, has_blanks, word_pattern

Mode = Literal["hybrid", "vector", "text"]
Vector = npt.NDArray[np.float32]
IndexRow = dict[str, Any]
MOST_HITS = 100_000  # LanceDB counts them in 32 bits, and whole passages are held in memory
CANDIDATES = 50  # of each ranking that is fused or re-ranked; more cost time and seldom help
_SHOWN = ["id", "document_id", "source", "start", "end", "line", "title", "text"]
_PARTS: dict[Mode, Sequence[str]] = {"hybrid": ("vector", "text"), "vector": ("vector",), "text": ("text",)}
_ENDINGS = re.compile(r"(?:ing|edly|ed|ies|es|ly|s|y|e)$")
# English ones. They stand in nearly every passage, and full-text search leaves them out as well.
_STOP_WORDS = frozenset(
    """
    a an and are as at be but by can did do does for from had has have how i if in into is it its my no not of
    on or our so such that the their then there these they this to was we were what when where which who why
    will with would you your
    """.split()  # noqa: SIM905
)
# Of a language without blanks: Chinese or Japanese up to the next sign, or a word of another script.
_RUN = re.compile(f"([{WITHOUT_BLANKS}]+)|" + word_pattern(f"[^\\W{WITHOUT_BLANKS}]"))


@dataclass(frozen=True)
class Hit:
    """A passage that was found. `start` and `end`: its place in the source, in characters; `line` from 1.

    `matches`: (start, end) in `text` of the words that the query has too. `line` is None where the text is
    not a file's own (rows of tables, HTML).
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
        """'docs/guide.md:42', or the document's id where there are no lines."""
        return self.document_id if self.line is None else f"{self.source}:{self.line}"


@dataclass(frozen=True)
class IndexQuery:
    """What is asked of a table. `vector`: (D,), None for mode text."""

    query: str
    vector: Vector | None
    k: int
    mode: Mode
    where: str | None
    per_document: bool = False


def check_query(query: str, k: int, mode: str) -> None:
    """Raises InputError for what can't be answered."""
    if mode not in get_args(Mode):
        raise InputError(f"mode must be {', '.join(get_args(Mode))}, found {mode!r}.")
    if not 1 <= k <= MOST_HITS:
        raise InputError(f"k, the number of hits, must be 1 to {MOST_HITS:,}, found {k:,}.")
    if not query.strip():
        raise InputError("The query is empty. Ask something.")


def find_passages(
    table: PassageTable, manifest: IndexManifest, question: IndexQuery, reranker: Reranker | None = None
) -> list[Hit]:
    """The best k hits, best first. Raises InputError for a filter that can't be used, or a damaged index."""
    table.check_filter(question.where)
    alone = question.mode != "hybrid" and reranker is None
    depth = question.k if alone else max(CANDIDATES, question.k)
    while True:
        with table.answering(question.where):
            rankings = [
                _rank_passages(way, table, manifest, question, depth) for way in _PARTS[question.mode]
            ]
        ranked = rankings[0]
        if len(rankings) > 1:
            by_id = {row["id"]: row for ranking in rankings for row, _ in ranking}
            fused = reciprocal_rank_fusion([[row["id"] for row, _ in ranking] for ranking in rankings])
            ranked = [(by_id[id], score) for id, score in fused]
        if reranker is not None:  # equal scores keep the order in which they came
            rows = [row for row, _ in ranked[:depth]]
            scores = scores_of(reranker, question.query, [row["text"] for row in rows])
            ranked = sorted(zip(rows, scores, strict=True), key=lambda pair: -pair[1])
        if not question.per_document:
            break
        first: dict[str, tuple[IndexRow, float]] = {}  # of each document, the parts of a long one being one
        for row, score in ranked:
            first.setdefault(part_of(row["document_id"]), (row, score))
        ranked = list(first.values())
        if (
            len(ranked) >= question.k
            or depth >= MOST_HITS
            or all(len(ranking) < depth for ranking in rankings)
        ):
            break
        depth = min(4 * depth, MOST_HITS)  # the best passages were of few documents
    return [_make_hit(row, score, question.query, manifest) for row, score in ranked[: question.k]]


def _rank_passages(
    way: str, table: PassageTable, manifest: IndexManifest, question: IndexQuery, depth: int
) -> list[tuple[IndexRow, float]]:
    """The best `depth` by vectors alone, or by words alone."""
    if way == "vector":
        score = "_distance"
        search = table.table.search(question.vector, vector_column_name="vector").distance_type("cosine")
        search = with_settings(search, manifest.approximate, question.where is not None)
    else:
        score, words = "_score", manifest.words_of(question.query)
        match = require_lancedb().query.MatchQuery(words, manifest.full_text)  # they have no syntax
        search = table.table.search(match, query_type="fts")
    if question.where is not None:
        search = search.where(question.where, prefilter=True)
    found: pa.Table = search.limit(depth).select([*_SHOWN, *manifest.metadata, score]).to_arrow()
    rows: list[IndexRow] = found.to_pylist()
    # Ties by id: equal scores come in the same order whatever the files on disk. Only which of those equal to
    # the last one are among the `depth` is LanceDB's choice.
    rows.sort(key=lambda row: (row[score] if way == "vector" else -row[score], row["id"]))
    return [(row, 1.0 - row[score] if way == "vector" else row[score]) for row in rows]


def _make_hit(row: IndexRow, score: float, query: str, manifest: IndexManifest) -> Hit:
    shown = {name: row[name] for name in _SHOWN if name != "id"}
    metadata = {name: row[name] for name in manifest.metadata}
    return Hit(
        score=score,
        matches=tuple(matching_spans(row["text"], query, manifest.passages.language)),
        metadata=metadata,
        **shown,
    )


def matching_spans(passage: str, query: str, language: str = "en") -> list[tuple[int, int]]:
    """(start, end) in characters of `passage`, in order, of every word that the query has too.

    A query of stop words alone is looked for as it is. Stop words and endings are known of English only.
    """
    if not has_blanks(language):
        return _spans_without_blanks(passage, query)
    is_english = language.partition("-")[0] == "en"
    form = _stem_english if is_english else _fold
    ignored = _STOP_WORDS if is_english else frozenset()
    words = WORD.findall(query)
    wanted = {form(word) for word in words if _fold(word) not in ignored} or set(map(form, words))
    return [found.span() for found in WORD.finditer(passage) if form(found.group()) in wanted]


def _spans_without_blanks(passage: str, query: str) -> list[tuple[int, int]]:
    """Words as elsewhere; of a run, all that lies in pairs of characters of the query's runs. A character
    that stands alone in the query is looked for alone.
    """
    words, pieces = set[str](), set[str]()
    for found in _RUN.finditer(query):
        run = found.group()
        if found[1] is None:
            words.add(_fold(run))
        else:
            pieces.update(run[place : place + 2] for place in range(max(1, len(run) - 1)))
    spans = list[tuple[int, int]]()
    for found in _RUN.finditer(passage):
        if found[1] is None:
            spans += [found.span()] if _fold(found.group()) in words else []
            continue
        for place in range(*found.span()):
            ends = (min(place + 2, found.end()), place + 1)
            end = next((end for end in ends if passage[place:end] in pieces), 0)
            if end and spans and place < spans[-1][1]:
                spans[-1] = spans[-1][0], max(end, spans[-1][1])
            elif end:
                spans.append((place, end))
    return spans


def _fold(word: str) -> str:
    decomposed = unicodedata.normalize("NFKD", word)
    return "".join(letter for letter in decomposed if not unicodedata.combining(letter)).casefold()


def _stem_english(word: str) -> str:
    """Good enough to mark words with, cheaper than a stemmer: 'indexes', 'indexed' and 'index' are one."""
    word = _fold(word)
    stem = _ENDINGS.sub("", word)
    return stem if len(stem) >= 3 else word
