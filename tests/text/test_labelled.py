"""Labelled rows: every format gives the same, real files their published counts, errors name the line."""

import csv
import gzip
import io
import json
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import csv as arrow_csv

from bertsmith.errors import InputError
from bertsmith.text.files.columns import Columns, guess_columns
from bertsmith.text.files.rows import (
    guess_file_columns,
    read_column_names,
    read_rows,
    stream_texts,
)
from bertsmith.text.files.tables import Row

EMPTY_TEXTS = {"reuters/test.jsonl": 276}  # headlines without an article
RECORDS = [{"id": "1", "text": 'say "a, b"', "label": "x"}, {"id": "2", "text": "é 🎉", "label": "y"}]


def written(folder: Path, format: str) -> Path:
    """RECORDS in a format, written by other libraries than the ones under test."""
    path = folder / f"a.{format}"
    if format == "parquet":
        pq.write_table(pa.Table.from_pylist(RECORDS), path)
    elif format == "csv":
        with path.open("w", newline="", encoding="utf-8-sig") as file:
            writer = csv.DictWriter(file, ["id", "text", "label"])
            writer.writeheader()
            writer.writerows(RECORDS)
    else:
        lines = {
            "tsv": ["id\ttext\tlabel", *("\t".join(record.values()) for record in RECORDS)],
            "jsonl": ["", *map(json.dumps, RECORDS)],
            "json": [json.dumps(RECORDS, indent=1)],
        }[format]
        path.write_text("\n".join(lines), encoding="utf-8")
    return path


@pytest.mark.parametrize("pack", [None, "gz", "zst"])
@pytest.mark.parametrize(
    ("format", "places"),
    [
        ("csv", ("line 2", "line 3")),
        ("tsv", ("line 2", "line 3")),
        ("jsonl", ("line 2", "line 3")),
        ("json", ("item 1", "item 2")),
        ("parquet", ("row 1", "row 2")),
    ],
)
def test_every_format_gives_the_same_rows(
    tmp_path: Path, format: str, places: tuple[str, str], pack: str | None
) -> None:
    path = written(tmp_path, format)
    if pack:
        compress = {"gz": gzip.compress, "zst": zstandard.compress}[pack]
        packed = path.with_name(f"{path.name}.{pack}")
        packed.write_bytes(compress(path.read_bytes()))
        path = packed
    expected = [
        Row((record["label"], record["text"], record["label"]), f"{path}, {place}")
        for record, place in zip(RECORDS, places)
    ]
    assert read_rows(path, ["label", "text", "label"]) == expected
    assert read_column_names(path) == ["id", "text", "label"]
    if "json" not in format:
        assert read_rows(path, [3, "2", "label"]) == expected


@pytest.mark.parametrize(
    ("file", "columns", "options", "count"),
    [
        ("sst2/dev.tsv", ["sentence", "label"], {}, 872),
        ("sst2/test-labeled.tsv", ["sentence", "label"], {}, 1821),
        ("glue_mrpc/msr-para-val.tsv", ["Quality", "#1 String", "#2 String"], {}, 500),
        ("glue_mrpc/msr-para-train.tsv", ["Quality", "#1 String", "#2 String"], {}, 3576),
        ("glue_mrpc/msr-para-test.tsv", ["Quality", "#1 String", "#2 String"], {}, 1725),
        ("glue_rte/train.tsv", ["sentence1", "sentence2", "label"], {}, 2127),
        ("glue_rte/val.tsv", [2, 3, 4], {"header": False}, 2490 - 2127),  # RTE's published train set is 2,490
        ("glue_rte/dev.tsv", ["sentence1", "sentence2", "label"], {}, 277),
        ("stsb/sts-train.csv", [6, 7, 5], {"format": "tsv", "header": False}, 5749),
        ("stsb/sts-dev.csv", [6, 7, 5], {"format": "tsv", "header": False}, 1500),
        ("stsb/sts-test.csv", [6, 7, 5], {"format": "tsv", "header": False}, 1379),
        ("wikiqa/dev.tsv", [1, 2, 3], {"header": False}, 2733),
        ("banking77/test.csv", ["text", "category"], {}, 3080),
        ("reuters/test.jsonl", ["text", "topics"], {}, 3285),
    ],
)
def test_real_files_have_their_published_number_of_rows(
    shared_data: Path, file: str, columns: list[str | int], options: dict[str, Any], count: int
) -> None:
    rows = read_rows(shared_data / file, columns, **options)
    assert len(rows) == count
    empty = [row.where for row in rows if row.values[0] == ""]
    assert len(empty) == EMPTY_TEXTS.get(file, 0)


