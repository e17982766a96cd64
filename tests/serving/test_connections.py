"""Real sockets: what a client sends, and how slowly, is bounded in time and memory."""

import asyncio
import http.client
import json
import socket
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psutil
import pytest
from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from bertsmith.serving.admission import BodyReader
from bertsmith.serving.app import make_app
from bertsmith.serving.http_server import LONGEST_HEADERS, BoundedConnection
from bertsmith.serving.protocols.routing import our_error_body, refuse
from bertsmith.serving.refusals import Refusal
from bertsmith.serving.settings import read_settings
from live_server import START, LiveServer, ask, live_server, threaded_server
from served_models import save_fine_tuned

LIMIT = 100_000  # bytes of a body


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_fine_tuned(tmp_path_factory.mktemp("served") / "model", "classification")


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[LiveServer]:
    settings = read_settings([f"classification={folder}"], None, {"max_body_bytes": LIMIT}, {})
    with threaded_server(make_app(settings)) as found:
        yield found


HEAD = b"POST /v1/classification HTTP/1.1\r\nhost: here\r\ncontent-type: application/json\r\n"
BIG = b'{"inputs": "' + b"a" * LIMIT + b'"}'
CHUNKED = HEAD + b"transfer-encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (HEAD + b"content-length: %d\r\n\r\n" % len(BIG) + BIG, 413),
        (HEAD + b"content-length: %d\r\n\r\n" % 10**15, 413),
        (HEAD + b"content-length: %s\r\n\r\n" % (b"9" * 30), 400),
        (HEAD + b"content-length: -1\r\n\r\n", 400),
        (HEAD + b"content-length: 5\r\ncontent-length: 6\r\n\r\nhello", 400),
        (HEAD + b"content-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        (CHUNKED + b"%x\r\n%s\r\n0\r\n\r\n" % (len(BIG), BIG), 413),
        (CHUNKED + b"12\r\n" + b'{"inputs": "bano"}' + b"\r\n0\r\n\r\n", 200),
        (CHUNKED + b"zz\r\n", 400),
        (HEAD + b"content-length: 18\r\n\r\n" + b'{"inputs": "bano"}' + b"GARBAGE", 400),
        (HEAD + b"content-length: 10\r\n\r\n{}", None),  # less than announced, and then it is gone
        (HEAD[:40], None),
        (b"\x16\x03\x01\x02\x00\x01", 400),  # a browser that tries https
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
        (b"GET /health/live HTTP/1.1\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n", 200),
        (b"BREW /health/live HTTP/1.1\r\nhost: here\r\n\r\n", 400),
    ],
)  # fmt: skip
def test_what_is_no_request_is_refused_and_the_next_one_answered(
    server: LiveServer, sent: bytes, status: int | None
) -> None:
    assert status_of(raw(server, [sent])) == status
    assert server.ask("/health/ready").status == 200


def raw(server: LiveServer, parts: Iterable[bytes], pause: float = 0.0) -> bytes:
    """What comes back until the service closes, or for a second after our side has sent all."""
    found = b""
    with socket.create_connection(("127.0.0.1", server.port), timeout=1.0) as connection:
        try:
            for part in parts:
                connection.sendall(part)
                time.sleep(pause)
            while part := connection.recv(65536):
                found += part
        except (ConnectionError, TimeoutError):
            pass
        return found


def status_of(answer: bytes) -> int | None:
    return int(answer.split()[1]) if answer else None


OFFER = b"connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABkAAQCAAAAAAIAAAAA\r\n"
ASKED = b'{"inputs": "bano"}'


