"""Thresholds equal a search over every cut; ties are kept together; rules that are none are refused."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from official_squad import score_v2

from bertsmith.errors import RecipeError
from bertsmith.metrics import thresholds


@pytest.fixture
def generator() -> np.random.Generator:
    return np.random.default_rng(23)


def answers(generator: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Up to 30 answers, many of equal confidence."""
    size = int(generator.integers(1, 30))
    confidence = generator.random(size).round(int(generator.integers(1, 3)))
    return confidence, generator.random(size) < confidence


def cost(confidence: np.ndarray, correct: np.ndarray, cut: float, error: float, abstain: float) -> float:
    answered = confidence >= cut
    return float((answered & ~correct).sum() * error + (~answered).sum() * abstain)


def test_coverage_is_reached_and_no_more_is_answered_than_must_be(generator: np.random.Generator) -> None:
    for _ in range(300):
        confidence, _ = answers(generator)
        wanted = float(generator.choice([0.1, 0.5, 0.7, 0.9, generator.uniform(0.01, 1)]))
        chosen = thresholds.threshold_for_coverage(confidence, wanted)
        answered = confidence >= chosen
        assert answered.mean() >= wanted - 1e-9
        assert wanted == 1 or (confidence > confidence[answered].min()).mean() < wanted
    assert thresholds.threshold_for_coverage([0.3, 0.9], 1.0) == 0.0


def test_ten_texts_at_70_percent_are_seven() -> None:
    confidence = np.arange(1, 11) / 10
    assert (confidence >= thresholds.threshold_for_coverage(confidence, 0.7)).sum() == 7


def test_coverage_s_threshold_is_no_text_s_own_confidence() -> None:
    """Else rounding in another batch, or in int16, would move that text to the other side."""
    confidence = np.array([0.2, 0.5, 0.5, 0.8, 0.9])
    for wanted, expected in ((0.4, 0.65), (0.6, 0.35), (0.9, 0.1)):
        assert thresholds.threshold_for_coverage(confidence, wanted) == pytest.approx(expected)


def test_chows_rule_answers_where_an_error_is_expected_to_cost_less(generator: np.random.Generator) -> None:
    assert thresholds.chow_threshold(10, 1) == pytest.approx(0.9)
    assert thresholds.chow_threshold(1, 5) == 0.0
    confidence = generator.random(200_000)
    correct = generator.random(200_000) < confidence
    cheapest = min(np.linspace(0, 1, 201), key=lambda cut: cost(confidence, correct, cut, 4, 1))
    assert cheapest == pytest.approx(thresholds.chow_threshold(4, 1), abs=0.03)


def test_leaving_unsure_texts_lowers_the_risk() -> None:
    confidence = np.array([0.9, 0.8, 0.7, 0.6])
    correct = np.array([True, True, False, False])
    table = thresholds.risk_coverage(confidence, correct, (1.0, 0.75, 0.5))
    assert [(row.coverage, row.risk) for row in table] == [(1.0, 0.5), (0.75, pytest.approx(1 / 3)), (0.5, 0)]
    assert thresholds.at_threshold(confidence, correct, thresholds.NEVER).coverage == 0.0


def f1_at(cut: float, probabilities: np.ndarray, gold: np.ndarray) -> float:
    predicted = probabilities >= cut
    return 2 * (predicted & gold).sum() / max(1, predicted.sum() + gold.sum())


def test_no_cut_has_a_better_f1(generator: np.random.Generator) -> None:
    for _ in range(200):
        shape = (int(generator.integers(1, 25)), int(generator.integers(1, 5)))
        probabilities = generator.random(shape).round(int(generator.integers(1, 4)))
        gold = generator.random(shape) < generator.random()
        chosen = thresholds.best_f1_cuts(probabilities, gold)
        for cut, column, truth in zip(chosen, probabilities.T, gold.T):
            if not truth.any():
                assert cut == 0.5
                continue
            best = max(f1_at(c, column, truth) for c in [*column, 2.0])
            assert f1_at(cut, column, truth) == pytest.approx(best, abs=1e-12)


