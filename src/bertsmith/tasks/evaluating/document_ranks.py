"""At which rank each query's document stands among all documents, and what such ranks are worth.

Documents of equal score stand in the order of the hashes of their texts, which is a random one, but the same
every time: a constant score is worth what chance is, whatever the order of the file.

E   examples, a query and its document each      D   distinct documents of them all
"""

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from bertsmith.arrays import Ints
from bertsmith.metrics.ranking_scores import Graded, mrr, ndcg, recall
from bertsmith.tasks.task import Metrics

Floats = npt.NDArray[np.float32]

DEPTH = 10
_AT_A_TIME = 256  # queries: bounds memory to so many rows of D scores


def ranks_of(scores: Callable[[int, int], Floats], positive: Ints, hashes: Sequence[int]) -> Ints:
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


def rank_metrics(queries: Sequence[int], documents: Sequence[int], ranks: Sequence[int]) -> Metrics:
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
    graded = Graded(found, ideal)
    scores = {"mrr": mrr, "ndcg": ndcg, "recall": recall}
    return {f"{name}@{DEPTH}": float(score(graded, DEPTH).mean()) for name, score in scores.items()}


def chance_metrics(queries: Sequence[int], documents: Sequence[int], among: Sequence[int]) -> Metrics:
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
