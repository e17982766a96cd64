"""What answering has saved and cost: calls, time, money, of each version that has or had a student."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from bertsmith.metrics.scores import Interval
from bertsmith.mirror.answering.ledger import REFUSED, VOIDED
from bertsmith.mirror.answering.stage_store import CallMeans, StageStore, Tallies
from bertsmith.mirror.answering.stages import Evidence, Stage
from bertsmith.mirror.settings import PriceSettings

_FAILED = ("student-failed", "student-slow", "student-busy", "mirror-error")  # of calls that it was asked
_NOT_ASKED = ("new-key", "new-template")
_COMPARISON_PREFIXES = (
    "audit-",
    "shadow-",
    "canary-",
    "live-",
    "candidate-",
)  # outcomes of comparisons, not of calls


@dataclass(frozen=True)
class Money:
    """In the currency of the prices. `saved` is what the calls answered would have cost, `audits` what those
    of them cost that were put to the LLM too, `errors` what the answers that differ cost, from its least to
    its most by the interval of the audits; None where no price of an error is known.
    """

    saved: float
    audits: float
    errors: tuple[float, float] | None

    @property
    def net(self) -> tuple[float, float]:
        """From the least to the most."""
        low, high = self.errors or (0.0, 0.0)
        return self.saved - self.audits - high, self.saved - self.audits - low


@dataclass(frozen=True)
class Account:
    """`relayed` counts the calls that the LLM answered although a student serves, by reason; `audits` by
    outcome. `refused` are calls that the LLM gave no answer with the schema, by reason, in whatever mode: a
    sure student counts as differing. `void` are audits that tell nothing, by cause. `differs` is the share of
    the student's answers that differ, and `interval` where it lies with probability 1 - delta, whenever one
    looks. `fails`: the student is to answer, and every call that it was asked failed. `seconds_saved` is of
    all calls answered together. `call_price` is None where nobody knows how many tokens a call has.
    """

    stage: Stage
    answered: int
    relayed: dict[str, int]
    audits: dict[str, int]
    refused: dict[str, int]
    void: dict[str, int]
    compared: int
    differs: float | None
    interval: Interval
    has_drifted: bool
    fails: bool
    own_seconds: float | None
    llm_seconds: float | None
    seconds_saved: float
    call_price: float | None
    money: Money | None

    @property
    def audited(self) -> int:
        """Audits drawn."""
        return sum(self.audits.values())

    @property
    def calls_avoided(self) -> int:
        """Of the LLM."""
        return self.answered - self.audited

    @property
    def calls(self) -> int:
        """Since a student serves."""
        return self.answered + sum(self.relayed.values())

    def as_json(self) -> dict[str, Any]:
        """For `bertsmith mirror status --json`."""
        found = asdict(self) | {"calls_avoided": self.calls_avoided}
        found["interval"] = [self.interval.low, self.interval.high]
        if self.money is not None:
            found["money"] = asdict(self.money) | {"net": self.money.net}
        return found


def read_accounts(store: StageStore, prices: PriceSettings) -> list[Account]:
    """Of the versions that have a stage of their own, by site."""
    tallies, evidence, means = store.tallies(), store.evidence(), store.means()
    stages = [each for each in store.stages().values() if each.revision]
    found = []
    for stage in sorted(stages, key=lambda each: (each.site, each.version)):
        counted = _count_outcomes(stage, tallies)
        of_students = Counter[str]()
        for (student, outcome), count in store.audit_outcomes(stage.version).items():
            if student == stage.student or student in counted.own:
                of_students[outcome] += count
        found.append(
            _build_account(stage, counted, dict(of_students), evidence, means.get(stage.version), prices)
        )  # fmt: skip
    return found


@dataclass
class _OutcomeCounts:
    """Of one stage: calls answered by each student, and `seconds` of these together; those relayed, those
    that the LLM refused, and audits that are void, each by reason. `outcomes` are those of its student.
    """

    own: Counter[str] = field(default_factory=Counter)
    relayed: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    void: Counter[str] = field(default_factory=Counter)
    outcomes: set[str] = field(default_factory=set)
    seconds: float = 0.0


def _count_outcomes(stage: Stage, tallies: Tallies) -> _OutcomeCounts:
    found = _OutcomeCounts()
    for (version, student, outcome), (calls, took) in tallies.items():
        if version != stage.version or outcome.startswith(_COMPARISON_PREFIXES):
            continue
        if student == stage.student:
            found.outcomes.add(outcome)
        if outcome == "answered":
            found.own[student] += calls
            found.seconds += took
        elif outcome.startswith(REFUSED):
            found.refused[outcome.removeprefix(REFUSED)] += calls
        elif outcome.startswith(VOIDED):
            found.void[outcome.removeprefix(VOIDED)] += calls
        elif student:  # else it was another version's that served, such as that of the prompt before
            found.relayed[outcome] += calls
    return found


def _build_account(
    stage: Stage,
    counted: _OutcomeCounts,
    audits: dict[str, int],
    known: Mapping[str, Evidence],
    means: CallMeans | None,
    prices: PriceSettings,
) -> Account:
    means = means or CallMeans(None, None, None)
    llm_seconds, price = means.seconds, _estimate_call_price(prices, means)
    own, seconds = counted.own, counted.seconds
    answered, evidence = sum(own.values()), known.get(stage.student)
    compared = 0 if evidence is None else evidence.audits.count
    interval = _difference_interval(evidence)
    outcomes = counted.outcomes
    has_failed = not outcomes.isdisjoint(_FAILED) and outcomes <= {*_FAILED, *_NOT_ASKED}
    money = None
    if price is not None:
        errors = None
        if prices.error is not None:
            of_each = [(calls, _difference_interval(known.get(student))) for student, calls in own.items()]
            low, high = (sum(calls * each[end] for calls, each in of_each) for end in (0, 1))
            errors = low * prices.error, high * prices.error
        money = Money(answered * price, sum(audits.values()) * price, errors)
    return Account(
        stage,
        answered,
        dict(counted.relayed),
        audits,
        dict(counted.refused),
        dict(counted.void),
        compared,
        evidence.audits.rate() if evidence is not None and compared else None,
        interval,
        evidence is not None and evidence.has_drifted,
        stage.answers and has_failed,
        seconds / answered if answered else None,
        llm_seconds or None,
        max(0.0, answered * llm_seconds - seconds) if llm_seconds else 0.0,
        price,
        money,
    )


def _estimate_call_price(prices: PriceSettings, means: CallMeans) -> float | None:
    """None where there is no price, or no answer said how many tokens it had, as streams often don't."""
    if prices.call is not None:
        return prices.call
    parts = [
        (price, tokens)
        for price, tokens in (
            (prices.million_input_tokens, means.input_tokens),
            (prices.million_output_tokens, means.output_tokens),
        )
        if price
    ]
    if not parts or any(tokens is None for _, tokens in parts):
        return None
    return sum(price * (tokens or 0.0) for price, tokens in parts) / 1_000_000


def _difference_interval(evidence: Evidence | None) -> Interval:
    return Interval(0.0, 1.0) if evidence is None else evidence.audits.interval()