def test_both_forms_of_sts_b_agree(shared_data: Path) -> None:
    by_tab = read_rows(shared_data / "stsb/sts-dev.csv", [6, 7, 5], format="tsv", header=False)
    by_comma = read_rows(shared_data / "stsb/stsb-en-dev.csv", [1, 2, 3], header=False)
    assert len(by_tab) == len(by_comma)
    assert [float(row.values[2]) for row in by_tab] == [float(row.values[2]) for row in by_comma]


def test_standard_input_is_json_lines_unless_said_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    for text, format in (('{"a": 1}\n', None), ("a\n1\n", "csv")):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
        ((values, where),) = read_rows("-", ["a"], format=format)
        assert str(values[0]) == "1"
        assert where.startswith("standard input, line")
        assert not sys.stdin.buffer.closed


def test_a_row_is_placed_at_the_line_it_begins_on(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('t\n"over\ntwo lines"\n\nlast\n')
    assert read_rows(tmp_path / "a.csv", ["t"]) == [
        Row(("over\ntwo lines",), f"{tmp_path}/a.csv, line 2"),
        Row(("last",), f"{tmp_path}/a.csv, line 5"),
    ]


@settings(deadline=None, max_examples=50)
@given(st.lists(st.tuples(st.text(st.characters(exclude_characters="\r\0", codec="utf-8")), st.integers())))
def test_any_text_survives_csv(tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, int]]) -> None:
    path = tmp_path_factory.mktemp("rows") / "a.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("t", "n"), *rows, ("end", 0)])
    assert [row.values for row in read_rows(path, ["t", "n"])] == [
        (t, str(n)) for t, n in [*rows, ("end", 0)]
    ]


