"""Columns of metadata: whatever a table calls them, an index can hold them and filter by them."""

import json
from pathlib import Path

import pytest
from index_samples import WordEmbedder

pytest.importorskip("lancedb")

from bertsmith.errors import InputError
from bertsmith.inference.index.index import Index
from bertsmith.inference.index.metadata import column_name

NAMES = {
    "a`b": "a_b",
    "*": "_",
    "a.b-c": "a_b-c",
    "_rowoffset": "_rowoffset_",
    "_row_created_at_version": "_row_created_at_version_",
    "_rowid": "_rowid_",
    "_distance": "_distance_",
    "vector": "vector_",
    "due date": "due date",
    "année": "année",
    "order": "order",
    "'; --": "__ --",
}


def test_odd_names_can_be_stored_shown_and_filtered_by(tmp_path: Path) -> None:
    row = {"id": "1", "text": "red cat"} | {name: f"of {name}" for name in NAMES}
    (tmp_path / "rows.jsonl").write_text(json.dumps(row) + "\n")
    index = Index.build([tmp_path / "rows.jsonl"], tmp_path / "index", embedder=WordEmbedder())
    (hit,) = index.search("cat")
    assert hit.metadata == {stored: f"of {name}" for name, stored in NAMES.items()}
    for name, stored in NAMES.items():
        quoted = name.replace("'", "''")
        assert len(index.search("cat", mode="text", where=f"`{stored}` = 'of {quoted}'")) == 1, name


@pytest.mark.parametrize("name", ["", "."])
def test_a_column_without_a_name_gets_one(name: str) -> None:
    assert column_name(name).strip()


def test_two_columns_that_would_have_one_name_are_refused(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"id": "1", "text": "red cat", "a.b": 1, "a`b": 2}\n')
    with pytest.raises(InputError, match=r"the columns 'a\.b' and 'a`b' would both be called 'a_b'"):
        Index.build([tmp_path / "rows.jsonl"], tmp_path / "index", embedder=WordEmbedder())


def test_a_column_of_nothing_gets_its_kind_with_its_first_values(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    rows = ['{"id": "1", "text": "red", "year": null}\n', '{"id": "2", "text": "blue", "year": 2020}\n']
    path.write_text(rows[0])
    embedder = WordEmbedder()
    assert Index.build([path], tmp_path / "index", embedder=embedder).info.metadata == {}
    path.write_text("".join(rows))
    index = Index.build([path], tmp_path / "index", embedder=embedder)
    assert index.info.metadata == {"year": "whole numbers"}
    assert [hit.document_id for hit in index.search("red", where="year >= 2020")] == ["2"]
    assert {hit.document_id: hit.metadata for hit in index.search("red")}["1"] == {"year": None}


def test_nan_is_no_number(tmp_path: Path) -> None:
    """To LanceDB it is greater than any: `price > 9` found the rows without a price."""
    rows = [{"id": str(price), "text": "red cat", "price": price} for price in (7.0, 10.0, float("nan"))]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    index = Index.build([tmp_path / "rows.jsonl"], tmp_path / "index", embedder=WordEmbedder())
    assert index.info.metadata == {"price": "numbers"}
    for where, found in {"price > 9": ["10.0"], "price IS NULL": ["nan"]}.items():
        assert [hit.document_id for hit in index.search("cat", where=where)] == found
