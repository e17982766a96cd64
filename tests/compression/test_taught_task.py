"""The loss of examples that have a teacher, a label, or both, against a loop over them one by one."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from distil_rows import tokenizer_of_words

from bertsmith.compression.distilling.tasks.taught_task import TaughtTask, add_teacher_answers
from bertsmith.tasks.finetuning import EncodedExamples, encode_examples
from bertsmith.tasks.losses.distillation import DistillationLoss, DistillationTarget
from bertsmith.tasks.registry import find_task
from bertsmith.tasks.task import Head, Task

WEIGHT = 0.7


def classes() -> Task[Any]:
    kind = find_task("classification")
    return kind(kind.Settings(), ("a", "b", "c"))


def draw(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, 2, shape).astype(np.float32)


def one_by_one(
    task: Task[Any], soft_loss: DistillationLoss, outputs: torch.Tensor, targets: list[DistillationTarget]
) -> list[float]:
    """Each example alone: outputs are split by the rows it has."""
    per_row = outputs.split([sum(each.rows) for each in targets])
    found = []
    for output, target in zip(per_row, targets, strict=True):
        soft = 0.0 if target.answer is None else float(soft_loss.losses(output, [target]))
        hard = 0.0 if target.gold is None else float(task.loss(output, [target.gold]))
        share = 0.0 if target.answer is None else 1.0 if target.gold is None else WEIGHT
        found.append(share * soft + (1 - share) * hard)
    return found


def test_labelled_and_unlabelled_classes_are_mixed_by_weight() -> None:
    task, outputs, answers = classes(), torch.from_numpy(draw(6, 3)), draw(6, 3, seed=1)
    soft_loss = task.distillation_loss(2.0, Head())
    golds = [0, None, 2, None, 1, 1]
    given = [soft_loss.answer(answer) for answer in answers]
    targets = [
        DistillationTarget(gold, answer, (1,), gold is not None)
        for gold, answer in zip(golds, given, strict=True)
    ]
    targets[5] = DistillationTarget(1, None, (1,), True)  # a label is all there is
    taught = TaughtTask(task, soft_loss, WEIGHT)
    assert float(taught.loss(outputs, targets)) == pytest.approx(
        sum(one_by_one(task, soft_loss, outputs, targets)), rel=1e-5
    )
    assert taught.count(targets) == 6


def test_tags_of_some_sentences_are_picked_by_their_words() -> None:
    kind = find_task("tagging")
    task = kind(kind.Settings(), ("O", "B-A", "I-A"))
    soft_loss, sizes = task.distillation_loss(1.5, Head()), [2, 3, 1, 4]
    outputs = torch.from_numpy(draw(10, 3))
    answers = np.split(soft_loss.answer(draw(10, 3, seed=1)), np.cumsum(sizes)[:-1])
    golds = [np.array([0, 1]), None, np.array([2]), None]
    targets = [
        DistillationTarget(gold, answer, (size,), gold is not None)
        for gold, answer, size in zip(golds, answers, sizes, strict=True)
    ]
    taught = TaughtTask(task, soft_loss, WEIGHT)
    taught.bind(task.head(_config()))
    expected = one_by_one(task, soft_loss, outputs, targets)
    assert float(taught.loss(outputs, targets)) == pytest.approx(sum(expected), rel=1e-5)
    assert taught.count(targets) == 10


def test_a_weight_of_one_leaves_the_labels_out() -> None:
    task, soft_loss = classes(), classes().distillation_loss(1.0, Head())
    outputs, answer = torch.from_numpy(draw(1, 3)), soft_loss.answer(draw(3, seed=1))
    taught = TaughtTask(task, soft_loss, 1.0)
    losses = {
        float(taught.loss(outputs, [DistillationTarget(gold, answer, (1,), gold is not None)]))
        for gold in (0, 1, None)
    }
    assert len(losses) == 1


def test_a_listwise_reranker_is_taught_by_its_teacher_alone() -> None:
    kind = find_task("reranking")
    task = kind(kind.Settings(loss="listwise"))
    taught = TaughtTask(task, task.distillation_loss(1.0, Head()), 0.2)
    assert not taught.needs_global_batch
    taught._soft_loss.begin([np.array([1.0]), np.array([3.0])])
    target = DistillationTarget(object(), np.array([3.0], np.float32), (1,), True)
    assert float(taught.loss(torch.tensor([[3.0]]), [target])) == 0.0


def test_examples_keep_their_label_beside_the_answer() -> None:
    task = classes()
    examples = [task.example("bano delo"), task.example("firu")]
    split = encode_examples(task, examples, tokenizer_of_words())
    found = add_teacher_answers(split, [np.zeros(3, np.float32), None])
    assert [each.target.rows for each in found.encoded] == [(1,), (1,)]
    assert [each.target.answer is None for each in found.encoded] == [False, True]
    assert [each.target.gold for each in found.encoded] == [None, None]
    assert not any(each.target.labelled for each in found.encoded)


def test_a_pair_that_nobody_labelled_is_taught_by_the_teacher_alone() -> None:
    """A student that answers as its teacher does has nothing to learn, whichever pairs are right."""
    kind = find_task("retrieval")
    task = kind(kind.Settings())
    pairs = [task.example([query, text]) for query, text in (("bano", "delo firu"), ("guma", "kano lelo"))]
    queries = torch.nn.functional.normalize(torch.from_numpy(draw(2, 4)), dim=-1)
    vectors = torch.stack([queries, queries.flip(0)], 1)  # each is at the other's document
    split = encode_examples(task, pairs, tokenizer_of_words())
    taught = TaughtTask(task, task.distillation_loss(1.0, Head()), 0.2)

    def loss(examples: list[Any]) -> float:
        found = add_teacher_answers(EncodedExamples(examples, split.encoded), list(vectors.numpy()))
        return float(taught.loss(vectors, [each.target for each in found.encoded]))

    assert loss(pairs) == pytest.approx(0.0, abs=1e-5)
    assert loss([replace(pair, labelled=True) for pair in pairs]) > 0.1


def test_weights_are_chosen_by_what_thresholds_make_of_them() -> None:
    """As the finished student will be calibrated: a rare label's probability seldom reaches a half."""
    kind = find_task("multi-label")
    task = kind(kind.Settings(), ("a", "b"))
    examples = [replace(task.example(f"text {n}"), label=("a",) if n % 4 == 0 else ("b",)) for n in range(80)]
    encoded = encode_examples(task, examples, tokenizer_of_words()).encoded
    outputs = [np.array((-1.0, -2.0) if n % 4 == 0 else (-3.0, 2.0), np.float32) for n in range(80)]
    taught = TaughtTask(task, task.distillation_loss(1.0, Head()), 0.5)
    before = taught.metrics(taught.decode(outputs, examples, encoded), examples)["micro_f1"]
    taught.calibrate(outputs, examples, encoded)
    after = taught.metrics(taught.decode(outputs, examples, encoded), examples)["micro_f1"]
    assert before < after == 1.0
    assert task.confidence is None  # the task that others hold


def _config() -> Any:
    from bertsmith.model.config import make_config

    shape = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    return make_config({"vocab_size": 10, "max_position_embeddings": 16} | shape, "test")
