"""text-classification: [[{"label", "score"}]], a list an input; zero-shot-classification, by a model that
says whether one text follows from another.
"""

from typing import Any

import numpy as np

from bertsmith.metrics.calibration import probabilities_of
from bertsmith.serving.protocols.pipelines.pipeline import Asked
from bertsmith.serving.protocols.scored_labels import best_first, labelled_logits, scored_labels
from bertsmith.serving.refusals import InvalidRequest, TooLarge, Unsupported
from bertsmith.serving.served_model import ServedModel
from bertsmith.serving.service import Answer

_TEMPLATE = "This example is {}."
_FUNCTIONS = ("softmax", "sigmoid", "none")


async def classify_texts(asked: Asked) -> tuple[Any, Answer]:
    """Calibrated probabilities; with `function_to_apply` what it makes of the head's logits as they are."""
    asked.require_known(("top_k", "function_to_apply"))
    top, function = asked.whole_number("top_k"), asked.parameters.get("function_to_apply")
    if function not in (None, *_FUNCTIONS):
        raise InvalidRequest(
            f"function_to_apply must be {', '.join(_FUNCTIONS)}, found {str(function)[:80]!r}."
        )
    answer = await asked.answer(asked.listed(), "predict", logits=True if function else None)
    found = [
        scored_labels(each, asked.model) if function is None else _applied(function, each, asked.model)
        for each in answer.results
    ]
    return [each[:top] for each in found], answer


def _applied(function: str, prediction: Any, model: ServedModel) -> list[dict[str, Any]]:
    logits = labelled_logits(prediction, model)
    if function == "none":
        return best_first(logits)
    row = np.array([list(logits.values())])
    (scores,) = probabilities_of(row, multi_label=function == "sigmoid").tolist()
    return best_first(dict(zip(logits, scores, strict=True)))


async def classify_by_entailment(asked: Asked) -> tuple[Any, Answer]:
    """[{"label", "score"}] for each candidate label, best first: how much the text entails the hypothesis
    that names it, against the other labels, or with `multi_label` against its contradiction.
    """
    asked.require_known(("candidate_labels", "hypothesis_template", "multi_label"))
    entailment, contradiction = _entailment(asked.model)
    labels = asked.texts("candidate_labels")
    template = asked.parameters.get("hypothesis_template", _TEMPLATE)
    multi_label = asked.flag("multi_label")
    if not labels:
        raise InvalidRequest("candidate_labels must be a list of at least one text.")
    if not isinstance(template, str) or "{}" not in template:
        raise InvalidRequest(
            f"hypothesis_template must have {{}} for the label, found {str(template)[:80]!r}."
        )
    texts = asked.listed()
    if not all(isinstance(text, str) for text in texts):
        raise InvalidRequest("inputs must be a text, or a list of texts.")
    most = asked.service.settings.max_inputs
    if len(texts) * len(labels) > most:
        raise TooLarge(
            f"{len(texts):,} texts with {len(labels):,} labels each; at most {most:,} pairs are taken."
        )
    hypotheses = [template.replace("{}", label) for label in labels]
    pairs = [(text, hypothesis) for text in texts for hypothesis in hypotheses]
    answer = await asked.answer(pairs, "predict", logits=True)
    logits = np.array([each["logits"] for each in answer.results]).reshape(len(texts), len(labels), -1)
    several = multi_label or len(labels) == 1
    if several:  # (E, L, 2) -> (E, L)
        scores = probabilities_of(logits[:, :, [contradiction, entailment]])[:, :, 1]
    else:
        scores = probabilities_of(logits[:, :, entailment])
    found = [best_first(dict(zip(labels, row.tolist(), strict=True))) for row in scores]
    return found[0] if asked.one else found, answer


def _entailment(model: ServedModel) -> tuple[int, int]:
    """The numbers of the labels for entailment and for its contrary. Raises Unsupported."""
    known = {label.lower(): number for number, label in enumerate(model.labels)}
    entailment = next((known[name] for name in known if name.startswith("entail")), None)
    contrary = next((known[name] for name in known if name.startswith(("contra", "not_entail"))), None)
    if model.task != "classification" or entailment is None or contrary is None:
        raise Unsupported(
            f"{model.name} can't classify by labels it never saw: that takes a model of pairs with the "
            "labels entailment and contradiction."
        )
    return entailment, contrary
