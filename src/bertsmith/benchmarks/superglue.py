"""SuperGLUE's tasks (Wang et al. 2019, arXiv 1905.00537) as a benchmark, one record a task: official JSON
lines to pairs of texts, pairs judged by its metrics, files for its server.

Every task is read as pairs of texts: a question of COPA as its two alternatives, one of MultiRC as its
answers, and the words that WiC and WSC ask about are marked in the text itself. ReCoRD isn't here: each of
its 120,000 questions has a dozen candidates. OUT/TASK/data/train.jsonl and so on hold the pairs;
OUT/submission/BoolQ.jsonl and so on what is handed in, a line a question: {"idx": 0, "label": "true"}.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bertsmith.arrays import Ints
from bertsmith.benchmarks.benchmark import (
    SCORE,
    BenchmarkTask,
    Figures,
    Suite,
    TaskFiles,
    draw,
    rows_of,
    write_rows,
)
from bertsmith.benchmarks.glue_scores import (
    ACCURACY,
    EXACT_MATCH,
    F1,
    MACRO_F1,
    Alternatives,
    class_scores,
    head_of,
    in_words,
    scored,
)
from bertsmith.benchmarks.published import SUPERGLUE
from bertsmith.errors import InputError
from bertsmith.files import atomic_write
from bertsmith.metrics.scores import standard_errors
from bertsmith.text.files.table_file import open_table
from bertsmith.text.files.tables import Record, read_json_records
from bertsmith.text.files.values import shown

WHERE = "https://super.gluebenchmark.com/tasks"
ADVICE = "Take the file from the benchmark anew."
_FILES = {"train": "train.jsonl", "dev": "val.jsonl", "test": "test.jsonl"}


class TextPair(NamedTuple):
    """Two texts as a model reads them. `label` is a label's name, or 1.0 for the right alternative and 0.0
    for the other; None where the benchmark keeps it to itself. `place` are the official numbers, from the
    line's down to the answer's.
    """

    text: str
    text_pair: str
    label: str | float | None
    place: tuple[int, ...]

    def as_row(self, labelled: bool) -> dict[str, Any]:
        """As fine-tuning reads it, its place beside."""
        row: dict[str, Any] = {"place": self.place, "text": self.text, "text_pair": self.text_pair}
        return row | ({"label": self.label} if labelled else {})


Pairs = Callable[[Record], list[TextPair]]  # of a line; raises InputError naming it


class SuperGlueRecord(NamedTuple):
    """`pairs` makes a line's; `labels` are the names of classes, none where alternatives are chosen from, and
    `spelled` how the server wants those that it spells otherwise. `diagnostics` are files that this task's
    model answers too: by the name of what is handed in, the file from the benchmark's folder, and its pairs.
    """

    name: str
    measures: tuple[str, ...]
    labels: tuple[str, ...]
    pairs: Pairs
    diagnostics: Mapping[str, tuple[str, Pairs]] = {}
    spelled: Mapping[str, str] = {}


def _field(line: Any, name: str, kind: type, where: str) -> Any:
    """Raises InputError where it is missing or of another type; a bool is no number."""
    value = line.get(name) if isinstance(line, dict) else None
    if type(value) is not kind:
        names = {str: "text", int: "a whole number", dict: "an object", list: "a list", bool: "true or false"}
        raise InputError(
            f"{where}: expected {names[kind]} under {name!r}, as the official file has it, found "
            f"{shown(value)}. {ADVICE}"
        )
    return value


def _label(line: Mapping[str, Any], labels: tuple[str, ...], where: str) -> str | None:
    """Its name: 'true' for true, '1' for 1. Raises InputError for one that the task doesn't have."""
    value = line.get("label")
    if value is None:
        return None
    name = str(value).lower() if isinstance(value, bool) else str(value)
    if name not in labels:
        raise InputError(f"{where}: expected one of {', '.join(labels)} as label, found {name!r}. {ADVICE}")
    return name


