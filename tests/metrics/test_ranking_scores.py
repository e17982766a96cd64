"""Ranking scores equal ranx's, scikit-learn's and the definitions written out, and cases done by hand."""

import math
import warnings
from collections.abc import Iterator

import numpy as np
import pytest
from sklearn.metrics import average_precision_score, ndcg_score

from bertsmith.errors import InputError
from bertsmith.metrics.ranking_scores import Judgements, in_order, ranking_scores

METRICS = (
    "ndcg@1",
    "ndcg@10",
    "ndcg",
    "mrr@3",
    "mrr",
    "recall@5",
    "precision@1",
    "precision@4",
    "map@5",
    "map",
)
Rankings = dict[str, list[tuple[str, float]]]


def of(ranked: str, grades: dict[str, int], metric: str) -> float:
    """The score of one query whose ranking is the letters of `ranked`."""
    ranking = [(letter, -float(place)) for place, letter in enumerate(ranked)]
    return float(ranking_scores({"q": ranking}, {"q": grades}, [metric]).values[metric][0])


def random_cases(seed: int, cases: int) -> Iterator[tuple[Rankings, Judgements]]:
    """Four queries a case: short and empty rankings, grades from -1 to 3, relevant documents not found."""
    generator = np.random.default_rng(seed)
    for _ in range(cases):
        rankings: Rankings = {}
        judgements: dict[str, dict[str, int]] = {}
        for number in range(4):
            documents = generator.permutation([f"d{each}" for each in range(20)])
            ranked = documents[: generator.integers(0, 21)]
            rankings[f"q{number}"] = [(str(each), -float(place)) for place, each in enumerate(ranked)]
            judged = generator.permutation(documents)[: generator.integers(1, 12)]
            judgements[f"q{number}"] = {str(each): int(generator.integers(-1, 4)) for each in judged}
        judgements["q0"]["d0"] = 1
        yield rankings, judgements


def by_definition(ranked: list[str], grades: dict[str, int], metric: str) -> float:
    """The textbook, one document at a time."""
    name, _, depth = metric.partition("@")
    seen = ranked[: int(depth)] if depth else ranked
    relevant = {document for document, grade in grades.items() if grade > 0}
    gains = [max(grades.get(document, 0), 0) for document in seen]
    hits = [document in relevant for document in seen]
    if name == "ndcg":
        best = sorted((grades[document] for document in relevant), reverse=True)
        best = best[: int(depth)] if depth else best
        return sum(g / math.log2(r + 2) for r, g in enumerate(gains)) / sum(
            g / math.log2(r + 2) for r, g in enumerate(best)
        )
    if name == "mrr":
        return 1 / (hits.index(True) + 1) if True in hits else 0.0
    if name == "map":
        return sum(sum(hits[: r + 1]) / (r + 1) for r, hit in enumerate(hits) if hit) / len(relevant)
    return sum(hits) / (len(relevant) if name == "recall" else int(depth))


def test_worked_by_hand() -> None:
    grades = {"a": 3, "c": 1, "e": 2}
    gain = 3 / 1 + 1 / 2  # a at rank 1, c at rank 3
    best = 3 / 1 + 2 / math.log2(3) + 1 / 2
    assert of("abcd", grades, "ndcg@10") == pytest.approx(gain / best)
    assert of("bacd", grades, "mrr@10") == 0.5
    assert of("bacd", grades, "mrr@1") == 0.0
    assert of("abcd", grades, "recall@2") == pytest.approx(1 / 3)
    assert of("abcd", grades, "precision@10") == 0.2
    assert of("abcd", grades, "map") == pytest.approx((1 + 2 / 3) / 3)
    assert of("abcd", grades, "map@2") == pytest.approx(1 / 3)


@pytest.mark.parametrize("cases", [300, pytest.param(5000, marks=pytest.mark.slow)])
def test_every_score_equals_its_definition(cases: int) -> None:
    for rankings, judgements in random_cases(1, cases):
        ours = ranking_scores(rankings, judgements, METRICS)
        for metric, values in ours.values.items():
            for query, value in zip(ours.queries, values, strict=True):
                ranked = [document for document, _ in rankings[query]]
                assert value == pytest.approx(by_definition(ranked, judgements[query], metric), abs=1e-12)


