"""Claims are true as often as they say, also at the border of what is claimed."""

import math
from collections.abc import Callable

import numpy as np
import pytest
from scipy.stats import binomtest

from bertsmith.errors import InputError, RecipeError
from bertsmith.metrics.guarantees.growing_proof import GrowingProof, student_share
from bertsmith.metrics.guarantees.learn_then_test import (
    STARTS,
    Prices,
    certify_by_prices,
    threshold_sequence,
)
from bertsmith.metrics.guarantees.sample_size import fewest_calls
from bertsmith.metrics.scores import Interval
from bertsmith.mirror.answering.shadow_proof import ComparedCall, ShadowProof
from bertsmith.mirror.learning import proving
from bertsmith.mirror.learning.forecast import RiskForecast, advise_risk, forecast_risks
from bertsmith.mirror.learning.proving import (
    describe_claims,
    estimate_calls_needed,
    estimate_coverage,
    explain_postponement,
    format_claim_rows,
    list_next_steps,
    prove,
    target_epsilon,
)
from bertsmith.mirror.learning.settings import LearnSettings
from bertsmith.mirror.learning.tiers import StudentCandidate, TeacherComparison
from bertsmith.mirror.student_file import Claims

SETTINGS = LearnSettings(epsilon=0.05, delta=0.05)
Draw = np.random.Generator


def candidate(tier: str = "tf-idf") -> StudentCandidate:
    return StudentCandidate(tier, (), lambda texts: {}, lambda folder: None, {})  # type: ignore[arg-type]


def judged(confidence: np.ndarray, differs: np.ndarray, fields: int = 1) -> TeacherComparison:
    """Each field errs where the whole answer does, the first of them."""
    none = np.zeros(len(differs), bool)
    of = {f"$.f{n}": (confidence ** (1 / fields), differs if n == 0 else none) for n in range(fields)}
    answers = [{"$.f0": ("a", "b")[n % 2]} for n in range(len(confidence))]
    return TeacherComparison(confidence, differs, of, answers)


def falling_risk(draw: Draw, count: int) -> TeacherComparison:
    """Sure ones err less."""
    confidence = draw.random(count)
    return judged(confidence, draw.random(count) < 0.4 * (1 - confidence) ** 3)


def at_the_border(draw: Draw, count: int) -> TeacherComparison:
    """Whatever the confidence, just above one answer in twenty differs."""
    return judged(draw.random(count), draw.random(count) < 0.0501)


def proven(
    make: Callable[[Draw, int], TeacherComparison], draw: Draw, settings: LearnSettings, tiers: int = 1
) -> Claims:
    devs, calibrations = ([make(draw, count) for _ in range(tiers)] for count in (400, 1000))
    return prove([candidate() for _ in range(tiers)], devs, calibrations, settings).claims


def false_claims(runs: int, settings: LearnSettings, tiers: int) -> int:
    return sum(
        proven(at_the_border, np.random.default_rng(seed), settings, tiers).coverage > 0
        for seed in range(runs)
    )


@pytest.mark.parametrize("tiers", [1, 2])
def test_claims_at_the_border_are_as_rare_as_they_say(tiers: int) -> None:
    wrong = false_claims(200, SETTINGS, tiers)
    assert binomtest(wrong, 200, SETTINGS.delta, "greater").pvalue > 0.001


@pytest.mark.slow
def test_a_student_that_is_proven_later_by_the_same_calls_as_in_shadow_is_seldom_wrong() -> None:
    """First in shadow, then once more by all calls that it hasn't learned from: 300 kept ones and 300."""
    wrong = 0
    for seed in range(200):
        draw = np.random.default_rng(seed)
        dev, calls = at_the_border(draw, 150), at_the_border(draw, 600)
        share = student_share(SETTINGS.delta, 1)
        thresholds = proving.candidate_thresholds(dev.confidence)[::10]
        growing = GrowingProof(thresholds, np.full(len(thresholds), 1 / len(thresholds)), 0.05, share)
        for confidence, differs in zip(calls.confidence[300:], calls.differs[300:], strict=True):
            growing.record(float(confidence), bool(differs))
        left = SETTINGS.model_copy(update={"delta": SETTINGS.delta - share, "ladder": ()})
        wrong += (
            growing.threshold() is not None or prove([candidate()], [dev], [calls], left).claims.coverage > 0
        )
    assert binomtest(wrong, 200, SETTINGS.delta, "greater").pvalue > 0.001


