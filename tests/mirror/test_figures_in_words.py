"""What is said of a student and of its teacher: never less risk, nor more confidence, than was proven."""

from dataclasses import replace

import pytest

from bertsmith.metrics.guarantees.power_law import fit_power_law
from bertsmith.metrics.scores import Interval
from bertsmith.mirror.answering.shadow_proof import ComparedCall, ShadowProof
from bertsmith.mirror.fields import AnswerShape, Field, UnsupportedPart
from bertsmith.mirror.learning.learned_calls import LearnedCall
from bertsmith.mirror.learning.limits import CallCurve, estimate_teacher_ceiling
from bertsmith.mirror.learning.proving import (
    describe_claims,
    explain_claim,
)
from bertsmith.mirror.learning.schema_fields import AnswerObservation, infer_shape
from bertsmith.mirror.learning.teacher_change import TranslatedCalls
from bertsmith.mirror.student_file import Claim, Claims, ProofPlan
from bertsmith.reporting.charts import squares
from bertsmith.reporting.formatting import format_percent, format_upper_percent, format_whole_percent


@pytest.mark.parametrize(
    ("epsilon", "delta", "said"),
    [
        (0.05, 0.05, "With 95 % confidence, the answers it gives differ from the LLM's in at most 5 %."),
        (
            0.0004,
            0.0001,
            "With 99.99 % confidence, the answers it gives differ from the LLM's in at most 0.04 %.",
        ),
        (
            0.0125,
            0.00125,
            "With 99.875 % confidence, the answers it gives differ from the LLM's in at most 1.25 %.",
        ),
    ],
)
def test_a_claim_is_said_with_all_its_digits(epsilon: float, delta: float, said: str) -> None:
    claim = Claim(
        threshold=0.5,
        epsilon=epsilon,
        delta=delta,
        calls=9,
        answered=9,
        risk=0.0,
        coverage_interval=(0.5, 1.0),
    )
    assert describe_claims(Claims(epsilon=epsilon, delta=delta, whole=claim)).startswith(said)


def test_a_forecast_is_of_calls_though_the_curve_is_of_the_texts_learned_from() -> None:
    """Of 4,000 calls 2,000 texts were learned from; half of the disagreement takes four times as many."""
    rows, wrong = (250, 500, 1000, 2000), [round(1e6 * 4 / texts**0.5) for texts in (250, 500, 1000, 2000)]
    law = fit_power_law(rows, wrong, [10**6] * 4)
    reached = 1 - 4 / 2000**0.5
    curve = CallCurve(rows, (0.7, 0.8, 0.9, reached), 10**6, "tf-idf", reached, law, 4000)
    assert curve.forecast(1 - 2 / 2000**0.5).startswith("About 12,000 more calls to reach")
    assert curve.forecast(reached - 0.01).endswith("the calls recorded should be enough to learn from.")
    sure = replace(curve, reached=0.9967).forecast(0.95)
    assert sure.startswith("The student agrees in 99.67 % of the")  # not in 100 %
    flat = fit_power_law((7, 13, 26, 52), [0] * 4, [1000] * 4)  # where 108 / 52 * 52 is more than 108
    easy = CallCurve((7, 13, 26, 52), (1.0,) * 4, 1000, "tf-idf", 1.0, flat, 108)
    assert easy.forecast(0.95).startswith("To reach 95 % agreement with the LLM, the calls recorded")


def test_a_claim_says_that_calls_beside_the_template_are_in_none_of_its_shares() -> None:
    claim = Claim(
        threshold=0.5, epsilon=0.05, delta=0.05, calls=10, answered=9, risk=0.0, coverage_interval=(0.5, 1.0)
    )
    claims = Claims(epsilon=0.05, delta=0.05, whole=claim)
    assert "It answers 90 % of the calls (" in describe_claims(claims)
    said = describe_claims(claims, 1200)
    assert "It answers 90 % of the calls with this prompt (" in said
    assert said.endswith(" 1,200 recorded calls have another prompt: the LLM answers such calls.")


