"""Proves the candidates' claims on calibration calls, by which nothing was chosen (docs/guarantees.md), and
puts them into words.

One test covers the claims of all candidates: on the whole answer at each risk of a ladder and, where there
are several fields, on each of them. The claims hold together, so they hold for whichever candidate and risk
are chosen, also later. They share delta by a graph that is planned on dev: nearly all is for the whole answer
of the most promising candidate at the risk that is wanted. A small part of delta is kept back beforehand:
where nothing is proven, a proof at that part goes on in shadow, with other calls, and all that either of the
two ever claims is true together with probability 1 - delta. Read `prove` first.

E calls, T thresholds.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from bertsmith.arrays import Bools, Floats, Ints
from bertsmith.metrics.guarantees.growing_proof import GrowingProof, student_share
from bertsmith.metrics.guarantees.learn_then_test import (
    CallGroup,
    Certificate,
    GroupShare,
    Prices,
    certify_by_graph,
    threshold_sequence,
)
from bertsmith.metrics.guarantees.sample_size import (
    calls_to_prove,
    fewest_calls,
    forecast_starts,
    plan_graph,
)
from bertsmith.mirror.answering.shadow_proof import describe_calls
from bertsmith.mirror.fields import AnswerShape, format_value
from bertsmith.mirror.learning.learned_calls import LearnedCall
from bertsmith.mirror.learning.settings import LearnSettings
from bertsmith.mirror.learning.tiers import (
    StudentCandidate,
    TeacherComparison,
    compare_with_teacher,
    tier_title,
)
from bertsmith.mirror.student_file import Claim, Claims, ProofPlan, TeacherCeiling
from bertsmith.reporting.formatting import (
    format_confidence,
    format_percent,
    format_upper_percent,
    format_whole_percent,
)

_WHOLE = ""
_PLACES = 40  # numbers of answers that are tried on dev
_FEWEST_ON_DEV = 10  # answers on dev, below which a low risk may be chance
LIKELY_TO_FAIL = 0.5  # the probability that nothing is proven, from which on a proof isn't begun
FAR = 20  # times the calls that are there: beyond it, it takes a better student rather than more calls
FIRST_SHARE = 0.9  # of delta, for the most promising candidate, and of that for its whole answer
KEPT_BACK = 0.02  # of delta, for a proof in shadow where the one on calibration calls fails
_NOT = "not proven"
_STREAMS = (1000, 2000, 4000, 8000, 16_000)  # calls in shadow that a proof is planned for
_UNLIKELY = 0.2  # that a planned proof proves nothing


@dataclass(frozen=True)
class ProofResult:
    """The index of the chosen candidate and its claims. `why`: the reason why nothing is proven, or empty;
    `tried`: whether the calibration calls were used; `plan`: how to go on proving in shadow, where nothing
    is proven.
    """

    chosen: int
    claims: Claims
    why: str
    tried: bool
    plan: ProofPlan | None = None


def estimate_coverage(confidence: Floats, differs: Bools, epsilon: float) -> float:
    """The largest share of the dev calls (E,) that could be answered with at most `epsilon` of the answers
    differing; 0 for fewer than ten answers. An estimate, no proof.
    """
    answered, errors = _count_errors(confidence, differs)
    acceptable = answered[(errors <= epsilon * answered) & (answered >= _FEWEST_ON_DEV)]
    return float(acceptable.max() / len(confidence)) if len(acceptable) else 0.0


def choose_method(
    candidates: Sequence[StudentCandidate], dev: Sequence[LearnedCall], shape: AnswerShape, epsilon: float
) -> StudentCandidate | None:
    """The candidate that could answer most of dev with at most `epsilon` differing, and with twice that: few
    calls tell little by one risk alone. None without candidates.
    """

    def worth(candidate: StudentCandidate) -> tuple[float, float]:
        compared = compare_with_teacher(candidate, dev, shape)
        coverages = [
            estimate_coverage(compared.confidence, compared.differs, risk) for risk in (epsilon, 2 * epsilon)
        ]
        return sum(coverages), compared.agreement

    return max(candidates, key=worth, default=None)


def _count_errors(confidence: Floats, differs: Bools) -> tuple[Ints, Ints]:
    """(T,) both: how many answers each possible threshold gives, and how many of these differ. Answers of one
    confidence are given together.
    """
    order = np.argsort(-confidence, kind="stable")[: _count_given(confidence)]
    answered = np.flatnonzero(np.diff(confidence[order], append=-np.inf)) + 1
    return answered, np.cumsum(differs[order], dtype=np.int64)[answered - 1]


def _count_given(confidence: Floats) -> int:
    """How many of the answers are ever given."""
    return int((confidence >= 0).sum())


def candidate_thresholds(confidence: Floats) -> Floats:
    """(T,) thresholds from the dev calls, descending to 0, which gives every answer that is ever given."""
    return np.unique(np.maximum(threshold_sequence(np.maximum(confidence, 0.0)), 0.0))[::-1]


def target_epsilon(settings: LearnSettings) -> float:
    """The risk to prove; with prices half of the break-even risk."""
    prices = read_prices(settings)
    return settings.epsilon if prices is None else prices.break_even / 2


def read_prices(settings: LearnSettings) -> Prices | None:
    """The settings' prices, or None. Raises InputError for prices by which no claim is worth proving."""
    if settings.call_price is None or settings.error_price is None:
        return None
    return Prices(settings.call_price, settings.error_price)


