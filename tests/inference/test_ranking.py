"""Systems side by side on a collection where everything can be worked out by hand."""

from collections.abc import Sequence

import numpy as np
import pytest

from bertsmith.errors import InputError
from bertsmith.inference.ranking.ranking import RankingSettings, System, fuse, rank_by_all, rerank
from bertsmith.inference.ranking.results import Comparison, compare, metrics_for
from bertsmith.inference.ranking.search import Vectors
from bertsmith.metrics.ranking_scores import in_order, ranking_scores
from bertsmith.metrics.scores import intervals_of_means, p_value
from bertsmith.progress import Progress
from bertsmith.text.retrieval.retrieval_data import RetrievalData

pytest.importorskip("Stemmer", reason="needs the extra `retrieval`")

WORDS = ("wing", "flow", "heat", "plate", "shock")


class WordVectors:
    """A text's vector says how often it has each of the five words."""

    def documents(self, texts: Sequence[str], progress: Progress | None = None) -> Vectors:
        found = np.array([[text.split().count(word) for word in WORDS] for text in texts], np.float32)
        return found / np.sqrt(np.maximum((found**2).sum(axis=1, keepdims=True), 1e-9))

    queries = documents


def collection(candidates: dict[str, tuple[str, ...]] | None = None) -> RetrievalData:
    documents = {"d1": "wing flow", "d2": "wing flow", "d3": "heat", "d4": "heat plate wing", "d5": "sound"}
    queries = {"a": "wing flow", "b": "heat", "c": "nothing judged"}
    judgements = {"a": {"d1": 1}, "b": {"d4": 2, "d3": 1}, "c": {"d5": 0}}
    return RetrievalData("five", documents, queries, judgements, candidates)


def names(system: System, query: str) -> list[str]:
    return [document for document, _ in system.rankings[query]]


def test_each_system_ranks_the_judged_queries() -> None:
    lexical, dense, hybrid = rank_by_all(collection(), WordVectors(), settings=RankingSettings(3, 2))
    assert [system.name for system in (lexical, dense, hybrid)] == ["BM25", "dense", "hybrid"]
    assert lexical.rankings.keys() == {"a", "b"}
    assert names(lexical, "a") == ["d2", "d1", "d4"]  # twins: the higher id first
    assert names(lexical, "b") == ["d3", "d4"]  # what shares no word isn't found
    assert names(dense, "b") == ["d3", "d4", "d5"]  # though all of them have a cosine
    assert names(hybrid, "a")[:2] == ["d2", "d1"]
    assert dict(hybrid.rankings["b"]) == pytest.approx({"d3": 2 / 61, "d4": 2 / 62, "d5": 1 / 63})


def test_candidates_alone_are_ranked_all_of_them() -> None:
    data = collection({"a": ("d3", "d1"), "b": ("d5", "d4", "d3"), "c": ("d5",)})
    lexical, dense, hybrid = rank_by_all(data, WordVectors(), settings=RankingSettings(1, 1))
    for system in (lexical, dense, hybrid):
        assert names(system, "a") == ["d1", "d3"]
        assert names(system, "b") == ["d3", "d4", "d5"]
    assert lexical.rankings["b"][-1] == ("d5", 0.0)


def test_only_candidates_of_measured_queries_are_embedded() -> None:
    embedded: list[str] = []

    class Listening(WordVectors):
        def documents(self, texts: Sequence[str], progress: Progress | None = None) -> Vectors:
            embedded.extend(texts)
            return super().documents(texts)

    rank_by_all(collection({"a": ("d3", "d1"), "b": ("d4",), "c": ("d5", "d2")}), Listening())
    assert embedded == ["heat plate wing", "heat", "wing flow"]


def test_the_reranker_orders_the_first_and_leaves_the_rest_below() -> None:
    asked: list[tuple[str, list[str]]] = []

    def shortest_first(query: str, passages: Sequence[str]) -> list[float]:
        asked.append((query, list(passages)))
        return [-float(len(passage)) for passage in passages]

    first = System("any", {"a": [("d4", 9.0), ("d1", 8.0), ("d3", 7.0), ("d5", 7.0)], "b": []}, 1.0)
    found = rerank(shortest_first, first, collection(), 3)
    assert asked == [("wing flow", ["heat plate wing", "wing flow", "heat"])]
    assert found.rankings == {"a": [("d3", -4.0), ("d1", -9.0), ("d4", -15.0), ("d5", -16.0)], "b": []}
    assert found.milliseconds > 1.0


def test_scores_that_trec_eval_cannot_tell_apart_are_equal() -> None:
    """It reads them in single precision, where a sigmoid close to 1 is 1."""
    first = System("any", {"a": [("d2", 2.0), ("d1", 1.0), ("d3", 0.5)]}, 1.0)
    found = rerank(lambda query, passages: [1 - 1e-9, 1 - 1e-10, 1 - 2e-9], first, collection(), 3)
    assert found.rankings["a"] == [("d3", 1.0), ("d2", 1.0), ("d1", 1.0)]


@pytest.mark.parametrize("scores", [[1.0], [1.0, float("nan")]])
def test_a_reranker_that_gives_no_score_for_a_passage_is_refused(scores: list[float]) -> None:
    first = System("any", {"a": [("d1", 1.0), ("d2", 0.5)]}, 1.0)
    with pytest.raises(InputError, match="was given 2 passages and gave"):
        rerank(lambda query, passages: scores, first, collection(), 2)


