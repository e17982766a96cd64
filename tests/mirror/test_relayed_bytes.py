"""What the upstream gets and what the client gets back are the same bytes, whatever happens on the way."""

import asyncio
import gzip
import http.client
import json
import random
import socket
import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import httpcore
import llm_answers
import pytest
from running_mirror import RunningMirror, ask, running_mirror, wait_until
from scripted_upstream import Reply, Seen, Upstream, upstream_of

from bertsmith.mirror.upstreams import Connections, forwarded_headers

CHAT = "/v1/chat/completions"
BODY = {
    "model": "m",
    "messages": [{"role": "user", "content": "my card"}],
    "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": llm_answers.SCHEMA}},
}
RECORDED = "recorded; site="
BOTH = {"openai_base_url": "{}/o/v1", "anthropic_base_url": "{}/a"}


def port_of(upstream: Upstream) -> int:
    return int(upstream.server_address[1])


def raw_answer(port: int, body: bytes, path: str = CHAT) -> bytes:
    """All bytes up to the connection's end."""
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
    with closing(socket.create_connection(("127.0.0.1", port), timeout=30)) as connection:
        connection.sendall(head.encode() + body)
        found = b""
        while piece := connection.recv(65536):
            found += piece
        return found


def test_path_query_method_headers_and_body_reach_the_upstream_as_they_were(
    upstream: Upstream, mirror: RunningMirror
) -> None:
    target = "/v1/a%2Fb/%C3%A4;x/../c?q=%20+&&k=v%3D&empty"
    headers = {"Authorization": "Bearer sk-1", "X-Custom": "a,  b", "Accept-Encoding": "br, gzip;q=0.5"}
    for method, body in (("GET", None), ("POST", b"\x00\xff not json"), ("DELETE", None), ("PUT", b"{}")):
        for port in (mirror.port, port_of(upstream)):
            ask(port, target, body, headers, method)
    for through, direct in zip(upstream.seen[::2], upstream.seen[1::2], strict=True):
        assert through.method == direct.method
        assert through.target == direct.target == target
        assert through.body == direct.body
        assert through.headers == direct.headers


def test_headers_of_a_connection_and_of_the_mirror_stay_behind(
    upstream: Upstream, mirror: RunningMirror
) -> None:
    headers = {
        "Connection": "keep-alive, X-Mine", "X-Mine": "1", "TE": "trailers", "Proxy-Authorization": "Basic x",
        "X-Subject": "anna", "X-Bertsmith-Site": "intents", "Accept-Encoding": "gzip, br, zstd",
    }  # fmt: skip
    answer = mirror.ask(CHAT, BODY, headers)
    (seen,) = upstream.seen
    left = {"x-mine", "te", "proxy-authorization", "x-subject", "x-bertsmith-site", "connection"}
    assert not left & seen.headers.keys()
    assert seen.headers["accept-encoding"] == "gzip"  # br could not be recorded
    assert answer.headers["x-bertsmith"] == "recorded; site=intents"


@pytest.mark.parametrize("kind", ["Application/JSON; charset=UTF-8", "TEXT/Event-Stream"])
def test_a_call_is_recorded_however_its_content_type_is_capitalized(tmp_path: Path, kind: str) -> None:
    body = BODY | {"stream": "Stream" in kind}
    reply = replace(llm_answers.chat(body), headers={"content-type": kind})
    with upstream_of(lambda _: reply) as upstream, running_mirror(tmp_path, upstream.url) as mirror:
        answer = mirror.ask(CHAT, body)
        assert answer.headers["content-type"] == kind
        assert answer.headers["x-bertsmith"].startswith(RECORDED)
        (call,) = mirror.calls()
        assert set(call.completion.value) == set(llm_answers.SCHEMA["properties"])


