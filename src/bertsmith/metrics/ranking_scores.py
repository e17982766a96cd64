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
    """What rankings met with. Rows are queries, filled up with zeros.

    found: (Q, R), the grade of the document at each rank. ideal: (Q, J), the positive grades that a query's
    judgements hold, highest first; at least one a row.
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
    graders = {name: _grader(name) for name in metrics}
    relevant = {
        query: {document: grade for document, grade in grades.items() if grade > 0}
        for query, grades in judgements.items()
    }
    queries = tuple(query for query, grades in relevant.items() if grades)
    if not queries:
        raise InputError("No query has a relevant document (a grade above 0): there is nothing to measure.")
    graded = _graded([rankings.get(query, ()) for query in queries], [relevant[query] for query in queries])
    values = {name: grade(graded) for name, grade in graders.items()}
    return RankingScores(queries, values, len(relevant) - len(queries))


def ndcg(graded: GradedRankings, k: int | None = None) -> Floats:
    """(Q,); without `k` over the whole ranking."""
    best = _discounted(graded.ideal[:, :k])
    return np.asarray(_discounted(graded.found[:, :k]) / best, np.float64)


def mrr(graded: GradedRankings, k: int | None = None) -> Floats:
    """(Q,); without `k` over the whole ranking."""
    hits = graded.found[:, :k] > 0
    ranks = np.arange(1, hits.shape[1] + 1)
    return np.asarray((hits / ranks).max(axis=1, initial=0.0), np.float64)


def recall(graded: GradedRankings, k: int | None = None) -> Floats:
    """(Q,); without `k` over the whole ranking."""
    return np.asarray((graded.found[:, :k] > 0).sum(axis=1) / _relevant_count(graded), np.float64)


def precision(graded: GradedRankings, k: int | None = None) -> Floats:
    """(Q,); without `k` over as many places as the longest ranking has."""
    places = max(graded.found.shape[1], 1) if k is None else k
    return np.asarray((graded.found[:, :k] > 0).sum(axis=1) / places, np.float64)


def average_precision(graded: GradedRankings, k: int | None = None) -> Floats:
    """(Q,); without `k` over the whole ranking. Also with `k` the mean is over all relevant documents."""
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


def _grader(name: str) -> Callable[[GradedRankings], Floats]:
    """The score that a name such as 'ndcg@10' stands for."""
    found = _METRIC.fullmatch(name)
    if found is None:
        raise InputError(
            f"There is no metric {name!r}. Choose among {', '.join(_SCORES)}, with a depth such as ndcg@10."
        )
    score, depth = _SCORES[found[1]], int(found[2]) if found[2] else None
    return lambda graded: score(graded, depth)


def _graded(rankings: Sequence[Ranking], relevant: Sequence[Mapping[str, int]]) -> GradedRankings:
    found = np.zeros((len(rankings), max(map(len, rankings))))
    ideal = np.zeros((len(relevant), max(map(len, relevant))))
    for row, (ranking, grades) in enumerate(zip(rankings, relevant, strict=True)):
        documents = [document for document, _ in ranking]
        if len(set(documents)) < len(documents):
            twice = next(document for document in documents if documents.count(document) > 1)
            raise InputError(f"A ranking holds document {twice!r} twice. Each may stand at one rank only.")
        found[row, : len(documents)] = [grades.get(document, 0) for document in documents]
        ideal[row, : len(grades)] = sorted(grades.values(), reverse=True)
    return GradedRankings(found, ideal)


def _discounted(grades: Floats) -> Floats:
    """(Q, R) -> (Q,), each grade divided by log2(rank + 1)."""
    return np.asarray(grades @ (1 / np.log2(np.arange(2, grades.shape[1] + 2))), np.float64)


def _relevant_count(graded: GradedRankings) -> npt.NDArray[np.int64]:
    return np.asarray((graded.ideal > 0).sum(axis=1), np.int64)


class TiedCandidates(NamedTuple):
    """Candidates of one score: how many, how many relevant ones, and as many of both before them."""

    size: int
    relevant: int
    before: int
    relevant_before: int


Group = TiedCandidates  # the name by which programs have known it


def tied_average_precision(scores: npt.ArrayLike, relevant: npt.ArrayLike) -> float:
    """Of scores (C,) and truth values (C,), of which at least one holds; without ties the usual one."""
    total = sum(map(_precisions, _groups(scores, relevant)))
    return float(total / np.count_nonzero(relevant))


def tied_reciprocal_rank(scores: npt.ArrayLike, relevant: npt.ArrayLike) -> float:
    """Of scores (C,) and truth values (C,), of which at least one holds."""
    group = next(group for group in _groups(scores, relevant) if group.relevant)
    # The first relevant one stands at place p in a share of the orders that is in proportion to the binomial
    # coefficient of size - p over relevant - 1; the coefficients themselves would have thousands of digits.
    share, found = group.relevant / group.size, 0.0
    for place in range(1, group.size - group.relevant + 2):
        found += share / (group.before + place)
        share *= (group.size - group.relevant + 1 - place) / max(group.size - place, 1)
    return found


def _groups(scores: npt.ArrayLike, relevant: npt.ArrayLike) -> Iterator[TiedCandidates]:
    """(C,) and (C,) -> G groups."""
    _, group = np.unique(-np.asarray(scores, np.float64), return_inverse=True)
    sizes = np.bincount(group)
    hits = np.bincount(group, np.asarray(relevant, np.float64)).astype(np.int64)
    before, hits_before = np.cumsum(sizes) - sizes, np.cumsum(hits) - hits
    for values in zip(sizes.tolist(), hits.tolist(), before.tolist(), hits_before.tolist(), strict=True):
        yield TiedCandidates(*values)


def _precisions(group: TiedCandidates) -> float:
    """The expected sum of the precisions at the group's relevant candidates."""
    if not group.relevant:
        return 0.0
    others_before = np.arange(group.size)  # candidates of the group that stand before each place
    share = (group.relevant - 1) / max(group.size - 1, 1)
    found = group.relevant_before + 1 + others_before * share
    places = group.before + 1 + others_before
    return float((found / places).sum() * group.relevant / group.size)