@pytest.mark.slow
@pytest.mark.parametrize("tiers", [1, 2])
@pytest.mark.parametrize(
    "settings",
    [SETTINGS, LearnSettings(by_class="$.f0"), LearnSettings(call_price=0.0667, error_price=1.0)],
    ids=["epsilon", "class", "prices"],
)
def test_claims_at_the_border_are_as_rare_as_they_say_in_a_thousand_runs(
    settings: LearnSettings, tiers: int
) -> None:
    wrong = false_claims(1000, settings, tiers)
    assert binomtest(wrong, 1000, settings.delta, "greater").pvalue > 0.001


def test_nothing_is_ever_proven_of_what_can_not_be_learned() -> None:
    def by_chance(draw: Draw, count: int) -> TeacherComparison:
        return judged(draw.random(count), draw.random(count) < 2 / 3)

    def always_wrong(draw: Draw, count: int) -> TeacherComparison:
        return judged(draw.random(count), np.ones(count, bool))

    for make in (by_chance, always_wrong):
        for seed in range(100):
            assert not proven(make, np.random.default_rng(seed), SETTINGS, 2).coverage


def test_what_can_be_proven_is_and_covers_much_of_what_it_could() -> None:
    covered = [proven(falling_risk, np.random.default_rng(seed), SETTINGS).coverage for seed in range(20)]
    assert np.median(covered) > 0.6  # in truth 79 % could be answered


def test_fields_are_proven_beside_the_whole_answer() -> None:
    draw = np.random.default_rng(0)
    confidence = draw.random(2000)
    both = judged(confidence, draw.random(2000) < 0.3 * (1 - confidence) ** 3, fields=2)
    claims = prove([candidate()], [both], [both], SETTINGS).claims
    assert claims.whole is not None and claims.fields["$.f0"] is not None
    assert claims.fields["$.f1"] is not None and claims.fields["$.f1"].coverage == 1.0
    assert claims.whole.delta == claims.fields["$.f0"].delta == SETTINGS.delta  # with it all hold together


def test_each_class_has_its_threshold_and_a_hard_one_has_no_claim() -> None:
    def make(draw: Draw, count: int) -> TeacherComparison:
        confidence, is_a = draw.random(count), np.arange(count) % 2 == 0
        return judged(confidence, draw.random(count) < np.where(is_a, 0.01, 0.4))

    draw = np.random.default_rng(0)
    settings = LearnSettings(by_class="$.f0")
    claims = prove([candidate()], [make(draw, 600)], [make(draw, 1500)], settings).claims
    assert claims.whole is None and claims.by == "$.f0" and claims.classes["b"] is None
    assert claims.classes["a"] is not None and 0.4 < claims.coverage <= 0.5
    assert claims.threshold_for({"$.f0": "a"}) == claims.classes["a"].threshold
    assert claims.threshold_for({"$.f0": "b"}) is None and claims.threshold_for({"$.f0": "new"}) is None


def test_prices_choose_the_risk() -> None:
    draw = np.random.default_rng(0)
    settings = LearnSettings(call_price=0.01, error_price=0.1)
    claims = prove([candidate()], [falling_risk(draw, 600)], [falling_risk(draw, 20_000)], settings).claims
    # 63 % can be answered at 2.5 %, which saves 0.0047 a call; at 5 % it's 79 %, which saves 0.0040.
    assert claims.whole is not None and claims.epsilon == pytest.approx(0.025)


def test_by_prices_more_is_saved_than_by_equal_shares() -> None:
    prices, savings = Prices(0.01, 0.1), []
    for seed in range(10):
        draw = np.random.default_rng(seed)
        dev, calibration = falling_risk(draw, 600), falling_risk(draw, 1800)
        settings = LearnSettings(call_price=prices.call, error_price=prices.error)
        claims = prove([candidate()], [dev], [calibration], settings).claims
        thresholds = threshold_sequence(dev.confidence)
        equal = certify_by_prices(calibration.confidence, calibration.differs, thresholds, prices, 0.05)
        assert equal is not None
        savings.append((prices.saving(claims.coverage, claims.epsilon), equal.saving))
    by_graph, by_equal_shares = np.mean(savings, axis=0)
    assert by_graph > 1.02 * by_equal_shares


