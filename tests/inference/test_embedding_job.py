"""A file of texts becomes a file of vectors, whole or resumable, whatever happens in between."""

import io
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from killed_job import kill_at

from bertsmith.errors import InputError, ResourceError
from bertsmith.inference.embedding import job, shards
from bertsmith.inference.embedding.embedder import Embedder
from bertsmith.inference.embedding.job import EmbeddingResult, embed_file
from bertsmith.inference.embedding.shards import ShardedRows, ShardFolder, require_same
from bertsmith.inference.embedding.vector_file import read_about, read_vectors
from bertsmith.inference.embedding.vectors import Int8Ranges
from bertsmith.text.tokens.tokenizer import Tokenizer

TEXTS = [
    f"{colour} {animal} {number}"
    for number in range(4)
    for colour in ("red", "blue")
    for animal in ("cat", "dog")
]
ROWS = [{"id": f"d{number}", "text": text, "label": 1} for number, text in enumerate(TEXTS)]


@pytest.fixture(scope="module")
def embedder(tiny_bert: Path) -> Embedder:
    return Embedder(tiny_bert)


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "texts.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return path


def run(embedder: Embedder, table: Path | str, out: Path, **changes: Any) -> EmbeddingResult:
    return embed_file(embedder, table, out, **{"shard_rows": 5, **changes})


# -- what is written -----------------------------------------------------------------------------------------


def test_the_file_holds_ids_vectors_and_what_made_them(
    embedder: Embedder, table: Path, tmp_path: Path
) -> None:
    out = tmp_path / "new" / "vectors.parquet"
    result = run(embedder, table, out, model="minimal")
    found = read_vectors(out)
    assert found.ids == [row["id"] for row in ROWS]
    np.testing.assert_allclose(found.vectors, embedder.documents(TEXTS), atol=1e-6)
    assert pq.read_schema(out).field("vector").type == pa.list_(pa.float32(), 32)
    assert (found.about.model, found.about.kind, found.about.precision) == ("minimal", "document", "float32")
    assert len(found.about.model_sha256) == 64
    assert result.whole == result.computed
    assert result.whole.texts == len(ROWS)
    assert list(out.parent.iterdir()) == [out]


def test_products_in_bfloat16_are_noted_and_not_mixed_with_others(
    embedder: Embedder, table: Path, tmp_path: Path
) -> None:
    out = tmp_path / "vectors.parquet"
    half = Embedder(embedder.folder, device="cpu", compute_dtype=torch.bfloat16)
    run(half, table, out)
    found, exact = read_vectors(out), embedder.documents(TEXTS)
    assert found.about.products == "bfloat16"
    assert np.abs(found.vectors - exact).max() > 1e-6
    assert np.einsum("ed,ed->e", found.vectors, exact).min() > 0.999
    usual = str(embedder.compute_dtype).removeprefix("torch.")
    with pytest.raises(InputError, match=rf"made with products 'bfloat16', not '{usual}'"):
        run(embedder, table, out, resume=True)


