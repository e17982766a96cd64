"""A mirror in this process, or as `bertsmith mirror serve` in one of its own."""

import http.client
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from bertsmith.mirror.answering.reconciler import Pace
from bertsmith.mirror.answering.stage_store import StageStore
from bertsmith.mirror.app import MirrorApp
from bertsmith.mirror.relay_server import RelayServer
from bertsmith.mirror.settings import read_settings
from bertsmith.mirror.store import Store
from bertsmith.serving.http_server import bind_socket

PATIENCE = 60.0  # seconds, on a busy machine
QUICK = Pace(0.02, 0.05, 0.1)
IN_STEP = Pace(1e6, 1e6, 1e6)  # the evidence is followed by `follow` alone, the same in every run


class Answer(NamedTuple):
    """What came back."""

    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


def ask(
    port: int,
    path: str,
    body: Any = None,
    headers: Mapping[str, str] | None = None,
    method: str | None = None,
) -> Answer:
    """On a connection of its own; without a header that isn't given."""
    data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
    usual = {"content-type": "application/json"} if data is not None else {}
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)) as connection:
        connection.request(
            method or ("GET" if data is None else "POST"), path, data, {**usual, **(headers or {})}
        )
        answer = connection.getresponse()
        return Answer(answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read())


def wait_until(found: Callable[[], Any], seconds: float = PATIENCE) -> Any:
    """What `found` gives as soon as it is true."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if value := found():
            return value
        time.sleep(0.02)
    raise AssertionError("it did not happen")


@dataclass
class RunningMirror:
    """`app` is only there in this process."""

    port: int
    path: Path
    app: MirrorApp

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def store(self) -> Store:
        return self.app.store

    @property
    def stages(self) -> StageStore:
        return self.app.reconciler.store

    def ask(
        self, path: str, body: Any = None, headers: Mapping[str, str] | None = None, **more: Any
    ) -> Answer:
        return ask(self.port, path, body, headers, **more)

    def settle(self) -> None:
        """All that was answered is stored or counted."""
        wait_until(lambda: self.app.relay.under_way == 0 and self.app.recorder.is_idle)

    def follow(self) -> None:
        """And the evidence of it has been followed, a training awaited."""
        reconciler = self.app.reconciler
        wait_until(lambda: self.app.relay.audits.waiting == self.app.relay.replays.waiting == 0)
        self.settle()
        if reconciler.pace == IN_STEP:
            reconciler.follow()
            while reconciler.trainer.is_busy:
                time.sleep(0.05)
                reconciler.follow()
            reconciler.follow()
            return
        looks = reconciler.looks
        wait_until(lambda: reconciler.looks >= looks + 2 and not reconciler.trainer.is_busy, 3 * PATIENCE)

    def calls(self) -> list[Any]:
        """All of them, in the order in which they came."""
        self.settle()
        found = [call for each in self.store.versions() for call in self.store.calls(each.version)]
        return sorted(found, key=lambda each: each.began)

    def skipped(self) -> dict[tuple[str, str], int]:
        self.settle()
        return self.store.skipped()


@contextmanager
def running_mirror(
    folder: Path, upstream: str | None, pace: Pace = QUICK, **settings: Any
) -> Iterator[RunningMirror]:
    """In a thread."""
    given = {"upstream": upstream, "store": str(folder / "mirror.sqlite"), "port": 0, **settings}
    read = read_settings(None, given, {})
    with bind_socket(read.host, read.port) as listener:
        app = MirrorApp(read, Store(read.store), pace=pace)
        listener.listen(512)
        server = RelayServer(read, app)
        thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
        thread.start()
        wait_until(lambda: server.started)
        try:
            yield RunningMirror(listener.getsockname()[1], Path(read.store), app)
        finally:
            server.should_exit = True
            thread.join(PATIENCE)
            assert not thread.is_alive()


@dataclass
class MirrorProcess:
    """`lines` are its log so far."""

    process: "subprocess.Popen[str]"
    port: int
    lines: list[str]

    def ask(self, path: str, body: Any = None, headers: Mapping[str, str] | None = None) -> Answer:
        return ask(self.port, path, body, headers)

    def said(self, text: str) -> dict[str, Any]:
        """The first line of the log with `text` in it."""
        found: str = wait_until(lambda: next((each for each in self.lines if text in each), None))
        facts: dict[str, Any] = json.loads(found)
        return facts


@contextmanager
def mirror_process(
    *arguments: object, environment: Mapping[str, str] | None = None
) -> Iterator[MirrorProcess]:
    """Killed at the end if it still runs."""
    command = [sys.executable, "-m", "bertsmith", "mirror", "serve", *map(str, arguments), "--port", "0"]
    process = subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True, env={**os.environ, **(environment or {})}
    )
    lines: list[str] = []

    def read() -> None:
        assert process.stderr is not None
        for line in process.stderr:
            lines.append(line)

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    running = MirrorProcess(process, 0, lines)
    try:
        running.port = int(running.said("address")["address"].rpartition(":")[2])
        yield running
    finally:
        if process.poll() is None:
            process.kill()
        process.wait(PATIENCE)
        reader.join(PATIENCE)
        assert process.stderr is not None
        process.stderr.close()
