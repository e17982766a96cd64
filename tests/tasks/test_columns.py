"""Columns beside a text: what training shows of them, and what a row's cells come to."""

import math
from decimal import Decimal
from typing import Any

import numpy as np
import pandas
import pytest

from bertsmith.errors import InputError, ModelError, RecipeError
from bertsmith.tasks.classification import Classification, ClassificationSettings
from bertsmith.tasks.examples.columns import (
    CategoryColumn,
    ColumnChoice,
    FittedColumns,
    NumberColumn,
    as_cell,
)
from bertsmith.tasks.examples.text_task import TextExample
from bertsmith.tasks.task import fitted_again


def fit(rows: list[tuple[Any, ...]], *wanted: str) -> FittedColumns:
    cells = [tuple(as_cell(cell, "a.csv", "x") for cell in row) for row in rows]
    return FittedColumns.fit(
        [*map(ColumnChoice.of, wanted)], cells, [f"a.csv, line {n}" for n in range(2, len(rows) + 2)]
    )


def test_numbers_are_standardised_by_the_training_rows_and_a_blank_is_the_mean_and_says_so() -> None:
    columns = fit([("10",), ("30",), ("",), ("20",)], "age")
    (age,) = columns.columns
    assert age == NumberColumn("age", 20.0, math.sqrt(200 / 3), blanks=True, guessed=True)
    assert columns.vector((20,), "here").tolist() == [0.0, 0.0]
    assert columns.vector((None,), "here").tolist() == [0.0, 1.0]
    np.testing.assert_allclose(columns.vector(("40",), "here"), [20 / math.sqrt(200 / 3), 0.0], rtol=1e-6)


@pytest.mark.parametrize("blank", [None, math.nan, " ", pandas.NA, pandas.NaT])
def test_what_is_missing_is_blank_however_it_is_spelled(blank: Any) -> None:
    assert as_cell(blank, "here", "age") is None


def test_numbers_far_from_what_training_showed_do_not_drown_the_rest() -> None:
    assert fit([(1,), (2,), (3,)], "age").vector((10.0**17,), "here").tolist() == [10.0]


def test_a_number_that_never_changes_says_nothing_and_divides_by_nothing() -> None:
    assert fit([(7,), (7,)], "age").vector((7,), "here").tolist() == [0.0]


def test_categories_are_one_hot_of_what_training_showed_and_others_are_all_zeros() -> None:
    columns = fit([("free",), ("paid",), ("",), ("free ",)], "plan")
    assert columns.columns == (CategoryColumn("plan", ("", "free", "paid"), guessed=True),)
    assert columns.vector(("free",), "here").tolist() == [0, 1, 0]
    assert columns.vector((None,), "here").tolist() == [1, 0, 0]
    assert columns.vector(("unheard of",), "here").tolist() == [0, 0, 0]


def test_a_kind_that_is_told_wins_over_the_values() -> None:
    codes = fit([("1",), ("2",), (1.0,)], "code:category")
    assert codes.columns == (CategoryColumn("code", ("1", "2")),)
    with pytest.raises(InputError, match=r"a.csv, line 3, column 'age': expected a finite number.*'old'"):
        fit([("1",), ("old",)], "age:number")


@pytest.mark.parametrize(
    ("learned", "asked", "place"),
    [
        (["1.0", "2.0", ""], ["1", 1, 1.0, "1.0"], 1),
        (["1", "2", "3"], ["1.0", 1, 1.0], 0),
        (["True", "False"], ["true", True, "TRUE"], 1),
        (["true", "false"], [True, "True"], 1),
        (["1.5", "2"], [1.5, "1.5"], 0),
        (["007", "1.10"], ["1.10"], 1),
        (["1.50", "2.00", "3"], [Decimal("1.50"), "1.50"], 0),
        ([Decimal("1.50"), Decimal("2.00")], ["2.00", "2", 2], 1),
    ],
)
def test_a_category_is_the_same_however_its_file_spells_it(learned: Any, asked: Any, place: int) -> None:
    """As CSV, as JSON, and beside a blank, where pandas writes integers with a fraction."""
    column = fit([(cell,) for cell in learned], "code:category")
    for cell in asked:
        assert column.vector((as_cell(cell, "here", "code"),), "here").argmax() == place
        assert column.vector((as_cell(cell, "here", "code"),), "here").sum() == 1


