"""Our own route: POST /v1/{model}, which answers with all fields of a task's predictions."""

from typing import Any

from fastapi import APIRouter, Request, Response
from pydantic import Field

from bertsmith.serving.operations.operation import LongText
from bertsmith.serving.protocols.routing import (
    ModelName,
    Protocol,
    StrictBody,
    json_response,
    make_options,
    note,
    read_api_key_name,
    read_timeout,
)
from bertsmith.serving.service import Service, ServiceRequest


class Body(StrictBody):
    """`inputs`: one or several texts, pairs of texts, lists of words: what the model's task reads.

    `operation`: predict, embed, similarity, embed_tokens, rerank, fill_mask or search; the model's usual one
    where it isn't said. `long_text`: what becomes of a text that the model can't read at once. `options` are
    the operation's: top, kind, prompt_name, dimensions, normalise, source, query, k, mode, where.
    """

    inputs: Any
    operation: str | None = None
    long_text: LongText | None = None
    timeout_ms: float | None = Field(None, gt=0)
    options: dict[str, Any] = Field({})


def add_routes(router: APIRouter, service: Service) -> None:
    @router.post("/v1/{model:model}", summary="Ask a model")
    async def ask(model: ModelName, body: Body, request: Request) -> Response:
        is_single = not isinstance(body.inputs, list)
        answer = await service.answer(
            ServiceRequest(
                [body.inputs] if is_single else body.inputs,
                model,
                body.operation,
                make_options(body.long_text, body.options),
                body.timeout_ms if body.timeout_ms is not None else read_timeout(request),
                read_api_key_name(request),
            )
        )
        results = list(answer.results)
        content = {
            "model": answer.model.name,
            "version": answer.model.version,
            "task": answer.model.task,
            "results": results[0] if is_single else results,
            "input_tokens": answer.input_tokens[0] if is_single else answer.input_tokens,
            "truncated": answer.truncated[0] if is_single else answer.truncated,
        }
        return await json_response(content, note(request, answer))


PROTOCOL = Protocol("bertsmith", add_routes)
