"""OpenAI's embeddings and list of models: POST /v1/embeddings, GET /v1/models, GET /v1/models/{model}; and
the same as Azure's clients ask for them, by /openai/deployments/{model} and /openai/v1.

E inputs, D width of a vector.
"""

import base64
from datetime import UTC, datetime
from typing import Any, Literal

import numpy as np
from fastapi import APIRouter, Request, Response
from pydantic import Field, StrictInt

from bertsmith.serving.operations.operation import LongText
from bertsmith.serving.protocols.routing import (
    ClientsBody,
    InvalidBody,
    JsonResponse,
    ListOf,
    ModelName,
    Protocol,
    ask,
    json_response,
    note,
)
from bertsmith.serving.refusals import InvalidRequest, Refusal, RequestTooLarge, UnknownPath
from bertsmith.serving.served_model import ServedModel
from bertsmith.serving.service import Service

_MOST_INPUTS = 2048
_STATUSES = {413: 400, 422: 400}  # which OpenAI doesn't use for these
_TYPES = {401: "invalid_request_error", 403: "permission_error", 429: "rate_limit_error"}
_CODES = {
    "text_too_long": "context_length_exceeded",
    "unauthorized": "invalid_api_key",
    "overloaded": "rate_limit_exceeded",
}


class EmbeddingsBody(ClientsBody):
    """`input`: a text, its token ids, or several of either. Ours are `kind`, query or document for a model
    that tells them apart, or `prompt_name`, one of its prompts, and `long_text`, what becomes of a text that
    is too long, an error unless said.
    """

    input: str | ListOf[StrictInt] | ListOf[str] | ListOf[ListOf[StrictInt]]
    model: str | None = None
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = Field(None, ge=1)
    user: str | None = None
    kind: Literal["query", "document"] | None = None
    prompt_name: str | None = None
    long_text: LongText = "error"


def error_body(refusal: Refusal) -> dict[str, Any]:
    """OpenAI's error envelope: {"error": {"message", "type", "param", "code"}}."""
    status = status_of(refusal)
    location = refusal.location[1:] if isinstance(refusal, InvalidBody) else ()
    default_type = "invalid_request_error" if status < 500 else "server_error"
    return {
        "error": {
            "message": refusal.message,
            "type": _TYPES.get(status, default_type),
            "param": str(location[0]) if location else None,
            "code": _CODES.get(refusal.code, refusal.code),
        }
    }


def status_of(refusal: Refusal) -> int:
    """The status as OpenAI has it: 400 for anything wrong with a request."""
    return _STATUSES.get(refusal.status, refusal.status)


def add_routes(router: APIRouter, service: Service) -> None:
    @router.post("/v1/embeddings", summary="Vectors, as OpenAI has them")
    @router.post("/openai/v1/embeddings", include_in_schema=False)
    async def embeddings(body: EmbeddingsBody, request: Request) -> Response:
        return await answer_embeddings(body, request, body.model)

    @router.post("/openai/deployments/{model:model}/embeddings", summary="Vectors, as Azure has them")
    @router.post("/v1/engines/{model:model}/embeddings", include_in_schema=False)  # of clients before 2023
    async def embeddings_of(body: EmbeddingsBody, request: Request, model: ModelName) -> Response:
        return await answer_embeddings(body, request, model)  # the path's, whatever the body names

    async def answer_embeddings(body: EmbeddingsBody, request: Request, model: str | None) -> Response:
        answer = await ask(
            service,
            request,
            _read_inputs(body.input),
            model,
            "embed",
            body.long_text,
            kind=body.kind,
            prompt_name=body.prompt_name,
            dimensions=body.dimensions,
        )
        data: list[dict[str, Any]] = []
        for number, vector in enumerate(answer.results):  # (D,)
            embedding: Any = np.ascontiguousarray(vector)
            if body.encoding_format == "base64":  # its bytes: float32, the lowest byte first
                embedding = base64.b64encode(np.asarray(vector, "<f4").tobytes()).decode("ascii")
            data.append({"object": "embedding", "index": number, "embedding": embedding})
        usage = {"prompt_tokens": answer.total_tokens, "total_tokens": answer.total_tokens}
        content = {"object": "list", "data": data, "model": answer.model.name, "usage": usage}
        return await json_response(content, note(request, answer))

    @router.get("/v1/models", summary="The models, for clients of OpenAI and of System One")
    @router.get("/openai/v1/models", include_in_schema=False)
    @router.get("/openai/models", include_in_schema=False)
    async def models() -> Response:
        described = []
        for model in service.models:  # as System One lists them
            labels = ", ".join(model.labels[:20]) + (", …" if len(model.labels) > 20 else "")
            written = datetime.fromtimestamp(model.written, UTC)
            described.append(
                {
                    "name": model.name,
                    "description": f"{model.task}: {labels}" if labels else model.task,
                    "release_date": written.date().isoformat(),
                }
            )
        data = [_describe_model(model) for model in service.models]
        return JsonResponse({"object": "list", "data": data, "models": described})

    @router.get("/v1/models/{model:model}", summary="One model")
    @router.get("/openai/v1/models/{model:model}", include_in_schema=False)
    @router.get("/openai/models/{model:model}", include_in_schema=False)
    async def one(model: ModelName) -> Response:
        return JsonResponse(_describe_model(service.models[model]))

    @router.post("/v1/chat/completions", include_in_schema=False)
    @router.post("/openai/v1/chat/completions", include_in_schema=False)
    @router.post("/openai/deployments/{model:model}/chat/completions", include_in_schema=False)
    async def chat(request: Request) -> Response:
        raise UnknownPath(
            f"There is no POST {request.url.path[:200]} here: these models write no text. Vectors are at "
            "/v1/embeddings, typed questions at /v1/decisions; `bertsmith mirror serve` answers chats."
        )


PROTOCOL = Protocol("OpenAI", add_routes, error_body, status_of)


def _read_inputs(inputs: str | list[int] | list[str] | list[list[int]]) -> list[Any]:
    """The list of inputs, each a text or its token ids. Raises InvalidRequest, RequestTooLarge."""
    if isinstance(inputs, str):
        return [inputs]
    if not inputs or [] in inputs:
        raise InvalidRequest("input has no tokens. Send a text, or several.")
    if isinstance(inputs[0], int):
        return [inputs]
    if len(inputs) > _MOST_INPUTS:
        raise RequestTooLarge(
            f"input has {len(inputs):,} texts; at most {_MOST_INPUTS:,} are taken at a time."
        )
    return list(inputs)


def _describe_model(model: ServedModel) -> dict[str, Any]:
    """A model in OpenAI's list, with the fields that are ours."""
    return {
        "id": model.name,
        "object": "model",
        "created": int(model.written),
        "owned_by": "bertsmith",
        "task": model.task,
        "operations": list(model.operations),
        "max_length": model.max_length,
        "version": model.version,
    }
