"""System One: typed questions about a state, each answered with probabilities.

The questions become a schema with a field each: a noul is a boolean, a choice one of its options, a score the
number of its level. Source: the specification of TypeSafe Jev (2026-09), as LitServe and the client have it.
"""

from collections.abc import Iterable, Mapping

from bertsmith.mirror.call import Answered, Asked, Json, Message, NotMirrored
from bertsmith.mirror.formats.reading import as_json, count, object_of, subjects_of, text_of, word
from bertsmith.mirror.streams import Event

NAME, PATH = "systemone", "/systemone"


def read_request(body: Mapping[str, Json]) -> Asked:
    """Raises NotMirrored saying why."""
    questions = object_of(body.get("questions"), "no-schema")
    if not questions or "state" not in body:
        raise NotMirrored("malformed-request")
    state = body["state"]
    return Asked(
        NAME,
        word(body.get("model")),
        (Message("user", (state if isinstance(state, str) else as_json(state),)),),
        "",
        {
            "type": "object",
            "properties": {
                name: _field(object_of(each, "malformed-request")) for name, each in questions.items()
            },
        },
        "questions",
        {},
        subjects_of(body),
    )


def _field(question: Mapping[str, Json]) -> dict[str, Json]:
    kind, criteria = question.get("type"), question.get("criteria")
    said = {"description": question.get("instructions"), "criteria": criteria}
    if kind == "noul":
        return {"type": "boolean", **said}
    if kind == "choice":
        return {"enum": list(object_of(criteria, "malformed-request")), **said}
    if kind == "score" and isinstance(criteria, list):
        return {"type": "integer", "enum": list(range(len(criteria))), **said}
    raise NotMirrored("unknown-question")


def read_answer(asked: Asked, body: Mapping[str, Json]) -> Answered:
    """Raises NotMirrored saying why."""
    answers = object_of(body.get("answers"), "malformed-answer")
    value, probabilities = dict[str, Json](), dict[str, list[tuple[Json, float]]]()
    for name, field in asked.schema["properties"].items():
        answer = object_of(answers.get(name), "no-answer")
        try:
            spread = _probabilities(answer, field)
        except (KeyError, TypeError, ValueError):
            raise NotMirrored("malformed-answer") from None
        probabilities[f"$.{name}"] = spread
        value[name] = max(spread, key=lambda each: each[1])[0]
        if answer.get("type") == "choice":
            value[name] = text_of(answer.get("choice"), "malformed-answer")  # of equals, the one it says
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


def _probabilities(answer: Mapping[str, Json], field: Mapping[str, Json]) -> list[tuple[Json, float]]:
    if answer["type"] == "noul":
        yes = float(answer["noul"])
        return [(True, yes), (False, 1 - yes)]
    given = answer["probabilities"]
    options = field["enum"]
    if answer["type"] == "score":
        return [(level, float(given[str(level)])) for level in options]
    return [(option, float(given[option])) for option in options]


def join(events: Iterable[Event]) -> Mapping[str, Json]:
    """It has no streams."""
    raise NotMirrored("streamed")


def error_body(message: str, code: str) -> Json:
    """FastAPI's envelope, which its clients read."""
    return {"detail": f"{message} ({code})"}