def test_the_cheapest_that_is_enough_wins_and_else_the_one_that_answers_most() -> None:
    def sure(draw: Draw, count: int) -> TeacherComparison:
        return judged(draw.random(count), np.zeros(count, bool))

    draw = np.random.default_rng(0)
    made = [(falling_risk(draw, 600), falling_risk(draw, 1500)), (sure(draw, 600), sure(draw, 1500))]
    devs, calibrations = zip(*made, strict=True)
    both = [candidate(), candidate("encoder")]
    assert prove(both, devs, calibrations, LearnSettings(enough=0.95)).chosen == 1
    assert prove(both, devs, calibrations, LearnSettings(enough=0.5)).chosen == 0


def test_calibration_calls_are_kept_where_they_could_prove_nothing() -> None:
    draw = np.random.default_rng(0)
    good, bad = falling_risk(draw, 600), judged(draw.random(600), draw.random(600) < 0.5)
    assert "it takes at least" in explain_postponement([good], 40, 133, SETTINGS)
    assert "surest of" in explain_postponement([bad], 5000, 20000, SETTINGS)
    assert "it takes about" in explain_postponement([good], 110, 366, SETTINGS)
    assert explain_postponement([good], 1000, 3333, SETTINGS) == ""
    assert (
        estimate_coverage(bad.confidence, bad.differs, 0.05) == 0
        and 0.6 < estimate_coverage(good.confidence, good.differs, 0.05) < 0.95
    )
    assert estimate_calls_needed(bad.confidence, bad.differs, 600, 0.05, 0.05) == np.inf


def test_settings_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(RecipeError, match="together"):
        LearnSettings(call_price=0.1)
    with pytest.raises(RecipeError, match="epsilon"):
        LearnSettings(epsilon=1.5)


def test_by_prices_it_takes_as_many_calls_as_the_claim_that_saves_most() -> None:
    """Four risks are tested: calls that carry one claim at all of delta don't carry it beside these."""
    draw = np.random.default_rng(0)
    good = judged(draw.random(600), np.zeros(600, bool))
    prices = LearnSettings(call_price=0.01, error_price=0.1, delta=0.05)  # half of the break-even: 5 %
    assert target_epsilon(prices) == pytest.approx(0.05)
    one, first = (fewest_calls(0.05, 0.05 * share) for share in (1, 0.9))
    assert one < first
    sentence = explain_postponement([good], first - 1, round((first - 1) / 0.3), prices)
    assert f"at least {first:,} to guarantee" in sentence
    assert sentence.endswith("Record at least 4 more calls")  # 204 in all, of which 30 % prove
    assert "it takes at least" not in explain_postponement([good], first, round(first / 0.3), prices)


def test_as_many_calls_are_asked_for_as_the_next_training_keeps_to_prove_with() -> None:
    """30 % of all calls, at most 4,000, of those that no training has used."""
    draw = np.random.default_rng(0)
    good = judged(draw.random(600), np.zeros(600, bool))

    def advice(calls: int, recorded: int, epsilon: float = 0.05) -> str:
        return explain_postponement([good], calls, recorded, LearnSettings(epsilon=epsilon)).split(". ")[-1]

    # A tenth of delta is for the other risks of the ladder, 2 % for a proof in shadow after one that failed.
    level = 0.9 * 0.98 * 0.05
    needed, many = fewest_calls(0.05, level), fewest_calls(0.0005, level)
    assert advice(needed - 3, round((needed - 3) / 0.3)) == "Record at least 11 more calls"
    assert advice(needed - 3, 5000) == "Record at least 3 more calls"  # 5,000, nearly all of them used
    option = f"eep more of them to prove with: --most-proof-calls {many}"
    # Those of the 50,000 that aren't kept have been learned from, and can't prove any more.
    assert many > 4000
    assert advice(4000, 50_000, 0.0005) == f"Record at least {many - 4000:,} more calls and k{option}"
    more = math.ceil(many / 0.3) - 100
    assert advice(30, 100, 0.0005) == f"Record at least {more:,} more calls and k{option}"


