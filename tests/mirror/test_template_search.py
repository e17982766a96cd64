"""Where the input is in the messages: what prompts share, and what varies."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mirrored_calls import message

from bertsmith.mirror.call import ChatMessage
from bertsmith.mirror.template import PartTemplate, find_constant_pieces, find_template

DRAW = random.Random(0)
TEXTS = [message(DRAW) for _ in range(60)]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("", ""),
        ("Classify:\n", ""),
        ("Classify this message: ", ""),
        ("Text: \"", "\""),
        ("<text>", "</text>\nAnswer as JSON."),
        ("Which intent has this message\n\n", "\n\nintent:"),
        ("{\"subject\":\"", "\"}"),
    ],
)  # fmt: skip
def test_the_input_is_found_between_what_all_prompts_share(before: str, after: str) -> None:
    pieces = find_constant_pieces([f"{before}{text}{after}" for text in TEXTS])
    assert pieces == (before, after)


def test_texts_that_begin_and_end_alike_are_not_taken_for_the_prompt() -> None:
    texts = [f"How do I {text}?" for text in TEXTS]
    assert find_constant_pieces(texts) == ("How do I ", "") or find_constant_pieces(texts) == ("", "")
    assert find_constant_pieces([f"Classify: How do I {text}?" for text in TEXTS]) == ("Classify: ", "")
    assert find_constant_pieces([f"I {text}." for text in TEXTS]) == ("", "")


@pytest.mark.parametrize(
    "prompt",
    [
        "Title: {}\nBody: {}\nWhich intent?",
        "<title>{}</title>\n<body>\n{}\n</body>",
        '{{"title":"{}","body":"{}"}}',
        "Ticket\n\nTitle:\n{}\n\nBody:\n{}",
    ],
)
def test_several_parts_vary(prompt: str) -> None:
    calls = [prompt.format(title, body) for title, body in zip(TEXTS, reversed(TEXTS), strict=True)]
    part = PartTemplate(pieces=find_constant_pieces(calls))
    found = part.gaps(prompt.format("a new title", "and a body"))
    assert found is not None and [each.strip() for each in found] == ["a new title", "and a body"]


def test_messages_of_another_shape_do_not_fit() -> None:
    calls = [_messages(text) for text in TEXTS]
    template = find_template([*calls, (ChatMessage("user", ("hi",)),)])
    assert template is not None
    assert template.input_of_messages(_messages("where is it")) == "where is it"
    assert template.input_of_messages((ChatMessage("user", ("hi",)),)) is None
    assert template.input_of_messages((ChatMessage("system", ("Another prompt.",)), calls[0][1])) is None
    assert template.input_of_messages((calls[0][0], ChatMessage("user", ("no prompt around it",)))) is None
    assert template.describe() == "system: Which intent?\nuser: Message:\n«text»\n\nAnswer as JSON."


def test_few_calls_and_calls_that_are_all_alike_have_no_template() -> None:
    assert find_template([_messages(text) for text in TEXTS[:19]]) is None
    assert find_template([_messages("the same")] * 60) is None
    assert find_template([]) is None


def _messages(text: str) -> tuple[ChatMessage, ...]:
    return (
        ChatMessage("system", ("Which intent?",)),
        ChatMessage("user", (f"Message:\n{text}\n\nAnswer as JSON.",)),
    )


@given(st.lists(st.text(max_size=30), min_size=2, max_size=30), st.text(max_size=20), st.text(max_size=20))
def test_every_text_that_a_template_was_found_in_fits_it(texts: list[str], before: str, after: str) -> None:
    whole = [f"{before}{text}{after}" for text in texts]
    part = PartTemplate(pieces=find_constant_pieces(whole))
    for text in whole:
        gaps = part.gaps(text)
        assert gaps is not None
        assert part.pieces[0] + "".join(
            gap + piece for gap, piece in zip(gaps, part.pieces[1:], strict=True)
        ) == text  # fmt: skip
