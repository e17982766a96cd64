"""The official scores of SQuAD v1.1 (Rajpurkar et al. 2016) and v2.0 (2018), by their published rules.

    Q   questions

A question's golds are the texts of its right answers, none when it can't be answered; an empty prediction
says that it can't.
"""

import re
import string
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import numpy.typing as npt

Golds = Sequence[Sequence[str]]
FloatArray = npt.NDArray[np.float64]

_ARTICLES = re.compile(r"\b(a|an|the)\b")
# ASCII only, as officially: a typographic quote or a dash stays, and costs the match.
_WITHOUT_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalise(text: str) -> str:
    """Lower case, without punctuation and English articles, single blanks."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_WITHOUT_PUNCTUATION)).split())


def exact_match(prediction: str, gold: str) -> float:
    """1.0 when both normalise to the same text, else 0.0."""
    return float(normalise(prediction) == normalise(gold))


def token_f1(prediction: str, gold: str) -> float:
    """F1 of the words that both share, as often as they occur in both; 0.0 when they share none (v1.1)."""
    predicted, right = normalise(prediction).split(), normalise(gold).split()
    shared = (Counter(predicted) & Counter(right)).total()
    if shared == 0:
        return 0.0
    precision, recall = shared / len(predicted), shared / len(right)
    return 2 * precision * recall / (precision + recall)


def score_v1(predictions: Sequence[str], golds: Golds) -> dict[str, float]:
    """Percentages `exact_match` and `f1` over Q questions, each taking its best over the golds.

    Raises ValueError when there is no question, one has no gold, or the two don't belong together.
    """
    _check_aligned(predictions, golds)
    if unanswerable := sum(not texts for texts in golds):
        raise ValueError(f"{unanswerable} of {len(golds)} questions have no answer: score them by score_v2")
    return {
        "exact_match": _percent(np.array(list(_best_over_golds(exact_match, predictions, golds)))),
        "f1": _percent(np.array(list(_best_over_golds(token_f1, predictions, golds)))),
    }


def question_scores(predictions: Sequence[str], golds: Golds) -> tuple[FloatArray, FloatArray]:
    """Exact match (Q,) and F1 (Q,) by the rules of v2.0: without golds, saying nothing is right.

    A gold of which nothing is left after normalising is passed over, unless it is all there is.
    """
    _check_aligned(predictions, golds)
    counted = [[gold for gold in texts if normalise(gold)] or [""] for texts in golds]
    exact = np.array(list(_best_over_golds(exact_match, predictions, counted)))
    f1 = np.array(list(_best_over_golds(_f1_or_both_empty, predictions, counted)))
    return exact, f1


def score_v2(
    predictions: Sequence[str],
    golds: Golds,
    null_odds: Sequence[float] | FloatArray | None = None,
    threshold: float = 1.0,
) -> dict[str, float]:
    """The official table of v2.0 under its official names, in percent.

    `exact`, `f1`, `total`; the same with `HasAns_` and `NoAns_` for questions with and without an answer,
    where there are such. `null_odds` (Q,) tell how much speaks against an answer, as a probability or as any
    other measure: a prediction above `threshold` counts as none, and `best_exact`, `best_exact_thresh`,
    `best_f1` and `best_f1_thresh` say which threshold would have been best. Raises ValueError when there is
    no question, or predictions, golds and odds differ in number.
    """
    exact, f1 = question_scores(predictions, golds)
    answerable = np.array([bool(texts) for texts in golds])
    if null_odds is None:
        return _table(exact, f1, answerable)
    odds = np.asarray(null_odds, np.float64)
    _check_aligned(odds, golds)
    withheld = odds > threshold
    kept_exact = np.where(withheld, ~answerable, exact)
    kept_f1 = np.where(withheld, ~answerable, f1)
    answered = np.array([bool(text) for text in predictions])
    table = _table(kept_exact, kept_f1, answerable)
    table["best_exact"], table["best_exact_thresh"] = best_threshold(exact, odds, answerable, answered)
    table["best_f1"], table["best_f1_thresh"] = best_threshold(f1, odds, answerable, answered)
    return table


def best_threshold(
    scores: FloatArray,
    null_odds: FloatArray,
    answerable: npt.NDArray[np.bool_],
    answered: npt.NDArray[np.bool_],
) -> tuple[float, float]:
    """The best percentage any threshold on `null_odds` reaches, and the lowest that reaches it; inputs (Q,).

    The official search, its two quirks included: it may stop between questions of equal odds, which no
    threshold can do, and where it is best to answer nothing it says 0.0, which is right for probabilities
    only. `answers.choose_threshold` has neither; this one is for comparing published numbers.
    """
    order = np.argsort(null_odds, kind="stable")
    change = np.where(answerable, scores, -answered.astype(np.float64))[order]
    # With nothing answered, exactly the questions without an answer are right.
    totals = np.cumsum(np.concatenate([[float((~answerable).sum())], change]))
    kept = int(np.argmax(totals))
    threshold = float(null_odds[order[kept - 1]]) if kept else 0.0
    return 100.0 * float(totals[kept]) / len(scores), threshold


def _f1_or_both_empty(prediction: str, gold: str) -> float:
    return token_f1(prediction, gold) if normalise(gold) else exact_match(prediction, gold)


def _best_over_golds(
    score: Callable[[str, str], float], predictions: Sequence[str], golds: Golds
) -> Iterator[float]:
    for prediction, texts in zip(predictions, golds, strict=True):
        yield max(score(prediction, gold) for gold in texts)


def _table(exact: FloatArray, f1: FloatArray, answerable: npt.NDArray[np.bool_]) -> dict[str, float]:
    everything = np.ones(len(answerable), np.bool_)
    rows = {"": everything, "HasAns_": answerable, "NoAns_": ~answerable}
    table: dict[str, float] = {}
    for prefix, rows_of in rows.items():
        if rows_of.any():
            table[f"{prefix}exact"] = _percent(exact[rows_of])
            table[f"{prefix}f1"] = _percent(f1[rows_of])
            table[f"{prefix}total"] = int(rows_of.sum())
    return table


def _percent(scores: FloatArray) -> float:
    return 100.0 * float(scores.mean())


def _check_aligned(predictions: Sequence[str] | FloatArray, golds: Golds) -> None:
    if len(predictions) != len(golds):
        raise ValueError(
            f"expected one prediction for each of {len(golds)} questions, found {len(predictions)}"
        )
    if not len(golds):
        raise ValueError("there is no question to score")
