"""Requests to the upstream, answers back: the same bytes, as they come.

What belongs to a connection rather than to the message (RFC 9110, section 7.6.1) isn't passed on. Where the
call may be recorded, accept-encoding is narrowed to gzip, or else nothing could be read of the answer. One
header is added to the answer: x-bertsmith.
"""

import asyncio

import httpcore
import orjson
from starlette.types import Receive, Scope, Send

from bertsmith.serving.json_log import LOG
from bertsmith.serving.mirror.exchange import READABLE
from bertsmith.serving.mirror.formats import openai_chat
from bertsmith.serving.mirror.passage import SITE, SUBJECT, Passage
from bertsmith.serving.mirror.recorder import Recorder
from bertsmith.serving.mirror.request_body import ClientGone, RequestBody
from bertsmith.serving.mirror.settings import MirrorSettings
from bertsmith.serving.mirror.upstream_connections import Connections, Headers, UpstreamAnswer
from bertsmith.serving.mirror.upstreams import Target, Upstreams

_CONNECT_SECONDS = 10.0
_OF_A_CONNECTION = {
    b"connection", b"expect", b"keep-alive", b"proxy-authenticate", b"proxy-authorization",
    b"proxy-connection", b"te", b"trailer", b"transfer-encoding", b"upgrade",
}  # fmt: skip
_NOT_SENT_ON = {SITE, SUBJECT, b"host"}
_HEADER = b"x-bertsmith"
_FAILED = (httpcore.TimeoutException, httpcore.NetworkError, httpcore.ProtocolError)


class Relay:
    """Calls go to the recorder when they are over."""

    def __init__(self, settings: MirrorSettings, recorder: Recorder) -> None:
        self.settings, self.recorder = settings, recorder
        self.upstreams = Upstreams(settings)
        self.under_way = 0  # requests
        # No client, which would add headers of its own, keep cookies and follow redirects.
        self.connections = Connections(_CONNECT_SECONDS, settings.upstream_timeout_seconds)

    async def close(self) -> None:
        """Ends the connections to the upstream."""
        await self.connections.close()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        most = self.settings.max_recorded_bytes
        passage = Passage(scope["method"], scope["path"], dict(scope["headers"]), most)
        body = RequestBody(receive, most)
        work = asyncio.ensure_future(self._pass(scope, body, passage, send))
        watching = asyncio.ensure_future(body.client_gone())
        self.under_way += 1
        try:
            await asyncio.wait({work, watching}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            watching.cancel()
            if not passage.is_over:
                work.cancel()
            await asyncio.wait({work})  # the connection to the upstream is done with by now
            self.under_way -= 1
            self._log(passage)
        if not work.cancelled():
            work.result()

    async def _pass(self, scope: Scope, body: RequestBody, passage: Passage, send: Send) -> None:
        target = self.upstreams.target(scope["raw_path"], scope["query_string"], passage.headers)
        if target is None:
            said = "This mirror has no upstream for this path. Name one where the mirror is started."
            await _refuse(404, said, "no-upstream", passage, send)
            return
        try:
            answer = await self._ask(scope, target, body, passage)
        except ClientGone:
            return
        except _FAILED as error:
            LOG.warning("the upstream gave no answer: %s", type(error).__name__)
            await _refuse(*_meaning(error), passage, send)
            return
        try:
            await _answer(answer, passage, send)
        finally:
            await answer.close()
            self._record(passage)

    async def _ask(self, scope: Scope, target: Target, body: RequestBody, passage: Passage) -> UpstreamAnswer:
        content = await body.begin()
        if content is not None:
            passage.look_at_request(content, has_room=self.recorder.has_room)
        answer = await self.connections.ask(
            scope["method"],
            target.url,
            _sent_on(scope["headers"], target.host, narrow=passage.form is not None),
            body if content is None else content,
        )
        if content is None and (content := body.content) is not None:
            passage.look_at_request(content, has_room=self.recorder.has_room)
        return answer

    def _record(self, passage: Passage) -> None:
        exchange = passage.exchange()
        if exchange is not None:
            self.recorder.offer(exchange)
        elif passage.form is not None:
            self.recorder.count(passage.form.NAME, passage.reason)

    def _log(self, passage: Passage) -> None:
        if not self.settings.log_requests:
            return
        facts = {
            "message": "request",
            "protocol": "other" if passage.form is None else passage.form.NAME,
            "status": passage.status,
            "ms": round(passage.seconds * 1000, 3),
            "mirror": passage.header.decode("latin-1"),
        }
        LOG.info("request", extra={"facts": facts})


async def _answer(answer: UpstreamAnswer, passage: Passage, send: Send) -> None:
    passage.look_at_answer(answer)
    dropped = _of_this_connection(answer.headers) | {_HEADER}
    headers = [(name, value) for name, value in answer.headers if name not in dropped]
    headers.append((_HEADER, passage.header))
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    try:
        async for piece in answer.pieces():
            await send({"type": "http.response.body", "body": piece, "more_body": True})
            passage.keep(piece)
    except _FAILED as error:
        # What came has been passed on; an answer that isn't ended has the client's connection closed.
        LOG.warning("the upstream's answer ended too early: %s", type(error).__name__)
        return
    passage.is_over = True
    await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _refuse(status: int, said: str, code: str, passage: Passage, send: Send) -> None:
    """In the protocol's envelope."""
    passage.status, passage.reason, passage.is_over = status, code, True
    form = passage.form or openai_chat
    body = orjson.dumps(form.error_body(said, code.replace("-", "_")))
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        (_HEADER, passage.header),
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _meaning(error: Exception) -> tuple[int, str, str]:
    """Status, sentence and code of what kept the upstream from answering."""
    if isinstance(error, httpcore.TimeoutException):
        return 504, "The upstream did not answer in time.", "upstream-timeout"
    if isinstance(error, httpcore.ConnectError):
        return 502, "The upstream can't be reached.", "upstream-unreachable"
    return 502, "The upstream ended the connection without an answer.", "upstream-no-answer"


def _sent_on(headers: Headers, host: bytes, *, narrow: bool) -> Headers:
    dropped = _of_this_connection(headers) | _NOT_SENT_ON
    found = [(name, value) for name, value in headers if name not in dropped]
    if narrow:
        found = [(name, _narrowed(value) if name == b"accept-encoding" else value) for name, value in found]
    if any(name == b"transfer-encoding" for name, _ in headers):
        found.append((b"transfer-encoding", b"chunked"))
    return [(b"host", host), *found]


def _narrowed(accepted: bytes) -> bytes:
    return READABLE.encode() if READABLE.encode() in accepted else b"identity"


def _of_this_connection(headers: Headers) -> set[bytes]:
    """Names in small letters."""
    named = {
        each.strip().lower() for name, value in headers if name == b"connection" for each in value.split(b",")
    }
    return _OF_A_CONNECTION | named
