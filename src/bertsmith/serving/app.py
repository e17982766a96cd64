"""The service as an ASGI application: its middleware and all its routes.

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
from bertsmith.argument_checks import import_object
from bertsmith.errors import InputError
from bertsmith.serving.admission import Access, ApiKeys, BodyReader
from bertsmith.serving.models import Models
from bertsmith.serving.monitoring import Health, Metrics, RequestLog, make_operators_router, make_telemetry
from bertsmith.serving.page.page import make_page_router
from bertsmith.serving.protocols import decisions, hugging_face, openai, ours, ranking, systemone, tei
from bertsmith.serving.protocols.routing import JsonResponse, Protocol, make_router, our_error_body, refuse
from bertsmith.serving.proxies import CrossOrigin, ForwardedAddress, first_part
from bertsmith.serving.refusals import Refusal, WrongMethod, make_openapi_responses
from bertsmith.serving.service import Service
from bertsmith.serving.settings import ServingSettings

# Ours is the last one: its route /v1/{model} would match the others' paths.
PROTOCOLS = (
    openai.PROTOCOL,
    tei.PROTOCOL,
    ranking.PROTOCOL,
    ranking.SHARED_PROTOCOL,
    hugging_face.PROTOCOL,
    systemone.PROTOCOL,
    decisions.PROTOCOL,
    ours.PROTOCOL,
)
_MODEL_PATH = re.compile(r"/v1/([^/{}]+)(?:/\{model.*)?")
_METHODS = {"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"}


def make_app(settings: ServingSettings, models: Models | None = None) -> FastAPI:
    """The whole application. `models` are open already; if None, they are opened when the server starts.

    Raises InputError for a model whose name is a route's, and for a user's routes that can't be imported or
    added.
    """
    service = Service(settings, models or Models(settings))
    health, metrics = Health(service), Metrics(service.queue)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        if models is None:
            service.models.open_all()
        service.start()
        health.start()
        refreshing = asyncio.ensure_future(metrics.keep_fresh())
        try:
            yield
        finally:
            refreshing.cancel()
            await health.stop()
            await service.stop()

    app = FastAPI(
        title="Bertsmith",
        version=bertsmith.__version__,
        lifespan=lifespan,
        docs_url=None,  # these pages would load scripts from the internet
        redoc_url=None,
        exception_handlers={HTTPException: _answer_not_found},
        responses=make_openapi_responses(lambda refusal: refusal.status),  # before a route is known
        telemetry=make_telemetry(settings),
    )
    app.state.service, app.state.health, app.state.metrics = service, health, metrics
    routers = [make_operators_router(service, health, metrics), make_page_router(service)]
    routers += [protocol.router(service) for protocol in PROTOCOLS]
    for name in settings.routes:
        routers.insert(-1, _make_user_router(name, service, routers))
    routers = add_other_methods(routers, service)
    _check_model_names(settings, routers)
    for router in routers:
        app.include_router(router)
    app.add_middleware(BodyReader, most_bytes=settings.max_body_bytes, refuse=refuse_early)
    origins = settings.cors_origins
    app.add_middleware(
        Access, keys=ApiKeys(settings.keys_file), host=settings.host, refuse=refuse_early, origins=origins
    )
    if origins:
        app.add_middleware(CrossOrigin, origins=origins)
    _check_root_path(settings, routers)
    app.add_middleware(ForwardedAddress, settings=settings)
    app.add_middleware(RequestLog, settings=settings, metrics=metrics)
    return app


def _make_user_router(name: str, service: Service, others: Sequence[APIRouter]) -> APIRouter:
    """The router of a user's own protocol, named as `package.module:PROTOCOL`.

    Raises InputError if it can't be imported, if one of its routes would never be reached, or if one would
    hide /v1/{model}, which is in the last of `others`.
    """
    protocol = import_object(name, "protocol")
    if not isinstance(protocol, Protocol):
        raise InputError(f"{name!r} is not a bertsmith.serving.protocols.routing.Protocol.")
    router = protocol.router(service)
    routes, earlier, later = _list_routes([router]), _list_routes(others[:-1]), _list_routes(others[-1:])
    hidden = [(own, other) for own in routes for other in earlier if other.path_regex.match(own.path)]
    hiding = [(own, other) for own in routes for other in later if own.path_regex.match(other.path)]
    for own, other in [*hidden, *hiding]:
        if shared := (own.methods or set()) & (other.methods or set()):
            method = min(shared)
            raise InputError(
                f"The protocol {name!r} can't have {method} {own.path}: the service has {method} "
                f"{other.path_format} already. Choose another path."
            )
    return router


def _list_routes(routers: Iterable[APIRouter]) -> list[APIRoute]:
    return [route for router in routers for route in router.routes if isinstance(route, APIRoute)]


def _check_model_names(settings: ServingSettings, routers: Iterable[APIRouter]) -> None:
    """Raises InputError for a model whose name is not free: another route has one of its paths."""
    routes = _list_routes(routers)
    shown = [route for route in routes if route.include_in_schema]
    route_names = {match[1] for route in shown if (match := _MODEL_PATH.fullmatch(route.path))}
    for model in settings.models:
        if model.name in route_names:
            raise InputError(
                f"A model can't be called {model.name!r}: /v1/{model.name} is a route of the service. Give "
                f"it another name, NAME={model.path}. Not free are {', '.join(sorted(route_names))}."
            )
        for route in routes:
            path = re.sub(r"\{(?:model|name)\}", model.name, route.path_format).replace("{task}", "ner")
            for method in route.methods or ():
                by_method = (other for other in routes if method in (other.methods or ()))
                first = next((other for other in by_method if other.path_regex.match(path)), route)
                if "/" in model.name and path != route.path_format and first.path != route.path:
                    raise InputError(
                        f"A model can't be called {model.name!r}: {method} {path} would be "
                        f"{first.path_format} of the service. Give it another name, NAME={model.path}."
                    )


def _check_root_path(settings: ServingSettings, routers: Iterable[APIRouter]) -> None:
    """Raises InputError if the prefix of the settings begins as a path does: what belongs to which could not
    be told.
    """
    taken = {first_part(route.path) for route in _list_routes(routers)} | {"openapi.json"}
    if (part := first_part(settings.root_path)) and part in taken:
        raise InputError(
            f"root_path can't begin with /{part}, where the service has paths of its own. Choose another "
            f"prefix, such as /bert{settings.root_path}."
        )


def add_other_methods(routers: Sequence[APIRouter], service: Service) -> list[APIRouter]:
    """The routers, with routes added for the methods that a path doesn't have: HEAD is answered as GET, and
    any other by a 405 with all methods of the path (Starlette would name those of one route only). The last
    router has /v1/{model}, which matches any name below /v1 by POST.
    """
    methods = defaultdict[str, set[str]](set)
    before = make_router(include_in_schema=False)
    behind = make_router(include_in_schema=False)
    for route in _list_routes(routers):
        known = route.methods or set()
        methods[route.path] |= known
        if "GET" in known:  # the server omits the body
            methods[route.path].add("HEAD")
            behind.add_api_route(route.path, route.endpoint, methods=["HEAD"])

    async def refuse_method(request: Request) -> Response:
        if (name := request.path_params.get("model")) is not None:
            service.models[name]  # raises UnknownModel
        path = request.scope["route"].path
        raise WrongMethod(request.method, request.url.path, methods[path])

    *_, last = methods
    for path, known in methods.items():
        others = _METHODS - known
        if path.startswith("/v1/") and path != last and "POST" in others:
            before.add_api_route(path, refuse_method, methods=["POST"])
        behind.add_api_route(path, refuse_method, methods=sorted(others))
    return [*routers[:-1], before, routers[-1], behind]


async def refuse_early(refusal: Refusal, scope: Scope, receive: Receive, send: Send) -> None:
    """Sends a refusal in Bertsmith's own envelope, before a route, and so a protocol, is known."""
    scope.setdefault("state", {})
    response: Any = refuse(refusal, our_error_body, Request(scope, receive))
    await response(scope, receive, send)


async def _answer_not_found(request: Request, error: Exception) -> Response:
    """The answer to a path or a method that doesn't exist."""
    assert isinstance(error, HTTPException)
    message = (
        f"There is no {request.method} {request.url.path[:200]} here. /openapi.json lists what there is."
    )
    code = "method_not_allowed" if error.status_code == 405 else "not_found"
    body = {"error": {"code": code, "message": message, "retry_after": None}}
    return JsonResponse(body, error.status_code, error.headers)
