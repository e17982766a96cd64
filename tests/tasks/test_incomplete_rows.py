"""Rows without a text or a label, in every format: refused, left out or kept, and never learned unsaid."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
from small_tasks import make_task

from bertsmith.errors import InputError
from bertsmith.tasks.task import reading_columns
from table_writers import WRITERS, write_table

ROWS = [{"text": "one", "label": "a"}, {"text": None, "label": "b"}, {"text": "two", "label": "b"}]
PLACES = {"json": "item 2", "jsonl": "line 2", "parquet": "row 2"}


@pytest.mark.parametrize("writer", WRITERS)
def test_a_null_text_is_refused_with_its_number_and_first_place(tmp_path: Path, writer: str) -> None:
    path = write_table(tmp_path, writer, ROWS)
    place = PLACES.get(path.suffix[1:], "line 3")
    with pytest.raises(
        InputError, match=rf"^{path}: of 3 rows 1 has no text \(the first: {place}\)\. .*drop"
    ):
        make_task("classification").read(path)


@pytest.mark.parametrize("blank", ["", " \t", "\u00a0", "\u2003\n", "\u200b", "\ufeff \0", None, math.nan])
def test_blank_texts_are_as_null(tmp_path: Path, blank: Any) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(json.dumps(row | {"text": row["text"] or blank}) for row in ROWS))
    with pytest.raises(InputError, match="1 has no text"):
        make_task("classification").read(path)


@pytest.mark.parametrize("cell", ["", '""', '" "'])
def test_in_csv_an_empty_cell_and_an_empty_quoted_one_are_the_same(tmp_path: Path, cell: str) -> None:
    (tmp_path / "rows.csv").write_text(f"text,label\none,a\n{cell},b\n")
    with pytest.raises(InputError, match=r"1 has no text \(the first: line 3\)"):
        make_task("classification").read(tmp_path / "rows.csv")


def test_words_that_other_readers_take_for_null_are_texts_and_labels(tmp_path: Path) -> None:
    words = ["NA", "null", "None", "nan", "N/A", "NULL", "-"]
    (tmp_path / "rows.csv").write_text("text,label\n" + "".join(f"{word},{word}\n" for word in words[:-1]))
    examples = make_task("classification").read(tmp_path / "rows.csv")
    assert [(example.text, example.label) for example in examples] == [(word, word) for word in words[:-1]]


@pytest.mark.parametrize("writer", WRITERS)
def test_rows_that_lack_something_are_left_out_where_the_settings_say_so(tmp_path: Path, writer: str) -> None:
    rows = [*ROWS, {"text": "three", "label": None}, {"text": "four", "label": "a"}]
    task = make_task("classification", missing="drop")
    examples = task.read(write_table(tmp_path, writer, rows))
    assert [(example.text, example.label) for example in examples] == [
        ("one", "a"),
        ("two", "b"),
        ("four", "a"),
    ]
    (sentence,) = task.left_out
    assert "of 5 rows 1 has no text" in sentence and "and 1 has no label" in sentence


def test_a_file_of_which_nothing_remains_is_refused(tmp_path: Path) -> None:
    path = write_table(tmp_path, "csv", [{"text": "", "label": "a"}, {"text": "one", "label": None}])
    with pytest.raises(InputError, match="none remains"):
        make_task("classification", missing="drop").read(path)


def test_blank_texts_of_a_search_are_kept_where_the_settings_say_so(tmp_path: Path) -> None:
    rows = [{"query": "one", "document": "two"}, {"query": "", "document": "three"}]
    path = write_table(tmp_path, "csv", rows)
    task = make_task("retrieval", missing="keep")
    examples = task.read(path)
    assert [example.query for example in examples] == ["one", ""]
    task.check(examples)


def test_blank_texts_are_kept_where_the_settings_say_so(tmp_path: Path) -> None:
    task = make_task("classification", missing="keep")
    assert [row.text for row in task.read(write_table(tmp_path, "jsonl", ROWS))] == ["one", "", "two"]
    with pytest.raises(InputError, match="1 has no label"):
        task.read(write_table(tmp_path, "jsonl", [*ROWS, {"text": "three", "label": ""}]))
    with pytest.raises(InputError, match="1 has no label"):  # -1 beside words says so
        task.read(write_table(tmp_path, "jsonl", [*ROWS, {"text": "three", "label": -1}]))


@pytest.mark.parametrize("task", ["classification", "similarity", "reranking", "retrieval"])
def test_a_pair_without_its_second_text_is_refused(tmp_path: Path, task: str) -> None:
    rows = [
        {"query": "one", "document": "two", "label": 1},
        {"query": "one", "document": None, "label": 0},
        {"query": "two", "document": "one", "label": 0},
    ]
    if task == "retrieval":
        rows = [{name: row[name] for name in ("query", "document")} for row in rows]
    path = write_table(tmp_path, "parquet", rows)
    with pytest.raises(InputError, match=r"of 3 rows 1 has no text \(the first: row 2\)"):
        make_task(task).read(path)
    assert len(make_task(task, missing="drop").read(path)) == 2


@pytest.mark.parametrize("gap", ["text", "label"])
def test_a_column_without_any_value_is_probably_the_wrong_one(tmp_path: Path, gap: str) -> None:
    rows = [{**row, "text": "word", gap: None} for row in ROWS]
    with pytest.raises(InputError, match=rf"^Every {gap} is empty, from .*row 1 on. Is --{gap} the right"):
        make_task("classification", missing="drop").read(write_table(tmp_path, "parquet", rows))


def test_columns_answer_for_a_blank_text(tmp_path: Path) -> None:
    rows = [{**row, "age": age} for age, row in enumerate(ROWS)]
    task = make_task("classification", features=["age"])
    assert len(task.read(write_table(tmp_path, "jsonl", rows))) == 3


def test_a_text_without_labels_is_a_row_of_multi_label(tmp_path: Path) -> None:
    rows = [
        {"text": "one", "labels": ["a"]},
        {"text": "two", "labels": None},
        {"text": "three", "labels": []},
    ]
    examples = make_task("multi-label").read(write_table(tmp_path, "jsonl", rows))
    assert [example.label for example in examples] == [("a",), (), ()]


@pytest.mark.parametrize(
    ("labels", "stand_in"),
    [
        ([0, 1, 2, -1], "-1"),  # SNLI of Hugging Face
        (["entailment", "neutral", "-"], "-"),  # SNLI as published
        (["yes", "no", -1], "-1"),
        ([-1, 1], None),
        ([-1, 0, 1], None),  # negative, neutral, positive
        ([-2, -1, 0, 1, 2], None),
        (["+", "-", "none"], None),
        (["-", "a"], None),
    ],
)
def test_what_stands_for_no_label_is_no_class(
    tmp_path: Path, labels: list[Any], stand_in: str | None
) -> None:
    rows = [{"text": f"text {number}", "label": label} for number, label in enumerate(labels)]
    path = write_table(tmp_path, "jsonl" if isinstance(labels[0], str) else "parquet", rows)
    if stand_in is None:
        assert len(make_task("classification").read(path)) == len(labels)
        return
    with pytest.raises(
        InputError, match=rf"1 has no label .* \('{stand_in}' says that: a class needs another"
    ):
        make_task("classification").read(path)
    task = make_task("classification", missing="drop")
    assert stand_in not in {example.label for example in task.read(path)}


def test_a_prompt_is_no_text() -> None:
    """A cross-encoder of sentence-transformers may have one: a row without a query was scored."""
    task = make_task("regression")
    task.prompt = "Rank: "
    texts = [("", "a document"), ("a query", ""), ("a query", "a document")]
    assert [task.has_text(task.example(pair)) for pair in texts] == [False, False, True]


@pytest.mark.parametrize(("labels", "is_class"), [(["0", "1", "2"], False), (["yes"], True)])
def test_a_blank_label_beside_them_changes_nothing(tmp_path: Path, labels: list[str], is_class: bool) -> None:
    """It counted as a word: -1 was a class beside 0, 1, 2, and none beside a single word."""
    rows = [{"text": f"text {n}", "label": label} for n, label in enumerate([*labels, "-1", ""])]
    task = make_task("classification", missing="drop")
    found = [example.label for example in task.read(write_table(tmp_path, "jsonl", rows))]
    assert found == [*labels, *["-1"] * is_class]


def test_a_test_file_is_read_as_the_training_file_was(tmp_path: Path) -> None:
    """Two classes, of which SNLI's -1 could be a third in training, but not afterwards."""
    task = make_task("classification", missing="drop")
    train = [{"text": f"text {number}", "label": number % 2} for number in range(4)]
    task.fit(task.read(write_table(tmp_path, "jsonl", train)))
    test = task.read(write_table(tmp_path, "csv", [*train, {"text": "gold unknown", "label": -1}]))
    assert [example.label for example in test] == ["0", "1", "0", "1"]


