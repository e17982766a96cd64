"""Pairs of one label as a lesson: the loss by its definition, and batches where texts meet their like."""

import math

import numpy as np
import pytest
import torch
from small_tasks import WORDS, examples_of, make_task, random_model, split_of
from torch.nn import functional as F

from bertsmith.tasks import auxiliary_tasks as class_contrast
from bertsmith.tasks.auxiliary_tasks import ClassContrast
from bertsmith.tasks.task_model import outputs_of
from bertsmith.text.tokens.tokenizer import Tokenizer


def contrast(task: str = "classification") -> ClassContrast:
    return ClassContrast(make_task(task, pooling="mean"))


def test_the_loss_is_equation_2_of_khosla() -> None:
    torch.manual_seed(0)
    vectors, labels = F.normalize(torch.randn(7, 5), dim=1), [0, 1, 0, 2, 1, 0, 3]
    expected = []
    for one, label in enumerate(labels):
        others = [n for n in range(7) if n != one]
        near = {n: math.exp(float(vectors[one] @ vectors[n]) / class_contrast._TEMPERATURE) for n in others}
        alike = [n for n in others if labels[n] == label]
        terms = [-math.log(near[n] / sum(near.values())) for n in alike]
        expected.append(sum(terms) / len(terms) if terms else 0.0)
    found = contrast().losses(vectors, labels)
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-5)
    assert float(contrast().loss(vectors, labels)) == pytest.approx(sum(expected), rel=1e-5)


def test_its_gradient_is_finite_where_no_text_has_its_like() -> None:
    vectors = F.normalize(torch.randn(3, 4), dim=1).requires_grad_()
    contrast().loss(vectors, [0, 1, 2]).backward()
    assert vectors.grad is not None
    assert vectors.grad.isfinite().all()


@pytest.mark.parametrize(("labels", "each"), [(2, 40), (77, 8), (5, 3)])
def test_an_epoch_has_every_text_once_and_texts_meet_their_like(labels: int, each: int) -> None:
    targets = [label for label in range(labels) for _ in range(each)]
    order = np.random.default_rng(0).permutation(len(targets))
    batches = contrast().make_batches(targets, order, 32)
    assert sorted(np.concatenate(batches).tolist()) == list(range(len(targets)))
    assert max(map(len, batches)) <= 32
    met = 0
    for batch in batches:
        of_batch = [targets[row] for row in batch.tolist()]
        met += sum(of_batch.count(label) > 1 for label in of_batch)
    assert met >= 0.85 * len(targets)
    again = contrast().make_batches(targets, np.random.default_rng(1).permutation(len(targets)), 32)
    assert [each.tolist() for each in batches] != [each.tolist() for each in again]


def test_outputs_are_what_the_linear_head_reads(tokenizer: Tokenizer) -> None:
    task = make_task("classification", pooling="mean")
    train = split_of(task, examples_of(task, WORDS, 12), tokenizer)
    model = random_model(task, tokenizer)
    head = model.head
    logits = np.stack(outputs_of(model, train.encoded))
    model.head = ClassContrast(task).head(model.config)
    vectors = np.stack(outputs_of(model, train.encoded))
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, rtol=1e-5)
    weight, bias = head.out.weight.detach().numpy(), head.out.bias.detach().numpy()  # type: ignore[union-attr, operator]
    np.testing.assert_allclose(vectors @ weight.T + bias, logits, atol=1e-5)


def test_of_several_labels_texts_are_alike_by_the_share_that_both_have() -> None:
    vectors = F.normalize(torch.randn(4, 5), dim=1)
    targets = [np.array(row, np.bool_) for row in ([1, 1, 0], [1, 0, 0], [0, 0, 1], [0, 0, 0])]
    found = contrast("multi-label").losses(vectors, targets)
    others = [float(vectors[0] @ vectors[n]) / class_contrast._TEMPERATURE for n in (1, 2, 3)]
    expected = float(torch.logsumexp(torch.tensor(others), 0)) - others[0]
    assert float(found[0]) == pytest.approx(expected, rel=1e-4, abs=1e-5)
    assert found[2:].tolist() == [0, 0]  # what shares no label, and what has none
    np.testing.assert_allclose(class_contrast._label_overlap(targets)[0], [0, 0.5, 0, 0])
    one_each = [np.eye(3, dtype=np.bool_)[label] for label in (0, 2, 2, 1)]
    np.testing.assert_array_equal(
        class_contrast._label_overlap(one_each), class_contrast._label_overlap([0, 2, 2, 1])
    )


def test_a_text_of_several_labels_is_with_those_of_its_rarest() -> None:
    targets = [np.array([True, number % 10 == 0, number % 2 == 0]) for number in range(200)]
    batches = contrast("multi-label").make_batches(targets, np.random.default_rng(0).permutation(200), 20)
    assert sorted(np.concatenate(batches).tolist()) == list(range(200))
    rare = [sum(targets[row][1] for row in batch.tolist()) for batch in batches]
    assert all(count != 1 for count in rare)


@pytest.mark.parametrize(
    ("rows", "sizes"), [(100, [32, 32, 18, 18]), (33, [17, 16]), (64, [32, 32]), (20, [20])]
)
def test_no_batch_is_a_few_that_are_left_over(rows: int, sizes: list[int]) -> None:
    batches = contrast().make_batches([number % 2 for number in range(rows)], np.arange(rows), 32)
    assert [len(batch) for batch in batches] == sizes
    assert sorted(np.concatenate(batches).tolist()) == list(range(rows))
