"""An index's own ways to search, measured on questions whose right document is known."""

import time

from bertsmith.inference.index.index import Index
from bertsmith.inference.index.search import Mode, Question
from bertsmith.inference.ranking.ranking import BM25, DENSE, HYBRID, RERANKED, Rankings, System
from bertsmith.inference.ranking.reranker import Reranker
from bertsmith.progress import Progress
from bertsmith.text.retrieval.documents import part_of
from bertsmith.text.retrieval.retrieval_data import RetrievalData


def rank_by_index(
    index: Index,
    data: RetrievalData,
    depth: int,
    reranker: Reranker | None = None,
    progress: Progress | None = None,
) -> list[System]:
    """The best `depth` documents for each judged query, by words, by vectors, by both, and re-ranked.

    They are what a search of the index shows, a document at the rank of its best passage.
    """
    ways: list[tuple[str, Mode, Reranker | None]] = [
        (BM25, "text", None),
        (DENSE, "vector", None),
        (HYBRID, "hybrid", None),
    ]
    if reranker is not None:
        ways.append((RERANKED, "hybrid", reranker))
    queries = data.judged_queries()
    begun = time.perf_counter()
    vectors = dict(zip(queries, index.embedder.queries(list(queries.values())), strict=True))
    embedding = 1000 * (time.perf_counter() - begun) / max(len(queries), 1)
    systems = []
    for name, mode, scores in ways:
        begun, rankings = time.perf_counter(), Rankings()
        for id, query in queries.items():
            vector = None if mode == "text" else vectors[id]
            hits = index.find(Question(query, vector, depth, mode, None, True), scores)
            # Scores that keep the index's order, ties too, which other tools break by their own rules.
            rankings[id] = [(part_of(hit.document_id), 1.0 / rank) for rank, hit in enumerate(hits, start=1)]
            if progress is not None:
                progress(len(rankings), len(queries), f"queries by {name}")
        own = 1000 * (time.perf_counter() - begun) / max(len(queries), 1)
        systems.append(System(name, rankings, own + (embedding if mode != "text" else 0.0)))
    return systems