@pytest.mark.parametrize("offer", [OFFER, OFFER.replace(b"h2c", b"websocket"), b"Upgrade: h2c\r\n" + OFFER])
@pytest.mark.parametrize("pieces", [1, 7, 1000])
def test_an_offer_of_another_protocol_is_passed_over(server: LiveServer, offer: bytes, pieces: int) -> None:
    """Java's and curl's: RFC 9110, section 7.8. The connection goes on with what comes behind the body."""
    whole = HEAD + offer + b"content-length: %d\r\n\r\n" % len(ASKED) + ASKED
    whole += CHUNKED.replace(b"\r\n\r\n", b"\r\n" + offer + b"\r\n") + b"12\r\n" + ASKED + b"\r\n0\r\n\r\n"
    whole += b"GET /health/live HTTP/1.1\r\nhost: here\r\n" + offer + b"\r\n"
    whole += HEAD + b"connection: close\r\ncontent-length: %d\r\n\r\n" % len(ASKED) + ASKED
    size = -(-len(whole) // pieces)
    found = raw(server, (whole[at : at + size] for at in range(0, len(whole), size)))
    assert found.count(b"HTTP/1.1 200 OK") == 4
    assert found.count(b'"label"') == 3


@pytest.mark.parametrize("pieces", [1, 1000])
@pytest.mark.parametrize(
    "head",
    [
        HEAD + OFFER.replace(b"Upgrade, ", b"close, Upgrade, "),
        HEAD + OFFER + b"connection: close\r\n",
        HEAD.replace(b"/1.1", b"/1.0") + OFFER,
    ],
)
def test_an_offer_on_a_connection_that_is_to_be_closed_is_passed_over(
    server: LiveServer, head: bytes, pieces: int
) -> None:
    whole = head + b"content-length: %d\r\n\r\n" % len(ASKED) + ASKED
    size = -(-len(whole) // pieces)
    found = raw(server, (whole[at : at + size] for at in range(0, len(whole), size)))
    assert status_of(found) == 200 and b'"label"' in found


def test_a_client_that_sends_all_before_it_reads_learns_why_it_was_refused(server: LiveServer) -> None:
    with closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=START)) as connection:
        for _ in range(3):
            answer = ask(connection, "/v1/classification", b"a" * 20_000_000)
            assert answer.status == 413
            assert answer.json()["error"]["message"].startswith("The body has 20,000,000 bytes or more;")
            assert ask(connection, "/v1/classification", {"inputs": "bano"}).status == 200


def many_headers(count: int, size: int) -> bytes:
    lines = (b"x-%d: %s\r\n" % (number, b"a" * size) for number in range(count))
    return b"GET /health/live HTTP/1.1\r\nhost: here\r\n" + b"".join(lines) + b"\r\n"


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (many_headers(2000, 8), 200),
        (many_headers(100, LONGEST_HEADERS // 50), 431),
        (many_headers(100_000, 8), 431),
        (b"GET /" + b"a" * (LONGEST_HEADERS + 1000), 431),
        (b"GET / HTTP/1.1\r\nx: " + b"a" * 10 * LONGEST_HEADERS, 431),
        (b"GET / HTTP/1.1\r\n" + b"a" * 2 * LONGEST_HEADERS, 431),
    ],
)
def test_headers_have_a_largest_size(server: LiveServer, sent: bytes, status: int) -> None:
    answer = raw(server, [sent[at : at + 4096] for at in range(0, len(sent), 4096)], pause=0.0002)
    assert status_of(answer) in (status, None if status == 431 else status)  # or reset while we still send
    assert server.ask("/health/ready").status == 200


class Impatient(BoundedConnection):
    header_seconds = 0.5


@pytest.mark.parametrize(
    "first",
    [b"", b"\r\n", b"GET /", b"GET / HTTP/1.1\r\nhost: h\r\nx: ", b"GET / HTTP/1.1\r\nhost: h\r\n\r\n"],
)
def test_headers_that_come_by_the_byte_are_waited_for_so_long(first: bytes) -> None:
    """`first` may be a whole request: the next one on its connection has no more time either."""
    with threaded_server(_echo, Impatient) as server:
        began = time.monotonic()
        answer = raw(server, [first, *([b"a"] * 40)] if first else [first], pause=0.05)
        assert time.monotonic() - began < 4
        assert answer == b"" or b"HTTP/1.1 408 " in answer
        with socket.create_connection(("127.0.0.1", server.port), timeout=5) as idle:
            assert idle.recv(4096) == b""


