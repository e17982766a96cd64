"""The service as an ASGI application.

request → log, metrics → key → body → route → service → answer
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

import bertsmith
from bertsmith.serving import operation_routes
from bertsmith.serving.access import Access
from bertsmith.serving.body_reading import BodyReading
from bertsmith.serving.health import Health
from bertsmith.serving.keys import Keys
from bertsmith.serving.metrics import Metrics
from bertsmith.serving.models import Models
from bertsmith.serving.page import page
from bertsmith.serving.protocols import decisions, hugging_face, openai, ours, ranking, systemone, tei
from bertsmith.serving.protocols.routing import JsonResponse, refuse
from bertsmith.serving.refusals import Refusal, documented
from bertsmith.serving.request_log import RequestLog
from bertsmith.serving.service import Service
from bertsmith.serving.settings import ServingSettings

# The last one has /v1/{model}, which would take the others' paths.
PROTOCOLS = (openai, tei, ranking, hugging_face, systemone, decisions, ours)


def make_app(settings: ServingSettings, models: Models | None = None) -> FastAPI:
    """`models` are opened already; without them they are when the server begins."""
    service = Service(settings, models or Models(settings))
    health, metrics = Health(service), Metrics(service.queue)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        if models is None:
            service.models.open_all()
        service.start()
        health.start()
        measuring = asyncio.ensure_future(metrics.keep_fresh())
        try:
            yield
        finally:
            measuring.cancel()
            await health.stop()
            await service.stop()

    app = FastAPI(
        title="Bertsmith",
        version=bertsmith.__version__,
        lifespan=lifespan,
        docs_url=None,  # their pages are fetched from the internet
        redoc_url=None,
        exception_handlers={HTTPException: _not_found},
        responses=documented(lambda refusal: refusal.status),  # before any route is known
        telemetry={"logs": settings.log_texts},  # which say what was refused, texts among it
    )
    app.state.service, app.state.health, app.state.metrics = service, health, metrics
    app.include_router(operation_routes.routes(service, health, metrics))
    app.include_router(page.routes(service))
    for protocol in PROTOCOLS:
        app.include_router(protocol.routes(service))
    app.add_middleware(BodyReading, most_bytes=settings.max_body_bytes, refuse=refuse_early)
    app.add_middleware(Access, keys=Keys(settings.keys_file), refuse=refuse_early)
    app.add_middleware(RequestLog, settings=settings, metrics=metrics)
    return app


async def refuse_early(refusal: Refusal, scope: Scope, receive: Receive, send: Send) -> None:
    """Before any route is known."""
    scope.setdefault("state", {})
    response: Any = refuse(refusal, ours.error_body, Request(scope, receive))
    await response(scope, receive, send)


async def _not_found(request: Request, error: Exception) -> Response:
    """A path or a method that there isn't."""
    assert isinstance(error, HTTPException)
    said = f"There is no {request.method} {request.url.path[:200]} here. /openapi.json lists what there is."
    body = {"error": {"code": "not_found", "message": said, "retry_after": None}}
    return JsonResponse(body, error.status_code, error.headers)
