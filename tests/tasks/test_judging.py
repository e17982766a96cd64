"""Rows that judge: a score of some of them is the metric's, and no threshold is chosen by its own rows."""

import time
from copy import copy

import numpy as np
import pytest
from small_tasks import WORDS, examples_of, make_task, split_of

from bertsmith.metrics import thresholds
from bertsmith.tasks.evaluating.evaluation import Evaluation, standard_error
from bertsmith.tasks.examples.encoding import EncodedExample
from bertsmith.tasks.examples.held_out import folds_of
from bertsmith.tasks.examples.text_task import TextExample
from bertsmith.tasks.finetuning import EncodedExamples
from bertsmith.tasks.multi_label import MultiLabel, MultiLabelSettings
from bertsmith.tasks.question_answering import AnswerSettings, QuestionAnswering
from bertsmith.tasks.tagging import TaggedExample, Tagging, TaggingSettings
from bertsmith.text.labelled.squad import SquadQuestion
from bertsmith.text.tokens.tokenizer import Tokenizer
from bertsmith.training.finetuning.choosing import measure_gain

ENTITIES, WORD_CLASSES = ("O", "B-PER", "I-PER", "B-LOC"), ("NOUN", "VERB", "X")


def tagged(tags: tuple[str, ...], count: int, seed: int) -> list[tuple[str, ...]]:
    draw = np.random.default_rng(seed)
    return [tuple(map(str, draw.choice(tags, draw.integers(1, 9)))) for _ in range(count)]


@pytest.mark.parametrize("tags", [ENTITIES, WORD_CLASSES])
def test_sentences_drawn_again_have_the_tagging_metric(tags: tuple[str, ...]) -> None:
    task, gold = Tagging(TaggingSettings()), tagged(tags, 30, 0)
    examples = [TaggedExample(each, each, "rows") for each in gold]
    task.fit(examples)
    draw = np.random.default_rng(1)
    said = [{"tags": [str(draw.choice(task.labels)) for _ in each]} for each in gold]
    score = task.scorer(said, examples)
    for _ in range(20):
        rows = draw.integers(0, 30, draw.integers(1, 30))
        some = [said[row] for row in rows], [examples[row] for row in rows]
        assert score(rows) == pytest.approx(task.metrics(*some)[task.main_metric], abs=1e-12)


@pytest.mark.parametrize("name", ["classification", "multi-label", "regression"])
def test_texts_drawn_again_have_the_metric(name: str) -> None:
    task = make_task(name)
    examples = examples_of(task, WORDS, 30)
    others = [examples[(place * 7 + 1) % 30].label for place in range(30)]
    key = {"classification": "label", "multi-label": "labels", "regression": "score"}[name]
    said, draw = [{key: other} for other in others], np.random.default_rng(0)
    score = task.scorer(said, examples)
    for _ in range(20):
        rows = draw.integers(0, 30, draw.integers(2, 30))
        some = [said[row] for row in rows], [examples[row] for row in rows]
        assert score(rows) == pytest.approx(task.metrics(*some)[task.main_metric], abs=1e-12)


def test_a_bootstrap_over_tagged_sentences_costs_a_few_looks_at_them() -> None:
    """It scored all sentences 400 times: for 1,000 of them a minute, each time methods were compared."""
    gold, task = tagged(ENTITIES, 400, 0), Tagging(TaggingSettings())
    examples = [TaggedExample(each, each, "rows") for each in gold]
    task.fit(examples)
    said = [{"tags": each[::-1]} for each in gold]
    begun = time.perf_counter()
    task.metrics(said, examples)
    once = time.perf_counter() - begun
    begun = time.perf_counter()
    measure_gain(task, said, said, examples)
    assert time.perf_counter() - begun < 60 * once
    split = EncodedExamples(examples, [EncodedExample((), None)] * len(examples))
    evaluation = Evaluation(task.metrics(said, examples), {}, said, split)
    begun = time.perf_counter()
    assert standard_error(task, evaluation, []) is not None
    assert time.perf_counter() - begun < 60 * once


