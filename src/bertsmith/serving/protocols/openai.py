"""OpenAI's embeddings and list of models: POST /v1/embeddings, GET /v1/models, GET /v1/models/{model}.

E inputs, D width of a vector.
"""

import base64
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

import numpy as np
from fastapi import APIRouter, Path, Request, Response
from pydantic import Field, StrictInt

from bertsmith.serving.operations.operation import LongText
from bertsmith.serving.protocols.routing import (
    ClientsBody,
    InvalidBody,
    JsonResponse,
    ListOf,
    Protocol,
    ask,
    json_response,
    note,
)
from bertsmith.serving.refusals import InvalidRequest, Refusal, RequestTooLarge
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
    async def embeddings(body: EmbeddingsBody, request: Request) -> Response:
        answer = await ask(
            service,
            request,
            _read_inputs(body.input),
            body.model,
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

    @router.get("/v1/models/{model}", summary="One model")
    async def one(model: Annotated[str, Path(max_length=64)]) -> Response:
        return JsonResponse(_describe_model(service.models[model]))


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
