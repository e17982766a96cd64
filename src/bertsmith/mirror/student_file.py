"""student.json describes a student: the site it answers for, how requests are read, what is proven of its
answers, and the hash of each file in its folder. Read `StudentFile` first.

student.json    this description            model/   an encoder with its head, or words and their weights
report.html     the same for people         spans/   a tagger, if answers quote the input
"""

import math
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic import Field as Bounded

from bertsmith.errors import InputError, ModelError
from bertsmith.files import read_json, sha256
from bertsmith.metrics.guarantees.learn_then_test import Certificate
from bertsmith.mirror.fields import AnswerShape, FieldHead, Values, format_value
from bertsmith.mirror.template import PromptTemplate
from bertsmith.validation import describe_problem

FILE, MODEL, SPANS = "student.json", "model", "spans"
_ID_LENGTH = 12  # hexadecimal digits


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Claim(_Part):
    """A guarantee: of the answers whose confidence reaches `threshold`, at most the share `epsilon` differs
    from the teacher's, with probability 1 - `delta`.

    Of `calls` calibration calls the student answered `answered`, and the share `risk` of these differed. The
    share of calls that it answers lies in `coverage_interval`, also with probability 1 - `delta`.
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
        """The share of the calibration calls that the student answered."""
        return self.answered / self.calls

    @classmethod
    def from_certificate(cls, certificate: Certificate) -> "Claim":
        """The claim that Learn-then-Test has proven. The threshold is at least 0: it answers everything."""
        low, high = certificate.coverage_interval
        return cls(
            threshold=max(certificate.threshold, 0.0),
            epsilon=certificate.epsilon,
            delta=certificate.delta,
            calls=certificate.calls,
            answered=certificate.answered,
            risk=certificate.risk,
            coverage_interval=(low, high),
        )


class Claims(_Part):
    """All claims about a student; None stands for one that could not be proven.

    They are true together with probability 1 - `delta`, and their coverage intervals too with probability
    1 - 2 `delta`. `whole` is about the whole answer, whose confidence is the product of its fields'
    confidences; `fields` has a claim about each field by itself. `others` are the claims about the whole
    answer at other risks, from the smallest risk on: each may be chosen in place of `whole` (`at`).

    If each value of a field has a claim of its own, `by` is this field's path, and `classes` has the claims
    by value: each is about the whole answers that contain the value. `calls` is then the number of
    calibration calls, and `whole` is None.
    """

    epsilon: float
    delta: float
    whole: Claim | None
    fields: dict[str, Claim | None] = Bounded(default_factory=dict)
    by: str | None = None
    classes: dict[str, Claim | None] = Bounded(default_factory=dict)
    calls: int = 0
    others: tuple[Claim, ...] = ()

    @property
    def coverage(self) -> float:
        """The share of the calibration calls that the student answered; 0 if nothing is proven."""
        if self.by is None:
            return self.whole.coverage if self.whole is not None else 0.0
        return sum(claim.answered for claim in self.classes.values() if claim) / max(self.calls, 1)

    def threshold_for(self, values: Values) -> float | None:
        """The least confidence at which an answer with these values by path may be given; None if no
        threshold is proven for it.
        """
        claim = self.whole if self.by is None else self.classes.get(format_value(values[self.by]))
        return None if claim is None else claim.threshold

    @property
    def ladder(self) -> tuple[Claim, ...]:
        """The claims about the whole answer, from the smallest risk on."""
        proven = (*self.others, *((self.whole,) if self.whole is not None else ()))
        return tuple(sorted(proven, key=lambda claim: claim.epsilon))

    def at(self, epsilon: float) -> "Claims":
        """The same claims with the whole answer's at `epsilon` chosen. This is no new look at any call: all
        of them were proven together. Raises InputError where none was proven at this risk.
        """
        chosen = next((claim for claim in self.ladder if math.isclose(claim.epsilon, epsilon)), None)
        if chosen is None:
            proven = ", ".join(f"{claim.epsilon:g}" for claim in self.ladder) or "nothing"
            raise InputError(
                f"Expected an allowed difference that is proven of this student ({proven}), found "
                f"{epsilon:g}. "
                "Another one takes a new proof, by new calls: bertsmith mirror train --epsilon."
            )
        others = tuple(claim for claim in self.ladder if claim is not chosen)
        return self.model_copy(update={"epsilon": chosen.epsilon, "whole": chosen, "others": others})


class ProofPlan(_Part):
    """How the claim of a student of which nothing is proven yet is to be proven in shadow: at which
    `thresholds`, from strict to lax, and with which parts of delta to start there (GrowingProof). All of it
    comes from development calls.

    `unit_calls`: the most calls of one person within a short time that are one unit; None where calls name
    nobody.
    `counts` says how many development calls lay between thresholds, the surest first, that agreed and that
    differed. `forecast`: the numbers of compared calls after which something is proven in a tenth, in half
    and in nine tenths of simulations; None for more than were simulated.
    """

    epsilon: float
    delta: float
    thresholds: tuple[float, ...]
    starts: tuple[float, ...]
    unit_calls: int | None = None
    counts: tuple[tuple[float, float], ...]
    forecast: tuple[int, int, int | None]


class CallsUsed(_Part):
    """The number of `calls`, the number of different `texts` among them, and the times of the first and the
    last (seconds since 1970). `replayed` calls are answers to recorded inputs that the LLM was asked again.
    """

    calls: int
    texts: int
    began: float
    ended: float
    replayed: int = 0


class TeacherCeiling(_Part):
    """How well the best possible student can agree with the teacher, who contradicts itself now and then.

    Of `inputs` that were answered twice, the teacher's two answers to `differing` of them differ. The best
    possible agreement lies between `low` and `high` with probability 1 - `delta`. `asked_again` says whether
    inputs were asked again for this purpose, rather than occurring twice in the traffic.
    """

    inputs: int
    differing: int
    low: float
    high: float
    delta: float
    asked_again: bool


class StudentFile(_Part):
    """The content of student.json.

    `templates` say for each version where a request has its input. `heads` describe the model's outputs in
    their order. `span_tags` maps the tagger's labels to (field's path, kind of span). `plan` says how to go
    on proving, where nothing is proven but may become so. `training` is the name by which the store knows the
    calls that it learned from. `files` has the SHA-256 of each file in the folder, by name.
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
    plan: ProofPlan | None = None
    calibration: CallsUsed
    trained_on: CallsUsed
    ceiling: TeacherCeiling | None = None
    training: str = ""
    files: dict[str, str] = Bounded(default_factory=dict)

    @property
    def is_promotable(self) -> bool:
        """Whether a claim about its whole answers is proven; otherwise it is not sure until its `plan` has
        proven one. Claims about single fields don't count.
        """
        return self.claims.coverage > 0


