"""Mines hard negatives: documents that a search finds for a query although they don't answer it (Karpukhin
et al. 2020), with a guard against false negatives, which answer it although no pair says so (de Souza Moreira
et al. 2024, section 3).

E documents, K hits of a query.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from bertsmith.errors import InputError
from bertsmith.inference.ranking.search import (
    DenseEncoder,
    DenseSearch,
    RankedDocuments,
    scores_in_parts,
    top_k,
)
from bertsmith.progress import Progress
from bertsmith.tasks.examples.query_documents import QueryExample, text_number

KNOWN, NEAR, SKIPPED = "known to answer, or equal to one that is", "too near the answer", "first hits"


@dataclass(frozen=True)
class NegativeGuard:
    """Which hits are too good to be negatives: those whose cosine is at least `ratio` of the answer's, or
    less than `margin` below it, and the first `skip` hits.
    """

    ratio: float = 0.95
    margin: float = 0.0
    skip: int = 0

    def highest(self, answer: float) -> float:
        """The cosine that a negative must stay below; `answer` is the cosine of the document known
        to answer.
        """
        return min(answer - abs(answer) * (1 - self.ratio), answer - self.margin)


@dataclass(frozen=True)
class MinedNegatives:
    """Rows for `finetune retrieval` and `finetune reranking`, and the number of hits passed over by reason.
    The rows have no teacher scores, because mined negatives have none.
    """

    rows: list[dict[str, Any]]
    passed_over: Counter[str] = field(default_factory=Counter)

    @property
    def negatives(self) -> int:
        return sum(len(row["negatives"]) for row in self.rows)


def mine(
    embedder: DenseEncoder,
    pairs: Sequence[QueryExample],
    documents: Sequence[str],
    *,
    negatives: int = 4,
    depth: int = 100,
    guard: NegativeGuard | None = None,
    progress: Progress | None = None,
) -> MinedNegatives:
    """Finds up to `negatives` negatives for each pair among the `depth` documents nearest to its query, the
    nearest first.

    A pair's own negatives stay in front and count; empty documents are never chosen. The search is exact: the
    vectors of all documents are in memory, and each text is embedded once. Raises InputError when there is
    nothing to search, or for settings out of range.
    """
    guard = guard or NegativeGuard()
    documents = [document for document in dict.fromkeys(documents) if document.strip()]
    _check(pairs, documents, negatives, depth, guard)
    answers_of_query: dict[int, set[int]] = {}  # query -> all documents that some pair says answer it
    for pair in pairs:
        answers_of_query.setdefault(text_number(pair.query), set()).add(text_number(pair.documents[0]))
    document_numbers = [text_number(document) for document in documents]
    mined = MinedNegatives([])
    for pair, answer, hits in _search_pairs(embedder, pairs, documents, depth, progress):
        answers = {text_number(pair.query), *answers_of_query[text_number(pair.query)]}
        chosen = list(pair.documents[1:])
        excluded = answers | set(map(text_number, chosen))
        limit = guard.highest(answer)
        for rank, (position, score) in enumerate(zip(hits.positions, hits.scores, strict=True)):
            if len(chosen) >= negatives:
                break
            number = document_numbers[position]
            if number in answers:
                mined.passed_over[KNOWN] += 1
            elif rank < guard.skip:
                mined.passed_over[SKIPPED] += 1
            elif float(score) >= limit:
                mined.passed_over[NEAR] += 1
            elif number not in excluded:
                excluded.add(number)
                chosen.append(documents[position])
        mined.rows.append({"query": pair.query, "positive": pair.documents[0], "negatives": chosen})
    return mined


def _search_pairs(
    embedder: DenseEncoder,
    pairs: Sequence[QueryExample],
    documents: Sequence[str],
    depth: int,
    progress: Progress | None,
) -> Iterator[tuple[QueryExample, float, RankedDocuments]]:
    """Yields each pair with the cosine of its query and the document known to answer, and with its hits."""
    texts = list(dict.fromkeys([*documents, *(pair.documents[0] for pair in pairs)]))
    position_of = {text: number for number, text in enumerate(texts)}
    search = DenseSearch(embedder, texts, progress)
    pairs_left = iter(pairs)
    for scores in scores_in_parts(search, [pair.query for pair in pairs], len(texts)):
        hits = top_k(scores[:, : len(documents)], depth)
        for query_scores, positions, pair in zip(scores, hits, pairs_left):
            yield (
                pair,
                float(query_scores[position_of[pair.documents[0]]]),
                RankedDocuments(positions, query_scores[positions]),
            )


def _check(
    pairs: Sequence[QueryExample], documents: Sequence[str], negatives: int, depth: int, guard: NegativeGuard
) -> None:
    if not pairs or not documents:
        raise InputError(
            f"Expected pairs, and documents to search; found {len(pairs):,} and {len(documents):,}."
        )
    if negatives < 1 or depth < 1 or not 0 < guard.ratio <= 1 or guard.margin < 0 or guard.skip < 0:
        raise InputError(
            "Mining needs negatives and depth of 1 or more, a ratio above 0 and up to 1, a margin and a skip "
            f"of 0 or more; found negatives={negatives}, depth={depth}, ratio={guard.ratio:g}, "
            f"margin={guard.margin:g}, skip={guard.skip}."
        )