@pytest.mark.parametrize(
    ("name", "content", "options", "ids"),
    [
        ("a.csv", "id,text\nx,red cat\ny,old dog\n", {}, ["x", "y"]),
        ("a.csv", "1,red cat\n2,old dog\n", {"header": False, "text": 2}, ["1", "2"]),
        ("a.tsv", "sentence\tname\nred cat\tx\nold dog\ty\n", {"id": "name"}, ["x", "y"]),
        (
            "a.jsonl",
            '{"ID": 7, "body": "red cat"}\n{"ID": 8, "body": "old dog"}\n',
            {"text": "body"},
            ["7", "8"],
        ),
        ("-", "red cat\nold dog\n", {"format": "lines"}, ["1", "2"]),
        ("-", '{"text": "red cat"}\n{"text": "old dog"}\n', {}, ["1", "2"]),
        ("-", '{"id": "x", "text": "red cat"}\n{"text": "old dog", "id": 7}\n', {}, ["x", "7"]),
        ("-", '{"id": null, "text": "red cat"}\n{"text": "old dog"}\n', {}, ["1", "2"]),
        ("-", "id,text\nx,red cat\ny,old dog\n", {"format": "csv"}, ["x", "y"]),
        ("-", "ID,text\nx,red cat\ny,old dog\n", {"format": "csv"}, ["x", "y"]),
        ("-", '{"Id": "x", "text": "red cat"}\n{"text": "old dog", "Id": 7}\n', {}, ["x", "7"]),
        ("-", "red cat,a\nold dog,b\n", {"format": "csv", "header": False, "text": 1}, ["1", "2"]),
    ],
)
def test_tables_of_every_kind(
    embedder: Embedder,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    content: str,
    options: dict[str, Any],
    ids: list[str],
) -> None:
    source: Path | str = "-"
    if name == "-":
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content.encode())))
    else:
        source = tmp_path / name
        source.write_text(content)
    run(embedder, source, tmp_path / "v.parquet", **options)
    found = read_vectors(tmp_path / "v.parquet")
    assert found.ids == ids
    np.testing.assert_allclose(found.vectors, embedder.documents(["red cat", "old dog"]), atol=1e-6)


@pytest.mark.parametrize("name", ["a.csv", "-"])
@pytest.mark.parametrize("given", [0, "0", ""])
def test_an_id_that_is_no_column_is_not_passed_over(
    embedder: Embedder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, given: str | int
) -> None:
    """0 and '' were, and the rows' numbers stood for the ids."""
    content = b"red cat,x\nold dog,y\n"
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))
    (tmp_path / "a.csv").write_bytes(content)
    source = tmp_path / name if name != "-" else name
    with pytest.raises(InputError, match="no column"):
        run(embedder, source, tmp_path / "v.parquet", text=1, id=given, header=False, format="csv")


def test_a_blank_line_is_an_empty_text_so_that_ids_are_numbers_of_lines(
    embedder: Embedder, tmp_path: Path
) -> None:
    (tmp_path / "a.txt").write_text("red cat\n\nold dog\n")
    run(embedder, tmp_path / "a.txt", tmp_path / "v.parquet")
    found = read_vectors(tmp_path / "v.parquet")
    assert found.ids == ["1", "2", "3"]
    np.testing.assert_allclose(found.vectors, embedder.documents(["red cat", "", "old dog"]), atol=1e-6)


def test_texts_that_the_line_ends_of_quoted_tsv_tear_are_told(embedder: Embedder, tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text('text\tlabel\n"red\ncat"\t1\nold dog\t0\n')
    result = run(embedder, tmp_path / "a.tsv", tmp_path / "v.parquet")
    assert result.whole.texts == 3
    assert "and 1 of them torn into several rows" in result.doubts[0]


def test_an_id_that_only_a_later_row_of_a_file_has_is_not_dropped(embedder: Embedder, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "red"}\n{"id": 5, "text": "cat"}\n')
    with pytest.raises(InputError, match=r"a\.jsonl, line 1: .*'id'"):
        run(embedder, tmp_path / "a.jsonl", tmp_path / "out.parquet")


@pytest.mark.parametrize("first", ['{"text": "red cat"}', '{"text": "red cat", "id": null}'])
def test_an_id_that_only_a_later_row_of_a_stream_has_is_not_dropped(
    embedder: Embedder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: str
) -> None:
    lines = f'{first}\n{{"text": "old dog", "id": "x"}}\n'
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(lines.encode())))
    with pytest.raises(InputError, match=r"line 2 has the id 'x', and the first row has none"):
        run(embedder, "-", tmp_path / "v.parquet")


def test_ids_that_the_first_row_of_a_stream_has_are_asked_of_all(
    embedder: Embedder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = b'{"id": "x", "text": "red cat"}\n{"text": "old dog"}\n'
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))
    with pytest.raises(InputError, match=r"line 2: expected an id, .* found None"):
        run(embedder, "-", tmp_path / "v.parquet")


