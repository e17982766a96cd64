"""Another LLM, or another prompt, beside the present one: how often they answer alike, what changes, and
whether the student's proof holds for it too. Read `compare_teachers` first.
"""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from bertsmith.files import atomic_folder, write_json
from bertsmith.metrics.guarantees.bounds import clopper_pearson
from bertsmith.metrics.guarantees.growing_proof import GrowingProof
from bertsmith.metrics.scores import Interval
from bertsmith.mirror.answering.replays import compare_answers
from bertsmith.mirror.call import Call
from bertsmith.mirror.fields import AnswerShape
from bertsmith.mirror.learning.asking import Replay
from bertsmith.mirror.student import MirrorStudent
from bertsmith.mirror.student_file import (
    FILE,
    MODEL,
    SPANS,
    CallsUsed,
    Claim,
    Claims,
    StudentFile,
    hash_files,
)
from bertsmith.mirror.template import MessageTemplate, PartTemplate, PromptTemplate


@dataclass(frozen=True)
class StudentSurvival:
    """What the present student's proof is worth for the new teacher. Of `inputs`, of calls that no training
    has used, the student is sure of `sure`; there `differing` of its answers differ from the new teacher's, a
    rate with this `interval`. `holds`: that at most epsilon do is proven.
    """

    student: MirrorStudent
    inputs: int
    sure: int
    differing: int
    interval: Interval
    holds: bool


@dataclass(frozen=True)
class TeacherChange:
    """The comparison of two teachers, as in `AnswerDifference`, and what it says of the present `student`."""

    inputs: int
    differing: int
    agreement: Interval
    fields: dict[str, int]
    changes: list[tuple[str, str, str, int]]
    student: StudentSurvival | None


def compare_teachers(
    replay: Replay, shape: AnswerShape, student: MirrorStudent | None = None, delta: float = 0.05
) -> TeacherChange:
    """Compares the answers to the replayed inputs. `student` is the present one.

    The student is judged by calls that no training has used: on those it has learned from it agrees more
    often. Its proof may be looked at after each answer, so asking about more of them later is no second test
    (`growing_proof`).
    """
    fresh = [pair for pair in replay.pairs if pair[0].id not in replay.used]
    survival = None if student is None else _judge_student(fresh, student)
    return TeacherChange(*compare_answers(replay.pairs, shape, delta), survival)


def _judge_student(pairs: Sequence[tuple[Call, Call]], student: MirrorStudent) -> StudentSurvival:
    claims, shape = student.file.claims, student.file.shape  # as in service
    inputs = [(student.input_of(call.request, call.version), other) for call, other in pairs]
    texts = [text for text, _ in inputs if text is not None]
    answers = iter(student.answer(texts) if texts else ())
    proof, losses = GrowingProof([0.5], [1.0], claims.epsilon, claims.delta), list[bool]()
    for text, other in inputs:
        answer = None if text is None else next(answers)
        if answer is None or not answer.is_sure:
            continue
        differs = bool(shape.differing_paths(answer.values, shape.read(other.completion.value)))
        losses.append(differs)
        proof.record(1.0, differs)
    interval = clopper_pearson(sum(losses), len(losses), claims.delta)
    holds = claims.by is None and bool(proof.proven()[0])
    return StudentSurvival(student, len(pairs), len(losses), sum(losses), interval, holds)


def write_surviving_student(
    folder: Path, out: Path, survival: StudentSurvival, replay: Replay
) -> StudentFile:
    """Writes the student of `folder` to `out` as one of the new version, with the claim that holds for it."""
    file, claims = survival.student.file, survival.student.file.claims
    threshold = claims.whole.threshold if claims.whole is not None else survival.student.proven_threshold
    assert survival.holds and threshold is not None
    call, other = replay.pairs[0]
    template = file.templates[call.version]
    if other.request.system != call.request.system:
        system = tuple(
            MessageTemplate(role=m.role, parts=tuple(PartTemplate(pieces=(part,)) for part in m.parts))
            for m in other.request.system
        )
        template = PromptTemplate(messages=(*system, *template.messages[len(call.request.system) :]))
    claim = Claim(
        threshold=threshold,
        epsilon=claims.epsilon,
        delta=claims.delta,
        calls=survival.inputs,
        answered=survival.sure,
        risk=survival.differing / survival.sure,
        coverage_interval=tuple(clopper_pearson(survival.sure, survival.inputs, claims.delta)),
    )
    fresh = [other for call, other in replay.pairs if call.id not in replay.used]
    times, inputs = [other.began for other in fresh], {other.request.inputs for other in fresh}
    changed = {
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "teacher": fresh[0].request.model,
        "templates": {replay.version: template},
        "claims": Claims(epsilon=claims.epsilon, delta=claims.delta, whole=claim),
        "calibration": CallsUsed(calls=len(fresh), texts=len(inputs), began=min(times), ended=max(times)),
        "plan": None,
        "ceiling": None,
    }
    with atomic_folder(out, overwrite=True) as new:
        for part in (MODEL, SPANS):
            if (folder / part).is_dir():
                shutil.copytree(folder / part, new / part)
        written = file.model_copy(update={**changed, "files": hash_files(new)})
        write_json(new / FILE, written.model_dump(mode="json"))
    return written
