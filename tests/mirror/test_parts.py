"""Which calls are for what; and calls as they came, though only some of them were recorded."""

from dataclasses import replace

import pytest
from scipy.stats import binomtest, ks_1samp, uniform

from bertsmith.errors import InputError
from bertsmith.mirror.call import LABELLED, UNDATED
from bertsmith.mirror.fields import AnswerShape, Field
from bertsmith.mirror.learning.learned_calls import (
    AUDIT,
    LearnedCall,
    group_ids_by_use,
    sample_like_traffic,
    split_by_ids,
    split_calls,
)
from bertsmith.mirror.learning.settings import LearnSettings

SHAPE = AnswerShape(fields=(Field(keys=("x",), kind="enum", values=("a", "b")),), order=(("x",),))


def call(number: int, source: str = "relay", text: str = "") -> LearnedCall:
    return LearnedCall(f"id{number}", float(number), source, text or f"text {number}", {"$.x": "a"}, {})


def test_the_latest_unused_calls_prove_and_nothing_is_for_two_ends() -> None:
    calls = [call(number) for number in range(1000)]
    used = {f"id{number}" for number in range(950, 1000)}
    parts = split_calls(calls, used, SHAPE, LearnSettings())
    assert [each.id for each in parts.calibration] == [f"id{number}" for number in range(650, 950)]
    found = group_ids_by_use(parts)
    everything = [each for of in found.values() for each in of]
    assert len(everything) == len(set(everything)) == 1000
    assert len(split_calls(calls, (), SHAPE, LearnSettings(most_calibration=100)).calibration) == 100


def test_a_file_that_was_labelled_proves_nothing_of_traffic() -> None:
    both = [call(number) for number in range(500)] + [call(500 + n, LABELLED) for n in range(500)]
    assert {each.source for each in split_calls(both, (), SHAPE, LearnSettings()).calibration} == {"relay"}
    used = {each.id for each in both[:500]}  # nor where all of it has been used
    assert split_calls(both, used, SHAPE, LearnSettings()).calibration == []


@pytest.mark.parametrize("seed", range(3))
def test_of_a_labelled_file_alone_chance_says_which_rows_prove_for_it_may_be_sorted(seed: int) -> None:
    rows = [call(number, LABELLED) for number in range(1000)]
    proving = split_calls(rows, (), SHAPE, LearnSettings(seed=seed)).calibration
    assert len(proving) == 300 and proving == sorted(proving, key=lambda each: each.began)
    assert ks_1samp([each.began for each in proving], uniform(0, 1000).cdf).pvalue > 0.001
    more = [*rows, *(call(1000 + number, LABELLED) for number in range(200))]
    used = {each.id for each in rows}
    assert len(split_calls(more, used, SHAPE, LearnSettings(seed=seed)).calibration) == 200


def test_imports_of_which_nobody_knows_the_time_are_learned_from_and_prove_nothing() -> None:
    both = [call(number) for number in range(500)] + [call(500 + n, UNDATED) for n in range(500)]
    parts = split_calls(both, (), SHAPE, LearnSettings())
    assert {each.source for each in parts.calibration} == {"relay"}
    assert {each.source for each in parts.learned} == {"relay", UNDATED}
    assert split_calls(both[500:], (), SHAPE, LearnSettings()).calibration == []


def test_versions_that_were_trained_on_apart_before_they_were_merged_prove_as_often_as_they_come() -> None:
    """Two of three calls are of one. Each was trained on by itself: one until 600, the other until 900."""
    calls = [replace(call(n), version="b" if n % 3 else "a") for n in range(1200)]
    used = {each.id for each in calls if each.began < {"a": 600, "b": 900}[each.version]}
    proving = split_calls(calls, used, SHAPE, LearnSettings(calibration_share=0.5)).calibration
    assert [each.began for each in proving] == [*range(900, 1200)]
    # One that took the other's place is alone from then on.
    later = [replace(each, version="b" if each.began >= 600 else "a") for each in calls]
    used = {each.id for each in later if each.began < 500}
    assert len(split_calls(later, used, SHAPE, LearnSettings(calibration_share=0.5)).calibration) == 600
    used |= {each.id for each in later if 600 <= each.began < 900}
    proving = split_calls(later, used, SHAPE, LearnSettings(calibration_share=0.5)).calibration
    assert [each.began for each in proving] == [*range(500, 600), *range(900, 1200)]


def test_too_few_texts_are_a_sentence() -> None:
    with pytest.raises(InputError, match="at least 50 texts"):
        split_by_ids([call(number) for number in range(20)], (), SHAPE, LearnSettings())


def test_what_an_earlier_layout_has_without_weights_between_audits_proves_nothing() -> None:
    old = [call(0), call(1, AUDIT), call(2), call(3, AUDIT), call(4)]
    assert [each.id for each in sample_like_traffic(old, 0)] == ["id0", "id4"]
    weighed = [replace(each, weight=1.0) for each in old]
    assert sample_like_traffic(weighed, 0) == weighed
    calls = [replace(call(number), weight=0.25) for number in range(4000)]
    assert binomtest(len(sample_like_traffic(calls, 0)), 4000, 0.25).pvalue > 0.001