def test_calls_are_kept_where_they_would_prove_no_more_than_an_easy_field() -> None:
    """The student answers by the claim on the whole answer: a field's alone is of no use."""
    draw = np.random.default_rng(0)
    both = judged(draw.random(1000), draw.random(1000) < 0.035, fields=2)
    assert estimate_calls_needed(*both.fields["$.f1"], 1000, 0.05, 0.05 / 3 / STARTS) < 300
    assert prove([candidate()], [both], [both], SETTINGS).claims.coverage == 0
    assert "kept for a later training" in explain_postponement([both], 300, 1000, SETTINGS)


@pytest.mark.parametrize(
    ("fields", "settings", "share"),
    [
        (1, SETTINGS, 0.9),
        (1, LearnSettings(ladder=()), 1),
        (3, SETTINGS, 0.9),
        (1, LearnSettings(call_price=0.01, error_price=0.1), 0.9),
    ],
)
def test_after_a_proof_that_failed_as_many_calls_are_asked_for_as_the_claim_takes(
    fields: int, settings: LearnSettings, share: float
) -> None:
    draw = np.random.default_rng(0)
    few = judged(draw.random(100), np.arange(100) % 50 == 0, fields)
    level = settings.delta * 0.98 * share  # 2 % are kept back for a proof in shadow
    needed = estimate_calls_needed(few.confidence, few.differs, 100, 0.05, level)
    result = prove([candidate()], [few], [few], settings, recorded=10**6)
    assert f"Record about {needed:,} more calls" in result.why


def test_after_a_proof_that_failed_another_goes_on_in_shadow_with_the_part_of_delta_kept_back() -> None:
    draw = np.random.default_rng(3)
    dev, few = falling_risk(draw, 400), judged(draw.random(60), np.arange(60) % 30 == 0)
    failed = prove([candidate()], [dev], [few], SETTINGS, 1000, unit_calls=2)
    assert failed.tried and not failed.claims.coverage and failed.why
    assert failed.plan is not None and failed.plan.unit_calls == 2
    assert failed.plan.delta == pytest.approx(0.02 * SETTINGS.delta)
    assert sum(map(sum, failed.plan.counts)) == 460, "it is planned by all calls that it won't count"
    succeeded = prove([candidate()], [dev], [falling_risk(draw, 2000)], SETTINGS)
    assert succeeded.claims.coverage and succeeded.plan is None
    assert succeeded.claims.whole is not None and succeeded.claims.whole.delta == SETTINGS.delta
    assert prove([candidate()], [dev], [few], LearnSettings(by_class="$.f0")).plan is None


@pytest.mark.slow
def test_at_the_border_both_proofs_together_are_as_rarely_wrong_as_they_say() -> None:
    def is_wrong(seed: int) -> bool:
        draw = np.random.default_rng(seed)
        # Lucky development calls, so that it is begun and planned at all.
        dev = judged(draw.random(400), draw.random(400) < 0.01)
        alone = LearnSettings(ladder=())
        result = prove([candidate()], [dev], [at_the_border(draw, 400)], alone)
        if result.claims.coverage or result.plan is None:
            return bool(result.claims.coverage)
        proof = ShadowProof(result.plan, 1)
        stream = at_the_border(draw, 1000)
        calls = zip(stream.confidence.tolist(), stream.differs.tolist(), strict=True)
        proof.add(ComparedCall(*call) for call in calls)
        return proof.threshold is not None

    wrong = sum(map(is_wrong, range(200)))
    assert binomtest(wrong, 200, SETTINGS.delta, "greater").pvalue > 0.001


def test_answers_that_are_hardly_ever_given_are_too_few_to_judge() -> None:
    """As where nearly every quote was redacted: none of them differs."""
    for given in (0, 1, 9):
        silent = judged(np.where(np.arange(600) < given, 0.9, -1.0), np.zeros(600, bool))
        assert estimate_calls_needed(silent.confidence, silent.differs, 600, 0.05, 0.05) == np.inf
        assert f"gives {given} answers" in explain_postponement([silent], 1000, 4000, SETTINGS)
        assert "a better student" in prove([candidate()], [silent], [silent], SETTINGS, 4000).why