def estimate_calls_needed(
    confidence: Floats, differs: Bools, calls: int, epsilon: float, delta: float
) -> float:
    """The number of calibration calls that would prove a group's claim with probability one half, if they are
    like dev: the lowest over all thresholds, infinite where none is good enough. `confidence` (E,) and
    `differs` (E,) are of the group's calls among the `calls` of dev.
    """
    answered, errors = _count_errors(confidence, differs)
    answered, errors = answered[answered >= _FEWEST_ON_DEV], errors[answered >= _FEWEST_ON_DEV]
    fewest = math.inf
    if not len(answered):
        return fewest
    for place in np.unique(np.linspace(0, len(answered) - 1, _PLACES).astype(int)).tolist():
        count = int(answered[place])
        needed = calls_to_prove((float(errors[place]) + 0.5) / (count + 1), epsilon, delta, 0.5)
        if needed is not None:
            fewest = min(fewest, math.ceil(needed * calls / count))
    return fewest


def explain_postponement(
    devs: Sequence[TeacherComparison], calls: int, recorded: int, settings: LearnSettings
) -> str:
    """Why the calibration calls (`calls` of the `recorded`) should be saved for a later training, in a
    sentence; empty where they can be used now.
    """
    epsilon = target_epsilon(settings)
    groups = [(*group, len(dev.confidence)) for dev in devs for group in _answering_groups(dev, settings)]
    level = _largest_level(devs, calls, settings)
    guarantee = f"at most {format_upper_percent(epsilon)} of its answers differ"
    needed = fewest_calls(epsilon, level)
    if calls < needed:
        return (
            f"there are {calls:,} new calls to prove it with, and it takes at least {needed:,} to guarantee "
            f"that {guarantee}, however good the student is. "
            f"{_advise('at least', needed, calls, recorded, settings)}"
        )
    on_dev = "on the calls to choose the model by,"
    if not any(estimate_coverage(*group[:2], epsilon) for group in groups):
        if few := _describe_too_few(devs, settings, _FEWEST_ON_DEV):
            return f"{on_dev} {few}"
        differ = f"more than {format_upper_percent(epsilon)} of the answers differ"
        if settings.by_class is not None:
            return (
                f"{on_dev} {differ}, whatever the student says of {settings.by_class}, even of those that "
                f"it is surest of, or there are fewer than {_FEWEST_ON_DEV}"
            )
        return f"{on_dev} {differ}, even of those that the student is surest of"
    likely = min(estimate_calls_needed(*group, epsilon, level) for group in groups)
    if likely > FAR * calls:  # so many would be a guess
        likely = math.inf
    if likely > calls:
        few = _describe_too_few(devs, settings, _count_to_judge(epsilon))
        if math.isinf(likely) and few:
            return f"{on_dev} {few}. Record calls with more different texts"
        surest = max(count_agreeing(*group[:2]) for group in groups)
        if math.isinf(likely) and is_too_few_to_judge(surest, epsilon):
            to_judge = _count_to_judge(epsilon)
            times = math.ceil(to_judge / surest * recorded) - recorded
            return (
                f"{on_dev} none of the {surest:,} answers that the student is surest of differs, and it "
                f"takes {to_judge:,} such to judge whether {guarantee}: record about {times:,} more calls. "
                "Those kept for the proof stay unused"
            )
        takes, more = "a better student", ""
        if math.isfinite(likely):
            takes = f"about {likely:,.0f} for a student like this"
            more = f". {_advise('about', math.ceil(likely), calls, recorded, settings)}"
        return (
            f"there are {calls:,} new calls to prove it with, and it takes {takes} to guarantee that "
            f"{guarantee}; the calls are kept for a later training{more}"
        )
    if settings.by_class is None and not any(
        _may_succeed(*group[:2], calls, epsilon, level) for group in groups
    ):
        return (
            f"by the forecast the {calls:,} new calls would rather not prove that {guarantee}, so they are "
            f"kept for a later training. {_advise('about', 2 * calls, calls, recorded, settings)}"
        )
    return ""


