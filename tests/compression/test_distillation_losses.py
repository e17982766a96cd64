"""How far a student is from its teacher, by plain loops over examples."""

import math

import numpy as np
import pytest
import torch

from bertsmith.tasks.classification import Classification
from bertsmith.tasks.losses.distillation import (
    ClassLoss,
    CosineLoss,
    DistillationLoss,
    DistillationTarget,
    LabelLoss,
    SpanLoss,
    VectorLoss,
    WordLoss,
)
from bertsmith.tasks.registry import find_task
from bertsmith.tasks.task import Head

T = 2.0


def numbers(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, 2, shape).astype(np.float32)


def softmax(values: np.ndarray) -> np.ndarray:
    found = np.exp(values.astype(np.float64) - values.max())
    return found / found.sum()


def divergence(ours: np.ndarray, theirs: np.ndarray, temperature: float) -> float:
    """Of one example, as Hinton et al. write it."""
    p, q = softmax(theirs / temperature), softmax(ours / temperature)
    return temperature**2 * sum(a * math.log(a / b) for a, b in zip(p, q, strict=True))


def taught(answers: list[np.ndarray], rows: list[tuple[int, ...]] | None = None) -> list[DistillationTarget]:
    rows = rows or [(1,)] * len(answers)
    return [DistillationTarget(None, answer, own, False) for answer, own in zip(answers, rows, strict=True)]


def test_classes_are_taught_by_their_softened_probabilities() -> None:
    soft_loss, ours, theirs = ClassLoss(T), numbers(5, 3), numbers(5, 3, seed=1)
    answers = [soft_loss.answer(each) for each in theirs]
    found = soft_loss.losses(torch.from_numpy(ours), taught(answers))
    assert found.tolist() == pytest.approx([divergence(a, b, T) for a, b in zip(ours, theirs, strict=True)])


def test_labels_are_taught_each_by_itself() -> None:
    soft_loss, ours, theirs = LabelLoss(T), numbers(4, 3), numbers(4, 3, seed=1)
    found = soft_loss.losses(torch.from_numpy(ours), taught([soft_loss.answer(each) for each in theirs]))
    expected = [
        np.mean([divergence(np.array([a, 0.0]), np.array([b, 0.0]), T) for a, b in zip(*pair, strict=True)])
        for pair in zip(ours, theirs, strict=True)
    ]
    assert found.tolist() == pytest.approx(expected, rel=1e-5)


def test_words_are_taught_one_by_one_and_counted() -> None:
    soft_loss, lengths = WordLoss(T), [3, 0, 2]
    ours, theirs = numbers(5, 4), numbers(5, 4, seed=1)
    answers = np.split(np.stack([soft_loss.answer(each) for each in theirs]), np.cumsum(lengths)[:-1])
    targets = taught(answers, [(length,) for length in lengths])
    found = soft_loss.losses(torch.from_numpy(ours), targets)
    each = [divergence(a, b, T) for a, b in zip(ours, theirs, strict=True)]
    assert found.tolist() == pytest.approx([sum(each[:3]), 0.0, sum(each[3:])])
    assert soft_loss.count(targets) == 5


def test_starts_and_ends_are_taught_over_the_rows_of_a_window() -> None:
    soft_loss, rows = SpanLoss(T), [(3, 2), (4,)]
    ours, theirs = numbers(9, 2), numbers(9, 2, seed=1)
    targets = taught(np.split(theirs, [5]), rows)
    found = soft_loss.losses(torch.from_numpy(ours), targets)
    windows = [slice(0, 3), slice(3, 5), slice(5, 9)]
    each = [
        sum(divergence(ours[window, side], theirs[window, side], T) for side in (0, 1)) / 2
        for window in windows
    ]
    assert found.tolist() == pytest.approx([each[0] + each[1], each[2]], rel=1e-5)
    assert soft_loss.count(targets) == 3


def test_numbers_are_taught_in_deviations_of_the_teacher() -> None:
    soft_loss, ours, theirs = DistillationLoss(), numbers(6, 1), 50 + 10 * numbers(6, 1, seed=1)
    soft_loss.begin(list(theirs))
    found = soft_loss.losses(torch.from_numpy(ours), taught(list(theirs)))
    expected = ((ours - theirs).squeeze(1) / theirs.std()) ** 2
    assert found.tolist() == pytest.approx(expected.tolist(), rel=1e-5)


def test_vectors_are_taught_by_how_a_query_stands_to_the_documents_of_the_batch() -> None:
    """The sizes differ, and so does how many documents the examples have."""
    soft_loss, scale = VectorLoss(5.0), 5.0
    ours, answers = numbers(2, 3, 4) / 4, [numbers(3, 6, seed=1) / 6, numbers(2, 6, seed=2) / 6]
    found = soft_loss.losses(torch.from_numpy(ours), taught(answers))
    our_documents = np.concatenate([ours[0, 1:], ours[1, 1:2]])
    their_documents = np.concatenate([answers[0][1:], answers[1][1:]])
    expected = [
        divergence(scale * our_documents @ ours[n, 0], scale * their_documents @ answers[n][0], 1.0)
        for n in (0, 1)
    ]
    assert found.tolist() == pytest.approx(expected, rel=1e-4)


