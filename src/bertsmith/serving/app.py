"""The service as an ASGI application.

request → log, metrics → key → body → route → service → answer
"""

import asyncio
import re
from collections import defaultdict
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from fastapi import APIRouter, FastAPI
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

import bertsmith
from bertsmith.door import own_object
from bertsmith.errors import InputError
from bertsmith.serving.admission import Access, BodyReader, Keys
from bertsmith.serving.models import Models
from bertsmith.serving.monitoring import Health, Metrics, RequestLog, operators_router
from bertsmith.serving.page.page import page_router
from bertsmith.serving.protocols import decisions, hugging_face, openai, ours, ranking, systemone, tei
from bertsmith.serving.protocols.routing import JsonResponse, Protocol, our_error_body, refuse, router_of
from bertsmith.serving.refusals import Refusal, WrongMethod, documented
from bertsmith.serving.service import Service
from bertsmith.serving.settings import ServingSettings

# The last one has /v1/{model}, which would take the others' paths.
PROTOCOLS = (
    openai.PROTOCOL,
    tei.PROTOCOL,
    ranking.PROTOCOL,
    ranking.PROTOCOL_OF_EITHER,
    hugging_face.PROTOCOL,
    systemone.PROTOCOL,
    decisions.PROTOCOL,
    ours.PROTOCOL,
)
_TAKEN = re.compile(r"/v1/([^/{}]+)")
_METHODS = {"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"}


def make_app(settings: ServingSettings, models: Models | None = None) -> FastAPI:
    """`models` are opened already; without them they are when the server begins. Raises InputError for a
    model that is called as a route, and for routes of the user's that aren't there or can't be added.
    """
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
    routers = [operators_router(service, health, metrics), page_router(service)]
    routers += [protocol.router(service) for protocol in PROTOCOLS]
    for name in settings.routes:
        routers.insert(-1, _own_router(name, service, routers))
    _require_free_names(settings, routers)
    for router in with_other_methods(routers, service):
        app.include_router(router)
    app.add_middleware(BodyReader, most_bytes=settings.max_body_bytes, refuse=refuse_early)
    app.add_middleware(Access, keys=Keys(settings.keys_file), host=settings.host, refuse=refuse_early)
    app.add_middleware(RequestLog, settings=settings, metrics=metrics)
    return app


def _own_router(name: str, service: Service, others: Sequence[APIRouter]) -> APIRouter:
    """Of a protocol of the user's, by its name as `package.module:PROTOCOL`. Raises InputError where there is
    none, and where one of its routes would never be reached or would take /v1/{model} from the last router,
    which comes behind it.
    """
    protocol = own_object(name, "protocol")
    if not isinstance(protocol, Protocol):
        raise InputError(f"{name!r} is not a bertsmith.serving.protocols.routing.Protocol.")
    router = protocol.router(service)
    routes, before, behind = _routes_of([router]), _routes_of(others[:-1]), _routes_of(others[-1:])
    hidden = [(own, other) for own in routes for other in before if other.path_regex.match(own.path)]
    hiding = [(own, other) for own in routes for other in behind if own.path_regex.match(other.path)]
    for own, other in [*hidden, *hiding]:
        if both := (own.methods or set()) & (other.methods or set()):
            method = min(both)
            raise InputError(
                f"The protocol {name!r} can't have {method} {own.path}: the service has {method} "
                f"{other.path} already. Choose another path."
            )
    return router


def _routes_of(routers: Iterable[APIRouter]) -> list[APIRoute]:
    return [route for router in routers for route in router.routes if isinstance(route, APIRoute)]


def _require_free_names(settings: ServingSettings, routers: Iterable[APIRouter]) -> None:
    """Raises InputError for a model that /v1/{model} could not reach, for another route is there."""
    taken = {found[1] for route in _routes_of(routers) if (found := _TAKEN.match(route.path))}
    for model in settings.models:
        if model.name in taken:
            raise InputError(
                f"A model can't be called {model.name!r}: /v1/{model.name} is a route of the service. Give "
                f"it another name, NAME={model.path}. Not free are {', '.join(sorted(taken))}."
            )


def with_other_methods(routers: Sequence[APIRouter], service: Service) -> list[APIRouter]:
    """The routers, and routes for methods that they leave open: HEAD as GET, and 405 with the methods that a
    path has, where Starlette's own would tell those of one of its routes. The last router has /v1/{model},
    which takes any name below /v1 by POST.
    """
    methods = defaultdict[str, set[str]](set)
    before = router_of(include_in_schema=False)
    behind = router_of(include_in_schema=False)
    for route in _routes_of(routers):
        known = route.methods or set()
        methods[route.path] |= known
        if "GET" in known:  # the server leaves the body away
            methods[route.path].add("HEAD")
            behind.add_api_route(route.path, route.endpoint, methods=["HEAD"])

    async def wrong(request: Request) -> Response:
        if (name := request.path_params.get("model")) is not None:
            service.models[name]  # raises UnknownModel
        path = request.scope["route"].path
        raise WrongMethod(request.method, request.url.path, methods[path])

    *_, last = methods
    for path, known in methods.items():
        others = _METHODS - known
        if path.startswith("/v1/") and path != last and "{" not in path and "POST" in others:
            before.add_api_route(path, wrong, methods=["POST"])
        behind.add_api_route(path, wrong, methods=sorted(others))
    return [*routers[:-1], before, routers[-1], behind]


async def refuse_early(refusal: Refusal, scope: Scope, receive: Receive, send: Send) -> None:
    """Before any route is known."""
    scope.setdefault("state", {})
    response: Any = refuse(refusal, our_error_body, Request(scope, receive))
    await response(scope, receive, send)


async def _not_found(request: Request, error: Exception) -> Response:
    """A path or a method that there isn't."""
    assert isinstance(error, HTTPException)
    said = f"There is no {request.method} {request.url.path[:200]} here. /openapi.json lists what there is."
    code = "method_not_allowed" if error.status_code == 405 else "not_found"
    body = {"error": {"code": code, "message": said, "retry_after": None}}
    return JsonResponse(body, error.status_code, error.headers)
