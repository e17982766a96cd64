"""A cross-encoder for re-ranking: reads query and passage together, so it sees more than two vectors tell.

E passages.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

from bertsmith.errors import InputError
from bertsmith.inference.predictor import Predictor

Reranker = Callable[
    [str, Sequence[str]], Sequence[float]
]  # query, passages -> (E,) scores, the higher the better


def open_reranker(name: str) -> Reranker:
    """A model fine-tuned on pairs: a regression's number, or the probability of the last of several classes.

    Raises ModelError when there is no such model, InputError when it was trained for another task.
    """
    predictor = Predictor.load(name)

    def scores(query: str, passages: Sequence[str]) -> Sequence[float]:
        found = predictor.predict([(query, passage) for passage in passages])
        return [score_of(prediction, name) for prediction in found]

    return scores


def scores_of(rerank: Reranker, query: str, passages: Sequence[str]) -> list[float]:
    """(E,). Raises InputError for what are no scores: an order by NaN is none."""
    if not passages:
        return []
    found = [float(score) for score in rerank(query, passages)]
    if len(found) != len(passages) or not all(map(math.isfinite, found)):
        raise InputError(
            f"The re-ranker was given {len(passages)} passages and gave {len(found)} scores. Expected one "
            "for each, a finite number."
        )
    return found


def score_of(prediction: Any, name: str) -> float:
    """How relevant a prediction for a pair says it is. Raises InputError for one that says nothing of it."""
    if "score" in prediction:
        return float(prediction["score"])
    probabilities = prediction.get("probabilities")
    if isinstance(probabilities, dict) and probabilities:
        return float(list(probabilities.values())[-1])
    raise InputError(
        f"{name} can't re-rank: its predictions hold no score ({', '.join(prediction)}). "
        "Use a model trained on pairs by `finetune reranking`, `regression` or `classification`."
    )
