"""The ceiling of agreement that follows from a teacher who contradicts himself."""

import numpy as np
import pytest
from simulated import each_size, generator, within

from bertsmith.errors import InputError
from bertsmith.metrics.guarantees.teacher_noise import ceiling


def test_the_best_model_s_disagreement_lies_between_half_the_teacher_s_own_and_all_of_it() -> None:
    answers = generator(17).dirichlet(np.full(5, 0.3), 2000)  # the teacher's probabilities, input by input
    own = 1 - (answers**2).sum(axis=1)
    best = 1 - answers.max(axis=1)
    assert (own / 2 <= best + 1e-12).all() and (best <= own + 1e-12).all()


@each_size
def test_the_ceiling_holds_as_often_as_it_says(runs: int) -> None:
    """A coin with 0.9 and 0.1: two asks differ with 0.18, the best model with 0.1."""
    draws, missed = generator(18), 0
    for _ in range(runs):
        first, second = draws.random((2, 200)) < 0.1
        found = ceiling(int((first != second).sum()), 200, 0.1)
        missed += not found.self_disagreement.low <= 0.18 <= found.self_disagreement.high
        assert found.best_agreement.high >= 1 - found.self_disagreement.high / 2
    assert within(missed, runs, 0.1)


def test_a_risk_that_no_model_reaches_is_known() -> None:
    found = ceiling(40, 200, 0.05)  # 20 % differ, at least 14.7 %
    assert found.self_disagreement.low == pytest.approx(0.147, abs=0.001)
    assert found.best_agreement.high == pytest.approx(1 - 0.0735, abs=0.0005)
    assert not found.attainable(0.05)
    assert found.attainable(0.08)
    assert ceiling(0, 0, 0.05).attainable(0.001), "nothing is known without asking again"


def test_counts_that_cannot_be_are_refused() -> None:
    with pytest.raises(InputError, match="at most 5 inputs with two answers, found 6"):
        ceiling(6, 5, 0.05)
