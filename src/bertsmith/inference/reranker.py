"""A cross-encoder for re-ranking: reads query and passage together, so it sees more than two vectors tell.

E passages.
"""

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
        return [_score(prediction, name) for prediction in found]

    return scores


def _score(prediction: Any, name: str) -> float:
    if "score" in prediction:
        return float(prediction["score"])
    chances = prediction.get("probabilities")
    if isinstance(chances, dict) and chances:
        return float(list(chances.values())[-1])
    raise InputError(
        f"{name} can't re-rank: its predictions hold no score ({', '.join(prediction)}). "
        "Use a model trained on pairs by `finetune reranking`, `regression` or `classification`."
    )
