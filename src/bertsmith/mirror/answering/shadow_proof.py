"""The proof of a student of which nothing was proven before it came to shadow: it grows with each call that
the LLM answers too, and names a threshold the moment one holds.

    plan in student.json → number k, from the store → compared calls → units → GrowingProof → threshold

The k-th proof of a version, of a new student or the same one after drift, has the share of delta that its
number leaves it, so that all of them are true together with probability 1 - delta.

**Units.** Calls of one person within ten minutes are one unit. Of very many calls the first ones are one,
and the next ones another: were they left out, a customer's nightly job would weigh as little as a person, and
could be wrong unnoticed. Units are recorded in the order in which they began, each once its ten minutes are
over: recorded when it is complete, a unit of few calls would come later than one of many, and what is easy
sooner. Calls that name nobody are units of their own.

**Repeated inputs** count as often as they come, as in the claim: were each counted once, an input that is
frequent and always wrong would weigh no more than a rare one.

**In service** the LLM answers what the student isn't sure of, and audits of the rest. Each call has a known
probability of being asked; those that aren't asked change nothing, whatever the student thinks of them. To
count them by a predicted disagreement they would have to wait for the audits of their time, which an LLM that
is away holds up.

K thresholds.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bertsmith.arrays import Floats
from bertsmith.errors import InputError
from bertsmith.metrics.guarantees.bounds import clopper_pearson
from bertsmith.metrics.guarantees.growing_proof import GrowingProof, student_share
from bertsmith.metrics.guarantees.learn_then_test import CallGroup
from bertsmith.metrics.guarantees.sample_size import StartForecast, forecast_starts
from bertsmith.mirror.student_file import ProofPlan
from bertsmith.reporting.formatting import format_whole_percent

NEVER = -1.0  # the confidence of an answer that is never given
UNIT_SECONDS = 600.0  # calls of one person within this time are one unit
_MOST_WAITING = 500  # units; of more, the oldest is recorded before its time is over
_LARGEST_UNIT = 20  # calls
_TOGETHER = 0.9  # of the calls that name somebody
_MANY = 4000  # compared calls, of a forecast
_BATCHES = 100  # last batches that are known by their id
_Part = tuple[float, bool, float, float]  # confidence, differs, probability, least


@dataclass(frozen=True)
class ComparedCall:
    """A call that the LLM answered too. `confidence` is the student's, -1 where its answer would never be
    given. `probability` and `least` are those of `GrowingProof.record`. `began` is in seconds since 1970;
    `person` is whom the call is about, empty where it names nobody. `is_sure`: the student may answer it.
    """

    confidence: float
    differs: bool
    probability: float = 1.0
    least: float = 1.0
    began: float = 0.0
    person: str = ""
    is_sure: bool = False


@dataclass
class _Unit:
    """`person`, the time of its first call, and its calls."""

    person: str
    began: float
    parts: list[_Part] = field(default_factory=list)


class ShadowProof:
    """The `number`-th proof of a version. `delta` is that of all proofs together. `counts` (K + 1, 2) says
    how many calls agreed and differed between thresholds, the surest first, weighted like the traffic.
    `drifts`: how often the student's traffic has changed, each time with a new proof.
    """

    def __init__(self, plan: ProofPlan, number: int, drifts: int = 0) -> None:
        self.plan, self.number, self.drifts = plan, number, drifts
        self.proof = GrowingProof(
            plan.thresholds,
            plan.starts,
            plan.epsilon,
            student_share(plan.delta, number),
            plan.unit_calls or 1,
        )
        self.counts: Floats = np.zeros((len(plan.thresholds) + 1, 2))
        self._waiting: list[_Unit] = []
        self._latest = 0.0  # when the latest call began
        self._batches: list[str] = []

    @property
    def threshold(self) -> float | None:
        """The laxest threshold proven; None while nothing is."""
        return self.proof.threshold()

    def coverage(self, threshold: float) -> float:
        """The share of the calls whose confidence reaches one of the thresholds; 0 without calls."""
        place = int(np.searchsorted(-self.proof.thresholds, -threshold))
        return float(self.counts[: place + 1].sum() / max(self.counts.sum(), 1e-9))

    def has_batch(self, batch: str) -> bool:
        """Whether a batch of calls with this id was added; then and later it is known."""
        if batch in self._batches:
            return True
        self._batches = [*self._batches, batch][-_BATCHES:]
        return False

    def add(self, calls: Iterable[ComparedCall]) -> None:
        """Adds calls in the order of time."""
        for call in calls:
            self._latest = max(self._latest, call.began)
            self._record_ended()
            self._add_to_unit(call)
            self._record_ended()

    def _record_ended(self) -> None:
        while self._waiting and self._is_over(self._waiting[0]):
            self._record(self._waiting.pop(0))

    def _add_to_unit(self, call: ComparedCall) -> None:
        person = call.person if self.plan.unit_calls is not None else ""
        own = (unit for unit in self._waiting if person and unit.person == person)
        unit = next((unit for unit in own if len(unit.parts) < self.proof.largest_unit), None)
        if unit is None:
            unit = _Unit(person, call.began)
            self._waiting.append(unit)
        unit.parts.append((call.confidence, call.differs, call.probability, call.least))

    def _is_over(self, unit: _Unit) -> bool:
        is_late = unit.began <= self._latest - UNIT_SECONDS
        return not unit.person or is_late or len(self._waiting) > _MOST_WAITING

    def _record(self, unit: _Unit) -> None:
        confidence, differs, probability, leasts = (
            np.array(column, np.float64) for column in zip(*unit.parts)
        )
        least = float(leasts.min())
        self.proof.record(confidence, differs, True, probability, least)
        places = np.searchsorted(-self.proof.thresholds, -confidence, side="left")
        np.add.at(self.counts, (places, differs.astype(np.int64)), leasts / probability)

    def outlook(self) -> tuple[int | None, int | None, int | None]:
        """After how many more compared calls something is proven, as in `GrowingProof.forecast`, by those so
        far and, as long as the traffic hasn't changed, those of development; None for very many.
        """
        planned = np.array(self.plan.counts) if not self.drifts else np.zeros_like(self.counts)
        low, middle, high = (
            int(calls) if math.isfinite(calls) else None
            for calls in self.proof.forecast(planned + self.counts)
        )
        return low, middle, high

    def forecast(self) -> StartForecast:
        """What the student can be expected to answer once many calls are compared, by those so far and, as
        long as the traffic hasn't changed, those of development.
        """
        planned = np.array(self.plan.counts) if not self.drifts else np.zeros_like(self.counts)
        counts = np.rint(planned + self.counts).astype(np.int64).ravel()
        thresholds = self.proof.thresholds
        confidence = np.repeat(np.repeat(np.append(thresholds, NEVER), 2), counts)
        differs = np.repeat(np.tile([False, True], len(thresholds) + 1), counts)
        group = CallGroup(confidence, differs, thresholds, self.plan.epsilon)
        # Evidence that may be looked at at any time takes about ten times that of one look.
        return forecast_starts(group, _MANY, self.proof.delta / 10)

    def agreement(self) -> tuple[int, int] | None:
        """Of how many compared calls the answers agree, and the number of calls; None where the compared ones
        aren't like all calls, as beside a student that answers some.
        """
        calls = round(self.counts.sum())
        is_like_all = calls == self.proof.calls and np.array_equal(self.counts, np.rint(self.counts))
        return (round(self.counts[:, 0].sum()), calls) if calls and is_like_all else None

    def describe(self) -> str:
        """How far the proof is and what it claims, in words: 'from confidence 0.71 on, 64 % of the calls,
        with 95 % confidence at most 5 % of its answers differ: proven on 512 calls'.
        """
        delta, epsilon = self.plan.delta, self.plan.epsilon
        claim = f"with {100 * (1 - delta):g} % confidence at most {100 * epsilon:g} % of its answers differ"
        if (threshold := self.threshold) is None:
            return f"proof {self.number}, of {self.proof.calls:,} calls so far, doesn't stand yet: {claim}"
        answered = format_whole_percent(self.coverage(threshold))
        return (
            f"from confidence {threshold:.3g} on, {answered} of the calls, {claim}: proven on "
            f"{self.proof.calls:,} calls"
        )

    def after_drift(self, number: int) -> "ShadowProof":
        """A new proof of the same student: what was proven was about other traffic. It knows the batches that
        were added to this one.
        """
        proof = ShadowProof(self.plan, number, self.drifts + 1)
        proof._batches = self._batches
        return proof

    def as_json(self) -> dict[str, Any]:
        """The whole state as JSON values; `from_json` continues from it to the bit."""
        return {
            "plan": self.plan.model_dump(mode="json"),
            "number": self.number,
            "drifts": self.drifts,
            "proof": self.proof.as_json(),
            "counts": self.counts.tolist(),
            "waiting": [[unit.person, unit.began, unit.parts] for unit in self._waiting],
            "latest": self._latest,
            "batches": self._batches,
        }

    @classmethod
    def from_json(cls, state: Mapping[str, Any]) -> "ShadowProof":
        """Raises InputError for what `as_json` of this version didn't write."""
        try:
            proof = cls(ProofPlan.model_validate(state["plan"]), int(state["number"]), int(state["drifts"]))
            counts = np.array(state["counts"], np.float64)
            if counts.shape != proof.counts.shape:
                raise ValueError("counts and thresholds don't fit")
            proof.proof, proof.counts = GrowingProof.from_json(state["proof"]), counts
            proof._waiting = [
                _Unit(person, began, [(*part,) for part in parts])
                for person, began, *_, parts in state["waiting"]  # an earlier version counted them too
            ]
            proof._latest, proof._batches = float(state["latest"]), list(state["batches"])
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(
                "Expected the state of a proof in shadow as this version's as_json writes it, found a fault: "
                f"{type(error).__name__}. Train another student."
            ) from error
        return proof