@pytest.mark.parametrize(
    ("precision", "width", "complaint"),
    [
        ("int8", 16, "ranges are for vectors of 16 dimensions, but these have 32"),
        ("float32", 32, "Ranges are for int8 vectors, found float32. Add --store-dtype int8"),
    ],
)
def test_ranges_that_do_not_fit_are_refused_before_anything_is_computed(
    embedder: Embedder, table: Path, tmp_path: Path, precision: str, width: int, complaint: str
) -> None:
    ranges = Int8Ranges.of(np.zeros((2, width), np.float32))
    with pytest.raises(InputError, match=complaint):
        run(embedder, table, tmp_path / "v.parquet", store_dtype=precision, ranges=ranges)
    assert list(tmp_path.iterdir()) == [table]


def test_a_parquet_table_and_queries(embedder: Embedder, tiny_bert: Path, tmp_path: Path) -> None:
    pq.write_table(pa.table({"question": ["red", None]}), tmp_path / "q.parquet")
    asking = Embedder(tiny_bert, query_prefix="new ")
    run(asking, tmp_path / "q.parquet", tmp_path / "v.parquet", kind="query")
    found = read_vectors(tmp_path / "v.parquet")
    np.testing.assert_allclose(found.vectors, embedder.documents(["new red", "new "]), atol=1e-6)
    assert (found.about.kind, found.about.prefix) == ("query", "new ")


def test_int8_ranges_come_from_the_first_shard_or_from_another_file(
    embedder: Embedder, table: Path, tmp_path: Path
) -> None:
    whole = embedder.documents(TEXTS)
    result = run(embedder, table, tmp_path / "a.parquet", store_dtype="int8")
    first = read_vectors(tmp_path / "a.parquet")
    ranges = first.about.int8_ranges
    assert ranges is not None
    np.testing.assert_allclose(ranges.lowest, whole[:5].min(0), atol=1e-6)
    np.testing.assert_allclose(first.vectors, ranges.decode(ranges.encode(whole)), atol=1e-2)
    assert result.loss is not None
    assert 0 < result.loss.cosine_error < 0.01
    assert pq.read_schema(tmp_path / "a.parquet").field("vector").type == pa.list_(pa.int8(), 32)
    (tmp_path / "one.txt").write_text("green bird\n")
    run(embedder, tmp_path / "one.txt", tmp_path / "b.parquet", store_dtype="int8", ranges=ranges)
    assert read_about(tmp_path / "b.parquet").ranges == first.about.ranges


def test_bits(embedder: Embedder, table: Path, tmp_path: Path) -> None:
    run(embedder, table, tmp_path / "v.parquet", store_dtype="binary")
    found = read_vectors(tmp_path / "v.parquet")
    assert pq.read_schema(tmp_path / "v.parquet").field("vector").type == pa.list_(pa.uint8(), 4)
    clear = np.abs(embedder.documents(TEXTS)) > 1e-5
    assert ((found.vectors > 0) == (embedder.documents(TEXTS) > 0))[clear].all()


def test_texts_and_tokens_are_counted_to_the_end(embedder: Embedder, table: Path, tmp_path: Path) -> None:
    seen = []
    result = run(embedder, table, tmp_path / "v.parquet", watch=seen.append)
    tokens = sum(len(embedder.tokenizer.encode(text).ids) + 2 for text in TEXTS)
    assert (
        (seen[-1].texts, seen[-1].tokens) == (result.whole.texts, result.whole.tokens) == (len(TEXTS), tokens)
    )


# -- killed and resumed --------------------------------------------------------------------------------------

KILLS = [
    ("before a shard", 1, "float32"),
    ("before a shard", 2, "int8"),
    ("before a shard", 4, "float32"),
    ("after a shard", 1, "int8"),
    ("after a shard", 3, "float32"),
    ("after a shard", 4, "binary"),
    ("within the write of a file", 1, "int8"),
    ("within the write of a file", 2, "float32"),
    ("before the ranges are noted", 2, "int8"),
    ("before joining", 1, "int8"),
    ("while joining", 1, "float32"),
    ("while joining", 2, "float32"),
    ("before the parts are removed", 1, "float32"),
]