@pytest.mark.parametrize(
    ("task", "settings", "texts"),
    [
        ("classification", {"text": "2", "label": "1"}, ("e f",)),
        ("regression", {"text": 2, "label": 1, "missing": "drop"}, ("e f",)),
        ("reranking", {"text": 3, "text_pair": 2, "label": 1}, ("y", "e f")),
        ("retrieval", {"text": 3, "text_pair": 2}, ("y", "e f")),
    ],
)
def test_a_model_knows_by_name_the_columns_that_were_given_by_number(
    tmp_path: Path, task: str, settings: dict[str, Any], texts: tuple[str, ...]
) -> None:
    """In another file the number may be another column's."""
    (tmp_path / "train.csv").write_text("label,text,query\n1,a b,x\n2,c d,y\n")
    trained = make_task(task, **settings)
    trained.read_files([tmp_path / "train.csv"])
    model = reading_columns(type(trained).from_state(trained.state(), "a model"), {})
    (tmp_path / "new.csv").write_text("query,date,text,label\ny,2024-01-01,e f,2\n")
    for labelled in (True, False):
        assert [model.texts(row) for row in model.read(tmp_path / "new.csv", labelled=labelled)] == [texts]
    (tmp_path / "b.csv").write_text("label,sentence,query\n1,g h,z\n")  # called otherwise: by number as ever
    trained = make_task(task, **settings)
    assert len(trained.read_files([tmp_path / "train.csv", tmp_path / "b.csv"])) == 3
    assert "text" not in trained.state()["settings"].values()