def test_what_could_be_answered_is_what_a_threshold_answers() -> None:
    """Answers of one confidence are given together; counted by hand, at every threshold."""
    draw = np.random.default_rng(0)
    for _ in range(300):
        confidence = draw.integers(-1, 6, 60) / 5
        differs = draw.random(60) < draw.choice([0.02, 0.1])
        answered = [confidence >= threshold for threshold in set(confidence[confidence >= 0])]
        right = [int(given.sum()) for given in answered if differs[given].sum() <= 0.05 * given.sum()]
        assert (
            estimate_coverage(confidence, differs, 0.05) == max([n for n in right if n >= 10], default=0) / 60
        )
    alike = judged(np.full(600, 0.9), np.arange(600) > 500)  # one threshold: all of them, or none
    assert estimate_calls_needed(alike.confidence, alike.differs, 600, 0.05, 0.05) == np.inf
    assert "surest of" in explain_postponement([alike], 1000, 4000, SETTINGS)


def of_classes(sizes: dict[str, int], wrong: int = 0) -> TeacherComparison:
    """So many answers of each class, of which the first `wrong` differ."""
    names = [name for name, size in sizes.items() for _ in range(size)]
    differs = np.arange(len(names)) < wrong
    confidence = np.linspace(0.5, 0.9, len(names))
    return TeacherComparison(
        confidence, differs, {"$.f0": (confidence, differs)}, [{"$.f0": name} for name in names]
    )


def test_by_class_the_answers_of_each_class_are_counted_not_all_that_the_student_gives() -> None:
    settings = LearnSettings(by_class="$.f0")
    few = explain_postponement([of_classes(dict.fromkeys("abcdef", 9))], 5000, 20_000, settings)
    assert "gives at most 9 answers with the same $.f0, and it takes 10 to judge them" in few
    mixed = explain_postponement([of_classes({"a": 12, "b": 9}, wrong=12)], 5000, 20_000, settings)
    assert "whatever the student says of $.f0" in mixed and mixed.endswith("or there are fewer than 10")
    rare = dict.fromkeys("abcdefghijklmnopqrst", 30)
    strict = settings.model_copy(update={"epsilon": 0.01})
    why = prove([candidate()], [of_classes(rare)], [of_classes(rare)], strict, 2000).why
    assert "differs in 0" in why and "at most 30 answers with the same $.f0, and it takes 50" in why


def test_a_student_without_a_mistake_needs_more_texts_and_not_to_be_better() -> None:
    """So few can't show a risk as low as that."""
    draw = np.random.default_rng(0)
    prices = LearnSettings(call_price=0.002, error_price=1.0)  # half of the break-even: 0.1 %
    for given, needed, settings in [(37, 50, LearnSettings(epsilon=0.01)), (300, 500, prices)]:
        good = judged(draw.random(given), np.zeros(given, bool))
        why = explain_postponement([good], 20_000, 70_000, settings)
        assert f"gives {given} answers, and it takes {needed} to judge them" in why
        assert "a better student" not in why and why.endswith("Record calls with more different texts")
        enough = judged(draw.random(needed), np.zeros(needed, bool))
        assert "to judge them" not in explain_postponement([enough], 20_000, 70_000, settings)


def test_where_none_of_the_surest_answers_differs_it_takes_more_calls_and_no_better_student() -> None:
    """A hundred without a mistake can't show a risk of 0.2 %, which takes 250."""
    strict = LearnSettings(epsilon=0.002)
    uneven = judged(np.linspace(0.99, 0.5, 900), np.arange(900) >= 100)
    why = explain_postponement([uneven], 4000, 10_000, strict)
    assert "none of the 100 answers that the student is surest of differs, and it takes 250" in why
    assert "record about 15,000 more calls" in why and "a better student" not in why
    failed = prove([candidate()], [uneven], [uneven], strict, 10_000).why
    assert "at least 2.5 times as many" in failed and "a better student" not in failed
    forecasts = {forecast.epsilon: forecast for forecast in forecast_risks([uneven], 4000, strict)}
    assert forecasts[0.002].describe_needed(4000) == "more calls to judge"
    often = judged(np.linspace(0.99, 0.5, 900), np.arange(900) % 20 == 5)
    assert forecast_risks([often], 4000, strict)[0].describe_needed(4000) == "a better student"
    assert "it takes a better student" in prove([candidate()], [often], [often], strict, 10_000).why


