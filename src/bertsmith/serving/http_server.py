"""How every service of ours runs under uvicorn: its socket, connections, shutdown and log.

SIGTERM, Ctrl-C   requests in progress are answered, exit status 0; a second signal ends the process at once

uvicorn limits neither the size nor the time of a request's headers; BoundedConnection does. admission.py
limits the body.
"""

import asyncio
import logging
import os
import secrets
import socket
import ssl
import stat
import sys
import threading
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import Any

import httptools
import orjson
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from bertsmith.errors import InputError
from bertsmith.serving import LOG

LONGEST_HEADERS = 65_536  # bytes, the path among them
_HEADER_SECONDS = 30.0  # for the headers of a request
_LAST_MOMENT = 1.0  # seconds that a connection without a request has when the service stops
_BACKLOG = 2048  # connections that wait to be accepted
_NICENESS = 5
_SOCKET_MODE = 0o660  # of a Unix socket: its owner and group may ask
_LONGEST_SOCKET_PATH = 107  # bytes, of Linux; other systems have less, and say so


def bind_socket(host: str, port: int) -> socket.socket:
    """A socket that is bound to the address but doesn't listen yet. Raises InputError if the address is in
    use or unusable; a process that takes it later is noticed by `start_listening`.
    """
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
    except (OSError, UnicodeError) as error:
        listener.close()
        raise _address_error(host, port, error) from None
    return listener


def start_listening(listener: socket.socket, host: str, port: int) -> str:
    """Accepts connections from now on, and returns the URL to announce. Raises InputError."""
    try:
        listener.listen(_BACKLOG)
    except OSError as error:
        raise _address_error(host, port, error) from None
    host, port = listener.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


class UnixListener:
    """A Unix socket at `path`, from the time it listens. Raises InputError at once for a path that can't be
    used: another service listens there, or there is a file that is no socket.

    A socket that a killed service left is replaced. The new one gets its rights under another name, before
    it takes the path: no moment lets others in, and none finds nobody there.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        # By chance, not by the process: containers that share the folder have processes of equal numbers.
        self._first_path = path.with_name(f".{secrets.token_hex(3)}")
        self._check_path()
        self.socket = socket.socket(socket.AF_UNIX)

    def listen(self) -> str:
        """Accepts connections from now on, and returns the address to announce. Raises InputError."""
        self._check_path()
        try:
            self.socket.bind(str(self._first_path))
            self._first_path.chmod(_SOCKET_MODE)
            self.socket.listen(_BACKLOG)
            self._status = self._first_path.stat()
            self._first_path.replace(self.path)
        except OSError as error:
            self._first_path.unlink(missing_ok=True)
            raise self._error(error.strerror or str(error)) from None
        return f"unix:{self.path}"

    def close(self) -> None:
        """Closes the socket and removes its file, unless that is another service's by now."""
        self.socket.close()
        with suppress(OSError, AttributeError):
            if os.path.samestat(self.path.lstat(), self._status):
                self.path.unlink()

    def _check_path(self) -> None:
        longest = max(len(os.fsencode(path)) for path in (self.path, self._first_path))
        if longest > _LONGEST_SOCKET_PATH:
            raise self._error(f"its path has more than {_LONGEST_SOCKET_PATH} bytes")
        if not self.path.parent.is_dir():
            raise self._error(f"there is no folder {self.path.parent}")
        if not os.access(self.path.parent, os.W_OK):
            raise self._error(f"its folder {self.path.parent} can't be written")
        try:
            is_socket = stat.S_ISSOCK(self.path.lstat().st_mode)
        except FileNotFoundError:
            return
        if not is_socket:
            raise self._error("it is there, and no socket")
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(1)
            try:
                client.connect(str(self.path))
            except (ConnectionRefusedError, FileNotFoundError):  # left by a service that was killed
                return
            except OSError as error:
                raise self._error(error.strerror or str(error)) from None
        raise self._error("another service listens there")

    def _error(self, problem: str) -> InputError:
        return InputError(f"--uds {self.path} can't be listened on: {problem}. Name another path.")