def _two_texts(first: str, second: str, labels: tuple[str, ...]) -> Pairs:
    """A line with its texts under these names."""

    def pairs(line: Record) -> list[TextPair]:
        fields, where = line
        text, text_pair = (_field(fields, name, str, where) for name in (first, second))
        label, idx = _label(fields, labels, where), _field(fields, "idx", int, where)
        return [TextPair(text, text_pair, label, (idx,))]

    return pairs


def _words_in_context(line: Record) -> list[TextPair]:
    """WiC: the word before each of its sentences."""
    fields, where = line
    word = _field(fields, "word", str, where)
    first, second = (f"{word}: {_field(fields, name, str, where)}" for name in ("sentence1", "sentence2"))
    return [TextPair(first, second, _label(fields, _BOOLEAN, where), (_field(fields, "idx", int, where),))]


def _coreference(line: Record) -> list[TextPair]:
    """WSC: the pronoun between asterisks in its text, and whom it may stand for."""
    fields, where = line
    target, words = _field(fields, "target", dict, where), _field(fields, "text", str, where).split()
    place, pronoun = _field(target, "span2_index", int, where), _field(target, "span2_text", str, where)
    length = len(pronoun.split())
    if not 0 <= place < len(words):
        raise InputError(f"{where}: expected a word {place} in the text, which has {len(words)}. {ADVICE}")
    marked = " ".join([*words[:place], "*", *words[place : place + length], "*", *words[place + length :]])
    name = _field(target, "span1_text", str, where)
    return [TextPair(marked, name, _label(fields, _BOOLEAN, where), (_field(fields, "idx", int, where),))]


def _alternatives(line: Record) -> list[TextPair]:
    """COPA: what is asked behind the premise, and each alternative."""
    fields, where = line
    question = _field(fields, "question", str, where)
    if question not in _ASKED:
        raise InputError(f"{where}: expected cause or effect under 'question', found {question!r}. {ADVICE}")
    text = f"{_field(fields, 'premise', str, where)} {_ASKED[question]}"
    right, idx = _label(fields, _BINARY, where), _field(fields, "idx", int, where)
    pairs = []
    for number, name in enumerate(("choice1", "choice2")):
        label = None if right is None else float(right == str(number))
        pairs.append(TextPair(text, _field(fields, name, str, where), label, (idx, number)))
    return pairs


def _answers(line: Record) -> list[TextPair]:
    """MultiRC: the paragraph, and a question with each of its answers."""
    fields, where = line
    passage, pairs = _field(fields, "passage", dict, where), []
    text, idx = _field(passage, "text", str, where), _field(fields, "idx", int, where)
    for question in _field(passage, "questions", list, where):
        asked, number = _field(question, "question", str, where), _field(question, "idx", int, where)
        for answer in _field(question, "answers", list, where):
            said, place = _field(answer, "text", str, where), _field(answer, "idx", int, where)
            label = _label(answer, _BINARY, where)
            pairs.append(TextPair(text, f"{asked} {said}", label, (idx, number, place)))
    return pairs


_ASKED = {"cause": "What was the cause?", "effect": "What happened as a result?"}
_BINARY = ("0", "1")
_BOOLEAN = ("false", "true")
_ENTAILS = ("entailment", "not_entailment")
_NLI = ("contradiction", "entailment", "neutral")

RECORDS = (
    SuperGlueRecord("BoolQ", (ACCURACY,), _BOOLEAN, _two_texts("question", "passage", _BOOLEAN)),
    SuperGlueRecord("CB", (MACRO_F1, ACCURACY), _NLI, _two_texts("premise", "hypothesis", _NLI)),
    SuperGlueRecord("COPA", (ACCURACY,), (), _alternatives),
    SuperGlueRecord("MultiRC", (F1, EXACT_MATCH), _BINARY, _answers),
    SuperGlueRecord(
        "RTE",
        (ACCURACY,),
        _ENTAILS,
        _two_texts("premise", "hypothesis", _ENTAILS),
        {
            "AX-b": ("AX-b/AX-b.jsonl", _two_texts("sentence1", "sentence2", _ENTAILS)),
            "AX-g": ("AX-g/AX-g.jsonl", _two_texts("premise", "hypothesis", _ENTAILS)),
        },
    ),
    SuperGlueRecord("WiC", (ACCURACY,), _BOOLEAN, _words_in_context),
    SuperGlueRecord("WSC", (ACCURACY,), _BOOLEAN, _coreference, spelled={"false": "False", "true": "True"}),
)


