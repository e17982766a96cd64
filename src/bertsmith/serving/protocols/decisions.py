"""OpenAI's decisions: POST /v1/decisions, typed questions about an input, answered by fine-tuned heads. One
that no head answers has a refusal in its place, with the `reason`, which is ours.

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
    Unanswerable,
    as_text,
    ask_heads,
    find_heads,
    type_of,
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

    def question(self) -> HeadQuestion:
        """For the heads."""
        said = (self.instructions,) if isinstance(self.instructions, str) else ()
        return HeadQuestion("label", self.name, labels=said)


class Option(StrictBody):
    """A text or a truth value; the two differ even where they are written alike."""

    value: StrictStr | StrictBool
    description: str | None = None


class Choice(NamedQuestion):
    """One of the choices."""

    type: Literal["choice"]
    choices: ListOf[Option] = Field(min_length=1, max_length=255)

    def question(self) -> HeadQuestion:
        """For the heads: a truth value is a label written so."""
        values = [each.value for each in self.choices]
        labels = [value if isinstance(value, str) else str(value).lower() for value in values]
        return HeadQuestion("choice", self.name, tuple(labels))


class Level(StrictBody):
    """One of several, low to high."""

    label: str
    description: str | None = None


class Score(NamedQuestion):
    """How far up the levels."""

    type: Literal["score"]
    levels: ListOf[Level] = Field(min_length=2, max_length=255)

    def question(self) -> HeadQuestion:
        """For the heads."""
        return HeadQuestion("score", self.name, tuple(each.label for each in self.levels))


AnyQuestion = Annotated[
    Annotated[Predicate, Tag("predicate")]
    | Annotated[Choice, Tag("choice")]
    | Annotated[Score, Tag("score")],
    Discriminator(type_of),
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
        counts = Counter(each.name for each in body.questions if each.name is not None)
        for name, count in counts.most_common(1):  # an answer is known by its question's name
            if count > 1:
                raise InvalidRequest(f"Two questions have the name {name[:80]!r}.")
        questions = [each.question() for each in body.questions]
        given = body.input if isinstance(body.input, str) else _input(body.input)
        heads = find_heads(questions, service.models, body.model)
        found = await ask_heads(service, request, heads, given)
        answers = [_shown(*each) for each in zip(body.questions, found.replies, strict=True)]
        content = {
            "model": found.model(body.model),
            "answers": answers,
            "usage": {
                "input_tokens": found.tokens,
                "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
                "output_tokens": 0,
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": found.tokens,
            },
        }
        return JsonResponse(content, headers=found.headers(request))


PROTOCOL = Protocol("OpenAI", add_routes, openai.error_body, openai.status_of)


def _shown(question: Predicate | Choice | Score, said: HeadReply | Unanswerable) -> dict[str, Any]:
    if isinstance(said, Unanswerable):
        return {"type": "refusal", "name": question.name, "reason": said.reason}
    if isinstance(question, Predicate):
        return {"type": "predicate", "name": question.name, "probability": round(said.value, DIGITS)}
    shares = [round(each, DIGITS) for each in said.probabilities]
    head = {"name": question.name, "confidence": round(said.confidence, DIGITS)}
    if isinstance(question, Choice):
        pairs = zip(question.choices, shares, strict=True)
        return {
            "type": "choice",
            "choice": question.choices[int(said.value)].value,
            "probabilities": [{"value": each.value, "probability": share} for each, share in pairs],
            **head,
        }
    levels = enumerate(zip(question.levels, shares, strict=True))
    return {
        "type": "score",
        "score": round(said.value, DIGITS),
        "probabilities": [
            {"value": number, "label": level.label, "probability": share} for number, (level, share) in levels
        ],
        **head,
    }


def _input(messages: Sequence[Message]) -> Any:
    """The user's messages, a line between two. Raises Unsupported for what no head here reads."""
    parts = list[Any]()
    for message in messages:
        kind = message.type or "message"
        if kind != "message" or message.role != "user":
            what = kind if kind != "message" else f"a message of the role {message.role}"
            raise UnsupportedRequest(f"input has {what[:80]}: the models here read a user's messages alone.")
        _require_no_more("A message", message.model_extra or {}, Message.model_fields)
        if isinstance(message.content, str):
            parts.append(message.content)
            continue
        for part in message.content or []:
            match part:
                case {"type": "input_text", "text": str() as read, **more}:
                    _require_no_more("A part of type input_text", more, ("type", "text"))
                case {"type": "input_json", "data": dict() | list() as read, **more}:
                    _require_no_more("A part of type input_json", more, ("type", "data"))
                case {"type": "input_image"}:
                    raise UnsupportedRequest("input has an image: the models here read text alone.")
                case _:
                    raise InvalidRequest(
                        "A part of input must be input_text with text, or input_json with data."
                    )
            parts.append(read)
    if len(parts) == 1 and not isinstance(parts[0], str):
        return parts[0]
    if not parts:
        raise InvalidRequest("input has no text.")
    return "\n".join(as_text(part) for part in parts)


def _require_no_more(what: str, more: Mapping[str, Any], known: Iterable[str]) -> None:
    """Raises InvalidRequest for a key that would be ignored, but for what changes no answer."""
    for name, value in more.items():
        if value is not None and name != "prompt_cache_breakpoint":
            raise InvalidRequest(f"{what} of input has no {name[:80]!r}: {', '.join(known)}.")