def read_student_file(folder: Path) -> StudentFile:
    """Reads student.json and checks every file in the folder against its hash. Raises ModelError if a file is
    missing or was altered, or if another version of Bertsmith wrote student.json.
    """
    path = folder / FILE
    if not path.is_file():
        raise ModelError(f"{folder} is no student: it has no {FILE}. bertsmith mirror train makes one.")
    try:
        file = StudentFile.model_validate(read_json(path))
    except ValidationError as error:
        raise ModelError(
            f"{path}: {describe_problem(error, StudentFile)} Train the student again."
        ) from error
    for name, expected_hash in file.files.items():
        part = folder / name
        if not part.resolve().is_relative_to(folder.resolve()):
            raise ModelError(f"{path} names a file outside of its folder: {name!r}. Train the student again.")
        if not part.is_file() or sha256(part) != expected_hash:
            raise ModelError(
                f"{part} is missing or was altered. Take the student from a copy, or train again."
            )
    return file


def student_id(folder: Path) -> str:
    """The id of the student in a folder: the first digits of the hash of its student.json, which contains the
    hashes of all other files.
    """
    return sha256(folder / FILE)[:_ID_LENGTH]


def require_student(folder: Path, expected_id: str) -> None:
    """Raises ModelError if the folder holds no student, or another than the one with `expected_id`:
    guarantees and comparisons hold for that one only.
    """
    if not (folder / FILE).is_file():
        raise ModelError(f"{folder} is no student: it has no {FILE}. bertsmith mirror train makes one.")
    if student_id(folder) != expected_id:
        raise ModelError(
            f"{folder} holds another student than {expected_id}. Put that one back, or promote this one."
        )


def hash_files(folder: Path) -> dict[str, str]:
    """The SHA-256 of every file in the folder and below, by relative name, without student.json."""
    return {
        path.relative_to(folder).as_posix(): sha256(path)
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != FILE
    }
