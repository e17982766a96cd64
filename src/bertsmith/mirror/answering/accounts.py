"""What answering saved and cost, in calls, time and money, for each version that has or had a student, or
under which recorded inputs were asked again.

Read `read_accounts` first: it turns the counts and the evidence in the store into one `Account` a version.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from bertsmith.metrics.scores import Interval
from bertsmith.mirror.answering.ledger import REFUSED, VOIDED
from bertsmith.mirror.answering.replays import ReplayStore
from bertsmith.mirror.answering.stage_store import CallMeans, StageStore, Tallies
from bertsmith.mirror.answering.stages import Evidence, Stage
from bertsmith.mirror.settings import PriceSettings

# Why the LLM answered: the student was asked and failed, or it wasn't asked.
_FAILED = ("student-failed", "student-slow", "student-busy", "mirror-error")
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
    """Amounts in the currency of the prices. `saved`: the price of the calls that the student answered;
    `audits`: the price of those that the LLM was asked about too; `replays`: of the recorded inputs that it
    was asked again; `errors`: the lowest and the highest cost of differing answers, by the confidence
    interval of the audits, or None without a price of an error.
    """

    saved: float
    audits: float
    replays: float
    errors: tuple[float, float] | None

    @property
    def net(self) -> tuple[float, float]:
        """The lowest and the highest balance: saved minus the costs of audits, replays and errors."""
        low, high = self.errors or (0.0, 0.0)
        saved = self.saved - self.audits - self.replays
        return saved - high, saved - low


@dataclass(frozen=True)
class Account:
    """The account of one version. `relayed` counts by reason the calls that the LLM answered although a
    student serves; `audits` counts audits by outcome, `replays` the recorded inputs that the LLM was asked
    again. `refused` counts by reason the calls to which the LLM
    gave no answer with the schema, in any mode: a sure student counts as differing there. `void` counts by
    cause the audits that are no evidence. `differs` is the share of the student's answers that differ;
    `interval` holds it with probability 1 - delta at any time. `fails`: the student should answer, and every
    call that it was asked failed. `seconds_saved` is the sum over all answered calls. `call_price` is None
    where the number of tokens of a call is unknown.
    """

    stage: Stage
    answered: int
    relayed: dict[str, int]
    audits: dict[str, int]
    replays: int
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
        """The number of audits drawn, whatever their outcome."""
        return sum(self.audits.values())

    @property
    def calls_avoided(self) -> int:
        """Calls that the student answered and the LLM was not asked about."""
        return self.answered - self.audited

    @property
    def calls(self) -> int:
        """All calls that arrived while a student served: answered and relayed."""
        return self.answered + sum(self.relayed.values())

    def as_json(self) -> dict[str, Any]:
        """The JSON object that `bertsmith mirror status --json` prints for the version."""
        account = asdict(self) | {"calls_avoided": self.calls_avoided}
        account["interval"] = [self.interval.low, self.interval.high]
        if self.money is not None:
            account["money"] = asdict(self.money) | {"net": self.money.net}
        return account


def read_accounts(store: StageStore, prices: PriceSettings) -> list[Account]:
    """One account for each version whose stage was ever changed or that has replays, by site and version."""
    tallies, evidence, means = store.tallies(), store.evidence(), store.means()
    replays = ReplayStore(store.store).paid_counts()
    stages = [stage for stage in store.stages().values() if stage.revision or replays.get(stage.version)]
    accounts = []
    for stage in sorted(stages, key=lambda stage: (stage.site, stage.version)):
        counted = _count_outcomes(stage, tallies)
        of_students = Counter[str]()
        for (student, outcome), count in store.audit_outcomes(stage.version).items():
            if student == stage.student or student in counted.own:
                of_students[outcome] += count
        asked_again = replays.get(stage.version, 0)
        accounts.append(
            _build_account(
                stage, counted, dict(of_students), asked_again, evidence, means.get(stage.version), prices
            )
        )
    return accounts


@dataclass
class _OutcomeCounts:
    """The counts of one stage: `own` calls by the student that answered them, and their `seconds` together;
    `relayed` calls, calls that the LLM `refused` and `void` audits, each by reason. `outcomes` are the kinds
    of outcome of the current student.
    """

    own: Counter[str] = field(default_factory=Counter)
    relayed: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    void: Counter[str] = field(default_factory=Counter)
    outcomes: set[str] = field(default_factory=set)
    seconds: float = 0.0


def _count_outcomes(stage: Stage, tallies: Tallies) -> _OutcomeCounts:
    counts = _OutcomeCounts()
    for (version, student, outcome), (calls, seconds) in tallies.items():
        if version != stage.version or outcome.startswith(_COMPARISON_PREFIXES):
            continue
        if student == stage.student:
            counts.outcomes.add(outcome)
        if outcome == "answered":
            counts.own[student] += calls
            counts.seconds += seconds
        elif outcome.startswith(REFUSED):
            counts.refused[outcome.removeprefix(REFUSED)] += calls
        elif outcome.startswith(VOIDED):
            counts.void[outcome.removeprefix(VOIDED)] += calls
        elif student:  # else it was another version's that served, such as that of the prompt before
            counts.relayed[outcome] += calls
    return counts


def _build_account(
    stage: Stage,
    counted: _OutcomeCounts,
    audits: dict[str, int],
    replays: int,
    evidence_by_student: Mapping[str, Evidence],
    means: CallMeans | None,
    prices: PriceSettings,
) -> Account:
    means = means or CallMeans(None, None, None)
    llm_seconds, price = means.seconds, _estimate_call_price(prices, means)
    own, seconds = counted.own, counted.seconds
    answered, evidence = sum(own.values()), evidence_by_student.get(stage.student)
    compared = 0 if evidence is None else evidence.audits.count
    interval = _difference_interval(evidence)
    outcomes = counted.outcomes
    has_failed = not outcomes.isdisjoint(_FAILED) and outcomes <= {*_FAILED, *_NOT_ASKED}
    money = None
    if price is not None:
        errors = None
        if prices.error is not None:
            intervals = [
                (calls, _difference_interval(evidence_by_student.get(student)))
                for student, calls in own.items()
            ]
            low, high = (sum(calls * bounds[end] for calls, bounds in intervals) for end in (0, 1))
            errors = low * prices.error, high * prices.error
        money = Money(answered * price, sum(audits.values()) * price, replays * price, errors)
    return Account(
        stage,
        answered,
        dict(counted.relayed),
        audits,
        replays,
        dict(counted.refused),
        dict(counted.void),
        compared,
        evidence.audits.rate() if evidence is not None and compared else None,
        interval,
        evidence is not None and evidence.has_drifted,
        stage.student_answers and has_failed,
        seconds / answered if answered else None,
        llm_seconds or None,
        max(0.0, answered * llm_seconds - seconds) if llm_seconds else 0.0,
        price,
        money,
    )


def _estimate_call_price(prices: PriceSettings, means: CallMeans) -> float | None:
    """The price of one call; None without a price, or where no answer reported its tokens, as streams often
    don't.
    """
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
