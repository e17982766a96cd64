"""What is answered to methods that a path doesn't have: HEAD as GET, and 405 with those that it has.

Starlette's own 405 tells the methods of one route, where a path may have several.
"""

from collections import defaultdict
from collections.abc import Sequence

from fastapi import APIRouter, Request, Response
from fastapi.routing import APIRoute

from bertsmith.serving.protocols.ours import error_body
from bertsmith.serving.protocols.routing import router_of
from bertsmith.serving.refusals import WrongMethod
from bertsmith.serving.service import Service

_ALL = {"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"}


def with_other_methods(routers: Sequence[APIRouter], service: Service) -> list[APIRouter]:
    """The routers, and routes for what they leave open. The last one has /v1/{model}, which takes any name
    below /v1 by POST.
    """
    methods = defaultdict[str, set[str]](set)
    before = router_of(error_body, include_in_schema=False)
    behind = router_of(error_body, include_in_schema=False)
    for router in routers:
        for route in router.routes:
            if isinstance(route, APIRoute):
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
        others = _ALL - known
        if path.startswith("/v1/") and path != last and "{" not in path and "POST" in others:
            before.add_api_route(path, wrong, methods=["POST"])
        behind.add_api_route(path, wrong, methods=sorted(others))
    return [*routers[:-1], before, routers[-1], behind]
