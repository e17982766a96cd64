"""The application under uvicorn in one process, until a signal comes.

SIGTERM, Ctrl-C   ready turns red, what was accepted is answered, exit status 0; a second one ends at once
SIGHUP            each model's folder is opened again, and served if it passes its probe; where it came while
                  the service began, as soon as it has
"""

import asyncio
import os
import signal
import socket
from collections.abc import Callable, Sequence
from types import FrameType

import uvicorn
from fastapi import FastAPI

from bertsmith.errors import BertsmithError
from bertsmith.serving.app import make_app
from bertsmith.serving.connections import connection_settings
from bertsmith.serving.json_log import LOG
from bertsmith.serving.models import Models
from bertsmith.serving.settings import ServingSettings

_ADVANCE = 0.2  # seconds that ready is red before the socket closes, with `drain_delay` on top
_LOOK = 0.1  # seconds between two looks at whether a second signal came


def run_server(
    settings: ServingSettings,
    models: Models,
    listener: socket.socket,
    on_ready: Callable[[], None],
    *,
    is_worker: bool = False,
    early: Sequence[int] = (),
) -> None:
    """Serves opened models until a signal comes. A worker is ended by the process that began it, so a second
    signal says nothing new to it: Ctrl-C and a supervisor's signal reach both. `early`: where SIGHUP is noted
    until it is ours.
    """
    server = DrainingServer(settings, models, on_ready, is_worker=is_worker, early=early)
    server.run(sockets=[listener])
    if server.force_exit:
        os._exit(1)  # the threads that compute would be waited for


class DrainingServer(uvicorn.Server):
    """uvicorn's own ends by the signal that it caught, with its status; ours drains and ends with 0."""

    def __init__(
        self,
        settings: ServingSettings,
        models: Models,
        on_ready: Callable[[], None],
        *,
        is_worker: bool,
        early: Sequence[int] = (),
    ) -> None:
        self.app: FastAPI = make_app(settings, models)
        super().__init__(
            uvicorn.Config(
                self.app,
                log_config=None,
                access_log=False,
                server_header=False,
                timeout_graceful_shutdown=int(settings.drain_seconds),
                **connection_settings(),
            )
        )
        self.settings, self.models, self.on_ready, self.is_worker = settings, models, on_ready, is_worker
        self._early = early
        self._loading: asyncio.Task[None] | None = None
        self._load_again = False

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """SIGHUP from now on is ours."""
        await super().startup(sockets)
        if hasattr(signal, "SIGHUP"):
            asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self._reload)
            if self._early:
                self._reload()
        self.on_ready()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Called in a signal handler, between two steps of the loop."""
        health = self.app.state.health
        if health.leaving:
            if not self.is_worker:
                self.force_exit = self.should_exit = True
            return
        health.leaving = True
        asyncio.get_running_loop().call_soon_threadsafe(self._leave)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """A second signal ends it, wherever it is: uvicorn would wait for the application."""
        ending = asyncio.ensure_future(super().shutdown(sockets))
        while not ending.done() and not self.force_exit:
            await asyncio.wait({ending}, timeout=_LOOK)
        if ending.done():
            ending.result()

    def _leave(self) -> None:
        """Answers say from now on that their connection ends with them: clients come back elsewhere."""
        LOG.info("stopping: what was accepted is still answered")
        closing = (b"connection", b"close")
        self.config.encoded_headers.append(closing)
        self.server_state.default_headers = [*self.server_state.default_headers, closing]
        delay = _ADVANCE + self.settings.drain_delay
        asyncio.get_running_loop().call_later(delay, setattr, self, "should_exit", True)

    def _reload(self) -> None:
        """However many signals come while models are opened, they are looked at once more."""
        self._load_again = True
        if self._loading is None or self._loading.done():
            self._loading = asyncio.ensure_future(self._reload_while_asked())

    async def _reload_while_asked(self) -> None:
        while self._load_again:
            self._load_again = False
            await self._reload_all()

    async def _reload_all(self) -> None:
        for model in self.models:
            try:
                new = await asyncio.to_thread(self.models.refresh, model.name)
                back = self.models.was_rolled_back(model.name)
                why = "has what was rolled back" if back else "is as it was"
                same = "" if new is not model else f" still: its folder {why}"
                LOG.info("%s: version %d is served%s", new.name, new.version, same)
            except BertsmithError as error:
                LOG.error("%s stays as it was: %s", model.name, error)
            except Exception:
                LOG.exception("%s stays as it was, by a bug", model.name)
