"""Ways to search one collection, side by side: BM25, a model's vectors, both fused, and a re-ranker on top.

Documents of equal score stand in falling order of their ids, as trec_eval has them: so a run file, read by
another tool, gives the figures that we give.
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
Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True)
class RankingSettings:
    """depth: how many documents each system keeps for a query. reranked: how many of the hybrid's first ones
    the re-ranker reads. fusion_k: the constant of reciprocal rank fusion."""

    depth: int = 100
    reranked: int = 50
    fusion_k: float = 60.0
    bm25: Bm25Settings = field(default_factory=Bm25Settings)

    def __post_init__(self) -> None:
        if self.depth < 1 or self.reranked < 1:
            raise InputError(f"depth and reranked must be 1 or more, found {self.depth} and {self.reranked}.")


class System(NamedTuple):
    """What one way to search found, and milliseconds a query: all queries' time, divided by their number.

    Not counted is the time that indexing took, `seconds` in all.
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
    """Rankings of the queries that have a relevant document, by each system; BM25, the baseline, first.

    Where queries have candidates, these alone are ranked, all of them; words are still weighed by the whole
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
    """The data with documents in falling order of ids: of equal ones, the first is then trec_eval's first."""

    ids: list[str]
    texts: list[str]
    queries: Mapping[str, str]
    candidates: Mapping[str, tuple[str, ...]] | None
    settings: RankingSettings
    progress: Progress | None

    def needed(self) -> "_Collection":
        """Without documents that are no candidates of any query: to embed those would be in vain."""
        if self.candidates is None:
            return self
        wanted = {document for query in self.queries for document in self.candidates[query]}
        kept = [(id, text) for id, text in zip(self.ids, self.texts, strict=True) if id in wanted]
        return replace(self, ids=[id for id, _ in kept], texts=[text for _, text in kept])

    def search(self, name: str, index: Callable[[], Scorer], floor: float = -math.inf) -> System:
        """All queries by one system. Of the whole collection, only what scores above `floor` is found."""
        begun = time.perf_counter()
        search = index()
        seconds = time.perf_counter() - begun
        begun = time.perf_counter()

        def heard(done: int) -> None:
            if self.progress is not None:
                self.progress(done, len(self.queries), f"queries by {name}")

        texts, count = list(self.queries.values()), len(self.ids)
        if self.candidates is None:
            hits = search_exactly(search, texts, count, self.settings.depth, heard)
        else:
            places = {id: place for place, id in enumerate(self.ids)}
            candidates = [np.array([places[id] for id in self.candidates[query]]) for query in self.queries]
            hits, floor = search_among(search, texts, count, candidates, heard), -math.inf
        rankings = {
            query: [
                (self.ids[place], score)
                for place, score in zip(found.places.tolist(), found.scores.tolist(), strict=True)
                if score > floor
            ]
            for query, found in zip(self.queries, hits, strict=True)
        }
        return System(name, rankings, _milliseconds_per_query(begun, rankings), seconds)


def fuse(systems: Sequence[System], settings: RankingSettings) -> System:
    """Reciprocal rank fusion; its time is that of all of them."""
    begun = time.perf_counter()
    rankings: Rankings = {}
    for query in systems[0].rankings:
        ranked = [[document for document, _ in system.rankings[query]] for system in systems]
        fused = in_order(_as_float32(reciprocal_rank_fusion(ranked, settings.fusion_k)))
        rankings[query] = fused[: max(settings.depth, *map(len, ranked))]
    own = _milliseconds_per_query(begun, rankings)
    return System(HYBRID, rankings, own + sum(system.milliseconds for system in systems))


def reciprocal_rank_fusion(rankings: Sequence[Sequence[Key]], k: float = 60.0) -> list[tuple[Key, float]]:
    """Several rankings of the same things → one, by their ranks alone (Cormack, Clarke, Büttcher 2009).

    (key, score), best first: the score is the sum of 1 / (k + rank) over the rankings that hold the key.

    Ranks count from 1. k = 60 is the paper's: it keeps one first place from outweighing two good ones. Equal
    scores keep the order in which the keys are first met, ranking by ranking. Scores of the single rankings
    don't matter, so that cosines and BM25 need no common scale.
    """
    scores: dict[Key, float] = {}
    for ranking in rankings:
        for rank, key in enumerate(dict.fromkeys(ranking), start=1):
            scores[key] = scores.get(key, 0.0) + 1.0 / (k + rank)
    return sorted(scores.items(), key=lambda item: -item[1])


def rerank(
    reranker: Reranker, system: System, data: RetrievalData, count: int, progress: Progress | None = None
) -> System:
    """The first `count` documents of each query in the re-ranker's order, the others below as they were."""
    begun = time.perf_counter()
    rankings: Rankings = {}
    for query, ranking in system.rankings.items():
        names = [document for document, _ in ranking[:count]]
        scores = scores_of(reranker, data.queries[query], [data.documents[name] for name in names])
        read = in_order(_as_float32(zip(names, scores, strict=True)))
        # Those that it didn't read have scores that keep them below in a run file.
        lowest = read[-1][1] if read else 0.0
        below = [(name, lowest - place) for place, (name, _) in enumerate(ranking[count:], start=1)]
        rankings[query] = [*read, *below]
        if progress is not None:
            progress(len(rankings), len(system.rankings), "queries re-ranked")
    return System(RERANKED, rankings, system.milliseconds + _milliseconds_per_query(begun, rankings))


def _as_float32(scores: Iterable[tuple[str, float]]) -> dict[str, float]:
    """In single precision, as trec_eval reads scores: what it takes for equal has to be equal here."""
    return {document: float(np.float32(score)) for document, score in scores}


def _milliseconds_per_query(begun: float, queries: Rankings) -> float:
    return 1000 * (time.perf_counter() - begun) / max(len(queries), 1)
