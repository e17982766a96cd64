"""What is known of the teacher: how often it contradicts itself, and how often it refuses."""

from collections import Counter
from collections.abc import Sequence

from bertsmith.metrics.guarantees.teacher_noise import ceiling
from bertsmith.mirror.answering.ledger import REFUSED
from bertsmith.mirror.answering.stage_store import StageStore
from bertsmith.mirror.fields import ABSENT, AnswerShape, written
from bertsmith.mirror.learned_calls import LearnedCall
from bertsmith.mirror.store import Store
from bertsmith.mirror.student_file import TeacherCeiling
from bertsmith.mirror.understanding.understand import Understood

_FEWEST = 20  # inputs, below which nothing is said


def teacher_ceiling(
    calls: Sequence[LearnedCall], again: Sequence[LearnedCall], shape: AnswerShape, delta: float
) -> TeacherCeiling | None:
    """From `again`, the inputs that were asked once more for this purpose; else from texts that came twice by
    themselves, which are not drawn at random. None for fewer than twenty inputs.
    """
    first: dict[str, LearnedCall] = {}
    pairs: dict[str, tuple[LearnedCall, LearnedCall]] = {}
    for call in calls:
        earlier = first.setdefault(call.text, call)
        if earlier is not call and call.text not in pairs:
            pairs[call.text] = earlier, call
    asked = {call.text: (first[call.text], call) for call in reversed(again) if call.text in first}
    chosen = asked if len(asked) >= _FEWEST else pairs
    if len(chosen) < _FEWEST:
        return None
    differing, far_apart = (
        sum(_contradicts(each, *pair) for pair in chosen.values())
        for each in (shape, _twice_as_tolerant(shape))
    )
    return TeacherCeiling(
        inputs=len(chosen),
        differing=differing,
        low=ceiling(differing, len(chosen), delta).best_agreement.low,
        high=ceiling(far_apart, len(chosen), delta).best_agreement.high,
        delta=delta,
        asked_again=chosen is asked,
    )


def _contradicts(shape: AnswerShape, one: LearnedCall, other: LearnedCall) -> bool:
    """What stands beside the fields, and is the same in both, is no contradiction."""
    return any(
        written(one.values.get(path, ABSENT)) != written(other.values.get(path, ABSENT))
        for path in shape.differing(one.values, other.values)
    )


def _twice_as_tolerant(shape: AnswerShape) -> AnswerShape:
    """Between two numbers that are two tolerances apart, one of ours agrees with both."""
    fields = tuple(each.model_copy(update={"tolerance": 2 * each.tolerance}) for each in shape.fields)
    return shape.model_copy(update={"fields": fields})


def refusals(store: Store, understood: Understood) -> str:
    """How often it gave no answer with the schema, in a sentence; empty where it always did. Such calls are
    not recorded, and so in no claim.
    """
    versions, reasons = {each.version for each in understood.versions}, Counter[str]()
    for (version, _, outcome), (calls, _) in StageStore(store).tallies().items():
        if version in versions and outcome.startswith(REFUSED):
            reasons[outcome.removeprefix(REFUSED)] += calls
    if not reasons:
        return ""
    said = ", ".join(f"{reason} {calls:,}" for reason, calls in reasons.most_common())
    return (
        f"The LLM gave no answer with the schema to {reasons.total():,} calls beside these "
        f"{understood.calls:,} ({said}). No claim is about them; in shadow, in canary and in audits a sure "
        "student counts as differing."
    )