class AnsweredPair(NamedTuple):
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

    def _measured(self, answered: Sequence[AnsweredPair]) -> Mapping[str, float]:
        gold, said = [each.gold for each in answered], [each.said["label"] for each in answered]
        return class_scores(gold, said, self.record.labels)

    def _lines(self, answered: Sequence[AnsweredPair]) -> Iterator[dict[str, Any]]:
        for each in answered:
            label = each.said["label"]
            yield {"idx": each.place[0], "label": self.record.spelled.get(label, label)}


class AlternativesTask(SuperGlueTask):
    """COPA: the alternative that is scored higher is chosen, and learned beside the other."""

    settings: Mapping[str, Any] = {**SuperGlueTask.settings, "loss": "listwise"}

    def _head(self) -> str:
        return f"{Alternatives.__module__}:{Alternatives.__name__}"

    def _measured(self, answered: Sequence[AnsweredPair]) -> Mapping[str, float]:
        return {ACCURACY: float(np.mean([chosen.gold > 0 for chosen in self._chosen(answered)]))}

    def _lines(self, answered: Sequence[AnsweredPair]) -> Iterator[dict[str, Any]]:
        for chosen in self._chosen(answered):
            yield {"idx": chosen.place[0], "label": chosen.place[1]}

    def _chosen(self, answered: Sequence[AnsweredPair]) -> Iterator[AnsweredPair]:
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

    def _measured(self, answered: Sequence[AnsweredPair]) -> Mapping[str, float]:
        return self._of_questions(_questions(answered))

    def _of_questions(self, questions: Sequence[Sequence[AnsweredPair]]) -> Mapping[str, float]:
        whole = [all(each.gold == each.said["label"] for each in of_question) for of_question in questions]
        answered = [each for of_question in questions for each in of_question]
        return {**super()._measured(answered), EXACT_MATCH: float(np.mean(whole))}

    def _lines(self, answered: Sequence[AnsweredPair]) -> Iterator[dict[str, Any]]:
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


def _questions(answered: Sequence[AnsweredPair]) -> list[list[AnsweredPair]]:
    """Groups MultiRC's answers by their question."""
    return [list(of_question) for _, of_question in groupby(answered, key=lambda pair: pair.place[:2])]


_OTHERS = {"COPA": AlternativesTask, "MultiRC": AnswersTask}


def superglue_suite() -> Suite:
    """All tasks, in the order of SuperGLUE's table."""
    tasks = [_OTHERS.get(record.name, SuperGlueTask)(record) for record in RECORDS]
    return Suite("SuperGLUE", tasks, SUPERGLUE)


def _read(path: Path, pairs: Pairs, *, labelled: bool) -> list[list[dict[str, Any]]]:
    """The rows of each line, without labels where the server judges. Raises InputError naming the line."""
    lines, name = [], f"{path.parent.name}/{path.name}"  # every task's files have the same names
    with open_table(path, "jsonl", "utf-8", {}, "jsonl") as table:
        for record in read_json_records(table.lines(), name, ADVICE):
            found = pairs(record)
            if labelled and any(pair.label is None for pair in found):
                raise InputError(f"{record.where}: expected a label, found none. {ADVICE}")
            lines.append([pair.as_row(labelled) for pair in found])
    if not any(lines):
        raise InputError(f"{path} has no rows. {ADVICE}")
    return lines


def _answered(rows: Path, predictions: Path) -> Iterator[AnsweredPair]:
    for row, said in zip(rows_of(rows), rows_of(predictions), strict=True):
        yield AnsweredPair(tuple(row["place"]), row.get("label"), said)
