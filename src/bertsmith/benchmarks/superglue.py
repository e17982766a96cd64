"""SuperGLUE's tasks as a benchmark: official JSON lines to pairs of texts, pairs judged by its metrics, files
for its server.

OUT/TASK/data/train.jsonl and so on hold the pairs; OUT/submission/BoolQ.jsonl and so on what is handed in, a
line a question: {"idx": 0, "label": "true"}.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bertsmith.arrays import Ints
from bertsmith.benchmarks.benchmark_task import SCORE, BenchmarkTask, Figures, TaskFiles
from bertsmith.benchmarks.glue_scores import (
    ACCURACY,
    EXACT_MATCH,
    Alternatives,
    class_scores,
    head_of,
    in_words,
    scored,
)
from bertsmith.benchmarks.official_files import draw, rows_of, write_rows
from bertsmith.benchmarks.superglue_tasks import ADVICE, SUPERGLUE, WHERE, Pairs, SuperGlueRecord
from bertsmith.errors import InputError
from bertsmith.files import atomic_write
from bertsmith.metrics.scores import standard_errors
from bertsmith.text.files.table_file import open_table
from bertsmith.text.files.tables import json_records
from bertsmith.text.labelled.rows import FORMATS, Record

_FILES = {"train": "train.jsonl", "dev": "val.jsonl", "test": "test.jsonl"}


class Answered(NamedTuple):
    """A pair by its official numbers, its label where there is one, and what the model says of it."""

    place: tuple[int, ...]
    gold: Any
    said: Mapping[str, Any]


class SuperGlueTask(BenchmarkTask):
    """One of them, by its record: each pair has a class."""

    settings: Mapping[str, Any] = {"text": "text", "text_pair": "text_pair", "label": "label"}

    def __init__(self, record: SuperGlueRecord) -> None:
        self.record = record
        self.name, self.measures = record.name, record.measures
        self.head = self._head()
        self.judged_by = in_words(record.measures)

    def is_in(self, folder: Path) -> bool:
        return (folder / self.name / _FILES["train"]).is_file()

    def source(self) -> str:
        return f"Expected {self.name}/ with {', '.join(_FILES.values())}. The files are those of {WHERE}."

    def prepare(self, folder: Path, out: Path, rows: int | None) -> TaskFiles:
        """As JSON lines: place, text, text_pair, label. `rows` counts lines of the official files."""
        own = folder / self.name
        wanted = {part: (own / name, self.record.pairs) for part, name in _FILES.items()}
        wanted |= {part: (folder / name, pairs) for part, (name, pairs) in self.record.diagnostics.items()}
        there = {part: each for part, each in wanted.items() if each[0].is_file()}
        if "train" not in there or "dev" not in there:
            raise InputError(f"{folder} has no {self.name}. {self.source()}")
        notes = tuple(
            f"{self.name}: nothing to hand in for {part}, for there is no {path.relative_to(folder)}"
            for part, (path, _) in wanted.items()
            if part not in there
        )
        paths = {}
        for part, (path, pairs) in there.items():
            paths[part] = out / f"{part}.jsonl"
            lines = _read(path, pairs, labelled=part in ("train", "dev"))
            write_rows(paths[part], (row for line in draw(lines, rows) for row in line))
        unjudged = {part: path for part, path in paths.items() if part not in ("train", "dev")}
        return TaskFiles(paths["train"], paths["dev"], unjudged=unjudged, notes=notes)

    def figures(self, rows: Path, predictions: Path) -> Figures:
        return scored(self._measured(list(_answered(rows, predictions))), self.measures)

    def hand_in(self, part: str, rows: Path, predictions: Path, out: Path) -> Path | None:
        """A line a question, with the official numbers."""
        if part == "dev":
            return None
        path = out / f"{self.name if part == 'test' else part}.jsonl"
        lines = self._lines(list(_answered(rows, predictions)))
        atomic_write(path, "".join(json.dumps(line) + "\n" for line in lines))
        return path

    def _head(self) -> str:
        return head_of(self.measures)

    def _measured(self, answered: Sequence[Answered]) -> Mapping[str, float]:
        gold, said = [each.gold for each in answered], [each.said["label"] for each in answered]
        return class_scores(gold, said, self.record.labels)

    def _lines(self, answered: Sequence[Answered]) -> Iterator[dict[str, Any]]:
        for each in answered:
            label = each.said["label"]
            yield {"idx": each.place[0], "label": self.record.spelled.get(label, label)}


class AlternativesTask(SuperGlueTask):
    """COPA: the alternative that is scored higher is chosen, and learned beside the other."""

    settings: Mapping[str, Any] = {**SuperGlueTask.settings, "loss": "listwise"}

    def _head(self) -> str:
        return f"{Alternatives.__module__}:{Alternatives.__name__}"

    def _measured(self, answered: Sequence[Answered]) -> Mapping[str, float]:
        return {ACCURACY: float(np.mean([chosen.gold > 0 for chosen in self._chosen(answered)]))}

    def _lines(self, answered: Sequence[Answered]) -> Iterator[dict[str, Any]]:
        for chosen in self._chosen(answered):
            yield {"idx": chosen.place[0], "label": chosen.place[1]}

    def _chosen(self, answered: Sequence[Answered]) -> Iterator[Answered]:
        for _, of_question in groupby(answered, key=lambda each: each.place[0]):
            yield max(of_question, key=lambda each: each.said["score"])


class AnswersTask(SuperGlueTask):
    """MultiRC: F1 over all answers, and the share of questions all of whose answers are judged right."""

    def standard_error(self, rows: Path, predictions: Path, of_head: float | None) -> float | None:
        """By a bootstrap over questions, for answers of one question aren't independent: the head's is of F1
        alone, over answers.
        """
        questions = _questions(list(_answered(rows, predictions)))

        def of_some(numbers: Ints) -> Figures:
            return scored(self._of_questions([questions[number] for number in numbers]), self.measures)

        return standard_errors(of_some, len(questions))[SCORE] or None

    def _measured(self, answered: Sequence[Answered]) -> Mapping[str, float]:
        return self._of_questions(_questions(answered))

    def _of_questions(self, questions: Sequence[Sequence[Answered]]) -> Mapping[str, float]:
        whole = [all(each.gold == each.said["label"] for each in of_question) for of_question in questions]
        answered = [each for of_question in questions for each in of_question]
        return {**super()._measured(answered), EXACT_MATCH: float(np.mean(whole))}

    def _lines(self, answered: Sequence[Answered]) -> Iterator[dict[str, Any]]:
        for passage, of_passage in groupby(answered, key=lambda each: each.place[0]):
            questions = [
                {
                    "idx": question,
                    "answers": [
                        {"idx": each.place[2], "label": int(each.said["label"])} for each in of_question
                    ],
                }
                for question, of_question in groupby(of_passage, key=lambda each: each.place[1])
            ]
            yield {"idx": passage, "passage": {"questions": questions}}


def _questions(answered: Sequence[Answered]) -> list[list[Answered]]:
    """MultiRC's answers, question by question."""
    return [list(of_question) for _, of_question in groupby(answered, key=lambda each: each.place[:2])]