def test_cuts_lie_half_way_and_near_one_half() -> None:
    gold = np.array([[True], [True], [False], [False]])
    assert thresholds.best_f1_cuts([[0.9], [0.8], [0.3], [0.2]], gold)[0] == pytest.approx(0.55)
    # Two cuts with F1 2/3: above the first text, and above the last.
    tied = thresholds.best_f1_cuts([[0.9], [0.2], [0.1], [0.05]], gold[[0, 2, 3, 1]])
    assert tied[0] == pytest.approx(0.55)


def test_neighbouring_floats_are_still_told_apart() -> None:
    low = np.float64(0.5)
    high = np.nextafter(low, 1)
    (cut,) = thresholds.best_f1_cuts([[high], [low]], [[True], [False]])
    assert low < cut <= high


def labels_and_probabilities(
    generator: np.random.Generator, texts: int, bases: tuple[float, ...]
) -> tuple[np.ndarray, np.ndarray]:
    """Labels drawn by their own probabilities, which lie around each label's share."""
    log_odds = np.log(bases) - np.log1p(-np.array(bases)) + 2.5 * generator.normal(size=(texts, len(bases)))
    probabilities = 1 / (1 + np.exp(-log_odds))
    return probabilities, generator.random(probabilities.shape) < probabilities


def mean_f1(cuts: np.ndarray, probabilities: np.ndarray, gold: np.ndarray) -> float:
    return float(np.mean([f1_at(*each) for each in zip(cuts, probabilities.T, gold.T)]))


def test_few_texts_choose_better_together_than_each_label_alone(generator: np.random.Generator) -> None:
    gains = []
    for _ in range(40):
        bases = tuple(generator.uniform(0.01, 0.1, 30))
        few, many = (labels_and_probabilities(generator, texts, bases) for texts in (120, 4000))
        together, alone = thresholds.thresholds_per_label(*few), thresholds.best_f1_cuts(*few)
        gains.append(mean_f1(together, *many) - mean_f1(alone, *many))
    assert np.mean(gains) > 0.02 and min(gains) > 0


def test_a_label_with_many_texts_keeps_its_own_cut(generator: np.random.Generator) -> None:
    """Its probabilities are a tenth of what they ought to be: only its own texts can know."""
    probabilities, gold = labels_and_probabilities(generator, 20_000, (0.3, 0.3))
    probabilities[:, 1] /= 10
    own = thresholds.best_f1_cuts(probabilities, gold)
    chosen = thresholds.thresholds_per_label(probabilities, gold)
    assert chosen == pytest.approx(own, rel=0.1)
    assert mean_f1(chosen, probabilities, gold) == pytest.approx(mean_f1(own, probabilities, gold), abs=2e-3)


def test_a_label_that_dev_does_not_have_is_given_where_it_pays_to_expect_it(
    generator: np.random.Generator,
) -> None:
    probabilities, gold = labels_and_probabilities(generator, 2000, (0.2, 0.2))
    gold[:, 1] = False
    with_texts, without = thresholds.thresholds_per_label(probabilities, gold)
    assert without == pytest.approx(with_texts, abs=0.15)
    assert list(thresholds.thresholds_per_label(probabilities, gold & False)) == [0.5, 0.5]


def test_half_of_the_best_expected_f1_is_the_best_cut_of_calibrated_probabilities(
    generator: np.random.Generator,
) -> None:
    """Against the search over all cuts: theorem 1 of Lipton et al. 2014."""
    probabilities, gold = labels_and_probabilities(generator, 200_000, (0.05,))
    (expected,) = thresholds._best_expected_f1(probabilities) / 2
    (found,) = thresholds.best_f1_cuts(probabilities, gold)
    assert expected == pytest.approx(found, abs=0.03)


def test_a_label_whose_only_text_ranks_far_down_is_not_given_to_all_above_it() -> None:
    probabilities = np.tile(np.linspace(0.4, 0.001, 400)[:, None], 2)
    gold = np.stack([np.arange(400) < 20, np.arange(400) == 200], 1)
    chosen = thresholds.thresholds_per_label(probabilities, gold)
    assert (probabilities >= chosen).sum(0)[1] < 400 // 2


