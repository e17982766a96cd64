"""What labels' names give away."""

import unicodedata
from collections.abc import Callable

import pytest

from bertsmith.text.labelled.label_names import (
    are_multi_hot,
    are_scores,
    find_joined_labels,
    find_look_alikes,
    find_missing_values,
    find_stand_ins,
)


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
        ("İade", "iade"),
        ("KIRIK", "kırık"),
        ("❤\ufe0f", "❤"),
        ("l’eau", "l'eau"),
    ],
)
def test_labels_that_look_alike_are_found(others: tuple[str, ...]) -> None:
    counts = {label: 9 - number for number, label in enumerate(others)} | {"other": 5}
    assert find_look_alikes(counts) == [list(others)]


def test_other_labels_are_left_alone() -> None:
    labels = ["1", "-1", "1.5", "C", "C++", "C#", "résumé", "resume", "a-b", "a_b", "", "O", "0"]
    assert find_look_alikes(dict.fromkeys(labels, 1)) == []


def test_labels_that_are_others_joined_are_found() -> None:
    assert find_joined_labels(["a", "b", "a|b", "c|d"], "|") == ["a|b"]
    assert find_joined_labels(["a,b", "b,c", "a,c"], ",") == ["a,b", "b,c", "a,c"]
    assert find_joined_labels(["Paris", "Paris, Texas", "New York, NY"], ",") == []


@pytest.mark.parametrize(
    ("rule", "so", "otherwise"),
    [
        (are_multi_hot, [["0 1 0", "1 1 0"], ["010", "110"]], [["0", "1"], ["10", "110"], ["010", "a"], []]),
        (
            are_scores,
            [["4,25", "3"], ["4.5", "-1"], ["45%", "100 %"]],
            [["1", "2"], ["1", "a"], ["1,2,3"], ["1.2.3"]],
        ),
        (find_missing_values, [["NaN", "a"], ["None", "a"], ["N/A"]], [["none of these", "-", "a"]]),
        (
            find_stand_ins,
            [["-1", "0", "1", "2"], ["-100", "0", "1", "2"], ["-100", "0", "1"], ["-100", "a", "b"]],
            [["-100", "1", "5"], ["-1", "0", "1"]],
        ),
    ],
)
def test_labels_that_are_no_names_are_found(
    rule: Callable[[list[str]], object], so: list[list[str]], otherwise: list[list[str]]
) -> None:
    assert [bool(rule(labels)) for labels in so] == [True] * len(so)
    assert [bool(rule(labels)) for labels in otherwise] == [False] * len(otherwise)