def count_agreeing(confidence: Floats, differs: Bools) -> int:
    """How many answers (E,), the surest first, come before the first that differs."""
    answered, errors = _count_errors(confidence, differs)
    return int(answered[errors == 0].max(initial=0))


def is_too_few_to_judge(agreeing: int, epsilon: float) -> bool:
    """Whether so many of the surest answers, of which none differs, are enough to hope by, and too few to
    estimate anything by: then it takes more calls rather than a better student.
    """
    return _FEWEST_ON_DEV <= agreeing < _count_to_judge(epsilon)


def _may_succeed(confidence: Floats, differs: Bools, calls: int, epsilon: float, level: float) -> bool:
    """Whether a proof by so many calls rather succeeds than fails, by the forecast from dev."""
    group = CallGroup(confidence, differs, candidate_thresholds(confidence), epsilon)
    return forecast_starts(group, calls, level).unproven < LIKELY_TO_FAIL


def _count_to_judge(epsilon: float) -> int:
    """The fewest answers by which `estimate_calls_needed` can estimate anything: none of them differs, and it
    adds half an error.
    """
    return max(_FEWEST_ON_DEV, math.floor(0.5 / epsilon))


def _describe_too_few(comparisons: Sequence[TeacherComparison], settings: LearnSettings, fewest: int) -> str:
    """That the student gives fewer than `fewest` answers in each group, in words; empty where it gives so
    many in one.
    """
    most = max(
        _count_given(confidence)
        for comparison in comparisons
        for confidence, _ in _answering_groups(comparison, settings)
    )
    if most >= fewest:
        return ""
    answers = f"{most:,} answers"
    if settings.by_class is not None:
        answers = f"at most {most:,} answers with the same {settings.by_class}"
    return f"the student gives {answers}, and it takes {fewest:,} to judge them"


def _largest_level(devs: Sequence[TeacherComparison], calls: int, settings: LearnSettings) -> float:
    """The largest share of delta that a claim by which the student may answer is tested at."""
    if settings.call_price is not None:
        return calibration_delta(settings) * FIRST_SHARE
    if settings.by_class is not None:
        _, graph = _plan_claims(devs, calls, settings)
        return settings.delta * max(planned.share for planned in graph.values())
    first_of = (len(devs) > 1) + (len(devs[0].fields) > 1 or len(settings.risks) > 1)
    return calibration_delta(settings) * FIRST_SHARE**first_of


def _answering_groups(comparison: TeacherComparison, settings: LearnSettings) -> list[tuple[Floats, Bools]]:
    """The groups with whose claim a student may answer: with that of a field alone it may not."""
    groups = _group_calls(comparison, settings)
    return list(groups.values()) if settings.by_class is not None else [groups[_WHOLE]]


def _advise(about: str, needed: int, calls: int, recorded: int, settings: LearnSettings) -> str:
    """What to do so that `needed` calls are kept to prove with, at most a share of all. There are `calls`;
    the others that are recorded are used, so it takes new ones.
    """
    more = max(needed - calls, math.ceil(needed / settings.calibration_share) - recorded)
    steps = [f"record {about} {more:,} more calls"] if more > 0 else []
    if needed > settings.most_calibration:
        steps.append(f"keep more of them to prove with: --most-proof-calls {needed}")
    sentence = " and ".join(steps)
    return sentence[:1].upper() + sentence[1:]


def empty_claims(settings: LearnSettings) -> Claims:
    """The claims of a student of which nothing is proven."""
    return Claims(epsilon=target_epsilon(settings), delta=settings.delta, whole=None)


def postpone(
    devs: Sequence[TeacherComparison], why: str, settings: LearnSettings, unit_calls: int | None
) -> ProofResult:
    """The result without a look at the calibration calls: the candidate that may prove most in shadow and its
    plan; without any that may, the one that agrees most. `unit_calls` are those of ProofPlan.
    """
    plans = [plan_proof(dev, settings, unit_calls) for dev in devs]
    best = max(range(len(devs)), key=lambda number: (plans[number][1], devs[number].agreement))
    return ProofResult(best, empty_claims(settings), why, False, plans[best][0])