async def _echo(scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] == "http":
        await receive()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body"})


async def _refuse(refusal: Refusal, scope: Scope, receive: Receive, send: Send) -> None:
    scope.setdefault("state", {})
    await refuse(refusal, our_error_body, Request(scope, receive))(scope, receive, send)


def test_a_body_that_comes_by_the_byte_is_waited_for_so_long() -> None:
    patient = BodyReader(_echo, LIMIT, _refuse, seconds=0.5)
    with threaded_server(patient, Impatient) as server:
        began = time.monotonic()
        answer = raw(server, [HEAD + b"content-length: 1000\r\n\r\n", *([b"a"] * 6)], pause=0.05)
        assert 0.5 < time.monotonic() - began < 5
        assert status_of(answer) == 408
        assert b"did not arrive within 0.5 seconds" in answer


class Patient(BoundedConnection):
    last_moment = 60.0


def test_a_request_that_is_on_its_way_when_the_service_stops_is_still_answered() -> None:
    """Its connection was made before; its first byte comes when no new connection is taken any more."""
    with threaded_server(_echo, Patient) as server:
        idle = socket.create_connection(("127.0.0.1", server.port), timeout=START)
        assert server.ask("/").status == 200
        server.stop()
        end = time.monotonic() + START
        while time.monotonic() < end:
            try:
                socket.create_connection(("127.0.0.1", server.port)).close()
            except ConnectionResetError:  # the socket closed before it was taken
                continue
            except ConnectionRefusedError:
                break
        idle.sendall(b"GET / HTTP/1.1\r\nhost: here\r\n\r\n")
        answer = b"".join(iter(lambda: idle.recv(4096), b""))
        idle.close()
    assert answer.startswith(b"HTTP/1.1 200 OK")
    assert b"connection: close" in answer


def test_what_a_stopping_service_has_no_time_for_is_told_to_go_elsewhere() -> None:
    """uvicorn cancels it, and would answer 500."""
    sent: list[Any] = []

    async def ask() -> None:
        messages = [{"type": "http.request", "body": b"", "more_body": False}]
        begun = asyncio.Event()

        async def receive() -> Any:
            if not messages:
                await asyncio.Event().wait()
            return messages.pop()

        async def send(message: Any) -> None:
            sent.append(message)

        async def forever(*_: Any) -> None:
            begun.set()
            await asyncio.Event().wait()

        scope: Any = {"type": "http", "method": "POST", "path": "/", "headers": []}
        task = asyncio.ensure_future(BodyReader(forever, LIMIT, _refuse)(scope, receive, send))
        await begun.wait()
        task.cancel()
        await task

    asyncio.run(ask())
    assert [message["type"] for message in sent] == ["http.response.start", "http.response.body"]
    assert sent[0]["status"] == 503
    assert json.loads(sent[1]["body"])["error"]["code"] == "unavailable"


def test_bodies_that_are_open_at_a_time_have_a_ceiling_together(server: LiveServer) -> None:
    """Slow clients, each below the size of a body: their bodies are held until they are complete."""
    part = b"a" * (LIMIT - 50)
    head = HEAD + b"content-length: %d\r\n\r\n" % LIMIT
    slow = [socket.create_connection(("127.0.0.1", server.port), timeout=START) for _ in range(64)]
    try:
        for each in slow:
            each.sendall(head + part)
        answered = ask_until(server, 503)
        assert answered["error"]["code"] == "unavailable"
        assert "The requests that are open have 6,4" in answered["error"]["message"]
    finally:
        for each in slow:
            each.close()
    assert ask_until(server, 200)["model"] == "classification"


def ask_until(server: LiveServer, status: int) -> Any:
    """What is in the answer with this status, which another one may come before."""
    end = time.monotonic() + START
    while (answer := server.ask("/v1/classification", {"inputs": "bano" * 1000})).status != status:
        assert time.monotonic() < end, answer
        time.sleep(0.01)
    return answer.json()