_OTHERS = {"COPA": AlternativesTask, "MultiRC": AnswersTask}


def superglue_tasks() -> list[BenchmarkTask]:
    """All of them, in the order of SuperGLUE's table."""
    return [_OTHERS.get(record.name, SuperGlueTask)(record) for record in SUPERGLUE]


def _read(path: Path, pairs: Pairs, *, labelled: bool) -> list[list[dict[str, Any]]]:
    """The rows of each line, without labels where the server judges. Raises InputError naming the line."""
    lines, name = [], f"{path.parent.name}/{path.name}"  # every task's files have the same names
    with open_table(path, "jsonl", "utf-8", FORMATS, None) as table:
        for number, fields in json_records(table.lines(), name, ADVICE):
            where = f"{name}, line {number}"
            found = pairs(Record(fields, where))
            if labelled and any(pair.label is None for pair in found):
                raise InputError(f"{where}: expected a label, found none. {ADVICE}")
            lines.append([pair.as_row(labelled) for pair in found])
    if not any(lines):
        raise InputError(f"{path} has no rows. {ADVICE}")
    return lines


def _answered(rows: Path, predictions: Path) -> Iterator[Answered]:
    for row, said in zip(rows_of(rows), rows_of(predictions), strict=True):
        yield Answered(tuple(row["place"]), row.get("label"), said)