def test_a_forecast_of_mostly_everything_and_rarely_nothing_lies_within_its_interval() -> None:
    """The mean of these cases is below nine in ten of them."""
    nearly = RiskForecast(0.05, 0.97, Interval(1.0, 1.0), 0.03, 60, is_wanted=True)
    assert nearly.describe_coverage() == "about 100 % (100 % to 100 %)"
    between = RiskForecast(0.05, 0.57, Interval(0.0, 1.0), 0.4, 60, is_wanted=True)
    assert between.describe_coverage() == "about 57 % (0 % to 100 %)"


def test_by_prices_no_other_epsilon_is_advised() -> None:
    bad = judged(np.random.default_rng(0).random(1000), np.arange(1000) % 2 == 0)
    prices = LearnSettings(call_price=0.01, error_price=0.1)
    assert "a better student and new calls" in prove([candidate()], [bad], [bad], prices, 3000).why
    assert "--epsilon" in prove([candidate()], [bad], [bad], SETTINGS, 3000).why


def stairs(draw: Draw, count: int) -> TeacherComparison:
    """Just above 2, 5, 10 and 20 % of the answers differ from four confidences on."""
    confidence = draw.random(count)
    # The risk from a confidence on is the mean above it, so a step's own rate is higher than the rung.
    edges = np.array([0.75, 0.5, 0.25, 0.0])
    rates = np.array([0.0201, 0.0801, 0.2001, 0.5001])
    step = np.searchsorted(-edges, -confidence)
    return judged(confidence, draw.random(count) < rates[step], fields=2)


def false_rungs(claims: Claims, risk: Callable[[float], float]) -> bool:
    """Whether any claim on the whole answer is wrong, by the true risk from a threshold on."""
    return any(risk(claim.threshold) > claim.epsilon for claim in claims.ladder)