def open_tls(certificate: Path, key: Path) -> ssl.SSLContext:
    """A server's TLS context with a certificate and its key, both PEM files. Raises InputError naming the
    file that is wrong.
    """
    contents = {}
    for option, path in (("--tls-cert", certificate), ("--tls-key", key)):
        try:
            contents[option] = path.read_bytes()
        except OSError as error:
            raise InputError(f"{option} {path} can't be read: {error.strerror}. Name a PEM file.") from None
    for option, path, word in (
        ("--tls-cert", certificate, b"CERTIFICATE-----"),
        ("--tls-key", key, b"PRIVATE KEY-----"),
    ):
        if word not in contents[option]:
            expected = word.rstrip(b"-").decode().lower()
            raise InputError(
                f"{option} {path} is no PEM file with a {expected}: it has no line BEGIN … {word.decode()}."
            )
    if b"ENCRYPTED" in contents["--tls-key"]:
        raise InputError(
            f"--tls-key {key} is locked by a password, which a service can't type. Write one without: "
            f"openssl pkey -in {key} -out NEW.pem"
        )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(certificate, key, password="")
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise InputError(
                f"--tls-key {key} is not the key of the certificate in --tls-cert {certificate}, of which "
                "the server's own must be the first."
            ) from None
        raise InputError(
            f"--tls-cert {certificate} and --tls-key {key} can't be used: {error.reason or error}. Expected "
            "PEM files with a certificate and its key."
        ) from None
    return context


def _address_error(host: str, port: int, error: Exception) -> InputError:
    return InputError(
        f"{host}:{port} can't be listened on: {getattr(error, 'strerror', None) or error}. "
        "Choose another --port or --host; --port 0 takes a free one."
    )


