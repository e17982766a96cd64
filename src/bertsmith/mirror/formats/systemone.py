"""System One: typed questions about a state, each answered with probabilities.

The questions become a schema with a field for each: a noul is a boolean, a choice one of its options, a score
the index of its level. Source: the specification of TypeSafe Jev (2026-09), as implemented by LitServe and
the client.
"""

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from bertsmith.metrics.calibration import choice_confidence, score_confidence
from bertsmith.mirror.call import ChatMessage, Completion, CompletionRequest, Json, NotMirrored
from bertsmith.mirror.formats.reading import as_json, count, object_of, text_of, users_of, word
from bertsmith.mirror.formats.wire_format import ResponseBody, StudentCompletion, WireFormat, whole

_DIGITS = 4  # decimal places of a probability


class SystemOne(WireFormat):
    """The System One API. It has neither streams nor roles: the whole state is the input."""

    NAME = "systemone"
    PATH = "/systemone"
    PROVIDER = "systemone"
    INPUT = "state"

    def read_request(self, body: Mapping[str, Json]) -> CompletionRequest:
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
                    name: _question_schema(object_of(question, "malformed-request"))
                    for name, question in questions.items()
                },
            },
            "questions",
            {},
            users_of(body),
        )

    def read_answer(self, request: CompletionRequest, body: Mapping[str, Json]) -> Completion:
        answers = object_of(body.get("answers"), "malformed-answer")
        value, probabilities = dict[str, Json](), dict[str, list[tuple[Json, float]]]()
        for name, field in request.schema["properties"].items():
            answer = object_of(answers.get(name), "no-answer")
            try:
                pairs = _read_probabilities(answer, field)
            except (KeyError, TypeError, ValueError):
                raise NotMirrored("malformed-answer") from None
            probabilities[f"$.{name}"] = pairs
            value[name] = max(pairs, key=lambda pair: pair[1])[0]
            if answer.get("type") == "choice":
                value[name] = text_of(answer.get("choice"), "malformed-answer")  # it decides ties
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
        """Writes the answers. Raises NotMirrored if the student gives no probabilities."""
        answers = {
            name: _write_answer(question, answer, name) for name, question in answer.body["questions"].items()
        }
        usage = {"input_tokens": 0, "output_tokens": 0}
        return whole({"model": answer.request.model, "answers": answers, "usage": usage})

    def error_body(self, message: str, code: str) -> Json:
        """The error in FastAPI's form, which the format's clients read."""
        return {"detail": f"{message} ({code})"}

    def fits(self, request: Mapping[str, Json], answer: Mapping[str, Json]) -> bool:
        return "questions" in request and "state" in request

    def new_items(self, body: Mapping[str, Json]) -> list[Json]:
        """The whole state as one item. A state that is an object or a list is given as JSON text, so that its
        keys count as the application's own.
        """
        state = body["state"]
        return [json.dumps(state, ensure_ascii=False) if isinstance(state, dict | list) else state]


def _question_schema(question: Mapping[str, Json]) -> dict[str, Json]:
    """The schema of a question's field. Raises NotMirrored for an unknown type of question."""
    question_type, criteria = question.get("type"), question.get("criteria")
    described = {"description": question.get("instructions"), "criteria": criteria}
    if question_type == "noul":
        return {"type": "boolean", **described}
    if question_type == "choice":
        return {"enum": list(object_of(criteria, "malformed-request")), **described}
    if question_type == "score" and isinstance(criteria, list):
        return {"type": "integer", "enum": list(range(len(criteria))), **described}
    raise NotMirrored("unknown-question")


def _read_probabilities(answer: Mapping[str, Json], field: Mapping[str, Json]) -> list[tuple[Json, float]]:
    """The probability of each value of an answered question."""
    if answer["type"] == "noul":
        yes = float(answer["noul"])
        return [(True, yes), (False, 1 - yes)]
    probabilities = answer["probabilities"]
    options = field["enum"]
    if answer["type"] == "score":
        return [(level, float(probabilities[str(level)])) for level in options]
    return [(option, float(probabilities[option])) for option in options]


def _write_answer(question: Mapping[str, Json], answer: StudentCompletion, name: str) -> dict[str, Any]:
    """Writes the answer to the question `name`."""
    probabilities, question_type = answer.spread(name), question["type"]
    if question_type == "noul":
        return {"type": question_type, "noul": probability_of_true(probabilities)}
    if question_type == "choice":
        probabilities = complete_probabilities(probabilities, list(question["criteria"]))
        return {
            "type": question_type,
            "choice": answer.value[name],
            "probabilities": {str(value): round_probability(share) for value, share in probabilities},
            "confidence": confidence_of_choice(probabilities),
        }
    by_level = dict(probabilities)
    levels = [by_level.get(index, 0.0) for index in range(len(question["criteria"]))]
    return {
        "type": question_type,
        "score": round_probability(expected_level(levels)),
        "legend": {str(index): level for index, level in enumerate(question["criteria"])},
        "probabilities": {str(index): round_probability(share) for index, share in enumerate(levels)},
        "confidence": confidence_of_score(levels),
    }


def complete_probabilities(
    probabilities: list[tuple[Json, float]], options: list[Json]
) -> list[tuple[Json, float]]:
    """The probabilities of all `options`, in their order; 0 for one that the student has never seen."""
    by_option = dict(probabilities)
    return [(option, by_option.get(option, 0.0)) for option in options]


def probability_of_true(probabilities: list[tuple[Json, float]]) -> float:
    """The probability of True, rounded for an answer."""
    return round_probability(sum(share for value, share in probabilities if value is True))


def confidence_of_choice(probabilities: list[tuple[Json, float]]) -> float:
    """System One's confidence of a choice, rounded for an answer."""
    return round_probability(choice_confidence(np.array([share for _, share in probabilities])))


def expected_level(levels: list[float]) -> float:
    """The mean of a score's levels, weighted by their probabilities."""
    return sum(index * share for index, share in enumerate(levels))


def confidence_of_score(levels: list[float]) -> float:
    """System One's confidence of a score by its levels' probabilities, rounded for an answer."""
    return round_probability(score_confidence(np.array(levels)))


def round_probability(share: float) -> float:
    """Rounds a probability, a score or a confidence as System One's answers do."""
    return round(float(share), _DIGITS)
