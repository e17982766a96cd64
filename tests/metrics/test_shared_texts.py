"""Texts of test that occur in train are found whatever their case and white space."""

from bertsmith.metrics.shared_texts import SharedText, shared_texts


def test_case_and_white_space_do_not_hide_a_text() -> None:
    found = shared_texts(["A good film.", "Straße", "other"], ["new", " a  GOOD\tfilm. ", "STRASSE"])
    assert (found.count, found.total) == (2, 3)
    assert found.examples == (
        SharedText(" a  GOOD\tfilm. ", test_row=1, train_row=0),
        SharedText("STRASSE", test_row=2, train_row=1),
    )


def test_pairs_are_shared_as_wholes_and_in_order() -> None:
    train = [("a b", "c"), ("x", "y")]
    assert shared_texts(train, [("A  b", "C"), ("c", "a b"), ("a", "b c"), ("x", "z")]).count == 1


def test_all_are_counted_and_some_shown_with_their_first_row() -> None:
    found = shared_texts(["t", "T", "u"], ["t"] * 9 + ["v"], examples=2)
    assert (found.count, found.total) == (9, 10)
    assert [(e.test_row, e.train_row) for e in found.examples] == [(0, 0), (1, 0)]


def test_nothing_is_shared_with_nothing() -> None:
    assert shared_texts([], ["a"]).count == shared_texts(["a"], []).count == 0


def test_empty_texts_are_not_shared() -> None:
    assert shared_texts(["", " ", "a"], ["", "\t", "a"]).count == 1
    assert shared_texts([("", ""), ("", "a")], [("", " "), ("", "a")]).count == 1
