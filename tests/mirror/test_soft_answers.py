"""How sure the teacher was: by probabilities it gave, and by those of its tokens."""

import math
from typing import Any

import pytest

from bertsmith.mirror.call import Completion
from bertsmith.mirror.fields import AnswerShape, Field
from bertsmith.mirror.learning.learned_calls import read_value_shares

SHAPE = AnswerShape(
    fields=(
        Field(keys=("intent",), kind="enum", values=("card", "cash", "transfer")),
        Field(keys=("order", "urgent"), kind="boolean", values=(True, False)),
        Field(keys=("topics",), kind="labels", values=("a", "b")),
    ),
    order=(("intent",), ("order", "urgent"), ("topics",)),
)


def token(text: str, share: float = 1.0, **others: float) -> list[Any]:
    return [text, math.log(share), [[other, math.log(each)] for other, each in others.items()]]


def test_given_probabilities_are_taken_as_they_are() -> None:
    given = {"$.intent": [("card", 0.6), ("cash", 0.2), ("strange", 0.2)], "$.topics": [("a", 1.0)]}
    found = read_value_shares(Completion({}, probabilities=given), SHAPE)
    assert found == {"$.intent": [("card", pytest.approx(0.75)), ("cash", pytest.approx(0.25))]}


def test_probabilities_of_which_most_are_no_value_tell_nothing() -> None:
    given = {"$.intent": [("strange", 0.9), ("card", 0.1)]}
    assert read_value_shares(Completion({}, probabilities=given), SHAPE) == {}


@pytest.mark.parametrize("odd", [None, "none", [1], {}])
def test_tokens_without_a_number_tell_nothing_and_end_no_training(odd: Any) -> None:
    begun = token('{"intent": "')
    for tokens in (
        [begun, ["card", odd, []], token('"}')],
        [begun, ["card", -0.1, [["cash", odd]]], token('"}')],
    ):
        assert read_value_shares(Completion({}, logprobs=tokens), SHAPE) == {}


def test_null_is_told_apart_from_texts_by_the_mark_before_them() -> None:
    """By hand: the token with the quotation mark had 0.6, null 0.4; of what a text goes on with nothing is
    known where null was answered, so that each text has half.
    """
    field = Field(keys=("intent",), kind="enum", values=("card", ""), nullable=True)
    shape = AnswerShape(fields=(field,), order=(("intent",),))
    begun = token('{"intent":')
    named = [begun, token(' "', 0.6, **{" null": 0.4}), token("card"), token('"}')]
    (found,) = read_value_shares(Completion({}, logprobs=named), shape).values()
    assert dict(found) == {"card": pytest.approx(0.6), None: pytest.approx(0.4)}
    for rival, wanted in ((' "', {"card": 0.2, "": 0.2}), (' "card', {"card": 0.4}), (' ""', {"": 0.4})):
        empty = [begun, token(" null", 0.6, **{rival: 0.4}), token("}")]
        (found,) = read_value_shares(Completion({}, logprobs=empty), shape).values()
        assert dict(found) == {None: pytest.approx(0.6)} | {k: pytest.approx(v) for k, v in wanted.items()}


def test_tokens_tell_of_the_values_that_begin_like_them() -> None:
    tokens = [
        token('{"int'), token('ent": "'), token("transfer", 0.7, ca=0.2, xyz=0.1), token('", "order": {"urg'),
        token('ent":'), token(" true", 0.9, **{" false": 0.1}), token('}, "topics": ["a", "b"]}'),
    ]  # fmt: skip
    found = {
        path: dict(spread)
        for path, spread in read_value_shares(Completion({}, logprobs=tokens), SHAPE).items()
    }
    assert found["$.intent"] == {
        "transfer": pytest.approx(0.7 / 0.9),
        "card": pytest.approx(0.1 / 0.9),
        "cash": pytest.approx(0.1 / 0.9),
    }
    assert found["$.order.urgent"] == {True: pytest.approx(0.9), False: pytest.approx(0.1)}


def test_values_that_share_their_first_tokens_are_told_apart_by_the_later_ones() -> None:
    """By the chain rule over all ways to go on, written out here. The value that was answered had a third
    before, as any that begins with `card`."""
    values = ("card", "card_arrival", "card_lost", "cash")
    shape = AnswerShape(fields=(Field(keys=("intent",), kind="enum", values=values),), order=(("intent",),))
    tokens = [
        token('{"intent": "'), token("card", 0.9, cash=0.1), token("_", 0.7, **{'"': 0.3}),
        token("arr", 0.8, lost=0.2), token("ival"), token('"}'),
    ]  # fmt: skip
    (found,) = read_value_shares(Completion({}, logprobs=tokens), shape).values()
    assert dict(found) == {
        "card": pytest.approx(0.9 * 0.3),
        "card_arrival": pytest.approx(0.9 * 0.7 * 0.8),
        "card_lost": pytest.approx(0.9 * 0.7 * 0.2),
        "cash": pytest.approx(0.1),
    }
    sure = [token('{"intent": "'), token("card"), token('"'), token("}")]
    assert dict(read_value_shares(Completion({}, logprobs=sure), shape)["$.intent"]) == {"card": 1.0}


def test_a_number_that_begins_like_another_is_itself() -> None:
    shape = AnswerShape(fields=(Field(keys=("n",), kind="ordinal", values=(1, 10, 100)),), order=(("n",),))
    for digits, value in ((["1"], 1), (["10"], 10), (["1", "0"], 10), (["1", "00"], 100)):
        tokens = [token('{"n": '), *map(token, digits), token("}")]
        assert dict(read_value_shares(Completion({}, logprobs=tokens), shape)["$.n"]) == {value: 1.0}


@pytest.mark.parametrize(
    "texts",
    [
        ["no json"],
        ['{"intent": "ca'],
        ['{"intent": '],
        ["", '{"intent": [', "1"],
        ['{"intent": {"deep": 1}}'],
        ["}"],
        ["[" * 5000],
        ['{"a":' * 3000],
    ],
)
def test_tokens_that_are_no_answer_tell_nothing(texts: list[str]) -> None:
    found = read_value_shares(Completion({}, logprobs=[token(text) for text in texts]), SHAPE)
    assert "$.order.urgent" not in found and found.get("$.intent", []) in ([], [("card", 1.0)])


def test_tokens_of_which_most_are_no_value_tell_nothing() -> None:
    tokens = [token('{"intent": "'), token("transfer", 0.3, xyz=0.6), token('"}')]
    assert read_value_shares(Completion({}, logprobs=tokens), SHAPE) == {}