def test_cosines_are_taught_between_all_texts_of_the_batch() -> None:
    """The student's vectors may have another size."""
    ours, theirs = numbers(3, 2, 4) / 4, numbers(3, 2, 6, seed=1) / 6
    found = CosineLoss().losses(torch.from_numpy(ours), taught(list(theirs)))

    def square(n: int, side: int, m: int, other: int) -> float:
        return float(ours[n, side] @ ours[m, other] - theirs[n, side] @ theirs[m, other]) ** 2

    sides = [(side, other) for side in (0, 1) for other in (0, 1)]
    expected = [
        square(n, 0, n, 1)
        + np.mean([square(n, side, m, other) for m in {0, 1, 2} - {n} for side, other in sides])
        for n in range(3)
    ]
    assert found.tolist() == pytest.approx(expected, rel=1e-5)


def test_one_pair_alone_is_taught_its_own_cosine() -> None:
    ours, theirs = numbers(1, 2, 4) / 4, numbers(1, 2, 4, seed=1) / 4
    found = CosineLoss().losses(torch.from_numpy(ours), taught(list(theirs)))
    assert found.item() == pytest.approx(
        (ours[0, 0] @ ours[0, 1] - theirs[0, 0] @ theirs[0, 1]) ** 2, rel=1e-5
    )


@pytest.mark.parametrize("soft_loss", [ClassLoss(T), LabelLoss(T), DistillationLoss(deviation=1.0)])
def test_who_answers_as_the_teacher_has_nothing_to_learn(soft_loss: DistillationLoss) -> None:
    theirs = numbers(4, 3)
    outputs = torch.from_numpy(theirs.copy()).requires_grad_()
    soft_loss.losses(outputs, taught([soft_loss.answer(each) for each in theirs])).sum().backward()
    assert outputs.grad is not None
    assert outputs.grad.abs().max() < 1e-6


def test_several_teachers_teach_the_mean_of_their_probabilities() -> None:
    first, second = numbers(3), numbers(3, seed=1)
    soft_loss = ClassLoss(1.0)
    found = soft_loss.together([soft_loss.answer(first), soft_loss.answer(second)])
    assert softmax(found) == pytest.approx((softmax(first) + softmax(second)) / 2, abs=1e-6)


def test_several_teachers_of_labels_teach_the_mean_of_each() -> None:
    first, second = numbers(3), numbers(3, seed=1)
    found = 1 / (1 + np.exp(-LabelLoss(1.0).together([first, second])))
    assert found == pytest.approx((1 / (1 + np.exp(-first)) + 1 / (1 + np.exp(-second))) / 2, abs=1e-6)


@pytest.mark.parametrize("soft_loss", [VectorLoss(1.0), CosineLoss()])
def test_several_teachers_of_vectors_teach_the_mean_of_their_similarities(
    soft_loss: DistillationLoss,
) -> None:
    first, second = numbers(3, 4), numbers(3, 6, seed=1)
    found = soft_loss.together([first, second])
    expected = (first[0] @ first[1:].T + second[0] @ second[1:].T) / 2
    assert found[0] @ found[1:].T == pytest.approx(expected, rel=1e-4)


def test_numbers_of_rows_are_taught_one_by_one_and_counted() -> None:
    """A head of one's own may answer for each word: examples then have as many answers as words."""

    class Own(find_task("regression")):  # type: ignore[misc]
        name = "own"

    head = Head()
    head.per_row = True  # type: ignore[misc]
    soft_loss, lengths = Own(Own.Settings()).distillation_loss(T, head), [3, 1, 2]
    ours, theirs = numbers(6, 2), numbers(6, 2, seed=1)
    answers = np.split(theirs, np.cumsum(lengths)[:-1])
    soft_loss.begin(answers)
    targets = taught(answers, [(length,) for length in lengths])
    found = soft_loss.losses(torch.from_numpy(ours), targets)
    each = (((ours - theirs) / theirs.std()) ** 2).mean(1)
    assert found.tolist() == pytest.approx([sum(each[:3]), each[3], sum(each[4:])], rel=1e-5)
    assert soft_loss.count(targets) == 6


def test_a_task_of_ones_own_is_taught_as_its_parent_or_by_its_numbers() -> None:
    class Own(Classification):
        name = "own"

    kind = find_task("reranking")
    assert isinstance(Own(Own.Settings()).distillation_loss(T, Head()), ClassLoss)
    assert type(kind(kind.Settings()).distillation_loss(T, Head())) is DistillationLoss
