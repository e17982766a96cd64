"""OpenAI's decisions: questions in a list, answered in its order.

A predicate becomes a boolean field, a choice one of its values, a score the number of its level; a question
without a name is called by its place. Source: openai-python's types/decision.py (beta of 2026-10).
"""

from collections.abc import Iterable, Mapping

from bertsmith.mirror.call import Answered, Asked, Json, Message, NotMirrored
from bertsmith.mirror.formats.openai_chat import error_body
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
from bertsmith.mirror.streams import Event

__all__ = ["NAME", "PATH", "error_body", "join", "message_of", "read_answer", "read_request"]

NAME, PATH = "openai-decisions", "/decisions"
_CALLS = ("function_call", "custom_tool_call")
_OUTPUTS = ("function_call_output", "custom_tool_call_output")


def read_request(body: Mapping[str, Json]) -> Asked:
    """Raises NotMirrored saying why."""
    questions = list_of(body.get("questions"), "no-schema")
    given = body.get("input")
    messages = (
        [Message("user", (given,))]
        if isinstance(given, str)
        else [
            message_of(object_of(each, "malformed-request")) for each in list_of(given, "malformed-request")
        ]
    )
    fields = {
        name_of(each, place): _field(object_of(each, "malformed-request"))
        for place, each in enumerate(questions)
    }
    if len(fields) != len(questions) or not fields:
        raise NotMirrored("malformed-request")
    schema = {"type": "object", "properties": fields}
    return Asked(NAME, model_of(body), tuple(messages), "", schema, "questions", {}, subjects_of(body))


def name_of(question: Json, place: int) -> str:
    """`place` from 0."""
    return word(object_of(question, "malformed-request").get("name")) or f"question_{place + 1}"


def message_of(item: Mapping[str, Json]) -> Message:
    """Of an item of the input. Raises NotMirrored."""
    kind = item.get("type") or "message"
    if kind in _CALLS:
        return Message(
            "assistant", (as_json({key: item[key] for key in item if key in ("name", "arguments", "input")}),)
        )
    if kind in _OUTPUTS:
        return Message("tool", texts_of(item.get("output")))
    content = item.get("content")
    if isinstance(content, list):
        content = [_json_as_text(part) for part in content]
    return Message(text_of(item.get("role")), texts_of(content))


def _json_as_text(part: Json) -> Json:
    if isinstance(part, dict) and part.get("type") == "input_json":
        return as_json(part.get("data"))
    return part


def _field(question: Mapping[str, Json]) -> dict[str, Json]:
    kind, said = question.get("type"), {"description": question.get("instructions")}
    if kind == "predicate":
        return {"type": "boolean", **said}
    if kind == "choice":
        choices = list_of(question.get("choices"), "malformed-request")
        values = [object_of(each, "malformed-request").get("value") for each in choices]
        return {"enum": values, **said, "criteria": choices}
    if kind == "score":
        levels = list_of(question.get("levels"), "malformed-request")
        return {"type": "integer", "enum": list(range(len(levels))), **said, "criteria": levels}
    raise NotMirrored("unknown-question")


def read_answer(asked: Asked, body: Mapping[str, Json]) -> Answered:
    """A question that was refused has no field in the value. Raises NotMirrored saying why."""
    answers = list_of(body.get("answers"), "malformed-answer")
    fields = asked.schema["properties"]
    if len(answers) != len(fields):
        raise NotMirrored("malformed-answer")
    value, probabilities = dict[str, Json](), dict[str, list[tuple[Json, float]]]()
    for (name, field), given in zip(fields.items(), answers, strict=True):
        answer = object_of(given, "malformed-answer")
        if answer.get("type") == "refusal":
            continue
        try:
            value[name], probabilities[f"$.{name}"] = _read(answer, field)
        except (KeyError, TypeError, ValueError):
            raise NotMirrored("malformed-answer") from None
    if not value:
        raise NotMirrored("refusal")
    usage = body.get("usage")
    return Answered(
        value,
        word(body.get("model")),
        "",
        word(body.get("id")),
        count(usage, "input_tokens"),
        count(usage, "output_tokens"),
        probabilities,
    )


def _read(answer: Mapping[str, Json], field: Mapping[str, Json]) -> tuple[Json, list[tuple[Json, float]]]:
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


def join(events: Iterable[Event]) -> Mapping[str, Json]:
    """It has no streams."""
    raise NotMirrored("streamed")
