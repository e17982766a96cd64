"""Answers, right to the character through windows, targets and decoding; no answer by a threshold."""

import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_tasks import joined_by, make_task, random_model, split_of

from bertsmith.errors import ModelError
from bertsmith.tasks.question_answering import AnswerSettings, QuestionAnswering
from bertsmith.tasks.task_model import outputs_of
from bertsmith.text.labelled.squad import SquadQuestion
from bertsmith.text.tokens.tokenizer import Tokenizer

PARTS = ["bano", "Délo", "FIRUs", "🙂", "\t", " ", "  ", "\n", "é", "ß", "x7,5%", "(guma)", "中文", "\u200b"]


def sure_outputs(encoded: Any) -> Any:
    """Outputs that give the target of each window ten more than all else, [CLS] included."""
    rows = []
    for size, start, end in encoded.target:
        part = np.zeros((size, 2), np.float32)
        part[start, 0] = part[end, 1] = 10.0
        rows.append(part)
    return np.concatenate(rows)


@settings(max_examples=80, deadline=None)
@given(
    parts=st.lists(st.sampled_from(PARTS), min_size=3, max_size=60),
    draw=st.data(),
    stride=st.none() | st.integers(0, 12),
)
def test_the_answer_comes_back_to_the_character(
    parts: list[str], draw: st.DataObject, stride: int | None, tokenizer: Tokenizer
) -> None:
    """Answers of whole words: text → pieces → windows → target → outputs → text."""
    passage = " ".join(parts)
    words = [match.span() for match in re.finditer("bano|guma|FIRUs|🙂", passage)]
    if not words:
        return
    place = draw.draw(st.integers(0, len(words) - 1))
    start, end = words[place][0], words[min(place + draw.draw(st.integers(0, 1)), len(words) - 1)][1]
    task = QuestionAnswering(AnswerSettings(max_length=24, stride=stride, longest_answer=30))
    example = SquadQuestion("1", "bano delo", passage, ((passage[start:end], start),))
    (encoded,) = split_of(task, [example], tokenizer).encoded
    assert all(len(window.token_ids) <= 24 for window in encoded.windows)
    (found,) = task.decode([sure_outputs(encoded)], [example], [encoded])
    seen = any(
        first and shown.owned[first - 1]
        for (_, first, _), shown in zip(encoded.target, encoded.decoding, strict=True)
    )
    if seen:
        assert (found["start"], found["end"], found["answer"]) == (start, end, passage[start:end])
    else:  # cut off without a stride, or longer than what windows share
        assert stride is None or len(tokenizer.encode(passage[start:end]).ids) > max(1, stride // 2)


@pytest.mark.parametrize("stride", [4, 12])
def test_an_answer_of_one_word_is_seen_wherever_it_stands(stride: int, tokenizer: Tokenizer) -> None:
    words = ["delo"] * 50
    for place in range(50):
        words[place] = "guma"
        passage = " ".join(words)
        words[place] = "delo"
        task = QuestionAnswering(AnswerSettings(max_length=24, stride=stride))
        example = SquadQuestion("1", "bano", passage, (("guma", passage.index("guma")),))
        (encoded,) = split_of(task, [example], tokenizer).encoded
        (found,) = task.decode([sure_outputs(encoded)], [example], [encoded])
        assert (found["answer"], found["start"]) == ("guma", 5 * place)
        assert found["null_odds"] < 0


@pytest.mark.parametrize("behind", ["[SEP]", "", "[SEP] [PAD]"])
def test_rows_read_are_cls_and_the_passage(behind: str, tokenizer: Tokenizer) -> None:
    tokenizer = joined_by(tokenizer, "[CLS]", "[SEP]", behind)
    task = QuestionAnswering(AnswerSettings(max_length=24, stride=3))
    passage = " ".join(["bano", "delo", "firu"] * 12)
    (encoded,) = split_of(task, [task.example(("guma guma", passage))], tokenizer).encoded
    assert len(encoded.windows) > 1
    question = tokenizer.encode("guma guma").ids
    for window, shown in zip(encoded.windows, encoded.decoding, strict=True):
        ids = window.token_ids[window.rows].tolist()
        assert ids[0] == tokenizer.cls_id
        texts = [passage[start:end] for start, end in shown.offsets]
        assert [tokenizer.encode(text).ids for text in texts] == [[number] for number in ids[1:]]
        assert window.token_ids[1:3].tolist() == question
    assert sum(int(shown.owned.sum()) for shown in encoded.decoding) == 36
    assert encoded.target is None


def test_a_window_without_the_answer_points_at_cls(tokenizer: Tokenizer) -> None:
    task = QuestionAnswering(AnswerSettings(max_length=24, stride=0))
    passage = " ".join(["delo"] * 45 + ["guma"])
    example = SquadQuestion("1", "bano", passage, (("guma", passage.index("guma")),))
    (encoded,) = split_of(task, [example], tokenizer).encoded
    assert all(target[1:] == (0, 0) for target in encoded.target[:-1])
    rows, start, end = encoded.target[-1]
    assert rows == len(encoded.windows[-1].rows)
    assert (start, end) == (rows - 1, rows - 1)


def test_no_answer_by_the_threshold_that_dev_chose(tokenizer: Tokenizer) -> None:
    task = make_task("question-answering", max_length=24)
    passage = "bano delo firu guma"
    examples = [SquadQuestion(str(n), "bano", passage, (("firu", 10),)) for n in range(10)]
    examples += [SquadQuestion(str(n), "bano", passage, (), impossible=True) for n in range(10, 20)]
    encoded = split_of(task, examples, tokenizer).encoded
    outputs = []
    for number, _ in enumerate(examples):  # always "firu", but [CLS] scores 3 + or - 1
        part = np.zeros((5, 2), np.float32)
        part[3] = 2.0
        part[0] = 3.0 + (-0.5 if number < 10 else 0.5)
        outputs.append(part)
    assert all(each["answer"] == "firu" for each in task.decode(outputs, examples, encoded))
    figures = task.calibrate(outputs, examples, encoded)
    assert 1.0 <= figures["null_threshold"] < 3.0
    found = task.decode(outputs, examples, encoded)
    assert [each["answer"] for each in found] == ["firu"] * 10 + [""] * 10
    metrics = task.metrics(found, examples)
    assert (metrics["exact_match"], metrics["f1_unanswerable"]) == (1.0, 1.0)
    assert QuestionAnswering.from_state(task.state(), "here").decode(outputs, examples, encoded) == found
    task.calibrate(outputs[:10], examples[:10], encoded[:10])
    assert task.threshold is None, "without unanswerable questions every question has an answer"


def test_predictions_of_a_random_model_are_pieces_of_the_passage(tokenizer: Tokenizer) -> None:
    task = make_task("question-answering", max_length=24, stride=5, longest_answer=3)
    model = random_model(task, tokenizer)
    passage = "Bano  délo\tFIRUs 🙂 guma kano " * 6
    examples = [task.example((question, passage)) for question in ("bano", "where?", "kano lelo miru")]
    encoded = split_of(task, examples, tokenizer).encoded
    for found in task.decode(outputs_of(model, encoded), examples, encoded):
        assert found["answer"] == passage[found["start"] : found["end"]]
        assert found["answer"].strip()
        assert 0 < found["confidence"] <= 1


def test_a_long_question_is_cut_and_leaves_room_for_the_passage(tokenizer: Tokenizer) -> None:
    long = "bano " * 200
    task = QuestionAnswering(AnswerSettings())
    (encoded,) = split_of(task, [task.example((long, "delo"))], tokenizer).encoded
    assert len(encoded.windows[0].token_ids) == 1 + 64 + 1 + 1 + 1
    for length in (16, 17, 32, 64):
        small = QuestionAnswering(AnswerSettings(max_length=length))
        (encoded,) = split_of(small, [small.example((long, "delo " * 99))], tokenizer).encoded
        sizes = [len(window.token_ids) for window in encoded.windows]
        assert max(sizes) == length
        assert len(sizes) == 24  # of eight pieces, half of which the next has too


def test_an_altered_threshold_is_refused() -> None:
    state = QuestionAnswering(AnswerSettings()).state() | {"threshold": "low"}
    with pytest.raises(ModelError, match="here: threshold: expected a number"):
        QuestionAnswering.from_state(state, "here")
