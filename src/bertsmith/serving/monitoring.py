"""For operators: health, metrics, the request log, and replacing models at run time.

None of these contains a text or a key, unless `log_texts` adds the bodies to the log.
"""

import asyncio
import os
import re
import shutil
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil
from fastapi import APIRouter, Request, Response
from fastapi.telemetry import TelemetryConfig
from opentelemetry import trace
from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    generate_latest,
    multiprocess,
)
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from bertsmith.errors import BertsmithError
from bertsmith.files import can_open_folders, locked_folder
from bertsmith.serving import LOG
from bertsmith.serving.models import probe_once
from bertsmith.serving.protocols.routing import JsonResponse, make_router
from bertsmith.serving.proxies import route_path
from bertsmith.serving.queue import JobBatch, WorkQueue
from bertsmith.serving.refusals import PermissionDeniedError, UnsupportedRequest
from bertsmith.serving.served_model import ServedModel
from bertsmith.serving.service import Service, ServiceAnswer
from bertsmith.serving.settings import ServingSettings

_MULTIPROCESS_VARIABLE = "PROMETHEUS_MULTIPROC_DIR"  # where prometheus_client looks for the shared folder
_FOLDER = "bertsmith-metrics-"
_PROBE_SECONDS = 5.0  # between two forward passes of the health check, when traffic makes none
_READY_SECONDS = 20.0  # since the last forward pass, after which the service isn't ready
_DEAD_SECONDS = 120.0  # since the last forward pass, after which the process should be restarted
_STUCK_SECONDS = 30.0  # that work may wait while none is finished
_REFRESH_SECONDS = 1.0  # between two updates of the gauges
_SECONDS_BUCKETS = tuple(0.0005 * 2**power for power in range(16))
_TOKENS_BUCKETS = tuple(2**power for power in range(2, 19))
_REQUEST_ID = re.compile(r"[\w.:/+=-]{1,128}")
_NOT_LOGGED = ("/health", "/metrics")
_LONGEST_BODY = 10_000  # bytes of a body in the log


class Health:
    """Whether the service can answer, judged by a recent forward pass that never waits behind traffic.

    `leaving` is True once the service is shutting down and still answers what it has accepted.
    """

    def __init__(self, service: Service) -> None:
        self.service = service
        self.leaving = False
        self._last_probe = 0.0
        self._probing: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Starts the regular probes; the models have just passed their trial."""
        self._last_probe = time.monotonic()
        self._probing = asyncio.ensure_future(self._probe())

    async def stop(self) -> None:
        """Ends the regular probes and waits for their task."""
        if self._probing is not None:
            self._probing.cancel()
            with suppress(asyncio.CancelledError):
                await self._probing

    def problem(self) -> str | None:
        """The reason why the service isn't ready, as a clause for the answer; None if it is ready."""
        now, queue = time.monotonic(), self.service.queue
        if self.leaving or self.service.draining:
            return "the service is stopping"
        if queue.size and now - max(queue.last_finished, queue.began_waiting) > _STUCK_SECONDS:
            return "work waits, and none is finished"
        if now - max(self._last_probe, queue.last_finished) > _READY_SECONDS:
            return "no forward pass of late"
        return None

    @property
    def is_dead(self) -> bool:
        """Whether nothing was computed for so long that the process should be restarted."""
        return time.monotonic() - max(self._last_probe, self.service.queue.last_finished) > _DEAD_SECONDS

    async def _probe(self) -> None:
        """Computes a forward pass of each model now and then, when traffic doesn't show that it can."""
        while True:
            await asyncio.sleep(_PROBE_SECONDS)
            if time.monotonic() - self.service.queue.last_finished < _PROBE_SECONDS:
                continue  # traffic has just shown that the service computes
            try:
                for model in self.service.models:
                    await asyncio.wrap_future(self.service.models.run_in_thread(probe_once, model))
                self._last_probe = time.monotonic()
            except Exception:
                LOG.exception("a forward pass that only tests failed")


