"""Texts of test that occur in train are found whatever their case and white space."""

from bertsmith.tasks.examples.held_out import shared_texts


def test_case_and_white_space_do_not_hide_a_text() -> None:
    train = [("A good film.",), ("Straße",), ("other",)]
    assert shared_texts(train, [("new",), (" a  GOOD\tfilm. ",), ("STRASSE",), ("strasse",)]) == [1, 2, 3]


def test_the_form_of_an_accent_does_not_hide_a_text() -> None:
    """A file from a Mac may have it as a character of its own."""
    assert shared_texts([("Caf\u00e9 zu",), ("\u200b",)], [("cafe\u0301 zu",), ("\u200b",)]) == [0]


def test_pairs_are_shared_as_wholes_and_in_order() -> None:
    train = [("a b", "c"), ("x", "y")]
    assert shared_texts(train, [("A  b", "C"), ("c", "a b"), ("a", "b c"), ("x", "z")]) == [0]


def test_nothing_is_shared_with_nothing() -> None:
    assert shared_texts([], [("a",)]) == shared_texts([("a",)], []) == []


def test_empty_texts_are_not_shared() -> None:
    assert shared_texts([("",), (" ",), ("a",)], [("",), ("\t",), ("a",)]) == [2]
    assert shared_texts([("", ""), ("", "a")], [("", " "), ("", "a")]) == [1]