@pytest.mark.parametrize(
    ("name", "content", "columns", "complaint"),
    [
        ("a.csv", b"", ["t"], r"a\.csv has no rows"),
        ("a.csv", b"t,l\n", ["t"], r"a\.csv has no rows"),
        ("a.json", b"[]", ["t"], r"a\.json has no rows"),
        ("a.csv", b"text,l\n", ["tekst"], r"no column 'tekst'\. There are: text, l\. Did you mean 'text'\?"),
        ("a.csv", b"t,t\na,b\n", ["t"], r"columns 1, 2 are all called 't'"),
        ("a.csv", b"t,l\na,b\n", [3], r"no column 3\. There are: t, l"),
        ("a.csv", b"t,l\na,b\n", [0], r"no column 0: columns count from 1"),
        ("a.csv", b"t,l\na,b\n", ["-1"], r"no column -1: columns count from 1"),
        ("a.tsv", b"t\tl\na\tb\nc\n", ["l"], r"a\.tsv, line 3: expected 2 columns or more, found 1"),
        (
            "a.csv",
            b"t,l\na, b,c\n",
            ["t", "l"],
            r"a\.csv, line 2: expected 2 columns as in the header, found 3",
        ),
        (
            "a.csv",
            b"t\tl\na, b\tc\n",
            ["t"],
            r"no column 't'\. There are: t\tl\. It looks separated by tabs: --format",
        ),
        ("a.csv", b"t|l\na|b\n", ["l"], r"looks separated by vertical bars: save it with commas or tabs"),
        ("a.csv", b"t;l\na;b\n", ["l"], r"looks separated by semicolons: save it with commas or tabs"),
        ("a.tsv", b"t,l\na,b\n", [2], r"looks separated by commas: --format csv reads it"),
        ("a.csv", b"t,l\na\tb\n", ["l"], r"line 2: .*looks separated by tabs: --format tsv reads it"),
        ("a.csv", b't\nb\n"c\n', ["t"], r"a\.csv, line 3: not valid CSV"),
        ("a.csv", b"t\nb\xe9\n", ["t"], r"a\.csv: expected utf-8 text, found 0xe9 at byte 3, in line 2"),
        ("a.csv", b"t\0\n", ["t"], r"a\.csv: expected csv text, found a NUL character at byte 1"),
        ("a.csv", b"t,l\nok,b\nno\0,c\n", ["t"], r"found a NUL character at byte 11, in line 3\. Remove it"),
        *(
            ("a.csv", content.encode(name), ["t"], rf"found what looks like {name} without a .* \('{name}',")
            for name in ("utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be")
            for content in ("t,l\nok,b\n", "t,l\n世界,こ\n" * 3000)
        ),
        ("a.csv", bytes(range(256)) * 40, ["t"], r"a\.csv: expected csv text, found binary data"),
        ("a.jsonl", b'{"t": 1}\n{"t"\n', ["t"], r"a\.jsonl, line 2: expected one JSON object"),
        ("a.jsonl", b'{"t": 1}\n{"u": 1}\n', ["t"], r"a\.jsonl, line 2: no column 't'\. There are: u"),
        ("a.json", b'[{"t": 1}, 2]', ["t"], r"a\.json, item 2: expected a JSON object, found int"),
        ("a.json", b'[{"t": 1},\n{"t": 2},\n]', ["t"], r"\(A comma behind the last item: line 2 column 9"),
        ("a.jsonl", b'{"t": 1, }\n', ["t"], r"line 1: .*\(A comma behind the last item: line 1 column 8"),
        ("a.jsonl", b'{"t": 1},\n', ["t"], r"line 1: .*\(A comma at the end: line 1 column 9"),
        ("a.jsonl", b'{"t": 1}\n{"t": 1, "t": 2}\n', ["t"], r"line 2: .*\(the key 't' stands twice in one"),
        ("a.json", b'[{"t": 1, "u": {"v": 1, "v": 2}}]', ["t"], r"a\.json: .*\(the key 'v' stands twice in"),
        ("a.json", b"[" * 100_000, ["t"], r"a\.json: expected one JSON list"),
        ("a.parquet", b"PAR1", ["t"], r"a\.parquet: not a whole Parquet file"),
        ("a.xyz", b"t\n", ["t"], r"ending \.xyz tells no format\. Name it with --format \(csv"),
    ],
)
def test_what_is_wrong_is_said(
    tmp_path: Path, name: str, content: bytes, columns: list[str | int], complaint: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=complaint):
        read_rows(tmp_path / name, columns)


def test_without_a_header_a_row_of_csv_is_no_longer_than_the_first(tmp_path: Path) -> None:
    """Its text's comma isn't quoted: "hello" would have the label "world"."""
    path = tmp_path / "a.csv"
    path.write_text("good,pos\nhello, world,pos\n")
    with pytest.raises(InputError, match=r"a\.csv, line 2: expected 2 columns as in the first row, found 3"):
        read_rows(path, [1, 2], header=False)
    path.write_text("good,pos,\nbad,neg\n")
    assert [row.values for row in read_rows(path, [1, 2], header=False)] == [("good", "pos"), ("bad", "neg")]