@pytest.mark.parametrize(
    ("accepted", "sent"),
    [
        ("gzip", "gzip"),
        ("br;q=1.0, gzip;q=0.8, *;q=0.1", "gzip"),
        ("deflate,GZIP , br", "gzip"),
        ("x-gzip; q=0.001", "gzip"),
        ("gzip;q=0", "identity"),
        ("gzip ; q=0.000, br", "identity"),
        ("identity, gzip;q=0.0", "identity"),
        ("br, zstd", "identity"),
        ("", "identity"),
    ],
)
def test_a_client_gets_gzip_only_where_it_accepts_it(accepted: str, sent: str) -> None:
    headers = [(b"accept-encoding", accepted.encode()), (b"x-own", b"gzip;q=0")]
    narrowed = dict(forwarded_headers(headers, b"host", narrow=True))
    assert narrowed == {b"host": b"host", b"accept-encoding": sent.encode(), b"x-own": b"gzip;q=0"}
    assert forwarded_headers(headers, b"host", narrow=False)[1:] == headers


def test_an_offer_of_another_protocol_stays_behind_and_the_call_is_recorded(
    upstream: Upstream, mirror: RunningMirror
) -> None:
    """Java's and curl's h2c: RFC 9110, section 7.8."""
    offer = {"Connection": "Upgrade, HTTP2-Settings", "Upgrade": "h2c", "HTTP2-Settings": "AAMAAABkAAQAAP__"}
    answer = mirror.ask(CHAT, BODY, offer)
    (seen,) = upstream.seen
    assert json.loads(seen.body) == BODY
    assert not {"connection", "upgrade", "http2-settings"} & seen.headers.keys()
    assert answer.headers["x-bertsmith"].startswith(RECORDED)
    assert mirror.ask("/bertsmith/health", method="HEAD").status == 200


@pytest.mark.parametrize("size", [0, 1, 1000, 70_000, 3_000_000])
@pytest.mark.parametrize("chunked", [False, True])
def test_bodies_of_any_size_arrive_and_come_back(tmp_path: Path, size: int, chunked: bool) -> None:
    content = random.Random(size).randbytes(size)

    def echo(seen: Seen) -> Reply:
        return Reply([seen.body], headers={"content-type": "application/octet-stream"})

    with upstream_of(echo) as upstream, running_mirror(tmp_path, upstream.url) as mirror:
        with closing(http.client.HTTPConnection("127.0.0.1", mirror.port, timeout=60)) as connection:
            sent: Any = (
                (content[begin : begin + 9999] for begin in range(0, size, 9999)) if chunked else content
            )
            connection.request("POST", "/v1/files", sent, encode_chunked=chunked)
            assert connection.getresponse().read() == content
        assert upstream.seen[0].body == content
        assert ("transfer-encoding" in upstream.seen[0].headers) == chunked


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("zipped", [False, True])
def test_an_answer_comes_back_byte_for_byte_and_is_recorded(
    tmp_path: Path, stream: bool, zipped: bool
) -> None:
    def script(seen: Seen) -> Reply:
        reply = llm_answers.chat(seen.json())
        if zipped:
            reply.pieces = [gzip.compress(b"".join(reply.pieces), mtime=0)]
            reply.headers |= {"content-encoding": "gzip"}
        sent.append(b"".join(reply.pieces))
        return reply

    sent: list[bytes] = []
    with upstream_of(script) as upstream, running_mirror(tmp_path, upstream.url) as mirror:
        answer = mirror.ask(CHAT, BODY | {"stream": stream}, {"accept-encoding": "gzip"})
        assert [answer.body] == sent
        assert answer.headers.get("content-encoding") == ("gzip" if zipped else None)
        assert [each.completion.value["intent"] for each in mirror.calls()] == ["card"]


def test_pieces_of_a_stream_come_as_they_are_sent(tmp_path: Path) -> None:
    def script(seen: Seen) -> Reply:
        reply = llm_answers.chat(seen.json())
        reply.pause = 0.15
        return reply

    with upstream_of(script) as upstream, running_mirror(tmp_path, upstream.url) as mirror:
        with closing(http.client.HTTPConnection("127.0.0.1", mirror.port, timeout=60)) as connection:
            connection.request("POST", CHAT, json.dumps(BODY | {"stream": True}))
            answer = connection.getresponse()
            came = []
            while piece := answer.read1():
                came.append((time.monotonic(), piece))
        assert len(came) > 5
        assert came[-1][0] - came[0][0] > 0.1 * (len(came) - 1)


