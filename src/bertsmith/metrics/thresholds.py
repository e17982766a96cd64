"""Thresholds chosen on dev: the confidence below which a text isn't answered, and the probability from which
a label holds.

An answer is given, and a label holds, if confidence or probability >= threshold. E examples, C labels, Q
questions.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from bertsmith.arrays import Floats
from bertsmith.errors import RecipeError

# Weights for the log-odds of a label's threshold. On held-out rows of Reuters' training set, with 8, 16, 64
# and all rows a topic, they gain 3.5, 3.0, 0.8 and 0.8 points of micro F1 and 6.5, 5.1, 2.8 and 1.6 of macro
# F1 over each label's own best cut (with none where its F1 is below 0.3: SCutFBR.1, Yang 2001).
_FEW_TEXTS, _EXPECTED = 50, 0.75

# No confidence reaches it: nothing is answered.
NEVER = 2.0


@dataclass(frozen=True)
class Coverage:
    """Answering from `threshold` on answers `coverage` of the texts; `risk` of those answers are wrong."""

    threshold: float
    coverage: float
    risk: float


def at_threshold(confidence: npt.ArrayLike, correct: npt.ArrayLike, threshold: float) -> Coverage:
    """Coverage and risk of answers (E,) at a threshold; the risk of no answers is 0."""
    confidence, correct = _answers(confidence, correct)
    answered = confidence >= threshold
    risk = float(1 - correct[answered].mean()) if answered.any() else 0.0
    return Coverage(float(threshold), float(answered.mean()), risk)


def risk_coverage(
    confidence: npt.ArrayLike,
    correct: npt.ArrayLike,
    coverages: Sequence[float] = (1.0, 0.95, 0.9, 0.8, 0.7, 0.5),
) -> tuple[Coverage, ...]:
    """Coverage and risk if only the most confident texts are answered, for each of `coverages` (El-Yaniv and
    Wiener 2010). Raises RecipeError for a coverage outside (0, 1].
    """
    confidence, correct = _answers(confidence, correct)
    return tuple(
        at_threshold(confidence, correct, threshold_for_coverage(confidence, coverage))
        for coverage in coverages
    )


def threshold_for_coverage(confidence: npt.ArrayLike, coverage: float) -> float:
    """The threshold that answers at least this share of the texts, and no more than it must; 0.0 for all. It
    is half-way between the last text answered and the next, so that rounding moves neither to the other side.

    Texts of equal confidence are answered together, so more may be answered than asked for. Raises
    RecipeError if the coverage isn't in (0, 1].
    """
    confidence = np.asarray(confidence, np.float64)
    if not 0 < coverage <= 1:
        raise RecipeError(f"Expected coverage above 0 and at most 1 (0.9 answers 90 %), found {coverage}.")
    if coverage == 1:
        return 0.0
    # Rounding makes 0.7 * 10 a little more than 7.
    answered = max(1, int(np.ceil(coverage * len(confidence) - 1e-9)))
    last = np.sort(confidence)[-answered]
    return float(_between(confidence[confidence < last].max(initial=0.0), last))


def chow_threshold(error_cost: float, abstain_cost: float) -> float:
    """Chow's rule (1970): answer if an error's expected cost, (1 - confidence) * error_cost, is at most the
    cost of leaving the text to someone else.

    It holds as far as confidence is calibrated. Costs may have any unit; only their ratio matters. Raises
    RecipeError unless error_cost > 0 and abstain_cost >= 0.
    """
    if not (np.isfinite([error_cost, abstain_cost]).all() and error_cost > 0 and abstain_cost >= 0):
        raise RecipeError(
            f"Expected an error's cost above 0 and a cost of abstaining of at least 0, "
            f"found {error_cost} and {abstain_cost}."
        )
    return max(0.0, 1 - abstain_cost / error_cost)


def thresholds_per_label(probabilities: npt.ArrayLike, gold: npt.ArrayLike) -> Floats:
    """The probability from which each label holds, (C,), given dev's calibrated probabilities and labels, (E,
    C) both.

    A label that is frequent in dev gets the cut with the best F1 there. The best cut of a few texts is mostly
    chance, so a label with N texts gets N / (N + 50) of its own cut. The rest, on the scale of log-odds,
    comes from estimates that need fewer texts: three parts of half the best F1 to be expected from the
    label's probabilities alone (Lipton et al. 2014, theorem 1), and one part of the cut that is best for all
    labels together. Raises ValueError unless both are (E, C).
    """
    probabilities, gold = np.asarray(probabilities, np.float64), np.asarray(gold, np.bool_)
    _require_labels(probabilities, gold)
    if not gold.any():
        return np.full(gold.shape[1], 0.5)
    own, count = _log_odds(best_f1_cuts(probabilities, gold)), gold.sum(axis=0)
    (together,) = _log_odds(best_f1_cuts(probabilities.reshape(-1, 1), gold.reshape(-1, 1)))
    usual = _EXPECTED * _log_odds(_best_expected_f1(probabilities) / 2) + (1 - _EXPECTED) * together
    share = count / (count + _FEW_TEXTS)
    return np.asarray(1 / (1 + np.exp(-(share * own + (1 - share) * usual))))


def best_f1_cuts(probabilities: npt.ArrayLike, gold: npt.ArrayLike) -> Floats:
    """The threshold with the best F1 on dev for each label, (C,); all cut points at once.

    A cut is half-way between two neighbouring probabilities; of equally good cuts, the one nearest 0.5. A
    label that dev doesn't have gets 0.5. Raises ValueError unless both are (E, C).
    """
    probabilities, gold = np.asarray(probabilities, np.float64), np.asarray(gold, np.bool_)
    _require_labels(probabilities, gold)
    order = np.argsort(-probabilities, axis=0, kind="stable")
    ranked = np.take_along_axis(probabilities, order, axis=0)
    below = np.concatenate([ranked[1:], np.zeros((1, ranked.shape[1]))])
    hits = np.cumsum(np.take_along_axis(gold, order, axis=0), axis=0)
    f1 = 2 * hits / (np.arange(1, len(gold) + 1)[:, None] + gold.sum(axis=0))
    f1[:-1][ranked[:-1] == ranked[1:]] = -1.0
    cuts = _between(below, ranked)
    # F1 is a quotient of whole numbers, hence equal values are equal to the last bit.
    distances = np.where(f1 == f1.max(axis=0), np.abs(cuts - 0.5), np.inf)
    best = np.take_along_axis(cuts, distances.argmin(axis=0)[None], axis=0)[0]
    return np.where(gold.any(axis=0), best, 0.5)


def no_answer_threshold(null_odds: npt.ArrayLike, scores: npt.ArrayLike, answerable: npt.ArrayLike) -> float:
    """The odds of "no answer" up to which an answer is given, with the highest mean score on dev; all (Q,).

    `scores` are those of the best answers (exact match or F1), 0 to 1. A question without an answer scores 1
    if none is given, otherwise 0. Of several thresholds it is the lowest, which prefers no answer. It is
    half-way between the last question answered and the next, or one beyond the last, so that rounding moves
    neither to the other side. Raises ValueError for no question.
    """
    odds = np.asarray(null_odds, np.float64)
    if not len(odds):
        raise ValueError("choosing a threshold needs at least one question")
    order = np.argsort(odds, kind="stable")
    odds = odds[order]
    change = np.where(answerable, scores, -1.0)[order]
    totals = np.concatenate([[0.0], np.cumsum(change)])  # having answered the first 0, 1, … Q
    # Questions of equal odds are answered all or none, and those without any candidate never.
    attainable = np.concatenate([[True], odds[:-1] < odds[1:], [True]])
    attainable[1:] &= np.isfinite(odds)
    answered = int(np.flatnonzero(attainable)[np.argmax(totals[attainable])])
    if not answered:
        return float(odds[0]) - 1.0 if np.isfinite(odds[0]) else 0.0
    if answered == len(odds) or np.isinf(odds[answered]):
        return float(odds[answered - 1]) + 1.0
    # Turned round: what has the threshold's own odds is answered.
    return -float(_between(-odds[answered], -odds[answered - 1]))


def _best_expected_f1(probabilities: Floats) -> Floats:
    """The best expected F1 of each label, (C,), when it is given to the texts that are likeliest to
    have it.
    """
    ranked = -np.sort(-probabilities, axis=0)
    counts = np.arange(1, len(ranked) + 1)[:, None]
    return np.asarray((2 * np.cumsum(ranked, axis=0) / (counts + ranked.sum(axis=0))).max(axis=0))


def _log_odds(probabilities: Floats) -> Floats:
    clipped = probabilities.clip(1e-9, 1 - 1e-9)
    return np.asarray(np.log(clipped / (1 - clipped)))


def _require_labels(probabilities: Floats, gold: npt.NDArray[np.bool_]) -> None:
    if probabilities.ndim != 2 or probabilities.shape != gold.shape or not len(gold):
        raise ValueError(f"expected probabilities and gold (E, C), found {probabilities.shape}, {gold.shape}")


def _between(below: npt.ArrayLike, above: npt.ArrayLike) -> Floats:
    """The midpoint, or `above` if no float lies between the two, because `below` must stay below."""
    below, above = np.asarray(below, np.float64), np.asarray(above, np.float64)
    middle = (below + above) / 2
    return np.where(middle > below, middle, above)


def _answers(confidence: npt.ArrayLike, correct: npt.ArrayLike) -> tuple[Floats, Floats]:
    confidence, correct = np.asarray(confidence, np.float64), np.asarray(correct, np.float64)
    if confidence.ndim != 1 or confidence.shape != correct.shape or not len(correct):
        raise ValueError(f"expected (E,) confidences and answers, found {confidence.shape}, {correct.shape}")
    return confidence, correct