def judged_at_random(rows: int = 60, rare: int = 2) -> tuple[MultiLabel, list[TextExample], list[np.ndarray]]:
    """Outputs that know nothing of the labels, of which there are so few each."""
    draw = np.random.default_rng(0)
    examples = [TextExample(f"text {n}", None, (f"label {n // rare}",), "rows") for n in range(rows)]
    task = MultiLabel(MultiLabelSettings())
    task.fit(examples)
    return task, examples, list(draw.normal(size=(rows, len(task.labels))).astype(np.float32))


def test_thresholds_are_chosen_by_other_rows_than_they_are_judged_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chosen by the rows themselves they make a score of outputs that know nothing, and more so where each
    label chooses alone.
    """
    monkeypatch.setattr(thresholds, "_FEW_TEXTS", 1e-9)
    task, examples, outputs = judged_at_random()
    encoded = [EncodedExample((), task.target(example.label)) for example in examples]
    folds = folds_of(task, examples, 5)
    honest = task.decode_by_folds(outputs, examples, encoded, folds)
    task.calibrate(outputs, examples, encoded)
    again = task.decode_by_folds(outputs, examples, encoded, folds)
    flattered = task.decode(outputs, examples, encoded)
    assert [each["labels"] for each in honest] == [each["labels"] for each in again]
    assert [each["probabilities"] for each in again] == [each["probabilities"] for each in flattered]
    assert task.metrics(flattered, examples)["micro_f1"] > 0.1
    assert task.metrics(honest, examples)["micro_f1"] < 0.08


def test_other_labels_on_a_fold_change_nothing_of_what_is_said_of_it() -> None:
    task, examples, outputs = judged_at_random(rare=6)
    folds, said = folds_of(task, examples, 5), []
    for shift in (0, 1):
        labels = [(n + shift * (fold == 0)) % 10 for n, fold in enumerate(folds.tolist())]
        encoded = [EncodedExample((), task.target((f"label {label}",))) for label in labels]
        found = task.decode_by_folds(outputs, examples, encoded, folds)
        said.append([each["labels"] for each, fold in zip(found, folds.tolist(), strict=True) if fold == 0])
    assert said[0] == said[1] and any(said[0])


def test_one_fold_alone_is_judged_by_no_threshold() -> None:
    task, examples, outputs = judged_at_random()
    encoded = [EncodedExample((), task.target(example.label)) for example in examples]
    found = task.decode_by_folds(outputs, examples, encoded, np.zeros(60, np.int64))
    assert found == task.decode(outputs, examples, encoded)


def test_no_answer_is_chosen_by_other_questions_than_it_is_judged_on(tokenizer: Tokenizer) -> None:
    """Of odds that know nothing a threshold makes a score where the questions themselves choose it."""
    task, draw = QuestionAnswering(AnswerSettings(max_length=24)), np.random.default_rng(3)
    examples = [
        SquadQuestion(str(n), f"bano {n}", "bano delo firu guma", (("firu", 10),) if n % 2 else (), not n % 2)
        for n in range(30)
    ]
    encoded, outputs = split_of(task, examples, tokenizer).encoded, []
    for chance in draw.normal(size=len(examples)):
        part = np.zeros((5, 2), np.float32)
        part[3], part[0] = 2.0, 3.0 + chance
        outputs.append(part)
    folds = np.arange(len(examples)) // 2 % 5
    honest = task.decode_by_folds(outputs, examples, encoded, folds)
    task.calibrate(outputs, examples, encoded)
    assert task.decode_by_folds(outputs, examples, encoded, folds) == honest
    flattered = task.decode(outputs, examples, encoded)
    assert task.metrics(flattered, examples)["f1"] > task.metrics(honest, examples)["f1"] + 0.05
    for number in range(5):
        chosen = copy(task)
        others = [row for row, fold in enumerate(folds.tolist()) if fold != number]
        chosen.calibrate(*([values[row] for row in others] for values in (outputs, examples, encoded)))
        own = [row for row, fold in enumerate(folds.tolist()) if fold == number]
        found = chosen.decode(*([values[row] for row in own] for values in (outputs, examples, encoded)))
        assert found == [honest[row] for row in own]
