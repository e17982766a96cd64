"""Losses of retrieval and re-ranking, one value for each query: on vectors and scores, and applied to
examples.

Q queries, D documents (at least one for each query), H size of a vector, T documents of one query with the
positive first ((Q, T) is padded if a query has fewer), C candidates of all queries end to end.

For examples, each a query with its texts: E examples, T texts (the query, its document and its negatives).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from bertsmith.arrays import Bools, Ints
from bertsmith.data.batch import ragged_range, to_device


def in_batch_softmax(
    queries: Tensor,
    documents: Tensor,
    positive: Tensor,
    excluded: Tensor,
    scale: float,
    *,
    symmetric: bool = False,
) -> Tensor:
    """(Q,): cross-entropy of picking each query's document out of all documents of the batch (InfoNCE, van
    den Oord et al. 2018; Henderson et al. 2017, section 4.3).

    queries (Q, H) and documents (D, H), of length 1 if the similarity is to be the cosine; positive (Q,): the
    row of each query's document; excluded (Q, D): documents that are no negatives of a query. `scale` is the
    inverse of the softmax's temperature. `symmetric` averages with picking the query for each positive.
    """
    logits = scale * queries @ documents.T  # (Q, D)
    logits = logits.masked_fill(excluded, -torch.inf)
    forwards = F.cross_entropy(logits, positive, reduction="none")
    if not symmetric:
        return forwards
    backwards = logits[:, positive].T  # (Q, Q): a row for each positive
    numbers = torch.arange(len(queries), device=logits.device)
    return (forwards + F.cross_entropy(backwards, numbers, reduction="none")) / 2


def false_negatives(known: Sequence[Sequence[int]], documents: Ints, positive: Ints) -> Bools:
    """(Q, D): documents that may not count as a query's negatives, because they or a copy are `known` to
    answer it. The query's own `positive` (Q,) stays.

    Documents (D,) and `known` are numbers that equal texts share.
    """
    by_number = np.argsort(documents, kind="stable")
    ordered = documents[by_number]
    answers = np.array([number for of_query in known for number in of_query], np.int64)
    query = np.repeat(np.arange(len(known)), [len(of_query) for of_query in known])
    first, end = np.searchsorted(ordered, answers, "left"), np.searchsorted(ordered, answers, "right")
    excluded = np.zeros((len(known), len(documents)), np.bool_)
    excluded[np.repeat(query, end - first), by_number[ragged_range(first, end - first)]] = True
    excluded[np.arange(len(known)), positive] = False
    return excluded


def triplet_margin(scores: Tensor, present: Tensor, margin: float) -> Tensor:
    """(Q,): by how much each negative fails to be `margin` below the positive, averaged over the query's
    negatives.

    scores (Q, T) with the positive first; present (Q, T): which documents exist.
    """
    return _mean_of_negatives((margin - scores[:, :1] + scores[:, 1:]).relu(), present)


def margin_mse(scores: Tensor, teacher: Tensor, present: Tensor) -> Tensor:
    """(Q,): mean squared error of the margins between the positive and each negative, against a teacher's
    (Hofstätter et al. 2020, equation 7). scores, teacher and present are (Q, T), the positive first.
    """
    ours, theirs = scores[:, :1] - scores[:, 1:], teacher[:, :1] - teacher[:, 1:]
    return _mean_of_negatives((ours - theirs) ** 2, present)


def kl_divergence(scores: Tensor, teacher: Tensor, present: Tensor) -> Tensor:
    """(Q,): Kullback-Leibler divergence of our softmax over a query's documents from a teacher's (Hinton et
    al. 2015, at a temperature of 1). All are (Q, T).
    """
    ours, theirs = _log_softmax(scores, present), _log_softmax(teacher, present)
    pointwise = (theirs.exp() * (theirs - ours)).masked_fill(~present, 0.0)
    return pointwise.sum(1)


def pointwise(scores: Tensor, targets: Tensor, positive_weight: float = 1.0) -> Tensor:
    """(C,): binary cross-entropy of a cross-encoder's scores (C,) against relevance in [0, 1] (Nogueira and
    Cho 2019). The relevant part has the weight `positive_weight`.
    """
    weight = torch.full((), positive_weight, device=scores.device)
    return F.binary_cross_entropy_with_logits(scores, targets, reduction="none", pos_weight=weight)


def listwise(scores: Tensor, targets: Tensor, query: Tensor) -> Tensor:
    """(C,): each candidate's part of the cross-entropy between its query's `targets` and the softmax of the
    scores over that query's candidates (ListNet's top one, Cao et al. 2007).

    scores and targets (C,); query (C,) numbers from 0. A query's targets sum to 1, or to 0 if nothing can be
    learned from it.
    """
    queries = len(query)  # an upper bound; asking the device for the highest number would synchronise
    highest = torch.full((queries,), -torch.inf, dtype=scores.dtype, device=scores.device)
    highest = highest.scatter_reduce(0, query, scores.detach(), "amax")
    shifted = scores - highest[query]
    total = torch.zeros(queries, dtype=scores.dtype, device=scores.device)
    total = total.index_add(0, query, shifted.exp())
    return -targets * (shifted - total.log()[query])


def _mean_of_negatives(values: Tensor, present: Tensor) -> Tensor:
    """(Q, T - 1) -> (Q,): the mean over a query's negatives, 0 if it has none."""
    negatives = present[:, 1:]
    return (values * negatives).sum(1) / negatives.sum(1).clamp(min=1)