def plan_proof(
    dev: TeacherComparison, settings: LearnSettings, unit_calls: int | None
) -> tuple[ProofPlan | None, float]:
    """How a candidate's claim on the whole answer can be proven on calls as they come, by those of dev, and
    the share of calls that it can be expected to answer then. No plan where nothing can be expected, and
    where each value of a field is to have a claim of its own.

    The starts are those for the fewest of some numbers of calls that are likely to prove something.
    """
    if settings.by_class is not None:
        return None, 0.0
    epsilon = target_epsilon(settings)
    thresholds = candidate_thresholds(dev.confidence)
    group = CallGroup(dev.confidence, dev.differs, thresholds, epsilon)
    # Evidence that may be looked at at any time takes about ten times that of one look.
    level = student_share(settings.delta, 1) / 10
    for calls in _STREAMS:
        expected = forecast_starts(group, calls, level)
        if expected.coverage and expected.unproven <= _UNLIKELY:
            break
    if not expected.coverage:
        return None, 0.0
    growing = GrowingProof(
        thresholds, expected.starts, epsilon, student_share(settings.delta, 1), unit_calls or 1
    )
    counts = np.zeros((len(thresholds) + 1, 2))
    places = np.searchsorted(-thresholds, -dev.confidence, side="left")
    np.add.at(counts, (places, dev.differs.astype(np.int64)), 1)
    low, middle, high = growing.forecast(counts)
    if math.isinf(middle):
        return None, 0.0
    plan = ProofPlan(
        epsilon=epsilon,
        delta=settings.delta,
        thresholds=tuple(thresholds.tolist()),
        starts=tuple(expected.starts.tolist()),
        unit_calls=unit_calls,
        counts=tuple((float(agreeing), float(differing)) for agreeing, differing in counts),
        forecast=(int(low), int(middle), int(high) if math.isfinite(high) else None),
    )
    return plan, expected.coverage


def describe_plan(plan: ProofPlan) -> str:
    """How a student's proof goes on in shadow, in a sentence."""
    return (
        f"In shadow its proof goes on with each call that the LLM answers: it takes "
        f"{describe_calls(*plan.forecast)} until it may answer some, of which then, with "
        f"{format_confidence(plan.delta)} confidence, at most {format_upper_percent(plan.epsilon)} differ"
    )


def prove(
    candidates: Sequence[StudentCandidate],
    devs: Sequence[TeacherComparison],
    calibrations: Sequence[TeacherComparison],
    settings: LearnSettings,
    recorded: int = 0,
    unit_calls: int | None = None,
) -> ProofResult:
    """Proves the claims of all candidates, cheapest first, and chooses the first that answers enough of the
    calls, else the one that answers most. `recorded` calls are there in all; `unit_calls` are those of
    ProofPlan. The plan of a proof in shadow also comes from the calibration calls, since none of them is
    among those that it will count.
    """
    if settings.call_price is not None:
        claims = _prove_by_prices(devs, calibrations, settings)
    elif settings.by_class is not None:
        claims = _prove_by_class(devs, calibrations, settings)
    else:
        claims = _prove_by_field(devs, calibrations, settings)
    coverages = [claim.coverage for claim in claims]  # from the cheapest candidate to the dearest
    best = int(np.argmax(coverages))
    if coverages[best] <= 0:  # the one that answers most at the smallest risk that is proven
        best = max(
            range(len(claims)), key=lambda number: (_rank_others(claims[number]), devs[number].agreement)
        )
        seen = [_join(dev, proven) for dev, proven in zip(devs, calibrations, strict=True)]
        kept_back = settings.model_copy(update={"delta": KEPT_BACK * settings.delta})
        plan, _ = plan_proof(seen[best], kept_back, unit_calls)
        return ProofResult(
            best, claims[best], _explain_failure(calibrations[best], devs, settings, recorded), True, plan
        )
    chosen = next((index for index, coverage in enumerate(coverages) if coverage >= settings.enough), best)
    return ProofResult(chosen, claims[chosen], "", True)


def _join(one: TeacherComparison, other: TeacherComparison) -> TeacherComparison:
    """The whole answers of both; without fields."""
    return TeacherComparison(
        np.concatenate([one.confidence, other.confidence]),
        np.concatenate([one.differs, other.differs]),
        {},
        [*one.answers, *other.answers],
    )


def calibration_delta(settings: LearnSettings) -> float:
    """The part of delta for the calibration calls. Claims of each class are never proven in shadow."""
    return settings.delta * (1.0 if settings.by_class is not None else 1 - KEPT_BACK)


def _rank_others(claims: Claims) -> tuple[float, float]:
    """The smaller the least risk that is proven, the larger; then the share of calls answered at it."""
    return (-claims.ladder[0].epsilon, claims.ladder[0].coverage) if claims.ladder else (-math.inf, 0.0)