@pytest.mark.parametrize(("place", "time", "precision"), KILLS)
def test_a_job_killed_anywhere_ends_in_the_same_file(
    tiny_bert: Path, embedder: Embedder, table: Path, tmp_path: Path, place: str, time: int, precision: str
) -> None:
    expected, out = tmp_path / "whole.parquet", tmp_path / "v.parquet"
    run(embedder, table, expected, store_dtype=precision)
    status = kill_at(place, time, tiny_bert, table, out, shard_rows=5, store_dtype=precision)
    assert status == -signal.SIGKILL
    result = run(embedder, table, out, store_dtype=precision, resume=True)
    assert out.read_bytes() == expected.read_bytes()
    assert result.whole.texts == len(TEXTS)
    assert sorted(tmp_path.iterdir()) == sorted([table, expected, out])


def interrupted(embedder: Embedder, table: Path, out: Path, **changes: Any) -> None:
    """A job that ends by an error after its first shard."""

    def stop(count: Any) -> None:
        if count.texts > 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(embedder, table, out, watch=stop, **changes)


def test_what_is_finished_is_not_computed_again(embedder: Embedder, table: Path, tmp_path: Path) -> None:
    out = tmp_path / "v.parquet"
    interrupted(embedder, table, out)
    assert not out.exists()
    result = run(embedder, table, out, resume=True)
    assert (result.computed.texts, result.whole.texts) == (len(TEXTS) - 5, len(TEXTS))


def test_unfinished_parts_are_refused_without_resume(embedder: Embedder, table: Path, tmp_path: Path) -> None:
    interrupted(embedder, table, tmp_path / "v.parquet")
    with pytest.raises(
        InputError, match=r"v.parquet.parts holds the parts of an unfinished job. With --resume"
    ):
        run(embedder, table, tmp_path / "v.parquet")


def test_of_two_jobs_at_one_file_the_second_is_told_of_the_first(
    embedder: Embedder, table: Path, tmp_path: Path
) -> None:
    refused = list[str]()

    def again(count: object) -> None:
        if not refused:
            with pytest.raises(InputError, match=f"is being written to by process {os.getpid()}") as error:
                run(
                    Embedder(embedder.folder, query_prefix="new "),
                    table,
                    tmp_path / "v.parquet",
                    kind="query",
                )
            refused.append(str(error.value))

    run(embedder, table, tmp_path / "v.parquet", watch=again)
    assert refused
    assert read_about(tmp_path / "v.parquet").kind == "document"
    assert sorted(tmp_path.iterdir()) == sorted([table, tmp_path / "v.parquet"])


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda rows: [*rows[:2], rows[2] | {"text": "old"}, *rows[3:]], "shard 0 has other rows now"),
        (lambda rows: [*rows[:2], rows[2] | {"id": "new"}, *rows[3:]], "shard 0 has other rows now"),
        (lambda rows: rows[:4], "shard 0 has other rows now"),
    ],
)
def test_a_changed_input_is_not_resumed(
    embedder: Embedder, table: Path, tmp_path: Path, change: Any, complaint: str
) -> None:
    interrupted(embedder, table, tmp_path / "v.parquet")
    table.write_text("".join(json.dumps(row) + "\n" for row in change(ROWS)))
    with pytest.raises(InputError, match=complaint):
        run(embedder, table, tmp_path / "v.parquet", resume=True)


def test_other_settings_are_not_resumed(embedder: Embedder, table: Path, tmp_path: Path) -> None:
    interrupted(embedder, table, tmp_path / "v.parquet")
    with pytest.raises(
        InputError, match=r"made with precision 'float32', not 'binary'. Resume with the same"
    ):
        run(embedder, table, tmp_path / "v.parquet", store_dtype="binary", resume=True)


