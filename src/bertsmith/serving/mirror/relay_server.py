"""A relay under uvicorn, until a signal comes.

SIGTERM, Ctrl-C   no new connections; what was begun is relayed to its end, what was recorded is stored; exit
                  status 0. A second one ends at once.
"""

import logging
import os
import socket
import sys
import time
from collections.abc import Callable
from types import FrameType
from typing import Protocol

import uvicorn
from starlette.types import Receive, Scope, Send

from bertsmith.errors import InputError
from bertsmith.serving.connections import connection_settings
from bertsmith.serving.json_log import log_to_stderr
from bertsmith.serving.mirror.relay_settings import RelaySettings

_BACKLOG = 2048  # connections that wait to be accepted
# Seconds that the recorder's thread may hold the interpreter before the relay gets it. Python's own 5 ms
# would be seen in the relay's slowest answers.
_SWITCH = 0.0002


class LeavingApp(Protocol):
    """An ASGI application. `leaving`: on the way out, while what was begun goes on. `ends_at`: when all of it
    has to be over, by the monotonic clock; infinite until the relay stops.
    """

    leaving: bool
    ends_at: float

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """As ASGI says."""


def run(
    settings: RelaySettings, app: LeavingApp, listener: socket.socket, announce: Callable[[str], None]
) -> None:
    """Any relay, until a signal comes; `announce` is called with its address."""
    log_to_stderr()
    logging.getLogger("uvicorn.error").addFilter(_is_no_cut)
    sys.setswitchinterval(_SWITCH)
    host, port = listener.getsockname()[:2]
    listener.listen(_BACKLOG)  # whoever is told the address may connect
    announce(f"http://{f'[{host}]' if ':' in host else host}:{port}")
    RelayServer(settings, app).run(sockets=[listener])


class RelayServer(uvicorn.Server):
    """uvicorn's own ends by the signal that it caught, with its status; ours drains and ends with 0."""

    def __init__(self, settings: RelaySettings, app: LeavingApp) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                log_config=None,
                access_log=False,
                server_header=False,
                date_header=False,  # the upstream's own are passed on
                lifespan="on",
                timeout_graceful_shutdown=int(settings.drain_seconds),
                **connection_settings(),
            )
        )
        self.app, self.drain_seconds = app, settings.drain_seconds

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Called in a signal handler, between two steps of the loop."""
        if self.app.leaving:
            os._exit(1)  # the application's own end, and the threads that compute, would be waited for
        self.app.leaving = self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Connections first, then the application: one time for both."""
        self.app.ends_at = time.monotonic() + self.drain_seconds
        await super().shutdown(sockets)


def _is_no_cut(record: logging.LogRecord) -> bool:
    """An answer that the upstream cut is passed on cut: uvicorn takes it for a fault of the application."""
    return "without completing response" not in record.getMessage()


def listening(settings: RelaySettings) -> socket.socket:
    """A socket that is bound. Raises InputError."""
    listener = socket.socket(socket.AF_INET6 if ":" in settings.host else socket.AF_INET)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((settings.host, settings.port))
    except (OSError, UnicodeError) as error:
        listener.close()
        raise InputError(
            f"{settings.host}:{settings.port} can't be listened on: "
            f"{getattr(error, 'strerror', None) or error}. Choose another --port or --host; "
            "--port 0 takes a free one."
        ) from None
    return listener
