"""What limits a student: how often the teacher contradicts itself and refuses, and how many calls there are.

How agreement grows with the calls learned from: the cheap tier is trained on parts of the texts, and its
disagreement on dev falls as a power law. Another tier's is taken to fall at the same pace, from where it
stands.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from bertsmith.errors import InputError
from bertsmith.metrics.guarantees.power_law import PowerLaw, fit_power_law
from bertsmith.metrics.guarantees.teacher_noise import ceiling
from bertsmith.metrics.scores import Interval
from bertsmith.mirror.answering.ledger import REFUSED
from bertsmith.mirror.answering.stage_store import StageStore
from bertsmith.mirror.fields import ABSENT, AnswerShape, written
from bertsmith.mirror.learning.learned_calls import LearnedCall, hash_fraction
from bertsmith.mirror.learning.targets import build_heads
from bertsmith.mirror.learning.tiers import TeacherComparison, fit_word_model
from bertsmith.mirror.learning.understand import SiteProfile
from bertsmith.mirror.store import Store
from bertsmith.mirror.student_file import TeacherCeiling

_FEWEST = 20  # inputs, below which nothing is said
_SHARES = (0.125, 0.25, 0.5)
_SMALLEST_PART = 20  # texts of the smallest part


def estimate_teacher_ceiling(
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
    # Between two numbers that are two tolerances apart, one of ours agrees with both.
    fields = tuple(each.model_copy(update={"tolerance": 2 * each.tolerance}) for each in shape.fields)
    tolerant = shape.model_copy(update={"fields": fields})
    differing, far_apart = (
        sum(_contradicts(each, *pair) for pair in chosen.values()) for each in (shape, tolerant)
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


def describe_refusals(store: Store, understood: SiteProfile) -> str:
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


@dataclass(frozen=True)
class CallCurve:
    """Agreement on dev's `calls` by the texts learned from, of the cheap tier; `tier` names whose forecast it
    is and `reached` its agreement with all texts, which `recorded` calls hold, those kept to choose and prove
    with among them.
    """

    rows: tuple[int, ...]
    agreements: tuple[float, ...]
    calls: int
    tier: str
    reached: float
    law: PowerLaw
    recorded: int

    def forecast(self, agreement: float) -> str:
        """'About 1,400 more calls to reach 95 % (from 900 to 2,600).' So many go to a text as until now."""
        texts = self.law.rows_for(agreement)
        # Divided first, so that as many texts as there are come to exactly the calls recorded.
        needed, low, high = (self.recorded * (each / self.rows[-1]) for each in (texts.rows, *texts.interval))
        return replace(texts, have=self.recorded, rows=needed, interval=Interval(low, high)).as_sentence()


def fit_call_curve(
    train: Sequence[LearnedCall],
    dev: Sequence[LearnedCall],
    shape: AnswerShape,
    reached: TeacherComparison,
    tier: str,
    floor: float,
    seed: int,
    recorded: int,
) -> CallCurve | None:
    """None for too few texts, and for answers that the cheap tier can't give. `floor` is the least that the
    teacher's own contradictions allow; `recorded` are the calls that all texts come of.
    """
    if len(train) * _SHARES[0] < _SMALLEST_PART or any(field.kind == "spans" for field in shape.fields):
        return None
    order = sorted(train, key=lambda call: hash_fraction(call.text, seed + 1))
    rows = [round(share * len(train)) for share in (*_SHARES, 1.0)]
    wrong = [_count_disagreements(order[:count], dev, shape) for count in rows]
    if any(each is None for each in wrong):
        return None
    counts = [each for each in wrong if each is not None]
    law = fit_power_law(rows, counts, [len(dev)] * len(rows), min(floor, 0.5), seed)
    agreements = tuple(1 - each / len(dev) for each in counts)
    if tier != "tf-idf":  # through the other tier's disagreement at all rows
        count = len(reached.differs)
        rate = (reached.differs.sum() + 0.5) / (count + 1)
        excess = max(float(rate) - law.floor, 0.5 / count)
        shift = math.log(excess) - (law.log_a - law.b * math.log(law.have))
        law = replace(law, log_a=law.log_a + shift, draws=law.draws + np.array([shift, 0.0]))
    return CallCurve(tuple(rows), agreements, len(dev), tier, reached.agreement, law, recorded)


def _count_disagreements(
    train: Sequence[LearnedCall], dev: Sequence[LearnedCall], shape: AnswerShape
) -> int | None:
    try:
        heads = build_heads(shape, train)
    except InputError:  # so few may hold none of a field's values
        return None
    model = fit_word_model(train, heads, shape)
    if model is None:
        return None
    logits = model.logits([call.text for call in dev])
    guesses = {head.path: head.guesses(shape.field(head.path), logits[head.path]) for head in heads}
    return sum(
        bool(shape.differing({path: of[number].value for path, of in guesses.items()}, call.values))
        for number, call in enumerate(dev)
    )
