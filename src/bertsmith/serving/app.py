"""The service as an ASGI application: routes of each protocol, keys, limits, health, metrics, the page."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI
from starlette.requests import Request
from starlette.types import Receive, Scope, Send

import bertsmith
from bertsmith.serving.body_reading import BodyReading
from bertsmith.serving.models import Models
from bertsmith.serving.protocols import decisions, hugging_face, openai, ours, ranking, systemone, tei
from bertsmith.serving.protocols.routing import refuse
from bertsmith.serving.refusals import Refusal
from bertsmith.serving.service import Service
from bertsmith.serving.settings import ServingSettings

PROTOCOLS = (
    openai,
    tei,
    ranking,
    hugging_face,
    systemone,
    decisions,
    ours,
)  # the last one has /v1/{model}, which would take the others' paths


def make_app(settings: ServingSettings) -> FastAPI:
    """Models are opened when the server begins with it."""
    service = Service(settings, Models(settings))

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        service.models.open_all()
        service.start()
        yield
        await service.stop()

    app = FastAPI(
        title="Bertsmith",
        version=bertsmith.__version__,
        lifespan=lifespan,
        docs_url=None,  # their pages are fetched from the internet
        redoc_url=None,
    )
    app.state.service = service
    for protocol in PROTOCOLS:
        app.include_router(protocol.routes(service))
    app.add_middleware(BodyReading, most_bytes=settings.max_body_bytes, refuse=_refuse)
    return app


async def _refuse(refusal: Refusal, scope: Scope, receive: Receive, send: Send) -> None:
    scope.setdefault("state", {})
    response: Any = refuse(refusal, ours.error_body, Request(scope, receive))
    await response(scope, receive, send)