def test_429_and_its_headers_are_relayed(tmp_path: Path) -> None:
    headers = {"content-type": "application/json", "Retry-After": "7", "x-ratelimit-remaining-requests": "0"}
    limited = Reply([b'{"error": {"message": "slow down"}}'], 429, headers)
    with upstream_of(lambda _: limited) as upstream, running_mirror(tmp_path, upstream.url) as mirror:
        answer = mirror.ask(CHAT, BODY)
        assert (answer.status, answer.body) == (429, b'{"error": {"message": "slow down"}}')
        assert answer.headers["retry-after"] == "7"
        assert answer.headers["x-ratelimit-remaining-requests"] == "0"
        assert answer.headers["x-bertsmith"].endswith("reason=status-429")
        assert mirror.skipped() == {("openai-chat", "status-429"): 1}
        assert mirror.calls() == []


@pytest.mark.parametrize("status", [204, 304, 401, 499, 500, 529])
def test_any_status_is_relayed_and_counted_once(tmp_path: Path, status: int) -> None:
    body = b"" if status in (204, 304) else b"said"
    with (
        upstream_of(lambda _: Reply([body], status)) as upstream,
        running_mirror(tmp_path, upstream.url) as mirror,
    ):
        for port in (mirror.port, port_of(upstream)):
            answer = ask(port, CHAT, BODY)
            assert (answer.status, answer.body) == (status, body)
        assert mirror.skipped() == {("openai-chat", f"status-{status}"): 1}


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b'{"choices": [', "malformed-answer"),
        (b"", "malformed-answer"),
        (b"[1, 2]", "malformed-answer"),
        (b'{"choices": 7}', "malformed-answer"),
        (b'{"choices": [{"message": {"content": 5}}]}', "malformed-answer"),
        (b'{"choices": [{"finish_reason": "stop", "message": {"content": "Sure!"}}]}', "answer-not-json"),
        (b'{"choices": [{"finish_reason": "length", "message": {"content": "{}"}}]}', "truncated"),
        (b'{"choices": [{"finish_reason": "stop", "message": {"refusal": "No."}}]}', "refusal"),
        (b"\xff\xfe", "malformed-answer"),
    ],
)
def test_an_answer_that_says_nothing_is_relayed_and_not_recorded(
    tmp_path: Path, content: bytes, reason: str
) -> None:
    with (
        upstream_of(lambda _: Reply([content])) as upstream,
        running_mirror(tmp_path, upstream.url) as mirror,
    ):
        answer = mirror.ask(CHAT, BODY)
        assert (answer.status, answer.body) == (200, content)
        assert mirror.calls() == []
        assert mirror.skipped() == {("openai-chat", reason): 1}


@pytest.mark.parametrize("stream", [False, True])
def test_a_cut_answer_is_passed_on_cut_and_not_recorded(tmp_path: Path, stream: bool) -> None:
    def script(seen: Seen) -> Reply:
        reply = llm_answers.chat(seen.json())
        reply.pieces, reply.cut = reply.pieces[: 4 if stream else 1], True
        sent.append(b"".join(reply.pieces))
        return reply

    sent: list[bytes] = []
    with upstream_of(script) as upstream, running_mirror(tmp_path, upstream.url) as mirror:
        with closing(http.client.HTTPConnection("127.0.0.1", mirror.port, timeout=60)) as connection:
            connection.request("POST", CHAT, json.dumps(BODY | {"stream": stream}))
            answer = connection.getresponse()
            with pytest.raises(http.client.IncompleteRead) as cut:
                answer.read()
        if not stream:  # http.client gives no part of a chunk that it could not end
            assert [cut.value.partial] == sent
        body = json.dumps(BODY | {"stream": stream}).encode()
        came = raw_answer(mirror.port, body)
        assert all(piece in came for piece in sent[1].split(b"\n\n"))
        assert not came.endswith(b"0\r\n\r\n")
        assert mirror.calls() == []
        assert mirror.skipped() == {("openai-chat", "cut"): 2}
        assert mirror.ask("/bertsmith/health").status == 200


