"""Evaluates ways to search on queries with known relevant documents: an index's ways, or a model's over a
collection. `bertsmith rank` begins here.
"""

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from bertsmith.errors import InputError
from bertsmith.inference.embedding.embedder import Embedder
from bertsmith.inference.index.index import Index
from bertsmith.inference.index.manifest import MANIFEST
from bertsmith.inference.index.search import IndexQuery, Mode
from bertsmith.inference.ranking.ranking import (
    BM25,
    DENSE,
    HYBRID,
    RERANKED,
    Rankings,
    RankingSettings,
    System,
    rank_by_all,
)
from bertsmith.inference.ranking.reranker import Reranker, open_reranker
from bertsmith.inference.ranking.results import Comparison, compare, metrics_for
from bertsmith.inference.ranking.search import Bm25Settings
from bertsmith.progress import Progress
from bertsmith.text.retrieval.documents import strip_part
from bertsmith.text.retrieval.judged_questions import is_table, read_judged_questions
from bertsmith.text.retrieval.layouts import read_retrieval_data
from bertsmith.text.retrieval.retrieval_data import RetrievalData


def rank_model_or_index(
    model: str,
    data: Path,
    progress: Progress | None = None,
    *,
    reranker: str | None,
    format: str | None,
    split: str,
    encoding: str,
    k: int,
    depth: int,
    reranked: int,
    queries: int | None,
    english: bool,
) -> Comparison:
    """Compares all ways to search: `data`'s collection by a model, or an index if `model` is an index's
    folder. Each system keeps `depth` documents per query and is measured on the first `k`. Raises as opening
    and reading them does.
    """
    settings = RankingSettings(depth, reranked, bm25=Bm25Settings(english=english))
    index = Index.open(model) if (Path(model) / MANIFEST).is_file() else None
    if index is not None and (reranked != RankingSettings.reranked or not english):
        option = "--no-english" if not english else "--reranked"
        raise InputError(
            f"{option} has no effect on an index, which is searched as it was built, as `search` shows. "
            "Leave it out."
        )
    if reranker is None and reranked != RankingSettings.reranked:
        raise InputError(
            "--reranked is how many documents a re-ranker reads. Name one with --reranker, or leave it out."
        )
    if index is not None and format is None and is_table(data):
        collection = read_judged_questions(data, index.texts(), encoding)
    else:
        collection = read_retrieval_data(data, format, split, encoding)
    if queries is not None:
        collection = collection.with_fewer_queries(queries)
    metrics = metrics_for(collection, k, depth)
    cross_encoder = open_reranker(reranker) if reranker else None
    if index is not None:
        systems = rank_by_index(index, collection, k, depth, cross_encoder, progress)
    else:
        embedder = Embedder(model)
        collection = collection.noting(embedder.caveat)
        systems = rank_by_all(collection, embedder, cross_encoder, settings, progress)
    facts: dict[str, Any] = {
        "model": model,
        "reranker": reranker,
        "format": format,
        "split": split,
        "encoding": encoding,
        "k": k,
        "depth": depth,
        "reranked": reranked if index is None else None,
        "most_queries": queries,
        "english": english if index is None else None,
    }
    return compare(systems, collection, metrics, facts)


def rank_by_index(
    index: Index,
    data: RetrievalData,
    k: int,
    depth: int,
    reranker: Reranker | None = None,
    progress: Progress | None = None,
) -> list[System]:
    """Ranks the best `depth` documents for each judged query: by words, by vectors, by both, and re-ranked.

    The first `k` are the documents that a search for so many shows, each at the rank of its best passage;
    those that a search for `depth`, without a re-ranker, shows besides follow. The time is that of the first.
    """
    systems_to_rank: list[tuple[str, Mode, Reranker | None]] = [
        (BM25, "text", None),
        (DENSE, "vector", None),
        (HYBRID, "hybrid", None),
    ]
    if reranker is not None:
        systems_to_rank.append((RERANKED, "hybrid", reranker))
    queries = data.judged_queries()
    start = time.perf_counter()
    vectors = dict(zip(queries, index.embedder.queries(list(queries.values())), strict=True))
    embedding_milliseconds = 1000 * (time.perf_counter() - start) / max(len(queries), 1)
    systems = []
    for name, mode, reranker_of_mode in systems_to_rank:
        seconds, rankings = 0.0, Rankings()
        for id, query in queries.items():
            question = IndexQuery(query, None if mode == "text" else vectors[id], k, mode, None, True)
            start = time.perf_counter()
            hits = index.find(question, reranker_of_mode)
            seconds += time.perf_counter() - start
            if (
                depth > k
            ):  # a fused or re-ranked search for more reads more candidates, and orders the first anew
                hits += index.find(replace(question, k=depth))
            found = list(dict.fromkeys(strip_part(hit.document_id) for hit in hits))[:depth]
            # Reciprocal ranks keep the index's order even for ties, which other tools break by other rules.
            rankings[id] = [(document, 1.0 / rank) for rank, document in enumerate(found, start=1)]
            if progress is not None:
                progress(len(rankings), len(queries), f"queries by {name}")
        milliseconds = 1000 * seconds / max(len(queries), 1)
        systems.append(
            System(name, rankings, milliseconds + (embedding_milliseconds if mode != "text" else 0.0))
        )
    return systems
