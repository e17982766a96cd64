"""How any service of ours runs under uvicorn: its socket, its connections, its end, and what it logs.

SIGTERM, Ctrl-C   what was begun is answered, exit status 0; a second one ends at once

uvicorn bounds neither the size nor the time of a request's headers; ours does. What follows the headers is
bounded by admission.py.
"""

import asyncio
import logging
import os
import socket
import sys
import threading
from contextlib import suppress
from datetime import UTC, datetime
from types import FrameType
from typing import Any

import httptools
import orjson
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from bertsmith.errors import InputError
from bertsmith.serving import LOG

LONGEST_HEADERS = 65_536  # bytes, the path among them
_SECONDS = 30.0  # for the headers of a request
_LAST_MOMENT = 1.0  # seconds that a connection without a request has when the service stops
_BACKLOG = 2048  # connections that wait to be accepted
_NICENESS = 5


def listening(host: str, port: int) -> socket.socket:
    """A socket that is bound: another process that listens there already is found now, one that begins to
    meanwhile by `listen`. Raises InputError.
    """
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
    except (OSError, UnicodeError) as error:
        listener.close()
        raise _unusable(host, port, error) from None
    return listener


def listen(listener: socket.socket, host: str, port: int) -> str:
    """Whoever connects from now on is answered; the address, to be told. Raises InputError."""
    try:
        listener.listen(_BACKLOG)
    except OSError as error:
        raise _unusable(host, port, error) from None
    host, port = listener.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def _unusable(host: str, port: int, error: Exception) -> InputError:
    return InputError(
        f"{host}:{port} can't be listened on: {getattr(error, 'strerror', None) or error}. "
        "Choose another --port or --host; --port 0 takes a free one."
    )


class BoundedConnection(HttpToolsProtocol):
    """One client's connection. `header_seconds` are from its first byte, or from the first of each request;
    `last_moment` is for one that has no request when the service stops.
    """

    header_seconds = _SECONDS
    last_moment = _LAST_MOMENT

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """The time for the first headers begins."""
        self._header_bytes = 0
        self._late: asyncio.TimerHandle | None = None
        self._is_last = self._in_body = self._is_offer = False
        super().connection_made(transport)
        self._begin_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        """The time doesn't matter any more."""
        self._end_headers()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """uvicorn forgets its own time limit at the first byte, so ours begins here; also for the rest of a
        body that was refused.
        """
        if self.timeout_keep_alive_task is not None:
            self._begin_headers()
        self._unset_keepalive_if_required()
        try:
            self._parse(data)
        except httptools.HttpParserError:
            self.send_400_response("Invalid HTTP request received.")
            return
        if self._late is not None and not self._in_body:
            self._header_bytes += len(data)
            if self._header_bytes > LONGEST_HEADERS:
                self._refuse("431 Request Header Fields Too Large", f"more than {LONGEST_HEADERS:,} bytes")

    def _parse(self, data: bytes) -> None:
        """Once more without the offer where a request offers another protocol: the parser takes what comes
        behind such a head for that protocol. HTTP lets a server ignore the offer (RFC 9110, section 7.8). By
        another parser: the one that stopped passes over all that follows where the connection is to close.
        """
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as stopped:
            if self._is_offer:
                asked = self.parser.get_method(), self.url, self.parser.get_http_version().encode()
                lines = [b"%b %b HTTP/%b" % asked]
                lines += [b"%b: %b" % each for each in self.headers if each[0] != b"upgrade"]
                self.parser = httptools.HttpRequestParser(self)
                self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn's
                self._parse(b"\r\n".join([*lines, b"", data[stopped.args[0] :]]))

    def on_message_begin(self) -> None:
        """Perhaps of a request behind another one."""
        super().on_message_begin()
        self._is_offer = False
        self._begin_headers()

    def on_headers_complete(self) -> None:
        """The application goes on, and reads the body."""
        self._is_offer = self.parser.should_upgrade() and self.parser.get_method() != b"CONNECT"
        if self._is_offer:
            return
        self._end_headers()
        self._in_body = True
        super().on_headers_complete()
        if self._is_last and self.cycle is not None:
            self.cycle.keep_alive = False

    def on_message_complete(self) -> None:
        """Perhaps long after its refusal: what came meanwhile was thrown away."""
        if self._is_offer:
            return
        super().on_message_complete()
        self._in_body = False
        if self.cycle is not None and self.cycle.response_complete and self.timeout_keep_alive_task is None:
            self._end_headers()
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )

    def shutdown(self) -> None:
        """A request that is on its way is still read and answered: uvicorn would reset the connection."""
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.keep_alive = False
            return
        self._is_last = True

        def close_if_idle() -> None:
            if self.cycle is None or self.cycle.response_complete:
                self.transport.close()

        self.loop.call_later(self.last_moment, close_if_idle)

    def _begin_headers(self) -> None:
        if self._late is None:
            self._header_bytes = 0
            self._late = self.loop.call_later(self.header_seconds, self._refuse_late)

    def _end_headers(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None

    def _refuse_late(self) -> None:
        if self._header_bytes == 0:
            self.transport.close()  # nothing was asked: an answer would be taken for that to the next request
            return
        self._refuse("408 Request Timeout", f"not complete within {self.header_seconds:g} seconds")

    def _refuse(self, status: str, what: str) -> None:
        """Before there is a request that could be answered. Answers to earlier ones are not waited for."""
        self._end_headers()
        if self.transport.is_closing():
            return
        said = f"The request's headers are {what}."
        head = f"HTTP/1.1 {status}\r\ncontent-type: text/plain\r\ncontent-length: {len(said)}\r\n"
        self.transport.write(f"{head}connection: close\r\n\r\n{said}".encode())
        self.transport.close()


class DrainingServer(uvicorn.Server):
    """uvicorn's own ends by the signal that it caught, with its status; ours drains and ends with 0."""

    def __init__(
        self,
        app: Any,
        drain_seconds: float,
        *,
        connections: type[BoundedConnection] = BoundedConnection,
        **config: Any,
    ) -> None:
        """`config`: more of uvicorn.Config."""
        super().__init__(
            uvicorn.Config(
                app,
                http=connections,
                ws="none",
                timeout_keep_alive=75,  # longer than the proxies in front, which else meet a closed one
                timeout_graceful_shutdown=int(drain_seconds),
                log_config=None,
                access_log=False,
                server_header=False,
                **config,
            )
        )
        self._is_leaving = False

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Called in a signal handler, between two steps of the loop."""
        if self._is_leaving:
            self.end_now()
        else:
            self._is_leaving = True
            self.leave()

    def leave(self) -> None:
        """At the first signal."""
        self.should_exit = True

    def end_now(self) -> None:
        """At each further one. The application's end, and the threads that compute, would be waited for."""
        os._exit(1)


class JsonLines(logging.Formatter):
    """Whatever is logged, as JSON."""

    def format(self, record: logging.LogRecord) -> str:
        facts = getattr(record, "facts", None) or {"message": record.getMessage()}
        line = {
            "time": datetime.fromtimestamp(record.created, UTC),
            "level": record.levelname.lower(),
            **facts,
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return orjson.dumps(line, default=str, option=orjson.OPT_UTC_Z).decode()


def log_to_stderr() -> None:
    """All that a service and its server say from now on."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    for name in ("bertsmith.serving", "uvicorn.error"):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
    LOG.setLevel(logging.INFO)
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)


def give_way() -> None:
    """Of the thread that calls it, where Linux can tell threads apart: a refusal is then a matter of a
    millisecond while all cores compute.
    """
    if sys.platform.startswith("linux"):
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
