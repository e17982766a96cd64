"""System One: POST /v1/systemone, typed questions about a state, answered by fine-tuned heads. A question
that none can answer is refused by its id. GET /v1/models is in openai.py: one object has both lists.

n options or levels of a question.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Request, Response
from pydantic import BeforeValidator, Discriminator, Field, Tag, model_validator

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
    def _says_something(self) -> "Noul":
        if self.instructions is None and self.criteria is None:
            raise ValueError("a noul needs instructions or criteria")
        return self

    def question(self, name: str) -> HeadQuestion:
        """For the heads."""
        true = self.criteria.get("true") if isinstance(self.criteria, dict) else self.criteria
        labels = tuple(each for each in (true, self.instructions) if isinstance(each, str))
        return HeadQuestion("label", name, labels=labels)


class Choice(StrictBody):
    """One of the keys of `criteria`."""

    type: Literal["choice"]
    instructions: Any = None
    criteria: dict[str, Any] = Field(min_length=1, max_length=255)

    def question(self, name: str) -> HeadQuestion:
        """For the heads."""
        return HeadQuestion("choice", name, tuple(self.criteria))


class Score(StrictBody):
    """How far up the levels of `criteria`, low to high."""

    type: Literal["score"]
    instructions: Any = None
    criteria: list[Any] = Field(min_length=2, max_length=10)

    def question(self, name: str) -> HeadQuestion:
        """For the heads."""
        return HeadQuestion("score", name, tuple(as_text(level) for level in self.criteria))


AnyQuestion = Annotated[
    Annotated[Noul, Tag("noul")] | Annotated[Choice, Tag("choice")] | Annotated[Score, Tag("score")],
    Discriminator(type_of),
]


def _require_few(given: Any) -> Any:
    """Before each is looked at."""
    if isinstance(given, dict) and not 1 <= len(given) <= _MOST_QUESTIONS:
        raise ValueError(f"expected 1 to {_MOST_QUESTIONS} questions, found {len(given)}")
    return given


class SystemOneBody(ClientsBody):
    """`state`: a text, or JSON. `model`: a served model, or auto, where each question finds its own."""

    state: str | dict[str, Any] | list[Any]
    questions: Annotated[dict[str, AnyQuestion], BeforeValidator(_require_few)]
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
        place = refusal.place if isinstance(refusal, InvalidBody) else ("body",)
        return {"detail": [{"loc": list(place), "msg": refusal.message, "type": refusal.code}]}
    return {"detail": refusal.message}


def add_routes(router: APIRouter, service: Service) -> None:
    @router.post("/v1/systemone", summary="Typed questions, as System One has them")
    async def system_one(body: SystemOneBody, request: Request) -> Response:
        questions = [each.question(name) for name, each in body.questions.items()]
        heads = find_heads(questions, service.models, body.model)
        _require_all(body.questions, heads)  # before anything is computed
        found = await ask_heads(service, request, heads, body.state)
        _require_all(body.questions, found.replies)
        answers = {
            name: _shown(each, said)
            for (name, each), said in zip(body.questions.items(), found.replies, strict=True)
            if isinstance(said, HeadReply)
        }
        content = {
            "model": found.model(body.model),
            "answers": answers,
            "usage": {"input_tokens": found.tokens, "output_tokens": 0},
        }
        return JsonResponse(content, headers=found.headers(request))


PROTOCOL = Protocol("System One", add_routes, error_body)


def _shown(question: Noul | Choice | Score, said: HeadReply) -> dict[str, Any]:
    if isinstance(question, Noul):
        return {"type": "noul", "noul": round(said.value, DIGITS)}
    shares = [round(each, DIGITS) for each in said.probabilities]
    confidence = round(said.confidence, DIGITS)
    if isinstance(question, Choice):
        options = list(question.criteria)
        return {
            "type": "choice",
            "choice": options[int(said.value)],
            "confidence": confidence,
            "probabilities": dict(zip(options, shares, strict=True)),
        }
    return {
        "type": "score",
        "score": round(said.value, DIGITS),
        "confidence": confidence,
        "legend": {str(number): as_text(level) for number, level in enumerate(question.criteria)},
        "probabilities": {str(number): share for number, share in enumerate(shares)},
    }


def _require_all(questions: Mapping[str, Any], found: Sequence[Any]) -> None:
    """Raises UnanswerableQuestions."""
    pairs = zip(questions, found, strict=True)
    reasons = {name: each.reason for name, each in pairs if isinstance(each, Unanswerable)}
    if reasons:
        raise UnanswerableQuestions(reasons)
