"""Questions from SQuAD's files and from JSON lines; whatever is wrong is named with file and question."""

import gzip
import io
import json
from pathlib import Path
from typing import Any

import pandas
import pytest

from bertsmith.errors import InputError
from bertsmith.text.labelled.squad import QuestionKeys, SquadQuestion, read_squad

PASSAGE = "The café in Brno opened in 1919. It closed in 1943; in 1990 it opened again."


def row(**changes: Any) -> dict[str, Any]:
    plain = {"id": "q1", "question": "Where?", "answers": [{"text": "Brno", "answer_start": 12}]}
    return {key: value for key, value in (plain | changes).items() if value is not ...}


def squad(folder: Path, *rows: Any, passage: Any = PASSAGE) -> Path:
    path = folder / "train.json"
    article = {"title": "Cafés", "paragraphs": [{"context": passage, "qas": list(rows)}]}
    path.write_text(json.dumps({"version": "v2.0", "data": [article]}), encoding="utf-8")
    return path


def lines(folder: Path, *rows: Any) -> Path:
    path = folder / "train.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in rows), encoding="utf-8")
    return path


def test_a_question_of_squad(tmp_path: Path) -> None:
    path = squad(
        tmp_path, row(), row(id=7, answers=[], is_impossible=True, plausible_answers=[{"text": "1919"}])
    )
    where = f"{path}, question"
    assert read_squad(path) == [
        SquadQuestion("q1", "Where?", PASSAGE, (("Brno", 12),), False, "Cafés", 0, f"{where} q1"),
        SquadQuestion("7", "Where?", PASSAGE, (), True, "Cafés", 0, f"{where} 7"),
    ]


@pytest.mark.parametrize(("stated", "found"), [(40, 43), (30, 24), (999, 73), (-1, 9), (0, 9)])
def test_an_answer_that_stands_elsewhere_is_taken_from_the_nearest_place(
    tmp_path: Path, stated: int, found: int
) -> None:
    places = [at for at in range(len(PASSAGE)) if PASSAGE.startswith("in", at)]
    assert found in places
    question = read_squad(squad(tmp_path, row(answers=[{"text": "in", "answer_start": stated}])))[0]
    assert question.answers == (("in", found),)
    assert question.moved == 1


def test_json_lines_in_each_of_their_forms(tmp_path: Path) -> None:
    given = {"question": "When?", "context": PASSAGE}
    path = lines(
        tmp_path,
        given | {"answer": "1943", "answer_start": 46, "id": "x"},
        {"question": "When?", "passage": PASSAGE, "answer": "1943", "title": "T"},
        given | {"answer": None},
        given | {"answers": {"text": ["1943", "in 1943"], "answer_start": [46, 43]}},
        given | {"answers": {"text": [], "answer_start": []}},
        given | {"answers": [{"text": "1943", "answer_start": 0}]},
    )
    questions = read_squad(path)
    assert [question.id for question in questions] == ["x", *(f"line {number}" for number in range(2, 7))]
    right = ("1943", 46)
    assert [question.answers for question in questions] == [
        *[(right,), (right,), (), (right, ("in 1943", 43)), (), (right,)]
    ]
    assert [question.impossible for question in questions] == [False, False, True, False, True, False]
    assert [question.moved for question in questions] == [0, 0, 0, 0, 0, 1]
    assert questions[1].title == "T"
    assert questions[0].where == f"{path}, line 1, question x"


def test_without_labels_answers_may_be_missing(tmp_path: Path) -> None:
    path = squad(tmp_path, row(answers=...))
    assert read_squad(path, labelled=False)[0].answers == ()
    with pytest.raises(InputError, match=r"question q1: no key 'answers'\. There are: 'id', 'question'"):
        read_squad(path)


