"""How good rankings are: nDCG, MRR, MAP, recall and precision of each query, as trec_eval defines them.

ndcg@k: discounted gain of the first k documents, as a share of that of the best order (Järvelin and
    Kekäläinen 2002). The gain is the grade itself, the discount log2(rank + 1).
mrr@k: 1 / the rank of the first relevant document, 0 when there is none among the first k.
recall@k: which share of the relevant documents is among the first k.
precision@k: which share of k places they take. Places that a short ranking leaves empty count.
map, map@k: the mean over all relevant documents of the precision at their rank, 0 for those not found.

A grade above 0 is relevant. An unjudged document has grade 0, and a negative grade counts as 0. A query
without any relevant document has no score: it is left out, and counted.

What a ranking is worth whose scores are tied is the expectation over all orders of the ties (McSherry and
Najork 2008). So a constant score is worth a random order, never the order of the file.

At which rank each query's document stands among all documents: those of equal score stand in the order of
the hashes of their texts, which is a random one, but the same every time.

Q queries, R ranks, J judged relevant documents of a query; C candidates of one query, G groups of equal
scores, the highest first; E examples, a query and its document each, D distinct documents of them all.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from bertsmith.arrays import Float32s, Floats, Ints
from bertsmith.errors import InputError

Judgements = Mapping[str, Mapping[str, int]]  # query -> document -> grade
Ranking = Sequence[tuple[str, float]]  # (document, score), the best first

DEPTH = 10  # of the ranks among all documents of a file
_AT_A_TIME = 256  # queries: bounds memory to so many rows of D scores
_METRIC = re.compile(r"(ndcg|mrr|recall|precision|map)(?:@([1-9]\d*))?")


@dataclass(frozen=True)
class GradedRankings:
    """Rankings with the grades of their documents. Rows are queries, padded with zeros.

    found: (Q, R), the grade of the document at each rank. ideal: (Q, J), the positive grades in a query's
    judgements, highest first; each row has at least one.
    """

    found: Floats
    ideal: Floats


Graded = GradedRankings  # the name by which programs have known it


@dataclass(frozen=True)
class RankingScores:
    """Scores of the queries that have a relevant document, in the order of `queries`.

    values: name of the metric -> (Q,). `unanswerable`: how many queries were left out for want of one.
    """

    queries: tuple[str, ...]
    values: dict[str, Floats]
    unanswerable: int

    @property
    def means(self) -> dict[str, float]:
        """Each metric's mean over the queries."""
        return {name: float(values.mean()) for name, values in self.values.items()}


def in_order(scores: Mapping[str, float]) -> list[tuple[str, float]]:
    """(document, score), best first. Equal scores stand in falling order of the documents' ids: that is how
    trec_eval breaks ties, whatever order a run came in."""
    return sorted(sorted(scores.items(), reverse=True), key=lambda item: -item[1])


def ranking_scores(
    rankings: Mapping[str, Ranking], judgements: Judgements, metrics: Iterable[str]
) -> RankingScores:
    """Scores of rankings that are in order. A query that was judged but not ranked scores 0.

    Raises InputError for a metric that isn't in the table above, for a document that a query ranks twice, and
    when no query has a relevant document.
    """
    graders = {name: _parse_metric(name) for name in metrics}
    relevant = {
        query: {document: grade for document, grade in grades.items() if grade > 0}
        for query, grades in judgements.items()
    }
    queries = tuple(query for query, grades in relevant.items() if grades)
    if not queries:
        raise InputError("No query has a relevant document (a grade above 0): there is nothing to measure.")
    graded = _grade_rankings(
        [rankings.get(query, ()) for query in queries], [relevant[query] for query in queries]
    )
    values = {name: grade(graded) for name, grade in graders.items()}
    return RankingScores(queries, values, len(relevant) - len(queries))


def ndcg(graded: GradedRankings, k: int | None = None) -> Floats:
    """nDCG of each query (Q,); without `k` over the whole ranking."""
    best = _discounted_gain(graded.ideal[:, :k])
    return np.asarray(_discounted_gain(graded.found[:, :k]) / best, np.float64)


def mrr(graded: GradedRankings, k: int | None = None) -> Floats:
    """The reciprocal rank of each query (Q,); without `k` over the whole ranking."""
    hits = graded.found[:, :k] > 0
    ranks = np.arange(1, hits.shape[1] + 1)
    return np.asarray((hits / ranks).max(axis=1, initial=0.0), np.float64)