def test_a_stream_without_its_end_is_not_recorded(tmp_path: Path) -> None:
    def script(seen: Seen) -> Reply:
        reply = llm_answers.chat(seen.json())
        reply.pieces = reply.pieces[:4]
        return reply

    with upstream_of(script) as upstream, running_mirror(tmp_path, upstream.url) as mirror:
        assert mirror.ask(CHAT, BODY | {"stream": True}).status == 200
        assert mirror.skipped() == {("openai-chat", "cut"): 1}


@pytest.mark.parametrize(
    ("path", "read"),
    [
        (CHAT, lambda body: body["error"]["message"]),
        ("/v1/responses", lambda body: body["error"]["message"]),
        ("/v1/messages", lambda body: body["error"]["message"]),
        ("/v1/systemone", lambda body: body["detail"]),
        ("/v1/decisions", lambda body: body["error"]["message"]),
    ],
)
def test_an_upstream_that_is_down_is_said_in_the_protocol(tmp_path: Path, path: str, read: Any) -> None:
    with upstream_of(llm_answers.script) as closed:
        url = closed.url
    with running_mirror(tmp_path, url) as mirror:
        answer = mirror.ask(path, {})
        assert answer.status == 502
        assert "can't be reached" in read(answer.json())
        assert answer.headers["x-bertsmith"] == "passthrough; reason=upstream-unreachable"
        assert list(mirror.skipped().values()) == [1]  # else an outage leaves no trace in `status`


def test_an_upstream_that_hangs_up_or_says_nothing(tmp_path: Path) -> None:
    def script(seen: Seen) -> Reply:
        return Reply([b"{}"], silent=b"silent" in seen.body, wait=0 if b"silent" in seen.body else 5)

    with (
        upstream_of(script) as upstream,
        running_mirror(tmp_path, upstream.url, upstream_timeout_seconds=0.3) as mirror,
    ):
        assert mirror.ask(CHAT, {"silent": 1}).status == 502
        began = time.monotonic()
        slow = mirror.ask(CHAT, BODY)
        assert (slow.status, slow.json()["error"]["code"]) == (504, "upstream_timeout")
        assert time.monotonic() - began < 4
        assert mirror.skipped() == {
            ("openai-chat", "upstream-no-answer"): 1, ("openai-chat", "upstream-timeout"): 1,
        }  # fmt: skip


@pytest.mark.parametrize("moment", ["waiting", "streaming", "sending"])
def test_a_client_that_goes_away_ends_its_call_upstream(tmp_path: Path, moment: str) -> None:
    def script(seen: Seen) -> Reply:
        reply = llm_answers.chat(seen.json())
        reply.wait, reply.pause = (20, 0) if moment == "waiting" else (0, 0.5)
        return reply

    with upstream_of(script) as upstream, running_mirror(tmp_path, upstream.url) as mirror:
        body = json.dumps(BODY | {"stream": True}).encode()
        length = len(body) + 100_000 * (moment == "sending")
        head = f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-length: {length}\r\n\r\n"
        with closing(socket.create_connection(("127.0.0.1", mirror.port), timeout=30)) as connection:
            connection.sendall(head.encode() + body)
            if moment == "streaming":
                assert b"data: " in connection.recv(65536) + connection.recv(65536)
            elif moment == "waiting":
                wait_until(lambda: upstream.seen)
            else:
                wait_until(lambda: mirror.app.relay.under_way)
        wait_until(lambda: mirror.app.relay.under_way == 0, 10)
        if moment != "sending":
            wait_until(lambda: upstream.gone == 1, 10)
        assert mirror.calls() == []
        assert mirror.skipped() == {("openai-chat", "cut" if moment == "streaming" else "client-gone"): 1}


def test_too_large_bodies_are_relayed_and_not_recorded(tmp_path: Path) -> None:
    def script(seen: Seen) -> Reply:
        reply = llm_answers.chat(seen.json())
        if "long answer" in str(seen.json()):
            reply.pieces = [*reply.pieces, b" " * 5000]
        return reply

    with (
        upstream_of(script) as upstream,
        running_mirror(tmp_path, upstream.url, max_recorded_bytes=4096) as mirror,
    ):
        for text in ("x" * 5000, "x" * 200_000, "long answer"):
            answer = mirror.ask(CHAT, BODY | {"messages": [{"role": "user", "content": text}]})
            assert json.loads(answer.body)["object"] == "chat.completion"
        assert mirror.skipped() == {("openai-chat", "too-large"): 3}
        assert mirror.calls() == []