class Metrics:
    """The Prometheus metrics of one application, labelled by model and route, in a registry of its own."""

    def __init__(self, queue: WorkQueue) -> None:
        self.registry = CollectorRegistry()
        name = "bertsmith"
        model, route = ["model"], ["model", "route"]
        register: dict[str, Any] = {"registry": self.registry}
        self.requests = Counter(f"{name}_requests", "Requests.", [*route, "status"], **register)
        self.refusals = Counter(f"{name}_refusals", "Refusals by reason.", ["route", "reason"], **register)
        self.seconds = self._histogram(
            "request_seconds", "From the last byte in to the answer.", route, _SECONDS_BUCKETS
        )
        self.tokenizing = self._histogram(
            "tokenizing_seconds", "Reading and tokenising.", model, _SECONDS_BUCKETS
        )
        self.queued = self._histogram("queue_seconds", "Waiting for a core.", model, _SECONDS_BUCKETS)
        self.computing = self._histogram(
            "computing_seconds", "Computing and decoding.", model, _SECONDS_BUCKETS
        )
        self.tokens = self._histogram("request_tokens", "Tokens of a request.", model, _TOKENS_BUCKETS)
        self.batches = self._histogram("batch_tokens", "Tokens computed together.", model, _TOKENS_BUCKETS)
        summed: dict[str, Any] = {"multiprocess_mode": "livesum", **register}
        self.waiting = Gauge(f"{name}_queue_requests", "Requests that wait.", **summed)
        self.waiting_tokens = Gauge(f"{name}_queue_tokens", "Tokens that wait.", **summed)
        self.resident = Gauge(f"{name}_resident_bytes", "Memory of all processes that answer.", **summed)
        self._queue, self._process = queue, psutil.Process()
        if _MULTIPROCESS_VARIABLE not in os.environ:
            ProcessCollector(registry=self.registry)
        queue.on_batch = self._record_batch

    def _record_batch(self, batch: JobBatch) -> None:
        """Records the tokens that were computed together, for each model that they were computed for."""
        for name in batch.models:
            self.batches.labels(name).observe(batch.tokens)

    def record_answer(self, answer: ServiceAnswer) -> None:
        """Records the tokens of an answer and the seconds that it took."""
        name, timing = answer.model.name, answer.timing
        self.tokenizing.labels(name).observe(timing.tokenizing)
        self.queued.labels(name).observe(timing.queued)
        self.computing.labels(name).observe(timing.computing)
        self.tokens.labels(name).observe(answer.total_tokens)

    async def keep_fresh(self) -> None:
        """Refreshes the gauges once a second: with several processes, another one may answer the scrape."""
        while True:
            try:
                self._refresh()
            except Exception:  # the next update may succeed
                LOG.exception("the metrics of this moment can't be read")
            await asyncio.sleep(_REFRESH_SECONDS)

    def _refresh(self) -> None:
        self.waiting.set(self._queue.size)
        self.waiting_tokens.set(self._queue.waiting_tokens)
        self.resident.set(self._process.memory_info().rss)

    def render(self) -> bytes:
        """All metrics in Prometheus' text format, those of all processes if there are several."""
        self._refresh()
        registry = self.registry
        if _MULTIPROCESS_VARIABLE in os.environ:
            registry = CollectorRegistry()
            multiprocess.MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
        text: bytes = generate_latest(registry)
        return text

    def _histogram(
        self, name: str, description: str, labels: list[str], buckets: tuple[float, ...]
    ) -> Histogram:
        return Histogram(f"bertsmith_{name}", description, labels, buckets=buckets, registry=self.registry)


@contextmanager
def share_metrics_folder() -> Iterator[Path]:
    """A locked temporary folder for the metrics of the processes started within the context. Folders that
    killed services left behind are removed.
    """
    if can_open_folders():
        for leftover in Path(tempfile.gettempdir()).glob(f"{_FOLDER}*"):
            with suppress(OSError), locked_folder(leftover) as is_unused:  # another user's can't be opened
                if is_unused:
                    shutil.rmtree(leftover, ignore_errors=True)
    while True:
        with tempfile.TemporaryDirectory(prefix=_FOLDER) as folder, locked_folder(Path(folder)) as is_locked:
            if is_locked:  # else another starting service is removing it as a leftover
                os.environ[_MULTIPROCESS_VARIABLE] = folder
                try:
                    yield Path(folder)
                finally:
                    os.environ.pop(_MULTIPROCESS_VARIABLE, None)
                return


def forget_dead_process(process: int | None) -> None:
    """Drops the gauges of a process that has died; its counters stay in the sums."""
    multiprocess.mark_process_dead(process)  # type: ignore[no-untyped-call]


