"""Claims by class and by field hold together; one threshold for several constraints holds for all of them."""

import numpy as np
import pytest
from simulated import each_size, generator, within

from bertsmith.errors import InputError
from bertsmith.metrics.guarantees.learn_then_test import (
    CallGroup,
    Constraint,
    certify,
    certify_each,
    certify_together,
    split_by,
)

THRESHOLDS = np.append(np.linspace(0.95, 0.05, 19), -np.inf)
EPSILON = DELTA = 0.05


@each_size
def test_of_ten_groups_at_the_border_seldom_any_is_certified(runs: int) -> None:
    draws, wrong = generator(11), 0
    for _ in range(runs):
        groups = {
            str(number): CallGroup(draws.random(400), draws.random(400) < EPSILON, THRESHOLDS, EPSILON)
            for number in range(10)
        }
        wrong += any(certify_each(groups, DELTA).values())
    assert within(wrong, runs, DELTA)


@each_size
def test_without_a_share_of_delta_for_each_group_some_is_certified_too_often(runs: int) -> None:
    draws, wrong = generator(11), 0
    for _ in range(runs):
        wrong += any(
            certify(draws.random(400), draws.random(400) < EPSILON, [0.0], EPSILON, DELTA) for _ in range(10)
        )
    assert not within(wrong, runs, DELTA)


@each_size
def test_one_threshold_for_a_good_and_a_borderline_field_is_seldom_certified(runs: int) -> None:
    draws, wrong = generator(12), 0
    every = np.ones(800, np.bool_)
    for _ in range(runs):
        fields = {
            "good": Constraint(draws.random(800) < 0.01, every, EPSILON),
            "borderline": Constraint(draws.random(800) < EPSILON, every, EPSILON),
        }
        wrong += certify_together(draws.random(800), fields, THRESHOLDS, DELTA) is not None
    assert within(wrong, runs, DELTA)


def test_each_class_gets_its_own_threshold() -> None:
    draws = generator(13)
    predicted = draws.choice(["easy", "hard", "hopeless"], 6000)
    confidence = draws.random(6000)
    scale = np.select([predicted == "easy", predicted == "hard"], [0.01, 0.5], 1.0)
    differs = draws.random(6000) < np.where(predicted == "hopeless", 0.5, scale * (1 - confidence) ** 3)
    scores, losses = split_by(predicted, confidence), split_by(predicted, differs)
    claims = certify_each(
        {name: CallGroup(scores[name], losses[name], THRESHOLDS, EPSILON) for name in scores}, DELTA
    )
    assert list(claims) == ["easy", "hard", "hopeless"]
    assert claims["easy"] is not None and claims["easy"].threshold == -np.inf
    assert claims["hard"] is not None and 0.25 < claims["hard"].threshold < 0.6
    assert claims["hopeless"] is None
    assert claims["hard"].delta == pytest.approx(DELTA / 3)


def test_a_group_without_calls_has_no_claim_and_still_takes_its_share() -> None:
    fine = CallGroup(np.linspace(0, 1, 500), np.zeros(500), THRESHOLDS, EPSILON)
    claims = certify_each({"fine": fine, "unseen": CallGroup([], [], THRESHOLDS, EPSILON)}, DELTA)
    assert claims["unseen"] is None
    assert claims["fine"] is not None and claims["fine"].delta == DELTA / 2


def test_a_joint_certificate_says_each_risk() -> None:
    """Classes by the teacher's answer: only the calls of a class count for its constraint."""
    confidence = np.repeat([0.9, 0.1], [1000, 200])
    is_spam = np.arange(1200) % 2 == 0
    differs = np.concatenate([np.arange(1000) % 100 == 0, np.ones(200)])  # 10 of 500 spam, 0 of 500 others
    constraints = {"spam": Constraint(differs, is_spam, 0.05), "other": Constraint(differs, ~is_spam, 0.02)}
    claim = certify_together(confidence, constraints, [0.95, 0.5, 0.0], DELTA)
    assert claim is not None
    assert (claim.threshold, claim.answered, claim.calls) == (0.5, 1000, 1200)
    assert claim.risks == {"spam": 0.02, "other": 0.0}
    assert claim.epsilons == {"spam": 0.05, "other": 0.02}
    stricter = {**constraints, "spam": Constraint(differs, is_spam, 0.02)}
    assert certify_together(confidence, stricter, [0.95, 0.5, 0.0], DELTA) is None


def test_a_constraint_of_which_no_call_is_counted_is_not_proven() -> None:
    nothing = Constraint(np.zeros(500), np.zeros(500, np.bool_), EPSILON)
    assert certify_together(np.ones(500), {"unseen": nothing}, [0.5], DELTA) is None


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(InputError, match="no groups"):
        certify_each({}, DELTA)
    with pytest.raises(InputError, match="no constraints"):
        certify_together([0.5], {}, [0.5], DELTA)
    with pytest.raises(InputError, match=r"counted of b for each of 2 calls, found \(3,\)"):
        certify_together([0.5, 0.6], {"b": Constraint([0, 1], [True] * 3, 0.1)}, [0.5], DELTA)
    with pytest.raises(InputError, match="epsilon of b must lie"):
        certify_together([0.5], {"b": Constraint([0], [True], 1.5)}, [0.5], DELTA)
    with pytest.raises(InputError, match="a group for each value"):
        split_by(["a"], [1.0, 2.0])