def recall(graded: GradedRankings, k: int | None = None) -> Floats:
    """The recall of each query (Q,); without `k` over the whole ranking."""
    return np.asarray((graded.found[:, :k] > 0).sum(axis=1) / _relevant_count(graded), np.float64)


def precision(graded: GradedRankings, k: int | None = None) -> Floats:
    """The precision of each query (Q,); without `k` over as many ranks as the longest ranking has."""
    places = max(graded.found.shape[1], 1) if k is None else k
    return np.asarray((graded.found[:, :k] > 0).sum(axis=1) / places, np.float64)


def average_precision(graded: GradedRankings, k: int | None = None) -> Floats:
    """The average precision of each query (Q,); without `k` over the whole ranking. With `k` too, the mean is
    over all relevant documents.
    """
    hits = graded.found[:, :k] > 0
    precisions = hits.cumsum(axis=1) / np.arange(1, hits.shape[1] + 1)
    return np.asarray((precisions * hits).sum(axis=1) / _relevant_count(graded), np.float64)


_SCORES: dict[str, Callable[[GradedRankings, int | None], Floats]] = {
    "ndcg": ndcg,
    "mrr": mrr,
    "recall": recall,
    "precision": precision,
    "map": average_precision,
}


def _parse_metric(name: str) -> Callable[[GradedRankings], Floats]:
    """The score function that a name such as 'ndcg@10' stands for."""
    match = _METRIC.fullmatch(name)
    if match is None:
        raise InputError(
            f"There is no metric {name!r}. Choose among {', '.join(_SCORES)}, with a depth such as ndcg@10."
        )
    score, depth = _SCORES[match[1]], int(match[2]) if match[2] else None
    return lambda graded: score(graded, depth)


def _grade_rankings(rankings: Sequence[Ranking], relevant: Sequence[Mapping[str, int]]) -> GradedRankings:
    grades_at_rank = np.zeros((len(rankings), max(map(len, rankings))))
    ideal = np.zeros((len(relevant), max(map(len, relevant))))
    for row, (ranking, grades) in enumerate(zip(rankings, relevant, strict=True)):
        documents = [document for document, _ in ranking]
        if len(set(documents)) < len(documents):
            duplicate = next(document for document in documents if documents.count(document) > 1)
            raise InputError(
                f"A ranking holds document {duplicate!r} twice. Each may stand at one rank only."
            )
        grades_at_rank[row, : len(documents)] = [grades.get(document, 0) for document in documents]
        ideal[row, : len(grades)] = sorted(grades.values(), reverse=True)
    return GradedRankings(grades_at_rank, ideal)


def _discounted_gain(grades: Floats) -> Floats:
    """(Q, R) -> (Q,): the sum of grades, each divided by log2(rank + 1)."""
    return np.asarray(grades @ (1 / np.log2(np.arange(2, grades.shape[1] + 2))), np.float64)


def _relevant_count(graded: GradedRankings) -> npt.NDArray[np.int64]:
    return np.asarray((graded.ideal > 0).sum(axis=1), np.int64)


class TiedCandidates(NamedTuple):
    """Candidates with the same score: how many there are, how many are relevant, and both numbers for the
    candidates before them.
    """

    size: int
    relevant: int
    before: int
    relevant_before: int


Group = TiedCandidates  # the name by which programs have known it


def tied_average_precision(scores: npt.ArrayLike, relevant: npt.ArrayLike) -> float:
    """Average precision for scores (C,) and truth values (C,), at least one of them true: the expectation
    over all orders of ties.
    """
    total = sum(map(_sum_precisions, _groups(scores, relevant)))
    return float(total / np.count_nonzero(relevant))


def tied_reciprocal_rank(scores: npt.ArrayLike, relevant: npt.ArrayLike) -> float:
    """Reciprocal rank for scores (C,) and truth values (C,), at least one of them true: the expectation over
    all orders of ties.
    """
    group = next(group for group in _groups(scores, relevant) if group.relevant)
    # The first relevant one stands at place p in a share of the orders that is in proportion to the binomial
    # coefficient of size - p over relevant - 1; the coefficients themselves would have thousands of digits.
    share, expectation = group.relevant / group.size, 0.0
    for rank in range(1, group.size - group.relevant + 2):
        expectation += share / (group.before + rank)
        share *= (group.size - group.relevant + 1 - rank) / max(group.size - rank, 1)
    return expectation