def risk_of_stairs(threshold: float) -> float:
    """The mean rate from a confidence on."""
    grid = np.linspace(max(threshold, 0.0), 1.0, 4001)[:-1]
    return float(np.array([0.5001, 0.2001, 0.0801, 0.0201])[(grid * 4).astype(int)].mean())


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("tiers", [1, 2])
@pytest.mark.parametrize("rate", [None, 0.0501, 0.2001])
def test_all_claims_of_the_ladder_are_true_together_in_2000_runs(
    rate: float | None, tiers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the border of one risk, or of all of them. A plan comes from dev alone, so each is made once."""

    def make(draw: Draw, count: int) -> TeacherComparison:
        if rate is None:
            return stairs(draw, count)
        return judged(draw.random(count), draw.random(count) < rate, fields=2)

    plans, plan_claims = {}, proving._plan_claims

    def plan_once(devs: list[TeacherComparison], calls: int, settings: LearnSettings) -> object:
        if id(devs) not in plans:
            plans[id(devs)] = plan_claims(devs, calls, settings)
        return plans[id(devs)]

    monkeypatch.setattr(proving, "_plan_claims", plan_once)
    wrong = 0
    every_dev = []
    for seed in range(400):
        draw = np.random.default_rng([seed, tiers])
        if seed % 50 == 0:
            every_dev.append([make(draw, 400) for _ in range(tiers)])
        calibrations = [make(draw, 1000) for _ in range(tiers)]
        claims = prove([candidate() for _ in range(tiers)], every_dev[-1], calibrations, SETTINGS).claims
        wrong += false_rungs(claims, risk_of_stairs if rate is None else lambda _: rate)
    assert binomtest(wrong, 400, SETTINGS.delta, "greater").pvalue > 0.001


def test_a_ladder_of_risks_is_proven_on_the_same_calls_at_hardly_any_cost() -> None:
    """The laxer, the more is answered; at the risk that is wanted nearly as much as without the others."""
    alone, rungs = [], []
    for seed in range(10):
        draw = np.random.default_rng(seed)
        dev, calibration = falling_risk(draw, 600), falling_risk(draw, 1800)
        alone.append(prove([candidate()], [dev], [calibration], LearnSettings(ladder=())).claims.coverage)
        claims = prove([candidate()], [dev], [calibration], SETTINGS).claims
        rungs.append([claims.coverage, claims.at(0.1).coverage])
        assert claims.at(0.1).at(0.05) == claims
        with pytest.raises(InputError, match="proven of this student"):
            claims.at(0.15)
    wanted, larger = np.mean(rungs, axis=0)
    assert wanted > 0.97 * np.mean(alone) and larger > 1.1 * wanted


def test_where_only_a_larger_risk_is_proven_the_claims_say_so_and_what_to_do() -> None:
    draw = np.random.default_rng(0)
    dev, calibration = (judged(draw.random(n), draw.random(n) < 0.045) for n in (600, 1500))
    claims = prove([candidate()], [dev], [calibration], SETTINGS).claims
    assert claims.whole is None and not claims.coverage
    assert [claim.epsilon for claim in claims.others] == [0.1]  # at 20 % it would answer no more
    words = describe_claims(claims)
    assert "isn't proven that at most 5 %" in words and "at most 10 % (100 % of the calls)" in words
    assert "bertsmith mirror set students/a --epsilon 0.1" in list_next_steps(claims, "students/a")[0]
    assert (
        format_claim_rows(claims)[0][-1] == "not proven"
        and format_claim_rows(claims)[1][-1] == "at most 10 %"
    )


def test_fields_that_are_proven_are_named_where_the_whole_answer_is_not() -> None:
    draw = np.random.default_rng(0)
    dev, calibration = (
        judged(draw.random(count), draw.random(count) < 0.048, fields=2) for count in (600, 1500)
    )
    claims = prove([candidate()], [dev], [calibration], LearnSettings(ladder=())).claims
    assert claims.whole is None and claims.fields["$.f1"] is not None
    assert "by themselves these fields are, with 95 % confidence: $.f1 (at most 5 %" in describe_claims(
        claims
    )
    assert "in a call of its own" in list_next_steps(claims, "students/a")[0]


def test_a_forecast_says_before_the_proof_what_it_gives() -> None:
    """Nine in ten proofs lie in the interval; what is hopeless is said to be so."""
    inside = []
    for seed in range(60):
        draw = np.random.default_rng(seed)
        dev, calibration = falling_risk(draw, 600), falling_risk(draw, 1500)
        forecast = {own.epsilon: own for own in forecast_risks([dev], 1500, SETTINGS)}
        claims = prove([candidate()], [dev], [calibration], SETTINGS).claims
        proven = {claim.epsilon: claim.coverage for claim in claims.ladder}
        inside += [
            forecast[risk].interval.low <= proven.get(risk, 0.0) <= forecast[risk].interval.high
            for risk in (0.05, 0.1)
        ]
    assert 0.75 < np.mean(inside) <= 1
    bad = judged(draw.random(600), draw.random(600) < 0.5)
    assert all(own.coverage == 0 and own.needed == np.inf for own in forecast_risks([bad], 1500, SETTINGS))
    assert [own.epsilon for own in forecast_risks([bad], 1500, LearnSettings(epsilon=0.03))] == [
        0.02, 0.03, 0.05, 0.1, 0.2
    ]  # fmt: skip


def test_where_the_proof_is_not_begun_another_risk_is_advised() -> None:
    draw = np.random.default_rng(0)
    fair = judged(draw.random(600), draw.random(600) < 0.07)
    assert "surest of" in explain_postponement([fair], 900, 3000, SETTINGS) or "kept" in explain_postponement(
        [fair], 900, 3000, SETTINGS
    )
    assert advise_risk(forecast_risks([fair], 900, SETTINGS), SETTINGS).endswith("--epsilon 0.1")
    bad = judged(draw.random(600), draw.random(600) < 0.5)
    assert advise_risk(forecast_risks([bad], 900, SETTINGS), SETTINGS) == ""
