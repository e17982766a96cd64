"""SuperGLUE (Wang et al. 2019, arXiv 1905.00537) as a benchmark, with one record for each task: reads the
official JSON lines as pairs of texts, computes SuperGLUE's metrics, and writes the files for its server.

Every task is read as pairs of texts: a question of COPA as one pair for each of its alternatives, one of
MultiRC as one for each answer, and the words that WiC and WSC ask about are marked in the text. ReCoRD is
left out, since each of its 120,000 questions has a dozen candidates. OUT/TASK/data/train.jsonl and so on hold
the pairs; OUT/submission/BoolQ.jsonl and so on are for the server, with a line for each question: {"idx": 0,
"label": "true"}.
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
    draw_rows,
    read_rows,
    write_rows,
)
from bertsmith.benchmarks.glue_scores import (
    ACCURACY,
    EXACT_MATCH,
    F1,
    MACRO_F1,
    Alternatives,
    choose_head,
    class_scores,
    format_measures,
    make_figures,
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
    for the other; None where the benchmark doesn't publish it. `place` has the official numbers of the line,
    and of question and answer in it.
    """

    text: str
    text_pair: str
    label: str | float | None
    place: tuple[int, ...]

    def as_row(self, labelled: bool) -> dict[str, Any]:
        """The row that fine-tuning reads, with the official numbers under `place`."""
        row: dict[str, Any] = {"place": self.place, "text": self.text, "text_pair": self.text_pair}
        return row | ({"label": self.label} if labelled else {})


PairReader = Callable[[Record], list[TextPair]]  # the pairs of a line; raises InputError that names it


class SuperGlueRecord(NamedTuple):
    """The description of one of SuperGLUE's tasks. `pairs` reads the pairs of a line; `labels` are the names
    of classes, empty for a choice among alternatives; `spelled` has the server's spelling of labels where it
    differs. `diagnostics` are further files that the task's model predicts: the name of the server's file ->
    the path in the benchmark's folder, and the reader of its pairs.
    """

    name: str
    measures: tuple[str, ...]
    labels: tuple[str, ...]
    pairs: PairReader
    diagnostics: Mapping[str, tuple[str, PairReader]] = {}
    spelled: Mapping[str, str] = {}


def _read_field(line: Any, name: str, kind: type, where: str) -> Any:
    """A value of a line. Raises InputError where it is missing or has another type; a bool is no number."""
    value = line.get(name) if isinstance(line, dict) else None
    if type(value) is not kind:
        names = {str: "text", int: "a whole number", dict: "an object", list: "a list", bool: "true or false"}
        raise InputError(
            f"{where}: expected {names[kind]} under {name!r}, as the official file has it, found "
            f"{shown(value)}. {ADVICE}"
        )
    return value


def _read_label(line: Mapping[str, Any], labels: tuple[str, ...], where: str) -> str | None:
    """The name of a line's label: 'true' for true, '1' for 1; None without one. Raises InputError for a label
    that the task doesn't have.
    """
    value = line.get("label")
    if value is None:
        return None
    name = str(value).lower() if isinstance(value, bool) else str(value)
    if name not in labels:
        raise InputError(f"{where}: expected one of {', '.join(labels)} as label, found {name!r}. {ADVICE}")
    return name


def _make_pair_reader(first: str, second: str, labels: tuple[str, ...]) -> PairReader:
    """A reader of lines that have their two texts under these names."""

    def pairs(line: Record) -> list[TextPair]:
        fields, where = line
        text, text_pair = (_read_field(fields, name, str, where) for name in (first, second))
        label, idx = _read_label(fields, labels, where), _read_field(fields, "idx", int, where)
        return [TextPair(text, text_pair, label, (idx,))]

    return pairs


def _read_words_in_context(line: Record) -> list[TextPair]:
    """Reads a line of WiC, with the word before each of its sentences."""
    fields, where = line
    word = _read_field(fields, "word", str, where)
    first, second = (
        f"{word}: {_read_field(fields, name, str, where)}" for name in ("sentence1", "sentence2")
    )
    return [
        TextPair(
            first, second, _read_label(fields, _BOOLEAN, where), (_read_field(fields, "idx", int, where),)
        )
    ]


