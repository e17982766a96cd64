"""Folds: every example in one, equal texts together, labels spread evenly."""

import unicodedata

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertsmith.tasks.classification import Classification, ClassificationSettings
from bertsmith.tasks.examples.held_out import folds_of, group_of, hold_out
from bertsmith.tasks.examples.text_task import TextExample
from bertsmith.tasks.multi_label import MultiLabel, MultiLabelSettings

TASK = Classification(ClassificationSettings())


def rows(labels: list[object], texts: list[str] | None = None) -> list[TextExample]:
    texts = texts or [f"text {number}" for number in range(len(labels))]
    return [TextExample(text, None, label, "rows") for text, label in zip(texts, labels, strict=True)]


@pytest.mark.parametrize("count", [2, 3, 5])
def test_each_class_is_spread_as_evenly_as_can_be(count: int) -> None:
    labels: list[object] = ["a"] * 31 + ["b"] * 8 + ["c"] * 2
    folds = folds_of(TASK, rows(labels), count)
    for label in "abc":
        mine = np.bincount(folds[[each == label for each in labels]], minlength=count)
        assert mine.max() - mine.min() <= 1
    assert np.ptp(np.bincount(folds, minlength=count)) <= 3


@settings(max_examples=50, deadline=None)
@given(
    numbers=st.lists(st.integers(0, 9), min_size=1, max_size=60),
    count=st.integers(2, 5),
    seed=st.integers(0, 5),
)
def test_equal_texts_are_never_divided_and_the_seed_decides(
    numbers: list[int], count: int, seed: int
) -> None:
    examples = rows(["x", "y", "x"] * len(numbers), [f"text {number}" for number in numbers] * 3)
    folds = folds_of(TASK, examples, count, seed)
    assert len(folds) == len(examples)
    assert set(folds) <= set(range(count))
    by_text: dict[str, set[int]] = {}
    for example, fold in zip(examples, folds.tolist(), strict=True):
        by_text.setdefault(example.text, set()).add(fold)
    assert all(len(mine) == 1 for mine in by_text.values())
    assert (folds == folds_of(TASK, examples, count, seed)).all()


def test_other_seeds_draw_other_folds() -> None:
    examples = rows(["a", "b"] * 20)
    assert (folds_of(TASK, examples, 4, 0) != folds_of(TASK, examples, 4, 1)).any()


def test_rare_labels_of_several_are_spread_before_frequent_ones() -> None:
    task = MultiLabel(MultiLabelSettings())
    labels: list[object] = [("often",)] * 20 + [("often", "rare")] * 4 + [()] * 8
    folds = folds_of(task, rows(labels), 4)
    assert sorted(folds[20:24].tolist()) == [0, 1, 2, 3]
    assert np.ptp(np.bincount(folds)) <= 2


def test_a_text_in_another_form_of_unicode_is_in_the_same_fold() -> None:
    texts = [f"Das Caf\u00e9 {number} \u00f6ffnet" for number in range(20)]
    others = [unicodedata.normalize("NFD", text) for text in texts]
    smileys = ["👍", " 👍", "👎", "👎 "]
    examples = rows(["a", "b"] * 22, [*texts, *others, *smileys])
    folds = folds_of(TASK, examples, 5)
    assert folds[:20].tolist() == folds[20:40].tolist()
    assert folds[40] == folds[41] and folds[42] == folds[43]
    train, dev = hold_out(TASK, examples, 0.3)
    read_texts = [{unicodedata.normalize("NFC", row.text).strip() for row in part} for part in (train, dev)]
    assert read_texts[0].isdisjoint(read_texts[1])
    hindi = rows(["a", "b"], ["किताब", "कुताब"])  # they differ in a vowel sign alone
    assert len({group_of(TASK, row) for row in hindi}) == 2


def test_texts_that_differ_in_case_white_space_and_punctuation_alone_are_together() -> None:
    """A model has all but seen the other: its answer says nothing of texts that are new."""
    texts = [f"Where is card {number}?" for number in range(20)]
    examples = rows(["a", "b"] * 20, [*texts, *(f" where  is CARD {number}" for number in range(20))])
    folds = folds_of(TASK, examples, 5)
    assert folds[:20].tolist() == folds[20:].tolist()
    assert sorted(np.bincount(folds[:20]).tolist()) == [4] * 5
    signs = folds_of(TASK, rows(["a", "b"] * 5, ["👍", "👎", "!", "?", "…", "", "+", "-", "😀", "☔"]), 5)
    assert np.bincount(signs).tolist() == [2] * 5