@pytest.mark.parametrize(
    ("wrong", "complaint"),
    [
        (
            row(answers=[{"text": "brno", "answer_start": 12}]),
            r"q1: expected the answer 'brno' .*12.*found 'Brno'",
        ),
        (row(answers=[{"text": "Oslo", "answer_start": -7}]), "expected the answer 'Oslo' at character -7"),
        (row(answers=[{"text": "Brno"}]), "q1: no key 'answer_start'"),
        (
            row(answers=[{"text": "Brno", "answer_start": "12"}]),
            "expected a whole number under 'answer_start', found text",
        ),
        (
            row(answers=[{"text": "Brno", "answer_start": True}]),
            "expected a whole number .* found true or false",
        ),
        (row(answers=[{"text": " ", "answer_start": 3}]), "q1: the answer is empty"),
        (row(answers=["Brno"]), "expected an object with 'text', found text"),
        (row(answers=None), "expected a list under 'answers', found nothing"),
        (row(answers=[]), "q1: found 0 answers though is_impossible is not true"),
        (row(is_impossible=True), "q1: found 1 answers though is_impossible is true"),
        (row(is_impossible="no"), "expected true or false under 'is_impossible', found text"),
        (row(question="  "), "q1: the question is empty"),
        (row(question=...), "q1: no key 'question'"),
        (row(id=...), r"data\[0\]\.paragraphs\[0\]\.qas\[0\]: no key 'id'"),
        (row(id=1.5), "expected text under 'id', found a number"),
        ("Where?", r"qas\[0\]: expected an object with 'id', found text"),
    ],
)
def test_a_wrong_question_is_named(tmp_path: Path, wrong: Any, complaint: str) -> None:
    path = squad(tmp_path, wrong)
    with pytest.raises(InputError, match=complaint) as raised:
        read_squad(path)
    assert str(raised.value).startswith(str(path))


def test_a_wrong_passage_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="question q1: the passage is empty"):
        read_squad(squad(tmp_path, row(), passage="\n"))
    with pytest.raises(InputError, match=r"paragraphs\[0\]: expected text under 'context', found a list"):
        read_squad(squad(tmp_path, row(), passage=[]))


def test_two_questions_of_one_id_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="question q1: a second question of that id"):
        read_squad(squad(tmp_path, row(), row(question="Who?")))


@pytest.mark.parametrize(
    ("name", "content", "complaint"),
    [
        ("a.json", '{"data": [', "not valid JSON"),
        ("a.json", '{"data": [],}', "A comma behind the last item: line 1 column 12"),
        ("a.json", '{"data": [], "data": []}', "the key 'data' stands twice in one object"),
        ("a.json", "[]", "expected an object with 'data', found a list"),
        ("a.json", '{"data": []}', "expected at least one question, found none"),
        ("a.jsonl", "", "expected at least one question, found none"),
        ("a.jsonl", '{"question": ', "line 1: expected one JSON object"),
        ("a.jsonl", "\n[1]", "line 2: expected a JSON object, found list"),
        ("a.jsonl", '{"question": "x", "answer": "y"}', "line 1: no key 'passage'"),
        ("a.jsonl", '{"question": "x", "context": "y", "answer": 3}', "line 1: expected text under 'answer'"),
        (
            "a.jsonl",
            '{"question": "x", "context": "y", "answer": "y", "answer_start": 0.5}',
            "found a number",
        ),
        ("a.jsonl", '{"question": "x", "context": "y"}', "line 1: no key 'answers'"),
        (
            "a.jsonl",
            '{"question": "x", "context": "y", "answers": {"text": ["y"], "answer_start": []}}',
            "line 1: found 1 answers, but 0 values of answer_start",
        ),
    ],
)
def test_a_wrong_file_is_named(tmp_path: Path, name: str, content: str, complaint: str) -> None:
    path = tmp_path / name
    path.write_text(content, encoding="utf-8")
    with pytest.raises(InputError, match=complaint) as raised:
        read_squad(path)
    assert str(path) in str(raised.value)


@pytest.mark.parametrize("name", ["absent.json", "absent.jsonl"])
def test_a_missing_file_is_named(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match=f"{name} does not exist"):
        read_squad(tmp_path / name)


