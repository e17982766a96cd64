"""The operator's routes: health, metrics, and models replaced while the service goes on."""

import asyncio
from typing import Any

from fastapi import APIRouter, Request, Response

from bertsmith.errors import BertsmithError
from bertsmith.serving.health import Health
from bertsmith.serving.metrics import CONTENT_TYPE, Metrics
from bertsmith.serving.protocols.ours import error_body
from bertsmith.serving.protocols.routing import JsonResponse, router_of
from bertsmith.serving.refusals import Forbidden, Unsupported
from bertsmith.serving.served_model import ServedModel
from bertsmith.serving.service import Service


def routes(service: Service, health: Health, metrics: Metrics) -> APIRouter:
    """The routes, for an application."""
    router = router_of(error_body, tags=["operation"])

    @router.get("/health/live", summary="The process answers, and has computed within two minutes")
    async def live() -> Response:
        dead = health.is_dead
        return JsonResponse({"status": "it doesn't compute" if dead else "live"}, 503 if dead else 200)

    @router.get("/health/ready", summary="It computes, and takes requests")
    @router.get("/health", include_in_schema=False)
    @router.get("/ping", include_in_schema=False)
    async def ready() -> Response:
        problem = health.problem()
        return JsonResponse({"status": problem or "ready"}, 503 if problem else 200)

    @router.get("/metrics", summary="For Prometheus")
    async def page() -> Response:
        return Response(metrics.page(), media_type=CONTENT_TYPE)

    @router.post("/admin/models/{name}/reload", summary="Serve what the model's folder holds now")
    async def reload(name: str, request: Request) -> Response:
        _require_admin(request, service)
        try:
            return _served(await asyncio.to_thread(service.models.replace, name))
        except BertsmithError as error:
            raise Unsupported(f"{name} stays as it was: {error}") from error

    @router.post("/admin/models/{name}/rollback", summary="Serve the version before")
    async def roll_back(name: str, request: Request) -> Response:
        _require_admin(request, service)
        return _served(await asyncio.to_thread(service.models.roll_back, name))

    return router


def _require_admin(request: Request, service: Service) -> None:
    if not getattr(request.state, "admin", False):
        raise Forbidden("Models are replaced by a key that has 'admin' in the service's file of keys.")
    if service.settings.workers > 1:
        raise Unsupported(
            "One of several processes answers here. All of them open their models again on SIGHUP; under Ray "
            "Serve, deploy again."
        )


def _served(model: ServedModel) -> Response:
    found: dict[str, Any] = {"model": model.name, "version": model.version, "task": model.task}
    return JsonResponse(found)