def _explain_failure(
    calibration: TeacherComparison, devs: Sequence[TeacherComparison], settings: LearnSettings, recorded: int
) -> str:
    """Why the calibration calls proved nothing, and how many would, in a sentence."""
    calls, differing = len(calibration.differs), int(calibration.differs.sum())
    epsilon = target_epsilon(settings)
    level = _largest_level(devs, calls, settings)
    likely = min(
        estimate_calls_needed(*group, calls, epsilon, level)
        for group in _answering_groups(calibration, settings)
    )
    sentence = (
        f"of {calls:,} new calls the student's answer differs in {differing:,} "
        f"({format_percent(differing / calls)}), which is too much, or too few calls, to guarantee "
        f"at most {format_upper_percent(epsilon)}. These calls can't be used again"
    )
    if math.isinf(likely):
        student = "a better student"
        if settings.call_price is None:  # by prices no --epsilon counts
            student += ", or a larger --epsilon,"
        if few := _describe_too_few([calibration], settings, _count_to_judge(epsilon)):
            return f"{sentence}, and {few}: it takes {student} or more new calls"
        surest = max(count_agreeing(*group) for group in _answering_groups(calibration, settings))
        if is_too_few_to_judge(surest, epsilon):
            return (
                f"{sentence}, and of the {surest:,} answers that the student is surest of none differs: it "
                f"takes more new calls, at least {_count_to_judge(epsilon) / surest:.2g} times as many"
            )
        return f"{sentence}: it takes {student} and new calls"
    return (
        f"{sentence}. For a student like this: {_advise('about', math.ceil(likely), 0, recorded, settings)}"
    )


def _prove_by_field(
    devs: Sequence[TeacherComparison], calibrations: Sequence[TeacherComparison], settings: LearnSettings
) -> list[Claims]:
    """Claims on the whole answer at each risk, and on each field where there are several."""
    claims = []
    for dev, proven in zip(devs, _certify_groups(devs, calibrations, settings), strict=True):
        whole, others = _build_ladder(proven, settings)
        fields = {path: _as_claim(proven[path], settings) if path in proven else whole for path in dev.fields}
        claims.append(
            Claims(epsilon=settings.epsilon, delta=settings.delta, whole=whole, fields=fields, others=others)
        )
    return claims


def _build_ladder(
    proven: Mapping[str, Certificate | None], settings: LearnSettings
) -> tuple[Claim | None, tuple[Claim, ...]]:
    """The claim on the whole answer at the risk that is wanted, and those at other risks. What is proven for
    a smaller risk holds for a larger one too; a larger one is left out where it answers no more.
    """
    laxest: Claim | None = None
    whole, others = None, list[Claim]()
    for risk in settings.risks:
        own = _as_claim(proven[_risk_name(risk, settings)], settings)
        is_better = own is not None and (laxest is None or own.coverage > laxest.coverage)
        if is_better:
            laxest = own
        if risk == settings.epsilon:
            whole = None if laxest is None else laxest.model_copy(update={"epsilon": risk})
        elif is_better and own is not None:
            others.append(own)
    return whole, tuple(others)


def _prove_by_class(
    devs: Sequence[TeacherComparison], calibrations: Sequence[TeacherComparison], settings: LearnSettings
) -> list[Claims]:
    """Claims on the whole answer for each value that the model predicts for the field."""
    return [
        Claims(
            epsilon=settings.epsilon,
            delta=settings.delta,
            whole=None,
            by=settings.by_class,
            classes={name: _as_claim(certificate, settings) for name, certificate in proven.items()},
            calls=len(calibration.confidence),
        )
        for calibration, proven in zip(
            calibrations, _certify_groups(devs, calibrations, settings), strict=True
        )
    ]


def _certify_groups(
    devs: Sequence[TeacherComparison], calibrations: Sequence[TeacherComparison], settings: LearnSettings
) -> list[dict[str, Certificate | None]]:
    """The certificates of each candidate's groups by name; groups, thresholds and graph come from dev."""
    planned, graph = _plan_claims(devs, len(calibrations[0].differs), settings)
    calls = {
        _claim_name(number, name): own
        for number, calibration in enumerate(calibrations)
        for name, own in _build_groups(calibration, settings).items()
    }
    nothing = CallGroup(np.empty(0), np.empty(0, np.bool_), (), settings.epsilon)
    groups = {
        name: group._replace(confidence=own.confidence, losses=own.losses)
        for name, group in planned.items()
        for own in (calls.get(name, nothing),)
    }
    proven = certify_by_graph(groups, graph, calibration_delta(settings))
    return [
        {name: proven[_claim_name(number, name)] for name in _build_groups(dev, settings)}
        for number, dev in enumerate(devs)
    ]


