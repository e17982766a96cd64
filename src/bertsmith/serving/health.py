"""Whether the service can answer: by a real forward pass of late, which never waits behind traffic."""

import asyncio
import time
from contextlib import suppress

from bertsmith.serving import LOG
from bertsmith.serving.models import probe_once
from bertsmith.serving.service import Service

_EVERY = 5.0  # seconds between two forward passes, where traffic makes none
_OLDEST = 20.0  # seconds since the last one, to be ready
_DEAD = 120.0  # seconds since the last one, to be begun anew
_STUCK = 30.0  # seconds that work may wait while none is finished


class Health:
    """`leaving`: on the way out, while what was accepted is still answered."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.leaving = False
        self._computed = 0.0
        self._probing: asyncio.Task[None] | None = None

    def start(self) -> None:
        """The models were probed a moment ago; goes on doing so."""
        self._computed = time.monotonic()
        self._probing = asyncio.ensure_future(self._probe())

    async def stop(self) -> None:
        """Ends the probing."""
        if self._probing is not None:
            self._probing.cancel()
            with suppress(asyncio.CancelledError):
                await self._probing

    def problem(self) -> str | None:
        """Why it isn't ready; None where it is."""
        now, queue = time.monotonic(), self.service.queue
        if self.leaving or self.service.draining:
            return "the service is stopping"
        if queue.size and now - max(queue.last_finished, queue.began_waiting) > _STUCK:
            return "work waits, and none is finished"
        if now - max(self._computed, queue.last_finished) > _OLDEST:
            return "no forward pass of late"
        return None

    @property
    def is_dead(self) -> bool:
        """Whether it doesn't compute, and won't by waiting."""
        return time.monotonic() - max(self._computed, self.service.queue.last_finished) > _DEAD

    async def _probe(self) -> None:
        while True:
            await asyncio.sleep(_EVERY)
            if time.monotonic() - self.service.queue.last_finished < _EVERY:
                continue  # traffic has just shown it
            try:
                for model in self.service.models:
                    await asyncio.wrap_future(self.service.models.apart(probe_once, model))
                self._computed = time.monotonic()
            except Exception:
                LOG.exception("a forward pass that only tests failed")