def test_a_client_that_goes_away_while_it_waits_leaves_the_queue(folder: Path) -> None:
    """The one core is busy with another request, until the test lets it go on."""
    app = make_app(read_settings([f"m={folder}"], None, {}, {}))
    body = json.dumps({"inputs": ["bano"] * 50, "timeout_ms": 10_000}).encode()
    sent = b"POST /v1/m HTTP/1.1\r\nhost: h\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s"
    queue, go_on, begun = app.state.service.queue, threading.Event(), threading.Event()
    with threaded_server(app) as server:
        run = app.state.service.models["m"].operations["predict"].forward
        usual = run.compute

        def compute(batch: Any, layout: Any) -> Any:
            begun.set()
            assert go_on.wait(START)
            return usual(batch, layout)

        object.__setattr__(run, "compute", compute)
        first = socket.create_connection(("127.0.0.1", server.port), timeout=START)
        first.sendall(sent % (len(body), body))
        assert begun.wait(START)
        others = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(20)]
        for each in others:
            each.sendall(sent % (len(body), body))
        until(lambda: queue.size == 20)
        assert server.ask("/health/ready").status == 200
        for each in others[:15]:
            each.close()
        until(lambda: queue.size == 5)
        assert queue.waiting_tokens == 5 * 50 * 3
        go_on.set()
        for each in (first, *others[15:]):
            assert each.recv(4096).startswith(b"HTTP/1.1 200 OK")
            each.close()
        until(lambda: queue.size == queue.waiting_tokens == queue.computing == 0)


def until(true: Any) -> None:
    end = time.monotonic() + START
    while not true():
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.mark.slow
def test_gigabytes_are_thrown_away_in_bounded_memory(folder: Path) -> None:
    with live_server(f"m={folder}") as server:
        assert server.ask("/v1/m", {"inputs": "bano"}).status == 200
        process = psutil.Process(server.process.pid)
        before = process.memory_info().rss
        part = b"10000\r\n" + b"a" * 0x10000 + b"\r\n"
        threads = [threading.Thread(target=raw, args=(server, [CHUNKED, *([part] * 4000)])) for _ in range(4)]
        for thread in threads:
            thread.start()
        most = before
        while any(thread.is_alive() for thread in threads):
            most = max(most, process.memory_info().rss)
            assert server.ask("/health/ready").status == 200
        assert most - before < 60_000_000


def test_bodies_of_one_key_leave_half_of_the_room_to_the_others() -> None:
    """Those of key a come to their last byte and no further; then b asks, and a has more than its part."""
    size = LIMIT - 1
    sent = dict[str, list[int]]()

    async def ask() -> None:
        async def forever(*_: Any) -> None:
            await asyncio.Event().wait()

        reading = BodyReader(forever, LIMIT, _refuse)

        def request(key: str) -> "asyncio.Task[None]":
            left: list[Any] = [{"type": "http.request", "body": b"a" * size, "more_body": True}]

            async def receive() -> Any:
                if not left:
                    await asyncio.Event().wait()
                return left.pop()

            async def send(message: Any) -> None:
                if message["type"] == "http.response.start":
                    sent.setdefault(key, []).append(message["status"])

            scope: Any = {"type": "http", "method": "POST", "path": "/", "headers": [], "state": {"key": key}}
            return asyncio.ensure_future(reading(scope, receive, send))

        async def open_some(key: str, count: int) -> int:
            """How many of them were refused."""
            before = len(sent.get(key, []))
            tasks.extend(request(key) for _ in range(count))
            for _ in range(10):
                await asyncio.sleep(0)
            return len(sent.get(key, [])) - before

        tasks = list[asyncio.Task[None]]()
        assert await open_some("a", 100) == 36
        assert await open_some("b", 100) == 68
        assert await open_some("c", 1) == 0
        assert await open_some("a", 1) == 1
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert await open_some("", 64) == 0  # all of it is free again

    asyncio.run(ask())
    assert {status for each in sent.values() for status in each} == {503}
