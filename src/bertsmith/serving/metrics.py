"""What Prometheus is told: by model and route, without a text or a key in it."""

import asyncio
import os
from typing import Any

import psutil
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

from bertsmith.serving import LOG
from bertsmith.serving.queue import WorkQueue
from bertsmith.serving.service import Answer

MANY_PROCESSES = "PROMETHEUS_MULTIPROC_DIR"
CONTENT_TYPE = CONTENT_TYPE_LATEST
_EVERY = 1.0  # seconds between two looks at what is true of a moment
_SECONDS = tuple(0.0005 * 2**power for power in range(16))
_TOKENS = tuple(2**power for power in range(2, 19))


class Metrics:
    """Of one application: several in a process don't mix."""

    def __init__(self, queue: WorkQueue) -> None:
        self.registry = CollectorRegistry()
        name = "bertsmith"
        model, route = ["model"], ["model", "route"]
        register: dict[str, Any] = {"registry": self.registry}
        self.requests = Counter(f"{name}_requests", "Requests.", [*route, "status"], **register)
        self.refusals = Counter(f"{name}_refusals", "Refusals by reason.", ["route", "reason"], **register)
        self.seconds = self._histogram(
            "request_seconds", "From the last byte in to the answer.", route, _SECONDS
        )
        self.tokenizing = self._histogram("tokenizing_seconds", "Reading and tokenising.", model, _SECONDS)
        self.queued = self._histogram("queue_seconds", "Waiting for a core.", model, _SECONDS)
        self.computing = self._histogram("computing_seconds", "Computing and decoding.", model, _SECONDS)
        self.tokens = self._histogram("request_tokens", "Tokens of a request.", model, _TOKENS)
        self.batches = self._histogram("batch_tokens", "Tokens computed together.", model, _TOKENS)
        several: dict[str, Any] = {"multiprocess_mode": "livesum", **register}
        self.waiting = Gauge(f"{name}_queue_requests", "Requests that wait.", **several)
        self.waiting_tokens = Gauge(f"{name}_queue_tokens", "Tokens that wait.", **several)
        self.resident = Gauge(f"{name}_resident_bytes", "Memory of all processes that answer.", **several)
        self._queue, self._process = queue, psutil.Process()
        if MANY_PROCESSES not in os.environ:
            ProcessCollector(registry=self.registry)
        queue.on_batch = lambda batch: self.batches.labels(batch.run.model).observe(batch.tokens)

    def answered(self, answer: Answer) -> None:
        """What an answer took."""
        name, timing = answer.model.name, answer.timing
        self.tokenizing.labels(name).observe(timing.tokenizing)
        self.queued.labels(name).observe(timing.queued)
        self.computing.labels(name).observe(timing.computing)
        self.tokens.labels(name).observe(answer.total_tokens)

    async def keep_fresh(self) -> None:
        """What is true of a moment: of several processes another one than this may be asked for it."""
        while True:
            try:
                self._refresh()
            except Exception:  # the next look may succeed
                LOG.exception("the metrics of this moment can't be read")
            await asyncio.sleep(_EVERY)

    def _refresh(self) -> None:
        self.waiting.set(self._queue.size)
        self.waiting_tokens.set(self._queue.waiting_tokens)
        self.resident.set(self._process.memory_info().rss)

    def page(self) -> bytes:
        """In Prometheus' text format."""
        self._refresh()
        registry = self.registry
        if MANY_PROCESSES in os.environ:
            registry = CollectorRegistry()
            multiprocess.MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
        found: bytes = generate_latest(registry)
        return found

    def _histogram(self, name: str, what: str, labels: list[str], buckets: tuple[float, ...]) -> Histogram:
        return Histogram(f"bertsmith_{name}", what, labels, buckets=buckets, registry=self.registry)
