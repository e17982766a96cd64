"""Answers by words alone: where they come from, and that they are cut from the passage."""

import json
import random
from pathlib import Path

import pytest

from bertsmith.metrics.baselines import lexical_answer, lexical_answers

PASSAGE = (
    "The Normans gave their name to Normandy. They were descended from Norse raiders. "
    "Their identity emerged in 911, and Rollo of Norway led them to the river! Bread costs 3.50 francs."
)


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        ("When did the identity of these people emerge?", "911"),
        ("Who led them to the river?", "Rollo of Norway"),
        ("How much does bread cost?", "3.50"),
        ("What region got its name from the Normans?", "Normandy"),
    ],
)
def test_the_sentence_with_the_rarest_shared_words_answers(question: str, answer: str) -> None:
    start, end = lexical_answer(question, PASSAGE)
    assert PASSAGE[start:end] == answer


def test_without_names_or_numbers_a_run_of_new_words_answers() -> None:
    (answer,) = lexical_answers(
        [("what do cats drink?", "all cats drink warm milk, and then sleep")]
    ).predictions
    assert answer == "warm milk"


def test_a_sentence_with_nothing_new_is_the_answer() -> None:
    assert lexical_answers([("cats sleep", "cats sleep"), ("who?", "")]).predictions == ["cats sleep", ""]


def test_any_text_gets_a_span_of_it() -> None:
    chooser = random.Random(5)
    for _ in range(500):
        passage, question = (
            "".join(chooser.choices("aA bB9.!?\n\té😀'–,$% of The", k=chooser.randrange(40))) for _ in "pq"
        )
        start, end = lexical_answer(question, passage)
        assert 0 <= start <= end <= len(passage)
        assert end > start or not passage.strip()


def test_it_beats_the_published_sliding_window_on_squad(shared_data: Path) -> None:
    """Rajpurkar et al. (2016, table 5) give 13.2 % exact match for one over the parser's constituents."""
    articles = json.loads((shared_data / "squad/dev-v1.1.json").read_text())["data"]
    rows = [
        (question["question"], paragraph["context"], {answer["text"] for answer in question["answers"]})
        for article in articles
        for paragraph in article["paragraphs"]
        for question in paragraph["qas"]
    ][::40]
    answers = lexical_answers([(question, passage) for question, passage, _ in rows]).predictions
    right = sum(answer in gold for answer, (_, _, gold) in zip(answers, rows))
    assert right / len(rows) > 0.132
