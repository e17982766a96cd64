"""A prediction as labels with scores, best first: the shape that pipelines and TEI have for classes."""

from collections.abc import Mapping
from typing import Any

from bertsmith.serving.refusals import Unsupported
from bertsmith.serving.served_model import ServedModel

TASKS = frozenset({"classification", "multi-label", "regression", "similarity", "reranking"})


def scored_labels(prediction: Mapping[str, Any], model: ServedModel) -> list[dict[str, Any]]:
    """[{"label", "score"}]: calibrated probabilities of all labels; a number as the one label `score`, in its
    own unit. Raises Unsupported for predictions that are no labels.
    """
    if isinstance(probabilities := prediction.get("probabilities"), Mapping):
        return best_first(probabilities)
    if "score" in prediction:
        return [{"label": "score", "score": prediction["score"]}]
    if "label" in prediction and "confidence" in prediction:
        return [{"label": prediction["label"], "score": prediction["confidence"]}]
    raise _without_labels(model)


def labelled_logits(prediction: Mapping[str, Any], model: ServedModel) -> dict[str, float]:
    """What the head gave for each label. Raises Unsupported for a head of no labels."""
    logits = prediction["logits"]
    names = model.labels if len(model.labels) == len(logits) else ("score",)
    if len(names) != len(logits):  # a vector
        raise _without_labels(model)
    return dict(zip(names, logits, strict=True))


def best_first(scores: Mapping[str, float]) -> list[dict[str, Any]]:
    """Of equal ones the first stays first."""
    ranked = sorted(scores.items(), key=lambda item: -item[1])
    return [{"label": label, "score": score} for label, score in ranked]


def _without_labels(model: ServedModel) -> Unsupported:
    return Unsupported(f"{model.name} is a model for {model.task}: it gives no label of a text.")
