"""Answers to typed questions: System One's, by name, and OpenAI's decisions, in the order of the questions.

Confidences are System One's in both: OpenAI's reference gives no formula of its own.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from bertsmith.metrics.calibration import choice_confidence, score_confidence
from bertsmith.mirror.call import Json
from bertsmith.mirror.formats.decisions import name_of
from bertsmith.mirror.writing.own_answer import OwnAnswer, Written, whole

_DIGITS = 4  # of a probability


def write_systemone(answer: OwnAnswer) -> Written:
    """Raises NotMirrored without probabilities."""
    answers = {
        name: _systemone(question, answer, name) for name, question in answer.body["questions"].items()
    }
    usage = {"input_tokens": 0, "output_tokens": 0}
    return whole({"model": answer.asked.model, "answers": answers, "usage": usage})


def write_decisions(answer: OwnAnswer) -> Written:
    """Raises NotMirrored without probabilities."""
    answers = [
        _decision(question, answer, name_of(question, place))
        for place, question in enumerate(answer.body["questions"])
    ]
    usage = {
        "input_tokens": 0,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": 0,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 0,
    }
    return whole({"model": answer.asked.model, "answers": answers, "usage": usage})


def _systemone(question: Mapping[str, Json], answer: OwnAnswer, name: str) -> dict[str, Any]:
    spread, kind = answer.spread(name), question["type"]
    if kind == "noul":
        return {"type": kind, "noul": _yes(spread)}
    if kind == "choice":
        spread = _of_all(spread, list(question["criteria"]))
        shares = {str(value): _rounded(share) for value, share in spread}
        return {
            "type": kind,
            "choice": answer.value[name],
            "probabilities": shares,
            "confidence": _of_choice(spread),
        }
    of_level = dict(spread)
    levels = [of_level.get(number, 0.0) for number in range(len(question["criteria"]))]
    return {
        "type": kind,
        "score": _rounded(_mean(levels)),
        "legend": {str(number): each for number, each in enumerate(question["criteria"])},
        "probabilities": {str(number): _rounded(share) for number, share in enumerate(levels)},
        "confidence": _of_score(levels),
    }


def _decision(question: Mapping[str, Json], answer: OwnAnswer, name: str) -> dict[str, Any]:
    spread, kind = answer.spread(name), question["type"]
    head = {"type": kind, "name": question.get("name")}
    if kind == "predicate":
        return {**head, "probability": _yes(spread)}
    if kind == "choice":
        spread = _of_all(spread, [each["value"] for each in question["choices"]])
        values = [{"value": value, "probability": _rounded(share)} for value, share in spread]
        return {
            **head,
            "choice": answer.value[name],
            "confidence": _of_choice(spread),
            "probabilities": values,
        }
    shares = dict(spread)
    levels = [shares.get(number, 0.0) for number in range(len(question["levels"]))]
    named = [
        {"value": number, "label": each["label"], "probability": _rounded(levels[number])}
        for number, each in enumerate(question["levels"])
    ]
    return {
        **head,
        "score": _rounded(_mean(levels)),
        "confidence": _of_score(levels),
        "probabilities": named,
    }


def _of_all(spread: list[tuple[Json, float]], options: list[Json]) -> list[tuple[Json, float]]:
    """In the question's order; an option that the student never saw has nothing."""
    shares = dict(spread)
    return [(option, shares.get(option, 0.0)) for option in options]


def _yes(spread: list[tuple[Json, float]]) -> float:
    return _rounded(sum(share for value, share in spread if value is True))


def _of_choice(spread: list[tuple[Json, float]]) -> float:
    return _rounded(choice_confidence(np.array([share for _, share in spread])))


def _mean(levels: list[float]) -> float:
    return sum(number * share for number, share in enumerate(levels))


def _of_score(levels: list[float]) -> float:
    return _rounded(score_confidence(np.array(levels)))


def _rounded(share: float) -> float:
    return round(float(share), _DIGITS)
