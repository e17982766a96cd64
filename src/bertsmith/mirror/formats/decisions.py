"""OpenAI's decisions: questions in a list, answered in its order.

A predicate becomes a boolean field, a choice one of its values, a score the number of its level; a question
without a name is called by its place. Confidences are System One's: OpenAI's reference gives no formula.
Source: openai-python's types/decision.py (beta of 2026-10).
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
    subjects_of,
    text_of,
    texts_of,
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
    """It has no streams."""

    NAME = "openai-decisions"
    PATH = "/decisions"
    INPUT = "input"
    NO_INPUT = "server-state"

    def read_request(self, body: Mapping[str, Json]) -> CompletionRequest:
        """Raises NotMirrored saying why."""
        questions = list_of(body.get("questions"), "no-schema")
        given = body.get("input")
        messages = (
            [ChatMessage("user", (given,))]
            if isinstance(given, str)
            else [
                _read_message(object_of(each, "malformed-request"))
                for each in list_of(given, "malformed-request")
            ]
        )
        fields = {
            _question_name(each, place): _question_schema(object_of(each, "malformed-request"))
            for place, each in enumerate(questions)
        }
        if len(fields) != len(questions) or not fields:
            raise NotMirrored("malformed-request")
        schema = {"type": "object", "properties": fields}
        return CompletionRequest(
            self.NAME, model_of(body), tuple(messages), "", schema, "questions", {}, subjects_of(body)
        )

    def read_answer(self, request: CompletionRequest, body: Mapping[str, Json]) -> Completion:
        """A question that was refused has no field in the value. Raises NotMirrored saying why."""
        answers = list_of(body.get("answers"), "malformed-answer")
        fields = request.schema["properties"]
        if len(answers) != len(fields):
            raise NotMirrored("malformed-answer")
        value, probabilities = dict[str, Json](), dict[str, list[tuple[Json, float]]]()
        for (name, field), given in zip(fields.items(), answers, strict=True):
            answer = object_of(given, "malformed-answer")
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
        """Raises NotMirrored without probabilities."""
        answers = [
            _write_answer(question, answer, _question_name(question, place))
            for place, question in enumerate(answer.body["questions"])
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


def _question_name(question: Json, place: int) -> str:
    """`place` from 0."""
    return word(object_of(question, "malformed-request").get("name")) or f"question_{place + 1}"


def _read_message(item: Mapping[str, Json]) -> ChatMessage:
    """Of an item of the input. Raises NotMirrored."""
    kind = item.get("type") or "message"
    if kind in _CALLS:
        return ChatMessage(
            "assistant", (as_json({key: item[key] for key in item if key in ("name", "arguments", "input")}),)
        )
    if kind in _OUTPUTS:
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
    kind, said = question.get("type"), {"description": question.get("instructions")}
    if kind == "predicate":
        return {"type": "boolean", **said}
    if kind == "choice":
        choices = list_of(question.get("choices"), "malformed-request")
        values = [object_of(choice, "malformed-request").get("value") for choice in choices]
        return {"enum": values, **said, "criteria": choices}
    if kind == "score":
        levels = list_of(question.get("levels"), "malformed-request")
        return {"type": "integer", "enum": list(range(len(levels))), **said, "criteria": levels}
    raise NotMirrored("unknown-question")


def _read_decision(
    answer: Mapping[str, Json], field: Mapping[str, Json]
) -> tuple[Json, list[tuple[Json, float]]]:
    if answer["type"] == "predicate":
        yes = float(answer["probability"])
        return yes >= 0.5, [(True, yes), (False, 1 - yes)]
    spread = [(each["value"], float(each["probability"])) for each in answer["probabilities"]]
    if answer["type"] == "choice":
        return answer["choice"], spread
    levels = {each["label"]: number for number, each in enumerate(field["criteria"])}
    # By label: whether the first level is 0 or 1 is the server's choice.
    numbered = [(levels[each["label"]], float(each["probability"])) for each in answer["probabilities"]]
    return max(numbered, key=lambda each: each[1])[0], numbered


def _write_answer(question: Mapping[str, Json], answer: StudentCompletion, name: str) -> dict[str, Any]:
    spread, kind = answer.spread(name), question["type"]
    head = {"type": kind, "name": question.get("name")}
    if kind == "predicate":
        return {**head, "probability": probability_of_true(spread)}
    if kind == "choice":
        spread = complete_probabilities(spread, [each["value"] for each in question["choices"]])
        values = [{"value": value, "probability": round_probability(share)} for value, share in spread]
        return {
            **head,
            "choice": answer.value[name],
            "confidence": confidence_of_choice(spread),
            "probabilities": values,
        }
    shares = dict(spread)
    levels = [shares.get(number, 0.0) for number in range(len(question["levels"]))]
    named = [
        {"value": number, "label": each["label"], "probability": round_probability(levels[number])}
        for number, each in enumerate(question["levels"])
    ]
    return {
        **head,
        "score": round_probability(expected_level(levels)),
        "confidence": confidence_of_score(levels),
        "probabilities": named,
    }