def test_a_vocabulary_that_changed_since_is_not_resumed(
    embedder: Embedder, table: Path, tmp_path: Path
) -> None:
    """Neither with parts nor with a finished file; one that didn't note its vocabulary is believed."""
    other = Embedder(embedder.folder)
    pieces = embedder.tokenizer.pieces
    cat, dog = pieces.index("cat"), pieces.index("dog")
    swapped = [*pieces[:cat], "dog", *pieces[cat + 1 : dog], "cat", *pieces[dog + 1 :]]
    other.tokenizer = Tokenizer.from_pieces(swapped, lowercase=True)
    interrupted(embedder, table, tmp_path / "v.parquet")
    with pytest.raises(InputError, match=r"parts was made with tokenizer_sha256 '\w+', not '\w+'. Resume"):
        run(other, table, tmp_path / "v.parquet", resume=True)
    run(embedder, table, tmp_path / "v.parquet", resume=True)
    with pytest.raises(InputError, match=r"v.parquet was made with tokenizer_sha256"):
        run(other, table, tmp_path / "v.parquet", resume=True)
    noted = read_about(tmp_path / "v.parquet")
    require_same(noted.model_copy(update={"tokenizer_sha256": ""}), noted, tmp_path)


def test_a_finished_file_is_refused_or_left_as_it_is(embedder: Embedder, table: Path, tmp_path: Path) -> None:
    out = tmp_path / "v.parquet"
    run(embedder, table, out)
    before = (out.stat().st_ino, out.stat().st_mtime_ns)
    with pytest.raises(InputError, match="already exists"):
        run(embedder, table, out)
    result = run(embedder, table, out, resume=True)
    assert (result.whole.texts, result.computed.texts) == (len(TEXTS), 0)
    assert (out.stat().st_ino, out.stat().st_mtime_ns) == before
    with pytest.raises(InputError, match="made with kind 'document', not 'query'"):
        run(embedder, table, out, kind="query", resume=True)


