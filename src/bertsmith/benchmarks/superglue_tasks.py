"""SuperGLUE's tasks (Wang et al. 2019, arXiv 1905.00537), one record a task: what a line of its files
becomes, by which metrics it is judged, and how its answers are spelled.

Every task is read as pairs of texts: a question of COPA as its two alternatives, one of MultiRC as its
answers, and the words that WiC and WSC ask about are marked in the text itself. ReCoRD isn't here: each of
its 120,000 questions has a dozen candidates.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from bertsmith.benchmarks.glue_scores import ACCURACY, EXACT_MATCH, F1, MACRO_F1
from bertsmith.errors import InputError
from bertsmith.text.files.values import shown
from bertsmith.text.labelled.rows import Record

WHERE = "https://super.gluebenchmark.com/tasks"
ADVICE = "Take the file from the benchmark anew."


class Pair(NamedTuple):
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


Pairs = Callable[[Record], list[Pair]]  # of a line; raises InputError naming it


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

    def pairs(line: Record) -> list[Pair]:
        fields, where = line
        text, text_pair = (_field(fields, name, str, where) for name in (first, second))
        label, idx = _label(fields, labels, where), _field(fields, "idx", int, where)
        return [Pair(text, text_pair, label, (idx,))]

    return pairs


def _words_in_context(line: Record) -> list[Pair]:
    """WiC: the word before each of its sentences."""
    fields, where = line
    word = _field(fields, "word", str, where)
    first, second = (f"{word}: {_field(fields, name, str, where)}" for name in ("sentence1", "sentence2"))
    return [Pair(first, second, _label(fields, _BOOLEAN, where), (_field(fields, "idx", int, where),))]


def _coreference(line: Record) -> list[Pair]:
    """WSC: the pronoun between asterisks in its text, and whom it may stand for."""
    fields, where = line
    target, words = _field(fields, "target", dict, where), _field(fields, "text", str, where).split()
    place, pronoun = _field(target, "span2_index", int, where), _field(target, "span2_text", str, where)
    length = len(pronoun.split())
    if not 0 <= place < len(words):
        raise InputError(f"{where}: expected a word {place} in the text, which has {len(words)}. {ADVICE}")
    marked = " ".join([*words[:place], "*", *words[place : place + length], "*", *words[place + length :]])
    name = _field(target, "span1_text", str, where)
    return [Pair(marked, name, _label(fields, _BOOLEAN, where), (_field(fields, "idx", int, where),))]


def _alternatives(line: Record) -> list[Pair]:
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
        pairs.append(Pair(text, _field(fields, name, str, where), label, (idx, number)))
    return pairs


def _answers(line: Record) -> list[Pair]:
    """MultiRC: the paragraph, and a question with each of its answers."""
    fields, where = line
    passage, pairs = _field(fields, "passage", dict, where), []
    text, idx = _field(passage, "text", str, where), _field(fields, "idx", int, where)
    for question in _field(passage, "questions", list, where):
        asked, number = _field(question, "question", str, where), _field(question, "idx", int, where)
        for answer in _field(question, "answers", list, where):
            said, place = _field(answer, "text", str, where), _field(answer, "idx", int, where)
            label = _label(answer, _BINARY, where)
            pairs.append(Pair(text, f"{asked} {said}", label, (idx, number, place)))
    return pairs


_ASKED = {"cause": "What was the cause?", "effect": "What happened as a result?"}
_BINARY = ("0", "1")
_BOOLEAN = ("false", "true")
_ENTAILS = ("entailment", "not_entailment")
_NLI = ("contradiction", "entailment", "neutral")

SUPERGLUE = (
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
