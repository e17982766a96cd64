"""Ranks one collection by several systems: BM25, a model's vectors, both fused, and a re-ranker on top.

Documents with equal scores are in falling order of their ids, as in trec_eval, so that another tool computes
the same figures from a run file.
"""

import math
import time
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, TypeVar

import numpy as np

from bertsmith.errors import InputError
from bertsmith.inference.ranking.reranker import Reranker, scores_of
from bertsmith.inference.ranking.search import (
    Bm25Settings,
    DenseEncoder,
    DenseSearch,
    LexicalSearch,
    Scorer,
    search_among,
    search_exactly,
)
from bertsmith.metrics.ranking_scores import in_order
from bertsmith.progress import Progress
from bertsmith.text.retrieval.retrieval_data import RetrievalData

Rankings = dict[str, list[tuple[str, float]]]  # query -> (document, score), the best first
BM25, DENSE, HYBRID, RERANKED = "BM25", "dense", "hybrid", "re-ranked"
_TITLES = {DENSE: "dense (by embeddings)", HYBRID: "hybrid (both fused)"}
Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True)
class RankingSettings:
    """depth: the number of documents each system keeps for a query. reranked: how many of the hybrid's first
    documents the re-ranker reads. fusion_k: the constant of reciprocal rank fusion.
    """

    depth: int = 100
    reranked: int = 50
    fusion_k: float = 60.0
    bm25: Bm25Settings = field(default_factory=Bm25Settings)

    def __post_init__(self) -> None:
        if self.depth < 1 or self.reranked < 1:
            raise InputError(f"depth and reranked must be 1 or more, found {self.depth} and {self.reranked}.")


def system_title(name: str) -> str:
    """A system's name in tables and sentences; files call it by the name itself."""
    return _TITLES.get(name, name)


class System(NamedTuple):
    """The rankings of one way to search, and its time in milliseconds per query, on average.

    Indexing isn't part of that; it took `seconds`.
    """

    name: str
    rankings: Rankings
    milliseconds: float
    seconds: float = 0.0


def rank_by_all(
    data: RetrievalData,
    embedder: DenseEncoder,
    reranker: Reranker | None = None,
    settings: RankingSettings | None = None,
    progress: Progress | None = None,
) -> list[System]:
    """Ranks documents for all queries that have a relevant one, by each system; BM25, the baseline, is first.

    If queries have candidates, these alone are ranked, all of them; BM25 still weighs words by the whole
    collection. Raises MissingExtra without the extra `retrieval`.
    """
    settings = settings or RankingSettings()
    ids = sorted(data.documents, reverse=True)
    texts = [data.documents[id] for id in ids]
    collection = _Collection(ids, texts, data.judged_queries(), data.candidates, settings, progress)
    lexical = collection.search(BM25, lambda: LexicalSearch(texts, settings.bm25), floor=0.0)
    needed = collection.needed()
    dense = needed.search(DENSE, lambda: DenseSearch(embedder, needed.texts, progress))
    systems = [lexical, dense, fuse([lexical, dense], settings)]
    if reranker is not None:
        systems.append(rerank(reranker, systems[-1], data, settings.reranked, progress))
    return systems