def wants_traces(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether OpenTelemetry's usual variables name a collector."""
    return any(
        environment.get(f"OTEL_EXPORTER_OTLP_{signal}ENDPOINT") for signal in ("", "TRACES_", "METRICS_")
    )


def prepare_traces() -> None:
    """Names the service for OpenTelemetry, unless its variables do. Warns if traces can't be sent."""
    if not wants_traces():
        return
    if "service.name" not in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", ""):
        os.environ.setdefault("OTEL_SERVICE_NAME", "bertsmith")
    if find_spec("opentelemetry.sdk") is None or _find_exporter() is None:
        LOG.warning(
            "OTEL_EXPORTER_OTLP_ENDPOINT is set, and no traces are sent: pip install opentelemetry-sdk "
            "opentelemetry-exporter-otlp-proto-http"
        )


def _find_exporter() -> Any:
    try:
        return find_spec("opentelemetry.exporter.otlp.proto.http.trace_exporter")
    except ModuleNotFoundError:  # of a package above it
        return None


def make_telemetry(settings: ServingSettings) -> TelemetryConfig:
    """What FastAPI traces: one span for each request, except for health and metrics, without texts."""

    def is_of_operators(scope: MutableMapping[str, Any]) -> bool:
        return str(scope["path"]).removeprefix(settings.root_path).startswith((*_NOT_LOGGED, "/ping"))

    config = TelemetryConfig(
        logs=settings.log_texts,  # they quote what was refused, which may be texts
        operation_spans=False,
        exclude=is_of_operators,
    )
    return config | {"auto_configure": True} if wants_traces() and _find_exporter() is not None else config


class RequestLog:
    """ASGI middleware that gives each request an id, counts and times it, and logs it as a line of JSON."""

    def __init__(self, app: ASGIApp, settings: ServingSettings, metrics: Metrics) -> None:
        self.app, self.settings, self.metrics = app, settings, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        client_id = headers.get(b"x-request-id", b"").decode("latin-1")
        request_id = client_id if _REQUEST_ID.fullmatch(client_id) else uuid.uuid4().hex
        state = scope.setdefault("state", {})
        status, began = 499, time.perf_counter()  # 499: the client disconnected before the answer began

        async def answer(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message.setdefault("headers", []).append((b"x-request-id", request_id.encode("latin-1")))
            await send(message)

        try:
            await self.app(scope, receive, answer)
        finally:
            facts = self._record(scope, state, status, time.perf_counter() - began)
            if self.settings.log_requests and not route_path(scope).startswith(_NOT_LOGGED):
                LOG.info("request", extra={"facts": {"id": request_id, **facts}})

    def _record(
        self, scope: Scope, state: MutableMapping[str, Any], status: int, seconds: float
    ) -> dict[str, Any]:
        """Adds a finished request to the metrics and returns its fields for the log."""
        # The route's pattern, not the path: otherwise any client could create any number of labels.
        route = getattr(scope.get("route"), "path_format", "none")
        answer, refusal = state.get("answer"), state.get("refusal")
        model = answer.model.name if answer is not None else ""
        self.metrics.requests.labels(model, route, str(status)).inc()
        self.metrics.seconds.labels(model, route).observe(seconds)
        facts = {"method": scope["method"], "route": route, "status": status, "ms": round(seconds * 1000, 3)}
        if (span := trace.get_current_span().get_span_context()).is_valid:
            facts |= {"trace_id": f"{span.trace_id:032x}", "span_id": f"{span.span_id:016x}"}
        if key := state.get("key"):
            facts["key"] = key
        if refusal is not None:
            self.metrics.refusals.labels(route, refusal.code).inc()
            facts["refused"] = refusal.code
        if answer is not None:
            for model_answer in state["answers"]:
                self.metrics.record_answer(model_answer)
            timing = answer.timing
            facts |= {
                "model": model,
                "version": answer.model.version,
                "inputs": len(answer.input_tokens),
                "tokens": answer.total_tokens,
                "tokenizing_ms": round(timing.tokenizing * 1000, 3),
                "queue_ms": round(timing.queued * 1000, 3),
                "computing_ms": round(timing.computing * 1000, 3),
            }
        if self.settings.log_texts and (body := state.get("body")):
            facts["body"] = body[:_LONGEST_BODY].decode("utf-8", "replace")
        return facts


def make_operators_router(service: Service, health: Health, metrics: Metrics) -> APIRouter:
    """The routes for operators: health, metrics, and replacing models."""
    router = make_router(tags=["operation"])

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
        return Response(metrics.render(), media_type=CONTENT_TYPE_LATEST)

    @router.post("/admin/models/{name:model}/reload", summary="Serve what the model's folder holds now")
    async def reload(name: str, request: Request) -> Response:
        _require_admin(request, service)
        try:
            return _answer_model(await asyncio.to_thread(service.models.replace, name))
        except BertsmithError as error:
            raise UnsupportedRequest(f"{name} stays as it was: {error}") from error

    @router.post("/admin/models/{name:model}/rollback", summary="Serve the version before")
    async def roll_back(name: str, request: Request) -> Response:
        _require_admin(request, service)
        return _answer_model(await asyncio.to_thread(service.models.roll_back, name))

    return router


def _require_admin(request: Request, service: Service) -> None:
    """Raises PermissionDeniedError for a key without `admin`, UnsupportedRequest for one of several
    processes.
    """
    if not getattr(request.state, "admin", False):
        raise PermissionDeniedError(
            "Models are replaced by a key that has 'admin' in the service's file of keys."
        )
    if service.settings.workers > 1:
        raise UnsupportedRequest(
            "One of several processes answers here. All of them open their models again on SIGHUP; under Ray "
            "Serve, deploy again."
        )


def _answer_model(model: ServedModel) -> Response:
    description: dict[str, Any] = {"model": model.name, "version": model.version, "task": model.task}
    return JsonResponse(description)