@pytest.mark.parametrize(
    ("name", "questions", "impossible"),
    [
        ("squad/dev-v1.1.json", 10_570, 0),
        ("squad/cs224n-dev-v2.0.json", 6_078, 3_168),
        ("squad/train-pieces-assembled.json", 8_149, 0),
        ("squadshifts/new_wiki_v1.0.json", 7_938, 0),
    ],
)
def test_real_files_give_their_published_counts(
    shared_data: Path, name: str, questions: int, impossible: int
) -> None:
    read = read_squad(shared_data / name)
    assert len(read) == questions
    assert sum(question.impossible for question in read) == impossible
    assert sum(question.moved for question in read) == 0
    for question in read:
        assert all(question.passage[start:].startswith(text) for text, start in question.answers)


def test_standard_input_is_json_lines_or_whatever_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = json.dumps({"question": "Where?", "passage": PASSAGE}) + "\n"
    for content, format in ((asked, None), (squad(tmp_path, row()).read_text(encoding="utf-8"), "json")):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(content.encode())))
        (found,) = read_squad("-", labelled=False, format=format)
        assert (found.question, found.passage) == ("Where?", PASSAGE)
        assert found.where.startswith("standard input, ")


@pytest.mark.parametrize("name", ["a.json.gz", "a.jsonl.gz"])
def test_files_may_be_packed(tmp_path: Path, name: str) -> None:
    plain = squad(tmp_path, row()) if "jsonl" not in name else lines(tmp_path, row(context=PASSAGE))
    (tmp_path / name).write_bytes(gzip.compress(plain.read_bytes()))
    assert [each.answers for each in read_squad(tmp_path / name)] == [(("Brno", 12),)]


def test_json_lines_of_pandas_have_fractions_beside_a_question_without_an_answer(tmp_path: Path) -> None:
    columns = {"question": ["a?", "b?"], "passage": ["in Brno"] * 2, "answer": ["Brno", None]}
    table = pandas.DataFrame(columns | {"answer_start": [3, None]})
    table.to_json(tmp_path / "a.jsonl", orient="records", lines=True)
    found = read_squad(tmp_path / "a.jsonl")
    assert [(each.answers, each.impossible) for each in found] == [((("Brno", 3),), False), ((), True)]


def test_two_passages_of_one_question_are_refused(tmp_path: Path) -> None:
    row = {"question": "who?", "passage": "Anna sleeps.", "context": "a chat", "answer": "Anna"}
    (tmp_path / "a.jsonl").write_text(json.dumps(row))
    with pytest.raises(InputError, match="line 1: 'context' and 'passage' could both be the passage"):
        read_squad(tmp_path / "a.jsonl")
    (question,) = read_squad(tmp_path / "a.jsonl", keys=QuestionKeys(passage="passage"))
    assert question.passage == "Anna sleeps."
    (tmp_path / "a.jsonl").write_text(json.dumps(row | {"context": row["passage"]}))
    assert read_squad(tmp_path / "a.jsonl")[0].passage == "Anna sleeps."


def test_other_keys_of_json_lines_are_named(tmp_path: Path) -> None:
    path = lines(tmp_path, {"q": "When?", "body": PASSAGE, "a": "1943", "answers": ["not these"]})
    (found,) = read_squad(path, keys=QuestionKeys("q", "body", "a"))
    assert (found.question, found.passage, found.answers) == ("When?", PASSAGE, (("1943", 46),))
    assert read_squad(path, keys=QuestionKeys("q", "body", "gone"), labelled=False)[0].question == "When?"
    with pytest.raises(InputError, match=r"line 1: no column 'bodi'\..*Did you mean 'body'"):
        read_squad(path, keys=QuestionKeys("q", "bodi"))
    with pytest.raises(InputError, match=r"keys of its own .*--format jsonl"):
        read_squad(squad(tmp_path, row()), keys=QuestionKeys("q"))


def test_a_format_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no format 'csv' .*Choose one of json, jsonl"):
        read_squad(squad(tmp_path, row()), format="csv")
