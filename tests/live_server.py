"""A real `bertsmith serve`: its process, what it logs, and clients that ask it without a break."""

import http.client
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from bertsmith.serving.http_server import BoundedConnection, DrainingServer

START = 120.0  # seconds in which a server has begun, and in which it ends, on a busy machine


class Answer(NamedTuple):
    """What came back."""

    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class LiveServer:
    """`log` has the lines so far. `stop` is of one that runs in this process."""

    process: "subprocess.Popen[str]"
    port: int
    log: list[dict[str, Any]]
    stop: Callable[[], None] = lambda: None

    def ask(
        self, path: str, body: Any = None, headers: Mapping[str, str] | None = None, method: str | None = None
    ) -> Answer:
        """On a connection of its own."""
        with closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)) as connection:
            return ask(connection, path, body, headers, method)

    def wait_for(self, found: Callable[[dict[str, Any]], bool], count: int = 1) -> dict[str, Any]:
        """The `count`-th line of the log that is as wanted."""
        end = time.monotonic() + START
        while time.monotonic() < end:
            if len(lines := [line for line in self.log if found(line)]) >= count:
                return lines[count - 1]
            time.sleep(0.02)
        raise AssertionError(f"not logged: {self.log[-5:]}")

    def said(self, text: str, count: int = 1) -> dict[str, Any]:
        """The `count`-th line whose message has `text` in it."""
        return self.wait_for(lambda line: text in line.get("message", ""), count)


def ask(
    connection: http.client.HTTPConnection,
    path: str,
    body: Any = None,
    headers: Mapping[str, str] | None = None,
    method: str | None = None,
) -> Answer:
    data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
    usual = {"content-type": "application/json"} if data is not None else {}
    connection.request(
        method or ("GET" if body is None else "POST"), path, data, {**usual, **(headers or {})}
    )
    answer = connection.getresponse()
    return Answer(answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read())


@contextmanager
def live_server(
    *arguments: object,
    environment: Mapping[str, str] | None = None,
    before: tuple[str, ...] = ("-m", "bertsmith"),
    port: int = 0,
) -> Iterator[LiveServer]:
    """Begun by `serve ARGUMENTS --port PORT`, killed at the end if it still runs."""
    command = [sys.executable, *before, "serve", *map(str, arguments), "--port", str(port)]
    process = subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True, env={**os.environ, **(environment or {})}
    )
    log: list[dict[str, Any]] = []

    def read() -> None:
        assert process.stderr is not None
        for line in process.stderr:
            log.append(json.loads(line) if line.startswith("{") else {"message": line})

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    server = LiveServer(process, 0, log)
    try:
        address = server.wait_for(lambda line: "address" in line)["address"]
        server.port = int(port) if (port := address.rpartition(":")[2]).isdigit() else 0  # of a Unix socket
        yield server
    finally:
        if process.poll() is None:
            process.kill()
        process.wait(START)
        reader.join(START)
        assert process.stderr is not None
        process.stderr.close()


@dataclass
class Load:
    """Clients that ask one thing after another, each on its connection, until they are told to stop or find
    nobody there. `answers` by the id of the request, `failures` likewise.
    """

    server: LiveServer
    path: str
    body: Any
    headers: dict[str, str] = field(default_factory=dict)
    answers: dict[str, Answer] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    _stop: threading.Event = field(default_factory=threading.Event)

    @contextmanager
    def running(self, clients: int = 4) -> Iterator["Load"]:
        threads = [threading.Thread(target=self._ask, args=(number,)) for number in range(clients)]
        for thread in threads:
            thread.start()
        try:
            yield self
        finally:
            self._stop.set()
            for thread in threads:
                thread.join(START)

    def wait(self, count: int) -> None:
        """For so many answers more."""
        count, end = len(self.answers) + count, time.monotonic() + START
        while len(self.answers) < count:
            assert time.monotonic() < end, self.failures
            time.sleep(0.01)

    def _ask(self, client: int) -> None:
        number = 0
        with closing(http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=60)) as connection:
            while not self._stop.is_set():
                number += 1
                name = f"{client}-{number}"
                try:
                    if connection.sock is None:
                        connection.connect()
                except (ConnectionRefusedError, ConnectionResetError):  # nobody, or nobody any more
                    return
                try:
                    headers = {**self.headers, "x-request-id": name}
                    self.answers[name] = ask(connection, self.path, self.body, headers)
                except (OSError, http.client.HTTPException) as error:
                    self.failures[name] = repr(error)
                    connection.close()


@contextmanager
def threaded_server(
    app: Any, connections: type[BoundedConnection] = BoundedConnection
) -> Iterator[LiveServer]:
    """An application of this process, asked over real sockets; `process` is none."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        server = DrainingServer(app, START, connections=connections, proxy_headers=False)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            while not server.started:
                assert thread.is_alive()
                time.sleep(0.01)
            stop = partial(setattr, server, "should_exit", True)
            yield LiveServer(None, listener.getsockname()[1], [], stop)  # type: ignore[arg-type]
        finally:
            server.should_exit = True
            thread.join(START)
