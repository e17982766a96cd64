"""Cleaning repairs what is broken and leaves what is meant."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertsmith.text.prose.sentences import clean_text


@pytest.mark.parametrize(
    ("dirty", "expected"),
    [
        ("caf\u00c3\u00a9 in Paris", "café in Paris"),  # UTF-8 read as Latin-1
        ("donâ€™t do it", "don’t do it"),  # UTF-8 read as Windows-1252
        ("one<br />two", "one two"),
        ("a <ref name=x>note</ref> here", "a  note  here"),
        ("before<!-- hidden\ntext -->after", "before after"),
        ("AT&amp;T &#8211; &eacute;", "AT&T – é"),
        ("__NOTOC__ text", "  text"),
        ("zero\u200bwidth so\u00adft bell\x07 \ufeff", "zerowidth soft bell "),
        ("form\x0cfeed", "form feed"),
        ("e\u0301", "é"),
        ("lone \ud800 surrogate", "lone  surrogate"),
    ],
)
def test_repairs(dirty: str, expected: str) -> None:
    assert clean_text(dirty) == expected


@pytest.mark.parametrize(
    "text",
    [
        "if a < b and c > d then List<int> x",
        "call __init__ and __TOTAL__",
        "Fish & chips; R&D",
        "“Ça”, naïve façade, São Tomé, Łódź – ärger",
        "می‌خواهم 👩‍👩‍👧",  # zero-width joiners carry meaning
        "line one\nline two\tand a tab",
    ],
)
def test_leaves_text_alone(text: str) -> None:
    assert clean_text(text) == text


def test_mojibake_in_one_line_does_not_condemn_the_others() -> None:
    assert clean_text("Ünïcödé is fine é’s\ncaf\u00c3\u00a9") == "Ünïcödé is fine é’s\ncafé"


@given(st.text())
def test_result_is_nfc_encodable_and_free_of_controls(text: str) -> None:
    cleaned = clean_text(text)
    cleaned.encode()
    assert unicodedata.is_normalized("NFC", cleaned)
    assert not any(unicodedata.category(c) in ("Cc", "Cs") and c not in "\n\t" for c in cleaned)


@given(st.text(st.characters(codec="ascii", exclude_categories=["Cc"], exclude_characters="<&_")))
def test_plain_ascii_is_untouched(text: str) -> None:
    assert clean_text(text) == text