@pytest.mark.slow
def test_scores_equal_those_of_ranx() -> None:
    """One call for all cases, because ranx compiles for half a minute."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ranx = pytest.importorskip("ranx")
        rankings: Rankings = {}
        judgements: dict[str, dict[str, int]] = {}
        for number, (ranked, judged) in enumerate(random_cases(2, 500)):
            rankings |= {f"{number} {query}": each for query, each in ranked.items() if each}
            judgements |= {f"{number} {query}": dict(each) for query, each in judged.items() if ranked[query]}
        ours = ranking_scores(rankings, judgements, METRICS)
        kept = {query: {d: max(g, 0) for d, g in judgements[query].items()} for query in ours.queries}
        run = ranx.Run({query: dict(rankings[query]) for query in ours.queries})
        theirs = ranx.evaluate(ranx.Qrels(kept), run, list(METRICS), return_mean=False, make_comparable=True)
    order = np.argsort(ours.queries)  # ranx sorts them
    for metric in METRICS:
        assert ours.values[metric][order] == pytest.approx(theirs[metric], abs=1e-9), metric


def test_whole_rankings_score_as_in_scikit_learn() -> None:
    generator = np.random.default_rng(3)
    for _ in range(200):
        grades, scores = generator.integers(0, 4, 12), generator.permutation(12).astype(float)
        grades[generator.integers(12)] = 1
        names = [f"d{each}" for each in range(12)]
        ranking = in_order(dict(zip(names, scores.tolist(), strict=True)))
        judged = {"q": dict(zip(names, grades.tolist(), strict=True))}
        ours = ranking_scores({"q": ranking}, judged, ["ndcg@5", "map"]).means
        assert ours["ndcg@5"] == pytest.approx(ndcg_score([grades], [scores], k=5))
        assert ours["map"] == pytest.approx(average_precision_score(grades > 0, scores))


def test_equal_scores_stand_in_falling_order_of_ids_as_in_trec_eval() -> None:
    assert in_order({"d1": 1.0, "d3": 1.0, "d2": 1.0, "d0": 2.0}) == [
        ("d0", 2.0),
        ("d3", 1.0),
        ("d2", 1.0),
        ("d1", 1.0),
    ]
    assert [document for document, _ in in_order({"9": 0.0, "10": -0.0})] == ["9", "10"]


def test_queries_without_a_relevant_document_are_left_out_and_counted() -> None:
    judgements = {"none": {"a": 0, "b": -1}, "empty": {}, "one": {"a": 1}}
    found = ranking_scores({"none": [("a", 1.0)], "one": [("a", 1.0)]}, judgements, ["mrr@10"])
    assert (found.queries, found.unanswerable, found.means) == (("one",), 2, {"mrr@10": 1.0})


def test_a_judged_query_that_was_not_ranked_scores_nothing() -> None:
    found = ranking_scores({"x": [("a", 1.0)]}, {"x": {"a": 1}, "y": {"a": 1}}, METRICS)
    assert all(values.tolist() == [values[0], 0.0] for values in found.values.values())
    assert found.means["mrr"] == 0.5
    assert ranking_scores({}, {"y": {"a": 1}}, METRICS).means == dict.fromkeys(METRICS, 0.0)


@pytest.mark.parametrize("metric", ["ndcg@0", "ndgc@10", "map@", "mrr@-1", "ndcg@ten", ""])
def test_a_metric_that_there_is_not_is_refused(metric: str) -> None:
    with pytest.raises(InputError, match=r"Choose among ndcg, mrr, recall, precision, map"):
        ranking_scores({}, {"q": {"a": 1}}, [metric])


def test_nothing_to_measure_is_refused() -> None:
    with pytest.raises(InputError, match="No query has a relevant document"):
        ranking_scores({"q": [("a", 1.0)]}, {"q": {"a": 0}}, ["map"])


def test_a_document_ranked_twice_is_refused() -> None:
    with pytest.raises(InputError, match="document 'a' twice"):
        ranking_scores({"q": [("a", 1.0), ("b", 0.5), ("a", 0.2)]}, {"q": {"a": 1}}, ["map"])
