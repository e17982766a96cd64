"""One line of JSON a request, on the standard error, with its id.

No text and no key is in it, unless `log_texts` asks for the bodies.
"""

import re
import time
import uuid
from collections.abc import MutableMapping
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from bertsmith.serving import LOG
from bertsmith.serving.metrics import Metrics
from bertsmith.serving.settings import ServingSettings

_ID = re.compile(r"[\w.:/+=-]{1,128}")
_QUIET = ("/health", "/metrics")
_LONGEST_BODY = 10_000  # bytes of a body in the log


class RequestLog:
    """An ASGI application around another: counts, times and names each request."""

    def __init__(self, app: ASGIApp, settings: ServingSettings, metrics: Metrics) -> None:
        self.app, self.settings, self.metrics = app, settings, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        given = headers.get(b"x-request-id", b"").decode("latin-1")
        request_id = given if _ID.fullmatch(given) else uuid.uuid4().hex
        state = scope.setdefault("state", {})
        status, began = 499, time.perf_counter()  # 499: gone before an answer began

        async def answer(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message.setdefault("headers", []).append((b"x-request-id", request_id.encode("latin-1")))
            await send(message)

        try:
            await self.app(scope, receive, answer)
        finally:
            facts = self._facts(scope, state, status, time.perf_counter() - began)
            if self.settings.log_requests and not scope["path"].startswith(_QUIET):
                LOG.info("request", extra={"facts": {"id": request_id, **facts}})

    def _facts(
        self, scope: Scope, state: MutableMapping[str, Any], status: int, seconds: float
    ) -> dict[str, Any]:
        route = getattr(scope.get("route"), "path", "none")  # a path of a stranger would be a label each
        answer, refusal = state.get("answer"), state.get("refusal")
        model = answer.model.name if answer is not None else ""
        self.metrics.requests.labels(model, route, str(status)).inc()
        self.metrics.seconds.labels(model, route).observe(seconds)
        facts = {"method": scope["method"], "route": route, "status": status, "ms": round(seconds * 1000, 3)}
        if key := state.get("key"):
            facts["key"] = key
        if refusal is not None:
            self.metrics.refusals.labels(route, refusal.code).inc()
            facts["refused"] = refusal.code
        if answer is not None:
            for each in state["answers"]:
                self.metrics.answered(each)
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
