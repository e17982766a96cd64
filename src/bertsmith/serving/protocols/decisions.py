"""OpenAI's decisions: POST /v1/decisions, typed questions about an input, answered by fine-tuned heads. A
question that no head answers gets a refusal in its place; the refusal's `reason` is our addition.

Errors are OpenAI's.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, ConfigDict, Discriminator, Field, StrictBool, StrictStr, Tag

from bertsmith.serving.protocols import openai
from bertsmith.serving.protocols.questions import (
    DIGITS,
    HeadQuestion,
    HeadReply,
    NoAnswer,
    as_text,
    ask_heads,
    find_heads,
    question_type,
)
from bertsmith.serving.protocols.routing import ClientsBody, JsonResponse, ListOf, Protocol, StrictBody
from bertsmith.serving.refusals import InvalidRequest, UnsupportedRequest
from bertsmith.serving.service import Service


class NamedQuestion(StrictBody):
    """What all questions have. The instructions name a label only where they are one."""

    name: str | None = None
    instructions: str | ListOf[Any]


class Predicate(NamedQuestion):
    """Whether something holds: the label that is the question's name, or its instructions."""

    type: Literal["predicate"]

    def as_head_question(self) -> HeadQuestion:
        """The question in the form that `find_heads` takes."""
        label_candidates = (self.instructions,) if isinstance(self.instructions, str) else ()
        return HeadQuestion("label", self.name, label_candidates=label_candidates)


class Option(StrictBody):
    """A text or a truth value; the two differ even where they are written alike."""

    value: StrictStr | StrictBool
    description: str | None = None


class Choice(NamedQuestion):
    """A question that is answered by one of its choices."""

    type: Literal["choice"]
    choices: ListOf[Option] = Field(min_length=1, max_length=255)

    def as_head_question(self) -> HeadQuestion:
        """The question in the form that `find_heads` takes: a truth value is the label "true" or "false"."""
        values = [option.value for option in self.choices]
        labels = [value if isinstance(value, str) else str(value).lower() for value in values]
        return HeadQuestion("choice", self.name, tuple(labels))


class Level(StrictBody):
    """One of several, low to high."""

    label: str
    description: str | None = None


class Score(NamedQuestion):
    """A question that is answered by a number: how far up the levels."""

    type: Literal["score"]
    levels: ListOf[Level] = Field(min_length=2, max_length=255)

    def as_head_question(self) -> HeadQuestion:
        """The question in the form that `find_heads` takes."""
        return HeadQuestion("score", self.name, tuple(level.label for level in self.levels))


AnyQuestion = Annotated[
    Annotated[Predicate, Tag("predicate")]
    | Annotated[Choice, Tag("choice")]
    | Annotated[Score, Tag("score")],
    Discriminator(question_type),
]


class Message(BaseModel):
    """`content`: a text, or parts of type input_text or input_json. What messages of other kinds have is told
    by their kind.
    """

    model_config = ConfigDict(strict=True, extra="allow")

    role: str | None = None
    type: str | None = None
    content: str | ListOf[dict[str, Any]] | None = None


class DecisionsBody(ClientsBody):
    """`input`: a text, or a user's messages. `model`: a served model, or auto, where each question finds its
    own.
    """

    model: str
    input: str | ListOf[Message]
    questions: ListOf[AnyQuestion] = Field(min_length=1, max_length=400)


def add_routes(router: APIRouter, service: Service) -> None:
    @router.post("/v1/decisions", summary="Typed questions, as OpenAI has them")
    async def decisions(body: DecisionsBody, request: Request) -> Response:
        counts = Counter(question.name for question in body.questions if question.name is not None)
        for name, count in counts.most_common(1):  # clients find an answer by its question's name
            if count > 1:
                raise InvalidRequest(f"Two questions have the name {name[:80]!r}.")
        questions = [question.as_head_question() for question in body.questions]
        state = body.input if isinstance(body.input, str) else _read_messages(body.input)
        heads = find_heads(questions, service.models, body.model)
        replies = await ask_heads(service, request, heads, state)
        answers = [_format_reply(*pair) for pair in zip(body.questions, replies.replies, strict=True)]
        content = {
            "model": replies.model(body.model),
            "answers": answers,
            "usage": {
                "input_tokens": replies.tokens,
                "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
                "output_tokens": 0,
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": replies.tokens,
            },
        }
        return JsonResponse(content, headers=replies.headers(request))


PROTOCOL = Protocol("OpenAI", add_routes, openai.error_body, openai.status_of)


def _format_reply(question: Predicate | Choice | Score, reply: HeadReply | NoAnswer) -> dict[str, Any]:
    """The answer to one question as OpenAI has it, or a refusal."""
    if isinstance(reply, NoAnswer):
        return {"type": "refusal", "name": question.name, "reason": reply.reason}
    if isinstance(question, Predicate):
        return {"type": "predicate", "name": question.name, "probability": round(reply.value, DIGITS)}
    probabilities = [round(probability, DIGITS) for probability in reply.probabilities]
    common = {"name": question.name, "confidence": round(reply.confidence, DIGITS)}
    if isinstance(question, Choice):
        options = zip(question.choices, probabilities, strict=True)
        return {
            "type": "choice",
            "choice": question.choices[int(reply.value)].value,
            "probabilities": [
                {"value": option.value, "probability": probability} for option, probability in options
            ],
            **common,
        }
    levels = enumerate(zip(question.levels, probabilities, strict=True))
    return {
        "type": "score",
        "score": round(reply.value, DIGITS),
        "probabilities": [
            {"value": number, "label": level.label, "probability": probability}
            for number, (level, probability) in levels
        ],
        **common,
    }


def _read_messages(messages: Sequence[Message]) -> Any:
    """The user's messages, joined by newlines into a text; a single JSON part as it is. Raises
    UnsupportedRequest for messages and parts that no head reads, InvalidRequest for none.
    """
    parts = list[Any]()
    for message in messages:
        kind = message.type or "message"
        if kind != "message" or message.role != "user":
            what = kind if kind != "message" else f"a message of the role {message.role}"
            raise UnsupportedRequest(f"input has {what[:80]}: the models here read a user's messages alone.")
        _check_no_extra_keys("A message", message.model_extra or {}, Message.model_fields)
        if isinstance(message.content, str):
            parts.append(message.content)
            continue
        for part in message.content or []:
            match part:
                case {"type": "input_text", "text": str() as content, **more}:
                    _check_no_extra_keys("A part of type input_text", more, ("type", "text"))
                case {"type": "input_json", "data": dict() | list() as content, **more}:
                    _check_no_extra_keys("A part of type input_json", more, ("type", "data"))
                case {"type": "input_image"}:
                    raise UnsupportedRequest("input has an image: the models here read text alone.")
                case _:
                    raise InvalidRequest(
                        "A part of input must be input_text with text, or input_json with data."
                    )
            parts.append(content)
    if len(parts) == 1 and not isinstance(parts[0], str):
        return parts[0]
    if not parts:
        raise InvalidRequest("input has no text.")
    return "\n".join(as_text(part) for part in parts)


def _check_no_extra_keys(what: str, more: Mapping[str, Any], known: Iterable[str]) -> None:
    """Raises InvalidRequest for a key that would be ignored, unless it changes no answer."""
    for name, value in more.items():
        if value is not None and name != "prompt_cache_breakpoint":
            raise InvalidRequest(f"{what} of input has no {name[:80]!r}: {', '.join(known)}.")
