"""Re-ranking in several APIs: Cohere's /v2/rerank and /v1/rerank, and /rerank, where TEI's clients send
`texts` and those of Jina, Infinity, vLLM and LiteLLM `documents`. Each client gets the response of its own
API.

Scores are the model's: from 0 to 1 for a re-ranker or a classifier, in the labels' unit for a regression. A
document that is too long is read as the model was trained to read it, truncated or in windows.
"""

import uuid
from collections.abc import Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Request, Response
from pydantic import Discriminator, Field, Tag

from bertsmith.serving.protocols import tei
from bertsmith.serving.protocols.routing import (
    ClientsBody,
    JsonResponse,
    ListOf,
    Protocol,
    StrictBody,
    ask,
    note,
)
from bertsmith.serving.protocols.tei import labelled_logits
from bertsmith.serving.refusals import Refusal, UnsupportedRequest
from bertsmith.serving.service import Service, ServiceAnswer

_DOCUMENTS_PER_UNIT = 100  # of Cohere's search units


class Document(StrictBody):
    """A document of Cohere's first version."""

    text: str


class DocumentsBody(ClientsBody):
    """What Cohere's two versions and those who follow them send."""

    query: str
    documents: ListOf[str | Document]
    model: str | None = None
    top_n: int | None = Field(None, ge=1)
    return_documents: bool = False
    max_tokens_per_doc: int | None = Field(None, ge=1)
    max_chunks_per_doc: int | None = None
    rank_fields: ListOf[str] | None = None
    relevant_spans: Any = None
    raw_scores: bool = False


class TextsBody(tei.TruncateOptionsBody):
    """The body of a re-ranking request as Text Embeddings Inference defines it."""

    query: str
    texts: ListOf[str]
    raw_scores: bool = False
    return_text: bool = False


def _choose_body_tag(body: Any) -> str:
    """The tag of `EitherBody`: "texts" for a body with `texts`, else "documents"."""
    texts = body.get("texts") is not None if isinstance(body, dict) else isinstance(body, TextsBody)
    return "texts" if texts else "documents"


EitherBody = Annotated[
    Annotated[TextsBody, Tag("texts")] | Annotated[DocumentsBody, Tag("documents")],
    Discriminator(_choose_body_tag),
]


def error_body(refusal: Refusal) -> dict[str, Any]:
    """A refusal in Cohere's error envelope, {"message": the sentence}."""
    return {"message": refusal.message}


def status_of(refusal: Refusal) -> int:
    """The status as Cohere has it: 400 for anything wrong with a request."""
    return 400 if refusal.status in (413, 422) else refusal.status


def add_routes(router: APIRouter, service: Service) -> None:
    @router.post("/v2/rerank", summary="Re-ranking, as Cohere has it")
    async def second(body: DocumentsBody, request: Request) -> Response:
        return await _answer_ranking(service, request, body, body.model, "2")

    @router.post("/v1/rerank", summary="Re-ranking, as Cohere had it first")
    async def first(body: DocumentsBody, request: Request) -> Response:
        return await _answer_ranking(service, request, body, body.model, "1")


PROTOCOL = Protocol("Cohere", add_routes, error_body, status_of)


def add_shared_route(router: APIRouter, service: Service) -> None:
    @router.post("/rerank", summary="Re-ranking, as TEI and as Jina have it")
    async def rerank(body: EitherBody, request: Request, model: tei.ModelQuery = None) -> Response:
        if isinstance(body, DocumentsBody):
            return await _answer_ranking(service, request, body, body.model or model, "1")
        answer, scores = await _compute_scores(
            service, request, body.query, body.texts, body.model or model, body.long_text(), body.raw_scores
        )
        results: list[dict[str, Any]] = []
        for index in _argsort_descending(scores):
            text = {"text": body.texts[index]} if body.return_text else {}
            results.append({"index": index, **text, "score": scores[index]})
        headers = note(request, answer)  # also records the answer for metrics, log and trace
        return JsonResponse(results, headers=headers)


SHARED_PROTOCOL = Protocol(
    "TEI",
    add_shared_route,
    lambda refusal: {
        **tei.error_body(refusal),
        **error_body(refusal),
    },  # clients of either API find their error
    tei.status_of,
)


async def _answer_ranking(
    service: Service, request: Request, body: DocumentsBody, model: str | None, version: str
) -> Response:
    """The response to a body with `documents`, one for all clients: Cohere's keys beside those of Jina and
    vLLM (object, model, usage). `version` is only reported, in meta.api_version.
    """
    for option in ("rank_fields", "relevant_spans", "max_chunks_per_doc"):
        if getattr(body, option) is not None:
            raise UnsupportedRequest(f"{option} isn't done here. Leave it out.")
    longest = service.models.find(model, "rerank").max_length
    if body.max_tokens_per_doc is not None and body.max_tokens_per_doc < longest:
        raise UnsupportedRequest(
            f"max_tokens_per_doc = {body.max_tokens_per_doc} isn't done here: the model reads {longest} "
            "tokens of query and document. Cut the documents, or leave it out."
        )
    texts = [document if isinstance(document, str) else document.text for document in body.documents]
    answer, scores = await _compute_scores(service, request, body.query, texts, model, None, body.raw_scores)
    results: list[dict[str, Any]] = []
    for index in _argsort_descending(scores)[: body.top_n]:
        document = {"document": {"text": texts[index]}} if body.return_documents else {}
        results.append({"index": index, "relevance_score": scores[index], **document})
    units = -(-len(texts) // _DOCUMENTS_PER_UNIT)
    tokens = answer.total_tokens
    content = {
        "id": str(uuid.uuid4()),
        "object": "rerank",
        "model": answer.model.name,
        "results": results,
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
        "meta": {
            "api_version": {"version": version},
            "billed_units": {"search_units": units},
            "tokens": {"input_tokens": tokens},
        },
    }
    return JsonResponse(content, headers=note(request, answer))


async def _compute_scores(
    service: Service,
    request: Request,
    query: str,
    texts: Sequence[str],
    model_name: str | None,
    long_text: Any,
    raw: bool,
) -> tuple[ServiceAnswer, list[float]]:
    """The service's answer, and the score of each text: with `raw` its logit. Raises UnsupportedRequest for a
    model that can't re-rank, and for raw scores of a model with several classes.
    """
    model = service.models.find(model_name, "rerank")
    model.operation("rerank")  # raises UnsupportedRequest if it can't re-rank
    if not raw:
        answer = await ask(service, request, texts, model.name, "rerank", long_text, query=query)
        return answer, list(answer.results)
    if len(model.labels) > 1:
        raise UnsupportedRequest(
            f"{model.name} has {len(model.labels)} classes: a document has no one raw score."
        )
    pairs = [(query, text) for text in texts]
    answer = await ask(service, request, pairs, model.name, "predict", long_text, logits=True)
    return answer, [next(iter(labelled_logits(prediction, model).values())) for prediction in answer.results]


def _argsort_descending(scores: Sequence[float]) -> list[int]:
    """The indices of the scores, the highest score first; equal scores stay in order."""
    return sorted(range(len(scores)), key=lambda index: -scores[index])