def test_a_missing_file_a_folder_and_an_unknown_format_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("t\na\n")
    with pytest.raises(InputError, match="does not exist"):
        read_rows(tmp_path / "b.csv", ["t"])
    with pytest.raises(InputError, match="is a folder"):
        read_rows(tmp_path, ["t"])
    with pytest.raises(InputError, match="no format 'xls'"):
        read_rows(tmp_path / "a.csv", ["t"], format="xls")
    with pytest.raises(InputError, match="without a header, columns have only numbers"):
        read_rows(tmp_path / "a.csv", ["t"], header=False)


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["sentence", "label"], Columns("sentence", None, "label")),
        (["index", "Sentence1", "Sentence2", "Label"], Columns("Sentence1", "Sentence2", "Label")),
        (
            ["Quality", "#1 ID", "#2 ID", "#1 String", "#2 String"],
            Columns("#1 String", "#2 String", "Quality"),
        ),
        (["title", "text", "topics"], Columns("text", None, "topics")),
        (["question"], Columns("question", None, None)),
        *(
            ([name, "id", label], Columns(name, None, label))
            for name in (
                *("message", "Body", "comment", "utterance", "query", "content", "review", "sentence"),
                *(
                    "document",
                    "tweet",
                    "post",
                    "reviewText",
                    "review_body",
                    "comment-text",
                    "title",
                    "Headline",
                ),
            )
            for label in ("intent", "Category", "class", "target", "sentiment", "topic", "tag", "emotion")
        ),
        (["title", "body", "label", "tags"], Columns("body", None, "label")),
        (["subject", "title", "message", "stars"], Columns("message", None, "stars")),
        (["Sentence 1", "sentence_2", "gold-label"], Columns("Sentence 1", "sentence_2", "gold-label")),
        (["question", "passage", "label"], Columns("question", "passage", "label")),  # BoolQ
    ],
)
def test_columns_are_guessed(names: list[str], expected: Columns) -> None:
    assert guess_columns(names, "a.csv") == expected


def test_a_guess_is_never_a_choice() -> None:
    with pytest.raises(InputError, match=r"text could be text or review\. .* --text"):
        guess_columns(["text", "review"], "a.csv")
    with pytest.raises(InputError, match=r"no column has a name .* There are: a, b"):
        guess_columns(["a", "b"], "a.csv")
    with pytest.raises(InputError, match="looks separated by tabs"):  # "reviewtext" would be one column
        guess_columns(["review\ttext"], "a.csv")
    with pytest.raises(InputError, match=r"label, score could all be the label\. Name one with --label"):
        guess_columns(["text", "label", "score"], "a.csv")
    with pytest.raises(InputError, match=r"text could be headline or title\. .* --text"):
        guess_columns(["title", "headline", "label"], "a.csv")
    with pytest.raises(InputError, match=r"tags, stars could all be the label\. Name one with --label"):
        guess_columns(["text", "stars", "tags"], "a.csv")
    with pytest.raises(InputError, match=r"text could be Text or text\. .* --text"):
        guess_columns(["Text", "text", "label"], "a.csv")
    with pytest.raises(InputError, match=r"Sentence1 with sentence2 or sentence1 with sentence2\. "):
        guess_columns(["Sentence1", "sentence1", "sentence2"], "a.csv")
    with pytest.raises(InputError, match=r"LABEL, label could all be the label"):
        guess_columns(["text", "LABEL", "label"], "a.csv")
    names = ["text", "review", "label", "score"]
    assert guess_columns(names, "a.csv", text=2, label="score") == Columns(2, None, "score")


@pytest.mark.parametrize(
    ("names", "said", "expected"),
    [
        (["question", "answer"], {"label": "answer"}, Columns("question", None, "answer")),
        (["question", "answer"], {"label": 2}, Columns("question", None, 2)),
        (["text", "score"], {"label": "score"}, Columns("text", None, "score")),
        (["text", "label", "score"], {"label": "label"}, Columns("text", None, "label")),
        (["text", "label", "score"], {"labelled": False}, Columns("text", None, None)),
        (["body", "label"], {"text": "body"}, Columns("body", None, "label")),
        (["text", "review", "label"], {"text": "review"}, Columns("review", None, "label")),
        (["text", "question", "label"], {"text_pair": "question"}, Columns("text", "question", "label")),
        (["premise", "hypothesis"], {"text_pair": "hypothesis"}, Columns("premise", "hypothesis", None)),
        (["text", "query", "label"], {"besides": ["query"]}, Columns("text", None, "label")),
    ],
)
def test_a_named_column_plays_no_other_role(
    names: list[str], said: dict[str, Any], expected: Columns
) -> None:
    assert guess_columns(names, "a.csv", **said) == expected


