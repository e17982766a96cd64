"""OpenAI's decisions: a list of questions, answered in the same order.

The questions become a schema with a field for each: a predicate is a boolean, a choice one of its values, a
score the index of its level. A question without a name is called question_1, question_2 and so on by its
position. Confidences are computed as System One does, since OpenAI's reference gives no formula. Source:
openai-python's types/decision.py (beta of 2026-10).
"""

from collections.abc import Mapping
from typing import Any

from bertsmith.mirror.call import ChatMessage, Completion, CompletionRequest, Json, NotMirrored
from bertsmith.mirror.formats.openai_chat import OpenAIFormat
from bertsmith.mirror.formats.reading import (
    as_json,
    count,
    list_of,
    model_of,
    object_of,
    text_of,
    texts_of,
    users_of,
    word,
)
from bertsmith.mirror.formats.systemone import (
    complete_probabilities,
    confidence_of_choice,
    confidence_of_score,
    expected_level,
    probability_of_true,
    round_probability,
)
from bertsmith.mirror.formats.wire_format import ResponseBody, StudentCompletion, whole

_CALLS = ("function_call", "custom_tool_call")
_OUTPUTS = ("function_call_output", "custom_tool_call_output")


class Decisions(OpenAIFormat):
    """The decisions API, which has no streams."""

    NAME = "openai-decisions"
    PATH = "/decisions"
    INPUT = "input"
    NO_INPUT = "server-state"

    def read_request(self, body: Mapping[str, Json]) -> CompletionRequest:
        questions = list_of(body.get("questions"), "no-schema")
        content = body.get("input")
        if isinstance(content, str):
            messages = [ChatMessage("user", (content,))]
        else:
            items = list_of(content, "malformed-request")
            messages = [_read_message(object_of(item, "malformed-request")) for item in items]
        fields = {
            _question_name(question, index): _question_schema(object_of(question, "malformed-request"))
            for index, question in enumerate(questions)
        }
        if len(fields) != len(questions) or not fields:
            raise NotMirrored("malformed-request")
        schema = {"type": "object", "properties": fields}
        return CompletionRequest(
            self.NAME, model_of(body), tuple(messages), "", schema, "questions", {}, users_of(body)
        )

    def read_answer(self, request: CompletionRequest, body: Mapping[str, Json]) -> Completion:
        """Reads the answers; a question that the model refused has no field in the value. Raises NotMirrored
        if all were refused.
        """
        answers = list_of(body.get("answers"), "malformed-answer")
        fields = request.schema["properties"]
        if len(answers) != len(fields):
            raise NotMirrored("malformed-answer")
        value, probabilities = dict[str, Json](), dict[str, list[tuple[Json, float]]]()
        for (name, field), item in zip(fields.items(), answers, strict=True):
            answer = object_of(item, "malformed-answer")
            if answer.get("type") == "refusal":
                continue
            try:
                value[name], probabilities[f"$.{name}"] = _read_decision(answer, field)
            except (KeyError, TypeError, ValueError):
                raise NotMirrored("malformed-answer") from None
        if not value:
            raise NotMirrored("refusal")
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
        answers = [
            _write_answer(question, answer, _question_name(question, index))
            for index, question in enumerate(answer.body["questions"])
        ]
        usage = {
            "input_tokens": 0,
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": 0,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": 0,
        }
        return whole({"model": answer.request.model, "answers": answers, "usage": usage})

    def fits(self, request: Mapping[str, Json], answer: Mapping[str, Json]) -> bool:
        return "questions" in request and "state" not in request


def _question_name(question: Json, index: int) -> str:
    """The name of a question's field; `index` counts the questions from 0."""
    return word(object_of(question, "malformed-request").get("name")) or f"question_{index + 1}"


def _read_message(item: Mapping[str, Json]) -> ChatMessage:
    """Reads an item of the input: a message, a call of a tool or its output. Raises NotMirrored if it is no
    text.
    """
    item_type = item.get("type") or "message"
    if item_type in _CALLS:
        return ChatMessage(
            "assistant", (as_json({key: item[key] for key in item if key in ("name", "arguments", "input")}),)
        )
    if item_type in _OUTPUTS:
        return ChatMessage("tool", texts_of(item.get("output")))
    content = item.get("content")
    if isinstance(content, list):
        content = [_json_as_text(part) for part in content]
    return ChatMessage(text_of(item.get("role")), texts_of(content))


def _json_as_text(part: Json) -> Json:
    if isinstance(part, dict) and part.get("type") == "input_json":
        return as_json(part.get("data"))
    return part


def _question_schema(question: Mapping[str, Json]) -> dict[str, Json]:
    """The schema of a question's field. Raises NotMirrored for an unknown type of question."""
    question_type, described = question.get("type"), {"description": question.get("instructions")}
    if question_type == "predicate":
        return {"type": "boolean", **described}
    if question_type == "choice":
        choices = list_of(question.get("choices"), "malformed-request")
        values = [object_of(choice, "malformed-request").get("value") for choice in choices]
        return {"enum": values, **described, "criteria": choices}
    if question_type == "score":
        levels = list_of(question.get("levels"), "malformed-request")
        labels = [object_of(level, "malformed-request").get("label") for level in levels]
        if len(set(labels)) < len(labels):  # an answer names its levels by their labels
            raise NotMirrored("malformed-request")
        return {"type": "integer", "enum": list(range(len(levels))), **described, "criteria": levels}
    raise NotMirrored("unknown-question")


def _read_decision(
    answer: Mapping[str, Json], field: Mapping[str, Json]
) -> tuple[Json, list[tuple[Json, float]]]:
    """The value of an answered question, and the probability of each of its values."""
    if answer["type"] == "predicate":
        yes = float(answer["probability"])
        return yes >= 0.5, [(True, yes), (False, 1 - yes)]
    probabilities = [(item["value"], float(item["probability"])) for item in answer["probabilities"]]
    if answer["type"] == "choice":
        return answer["choice"], probabilities
    # By label, since servers differ in whether they number levels from 0 or from 1.
    levels = {level["label"]: index for index, level in enumerate(field["criteria"])}
    by_level = [(levels[item["label"]], float(item["probability"])) for item in answer["probabilities"]]
    return max(by_level, key=lambda pair: pair[1])[0], by_level


def _write_answer(question: Mapping[str, Json], answer: StudentCompletion, name: str) -> dict[str, Any]:
    """Writes the answer to a question; `name` is that of its field."""
    probabilities, question_type = answer.spread(name), question["type"]
    head = {"type": question_type, "name": question.get("name")}
    if question_type == "predicate":
        return {**head, "probability": probability_of_true(probabilities)}
    if question_type == "choice":
        options = [choice["value"] for choice in question["choices"]]
        probabilities = complete_probabilities(probabilities, options)
        values = [{"value": value, "probability": round_probability(share)} for value, share in probabilities]
        return {
            **head,
            "choice": answer.value[name],
            "confidence": confidence_of_choice(probabilities),
            "probabilities": values,
        }
    by_level = dict(probabilities)
    levels = [by_level.get(index, 0.0) for index in range(len(question["levels"]))]
    named = [
        {"value": index, "label": level["label"], "probability": round_probability(levels[index])}
        for index, level in enumerate(question["levels"])
    ]
    return {
        **head,
        "score": round_probability(expected_level(levels)),
        "confidence": confidence_of_score(levels),
        "probabilities": named,
    }