def _claim_name(candidate: int, group: str) -> str:
    return f"{candidate} {group}"


def _plan_claims(
    devs: Sequence[TeacherComparison], calls: int, settings: LearnSettings
) -> tuple[dict[str, CallGroup], dict[str, GroupShare]]:
    """The groups of dev by `_claim_name` in the order in which they are tested, with their places in the
    graph. The candidate that can be expected to answer most of so many `calls` comes first.
    """
    groups = [_build_groups(dev, settings) for dev in devs]
    plan = _plan_classes if settings.by_class is not None else _plan_fields
    delta = calibration_delta(settings)
    alone = [plan(own, calls, delta) for own in groups]
    order = sorted(range(len(devs)), key=lambda number: -alone[number][1])
    shares = _share_out([alone[number][1] for number in order])
    planned, graph = {}, {}
    for number, part in zip(order, shares, strict=True):
        own, _ = plan(groups[number], calls, delta * part) if 0 < part < 1 else alone[number]
        for name, group_share in own.items():
            planned[_claim_name(number, name)] = groups[number][name]
            passes = {_claim_name(number, other): passed for other, passed in group_share.passes.items()}
            graph[_claim_name(number, name)] = GroupShare(
                part * group_share.share, group_share.starts, passes
            )
    return planned, graph


def _share_out(expected: Sequence[float]) -> list[float]:
    """Shares of delta for claims of which so much is expected, best first: nearly all for the first one, the
    rest for others that are not hopeless.
    """
    others = sum(value > 0 for value in expected[1:])
    if not others:
        return [1.0] + [0.0] * (len(expected) - 1)
    return [FIRST_SHARE] + [(1 - FIRST_SHARE) / others if value > 0 else 0.0 for value in expected[1:]]


def _plan_classes(
    groups: Mapping[str, CallGroup], calls: int, delta: float
) -> tuple[dict[str, GroupShare], float]:
    """The graph of one candidate's classes, and the share of calls that it can be expected to answer."""
    graph = plan_graph(groups, calls, delta)
    total = sum(np.size(group.confidence) for group in groups.values())
    answered = 0.0
    for name, planned in graph.items():
        if planned.share:
            part = np.size(groups[name].confidence) / total
            forecast = forecast_starts(groups[name], round(calls * part), delta * planned.share)
            answered += part * forecast.coverage
    return graph, answered


def _plan_fields(
    groups: Mapping[str, CallGroup], calls: int, delta: float
) -> tuple[dict[str, GroupShare], float]:
    """The graph of one candidate's whole answer at each risk and of its fields, and the share of calls that
    the whole answer can be expected to answer at the risk that is wanted. All others share what that leaves,
    or all where it is hopeless. A risk at which everything is proven passes its share on to the next smaller.
    """
    wanted = groups[_WHOLE].epsilon
    fields = [name for name, group in groups.items() if name != _WHOLE and group.epsilon == wanted]
    risks = sorted(groups.keys() - set(fields), key=lambda name: -groups[name].epsilon)
    beside = len(groups) - 1
    whole = forecast_starts(groups[_WHOLE], calls, delta * (FIRST_SHARE if beside else 1.0))
    first = (FIRST_SHARE if whole.coverage else 0.0) if beside else 1.0
    part = (1 - first) / max(beside, 1)
    graph = {}
    for name, smaller in zip(risks, [*risks[1:], ""], strict=True):
        later = [smaller] if name != risks[-1] else []
        if name == _WHOLE or not later:
            later += fields
        passes = {other: 1 / len(later) for other in later}
        if name == _WHOLE:
            graph[name] = GroupShare(first, whole.starts, passes)
        else:
            graph[name] = GroupShare(part, forecast_starts(groups[name], calls, delta * part).starts, passes)
    for field in fields:
        graph[field] = GroupShare(part, forecast_starts(groups[field], calls, delta * part).starts)
    return graph, whole.coverage


def _build_groups(comparison: TeacherComparison, settings: LearnSettings) -> dict[str, CallGroup]:
    """The groups of `_group_calls` with thresholds at the risk that is wanted; beside them, where there is a
    ladder, the whole answer at its other risks.
    """
    groups = {
        name: CallGroup(confidence, differs, candidate_thresholds(confidence), settings.epsilon)
        for name, (confidence, differs) in _group_calls(comparison, settings).items()
    }
    others = [risk for risk in settings.risks if risk != settings.epsilon]
    return groups | {_risk_name(risk, settings): groups[_WHOLE]._replace(epsilon=risk) for risk in others}


def _risk_name(risk: float, settings: LearnSettings) -> str:
    """The name of the whole answer's group at a risk; paths of fields begin with $."""
    return _WHOLE if risk == settings.epsilon else f"{risk!r}"


