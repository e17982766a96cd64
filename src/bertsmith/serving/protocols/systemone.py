"""System One: POST /v1/systemone, typed questions about a state, answered by fine-tuned heads. A request with
a question that no head can answer is refused, naming the question's id. GET /v1/models is in openai.py: its
response has the lists of both APIs.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Request, Response
from pydantic import BeforeValidator, Discriminator, Field, Tag, model_validator

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
from bertsmith.serving.protocols.routing import (
    ClientsBody,
    InvalidBody,
    JsonResponse,
    Protocol,
    StrictBody,
)
from bertsmith.serving.refusals import Refusal, UnsupportedRequest
from bertsmith.serving.service import Service

_MOST_QUESTIONS = 400


class Noul(StrictBody):
    """Whether something holds. The label in question is the question's id, its criterion of true, or its
    instructions.
    """

    type: Literal["noul"]
    instructions: Any = None
    criteria: Any = None

    @model_validator(mode="after")
    def _check_has_text(self) -> "Noul":
        if self.instructions is None and self.criteria is None:
            raise ValueError("a noul needs instructions or criteria")
        return self

    def as_head_question(self, name: str) -> HeadQuestion:
        """The question in the form that `find_heads` takes."""
        true = self.criteria.get("true") if isinstance(self.criteria, dict) else self.criteria
        label_candidates = tuple(text for text in (true, self.instructions) if isinstance(text, str))
        return HeadQuestion("label", name, label_candidates=label_candidates)


class Choice(StrictBody):
    """One of the keys of `criteria`."""

    type: Literal["choice"]
    instructions: Any = None
    criteria: dict[str, Any] = Field(min_length=1, max_length=255)

    def as_head_question(self, name: str) -> HeadQuestion:
        """The question in the form that `find_heads` takes."""
        return HeadQuestion("choice", name, tuple(self.criteria))


class Score(StrictBody):
    """How far up the levels of `criteria`, low to high."""

    type: Literal["score"]
    instructions: Any = None
    criteria: list[Any] = Field(min_length=2, max_length=10)

    def as_head_question(self, name: str) -> HeadQuestion:
        """The question in the form that `find_heads` takes."""
        return HeadQuestion("score", name, tuple(as_text(level) for level in self.criteria))


AnyQuestion = Annotated[
    Annotated[Noul, Tag("noul")] | Annotated[Choice, Tag("choice")] | Annotated[Score, Tag("score")],
    Discriminator(question_type),
]


def _check_question_count(questions: Any) -> Any:
    """Checks the number of questions before any of them is parsed."""
    if isinstance(questions, dict) and not 1 <= len(questions) <= _MOST_QUESTIONS:
        raise ValueError(f"expected 1 to {_MOST_QUESTIONS} questions, found {len(questions)}")
    return questions


class SystemOneBody(ClientsBody):
    """`state`: a text, or JSON. `model`: a served model, or auto, where each question finds its own."""

    state: str | dict[str, Any] | list[Any]
    questions: Annotated[dict[str, AnyQuestion], BeforeValidator(_check_question_count)]
    model: str | None = None


class UnanswerableQuestions(UnsupportedRequest):
    """Questions that no head here answers, by id, and why."""

    code = "unanswerable"

    def __init__(self, reasons: Mapping[str, str]) -> None:
        super().__init__(" ".join(reasons.values()))
        self.reasons = reasons


def error_body(refusal: Refusal) -> dict[str, Any]:
    """FastAPI's: {"detail": [{"loc", "msg", "type"}]} for a body, {"detail": text} for the rest."""
    if isinstance(refusal, UnanswerableQuestions):
        return {
            "detail": [
                {"loc": ["body", "questions", name], "msg": reason, "type": refusal.code}
                for name, reason in refusal.reasons.items()
            ]
        }
    if refusal.status == 422:
        location = refusal.location if isinstance(refusal, InvalidBody) else ("body",)
        return {"detail": [{"loc": list(location), "msg": refusal.message, "type": refusal.code}]}
    return {"detail": refusal.message}


def add_routes(router: APIRouter, service: Service) -> None:
    @router.post("/v1/systemone", summary="Typed questions, as System One has them")
    async def system_one(body: SystemOneBody, request: Request) -> Response:
        questions = [question.as_head_question(name) for name, question in body.questions.items()]
        heads = find_heads(questions, service.models, body.model)
        _require_replies(body.questions, heads)  # before anything is computed
        replies = await ask_heads(service, request, heads, body.state)
        _require_replies(body.questions, replies.replies)
        answers = {
            name: _format_reply(question, reply)
            for (name, question), reply in zip(body.questions.items(), replies.replies, strict=True)
            if isinstance(reply, HeadReply)
        }
        content = {
            "model": replies.model(body.model),
            "answers": answers,
            "usage": {"input_tokens": replies.tokens, "output_tokens": 0},
        }
        return JsonResponse(content, headers=replies.headers(request))


PROTOCOL = Protocol("System One", add_routes, error_body)


def _format_reply(question: Noul | Choice | Score, reply: HeadReply) -> dict[str, Any]:
    """The answer to one question as System One has it."""
    if isinstance(question, Noul):
        return {"type": "noul", "noul": round(reply.value, DIGITS)}
    probabilities = [round(probability, DIGITS) for probability in reply.probabilities]
    confidence = round(reply.confidence, DIGITS)
    if isinstance(question, Choice):
        options = list(question.criteria)
        return {
            "type": "choice",
            "choice": options[int(reply.value)],
            "confidence": confidence,
            "probabilities": dict(zip(options, probabilities, strict=True)),
        }
    return {
        "type": "score",
        "score": round(reply.value, DIGITS),
        "confidence": confidence,
        "legend": {str(number): as_text(level) for number, level in enumerate(question.criteria)},
        "probabilities": {str(number): probability for number, probability in enumerate(probabilities)},
    }


def _require_replies(questions: Mapping[str, Any], replies: Sequence[Any]) -> None:
    """Raises UnanswerableQuestions if any question has a reason in place of a head or a reply."""
    pairs = zip(questions, replies, strict=True)
    reasons = {name: reply.reason for name, reply in pairs if isinstance(reply, NoAnswer)}
    if reasons:
        raise UnanswerableQuestions(reasons)
