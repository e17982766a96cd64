"""student.json: whom a student answers for, what it read, what is proven of it, and the hash of each file.

student.json    this file                    model/   an encoder with its head, or words and their weights
report.html     the same to look at          spans/   a tagger, where answers quote the input
"""

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic import Field as Bounded

from bertsmith.errors import ModelError
from bertsmith.files import read_json, sha256
from bertsmith.metrics.guarantees.learn_then_test import Certificate
from bertsmith.mirror.fields import AnswerShape, FieldHead, Values, format_value
from bertsmith.mirror.template import PromptTemplate
from bertsmith.validation import first_problem

FILE, MODEL, SPANS = "student.json", "model", "spans"
_ID = 12  # hexadecimal digits


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Claim(_Part):
    """Answers from `threshold` on differ from the teacher's in at most `epsilon` of the cases, with
    probability 1 - `delta`. Of `calls` it answered `answered`, of which the share `risk` differed;
    `coverage_interval` is where the share answered lies, with the same probability.
    """

    threshold: float
    epsilon: float
    delta: float
    calls: int
    answered: int
    risk: float
    coverage_interval: tuple[float, float]

    @property
    def coverage(self) -> float:
        """The share of the calibration calls that it answered."""
        return self.answered / self.calls

    @classmethod
    def of(cls, proven: Certificate) -> "Claim":
        """Of what Learn-then-Test proved; "answers everything" is written as a threshold of 0."""
        low, high = proven.coverage_interval
        return cls(
            threshold=max(proven.threshold, 0.0),
            epsilon=proven.epsilon,
            delta=proven.delta,
            calls=proven.calls,
            answered=proven.answered,
            risk=proven.risk,
            coverage_interval=(low, high),
        )


class Claims(_Part):
    """All true together with probability 1 - `delta`, and with 1 - 2 `delta` their coverage intervals too.
    None: not proven. `whole` is of the whole answer, by
    the product of its fields' confidences; `fields` of each one by itself. Where each value of a field has a
    claim of its own, `by` is that field's path and `classes` has the claims on the whole answers that give
    it the value; the calibration calls were `calls`, and `whole` is None.
    """

    epsilon: float
    delta: float
    whole: Claim | None
    fields: dict[str, Claim | None] = Bounded(default_factory=dict)
    by: str | None = None
    classes: dict[str, Claim | None] = Bounded(default_factory=dict)
    calls: int = 0

    @property
    def coverage(self) -> float:
        """The share of the calibration calls that it answered; 0 where nothing is proven."""
        if self.by is None:
            return self.whole.coverage if self.whole is not None else 0.0
        return sum(label.answered for label in self.classes.values() if label) / max(self.calls, 1)

    def threshold_for(self, values: Values) -> float | None:
        """The confidence from which on an answer of these values is proven; None where none is."""
        claim = self.whole if self.by is None else self.classes.get(format_value(values[self.by]))
        return None if claim is None else claim.threshold


class CallsUsed(_Part):
    """How many `calls`, with how many different `texts`, from when to when (seconds since 1970)."""

    calls: int
    texts: int
    began: float
    ended: float


class TeacherCeiling(_Part):
    """Of `inputs` that were asked twice the teacher answered `differing` in two ways; so the best possible
    model agrees with it in a share from `low` to `high`, with probability 1 - `delta`. `asked_again`: for
    this purpose; else they came twice by themselves.
    """

    inputs: int
    differing: int
    low: float
    high: float
    delta: float
    asked_again: bool


class StudentFile(_Part):
    """`templates` say by version where the input is. `heads` are the model's outputs in their order;
    `span_tags` name what the tagger's labels stand for: (path, kind of span).
    """

    layout: Literal[1] = 1
    bertsmith: str
    created: str
    site: str
    protocol: str
    teacher: str
    templates: dict[str, PromptTemplate]
    shape: AnswerShape
    tier: Literal["tf-idf", "encoder"]
    heads: tuple[FieldHead, ...] = ()
    span_tags: dict[str, tuple[str, str]] = Bounded(default_factory=dict)
    claims: Claims
    calibration: CallsUsed
    trained_on: CallsUsed
    ceiling: TeacherCeiling | None = None
    files: dict[str, str] = Bounded(default_factory=dict)


def read_student_file(folder: Path) -> StudentFile:
    """Raises ModelError where a file is missing or was altered, or another version wrote it."""
    path = folder / FILE
    if not path.is_file():
        raise ModelError(f"{folder} is no student: it has no {FILE}. bertsmith mirror train makes one.")
    try:
        found = StudentFile.model_validate(read_json(path))
    except ValidationError as error:
        raise ModelError(f"{path}: {first_problem(error, StudentFile)} Train the student again.") from error
    for name, known in found.files.items():
        part = folder / name
        if not part.resolve().is_relative_to(folder.resolve()):
            raise ModelError(f"{path} names a file outside of its folder: {name!r}. Train the student again.")
        if not part.is_file() or sha256(part) != known:
            raise ModelError(
                f"{part} is missing or was altered. Take the student from a copy, or train again."
            )
    return found


def student_id(folder: Path) -> str:
    """Names the student in a folder: the first digits of the hash of student.json, which has all others."""
    return sha256(folder / FILE)[:_ID]


def require_student(folder: Path, number: str) -> None:
    """Raises ModelError where the folder holds none, or another than `number`: what was proven, and what was
    compared since, is not of that one.
    """
    if not (folder / FILE).is_file():
        raise ModelError(f"{folder} is no student: it has no {FILE}. bertsmith mirror train makes one.")
    if student_id(folder) != number:
        raise ModelError(
            f"{folder} holds another student than {number}. Put that one back, or promote this one."
        )


def hash_files(folder: Path) -> dict[str, str]:
    """SHA-256 by name, of every file but student.json."""
    return {
        path.relative_to(folder).as_posix(): sha256(path)
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != FILE
    }