def _group_calls(comparison: TeacherComparison, settings: LearnSettings) -> dict[str, tuple[Floats, Bools]]:
    """The groups that get a claim of their own, each with the confidences and differences of its calls: the
    whole answer and, where there are several, each field; or the answers with each value of a field.
    """
    if settings.by_class is not None:
        predicted = np.array([format_value(answer[settings.by_class]) for answer in comparison.answers])
        return {
            name: (comparison.confidence[predicted == name], comparison.differs[predicted == name])
            for name in np.unique(predicted).tolist()
        }
    whole_answer = {_WHOLE: (comparison.confidence, comparison.differs)}
    by_field = settings.call_price is None and len(comparison.fields) > 1
    return whole_answer | comparison.fields if by_field else whole_answer


def _prove_by_prices(
    devs: Sequence[TeacherComparison], calibrations: Sequence[TeacherComparison], settings: LearnSettings
) -> list[Claims]:
    """Claims on the whole answer, at the threshold that saves most by the prices."""
    prices = read_prices(settings)
    assert prices is not None
    planned = {
        (number, epsilon): CallGroup(
            dev.confidence, dev.differs, candidate_thresholds(dev.confidence), epsilon
        )
        for number, dev in enumerate(devs)
        for epsilon in prices.risks
    }
    calls, delta = len(calibrations[0].differs), calibration_delta(settings)
    savings = {
        key: prices.saving(forecast_starts(group, calls, delta).coverage, group.epsilon)
        for key, group in planned.items()
    }
    order = sorted(planned, key=lambda key: -savings[key])
    shares = _share_out([savings[key] for key in order])
    groups, graph = {}, {}
    for (number, epsilon), part in zip(order, shares, strict=True):
        group, calibration = planned[number, epsilon], calibrations[number]
        name = _claim_name(number, str(epsilon))
        groups[name] = CallGroup(calibration.confidence, calibration.differs, group.thresholds, epsilon)
        starts = forecast_starts(group, calls, delta * (part or 1.0)).starts
        graph[name] = GroupShare(part, starts)
    proven = certify_by_graph(groups, graph, delta)
    claims = []
    for number, _ in enumerate(devs):
        own = [proven[_claim_name(number, str(epsilon))] for epsilon in prices.risks]
        best = max(
            (certificate for certificate in own if certificate is not None),
            key=lambda certificate: prices.saving(certificate.coverage, certificate.epsilon),
            default=None,
        )
        epsilon = best.epsilon if best is not None else prices.break_even
        others = [
            claim
            for certificate in own
            if certificate is not best and (claim := _as_claim(certificate, settings)) is not None
        ]
        others.sort(key=lambda claim: claim.epsilon)
        whole = _as_claim(best, settings)
        claims.append(Claims(epsilon=epsilon, delta=settings.delta, whole=whole, others=tuple(others)))
    return claims


def _as_claim(proven: Certificate | None, settings: LearnSettings) -> Claim | None:
    """The claim with the delta that it has together with what a proof in shadow may claim."""
    if proven is None:
        return None
    return Claim.from_certificate(proven).model_copy(update={"delta": settings.delta})


def describe_claims(claims: Claims, unmatched: int = 0) -> str:
    """'With 95 % confidence, the answers it gives differ from the LLM's in at most 5 %.' `unmatched` recorded
    calls don't fit the template, and no claim covers such calls.
    """
    if not claims.coverage:
        return _describe_parts(claims)
    share = f"at most {format_upper_percent(claims.epsilon)}"
    which = "the answers it gives"
    if claims.by is not None:
        which = f"the answers it gives, whatever it says of {claims.by},"
    interval = ""
    if claims.whole is not None:
        low, high = claims.whole.coverage_interval
        share_range = f"{format_percent(low)} to {format_percent(high)}"
        interval = f" ({share_range}, with the same confidence)"
    calls = "the calls with this prompt" if unmatched else "the calls"
    left = (
        f" {unmatched:,} recorded calls have another prompt: the LLM answers such calls." if unmatched else ""
    )
    return (
        f"With {format_confidence(claims.delta)} confidence, {which} differ from the LLM's in {share}. "
        f"It answers {format_percent(claims.coverage)} of {calls}{interval}.{left}"
    )