def test_each_column_has_its_place_among_the_features() -> None:
    columns = fit([("1", "a"), ("", "b")], "age", "plan")
    assert columns.slices == [slice(0, 2), slice(2, 4)]
    assert columns.width == 4


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([(f"user {n}",) for n in range(40)], r"'id' has 40 different values in 40 training rows"),
        ([(f"user {n // 3}",) for n in range(400)], r"'id' has 134 different values .*at most 100"),
        ([("",), (None,), (math.nan,)], r"'id' is blank in all 3 training rows, from a.csv, line 2 on"),
    ],
)
def test_a_column_that_nothing_can_be_learned_of_is_refused(rows: list[Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        fit(rows, "id")


def test_a_list_is_no_cell() -> None:
    with pytest.raises(
        InputError, match=r"here: column 'tags': expected a number or a category, found \['a'\]"
    ):
        as_cell(["a"], "here", "tags")


def test_what_training_showed_survives_the_file() -> None:
    columns = fit([("1", "a"), ("", "b")], "age", "plan:category")
    assert FittedColumns.from_json(columns.to_json(), ["age", "plan"], "m.json") == columns


@pytest.mark.parametrize(
    "record",
    [
        None,
        [{"kind": "number", "name": "age", "mean": "0", "deviation": 1, "blanks": False, "guessed": False}],
        [{"kind": "number", "name": "age", "mean": 0, "deviation": 0, "blanks": False, "guessed": False}],
        [{"kind": "category", "name": "age", "values": ["a", "a"], "guessed": False}],
        [{"kind": "category", "name": "plan", "values": ["a"], "guessed": False}],
    ],
)
def test_an_altered_file_is_refused(record: Any) -> None:
    with pytest.raises(ModelError, match=r"^m.json: .*The file was altered"):
        FittedColumns.from_json(record, ["age"], "m.json")


def mixed_task() -> Classification:
    task = Classification(ClassificationSettings(text="text", features=("age", "plan")))
    rows = [(1, "free"), (3, "paid")]
    task.fit([TextExample("a", None, str(n), "t.csv", None, row) for n, row in enumerate(rows)])
    return task


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("a text", r'input 1: the model reads columns beside the text: \{"text": …, "age": …, "plan": …\}'),
        ({"text": "a", "age": 2}, r"input 1: no column 'plan', found age. Give it, or null"),
        ({"text": "a", "age": 2, "plan": "x", "plam": 1}, r"no column 'plam', but age, plan"),
        ({"text": None, "age": 2, "plan": "x"}, r"the model reads columns beside the text"),
    ],
)
def test_an_input_without_its_columns_is_refused(given: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        mixed_task().example(given, "input 1")


def test_an_input_has_its_columns_by_name_in_any_order() -> None:
    example = mixed_task().example({"plan": None, "age": 2.5, "text": "a"})
    assert (example.text, example.columns) == ("a", (2.5, None))


def test_settings_refuse_columns_that_have_no_name_or_stand_twice() -> None:
    assert ClassificationSettings(features="age, plan:category").features == ("age", "plan:category")
    with pytest.raises(RecipeError, match="the column 'age' is named twice"):
        ClassificationSettings(features="age,age:number")
    with pytest.raises(RecipeError, match="found an empty one"):
        ClassificationSettings(features="age,,plan")


def test_a_task_that_is_fitted_again_keeps_its_columns() -> None:
    """Vectors of the same rows must stay as wide, and mean the same, whichever rows are learned from."""

    def row(label: str, plan: str) -> TextExample:
        return TextExample("bano", None, label, "here", columns=(plan,))

    task = Classification(ClassificationSettings(features=("plan",), class_weights="auto"))
    task.fit([row("no", "free"), row("yes", "paid"), row("yes", "trial")])
    again = fitted_again(task, [row("no", "free"), row("no", "free"), row("no", "free"), row("yes", "paid")])
    assert again is not task
    assert isinstance(again, Classification) and again.columns == task.columns
    assert again._weights != task._weights
    lacking = fitted_again(task, [row("no", "free")] * 3)
    assert lacking.labels == task.labels == ("no", "yes")
