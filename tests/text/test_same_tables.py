"""The same rows written in every format, by csv, json, pyarrow and pandas, are read as the same texts and
labels. The oracle is the definition in `expected`, over values that careless writers and readers lose.
"""

import datetime
import math
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from bertsmith.text.files.rows import read_rows
from bertsmith.text.files.values import as_category, as_number, as_text, is_blank
from table_writers import WRITERS, write_table

ODD_TEXTS = (
    *(
        "NA",
        "N/A",
        "null",
        "NULL",
        "None",
        "nan",
        "NaN",
        "true",
        "FALSE",
        "007",
        "1e5",
        "-0",
        "1.50",
        "1,5",
        "-",
    ),
    *(
        "a,b",
        'say "a"',
        "'a'",
        "a;b",
        "a|b",
        " a ",
        "\ufeffa",
        "é",
        "e\u0301",
        "🎉",
        "\u200b",
        "#1",
        "=1+1",
        "[1]",
    ),
    *('"', '""', "a\\nb", "\\", "\u2028", "\x85", "\x1c", "a\u00a0b"),
)
BROKEN_TEXTS = ("a\nb", "a\tb", "\n", "a\r\nb", "a\rb", "a\n\r", "a\n\n", "\r\n")
ALPHABET = st.characters(codec="utf-8", exclude_categories=["Cs"], exclude_characters="\0")
TEXTS = st.one_of(
    st.sampled_from(ODD_TEXTS), st.sampled_from(BROKEN_TEXTS), st.text(ALPHABET, max_size=12), st.none()
)
KINDS: dict[str, st.SearchStrategy[Any]] = {
    "texts": TEXTS,
    "small numbers": st.integers(-3, 9),
    "whole numbers": st.integers(-(2**63), 2**63 - 1),
    "fractions": st.floats(width=64),
    "scores": st.integers(-40, 40).map(lambda eighths: eighths / 8),
    "truth": st.booleans(),
    "dates": st.dates(),
    "decimals": st.decimals(-999, 999, places=2),
}


@st.composite
def columns(draw: st.DrawFn) -> tuple[list[Any], list[Any]]:
    """Texts, and as many labels of one kind, some of them null."""
    cells = KINDS[draw(st.sampled_from([*KINDS]))]
    rows = draw(st.lists(st.tuples(TEXTS, st.one_of(cells, cells, cells, st.none())), min_size=1, max_size=6))
    texts, labels = zip(*rows, strict=True)
    return [*texts], [*labels]


def expected(value: Any) -> str | None:
    """A label's name: blanks around it don't count, whole numbers have no point, truth has a capital."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return None
    if isinstance(value, float | Decimal) and math.isfinite(value):
        fraction = format(value, "f") if isinstance(value, Decimal) else repr(value)
        return str(int(value)) if value == int(value) else fraction
    text = str(value).strip()
    return {"true": "True", "false": "False"}.get(text.lower(), text) or None


def same(read: Any, value: Any) -> bool:
    """Whether a cell means the value that was written."""
    if expected(value) is None:
        return is_blank(read)
    if isinstance(value, str) and _is_number(value):  # its spelling may be a number's: "1.50", "-0", "1e+16"
        return bool(as_category(read) == as_category(value))
    return bool(as_category(read) == expected(value))


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def _any_value(cells: Sequence[Any]) -> bool:
    return any(cell is not None for cell in cells)


def can_hold(writer: str, texts: Sequence[Any], labels: Sequence[Any]) -> bool:
    """csv writes the word nan, which is text; TSV has no quotes, JSON no dates and decimals, Arrow no
    dictionaries of nulls; pandas makes fractions of integers beside a null, and puts no quotes around a lone
    carriage return.
    """
    cells = [*texts, *labels]
    if writer in ("csv", "quoted csv", "tsv") and any(
        isinstance(cell, float) and math.isnan(cell) for cell in cells
    ):
        return False
    if writer == "tsv":
        broken = any(isinstance(cell, str) and ({*cell} & {"\t", "\n", "\r"}) for cell in cells)
        return not broken and any(str(cell or "") for cell in cells)
    if writer == "parquet of categories" and not all(map(_any_value, (texts, labels))):
        return False
    if writer.startswith("json"):
        return not any(isinstance(cell, datetime.date | Decimal) for cell in cells)
    if writer == "csv of pandas" and any("\r" in str(cell).replace("\r\n", "") for cell in cells):
        return False
    if writer.endswith("of pandas"):
        numbers = [cell for cell in labels if isinstance(cell, int) and abs(cell) > 2**53]
        return not numbers
    return True


def check(folder: Path, texts: Sequence[Any], labels: Sequence[Any]) -> None:
    rows = [{"text": text, "label": label} for text, label in zip(texts, labels, strict=True)]
    for writer in WRITERS:
        if not can_hold(writer, texts, labels):
            continue
        found = read_rows(write_table(folder, writer, rows), ["text", "label"])
        assert len(found) == len(rows), writer
        for row, (values, where) in zip(rows, found, strict=True):
            text = as_text(values[0], where)
            assert text == (row["text"] or ""), (writer, row, values)
            assert same(values[1], row["label"]), (writer, row, values)
            if isinstance(row["label"], float) and math.isfinite(row["label"]) and abs(row["label"]) < 1e18:
                assert as_number(values[1], where) == row["label"], (writer, row, values)


ROWS = columns()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tables")


@settings(max_examples=60, derandomize=True)
@example((["a"], [1e16]))
@example((["a", "b"], [1.0, None]))
@example((["a", "b"], [True, None]))
@example((["a"], [-0.0]))
@example((["\ufeffa"], ["x"]))
@example(([None], ["a\r\nb"]))
@example((["a\r\nb", "a\rb", "a\n\rb"], ["x", "y", "z"]))
@given(ROWS)
def test_the_same_rows_are_read_alike_in_every_format(
    folder: Path, rows: tuple[list[Any], list[Any]]
) -> None:
    check(folder, *rows)


@pytest.mark.slow
@pytest.mark.timeout(7200)
@settings(max_examples=20_000, derandomize=True)
@given(ROWS)
def test_very_many_tables_are_read_alike_in_every_format(
    folder: Path, rows: tuple[list[Any], list[Any]]
) -> None:
    check(folder, *rows)