def test_a_partner_that_the_first_object_lacks_is_not_left_out(tmp_path: Path) -> None:
    rows = [{"question": "a", "label": "x"}, {"question": "b", "context": "c", "label": "y"}]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    for labelled in (True, False):
        with pytest.raises(InputError, match="question with context, but the first row has no 'context'"):
            make_task("classification").read(tmp_path / "rows.jsonl", labelled=labelled)
    task = make_task("classification", text="question")
    assert [row.text_pair for row in task.read(tmp_path / "rows.jsonl")] == [None, None]


@pytest.mark.parametrize(
    ("first", "second", "there"),
    [
        ("question,label", "question,context,label", "question, context"),
        ("title,label", "label,title,text", "text"),
        ("question,label", "question,note,label", None),
        ("review,label", "review,text,label", None),
    ],
)
def test_a_later_file_has_no_text_that_the_first_one_lacks(
    tmp_path: Path, first: str, second: str, there: str | None
) -> None:
    files = [tmp_path / "a.csv", tmp_path / "b.csv"]
    for file, names in zip(files, (first, second), strict=True):
        file.write_text(f"{names}\n" + "\n".join([names.replace("label", "x"), names.replace("label", "y")]))
    name = first.partition(",")[0]
    task, chosen = make_task("classification"), make_task("classification", text=name)
    assert [row.text for row in chosen.read_files(files)] == [name] * 4
    if there is None:
        assert [row.text for row in task.read_files(files)] == [name] * 4
        return
    with pytest.raises(InputError, match=f"the text is {there}, but in the file before it was {name}"):
        task.read_files(files)
    task = make_task("classification")
    task.read_files(files[:1])
    with pytest.raises(InputError, match=f"b.csv: by the names of its columns the text is {there}"):
        task.read(files[1])  # as dev, or as test


@pytest.mark.parametrize("spelled", ["1", "1.0", 1, 1.0])
def test_a_label_is_the_same_however_a_file_spells_it(tmp_path: Path, spelled: Any) -> None:
    task = make_task("classification")
    task.fit(
        task.read(
            write_table(tmp_path, "parquet", [{"text": "a", "label": 1.0}, {"text": "b", "label": 0.0}])
        )
    )
    assert task.labels == ("0", "1")
    test = task.read(write_table(tmp_path, "jsonl", [{"text": "a", "label": spelled}]))
    task.check(test)
    assert test[0].label == "1"


@pytest.mark.parametrize("names", [("false", "true"), ("0.0", "1.0"), ("False", "True")])
def test_a_model_keeps_its_own_spelling_of_labels(tmp_path: Path, names: tuple[str, str]) -> None:
    """As transformers saved it, or we did before 0.4."""
    kind = type(make_task("classification"))
    task = kind(kind.Settings(), names)
    number = names[0].startswith("0")
    for given in ((0.0, 1.0), ("0", "1")) if number else ((False, True), ("false", "TRUE")):
        rows = [{"text": "a", "label": label} for label in given]
        assert [example.label for example in task.read(write_table(tmp_path, "jsonl", rows))] == list(names)