def test_every_ranking_is_in_the_order_that_trec_eval_makes_of_its_scores() -> None:
    data = random_collection(60, 20)
    reranked = rank_by_all(data, WordVectors(), lambda q, p: [1.0] * len(p), RankingSettings(20, 5))
    for system in reranked:
        for ranking in system.rankings.values():
            assert ranking == in_order(dict(ranking)), system.name


def test_fused_systems_share_their_time() -> None:
    systems = [System("x", {"a": [("d1", 1.0)]}, 2.0), System("y", {"a": [("d2", 5.0)]}, 3.0)]
    found = fuse(systems, RankingSettings(2, 1))
    assert names(found, "a") == ["d2", "d1"]  # equal ranks, equal scores
    assert 5.0 < found.milliseconds < 50.0


def random_collection(documents: int, queries: int) -> RetrievalData:
    """Many duplicates of few words; each query has one relevant document, with which it shares words."""
    generator = np.random.default_rng(0)
    texts = {f"d{n}": " ".join(generator.choice(WORDS, 3)) for n in range(documents)}
    relevant = generator.choice(documents, queries)
    asked = {f"q{n}": " ".join(texts[f"d{r}"].split()[:2]) for n, r in enumerate(relevant)}
    judged = {f"q{n}": {f"d{r}": 1} for n, r in enumerate(relevant)}
    return RetrievalData("random", texts, asked, judged)


def compared(data: RetrievalData) -> Comparison:
    systems = rank_by_all(data, WordVectors(), settings=RankingSettings(20, 5))
    return compare(systems, data, metrics_for(data, 10, 20), {"model": "words"})


def test_figures_are_those_of_the_parts() -> None:
    found = compared(random_collection(60, 25))
    assert found.metrics == ("ndcg@10", "mrr@10", "recall@10", "recall@20", "map@20")
    baseline, dense, _ = found.figures
    scores = ranking_scores(dense.system.rankings, found.data.judgements, found.metrics)
    assert dense.scores.means == scores.means
    assert dense.intervals["mrr@10"] == pytest.approx(intervals_of_means(scores.values["mrr@10"][:, None])[0])
    gained = scores.values["ndcg@10"] - baseline.scores.values["ndcg@10"]
    assert baseline.difference is None
    assert dense.difference is not None
    assert dense.difference.mean == pytest.approx(gained.mean())
    assert dense.difference.interval == pytest.approx(intervals_of_means(gained[:, None])[0])
    assert dense.difference.p == p_value(gained)


def test_plain_values_hold_every_query() -> None:
    found = compared(random_collection(60, 25))
    plain = found.to_json()
    assert found.figures[1].difference is not None
    assert plain["systems"]["dense"]["scores"] == found.figures[1].scores.means
    assert plain["model"] == "words"
    assert plain["main_metric"] == "ndcg@10"
    assert plain["systems"]["dense"]["above_baseline"]["p"] == found.figures[1].difference.p
    assert "above_baseline" not in plain["systems"]["BM25"]
    of_queries = plain["per_query"]
    assert np.mean([scores["BM25"] for scores in of_queries.values()]) == pytest.approx(
        found.figures[0].scores.means["ndcg@10"]
    )


@pytest.mark.parametrize(("queries", "is_sure"), [(4, False), (12, True)])
def test_few_queries_that_are_all_better_may_be_chance(queries: int, is_sure: bool) -> None:
    """All of four gain, so the bootstrap's interval leaves out zero; but p is 0.12."""
    named = {f"q{number}": {"right": 1} for number in range(queries)}
    texts = dict.fromkeys(named, "wing")
    data = RetrievalData("few", {"right": "wing", "wrong": "heat"}, texts, named)
    ranked = {"BM25": ("wrong", "right"), "dense": ("right", "wrong")}
    systems = [
        System(name, {query: [(first, 2.0), (second, 1.0)] for query in named}, 0.0, 0.0)
        for name, (first, second) in ranked.items()
    ]
    verdict = compare(systems, data, ["mrr"], {}).verdict()
    assert ("may be chance (p = 0.12)" in verdict) is not is_sure
    assert ("is better than BM25" in verdict) is is_sure


def test_queries_that_were_left_out_are_said() -> None:
    data = collection()
    found = compare(rank_by_all(data, WordVectors()), data, ["map"], {})
    assert found.notes() == ["1 queries have no relevant document: they are left out."]
    assert found.queries == ("a", "b")


def test_candidates_are_measured_by_map_first() -> None:
    assert metrics_for(collection({}), 5, 100) == ("map", "mrr", "ndcg@5", "precision@1")


def test_fewer_queries_are_the_same_ones_each_time() -> None:
    data = random_collection(30, 20)
    few = data.with_fewer_queries(5)
    assert few == data.with_fewer_queries(5)
    assert (len(few.queries), len(few.documents)) == (5, 30)
    assert few.judgements.keys() == few.queries.keys()
    assert few.notes == ("5 of 20 queries were drawn at random.",)
    assert data.with_fewer_queries(20) is data


@pytest.mark.parametrize(("depth", "reranked"), [(0, 1), (10, 0)])
def test_nothing_kept_and_nothing_reranked_are_refused(depth: int, reranked: int) -> None:
    with pytest.raises(InputError, match=f"reranked must be 1 or more, found {depth} and {reranked}"):
        RankingSettings(depth, reranked)