def _groups(scores: npt.ArrayLike, relevant: npt.ArrayLike) -> Iterator[TiedCandidates]:
    """Scores (C,) and truth values (C,) -> G groups of equal scores, the highest first."""
    _, group = np.unique(-np.asarray(scores, np.float64), return_inverse=True)
    sizes = np.bincount(group)
    hits = np.bincount(group, np.asarray(relevant, np.float64)).astype(np.int64)
    before, hits_before = np.cumsum(sizes) - sizes, np.cumsum(hits) - hits
    for values in zip(sizes.tolist(), hits.tolist(), before.tolist(), hits_before.tolist(), strict=True):
        yield TiedCandidates(*values)


def _sum_precisions(group: TiedCandidates) -> float:
    """The expected sum of the precisions at the group's relevant candidates."""
    if not group.relevant:
        return 0.0
    others_before = np.arange(group.size)  # candidates of the group before each position
    share = (group.relevant - 1) / max(group.size - 1, 1)
    expected_hits = group.relevant_before + 1 + others_before * share
    ranks = group.before + 1 + others_before
    return float((expected_hits / ranks).sum() * group.relevant / group.size)


def ranks_of(scores: Callable[[int, int], Float32s], positive: Ints, hashes: Sequence[int]) -> Ints:
    """Ranks (E,) from 1 on. `scores(start, end)` gives the scores (…, D) of a range of queries for all
    documents; positive (E,) is the row of each example's document; hashes (D,), all distinct, break ties.
    """
    order = np.array(hashes, np.int64)
    ranks = np.zeros(len(positive), np.int64)
    for start in range(0, len(positive), _AT_A_TIME):
        end = min(start + _AT_A_TIME, len(positive))
        block, positive_rows = scores(start, end), positive[start:end, None]
        positive_scores = np.take_along_axis(block, positive_rows, 1)
        earlier = order < order[positive_rows]
        ranks[start:end] = (
            1 + (block > positive_scores).sum(1) + ((block == positive_scores) & earlier).sum(1)
        )
    return ranks


def rank_metrics(queries: Sequence[int], documents: Sequence[int], ranks: Sequence[int]) -> dict[str, float]:
    """nDCG@10, MRR@10 and recall@10, averaged over queries. queries (E,) and documents (E,) are numbers; a
    query may be in several examples, with another document in each.
    """
    relevant: dict[int, dict[int, int]] = {}
    for query, document, rank in zip(queries, documents, ranks, strict=True):
        relevant.setdefault(query, {})[document] = rank
    hits = np.zeros((len(relevant), DEPTH))
    ideal = np.zeros((len(relevant), max(map(len, relevant.values()))))
    for row, document_ranks in enumerate(relevant.values()):
        ideal[row, : len(document_ranks)] = 1
        hits[row, [rank - 1 for rank in document_ranks.values() if rank <= DEPTH]] = 1
    graded = GradedRankings(hits, ideal)
    scores = {"mrr": mrr, "ndcg": ndcg, "recall": recall}
    return {f"{name}@{DEPTH}": float(score(graded, DEPTH).mean()) for name, score in scores.items()}


def chance_metrics(
    queries: Sequence[int], documents: Sequence[int], among: Sequence[int]
) -> dict[str, float]:
    """The metrics of `rank_metrics` for a random order: the expectation over all orders of the `among` (E,)
    documents that each row's query is compared with. With few queries a single draw may be twice as high.
    """
    answers: dict[int, set[int]] = {}
    for query, document in zip(queries, documents, strict=True):
        answers.setdefault(query, set()).add(document)
    document_counts = dict(zip(queries, among, strict=True))
    expected = [
        _chance_scores(len(documents_of_query), document_counts[query])
        for query, documents_of_query in answers.items()
    ]
    names = (f"mrr@{DEPTH}", f"ndcg@{DEPTH}", f"recall@{DEPTH}")
    return {name: float(mean) for name, mean in zip(names, np.mean(expected, axis=0), strict=True)}


def _chance_scores(relevant: int, documents: int) -> tuple[float, float, float]:
    """The expected MRR@10, nDCG@10 and recall@10 of one query."""
    ranks = range(1, min(DEPTH, documents) + 1)
    share, first = relevant / documents, 0.0  # of the orders: those in which the first one stands at a rank
    for rank in ranks:
        first += share / rank
        share *= (documents - relevant - rank + 1) / max(documents - rank, 1)
    gains = [float(1 / np.log2(rank + 1)) for rank in ranks]
    gained = relevant / documents * sum(gains)
    return first, gained / sum(gains[:relevant]), len(ranks) / documents
