"""The tables of SQuAD's official scripts, from the scores of single questions: what published numbers mean.

Q   questions
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from bertsmith.metrics.scores import exact_match, question_scores, token_f1

Golds = Sequence[Sequence[str]]
FloatArray = npt.NDArray[np.float64]


def score_v1(predictions: Sequence[str], golds: Golds) -> dict[str, float]:
    """Percentages `exact_match` and `f1` over Q questions, each taking its best over the golds."""
    f1 = [
        max(token_f1(prediction, gold) for gold in texts)
        for prediction, texts in zip(predictions, golds, strict=True)
    ]
    exact = [
        max(exact_match(prediction, gold) for gold in texts)
        for prediction, texts in zip(predictions, golds, strict=True)
    ]
    return {"exact_match": _percent(np.array(exact)), "f1": _percent(np.array(f1))}


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
    `best_f1` and `best_f1_thresh` say which threshold would have been best.
    """
    exact, f1 = question_scores(predictions, golds)
    answerable = np.array([bool(texts) for texts in golds])
    if null_odds is None:
        return _table(exact, f1, answerable)
    odds = np.asarray(null_odds, np.float64)
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
    only. `thresholds.no_answer_threshold` has neither; this one is for comparing published numbers.
    """
    order = np.argsort(null_odds, kind="stable")
    change = np.where(answerable, scores, -answered.astype(np.float64))[order]
    # With nothing answered, exactly the questions without an answer are right.
    totals = np.cumsum(np.concatenate([[float((~answerable).sum())], change]))
    kept = int(np.argmax(totals))
    threshold = float(null_odds[order[kept - 1]]) if kept else 0.0
    return 100.0 * float(totals[kept]) / len(scores), threshold


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