def ranks_of(scores: Callable[[int, int], Float32s], positive: Ints, hashes: Sequence[int]) -> Ints:
    """(E,) ranks from 1 on. `scores(start, end)` are those of some of the queries for all documents, (…, D);
    positive (E,) is the row of each example's document; hashes (D,), distinct, decide between equal scores.
    """
    order = np.array(hashes, np.int64)
    ranks = np.zeros(len(positive), np.int64)
    for start in range(0, len(positive), _AT_A_TIME):
        end = min(start + _AT_A_TIME, len(positive))
        block, own = scores(start, end), positive[start:end, None]
        right = np.take_along_axis(block, own, 1)
        earlier = order < order[own]
        ranks[start:end] = 1 + (block > right).sum(1) + ((block == right) & earlier).sum(1)
    return ranks


def rank_metrics(queries: Sequence[int], documents: Sequence[int], ranks: Sequence[int]) -> dict[str, float]:
    """nDCG@10, MRR@10 and recall@10 over the queries (E,), named by number as the documents (E,) that answer
    them are: a query may be in several examples, with another document in each.
    """
    relevant: dict[int, dict[int, int]] = {}
    for query, document, rank in zip(queries, documents, ranks, strict=True):
        relevant.setdefault(query, {})[document] = rank
    found = np.zeros((len(relevant), DEPTH))
    ideal = np.zeros((len(relevant), max(map(len, relevant.values()))))
    for row, places in enumerate(relevant.values()):
        ideal[row, : len(places)] = 1
        found[row, [rank - 1 for rank in places.values() if rank <= DEPTH]] = 1
    graded = GradedRankings(found, ideal)
    scores = {"mrr": mrr, "ndcg": ndcg, "recall": recall}
    return {f"{name}@{DEPTH}": float(score(graded, DEPTH).mean()) for name, score in scores.items()}


def chance_metrics(
    queries: Sequence[int], documents: Sequence[int], among: Sequence[int]
) -> dict[str, float]:
    """The same of a random order: the expectation over all orders of the `among` (E,) documents that each
    row's query is asked of. One draw may lie at twice that where queries are few.
    """
    answers: dict[int, set[int]] = {}
    for query, document in zip(queries, documents, strict=True):
        answers.setdefault(query, set()).add(document)
    asked = dict(zip(queries, among, strict=True))
    found = [_by_chance(len(own), asked[query]) for query, own in answers.items()]
    names = (f"mrr@{DEPTH}", f"ndcg@{DEPTH}", f"recall@{DEPTH}")
    return {name: float(mean) for name, mean in zip(names, np.mean(found, axis=0), strict=True)}


def _by_chance(relevant: int, documents: int) -> tuple[float, float, float]:
    """MRR@10, nDCG@10 and recall@10 that are expected of one query."""
    seen = range(1, min(DEPTH, documents) + 1)
    share, first = relevant / documents, 0.0  # of the orders: those in which the first one stands at a rank
    for rank in seen:
        first += share / rank
        share *= (documents - relevant - rank + 1) / max(documents - rank, 1)
    gains = [float(1 / np.log2(rank + 1)) for rank in seen]
    gained = relevant / documents * sum(gains)
    return first, gained / sum(gains[:relevant]), len(seen) / documents
