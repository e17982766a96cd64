"""Which calls are for what; and calls as they came, though only some of them were recorded."""

import random

import pytest
from scipy.stats import binomtest

from bertsmith.errors import InputError
from bertsmith.mirroring.learn_settings import LearnSettings
from bertsmith.mirroring.learned_calls import LABELLED, LearnedCall
from bertsmith.mirroring.parts import AUDIT, as_they_came, by_ids, divide, uses
from bertsmith.serving.mirror.call import UNDATED
from bertsmith.serving.mirror.fields import AnswerShape, Field

SHAPE = AnswerShape(fields=(Field(keys=("x",), kind="enum", values=("a", "b")),), order=(("x",),))


def call(number: int, source: str = "relay", text: str = "") -> LearnedCall:
    return LearnedCall(f"id{number}", float(number), source, text or f"text {number}", {"$.x": "a"}, {})


def test_the_latest_unused_calls_prove_and_nothing_is_for_two_ends() -> None:
    calls = [call(number) for number in range(1000)]
    used = {f"id{number}" for number in range(950, 1000)}
    parts = divide(calls, used, {}, SHAPE, LearnSettings())
    assert [each.id for each in parts.calibration] == [f"id{number}" for number in range(650, 950)]
    found = uses(parts)
    everything = [each for of in found.values() for each in of]
    assert len(everything) == len(set(everything)) == 1000
    assert len(divide(calls, (), {}, SHAPE, LearnSettings(most_calibration=100)).calibration) == 100


def test_a_file_that_was_labelled_proves_nothing_of_traffic() -> None:
    both = [call(number) for number in range(500)] + [call(500 + n, LABELLED) for n in range(500)]
    assert {each.source for each in divide(both, (), {}, SHAPE, LearnSettings()).calibration} == {"relay"}
    alone = both[500:]
    assert len(divide(alone, (), {}, SHAPE, LearnSettings()).calibration) == 150


def test_imports_of_which_nobody_knows_the_time_are_learned_from_and_prove_nothing() -> None:
    both = [call(number) for number in range(500)] + [call(500 + n, UNDATED) for n in range(500)]
    parts = divide(both, (), {}, SHAPE, LearnSettings())
    assert {each.source for each in parts.calibration} == {"relay"}
    assert {each.source for each in parts.learned} == {"relay", UNDATED}
    assert divide(both[500:], (), {}, SHAPE, LearnSettings()).calibration == []


def test_blank_texts_teach_nothing() -> None:
    calls = [call(number, text=" ") for number in range(100)] + [call(100 + n) for n in range(200)]
    parts = divide(calls, (), {}, SHAPE, LearnSettings())
    assert len(parts.learned) + len(parts.calibration) == 200
    with pytest.raises(InputError, match="at least 50 texts"):
        by_ids(calls[:120], (), SHAPE, LearnSettings())


@pytest.mark.parametrize("answered", [1.0, 0.3])
def test_calls_recorded_while_a_student_answers_are_made_like_the_traffic(answered: float) -> None:
    """Seven in ten are sure; of those that the student answers, one in five is audited, or one in ten."""
    draw = random.Random(0)
    recorded, audited = [call(n) for n in range(100)], dict[str, float]()
    sure = set[str]()
    for number in range(100, 40_000):
        probability = 0.2 if number % 2 else 0.1
        is_sure = draw.random() < 0.7
        if is_sure and draw.random() < answered:
            if draw.random() >= probability:
                continue
            made = call(number, AUDIT)
            audited[made.id] = probability
        else:
            made = call(number)
        recorded.append(made)
        if is_sure:
            sure.add(made.id)
    kept = as_they_came(recorded, audited, seed=0)
    assert kept[:100] == recorded[:100]
    later = [each for each in kept if each.began >= 100]
    first = next(each.began for each in recorded if each.source == AUDIT)
    since = [each for each in later if each.began >= first]
    share = sum(each.id in sure for each in since)
    assert binomtest(share, len(since), 0.7).pvalue > 0.001
    assert len(since) == pytest.approx(4000, rel=0.1)


def test_audits_without_a_probability_have_no_place() -> None:
    calls = [call(0), call(1, AUDIT), call(2)]
    assert as_they_came(calls, {}, 0) == calls[:1]
