"""What limits a student: how often the teacher contradicts itself or refuses, and the number of calls.

The learning curve: the cheap tier is trained on parts of the texts, and a power law is fitted to its
disagreement on dev. Another tier is assumed to improve at the same rate from its own disagreement.
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
from bertsmith.mirror.fields import ABSENT, AnswerShape, canonical_json
from bertsmith.mirror.identity import hash_fraction
from bertsmith.mirror.learning.learned_calls import LearnedCall
from bertsmith.mirror.learning.proving import estimate_coverage
from bertsmith.mirror.learning.targets import build_heads
from bertsmith.mirror.learning.tiers import TeacherComparison, fit_word_model
from bertsmith.mirror.learning.understand import SiteProfile
from bertsmith.mirror.store import Store
from bertsmith.mirror.student_file import TeacherCeiling
from bertsmith.reporting.formatting import format_whole_percent

_FEWEST = 20  # inputs, below which there is no estimate
_EASY, _HARD = 0.5, 0.1  # shares of calls in which a field could be answered
_SHARES = (0.125, 0.25, 0.5)
_SMALLEST_PART = 20  # texts of the smallest part


def estimate_teacher_ceiling(
    calls: Sequence[LearnedCall], again: Sequence[LearnedCall], shape: AnswerShape, delta: float
) -> TeacherCeiling | None:
    """The best agreement with the teacher that any model can reach, from the inputs asked `again`; without
    enough of them, from texts that came twice, which are no random sample. None for fewer than 20 inputs.
    """
    first: dict[str, LearnedCall] = {}
    pairs: dict[str, tuple[LearnedCall, LearnedCall]] = {}
    for call in calls:
        earlier = first.setdefault(call.text, call)
        if earlier is not call and call.text not in pairs:
            pairs[call.text] = earlier, call
    asked_again = {call.text: (first[call.text], call) for call in reversed(again) if call.text in first}
    chosen = asked_again if len(asked_again) >= _FEWEST else pairs
    if len(chosen) < _FEWEST:
        return None
    # A model's number between two that are two tolerances apart agrees with both.
    fields = tuple(field.model_copy(update={"tolerance": 2 * field.tolerance}) for field in shape.fields)
    tolerant = shape.model_copy(update={"fields": fields})
    differing, far_apart = (
        sum(_contradicts(rule, *pair) for pair in chosen.values()) for rule in (shape, tolerant)
    )
    return TeacherCeiling(
        inputs=len(chosen),
        differing=differing,
        low=ceiling(differing, len(chosen), delta).best_agreement.low,
        high=ceiling(far_apart, len(chosen), delta).best_agreement.high,
        delta=delta,
        asked_again=chosen is asked_again,
    )


def _contradicts(shape: AnswerShape, one: LearnedCall, other: LearnedCall) -> bool:
    """Whether two answers differ. Parts beside the fields that are equal in both are no contradiction."""
    return any(
        canonical_json(one.values.get(path, ABSENT)) != canonical_json(other.values.get(path, ABSENT))
        for path in shape.differing_paths(one.values, other.values)
    )


def describe_refusals(store: Store, profile: SiteProfile) -> str:
    """How often the LLM gave no answer with the schema, in a sentence; empty where it always did. Such calls
    are not recorded, so no claim covers them.
    """
    versions, reasons = {version.version for version in profile.versions}, Counter[str]()
    for (version, _, outcome), (calls, _) in StageStore(store).tallies().items():
        if version in versions and outcome.startswith(REFUSED):
            reasons[outcome.removeprefix(REFUSED)] += calls
    if not reasons:
        return ""
    listed = ", ".join(f"{reason} {calls:,}" for reason, calls in reasons.most_common())
    return (
        f"The LLM gave no answer with the schema to {reasons.total():,} calls beside these "
        f"{profile.calls:,} ({listed}). No claim is about them; in shadow, in canary and in audits a sure "
        "student counts as differing."
    )


def describe_uneven_fields(dev: TeacherComparison, epsilon: float) -> str:
    """Which fields could be answered by themselves with at most `epsilon` differing, and which could hardly
    be, in a sentence without its period; empty where all fields are alike.
    """
    shares = {path: estimate_coverage(*of_field, epsilon) for path, of_field in dev.fields.items()}
    easy = [path for path, share in shares.items() if share >= _EASY]
    hard = [path for path, share in shares.items() if share < _HARD]
    if not easy or not hard:
        return ""
    agreements = [
        f"{path} ({format_whole_percent(1 - float(dev.fields[path][1].mean()))} agree)" for path in hard
    ]
    answered = [f"{path} in {format_whole_percent(shares[path])}" for path in easy]
    return (
        f"It fails at {' and '.join(agreements)}; by themselves could be answered "
        f"{' and '.join(answered)} of the calls. Ask for {' and '.join(easy)} in calls of their own where "
        "nothing else is needed: a student of these may be proven"
    )


@dataclass(frozen=True)
class CallCurve:
    """The cheap tier's `agreements` on dev (`calls` of them) by the number of texts learned from (`rows`).
    The forecast is for `tier`, whose agreement with all texts is `reached`. `recorded` counts all calls,
    including those of dev and calibration.
    """

    rows: tuple[int, ...]
    agreements: tuple[float, ...]
    calls: int
    tier: str
    reached: float
    law: PowerLaw
    recorded: int

    def forecast(self, agreement: float) -> str:
        """'About 1,400 more calls to reach 95 % agreement with the LLM (from 900 to 2,600).' Assumes as many
        calls for each text as so far.
        """
        texts = self.law.rows_for(agreement)
        # Divided first, so that as many texts as there are come to exactly the calls recorded.
        needed, low, high = (
            self.recorded * (count / self.rows[-1]) for count in (texts.rows, *texts.interval)
        )
        forecast = replace(texts, have=self.recorded, rows=needed, interval=Interval(low, high))
        if self.reached < agreement or forecast.rows <= forecast.have:
            return forecast.as_sentence()
        return (
            f"The student agrees in {100 * self.reached:.4g} % of the {self.calls:,} calls to choose it "
            f"by, but so few are a rough measure. By the learning curve: {forecast.as_sentence()}"
        )


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
    """Fits the learning curve. None for too few texts, and for answers with quotes, which the cheap tier
    can't give. `floor`: the disagreement that the teacher's contradictions make unavoidable; `recorded`: the
    number of all calls.
    """
    if len(train) * _SHARES[0] < _SMALLEST_PART or any(field.kind == "spans" for field in shape.fields):
        return None
    order = sorted(train, key=lambda call: hash_fraction(call.text, seed + 1))
    rows = [round(share * len(train)) for share in (*_SHARES, 1.0)]
    disagreements = [_count_disagreements(order[:count], dev, shape) for count in rows]
    counts = [count for count in disagreements if count is not None]
    if len(counts) < len(disagreements):
        return None
    law = fit_power_law(rows, counts, [len(dev)] * len(rows), min(floor, 0.5), seed)
    agreements = tuple(1 - count / len(dev) for count in counts)
    if tier != "tf-idf":  # shift the law through the other tier's disagreement at all rows
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
    except InputError:  # so few calls may have no value of some field
        return None
    model = fit_word_model(train, heads, shape)
    if model is None:
        return None
    logits = model.logits([call.text for call in dev])
    predictions = {head.path: head.predict(shape.field(head.path), logits[head.path]) for head in heads}
    return sum(
        bool(
            shape.differing_paths(
                {path: column[number].value for path, column in predictions.items()}, call.values
            )
        )
        for number, call in enumerate(dev)
    )
