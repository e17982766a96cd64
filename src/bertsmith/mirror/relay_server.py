"""What the mirror and the guard have in common: an ASGI application with two paths of its own, the server
that runs it until a signal comes, and a request's body on its way to the upstream. Read `RelayApp` first.

GET /bertsmith/health   200 while it relays; 503 while it stops
GET /bertsmith/status   the state of the relay as JSON

SIGTERM, Ctrl-C   no new connections; calls under way are relayed to their end and stored; exit status 0. A
                  second signal ends the process at once.
"""

import asyncio
import logging
import math
import socket
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping

import orjson
from starlette.types import Message, Receive, Scope, Send

from bertsmith.mirror.call import Json
from bertsmith.mirror.settings import RelaySettings
from bertsmith.serving import LOG
from bertsmith.serving.http_server import DrainingServer, log_to_stderr, start_listening

# How long the recorder's thread may hold the interpreter before the relay gets it, in seconds. Python's
# default of 5 ms would show in the relay's slowest answers.
_SWITCH_INTERVAL = 0.0002
OWN_PATHS = HEALTH, STATUS = "/bertsmith/health", "/bertsmith/status"


class RelayApp(ABC):
    """A relay as an ASGI application: it answers two paths itself and relays all others.

    `leaving` is True while the relay stops and finishes the calls under way. `ends_at` is when these must be
    finished, by the monotonic clock; infinite until the relay stops.
    """

    leaving = False
    ends_at = math.inf

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await receive()
            await self.start()
            await send({"type": "lifespan.startup.complete"})
            await receive()
            await self.stop()
            await send({"type": "lifespan.shutdown.complete"})
        elif scope["type"] == "http" and scope["method"] in ("GET", "HEAD") and scope["path"] in OWN_PATHS:
            body: dict[str, object] = {"status": "stopping" if self.leaving else "ok"}
            if scope["path"] == STATUS:
                body |= self.facts()
            await send_json(send, 503 if self.leaving and scope["path"] == HEALTH else 200, body)
        elif scope["type"] == "http":
            await self.relay_call(scope, receive, send)

    @abstractmethod
    async def start(self) -> None:
        """Starts what the relay needs; called before the first request."""

    @abstractmethod
    async def stop(self) -> None:
        """Stops what `start` has started; called after the last connection has ended."""

    @abstractmethod
    def facts(self) -> dict[str, object]:
        """The relay's state as the JSON object that /bertsmith/status shows."""

    @abstractmethod
    async def relay_call(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Relays an HTTP request whose path isn't one of the relay's own."""


def run(
    settings: RelaySettings,
    app: RelayApp,
    listener: socket.socket,
    *,
    activity: str,
    destination: str,
    logged_settings: Mapping[str, object],
    page: str = "",
) -> None:
    """Runs a relay until a signal comes.

    At its start it announces its `activity` ("mirroring") and its address: on a terminal in words, with the
    `destination` of what it writes and the path of its `page`; elsewhere as a line of JSON in the log, with
    `logged_settings`. Raises InputError for an address that can't be listened on.
    """
    log_to_stderr()
    logging.getLogger("uvicorn.error").addFilter(_is_no_cut_answer)
    sys.setswitchinterval(_SWITCH_INTERVAL)
    address = start_listening(listener, settings.host, settings.port)
    if sys.stderr.isatty():
        print(f"\n{activity.capitalize()} on {address}, {destination}  (Ctrl-C stops)\n", file=sys.stderr)
        print(f"  OPENAI_BASE_URL={address}/v1\n  ANTHROPIC_BASE_URL={address}\n", file=sys.stderr)
        if page:
            print(f"  What it does: {address}{page}\n", file=sys.stderr)
    else:
        facts = {"message": activity, "address": address, "settings": logged_settings}
        LOG.info(activity, extra={"facts": facts})
    RelayServer(settings, app).run(sockets=[listener])


class RelayServer(DrainingServer):
    """The uvicorn server that runs a relay in this process."""

    def __init__(self, settings: RelaySettings, app: RelayApp) -> None:
        # No date header: the upstream's is passed on.
        super().__init__(app, settings.drain_seconds, date_header=False, lifespan="on")
        self.app, self.drain_seconds = app, settings.drain_seconds

    def leave(self) -> None:
        """Stops accepting connections; those that are open go on."""
        self.app.leaving = self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Closes the connections, then the application; both together have `drain_seconds`."""
        self.app.ends_at = time.monotonic() + self.drain_seconds
        await super().shutdown(sockets)


def _is_no_cut_answer(record: logging.LogRecord) -> bool:
    """False for uvicorn's error about an incomplete response. A relay passes an answer on incomplete if the
    upstream broke off, which is no error of the application.
    """
    return "without completing response" not in record.getMessage()


async def send_json(send: Send, status: int, body: Json, *headers: tuple[bytes, bytes]) -> None:
    """Sends a JSON response of the relay's own, with more `headers` if given."""
    content = orjson.dumps(body)
    basic = [(b"content-type", b"application/json"), (b"content-length", str(len(content)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": [*basic, *headers]})
    await send({"type": "http.response.body", "body": content})


class ClientGone(Exception):
    """The client has closed the connection before its request was complete."""


class RequestBody:
    """A request's body, received once: as a whole by `begin`, or piece by piece by iterating over it.

    A copy of up to `max_bytes` is kept for the recorder or the guard. `all_received` is set when the last
    piece has been received.
    """

    def __init__(self, receive: Receive, max_bytes: int) -> None:
        self.receive, self.max_bytes = receive, max_bytes
        self.all_received = asyncio.Event()
        self._copy: bytearray | None = bytearray()
        self._first: list[Message] = []

    @property
    def content(self) -> bytes | None:
        """The whole body; None until all of it was received, and if it is larger than `max_bytes`."""
        return bytes(self._copy) if self._copy is not None and self.all_received.is_set() else None

    async def begin(self, *, wait_for_all: bool = False) -> bytes | None:
        """Receives the first piece and returns the body if that is all of it. Otherwise returns None, and the
        caller has to iterate. With `wait_for_all` it waits for all pieces, unless they exceed `max_bytes`.
        Raises ClientGone if the client closes the connection.
        """
        self._first.append(await self._next())
        while wait_for_all and self._copy is not None and not self.all_received.is_set():
            self._first.append(await self._next())
        if not self.all_received.is_set():
            return None
        return b"".join(message.get("body", b"") for message in self._first)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for message in self._first or [await self._next()]:
            yield message.get("body", b"")
        while not self.all_received.is_set():
            yield (await self._next()).get("body", b"")

    async def _next(self) -> Message:
        message = await self.receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        if self._copy is not None:
            self._copy += message.get("body", b"")
            if len(self._copy) > self.max_bytes:
                self._copy = None
        if not message.get("more_body"):
            self.all_received.set()
        return message

    async def client_gone(self) -> None:
        """Waits until the client has closed the connection."""
        await self.all_received.wait()
        while (await self.receive())["type"] != "http.disconnect":
            pass
