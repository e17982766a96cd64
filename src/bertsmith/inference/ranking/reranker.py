"""Re-ranking by a cross-encoder, which reads query and passage together and so sees more than two vectors
tell.

E passages.
"""

import math
import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

from bertsmith.errors import InputError
from bertsmith.inference.predictor import Predictor

# (query, passages) -> scores (E,); higher is better
Reranker = Callable[[str, Sequence[str]], Sequence[float]]
_YES = ("yes", "true", "relevant", "match", "duplicate", "equivalent", "entailment", "positive")


def open_reranker(name: str) -> Reranker:
    """Opens a model that was fine-tuned on pairs as a re-ranker. Its score is the number of a regression, or
    the probability of the class that means relevant (see `relevant_label`).

    Raises ModelError when there is no such model, InputError when it was trained for another task, or has no
    such class.
    """
    predictor = Predictor.load(name)
    if predictor.task.has_probabilities:
        relevant_label(tuple(predictor.task.labels), name)

    def scores(query: str, passages: Sequence[str]) -> Sequence[float]:
        predictions = predictor.predict([(query, passage) for passage in passages])
        return [score_of(prediction, name) for prediction in predictions]

    return scores


def scores_of(reranker: Reranker, query: str, passages: Sequence[str]) -> list[float]:
    """Scores passages: (E,). Raises InputError unless there is one finite number for each passage."""
    if not passages:
        return []
    scores = [float(score) for score in reranker(query, passages)]
    if len(scores) != len(passages) or not all(map(math.isfinite, scores)):
        raise InputError(
            f"The re-ranker was given {len(passages)} passages and gave {len(scores)} scores. Expected one "
            "for each, a finite number."
        )
    return scores


@lru_cache
def relevant_label(labels: tuple[str, ...], name: str) -> str:
    """The class that means that a pair belongs together.

    That is the highest label if all are numbers; the only label that is a word such as yes, match or
    entailment; or of two labels the one that the other negates. Raises InputError if none of these applies:
    any other choice would rank in an order that nobody meant.
    """
    try:
        return max(labels, key=float)
    except ValueError:
        pass
    words = {label: re.sub(r"[\W_]+", " ", label.lower()).strip() for label in labels}
    matches = [label for label, word in words.items() if word in _YES]
    if not matches and len(labels) == 2:
        matches = [
            one
            for one, other in (labels, labels[::-1])
            if re.fullmatch(rf"(no|not|non|ir|un|in|dis|mis) ?{re.escape(words[one])}", words[other])
        ]
    if len(matches) != 1:
        raise InputError(
            f"{name} can't re-rank: none of its labels ({', '.join(map(str, labels))}) says by its name that "
            "a document is relevant. Name the labels yes and no, or 1 and 0, and train again."
        )
    return matches[0]


def score_of(prediction: Any, name: str) -> float:
    """The relevance in a prediction for a pair. Raises InputError for a prediction without a score."""
    if "score" in prediction:
        return float(prediction["score"])
    probabilities = prediction.get("probabilities")
    if isinstance(probabilities, dict) and probabilities:
        return float(probabilities[relevant_label(tuple(probabilities), name)])
    raise InputError(
        f"{name} can't re-rank: its predictions hold no score ({', '.join(prediction)}). "
        "Use a model trained on pairs by `finetune reranking`, `regression` or `classification`."
    )