def _read_coreference(line: Record) -> list[TextPair]:
    """Reads a line of WSC: the text with the pronoun between asterisks, and the noun that it may refer to."""
    fields, where = line
    target, words = (
        _read_field(fields, "target", dict, where),
        _read_field(fields, "text", str, where).split(),
    )
    index, pronoun = (
        _read_field(target, "span2_index", int, where),
        _read_field(target, "span2_text", str, where),
    )
    length = len(pronoun.split())
    if not 0 <= index < len(words):
        raise InputError(f"{where}: expected a word {index} in the text, which has {len(words)}. {ADVICE}")
    end = index + length
    marked = " ".join([*words[:index], "*", *words[index:end], "*", *words[end:]])
    name = _read_field(target, "span1_text", str, where)
    return [
        TextPair(
            marked, name, _read_label(fields, _BOOLEAN, where), (_read_field(fields, "idx", int, where),)
        )
    ]


def _read_alternatives(line: Record) -> list[TextPair]:
    """Reads a line of COPA: one pair for each alternative, with the premise and the question as the first
    text.
    """
    fields, where = line
    question = _read_field(fields, "question", str, where)
    if question not in _QUESTIONS:
        raise InputError(f"{where}: expected cause or effect under 'question', found {question!r}. {ADVICE}")
    text = f"{_read_field(fields, 'premise', str, where)} {_QUESTIONS[question]}"
    right, idx = _read_label(fields, _BINARY, where), _read_field(fields, "idx", int, where)
    pairs = []
    for number, name in enumerate(("choice1", "choice2")):
        label = None if right is None else float(right == str(number))
        pairs.append(TextPair(text, _read_field(fields, name, str, where), label, (idx, number)))
    return pairs


def _read_answers(line: Record) -> list[TextPair]:
    """Reads a line of MultiRC: one pair for each answer, of the paragraph, and of the question with the
    answer.
    """
    fields, where = line
    passage, pairs = _read_field(fields, "passage", dict, where), []
    text, idx = _read_field(passage, "text", str, where), _read_field(fields, "idx", int, where)
    for question in _read_field(passage, "questions", list, where):
        question_text, number = (
            _read_field(question, "question", str, where),
            _read_field(question, "idx", int, where),
        )
        for answer in _read_field(question, "answers", list, where):
            answer_text, index = (
                _read_field(answer, "text", str, where),
                _read_field(answer, "idx", int, where),
            )
            label = _read_label(answer, _BINARY, where)
            pairs.append(TextPair(text, f"{question_text} {answer_text}", label, (idx, number, index)))
    return pairs


_QUESTIONS = {"cause": "What was the cause?", "effect": "What happened as a result?"}
_BINARY = ("0", "1")
_BOOLEAN = ("false", "true")
_ENTAILS = ("entailment", "not_entailment")
_NLI = ("contradiction", "entailment", "neutral")

RECORDS = (
    SuperGlueRecord("BoolQ", (ACCURACY,), _BOOLEAN, _make_pair_reader("question", "passage", _BOOLEAN)),
    SuperGlueRecord("CB", (MACRO_F1, ACCURACY), _NLI, _make_pair_reader("premise", "hypothesis", _NLI)),
    SuperGlueRecord("COPA", (ACCURACY,), (), _read_alternatives),
    SuperGlueRecord("MultiRC", (F1, EXACT_MATCH), _BINARY, _read_answers),
    SuperGlueRecord(
        "RTE",
        (ACCURACY,),
        _ENTAILS,
        _make_pair_reader("premise", "hypothesis", _ENTAILS),
        {
            "AX-b": ("AX-b/AX-b.jsonl", _make_pair_reader("sentence1", "sentence2", _ENTAILS)),
            "AX-g": ("AX-g/AX-g.jsonl", _make_pair_reader("premise", "hypothesis", _ENTAILS)),
        },
    ),
    SuperGlueRecord("WiC", (ACCURACY,), _BOOLEAN, _read_words_in_context),
    SuperGlueRecord(
        "WSC", (ACCURACY,), _BOOLEAN, _read_coreference, spelled={"false": "False", "true": "True"}
    ),
)


