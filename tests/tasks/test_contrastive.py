"""Losses of retrieval against plain loops over their definitions: values and gradients, in float64."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from bertsmith.tasks.losses import contrastive

SEEDS = pytest.mark.parametrize("seed", range(4))


def draws(seed: int, *shape: int) -> Tensor:
    values = torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return values.requires_grad_()


def assert_same(ours: Callable[..., Tensor], plain: Callable[..., Tensor], *inputs: Tensor) -> None:
    """Equal values for each query, and equal gradients of their sum."""
    found, wanted = ours(*inputs), plain(*inputs)
    torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-12)
    gradients = [torch.autograd.grad(each.sum(), inputs, retain_graph=True) for each in (found, wanted)]
    for ours_of, plain_of in zip(*gradients, strict=True):
        torch.testing.assert_close(ours_of, plain_of, rtol=1e-9, atol=1e-12)


def test_two_queries_by_hand() -> None:
    """Each query equals its document; the two are at right angles."""
    both = torch.eye(2)
    found = contrastive.in_batch_softmax(
        both, both, torch.tensor([0, 1]), torch.zeros(2, 2, dtype=torch.bool), 20.0
    )
    wanted = math.log(1 + math.exp(-20))
    assert found.tolist() == pytest.approx([wanted, wanted], abs=1e-7)


@SEEDS
@pytest.mark.parametrize("symmetric", [False, True])
def test_in_batch_softmax_is_its_definition(seed: int, symmetric: bool) -> None:
    """5 queries among 9 documents, of which some are excluded and none is a query's own."""
    draw = np.random.default_rng(seed)
    positive = torch.from_numpy(draw.permutation(9)[:5])
    excluded = torch.from_numpy(draw.random((5, 9)) < 0.2)
    excluded[torch.arange(5), positive] = False

    def plain(queries: Tensor, documents: Tensor) -> Tensor:
        def exponent(query: int, document: int) -> Tensor:
            return torch.exp(7.0 * (queries[query] * documents[document]).sum())

        losses = []
        for query in range(5):
            own = int(positive[query])
            among = [d for d in range(9) if not excluded[query, d]]
            forwards = -torch.log(exponent(query, own) / sum(exponent(query, d) for d in among))
            askers = [q for q in range(5) if not excluded[q, own]]
            backwards = -torch.log(exponent(query, own) / sum(exponent(q, own) for q in askers))
            losses.append((forwards + backwards) / 2 if symmetric else forwards)
        return torch.stack(losses)

    def ours(queries: Tensor, documents: Tensor) -> Tensor:
        return contrastive.in_batch_softmax(queries, documents, positive, excluded, 7.0, symmetric=symmetric)

    vectors = (F.normalize(draws(seed, 5, 6), dim=1), F.normalize(draws(seed + 100, 9, 6), dim=1))
    assert_same(ours, plain, *vectors)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_false_negatives_are_those_a_loop_finds(seed: int) -> None:
    """Few distinct numbers, so that copies abound; some queries know nothing."""
    draw = np.random.default_rng(seed)
    queries, documents = int(draw.integers(1, 6)), int(draw.integers(6, 12))
    numbers = draw.integers(0, 5, documents)
    known = [draw.integers(0, 7, draw.integers(0, 4)).tolist() for _ in range(queries)]
    positive = draw.permutation(documents)[:queries]
    found = contrastive.false_negatives(known, numbers, positive)
    for query in range(queries):
        for document in range(documents):
            wanted = document != positive[query] and int(numbers[document]) in known[query]
            assert found[query, document] == wanted


@SEEDS
@pytest.mark.parametrize("name", ["margin", "margin-mse", "kl"])
def test_losses_over_a_querys_own_documents_are_their_definitions(seed: int, name: str) -> None:
    """Queries with 0 to 3 negatives; what fills the rows up is large, and has no say."""
    counts = [4, 1, 3, 2]
    present = torch.tensor([[document < count for document in range(4)] for count in counts])
    teacher = draws(seed + 50, 4, 4).detach() * 3 + 90.0 * ~present

    def plain(scores: Tensor) -> Tensor:
        return torch.stack([of_query(scores[q, :n], teacher[q, :n]) for q, n in enumerate(counts)])

    def of_query(scores: Tensor, theirs: Tensor) -> Tensor:
        if name == "kl":
            p, q = torch.softmax(theirs, 0), torch.softmax(scores, 0)
            return sum(a * torch.log(a / b) for a, b in zip(p, q, strict=True))
        terms = [
            torch.relu(0.4 - scores[0] + scores[n])
            if name == "margin"
            else (scores[0] - scores[n] - theirs[0] + theirs[n]) ** 2
            for n in range(1, len(scores))
        ]
        return sum(terms, 0 * scores[0]) / max(len(terms), 1)

    def ours(scores: Tensor) -> Tensor:
        if name == "margin":
            return contrastive.triplet_margin(scores, present, 0.4)
        if name == "margin-mse":
            return contrastive.margin_mse(scores, teacher, present)
        return contrastive.kl_divergence(scores, teacher, present)

    assert_same(ours, plain, draws(seed, 4, 4))


@SEEDS
def test_listwise_is_a_cross_entropy_a_query_in_any_order(seed: int) -> None:
    draw = np.random.default_rng(seed)
    query = torch.from_numpy(draw.permutation([0, 0, 0, 1, 1, 2, 2, 2, 2]))
    grades = torch.from_numpy(draw.random(9))
    targets = torch.stack([grade / grades[query == q].sum() for grade, q in zip(grades, query, strict=True)])
    targets[query == 1] = 0.0  # nothing to learn of it

    def plain(scores: Tensor) -> Tensor:
        parts = [
            -targets[c] * torch.log(torch.exp(scores[c]) / torch.exp(scores[query == query[c]]).sum())
            for c in range(9)
        ]
        return torch.stack(parts)

    assert_same(lambda scores: contrastive.listwise(scores, targets, query), plain, draws(seed, 9))


def test_listwise_takes_scores_of_any_size() -> None:
    scores = torch.tensor([1000.0, 0.0, -1000.0], requires_grad=True)
    loss = contrastive.listwise(scores, torch.tensor([0.0, 1.0, 0.0]), torch.zeros(3, dtype=torch.long))
    assert loss.sum().item() == 1000.0
    (gradient,) = torch.autograd.grad(loss.sum(), scores)
    assert gradient.tolist() == [1.0, -1.0, 0.0]


@SEEDS
def test_pointwise_is_weighed_binary_cross_entropy(seed: int) -> None:
    targets = torch.rand(8, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)

    def plain(scores: Tensor) -> Tensor:
        chance = torch.sigmoid(scores)
        return -3 * targets * torch.log(chance) - (1 - targets) * torch.log(1 - chance)

    assert_same(lambda scores: contrastive.pointwise(scores, targets, 3.0), plain, draws(seed, 8))


def test_no_gradient_is_nan_where_a_query_has_no_negative() -> None:
    scores = draws(0, 2, 3)
    present = torch.tensor([[True, False, False], [True, True, False]])
    teacher = torch.zeros(2, 3, dtype=torch.float64)
    for loss in (
        contrastive.triplet_margin(scores, present, 0.2),
        contrastive.margin_mse(scores, teacher, present),
        contrastive.kl_divergence(scores, teacher, present),
    ):
        assert float(loss[0].detach()) == 0.0
        (gradient,) = torch.autograd.grad(loss.sum(), scores)
        assert gradient.isfinite().all()
        assert (gradient[0] == 0).all()