def _describe_parts(claims: Claims) -> str:
    """What is proven where the claim that is wanted isn't: the whole answer at other risks, and fields."""
    others = [
        f"at most {format_upper_percent(claim.epsilon)} ({format_percent(claim.coverage)} of the calls)"
        for claim in claims.others
    ]
    fields = [
        f"{path} (at most {format_upper_percent(claim.epsilon)}, {format_percent(claim.coverage)} of calls)"
        for path, claim in claims.fields.items()
        if claim is not None
    ]
    if not others and not fields:
        return "Nothing is proven, so the LLM goes on answering every call."
    sentences = [
        f"It isn't proven that at most {format_upper_percent(claims.epsilon)} of the whole answers differ, "
        "so the LLM goes on answering every call."
    ]
    confidence = format_confidence(claims.delta)
    if others:
        sentences.append(
            f"Of the whole answer it is proven, with {confidence} confidence: {' or '.join(others)}."
        )
    if fields:
        sentences.append(
            "The whole answer isn't proven, but by themselves these fields are, with "
            f"{confidence} confidence: {', '.join(fields)}."
        )
    return " ".join(sentences)


def explain_claim(claims: Claims) -> list[str]:
    """The claim on the whole answer in five sentences for readers without statistics; empty without one."""
    claim = claims.whole
    if claim is None:
        return []
    answered, allowed = format_whole_percent(claim.coverage), format_upper_percent(claim.epsilon)
    return [
        f"On {claim.calls:,} calls that it had never seen, the student was compared with the LLM.",
        f"Where it is surest, it may answer: that was {answered} of these calls; the LLM answers all others.",
        f"Of the student's answers, at most {allowed} differ from what the LLM would have said.",
        f"This isn't only what was seen: were it more, {claim.calls:,} calls would hide it in at most "
        f"{format_upper_percent(claim.delta)} of such proofs.",
        "It says that the student answers as the LLM does, not that either of them is right.",
    ]


VOIDS = (
    "Other inputs come than those that it was proven on.",
    "The LLM, its prompt or the schema changes.",
    "Someone chooses texts in order to mislead the student.",
    "The same calls are used for another proof, by hand.",
)


def list_next_steps(claims: Claims, student: str) -> list[str]:
    """What to do with claims other than the one that is chosen, in sentences. `student`: the folder as a
    command names it.
    """
    steps = []
    others = [
        claim for claim in claims.others if claims.whole is None or claim.coverage > claims.whole.coverage
    ]
    if others:
        epsilon = f"{others[0].epsilon:g}"
        steps.append(
            f"If your application bears that at most {format_upper_percent(others[0].epsilon)} differ, the "
            f"student may answer {format_percent(others[0].coverage)} of the calls. This is proven already: "
            f"bertsmith mirror set {student} --epsilon {epsilon}"
        )
    fields = [path for path, claim in claims.fields.items() if claim is not None]
    if claims.whole is None and fields:
        steps.append(
            f"A student answers only whole answers. Ask the LLM for {', '.join(fields)} in a call of "
            f"{'its' if len(fields) == 1 else 'their'} own, and a student can answer that call."
        )
    return steps


def format_claim_rows(claims: Claims) -> list[list[str]]:
    """Table rows: the whole answer at each risk that is proven, and each field where there are several; or
    each class.
    """
    if claims.by is not None:
        return [_format_claim_row(f"{claims.by} = {name}", claim) for name, claim in claims.classes.items()]
    rows = [_format_claim_row("whole answer", claims.whole)]
    rows += [_format_claim_row("whole answer", claim) for claim in claims.others]
    if len(claims.fields) > 1:
        rows += [_format_claim_row(path, claim) for path, claim in claims.fields.items()]
    return rows


def _format_claim_row(name: str, claim: Claim | None) -> list[str]:
    if claim is None:
        return [name, "", "", "", _NOT]
    return [
        name,
        f"{claim.threshold:.3f}",
        f"{claim.answered:,} of {claim.calls:,}",
        format_percent(claim.risk),
        f"at most {format_upper_percent(claim.epsilon)}",
    ]


def format_agreement_row(name: str, comparison: TeacherComparison) -> list[str]:
    """A table row: the tier, its agreement with the teacher, and the number of calls compared."""
    return [tier_title(name), format_percent(comparison.agreement), f"{len(comparison.differs):,}"]


def describe_ceiling(ceiling: TeacherCeiling | None) -> str:
    """'Asked again, the LLM contradicts itself in 7 of 200 inputs: …'; empty without a ceiling."""
    if ceiling is None:
        return ""
    how = "Asked again" if ceiling.asked_again else "Where an input came twice"
    agreement = f"{format_percent(ceiling.low)} to {format_percent(ceiling.high)}"
    return (
        f"{how}, the LLM contradicts itself in {ceiling.differing:,} of {ceiling.inputs:,} inputs: the best "
        f"possible model agrees with it in {agreement} of such calls."
    )
