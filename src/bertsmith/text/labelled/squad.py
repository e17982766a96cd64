"""Reads questions about passages: SQuAD's JSON (v1.1, v2.0; Rajpurkar et al. 2016, 2018), or a question per
line.

A JSON line has `question`, `passage` (or `context`), `answer` and `answer_start`. If the answer is null or
"", the passage has no answer; without `answer_start` the first occurrence counts. `answers` may take the
place of both: a list as in SQuAD, or the two lists of the `datasets` library. `id` and `title` may be left
out.

| format | by the ending |
| --- | --- |
| jsonl | .jsonl, .ndjson, and standard input unless told otherwise: JSON lines |
| json | any other: SQuAD's JSON |
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, Self

from bertsmith.errors import InputError
from bertsmith.files import parse_json, with_distinct_keys
from bertsmith.text.files.columns import unknown_column
from bertsmith.text.files.table_file import TableFile, open_table
from bertsmith.text.files.tables import JsonLinesFormat, Record
from bertsmith.text.files.values import as_category, is_blank, shown

FORMATS = {".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "json"}
_TYPE_NAMES: dict[type, str] = {
    str: "text",
    list: "a list",
    dict: "an object",
    int: "a whole number",
    bool: "true or false",
}


@dataclass(frozen=True)
class SquadQuestion:
    """A question about a passage, with its right answers: (text, position of its first character in the
    passage).

    `impossible`: the passage has no answer. `moved` is the number of answers that were not at the position
    given in the file, but elsewhere in the passage. `where` names file and question, for messages. `group` is
    the same for questions of one source, if the file has it.
    """

    id: str
    question: str
    passage: str
    answers: tuple[tuple[str, int], ...]
    impossible: bool = False
    title: str = ""
    moved: int = 0
    where: str = ""
    group: str | None = None

    @classmethod
    def of_input(cls, value: Any, where: str) -> Self:
        """From (question, passage), without an answer. Raises InputError for anything else."""
        match value:
            case [str() as question, str() as passage]:
                return cls("", question, passage, (), where=where)
        raise InputError(f"{where}: expected a question and a passage, found {shown(value)}.")


class QuestionKeys(NamedTuple):
    """The keys of a JSON line's question, passage, answer and group. None: the usual keys, and no groups.

    In SQuAD's JSON only `title` may be the group. Unless `needs_group`, a line may leave the group out.
    """

    question: str | int | None = None
    passage: str | int | None = None
    answer: str | int | None = None
    group: str | int | None = None
    needs_group: bool = True


_USUAL = QuestionKeys()


def read_squad(
    path: Path | str,
    *,
    labelled: bool = True,
    format: str | None = None,
    keys: QuestionKeys = _USUAL,
    encoding: str = "utf-8",
) -> list[SquadQuestion]:
    """Reads the questions of a file, in its order ('-': standard input).

    An answer that is not at its position in the file is moved to its nearest occurrence, and counted in
    `moved`. With `labelled` False, for prediction, answers may be missing. Raises InputError naming file and
    question for anything else: wrong JSON, a missing key, a blank text, an answer that isn't in the passage,
    an unanswerable question with answers, two questions with the same id.
    """
    otherwise = "jsonl" if str(path) == "-" else "json"
    with open_table(path, format, encoding, FORMATS, otherwise, whole_name=True) as table:
        if table.format == "jsonl":
            questions = list(_read_json_lines(JsonLinesFormat().records(table.stream), keys, labelled))
        else:
            squad_keys = QuestionKeys("question", "context", "answers", "title", keys.needs_group)
            if any(key not in (None, squad_key) for key, squad_key in zip(keys, squad_keys, strict=True)):
                raise InputError(
                    f"{table.name}: SQuAD's JSON has keys of its own "
                    f"({', '.join(map(str, squad_keys[:4]))}). --text, --text-pair, --label and group= "
                    "are for JSON lines (--format jsonl)."
                )
            questions = list(_read_articles(_parse_squad_json(table), table.name, labelled))
            if keys.group is not None:
                questions = [replace(question, group=question.title or None) for question in questions]
    if not questions:
        raise InputError(f"{table.name}: expected at least one question, found none.")
    ids: set[str] = set()
    for question in questions:  # predictions are keyed by id, so that one of two would be lost
        if question.id in ids:
            raise InputError(f"{question.where}: a second question of that id. Give each its own.")
        ids.add(question.id)
    return questions


def _parse_squad_json(table: TableFile) -> Any:
    try:
        return parse_json(table.stream.text(), with_distinct_keys)
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"{table.name}: expected SQuAD's JSON, but it is not valid JSON ({error}). JSON lines have the "
            "ending .jsonl, or --format jsonl."
        ) from error


def _read_articles(content: Any, name: str, labelled: bool) -> Iterator[SquadQuestion]:
    for a, article in enumerate(_require_field(content, "data", list, name)):
        for p, paragraph in enumerate(_require_field(article, "paragraphs", list, f"{name}, data[{a}]")):
            where = f"{name}, data[{a}].paragraphs[{p}]"
            passage, rows = (
                _require_field(paragraph, "context", str, where),
                _require_field(paragraph, "qas", list, where),
            )
            title = article["title"] if isinstance(article.get("title"), str) else ""
            for q, row in enumerate(rows):
                id = _question_id(row, f"{where}.qas[{q}]")
                yield _make_question(row, id, passage, title, f"{name}, question {id}", labelled)


def _read_json_lines(
    records: Iterable[Record], keys: QuestionKeys, labelled: bool
) -> Iterator[SquadQuestion]:
    for fields, where in records:
        row = _rename_keys(fields, keys, labelled, where)
        line = where.rpartition(", ")[2]
        id = _question_id(row, where) if "id" in row else line
        if id != line:
            where += f", question {id}"
        has_both = {"context", "passage"} <= row.keys()
        if keys.passage is None and has_both and row["context"] != row["passage"]:
            raise InputError(
                f"{where}: 'context' and 'passage' could both be the passage. Name one with --text-pair."
            )
        passage = _require_field(row, "context" if "context" in row else "passage", str, where)
        title = row["title"] if isinstance(row.get("title"), str) else ""
        question = _make_question(_add_answers(row, passage, where), id, passage, title, where, labelled)
        if keys.group is not None and labelled:
            if keys.needs_group and keys.group not in fields:
                raise unknown_column(keys.group, list(fields), where)
            group = fields.get(str(keys.group))
            question = replace(question, group=None if is_blank(group) else as_category(group))
        yield question


def _rename_keys(row: dict[str, Any], keys: QuestionKeys, labelled: bool, where: str) -> dict[str, Any]:
    """The row with the usual keys in place of the chosen ones."""
    answer = keys.answer if labelled or keys.answer in row else None
    chosen_keys = {"question": keys.question, "context": keys.passage, "answer": answer}
    renamed = dict(row)
    for usual_key, key in chosen_keys.items():
        if key is None:
            continue
        if key not in row:
            raise unknown_column(key, list(row), where)
        renamed[usual_key] = row[str(key)]
    if isinstance(renamed.get("answer"), list | dict):
        renamed["answers"] = renamed.pop("answer")
    elif keys.answer is not None:
        renamed.pop("answers", None)
    return renamed


def _add_answers(row: dict[str, Any], passage: str, where: str) -> dict[str, Any]:
    """The row with `answers` and `is_impossible` as in SQuAD; a row without any key of answers stays as it
    is.
    """
    if "answers" in row:
        answers = row["answers"]
        if isinstance(answers, dict):  # the `datasets` library's: texts in one list, positions in another
            texts, starts = (_require_field(answers, key, list, where) for key in ("text", "answer_start"))
            if len(texts) != len(starts):
                raise InputError(
                    f"{where}: found {len(texts)} answers, but {len(starts)} values of answer_start."
                )
            pairs = zip(texts, starts, strict=True)
            answers = [{"text": text, "answer_start": start} for text, start in pairs]
    elif row.get("answer", "") not in (None, ""):
        text = _require_field(row, "answer", str, where)
        start = row.get("answer_start", max(passage.find(text), 0))
        if isinstance(start, float) and start.is_integer():  # pandas makes 4.0 of 4 beside a null
            start = int(start)
        answers = [{"text": text, "answer_start": start}]
    elif "answer" in row:
        answers = []
    else:
        return row
    return {"is_impossible": not answers} | row | {"answers": answers}


def _make_question(
    row: dict[str, Any], id: str, passage: str, title: str, where: str, labelled: bool
) -> SquadQuestion:
    question = _require_field(row, "question", str, where)
    for key, text in (("question", question), ("passage", passage)):
        if is_blank(text):
            raise InputError(f"{where}: the {key} is empty. Fill it in or remove the question.")
    if "answers" not in row and not labelled:
        return SquadQuestion(id, question, passage, (), title=title, where=where)
    impossible = _require_field(row, "is_impossible", bool, where) if "is_impossible" in row else False
    stated_answers = list[tuple[str, int]]()
    for answer in _require_field(row, "answers", list, where):
        text, start = (
            _require_field(answer, "text", str, where),
            _require_field(answer, "answer_start", int, where),
        )
        if is_blank(text):
            raise InputError(
                f"{where}: the answer is empty. An unanswerable question has no answers instead."
            )
        stated_answers.append((text, start))
    if impossible == bool(stated_answers):
        flag = "is_impossible is true" if impossible else "is_impossible is not true"
        raise InputError(f"{where}: found {len(stated_answers)} answers though {flag}. Mend one of the two.")
    answers = tuple((text, _locate_answer(text, start, passage, where)) for text, start in stated_answers)
    moved = sum(answer != stated for answer, stated in zip(answers, stated_answers, strict=True))
    return SquadQuestion(id, question, passage, answers, impossible, title, moved, where)


def _locate_answer(text: str, start: int, passage: str, where: str) -> int:
    """The position of the answer in the passage: `start`, or else that of its occurrence nearest to it."""
    if start >= 0 and passage.startswith(text, start):
        return start
    before = passage.rfind(text, 0, max(start, 0) + len(text))
    after = passage.find(text, max(start, 0))
    positions = [position for position in (before, after) if position >= 0]
    if not positions:
        text_at_start = passage[max(start, 0) :][: len(text)]
        raise InputError(
            f"{where}: expected the answer {text!r} at character {start:,} of the passage, found "
            f"{text_at_start!r}, and the answer occurs nowhere else. Copy it from the passage exactly, "
            "capitals and accents too."
        )
    return min(positions, key=lambda position: abs(position - start))


def _question_id(row: Any, where: str) -> str:
    if isinstance(row, dict) and isinstance(row.get("id"), int):
        return str(row["id"])
    id: str = _require_field(row, "id", str, where)
    return id


def _require_field(record: Any, key: str, value_type: type, where: str) -> Any:
    """The value of a record's key. Raises InputError if there is no such key, or a value of another type."""
    if not isinstance(record, dict):
        raise InputError(f"{where}: expected an object with {key!r}, found {_describe_type(record)}.")
    if key not in record:
        listed = ", ".join(map(repr, record)) or "none"
        raise InputError(f"{where}: no key {key!r}. There are: {listed}.")
    value = record[key]
    if type(value) is not value_type:  # a bool is an int for isinstance
        raise InputError(
            f"{where}: expected {_TYPE_NAMES[value_type]} under {key!r}, found {_describe_type(value)}."
        )
    return value


def _describe_type(value: Any) -> str:
    return "nothing (null)" if value is None else _TYPE_NAMES.get(type(value), "a number")