def test_rules_that_are_none_are_refused() -> None:
    for coverage in (0.0, 1.5, float("nan")):
        with pytest.raises(RecipeError, match="Expected coverage above 0"):
            thresholds.threshold_for_coverage([0.5], coverage)
    for costs in ((0.0, 1.0), (1.0, -1.0), (float("inf"), 1.0)):
        with pytest.raises(RecipeError, match="Expected an error's cost"):
            thresholds.chow_threshold(*costs)
    with pytest.raises(ValueError, match="expected probabilities"):
        thresholds.thresholds_per_label(np.zeros((2, 2)), np.zeros((2, 3)))
    with pytest.raises(ValueError, match="expected probabilities"):
        thresholds.best_f1_cuts(np.zeros(2), np.zeros(2))


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.integers(-4, 4), st.sampled_from([0.0, 0.5, 1.0]), st.booleans()), min_size=1))
def test_no_threshold_is_better_than_the_chosen_one(rows: list[tuple[int, float, bool]]) -> None:
    odds, scores, answerable = (np.array(column) for column in zip(*rows, strict=True))

    def reached(threshold: float) -> float:
        kept = odds <= threshold
        return float(np.where(answerable, kept * scores, ~kept).mean())

    chosen = thresholds.no_answer_threshold(odds.astype(np.float64), scores, answerable)
    assert reached(chosen) == pytest.approx(max(reached(threshold) for threshold in [-9.0, *odds.tolist()]))


def test_the_chosen_threshold_reaches_the_official_best() -> None:
    """Without equal odds the two searches agree, and the official table confirms what is promised."""
    random = np.random.default_rng(5)
    golds = [["right"] if random.random() < 0.6 else [] for _ in range(300)]
    odds = np.array([random.normal(-1.0 if gold else 1.0) for gold in golds])
    predictions = ["right" if random.random() < 0.7 else "wrong" for _ in golds]
    scores = np.array(
        [float(prediction in gold) for prediction, gold in zip(predictions, golds, strict=True)]
    )
    threshold = thresholds.no_answer_threshold(odds, scores, np.array([bool(gold) for gold in golds]))
    table = score_v2(predictions, golds, odds, threshold)
    lower, upper = odds[odds <= threshold].max(), odds[odds > threshold].min()
    assert table["best_exact_thresh"] == lower and threshold == pytest.approx((lower + upper) / 2)
    assert table["exact"] == pytest.approx(table["best_exact"])
    assert table["exact"] > score_v2(predictions, golds, odds, 1e9)["exact"] + 5


def test_rounding_of_the_odds_moves_no_question_over_the_threshold() -> None:
    """A graph's odds differ by 1e-6, and the question that dev's threshold was chosen by is asked again."""
    odds, answerable = np.array([-2.0, 6.925047397613525, 8.0]), np.array([True, True, False])
    threshold = thresholds.no_answer_threshold(odds, answerable.astype(np.float64), answerable)
    for change in (-1e-6, 0.0, 1e-6):
        assert (odds + change <= threshold).tolist() == answerable.tolist()


def test_a_threshold_that_answers_nothing_and_one_without_candidates() -> None:
    nothing = thresholds.no_answer_threshold(np.array([-5.0, -3.0]), np.zeros(2), np.array([False, False]))
    assert nothing < -5
    odds = np.array([-5.0, math.inf])
    assert thresholds.no_answer_threshold(odds, np.array([1.0, 0.0]), np.array([True, True])) == -4
    assert thresholds.no_answer_threshold(odds[:1], np.ones(1), np.array([True])) == -4
    neighbours = np.array([1.0, np.nextafter(1.0, 2.0)])
    assert thresholds.no_answer_threshold(neighbours, np.array([1.0, 0.0]), np.array([True, False])) == 1
    assert math.isfinite(thresholds.no_answer_threshold(odds[1:], np.zeros(1), np.array([True])))
    with pytest.raises(ValueError, match="at least one question"):
        thresholds.no_answer_threshold(np.zeros(0), np.zeros(0), np.zeros(0, np.bool_))