def test_scores_are_no_classes(tmp_path: Path) -> None:
    rows = [{"text": f"text {n}", "label": f"{n / 8:.3f}"} for n in range(40)]
    task = make_task("classification")
    examples = task.read(write_table(tmp_path, "csv", rows))
    with pytest.raises(InputError, match=r"40 different numbers such as 0\.125, .* Train regression instead"):
        task.fit(examples)
    half_stars = [{"text": f"text {n}", "label": n / 2} for n in range(2, 11)]
    task.fit(task.read(write_table(tmp_path, "jsonl", half_stars)))
    assert task.labels == ("1", "1.5", "2", "2.5", "3", "3.5", "4", "4.5", "5")


def test_a_column_for_each_label_gives_the_labels_that_hold(tmp_path: Path) -> None:
    rows = [
        {"comment": "one", "toxic": 1, "threat": 0, "insult": 1},
        {"comment": "two", "toxic": 0, "threat": 0, "insult": 0},
    ]
    for writer in WRITERS:
        task = make_task("multi-label", labels=["toxic", "threat", "insult"])
        examples = task.read(write_table(tmp_path, writer, rows))
        assert [example.label for example in examples] == [("toxic", "insult"), ()]


def test_multi_hot_lists_need_names(tmp_path: Path) -> None:
    rows = [{"text": "one", "labels": [1, 0]}, {"text": "two", "labels": [0, 1]}]
    path = write_table(tmp_path, "parquet", rows)
    task = make_task("multi-label")
    with pytest.raises(InputError, match=r"are 0 and 1\. Of multi-hot lists name the labels \(labels=NAME"):
        task.fit(task.read(path))
    named = make_task("multi-label", labels=["toxic", "threat"])
    assert [example.label for example in named.read(path)] == [("toxic",), ("threat",)]
    path = write_table(tmp_path, "jsonl", [{"text": "one", "labels": ["taxic"]}])
    with pytest.raises(InputError, match="'taxic' is none of toxic, threat"):
        named.read(path)


@pytest.mark.parametrize("separator", ["|", ";"])
def test_labels_between_other_separators_are_told(tmp_path: Path, separator: str) -> None:
    rows = [{"text": f"text {n}", "labels": label} for n, label in enumerate(["a", "b", f"a{separator}b"])]
    path = write_table(tmp_path, "csv", rows)
    task = make_task("multi-label")
    with pytest.raises(InputError, match=r"look like several .* Say separator="):
        task.fit(task.read(path))
    split, whole = (make_task("multi-label", separator=each) for each in (separator, ","))
    split.fit(split.read(path))
    whole.fit(whole.read(path))
    assert (split.labels, whole.labels) == (("a", "b"), ("a", f"a{separator}b", "b"))


@pytest.mark.parametrize("writer", ["csv", "jsonl", "parquet"])
@pytest.mark.parametrize(
    ("name", "row"),
    [
        ("classification", {"text": "one", "label": "a"}),
        ("multi-label", {"text": "one", "labels": "a"}),
        ("retrieval", {"query": "one", "positive": "two", "negative": "three"}),
        ("reranking", {"query": "one", "document": "two", "label": 1}),
        ("reranking", {"query": "one", "positive": "two", "negative": "three"}),
        ("question-answering", {"question": "one?", "passage": "two", "answer": "two"}),
    ],
)
def test_a_file_that_a_trained_model_is_measured_on_need_not_name_its_groups(
    tmp_path: Path, name: str, row: dict[str, Any], writer: str
) -> None:
    """They divide the training file; evaluate, distil and export were refused, and have no option for it."""
    if name == "question-answering" and writer != "jsonl":
        return
    (tmp_path / "with").mkdir()
    path = write_table(tmp_path, writer, [row, row])
    grouped = write_table(tmp_path / "with", writer, [row | {"source": "s1"}, row | {"source": "s2"}])
    task = make_task(name, group="source")
    with pytest.raises(InputError, match="no column 'source'"):
        task.read(path)
    trained = reading_columns(task, {})
    assert [each.group for each in trained.read(grouped)] == [each.group for each in task.read(grouped)]
    assert trained.left_out == []
    assert {each.group for each in trained.read(path)} == {None}
    (sentence,) = trained.left_out
    assert f"{path} has no 'source'" in sentence