@pytest.mark.parametrize(
    ("settings", "path", "headers", "expected"),
    [
        ({"upstream": "{}"}, CHAT, {}, CHAT),
        ({"upstream": "{}/v1"}, CHAT, {}, CHAT),
        (
            {"upstream": "{}/openai/v2"},
            CHAT + "?api-version=1",
            {},
            "/openai/v2/chat/completions?api-version=1",
        ),
        ({"openai_base_url": "{}/v1"}, "/chat/completions", {}, CHAT),
        ({"upstream": "{}/claude"}, "/v1/messages", {}, "/claude/v1/messages"),
        ({"anthropic_base_url": "{}/a"}, "/v1/models", {"anthropic-version": "2023"}, "/a/v1/models"),
        ({"systemone_base_url": "{}/api"}, "/v1/systemone", {}, "/api/v1/systemone"),
        ({"anthropic_base_url": "{}"}, CHAT, {}, None),
        (BOTH, "/v1/threads/thread_1/messages", {}, "/o/v1/threads/thread_1/messages"),
        (BOTH, "/v1/chat/completions/chatcmpl-1/messages", {}, "/o/v1/chat/completions/chatcmpl-1/messages"),
        (BOTH, "/v1/messages", {}, "/a/v1/messages"),
        (BOTH, "/messages", {}, "/a/messages"),
        (BOTH, "/v1/messages/count_tokens", {"anthropic-version": "2023"}, "/a/v1/messages/count_tokens"),
    ],
)
def test_where_a_request_goes(
    upstream: Upstream,
    tmp_path: Path,
    settings: dict[str, str],
    path: str,
    headers: Mapping[str, str],
    expected: str,
) -> None:
    given = {name: value.format(upstream.url) for name, value in settings.items()}
    with running_mirror(tmp_path, given.pop("upstream", None), **given) as mirror:
        answer = mirror.ask(path, {}, headers)
        if expected is None:
            assert answer.status == 404
            assert "no upstream" in answer.json()["error"]["message"]
        else:
            assert [each.target for each in upstream.seen] == [expected]


def test_a_connection_that_another_request_takes_while_an_old_one_is_closed_is_no_fault() -> None:
    origin = httpcore.Origin(b"http", b"127.0.0.1", 1)
    connections = Connections(1.0, 1.0)

    class Idle:
        def is_idle(self) -> bool:
            return True

        def has_expired(self) -> bool:
            return False

        async def aclose(self) -> None:
            """Meanwhile somebody takes the one that was put back."""
            taken.append(await connections._take(origin))

    taken: list[Any] = []
    old, new = Idle(), Idle()

    async def put() -> None:
        await connections.put(origin, cast(Any, old))
        ((_, kept),) = next(iter(connections._idle.values()))
        next(iter(connections._idle.values()))[0] = (time.monotonic() - 3600, kept)
        await connections.put(origin, cast(Any, new))

    asyncio.run(put())
    assert taken == [new]


def test_a_cookie_of_one_client_is_never_sent_for_another(tmp_path: Path) -> None:
    reply = Reply([b"{}"], headers={"content-type": "application/json", "set-cookie": "session=one"})
    with upstream_of(lambda _: reply) as upstream, running_mirror(tmp_path, upstream.url) as mirror:
        assert mirror.ask("/v1/a", {}).headers["set-cookie"] == "session=one"
        mirror.ask("/v1/a", {})
        assert "cookie" not in upstream.seen[1].headers


def test_a_redirect_is_the_clients_to_follow(tmp_path: Path) -> None:
    reply = Reply([b""], 307, {"location": "http://127.0.0.1:1/elsewhere"})
    with upstream_of(lambda _: reply) as upstream, running_mirror(tmp_path, upstream.url) as mirror:
        answer = mirror.ask("/v1/a", {})
        assert (answer.status, answer.headers["location"]) == (307, "http://127.0.0.1:1/elsewhere")
        assert len(upstream.seen) == 1