def _log_softmax(scores: Tensor, present: Tensor) -> Tensor:
    """(Q, T) over existing documents; 0 for others, because -inf would give a NaN gradient."""
    log_probabilities = F.log_softmax(scores.masked_fill(~present, -torch.inf), 1)
    return log_probabilities.masked_fill(~present, 0.0)


LossName = Literal["softmax", "margin", "margin-mse", "kl"]


@dataclass(frozen=True)
class RetrievalTarget:
    """An example by the numbers of its texts (`text_number`). `known` are documents that must never count as
    negatives; `scores` are a teacher's, one for each document.
    """

    query: int
    documents: tuple[int, ...]
    known: tuple[int, ...]
    scores: tuple[float, ...] | None


@dataclass(frozen=True)
class RetrievalLoss:
    """The loss and its settings. `scale` multiplies similarities; `margin` doesn't use it."""

    name: LossName
    scale: float
    symmetric: bool
    margin: float

    def __call__(self, outputs: Tensor, targets: Sequence[RetrievalTarget]) -> Tensor:
        """Vectors (E, T, H) -> (E,). Computed in float32 at least, because similarities in half precision
        couldn't tell near documents apart.
        """
        counts = np.array([len(target.documents) for target in targets])
        present = np.arange(outputs.shape[1] - 1) < counts[:, None]  # (E, T - 1)
        with torch.autocast(outputs.device.type, enabled=False):
            outputs = outputs.to(torch.promote_types(outputs.dtype, torch.float32))
            queries, documents = outputs[:, 0], outputs[:, 1:]
            if self.name == "softmax":
                rows = to_device(np.flatnonzero(present), outputs.device)
                documents = documents.flatten(0, 1).index_select(0, rows)
                return self._in_batch(queries, documents, counts.cumsum() - counts, targets)
            similarities = (queries[:, None] * documents).sum(2)  # (E, T - 1)
            return self._among_own(similarities, to_device(present, outputs.device), targets)

    def _in_batch(
        self, queries: Tensor, documents: Tensor, positive: Ints, targets: Sequence[RetrievalTarget]
    ) -> Tensor:
        """The loss against all documents (D, H) of the batch; positive (E,) is the row of each query's
        document.
        """
        numbers = np.array([number for target in targets for number in target.documents])
        known = [target.known for target in targets]
        excluded = to_device(false_negatives(known, numbers, positive), documents.device)
        rows = to_device(positive, documents.device)
        return in_batch_softmax(queries, documents, rows, excluded, self.scale, symmetric=self.symmetric)

    def _among_own(self, similarities: Tensor, present: Tensor, targets: Sequence[RetrievalTarget]) -> Tensor:
        if self.name == "margin":
            is_answer = np.zeros(
                similarities.shape, np.bool_
            )  # documents behind the first that answer it too
            for row, target in enumerate(targets):
                is_answer[row, 1 : len(target.documents)] = np.isin(target.documents[1:], target.known)
            negatives = present & to_device(~is_answer, present.device)
            return triplet_margin(similarities, negatives, self.margin)
        teacher_scores = np.zeros(similarities.shape)
        for row, target in enumerate(targets):
            scores = target.scores or ()
            teacher_scores[row, : len(scores)] = scores
        teacher = to_device(teacher_scores, similarities.device).to(similarities.dtype)
        if self.name == "kl":
            return kl_divergence(self.scale * similarities, teacher, present)
        return margin_mse(self.scale * similarities, teacher, present)
