"""System One: typed questions about a state, each answered with probabilities.

The questions become a schema with a field each: a noul is a boolean, a choice one of its options, a score the
number of its level. Source: the specification of TypeSafe Jev (2026-09), as LitServe and the client have it.
"""

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from bertsmith.metrics.calibration import choice_confidence, score_confidence
from bertsmith.mirror.call import ChatMessage, Completion, CompletionRequest, Json, NotMirrored
from bertsmith.mirror.formats.reading import as_json, count, object_of, subjects_of, text_of, word
from bertsmith.mirror.formats.wire_format import ResponseBody, StudentCompletion, WireFormat, whole

_DIGITS = 4  # of a probability


class SystemOne(WireFormat):
    """It has no streams, and no roles: the whole state is the input."""

    NAME = "systemone"
    PATH = "/systemone"
    PROVIDER = "systemone"
    INPUT = "state"

    def read_request(self, body: Mapping[str, Json]) -> CompletionRequest:
        """Raises NotMirrored saying why."""
        questions = object_of(body.get("questions"), "no-schema")
        if not questions or "state" not in body:
            raise NotMirrored("malformed-request")
        state = body["state"]
        return CompletionRequest(
            self.NAME,
            word(body.get("model")),
            (ChatMessage("user", (state if isinstance(state, str) else as_json(state),)),),
            "",
            {
                "type": "object",
                "properties": {
                    name: _question_schema(object_of(each, "malformed-request"))
                    for name, each in questions.items()
                },
            },
            "questions",
            {},
            subjects_of(body),
        )

    def read_answer(self, request: CompletionRequest, body: Mapping[str, Json]) -> Completion:
        """Raises NotMirrored saying why."""
        answers = object_of(body.get("answers"), "malformed-answer")
        value, probabilities = dict[str, Json](), dict[str, list[tuple[Json, float]]]()
        for name, field in request.schema["properties"].items():
            answer = object_of(answers.get(name), "no-answer")
            try:
                spread = _read_probabilities(answer, field)
            except (KeyError, TypeError, ValueError):
                raise NotMirrored("malformed-answer") from None
            probabilities[f"$.{name}"] = spread
            value[name] = max(spread, key=lambda each: each[1])[0]
            if answer.get("type") == "choice":
                value[name] = text_of(answer.get("choice"), "malformed-answer")  # of equals, the one it says
        usage = body.get("usage")
        return Completion(
            value,
            word(body.get("model")),
            "",
            word(body.get("id")),
            count(usage, "input_tokens"),
            count(usage, "output_tokens"),
            probabilities,
        )

    def write(self, answer: StudentCompletion) -> ResponseBody:
        """Raises NotMirrored without probabilities."""
        answers = {
            name: _write_answer(question, answer, name) for name, question in answer.body["questions"].items()
        }
        usage = {"input_tokens": 0, "output_tokens": 0}
        return whole({"model": answer.request.model, "answers": answers, "usage": usage})

    def error_body(self, message: str, code: str) -> Json:
        """FastAPI's envelope, which its clients read."""
        return {"detail": f"{message} ({code})"}

    def fits(self, request: Mapping[str, Json], answer: Mapping[str, Json]) -> bool:
        return "questions" in request and "state" in request

    def new_items(self, body: Mapping[str, Json]) -> list[Json]:
        """One of objects and lists as its JSON, in which keys are the application's own."""
        state = body["state"]
        return [json.dumps(state, ensure_ascii=False) if isinstance(state, dict | list) else state]


def _question_schema(question: Mapping[str, Json]) -> dict[str, Json]:
    kind, criteria = question.get("type"), question.get("criteria")
    said = {"description": question.get("instructions"), "criteria": criteria}
    if kind == "noul":
        return {"type": "boolean", **said}
    if kind == "choice":
        return {"enum": list(object_of(criteria, "malformed-request")), **said}
    if kind == "score" and isinstance(criteria, list):
        return {"type": "integer", "enum": list(range(len(criteria))), **said}
    raise NotMirrored("unknown-question")


def _read_probabilities(answer: Mapping[str, Json], field: Mapping[str, Json]) -> list[tuple[Json, float]]:
    if answer["type"] == "noul":
        yes = float(answer["noul"])
        return [(True, yes), (False, 1 - yes)]
    given = answer["probabilities"]
    options = field["enum"]
    if answer["type"] == "score":
        return [(level, float(given[str(level)])) for level in options]
    return [(option, float(given[option])) for option in options]


def _write_answer(question: Mapping[str, Json], answer: StudentCompletion, name: str) -> dict[str, Any]:
    spread, kind = answer.spread(name), question["type"]
    if kind == "noul":
        return {"type": kind, "noul": probability_of_true(spread)}
    if kind == "choice":
        spread = complete_probabilities(spread, list(question["criteria"]))
        shares = {str(value): round_probability(share) for value, share in spread}
        return {
            "type": kind,
            "choice": answer.value[name],
            "probabilities": shares,
            "confidence": confidence_of_choice(spread),
        }
    of_level = dict(spread)
    levels = [of_level.get(number, 0.0) for number in range(len(question["criteria"]))]
    return {
        "type": kind,
        "score": round_probability(expected_level(levels)),
        "legend": {str(number): each for number, each in enumerate(question["criteria"])},
        "probabilities": {str(number): round_probability(share) for number, share in enumerate(levels)},
        "confidence": confidence_of_score(levels),
    }


def complete_probabilities(spread: list[tuple[Json, float]], options: list[Json]) -> list[tuple[Json, float]]:
    """In the question's order; an option that the student never saw has nothing."""
    shares = dict(spread)
    return [(option, shares.get(option, 0.0)) for option in options]


def probability_of_true(spread: list[tuple[Json, float]]) -> float:
    return round_probability(sum(share for value, share in spread if value is True))


def confidence_of_choice(spread: list[tuple[Json, float]]) -> float:
    return round_probability(choice_confidence(np.array([share for _, share in spread])))


def expected_level(levels: list[float]) -> float:
    return sum(number * share for number, share in enumerate(levels))


def confidence_of_score(levels: list[float]) -> float:
    return round_probability(score_confidence(np.array(levels)))


def round_probability(share: float) -> float:
    return round(float(share), _DIGITS)
