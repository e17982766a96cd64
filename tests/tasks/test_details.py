"""What tasks say of their predictions beside the metrics, held against the outputs it is told from."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertsmith.metrics.calibration import probabilities_of
from bertsmith.metrics.entities import entity_scores
from bertsmith.tasks.evaluating.error_analysis import (
    class_errors,
    label_set_errors,
    number_errors,
    span_errors,
    tag_errors,
    without_temperature,
)

WORDS = [("Ann", "saw", "New", "York", "."), ("Paris", "slept")]
GOLD = [["B-PER", "O", "B-LOC", "I-LOC", "O"], ["B-PER", "O"]]
GIVEN = [["B-PER", "O", "B-LOC", "I-LOC", "O"], ["B-LOC", "O"]]
SURE = [[0.9, 0.8, 0.7, 0.6, 0.99], [0.55, 0.95]]


@settings(max_examples=50, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    temperature=st.floats(0.5, 5),
    classes=st.integers(2, 6),
    multi_label=st.booleans(),
)
def test_a_temperature_is_taken_back_to_what_a_diagram_shows(
    seed: int, temperature: float, classes: int, multi_label: bool
) -> None:
    logits = np.random.default_rng(seed).normal(0, 1.5, (8, classes))
    calibrated = probabilities_of(logits, temperature, multi_label=multi_label)
    found = without_temperature(calibrated, temperature, multi_label=multi_label)
    np.testing.assert_allclose(found, probabilities_of(logits, multi_label=multi_label), atol=2e-3)


def test_a_certain_answer_stays_certain_when_its_temperature_is_taken_back() -> None:
    np.testing.assert_allclose(without_temperature(np.array([[1.0, 0.0]]), 2.0), [[1, 0]], atol=1e-6)


def test_classes_are_told_by_example_and_by_class() -> None:
    found = class_errors(["a", "b"], ["a", "a", "b"], ["a", "b", "b"], [0.9, 0.8, 0.7])
    assert [(answer.gold, answer.given, answer.score, answer.confidence) for answer in found.answers] == [
        ("a", "a", 1, 0.9),
        ("a", "b", 0, 0.8),
        ("b", "b", 1, 0.7),
    ]
    assert found.confusion is not None and found.calibration is not None
    assert found.confusion.counts.tolist() == [[1, 1], [0, 1]]
    assert [(each.label, each.precision, each.recall) for each in found.per_class] == [
        ("a", 1, 0.5),
        ("b", 0.5, 1),
    ]
    assert found.calibration.correct.tolist() == [True, False, True]
    assert found.calibration.before is None


def test_sets_of_labels_are_as_good_as_their_f1_and_as_sure_as_all_of_their_labels_together() -> None:
    probabilities = np.array([[0.9, 0.2, 0.6], [0.1, 0.2, 0.3]])
    found = label_set_errors(["x", "y", "z"], [["x", "new"], []], [["x", "z"], []], probabilities)
    first, second = found.answers
    assert (first.gold, first.given, first.score) == ("new, x", "x, z", 0.5)
    assert first.confidence == pytest.approx(0.9 * 0.8 * 0.6)
    assert (second.gold, second.given, second.score) == ("nothing", "nothing", 1)
    assert found.calibration is not None
    assert found.calibration.correct.tolist() == [True, False, False, False, False, False]


def test_a_number_is_the_worse_the_further_off_it_is() -> None:
    found = number_errors([1.0, 2.5, 4.0], [1.0, 3.0, -1.0])
    assert [answer.score for answer in found.answers] == [1, 0.5, -4]
    assert found.numbers is not None
    assert found.numbers[1].tolist() == [1, 3, -1]


def test_a_sentence_is_right_as_a_whole_and_names_only_what_differs() -> None:
    right, wrong = tag_errors(WORDS, GOLD, GIVEN, SURE, entity_scores(GOLD, GIVEN)).answers
    assert (right.score, right.given, right.confidence) == (1, "nothing", 0.6)
    assert (wrong.score, wrong.gold, wrong.given) == (0, "Paris [PER]", "Paris [LOC]")


def test_entities_with_other_ends_differ_and_equal_ones_are_not_named() -> None:
    gold = [["B-PER", "I-PER", "B-PER", "O", "B-LOC"]]
    given_tags = [["B-PER", "O", "B-PER", "B-PER", "O"]]
    scores = entity_scores(gold, given_tags)
    (answer,) = tag_errors([tuple("abcde")], gold, given_tags, [[1.0] * 5], scores).answers
    assert answer.gold == "a b [PER]; e [LOC]"
    assert answer.given == "a [PER]; d [PER]"


def test_entities_are_confused_by_label_and_counted_as_wholes() -> None:
    found = tag_errors(WORDS, GOLD, GIVEN, SURE, entity_scores(GOLD, GIVEN))
    assert found.confusion is not None and found.calibration is not None
    assert found.confusion.labels == ("O", "LOC", "PER")
    assert found.confusion.counts.tolist() == [[3, 0, 0], [0, 2, 0], [0, 1, 1]]
    assert {each.label: (each.precision, each.recall, each.support) for each in found.per_class} == {
        "LOC": (0.5, 1, 1),
        "PER": (1, 0.5, 2),
    }
    assert found.calibration.confidence.tolist() == [0.9, 0.8, 0.7, 0.6, 0.99, 0.55, 0.95]
    assert found.calibration.correct.tolist() == [True] * 5 + [False, True]


def test_tags_that_name_no_entities_are_classes_as_they_are() -> None:
    found = tag_errors([("dogs", "bark")], [["NNS", "VB"]], [["NNS", "NN"]], [[0.9, 0.4]], None)
    assert found.confusion is not None
    assert found.confusion.labels == ("NN", "NNS", "VB")
    assert found.answers[0].given == "bark [NN]"


def test_sentences_without_words_are_no_error() -> None:
    assert tag_errors([()], [[]], [[]], [[]], None).answers[0].score == 1


def test_an_answer_that_was_not_given_has_no_confidence_to_judge() -> None:
    found = span_errors(
        [["a dog", "a dog", "dog"], []],
        ["dog", ""],
        [0.7, None],
        np.array([1.0, 1.0]),
        np.array([1.0, 1.0]),
    )
    assert [(answer.gold, answer.given) for answer in found.answers] == [
        ("a dog / dog", "dog"),
        ("no answer", "no answer"),
    ]
    assert found.calibration is not None
    assert found.calibration.confidence.tolist() == [0.7]
    assert span_errors([[]], [""], [None], np.ones(1), np.ones(1)).calibration is None
