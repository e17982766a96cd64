"""An LLM's API on this machine that answers as it is told: with what, when, and how it breaks off."""

import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

import orjson


class Seen(NamedTuple):
    """A request as it came."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return orjson.loads(self.body)


@dataclass
class Reply:
    """`pieces` go out one by one, `pause` seconds apart; several as chunks. `wait` is before anything goes
    out. With `cut` the connection ends before the answer does; with `silent` at once.
    """

    pieces: Sequence[bytes]
    status: int = 200
    headers: dict[str, str] = field(default_factory=lambda: {"content-type": "application/json"})
    is_stream: bool = False
    wait: float = 0.0
    pause: float = 0.0
    cut: bool = False
    silent: bool = False


Script = Callable[[Seen], Reply]


class Upstream(ThreadingHTTPServer):
    """`seen` has all requests, `gone` counts clients that went away before their answer ended."""

    daemon_threads = True
    request_queue_size = 512

    def __init__(self, script: Script) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.script = script
        self.seen: list[Seen] = []
        self.gone = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients that go away are what is tested."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Upstream
    disable_nagle_algorithm = True
    wbufsize = -1

    def do_GET(self) -> None:
        body = self._body()
        seen = Seen(self.command, self.path, {k.lower(): v for k, v in self.headers.items()}, body)
        self.server.seen.append(seen)
        reply = self.server.script(seen)
        try:
            self._send(reply)
        except OSError:
            self.server.gone += 1
            self.close_connection = True

    do_POST = do_PUT = do_DELETE = do_HEAD = do_GET  # noqa: N815  http.server's names

    def _body(self) -> bytes:
        if self.headers.get("transfer-encoding", "") != "chunked":
            return self.rfile.read(int(self.headers.get("content-length", 0)))
        found = b""
        while size := int(self.rfile.readline(), 16):
            found += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return found

    def _send(self, reply: Reply) -> None:
        end = time.monotonic() + reply.wait
        while time.monotonic() < end:
            time.sleep(0.02)
            self._check_client()
        if reply.silent:
            self._hang_up()
            return
        self.send_response_only(reply.status)
        for name, value in reply.headers.items():
            self.send_header(name, value)
        size = sum(map(len, reply.pieces))
        if reply.is_stream:
            self.send_header("transfer-encoding", "chunked")
        else:
            self.send_header("content-length", str(size + 1000 * reply.cut))
        self.end_headers()
        if self.command == "HEAD":
            return
        for piece in reply.pieces:
            self.wfile.write(b"%x\r\n%b\r\n" % (len(piece), piece) if reply.is_stream else piece)
            self.wfile.flush()
            if reply.pause:
                time.sleep(reply.pause)
                self._check_client()
        if reply.cut:
            self._hang_up()
        elif reply.is_stream:
            self.wfile.write(b"0\r\n\r\n")
        self.wfile.flush()

    def _check_client(self) -> None:
        """Raises OSError where it has gone."""
        self.connection.setblocking(False)
        with suppress(BlockingIOError):
            if self.connection.recv(1, socket.MSG_PEEK) == b"":
                raise ConnectionResetError
        self.connection.setblocking(True)

    def _hang_up(self) -> None:
        self.wfile.flush()
        self.close_connection = True

    def log_message(self, *_: object) -> None:
        """Nothing."""


@contextmanager
def upstream_of(script: Script) -> Iterator[Upstream]:
    """Until the block ends."""
    server = Upstream(script)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)