@dataclass(frozen=True)
class _Collection:
    """The data with documents in falling order of ids, so that ties are ordered as in trec_eval."""

    ids: list[str]
    texts: list[str]
    queries: Mapping[str, str]
    candidates: Mapping[str, tuple[str, ...]] | None
    settings: RankingSettings
    progress: Progress | None

    def needed(self) -> "_Collection":
        """The collection without documents that no query has as a candidate, which needn't be embedded."""
        if self.candidates is None:
            return self
        candidate_ids = {document for query in self.queries for document in self.candidates[query]}
        documents = [(id, text) for id, text in zip(self.ids, self.texts, strict=True) if id in candidate_ids]
        return replace(self, ids=[id for id, _ in documents], texts=[text for _, text in documents])

    def search(self, name: str, index: Callable[[], Scorer], floor: float = -math.inf) -> System:
        """Ranks documents for all queries by one system. Only documents that score above `floor` count as
        found, unless queries have candidates, which are all ranked.
        """
        start = time.perf_counter()
        search = index()
        seconds = time.perf_counter() - start
        start = time.perf_counter()

        def watch(done: int) -> None:
            if self.progress is not None:
                self.progress(done, len(self.queries), f"queries by {name}")

        texts, count = list(self.queries.values()), len(self.ids)
        if self.candidates is None:
            all_hits = search_exactly(search, texts, count, self.settings.depth, watch)
        else:
            position_of = {id: position for position, id in enumerate(self.ids)}
            candidates = [
                np.array([position_of[id] for id in self.candidates[query]]) for query in self.queries
            ]
            all_hits, floor = search_among(search, texts, count, candidates, watch), -math.inf
        rankings = {
            query: [
                (self.ids[position], score)
                for position, score in zip(hits.positions.tolist(), hits.scores.tolist(), strict=True)
                if score > floor
            ]
            for query, hits in zip(self.queries, all_hits, strict=True)
        }
        return System(name, rankings, _milliseconds_per_query(start, rankings), seconds)


def fuse(systems: Sequence[System], settings: RankingSettings) -> System:
    """Fuses systems by reciprocal rank fusion. The result's time includes theirs."""
    start = time.perf_counter()
    rankings: Rankings = {}
    for query in systems[0].rankings:
        ranked = [[document for document, _ in system.rankings[query]] for system in systems]
        fused = in_order(_as_float32(reciprocal_rank_fusion(ranked, settings.fusion_k)))
        rankings[query] = fused[: max(settings.depth, *map(len, ranked))]
    milliseconds = _milliseconds_per_query(start, rankings)
    return System(HYBRID, rankings, milliseconds + sum(system.milliseconds for system in systems))


def reciprocal_rank_fusion(rankings: Sequence[Sequence[Key]], k: float = 60.0) -> list[tuple[Key, float]]:
    """Merges rankings of the same keys by their ranks alone (Cormack, Clarke, Büttcher 2009).

    Returns (key, score), best first. The score is the sum of 1 / (k + rank) over the rankings that hold the
    key, where ranks count from 1. The paper's k = 60 keeps one first place from outweighing two good ones.
    Keys with equal scores stay in the order in which they first occur, ranking by ranking. The rankings' own
    scores don't matter, so cosines and BM25 need no common scale.
    """
    scores: dict[Key, float] = {}
    for ranking in rankings:
        for rank, key in enumerate(dict.fromkeys(ranking), start=1):
            scores[key] = scores.get(key, 0.0) + 1.0 / (k + rank)
    return sorted(scores.items(), key=lambda item: -item[1])


def rerank(
    reranker: Reranker, system: System, data: RetrievalData, count: int, progress: Progress | None = None
) -> System:
    """Reorders the first `count` documents of each query by the re-ranker; the others stay below them."""
    begun = time.perf_counter()
    rankings: Rankings = {}
    for query, ranking in system.rankings.items():
        ids = [document for document, _ in ranking[:count]]
        scores = scores_of(reranker, data.queries[query], [data.documents[id] for id in ids])
        reranked = in_order(_as_float32(zip(ids, scores, strict=True)))
        # Documents that it didn't read get scores that keep them below the others in a run file.
        lowest = reranked[-1][1] if reranked else 0.0
        below = [(id, lowest - rank) for rank, (id, _) in enumerate(ranking[count:], start=1)]
        rankings[query] = [*reranked, *below]
        if progress is not None:
            progress(len(rankings), len(system.rankings), "queries re-ranked")
    return System(RERANKED, rankings, system.milliseconds + _milliseconds_per_query(begun, rankings))


def _as_float32(scores: Iterable[tuple[str, float]]) -> dict[str, float]:
    """Rounds scores to single precision, as trec_eval reads them, so that its ties are ties here too."""
    return {document: float(np.float32(score)) for document, score in scores}


def _milliseconds_per_query(begun: float, queries: Rankings) -> float:
    return 1000 * (time.perf_counter() - begun) / max(len(queries), 1)