class AnsweredPair(NamedTuple):
    """A pair's official numbers, its label if there is one, and the model's prediction."""

    place: tuple[int, ...]
    gold: Any
    prediction: Mapping[str, Any]


class SuperGlueTask(BenchmarkTask):
    """One of SuperGLUE's tasks, described by its record, in which each pair has a class."""

    settings: Mapping[str, Any] = {"text": "text", "text_pair": "text_pair", "label": "label"}

    def __init__(self, record: SuperGlueRecord) -> None:
        self.record = record
        self.name, self.measures = record.name, record.measures
        self.head = self._head()
        self.judged_by = format_measures(record.measures)

    def is_in(self, folder: Path) -> bool:
        return (folder / self.name / _FILES["train"]).is_file()

    def source(self) -> str:
        return f"Expected {self.name}/ with {', '.join(_FILES.values())}. The files are those of {WHERE}."

    def prepare(self, folder: Path, out: Path, rows: int | None) -> TaskFiles:
        """Writes JSON lines with place, text, text_pair and label; `rows` counts lines of the official
        files.
        """
        own_folder = folder / self.name
        sources = {part: (own_folder / name, self.record.pairs) for part, name in _FILES.items()}
        sources |= {part: (folder / name, pairs) for part, (name, pairs) in self.record.diagnostics.items()}
        existing = {part: (path, pairs) for part, (path, pairs) in sources.items() if path.is_file()}
        if "train" not in existing or "dev" not in existing:
            raise InputError(f"{folder} has no {self.name}. {self.source()}")
        notes = tuple(
            f"{self.name}: nothing to hand in for {part}, for there is no {path.relative_to(folder)}"
            for part, (path, _) in sources.items()
            if part not in existing
        )
        paths = {}
        for part, (path, pairs) in existing.items():
            paths[part] = out / f"{part}.jsonl"
            lines = _read_pairs(path, pairs, labelled=part in ("train", "dev"))
            write_rows(paths[part], (row for line in draw_rows(lines, rows) for row in line))
        unlabelled = {part: path for part, path in paths.items() if part not in ("train", "dev")}
        return TaskFiles(paths["train"], paths["dev"], unlabelled=unlabelled, notes=notes)

    def figures(self, rows: Path, predictions: Path) -> Figures:
        return make_figures(self._measure(list(_read_predictions(rows, predictions))), self.measures)

    def write_submission(self, part: str, rows: Path, predictions: Path, out: Path) -> Path | None:
        """Writes a line for each question, with its official numbers."""
        if part == "dev":
            return None
        path = out / f"{self.name if part == 'test' else part}.jsonl"
        lines = self._make_lines(list(_read_predictions(rows, predictions)))
        atomic_write(path, "".join(json.dumps(line) + "\n" for line in lines))
        return path

    def _head(self) -> str:
        return choose_head(self.measures)

    def _measure(self, answered: Sequence[AnsweredPair]) -> Mapping[str, float]:
        gold, predicted = [pair.gold for pair in answered], [pair.prediction["label"] for pair in answered]
        return class_scores(gold, predicted, self.record.labels)

    def _make_lines(self, answered: Sequence[AnsweredPair]) -> Iterator[dict[str, Any]]:
        for pair in answered:
            label = pair.prediction["label"]
            yield {"idx": pair.place[0], "label": self.record.spelled.get(label, label)}