def test_of_a_finished_file_only_a_shard_of_ids_is_held(
    embedder: Embedder, table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(embedder, table, tmp_path / "v.parquet")
    read = list[ShardedRows]()

    def noted(rows: Any, size: int) -> ShardedRows:
        read.append(ShardedRows(rows, size))
        return read[-1]

    monkeypatch.setattr(job, "ShardedRows", noted)
    assert run(embedder, table, tmp_path / "v.parquet", resume=True).whole.texts == len(TEXTS)
    assert read[0].shards == 4 and len(read[0].waiting) <= 1


@pytest.mark.parametrize("change", [{"text": "old"}, {"id": "new"}, None])
def test_a_finished_file_of_other_rows_is_not_taken_for_theirs(
    embedder: Embedder, table: Path, tmp_path: Path, change: dict[str, str] | None
) -> None:
    run(embedder, table, tmp_path / "v.parquet")
    rows = ROWS[:-1] if change is None else [*ROWS[:-1], ROWS[-1] | change]
    table.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(InputError, match=r"v.parquet was made from other rows than the input has now"):
        run(embedder, table, tmp_path / "v.parquet", resume=True)


def test_a_finished_file_may_have_been_made_in_other_shards(
    embedder: Embedder, table: Path, tmp_path: Path
) -> None:
    run(embedder, table, tmp_path / "v.parquet", shard_rows=3)
    assert run(embedder, table, tmp_path / "v.parquet", resume=True).computed.texts == 0


def test_other_shards_are_not_resumed(embedder: Embedder, table: Path, tmp_path: Path) -> None:
    interrupted(embedder, table, tmp_path / "v.parquet")
    with pytest.raises(InputError, match=r"holds shards of 5 rows, not 4. Resume with --shard-rows 5"):
        run(embedder, table, tmp_path / "v.parquet", shard_rows=4, resume=True)


def test_vectors_of_another_length_or_pooling_are_other_vectors(
    tiny_bert: Path, embedder: Embedder, table: Path, tmp_path: Path
) -> None:
    run(embedder, table, tmp_path / "v.parquet")
    with pytest.raises(InputError, match="made with normalise True, not False"):
        run(Embedder(tiny_bert, normalise=False), table, tmp_path / "v.parquet", resume=True)
    other = Embedder(tiny_bert)
    other.pooling = "max"
    with pytest.raises(InputError, match="made with pooling 'mean', not 'max'"):
        run(other, table, tmp_path / "v.parquet", resume=True)


def test_shards_are_counted_past_the_width_of_their_names(
    embedder: Embedder, table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Shard 100,000 stands before shard 10,001 in the order of names, as 10 before 2 here."""
    monkeypatch.setattr(ShardFolder, "_path", lambda self, number: self.folder / f"shard-{number}.parquet")
    result = run(embedder, table, tmp_path / "v.parquet", shard_rows=1)
    assert result.whole.texts == len(TEXTS) > 10
    assert read_vectors(tmp_path / "v.parquet").ids == [row["id"] for row in ROWS]


def test_a_shard_that_is_gone_at_the_end_is_missed(
    embedder: Embedder, table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "v.parquet"
    join = ShardFolder.join

    def lose(parts: ShardFolder, *given: Any) -> None:
        (parts.folder / "shard-00002.parquet").unlink()
        join(parts, *given)

    monkeypatch.setattr(ShardFolder, "join", lose)
    with pytest.raises(InputError, match=r"shard-00002.parquet is gone. Run this again with --resume"):
        run(embedder, table, out)
    assert not out.exists()
    monkeypatch.undo()
    run(embedder, table, out, resume=True)
    assert len(read_vectors(out).ids) == len(TEXTS)


# -- refused -------------------------------------------------------------------------------------------------


def test_a_full_disk_leaves_what_stood(
    embedder: Embedder, table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "v.parquet"
    written = 0

    def full(path: Path, content: bytes) -> None:
        nonlocal written
        written += 1
        if written > 1:
            raise ResourceError("The disk is full")
        path.write_bytes(content)

    monkeypatch.setattr(shards, "atomic_write", full)
    with pytest.raises(ResourceError, match="disk is full"):
        run(embedder, table, out)
    monkeypatch.undo()
    assert run(embedder, table, out, resume=True).computed.texts == len(TEXTS) - 5


@pytest.mark.parametrize(
    ("content", "options", "complaint"),
    [
        ('{"matter": 1}', {}, "no column has a name that says it holds the text"),
        ('{"question": "a", "answer": "b"}', {}, "the text could be question or answer. Name it with --text"),
        ('{"text": 1}', {}, "line 1: expected a text, found"),
        ('{"id": null, "text": "a"}', {}, "line 1: expected an id, a string or a whole number; found None"),
        ('{"text": "a"}\n{', {}, "line 2: expected one JSON object"),
        ('{"id": "\\ud800", "text": "a"}', {}, r"line 1: the id '\\ud800' holds half of a UTF-16 pair"),
        ('{"text": "a"}', {"shard_rows": 0}, "--shard-rows must be 1 or more"),
    ],
)
def test_rows_that_cannot_be_read_leave_nothing(
    embedder: Embedder, tmp_path: Path, content: str, options: dict[str, Any], complaint: str
) -> None:
    source = tmp_path / "rows.jsonl"
    source.write_text(content)
    with pytest.raises(InputError, match=complaint):
        run(embedder, source, tmp_path / "v.parquet", **options)
    assert list(tmp_path.iterdir()) == [source]


def test_what_is_no_file_of_vectors_is_refused(embedder: Embedder, table: Path, tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": [1]}), tmp_path / "other.parquet")
    with pytest.raises(InputError, match=r"other.parquet is not a whole file of vectors"):
        read_vectors(tmp_path / "other.parquet")
    with pytest.raises(InputError, match="does not exist"):
        read_vectors(tmp_path / "none.parquet")
    interrupted(embedder, table, tmp_path / "v.parquet")
    shard = tmp_path / "v.parquet.parts" / "shard-00000.parquet"
    shard.write_bytes(shard.read_bytes()[:-9])
    with pytest.raises(InputError, match=r"shard-00000.parquet is damaged \(.*Remove it, and run this again"):
        run(embedder, table, tmp_path / "v.parquet", resume=True)