def test_a_named_partner_is_not_left_out() -> None:
    with pytest.raises(InputError, match=r"There are: sentence1, sentence2\. Name the text with --text"):
        guess_columns(["sentence1", "sentence2", "body"], "a.csv", text_pair="body")


@pytest.mark.parametrize("ending", ["jsonl", "json"])
@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"question": "a", "label": 1}, {"question": "b", "context": "c", "label": 2}),
        ({"passage": "a", "label": 1}, {"question": "b", "passage": "c", "label": 2}),
        ({"title": "a", "label": 1}, {"title": "b", "text": "c", "label": 2}),
    ],
)
def test_a_text_that_the_first_object_lacks_is_not_left_out(
    tmp_path: Path, ending: str, first: dict[str, Any], second: dict[str, Any]
) -> None:
    """In CSV, whose header has all names, it would be read."""
    (tmp_path / f"a.{ending}").write_text(f"{json.dumps(first)}\n{json.dumps(second)}\n")
    for labelled in (True, False):
        with pytest.raises(InputError, match=r"first row has no '\w+'\. .* --text"):
            guess_file_columns(tmp_path / f"a.{ending}", labelled=labelled)
    with pytest.raises(InputError, match="first row has no"):
        list(stream_texts(tmp_path / f"a.{ending}"))
    read = next(iter(first))
    assert list(stream_texts(tmp_path / f"a.{ending}", read)) == ["a", second[read]]