def choose_unit_calls(calls: Iterable[tuple[str, float]]) -> int | None:
    """The most calls of one person that are to be one unit: so many that nine in ten calls are in the first
    one of their ten minutes, 20 at most, since larger units make for more cautious bets. None where calls
    name nobody, or more than half of them the same: then it is the application's name. `calls` are (person,
    time) in the order of time.
    """
    began = dict[str, float]()  # of each person's latest unit
    sizes, of_person, total = Counter[tuple[str, float]](), Counter[str](), 0
    for person, time in calls:
        total += 1
        if not person:
            continue
        if time > began.get(person, -math.inf) + UNIT_SECONDS:
            began[person] = time
        sizes[person, began[person]] += 1
        of_person[person] += 1
    if not sizes or max(of_person.values()) > total / 2:
        return None
    named = of_person.total()
    for most in range(1, _LARGEST_UNIT):
        if sum(min(size, most) for size in sizes.values()) >= _TOGETHER * named:
            return most
    return _LARGEST_UNIT


def describe_agreement(agreeing: int, calls: int) -> str:
    """'agrees with the LLM in 37 of 50 calls (59.6% to 85.4% with 95 % confidence)'."""
    low, high = clopper_pearson(agreeing, calls, 0.05)
    return (
        f"agrees with the LLM in {agreeing:,} of {calls:,} calls ({100 * low:.3g}% to {100 * high:.3g}% with "
        "95 % confidence)"
    )


def describe_calls(low: int | None, middle: int | None, high: int | None) -> str:
    """So many calls in words: 'about 320 compared calls (140 to 900, in four cases of five)'."""
    if middle is None:
        return "more compared calls than can be foretold"
    span = "or many more" if high is None else f"to {high:,}"
    return f"about {middle:,} compared calls ({low:,} {span}, in four cases of five)"