def test_a_share_in_whole_percents_is_never_none_or_all() -> None:
    assert [format_whole_percent(each) for each in (0, 0.004, 0.633, 0.997, 0.99996, 1)] == [
        "0 %", "0.4 %", "63 %", "99.7 %", "99.996 %", "100 %",
    ]  # fmt: skip
    claim = Claim(
        threshold=0.5, epsilon=0.05, delta=0.05, calls=4000, answered=16, risk=0, coverage_interval=(0, 0.1)
    )
    assert "<title>Of 100 calls 94 answered as the LLM would, 5 answered otherwise" in squares(0.997, 0.05)
    assert "99 left to the LLM" in squares(0.004, 0.05) and ">1 left" in squares(0.997, 0.05)
    plan = ProofPlan(
        epsilon=0.05,
        delta=0.05,
        thresholds=(0.5,),
        starts=(1.0,),
        counts=((1, 0), (0, 0)),
        forecast=(1, 1, 1),
    )
    proof = ShadowProof(plan, 1)
    proof.add(ComparedCall(0.9 if number else 0.1, False) for number in range(400))
    assert "on, 99.8 % of the calls" in proof.describe()
    assert "that was 0.4 % of these calls" in explain_claim(Claims(epsilon=0.05, delta=0.05, whole=claim))[1]


def test_how_much_a_new_llm_changes_is_said_in_percents() -> None:
    translated = TranslatedCalls([], 200, 199, 200, 0, Interval(0.9712, 0.9999))
    assert "answers 97.1 % to 99.99 % of the calls differently" in translated.as_sentence()


def test_a_bound_is_never_rounded_down_and_a_share_never_to_none_or_all() -> None:
    assert format_upper_percent(0.75 * 0.002 / 0.7) == "0.2143 %"
    for thousandths in range(1, 1000):
        share = thousandths / 1000 + 1.23456e-5
        assert float(format_upper_percent(share).removesuffix(" %")) >= 100 * share
    assert [format_percent(each) for each in (0, 3e-4, 0.923, 0.9997, 1)] == [
        "0 %",
        "0.03 %",
        "92.3 %",
        "99.97 %",
        "100 %",
    ]


def asked_twice(
    shape: AnswerShape, first: dict[str, object], again: dict[str, object]
) -> list[list[LearnedCall]]:
    """Thirty texts."""
    return [
        [LearnedCall(f"{n}", float(n), "relay", f"text {n}", shape.read(answer), {}) for n in range(30)]
        for answer in (first, again)
    ]


def test_two_numbers_that_one_of_ours_agrees_with_set_no_ceiling() -> None:
    """A tolerance of 1 and answers 0 and 2: whoever says 1 always agrees."""
    shape = AnswerShape(fields=(Field(keys=("n",), kind="number", tolerance=1.0),), order=(("n",),))
    found = estimate_teacher_ceiling(*asked_twice(shape, {"n": 0}, {"n": 2}), shape, 0.05)
    assert found is not None and found.differing == 30 and found.high == 1.0
    found = estimate_teacher_ceiling(*asked_twice(shape, {"n": 0}, {"n": 3}), shape, 0.05)
    assert found is not None and found.differing == 30 and found.high < 0.6


def test_what_stands_in_both_answers_beside_the_fields_is_no_contradiction() -> None:
    field = Field(keys=("intent",), kind="enum", values=("card", "cash"))
    note = UnsupportedPart(keys=("note",), why="a free text", required=False)
    shape = AnswerShape(fields=(field,), refused=(note,), order=(("intent",),))
    for other, differing in (("as it was", 0), ("another", 30)):
        calls = asked_twice(shape, {"intent": "card", "note": "as it was"}, {"intent": "card", "note": other})
        found = estimate_teacher_ceiling(*calls, shape, 0.05)
        assert found is not None and found.differing == differing


def test_numbers_far_below_the_schema_s_end_are_told_apart() -> None:
    """Amounts up to 400 of a million: a twentieth of the million would make all of them the same."""
    seen = [AnswerObservation({"n": n % 401}, "text") for n in range(2000)]
    for end, wanted in ((1_000_000, 0.05 * 0.9 * 400), (100, 5.0)):
        schema = {"properties": {"n": {"type": "number", "minimum": 0, "maximum": end}}, "required": ["n"]}
        (field,) = infer_shape(schema, seen).fields
        assert field.kind == "number" and field.tolerance == pytest.approx(wanted, rel=0.02)