class AlternativesTask(SuperGlueTask):
    """COPA, by re-ranking: both alternatives of a question are trained together, and the one with the higher
    score is the answer.
    """

    settings: Mapping[str, Any] = {**SuperGlueTask.settings, "loss": "listwise"}

    def _head(self) -> str:
        return f"{Alternatives.__module__}:{Alternatives.__name__}"

    def _measure(self, answered: Sequence[AnsweredPair]) -> Mapping[str, float]:
        return {ACCURACY: float(np.mean([chosen.gold > 0 for chosen in self._choose_alternatives(answered)]))}

    def _make_lines(self, answered: Sequence[AnsweredPair]) -> Iterator[dict[str, Any]]:
        for chosen in self._choose_alternatives(answered):
            yield {"idx": chosen.place[0], "label": chosen.place[1]}

    def _choose_alternatives(self, answered: Sequence[AnsweredPair]) -> Iterator[AnsweredPair]:
        for _, alternatives in groupby(answered, key=lambda pair: pair.place[0]):
            yield max(alternatives, key=lambda pair: pair.prediction["score"])


class AnswersTask(SuperGlueTask):
    """MultiRC: judged by F1 over all answers, and by the share of questions whose answers are all right."""

    def standard_error(self, rows: Path, predictions: Path, of_head: float | None) -> float | None:
        """The standard error by a bootstrap over questions, since the answers to one question aren't
        independent; the head's is that of F1 alone, over answers.
        """
        questions = _group_by_question(list(_read_predictions(rows, predictions)))

        def measure_sample(numbers: Ints) -> Figures:
            return make_figures(
                self._measure_questions([questions[number] for number in numbers]), self.measures
            )

        return standard_errors(measure_sample, len(questions))[SCORE] or None

    def _measure(self, answered: Sequence[AnsweredPair]) -> Mapping[str, float]:
        return self._measure_questions(_group_by_question(answered))

    def _measure_questions(self, questions: Sequence[Sequence[AnsweredPair]]) -> Mapping[str, float]:
        all_right = [
            all(answer.gold == answer.prediction["label"] for answer in question) for question in questions
        ]
        answers = [answer for question in questions for answer in question]
        return {**super()._measure(answers), EXACT_MATCH: float(np.mean(all_right))}

    def _make_lines(self, answered: Sequence[AnsweredPair]) -> Iterator[dict[str, Any]]:
        for passage, of_passage in groupby(answered, key=lambda pair: pair.place[0]):
            questions = [
                {
                    "idx": question,
                    "answers": [
                        {"idx": answer.place[2], "label": int(answer.prediction["label"])}
                        for answer in answers
                    ],
                }
                for question, answers in groupby(of_passage, key=lambda pair: pair.place[1])
            ]
            yield {"idx": passage, "passage": {"questions": questions}}


def _group_by_question(answered: Sequence[AnsweredPair]) -> list[list[AnsweredPair]]:
    """Groups MultiRC's answers by their question."""
    return [list(of_question) for _, of_question in groupby(answered, key=lambda pair: pair.place[:2])]


_OTHER_TASKS = {"COPA": AlternativesTask, "MultiRC": AnswersTask}


def superglue_suite() -> Suite:
    """All tasks, in the order of SuperGLUE's table."""
    tasks = [_OTHER_TASKS.get(record.name, SuperGlueTask)(record) for record in RECORDS]
    return Suite("SuperGLUE", tasks, SUPERGLUE)


def _read_pairs(path: Path, pairs: PairReader, *, labelled: bool) -> list[list[dict[str, Any]]]:
    """The rows of each line, without labels unless `labelled`. Raises InputError that names the line."""
    lines, name = [], f"{path.parent.name}/{path.name}"  # every task's files have the same names
    with open_table(path, "jsonl", "utf-8", {}, "jsonl") as table:
        for record in read_json_records(table.lines(), name, ADVICE):
            line_pairs = pairs(record)
            if labelled and any(pair.label is None for pair in line_pairs):
                raise InputError(f"{record.where}: expected a label, found none. {ADVICE}")
            lines.append([pair.as_row(labelled) for pair in line_pairs])
    if not any(lines):
        raise InputError(f"{path} has no rows. {ADVICE}")
    return lines


def _read_predictions(rows: Path, predictions: Path) -> Iterator[AnsweredPair]:
    for row, prediction in zip(read_rows(rows), read_rows(predictions), strict=True):
        yield AnsweredPair(tuple(row["place"]), row.get("label"), prediction)
