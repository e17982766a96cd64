"""What any relay stands on: an application with two paths of its own, uvicorn, until a signal comes, and a
request's body on its way to the upstream.

GET /bertsmith/health   200 while it relays; 503 on its way out
GET /bertsmith/status   how it is

SIGTERM, Ctrl-C   no new connections; what was begun is relayed to its end, what was recorded is stored; exit
                  status 0. A second one ends at once.
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

# Seconds that the recorder's thread may hold the interpreter before the relay gets it. Python's own 5 ms
# would be seen in the relay's slowest answers.
_SWITCH = 0.0002
OWN_PATHS = HEALTH, STATUS = "/bertsmith/health", "/bertsmith/status"


class RelayApp(ABC):
    """Any relay as an ASGI application: two paths of its own, all others relayed. `leaving`: on the way out,
    while what was begun goes on. `ends_at`: when all of it has to be over, by the monotonic clock; infinite
    until the relay stops.
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
            said: dict[str, object] = {"status": "stopping" if self.leaving else "ok"}
            if scope["path"] == STATUS:
                said |= self.facts()
            await send_json(send, 503 if self.leaving and scope["path"] == HEALTH else 200, said)
        elif scope["type"] == "http":
            await self.relay_call(scope, receive, send)

    @abstractmethod
    async def start(self) -> None:
        """Before the first request comes."""

    @abstractmethod
    async def stop(self) -> None:
        """When the last connection has ended."""

    @abstractmethod
    def facts(self) -> dict[str, object]:
        """How it is."""

    @abstractmethod
    async def relay_call(self, scope: Scope, receive: Receive, send: Send) -> None:
        """A request that isn't answered here."""


def run(
    settings: RelaySettings,
    app: RelayApp,
    listener: socket.socket,
    *,
    doing: str,
    into: str,
    told: Mapping[str, object],
    page: str = "",
) -> None:
    """Any relay, until a signal comes. What it is `doing` at which address is said for people on a terminal,
    with where it writes `into` and the path of its page; elsewhere by a line of JSON, as all that follows,
    with the settings that are `told`. Raises InputError for an address that can't be listened on.
    """
    log_to_stderr()
    logging.getLogger("uvicorn.error").addFilter(_is_not_a_cut_answer)
    sys.setswitchinterval(_SWITCH)
    address = start_listening(listener, settings.host, settings.port)
    if sys.stderr.isatty():
        print(f"\n{doing.capitalize()} on {address}, {into}  (Ctrl-C stops)\n", file=sys.stderr)
        print(f"  OPENAI_BASE_URL={address}/v1\n  ANTHROPIC_BASE_URL={address}\n", file=sys.stderr)
        if page:
            print(f"  What it does: {address}{page}\n", file=sys.stderr)
    else:
        LOG.info(doing, extra={"facts": {"message": doing, "address": address, "settings": told}})
    RelayServer(settings, app).run(sockets=[listener])


class RelayServer(DrainingServer):
    """A relay under uvicorn, in this process."""

    def __init__(self, settings: RelaySettings, app: RelayApp) -> None:
        # The upstream's own dates are passed on.
        super().__init__(app, settings.drain_seconds, date_header=False, lifespan="on")
        self.app, self.drain_seconds = app, settings.drain_seconds

    def leave(self) -> None:
        """No new connections from now on."""
        self.app.leaving = self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Connections first, then the application: one time for both."""
        self.app.ends_at = time.monotonic() + self.drain_seconds
        await super().shutdown(sockets)


def _is_not_a_cut_answer(record: logging.LogRecord) -> bool:
    """An answer that the upstream cut is passed on cut: uvicorn takes it for a fault of the application."""
    return "without completing response" not in record.getMessage()


async def send_json(send: Send, status: int, body: Json, *headers: tuple[bytes, bytes]) -> None:
    """An answer of the relay's own."""
    content = orjson.dumps(body)
    own = [(b"content-type", b"application/json"), (b"content-length", str(len(content)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": [*own, *headers]})
    await send({"type": "http.response.body", "body": content})


class ClientGone(Exception):
    """Nobody waits for the answer any more."""


class RequestBody:
    """Read once: at once by `begin`, or piece by piece."""

    def __init__(self, receive: Receive, most: int) -> None:
        self.receive, self.most = receive, most
        self.passed = asyncio.Event()
        self._copy: bytearray | None = bytearray()
        self._first: list[Message] = []

    @property
    def content(self) -> bytes | None:
        """All of it; None before it has passed, and where it was larger than `most`."""
        return bytes(self._copy) if self._copy is not None and self.passed.is_set() else None

    async def begin(self, *, whole: bool = False) -> bytes | None:
        """The body, where it came at once; else None, and it is to be iterated over. With `whole` all of it
        is waited for, unless it is larger than `most`. Raises ClientGone.
        """
        self._first.append(await self._next())
        while whole and self._copy is not None and not self.passed.is_set():
            self._first.append(await self._next())
        if not self.passed.is_set():
            return None
        return b"".join(each.get("body", b"") for each in self._first)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for message in self._first or [await self._next()]:
            yield message.get("body", b"")
        while not self.passed.is_set():
            yield (await self._next()).get("body", b"")

    async def _next(self) -> Message:
        message = await self.receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        if self._copy is not None:
            self._copy += message.get("body", b"")
            if len(self._copy) > self.most:
                self._copy = None
        if not message.get("more_body"):
            self.passed.set()
        return message

    async def client_gone(self) -> None:
        """Returns when it is."""
        await self.passed.wait()
        while (await self.receive())["type"] != "http.disconnect":
            pass