def test_texts_of_tables_and_of_lines_come_in_order(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("text,label\none,x\ntwo,y\none,z\n")
    (tmp_path / "b.txt").write_text("one\n\ntwo\n")
    assert list(stream_texts(tmp_path / "a.csv")) == ["one", "two", "one"]
    assert list(stream_texts(tmp_path / "b.txt")) == ["one", "two"]
    assert list(stream_texts(tmp_path / "a.csv", "label")) == ["x", "y", "z"]
    (tmp_path / "pairs.csv").write_text("question,answer\nWhere?,There.\n")
    with pytest.raises(InputError, match="the text could be question or answer"):
        list(stream_texts(tmp_path / "pairs.csv"))
    assert list(stream_texts(tmp_path / "pairs.csv", "answer")) == ["There."]


@pytest.mark.parametrize("said", [{}, {"text": "text"}])
def test_a_label_that_the_first_object_lacks_gives_way_to_no_other_column(
    tmp_path: Path, said: dict[str, str]
) -> None:
    """In CSV the column `label` wins over `tags`."""
    rows = [{"text": "a", "tags": "x"}, {"text": "b", "tags": "y", "label": 1}]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    with pytest.raises(
        InputError, match=r"the label is label, but the first row has no 'label'\. .* --label"
    ):
        guess_file_columns(tmp_path / "a.jsonl", **said)
    assert guess_file_columns(tmp_path / "a.jsonl", label="tags", **said) == Columns("text", None, "tags")


@pytest.mark.parametrize("more", [{"title": "t"}, {"score": 1}, {"id": 3, "date": "d"}, {"comment": "c"}])
def test_what_only_some_objects_say_besides_changes_no_text(tmp_path: Path, more: dict[str, Any]) -> None:
    rows = [{"text": "a", "label": 1}, {"text": "b", "label": 2} | more]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    assert guess_file_columns(tmp_path / "a.jsonl") == Columns("text", None, "label")


def test_without_a_header_no_cell_is_an_id(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("a\tb\nc\td\thttp://x\n")
    rows = read_rows(tmp_path / "a.tsv", [1], header=False, optional=["id"])
    assert [row.values for row in rows] == [("a", None), ("c", None)]


@pytest.mark.parametrize(
    ("name", "content"), [("a.csv", b""), ("a.tsv", b""), ("a.jsonl", b"\n"), ("a.json", b"[]")]
)
def test_a_file_without_anything_has_no_rows_rather_than_no_columns(
    tmp_path: Path, name: str, content: bytes
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=r"has no rows\. Expected at least one, as"):
        read_column_names(tmp_path / name)


@pytest.mark.parametrize("format", ["csv", "tsv", "jsonl", "json", "parquet"])
def test_columns_that_a_table_may_lack_are_none(tmp_path: Path, format: str) -> None:
    rows = read_rows(written(tmp_path, format), ["text"], optional=["id", "gone"])
    plain = read_rows(written(tmp_path, format), ["text", "id"])
    assert [row.values for row in rows] == [(*row.values, None) for row in plain]


@pytest.mark.parametrize("format", ["csv", "tsv", "parquet"])
def test_an_optional_column_that_a_table_has_twice_is_refused(tmp_path: Path, format: str) -> None:
    path = tmp_path / f"a.{format}"
    if format == "parquet":
        pq.write_table(pa.table([["1"], ["hi"], ["2"]], names=["id", "text", "id"]), path)
    else:
        path.write_text("id,text,id\n1,hi,2\n".replace(",", "," if format == "csv" else "\t"))
    with pytest.raises(InputError, match="several columns are called 'id'"):
        read_rows(path, ["text"], optional=["id"])


def test_plain_lines_may_be_counted_with_those_that_are_blank(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\n\n two\n")
    options = {"optional": ["id"], "blank_lines": True}
    assert [row.values for row in read_rows(tmp_path / "a.txt", ["text"], **options)] == [  # type: ignore[arg-type]
        ("one", None),
        ("", None),
        (" two", None),
    ]
    assert len(read_rows(tmp_path / "a.txt", ["text"])) == 2


@pytest.mark.parametrize("ending", ["csv", "tsv"])
def test_a_blank_line_of_one_column_may_be_counted_too(tmp_path: Path, ending: str) -> None:
    """As pyarrow writes a null there, and spreadsheets an empty cell; in several columns it is no row."""
    path = tmp_path / f"a.{ending}"
    arrow_csv.write_csv(pa.table({"text": ["one", None, "two", None]}), path)
    path.write_text(path.read_text().replace('"', ""))
    for options in ({}, {"header": False}):
        column = 1 if options else "text"
        first = [("text",)] if options else []
        found = read_rows(path, [column], blank_lines=True, **options)  # type: ignore[arg-type]
        assert [row.values for row in found] == [*first, ("one",), ("",), ("two",), ("",)]
        assert [row.where.rpartition(" ")[2] for row in found][-3:] == ["3", "4", "5"]
    assert len(read_rows(path, ["text"])) == 2
    path.write_text("\n\none\n")
    found = read_rows(path, [1], header=False, blank_lines=True)
    assert [row.values for row in found] == [("",), ("",), ("one",)]
    (tmp_path / "b.csv").write_text("text,label\none,x\n\ntwo,y\n\n")
    assert len(read_rows(tmp_path / "b.csv", ["text"], blank_lines=True)) == 2


def test_columns_of_one_name_hinder_no_others_in_parquet(tmp_path: Path) -> None:
    columns = [pa.array(["a"]), pa.array(["b"]), pa.array(["c"])]
    pq.write_table(pa.Table.from_arrays(columns, names=["t", "t", "l"]), tmp_path / "a.parquet")
    assert [row.values for row in read_rows(tmp_path / "a.parquet", ["l"])] == [("c",)]
    with pytest.raises(InputError, match=r"a\.parquet: several columns are called 't'"):
        read_rows(tmp_path / "a.parquet", [2])
    assert [row.values for row in read_rows(tmp_path / "a.parquet", [])] == [()]
    assert [row.values for row in read_rows(tmp_path / "a.parquet", [], optional=["x"])] == [(None,)]
