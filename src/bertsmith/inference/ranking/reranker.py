"""A cross-encoder for re-ranking: reads query and passage together, so it sees more than two vectors tell.

E passages.
"""

import math
import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

from bertsmith.errors import InputError
from bertsmith.inference.predictor import Predictor

Reranker = Callable[
    [str, Sequence[str]], Sequence[float]
]  # query, passages -> (E,) scores, the higher the better
_YES = ("yes", "true", "relevant", "match", "duplicate", "equivalent", "entailment", "positive")


def open_reranker(name: str) -> Reranker:
    """A model fine-tuned on pairs: a regression's number, or the probability of the class that says yes
    (`relevant_label`).

    Raises ModelError when there is no such model, InputError when it was trained for another task, or has no
    such class.
    """
    predictor = Predictor.load(name)
    if predictor.task.has_probabilities:
        relevant_label(tuple(predictor.task.labels), name)

    def scores(query: str, passages: Sequence[str]) -> Sequence[float]:
        found = predictor.predict([(query, passage) for passage in passages])
        return [score_of(prediction, name) for prediction in found]

    return scores


def scores_of(reranker: Reranker, query: str, passages: Sequence[str]) -> list[float]:
    """(E,). Raises InputError for what are no scores: an order by NaN is none."""
    if not passages:
        return []
    found = [float(score) for score in reranker(query, passages)]
    if len(found) != len(passages) or not all(map(math.isfinite, found)):
        raise InputError(
            f"The re-ranker was given {len(passages)} passages and gave {len(found)} scores. Expected one "
            "for each, a finite number."
        )
    return found


@lru_cache
def relevant_label(labels: tuple[str, ...], name: str) -> str:
    """The class that says of a pair that it belongs together: the highest of numbers, the only one of words
    such as yes, match and entailment, or of two classes the one that the other denies. Raises InputError
    where there is none: any other would rank in an order that nobody meant.
    """
    try:
        return max(labels, key=float)
    except ValueError:
        pass
    plain = {label: re.sub(r"[\W_]+", " ", label.lower()).strip() for label in labels}
    found = [label for label, word in plain.items() if word in _YES]
    if not found and len(labels) == 2:
        found = [
            one
            for one, other in (labels, labels[::-1])
            if re.fullmatch(rf"(no|not|non|ir|un|in|dis|mis) ?{re.escape(plain[one])}", plain[other])
        ]
    if len(found) != 1:
        raise InputError(
            f"{name} can't re-rank: none of its labels ({', '.join(map(str, labels))}) says by its name that "
            "a document is relevant. Name the labels yes and no, or 1 and 0, and train again."
        )
    return found[0]


def score_of(prediction: Any, name: str) -> float:
    """How relevant a prediction for a pair says it is. Raises InputError for one that says nothing of it."""
    if "score" in prediction:
        return float(prediction["score"])
    probabilities = prediction.get("probabilities")
    if isinstance(probabilities, dict) and probabilities:
        return float(probabilities[relevant_label(tuple(probabilities), name)])
    raise InputError(
        f"{name} can't re-rank: its predictions hold no score ({', '.join(prediction)}). "
        "Use a model trained on pairs by `finetune reranking`, `regression` or `classification`."
    )
