"""What labels' names give away."""

import unicodedata

import pytest

from bertsmith.text.labelled.label_names import joined, look_alikes


@pytest.mark.parametrize(
    "others",
    [
        ("Refund", "refund"),
        ("credit card", "credit  card", "creditcard"),
        ("café", unicodedata.normalize("NFD", "café")),
        ("a b", "a\u00a0b"),
        ("a", "a\u200b"),
        ("ﬁne", "fine"),
        ("STRASSE", "straße"),
    ],
)
def test_labels_that_look_alike_are_found(others: tuple[str, ...]) -> None:
    counts = {label: 9 - number for number, label in enumerate(others)} | {"other": 5}
    assert look_alikes(counts) == [list(others)]


def test_other_labels_are_left_alone() -> None:
    labels = ["1", "-1", "1.5", "C", "C++", "C#", "résumé", "resume", "a-b", "a_b", "", "O", "0"]
    assert look_alikes(dict.fromkeys(labels, 1)) == []


def test_labels_that_are_others_joined_are_found() -> None:
    assert joined(["a", "b", "a|b", "c|d"], "|") == ["a|b"]
    assert joined(["a,b", "b,c", "a,c"], ",") == ["a,b", "b,c", "a,c"]
    assert joined(["Paris", "Paris, Texas", "New York, NY"], ",") == []
