"""Columns of Parquet of every type: read exactly, or refused with the type and a line that converts it."""

import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bertsmith.errors import InputError
from bertsmith.text.files.rows import read_rows
from bertsmith.text.files.values import as_label, as_text


def cells(folder: Path, column: pa.Array) -> list[Any]:
    pq.write_table(pa.table({"c": column}), folder / "a.parquet")
    return [row.values[0] for row in read_rows(folder / "a.parquet", ["c"])]


@pytest.mark.parametrize(
    "kind", [pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string())]
)
def test_text_of_any_type_is_read_as_it_is(tmp_path: Path, kind: pa.DataType) -> None:
    texts = ["a", None, "é 🎉\n", "", "a"]
    assert cells(tmp_path, pa.array(texts).cast(kind)) == texts


@pytest.mark.parametrize(
    ("column", "labels"),
    [
        (pa.array([7, 8]).dictionary_encode(), ["7", "8"]),
        (pa.array([1.0, 2.5, 0.1], pa.float16()), ["1", "2.5", "0.1"]),
        (pa.array([1.0, 0.1, 1e16], pa.float32()), ["1", "0.1", "10000000000000000"]),
        (pa.array([0.1, 0.7], pa.float32()).dictionary_encode(), ["0.1", "0.7"]),
        (pa.array([2**64 - 1, 0], pa.uint64()), ["18446744073709551615", "0"]),
        (pa.array([True, False]), ["True", "False"]),
        (pa.array([datetime.date(2024, 1, 2)]), ["2024-01-02"]),
        (pa.array([1], pa.timestamp("ns")), ["1970-01-01 00:00:00.000000001"]),
    ],
)
def test_labels_of_any_type_have_names(tmp_path: Path, column: pa.Array, labels: list[str]) -> None:
    """As CSV of pyarrow has them."""
    assert [as_label(cell, "a") for cell in cells(tmp_path, column)] == labels


@pytest.mark.parametrize(
    ("column", "kind"),
    [
        (pa.array([["a", "b"]]), "list<item: string>"),
        (pa.array([["a"]], pa.list_view(pa.string())), "list<item: string>"),
        (pa.array([{"en": "a", "de": "b"}]), "struct<en: string, de: string>"),
        (pa.array([[{"a": [1]}]]), "list<item: struct<a: list<item: int64>>>"),
        (pa.array([[("a", "b")]], pa.map_(pa.string(), pa.string())), "list<"),
        (pa.array([b"a"]), "binary"),
        (pa.array([datetime.datetime(2024, 1, 2)]), "timestamp[us]"),
        (pa.array([1.5]), "double"),
    ],
)
def test_a_column_that_is_no_text_is_refused_with_its_type(
    tmp_path: Path, column: pa.Array, kind: str
) -> None:
    (cell,) = cells(tmp_path, column)
    with pytest.raises(InputError) as refused:
        as_text(cell, "a.parquet, row 1")
    assert f"of type {kind}" in str(refused.value)
    assert 'in pandas: table["COLUMN"] = ' in str(refused.value)


@pytest.mark.parametrize(
    "column",
    [pa.array([10**12], pa.timestamp("s")), pa.array([1], pa.timestamp("us", tz="Nowhere/City"))],
)
def test_a_time_that_cannot_be_read_is_refused_with_its_type(tmp_path: Path, column: pa.Array) -> None:
    with pytest.raises(InputError, match=r"the column 'c' is of type timestamp\[.*\], which can't be read"):
        cells(tmp_path, column)