class BoundedConnection(HttpToolsProtocol):
    """One client's connection, with limits on the headers of each request.

    `header_seconds`: the time for the headers, from the start of the connection or the end of the request
    before. `last_moment`: seconds that a connection without a request stays open when the service stops.
    """

    header_seconds = _HEADER_SECONDS
    last_moment = _LAST_MOMENT

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Starts the time limit of the first request's headers."""
        self._header_bytes = 0
        self._header_timer: asyncio.TimerHandle | None = None
        self._is_closing = self._in_body = self._offers_upgrade = False
        super().connection_made(transport)
        self._begin_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancels the time limit of the headers, if it runs."""
        self._end_headers()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parses what arrived, and checks the limits of the headers. uvicorn drops its keep-alive limit at
        the first byte, so ours starts here, also for the rest of a body that was refused.
        """
        if self.timeout_keep_alive_task is not None:
            self._begin_headers()
        self._unset_keepalive_if_required()
        try:
            self._parse(data)
        except httptools.HttpParserError:
            self.send_400_response("Invalid HTTP request received.")
            return
        if self._header_timer is not None and not self._in_body:
            self._header_bytes += len(data)
            if self._header_bytes > LONGEST_HEADERS:
                self._refuse("431 Request Header Fields Too Large", f"more than {LONGEST_HEADERS:,} bytes")

    def _parse(self, data: bytes) -> None:
        """Feeds the parser; a request that offers an upgrade is parsed again without the offer.

        The parser takes what follows such a head for the other protocol. HTTP lets a server ignore the offer
        (RFC 9110, section 7.8). A new parser is needed: the one that stopped skips all that follows if the
        connection is to be closed.
        """
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as stopped:
            if self._offers_upgrade:
                request_line = self.parser.get_method(), self.url, self.parser.get_http_version().encode()
                lines = [b"%b %b HTTP/%b" % request_line]
                lines += [b"%b: %b" % header for header in self.headers if header[0] != b"upgrade"]
                self.parser = httptools.HttpRequestParser(self)
                self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn's
                self._parse(b"\r\n".join([*lines, b"", data[stopped.args[0] :]]))

    def on_message_begin(self) -> None:
        """Starts the time limit of the headers; the request may be pipelined behind another one."""
        super().on_message_begin()
        self._offers_upgrade = False
        self._begin_headers()

    def on_headers_complete(self) -> None:
        """Ends the time limit of the headers and hands the request to the application."""
        self._offers_upgrade = self.parser.should_upgrade() and self.parser.get_method() != b"CONNECT"
        if self._offers_upgrade:
            return
        self._end_headers()
        self._in_body = True
        super().on_headers_complete()
        if self._is_closing and self.cycle is not None:
            self.cycle.keep_alive = False

    def on_message_complete(self) -> None:
        """Starts the keep-alive limit if the answer, such as a refusal, was sent before the body had
        ended.
        """
        if self._offers_upgrade:
            return
        super().on_message_complete()
        self._in_body = False
        if self.cycle is not None and self.cycle.response_complete and self.timeout_keep_alive_task is None:
            self._end_headers()
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )

    def shutdown(self) -> None:
        """Closes after the request that is arriving was answered, where uvicorn would reset the
        connection.
        """
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.keep_alive = False
            return
        self._is_closing = True

        def close_if_idle() -> None:
            if self.cycle is None or self.cycle.response_complete:
                self.transport.close()

        self.loop.call_later(self.last_moment, close_if_idle)

    def _begin_headers(self) -> None:
        if self._header_timer is None:
            self._header_bytes = 0
            self._header_timer = self.loop.call_later(self.header_seconds, self._refuse_late_headers)

    def _end_headers(self) -> None:
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None

    def _refuse_late_headers(self) -> None:
        if self._header_bytes == 0:
            self.transport.close()  # no request began: the client would take an answer for its next request's
            return
        self._refuse("408 Request Timeout", f"not complete within {self.header_seconds:g} seconds")

    def _refuse(self, status: str, problem: str) -> None:
        """Answers and closes at once, without a request object and without waiting for earlier answers."""
        self._end_headers()
        if self.transport.is_closing():
            return
        sentence = f"The request's headers are {problem}."
        head = f"HTTP/1.1 {status}\r\ncontent-type: text/plain\r\ncontent-length: {len(sentence)}\r\n"
        self.transport.write(f"{head}connection: close\r\n\r\n{sentence}".encode())
        self.transport.close()


class DrainingServer(uvicorn.Server):
    """A uvicorn server that drains at the first signal and ends with status 0, not with the signal's."""

    def __init__(
        self,
        app: Any,
        drain_seconds: float,
        *,
        connections: type[BoundedConnection] = BoundedConnection,
        **config: Any,
    ) -> None:
        """`config` has further arguments of uvicorn.Config; `connections` is the class of a connection."""
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
        self._is_draining = False

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """The signal handler: drains at the first signal, ends at once at a second one."""
        if self._is_draining:
            self.end_now()
        else:
            self._is_draining = True
            self.leave()

    def leave(self) -> None:
        """Begins to stop, at the first signal; subclasses may do more before it."""
        self.should_exit = True

    def end_now(self) -> None:
        """Ends the process at once, at each further signal, without waiting for computing threads."""
        os._exit(1)


class JsonFormatter(logging.Formatter):
    """Formats a log record as one line of JSON: its time, its level, and its message or `facts`."""

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
    """Sends the log of the service and of uvicorn to standard error, as lines of JSON."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    for name in ("bertsmith.serving", "uvicorn.error", "fastapi", "opentelemetry"):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
    LOG.setLevel(logging.INFO)
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)


def lower_thread_priority() -> None:
    """Gives the calling thread a lower priority, on Linux, where threads have their own. The event loop then
    answers within a millisecond while all cores compute.
    """
    if sys.platform.startswith("linux"):
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
