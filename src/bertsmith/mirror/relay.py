"""Requests to the upstream, answers back: the same bytes, as they come; and what the mirror notices of them,
in which no fault is ever the client's.

What belongs to a connection rather than to the message (RFC 9110, section 7.6.1) isn't passed on. Where the
call may be recorded, accept-encoding is narrowed to gzip, or else nothing could be read of the answer. One
header is added to the answer: x-bertsmith. Where a student answers, its answer takes the upstream's place.
"""

import asyncio
import time
from dataclasses import replace

import orjson
from starlette.types import Receive, Scope, Send

from bertsmith.mirror.answering.audits import AuditRequest, AuditRunner
from bertsmith.mirror.answering.ledger import Ledger
from bertsmith.mirror.answering.service import MirrorService
from bertsmith.mirror.answering.stage_store import StageStore
from bertsmith.mirror.call import (
    QUEUE_FULL,
    STUDENT_ANSWER,
    CallRouting,
    CompletionRequest,
    NotMirrored,
    is_refusal,
    refuses_the_call,
    status_reason,
)
from bertsmith.mirror.exchange import Exchange, parse_request
from bertsmith.mirror.formats.registry import USUAL, format_of
from bertsmith.mirror.formats.wire_format import ResponseBody, StudentCompletion, WireFormat
from bertsmith.mirror.identity import site_of
from bertsmith.mirror.recorder import Recorder
from bertsmith.mirror.relay_server import ClientGone, RequestBody, send_json
from bertsmith.mirror.settings import MirrorSettings
from bertsmith.mirror.upstreams import (
    FAILED,
    HEADER,
    SITE,
    SUBJECT,
    Connections,
    Headers,
    Target,
    UpstreamAnswer,
    Upstreams,
    is_students,
    meaning_of,
    of_this_connection,
    sent_on,
)
from bertsmith.serving import LOG

_READ = ("application/json", "text/event-stream")
GONE = 499  # the status of a call whose client went away before an answer began
_CONNECT_SECONDS = 10.0


class RelayedCall:
    """`reason` says why the call isn't recorded; with none, it is. `routing` says what a student made of it,
    where one answers at this site. `is_over`: all of the answer is out.
    """

    def __init__(
        self, form: WireFormat | None, path: str, headers: Headers, most_bytes: int, query: bytes = b""
    ) -> None:
        self.form, self.path = form, path
        self.all_headers, self.headers = headers, dict(headers)
        self.most_bytes, self.query = most_bytes, query
        self.request: CompletionRequest | None = None
        self.routing: CallRouting | None = None
        self.site = ""
        self.reason = "other-path" if self.form is None else "too-large"  # until it has been looked at
        self.status = GONE
        self.is_over = False
        self.began, self._clock = time.time(), time.perf_counter()
        self._first_seconds = 0.0
        self._request_bytes = self._answer_bytes = 0
        self._pieces: list[bytes] = []
        self._content_type = self._encoding = ""
        self._is_known = False

    @property
    def seconds(self) -> float:
        """Since it came."""
        return time.perf_counter() - self._clock

    @property
    def header(self) -> bytes:
        """Of the answer."""
        routing = self.routing
        reason = self.reason or (routing.reason if routing is not None else "")
        became = "passthrough" if self.reason else "recorded"
        if routing is not None and not self.reason:
            became = "answered" if routing.is_ours else "relayed"
        parts = [became]
        parts += [f"site={self.site}"] if self.site else []
        parts += [f"student={routing.student}"] if routing is not None and routing.student else []
        if routing is not None and routing.values is not None:
            parts.append(f"confidence={routing.confidence:.4f}")
        parts += [f"reason={reason}"] if reason else []
        return "; ".join(parts).encode("latin-1", "replace")

    def look_at_request(self, content: bytes, *, has_room: bool) -> None:
        """Whether it can be mirrored, and the recorder has room for it."""
        if self.form is None:
            return
        try:
            if len(content) > self.most_bytes:
                raise NotMirrored("too-large")
            if self.headers.get(b"content-encoding"):
                raise NotMirrored("encoding")
            self.request = parse_request(self.form, content, self.path)
            self.site = site_of(self.request, self.said(SITE))
            self._request_bytes, self.reason = len(content), "" if has_room else QUEUE_FULL
        except NotMirrored as found:
            self.reason = found.reason
        except Exception as error:
            self.reason = "mirror-error"
            LOG.error("a request could not be looked at: %s", type(error).__name__)

    def decline(self, reason: str) -> None:
        """The LLM is to answer what the student could have. No call like it is ever answered by the student,
        so it says nothing of the answers given, whatever the confidence.
        """
        if self.routing is not None:
            self.routing = replace(self.routing, reason=reason, audit="", is_sure=False, probability=1.0)

    def look_at_answer(self, answer: UpstreamAnswer, *, is_known: bool) -> None:
        """Its head has come. `is_known`: a student might have answered this caller."""
        self.status, self._first_seconds, self._is_known = answer.status, self.seconds, is_known
        if self.reason:
            return
        self._content_type = answer.header(b"content-type")
        self._encoding = answer.header(b"content-encoding")
        if answer.status != 200:
            self.reason = status_reason(answer.status)
        elif not self._content_type.startswith(_READ):
            self.reason = "content-type"
        elif is_students(answer):
            self.reason = STUDENT_ANSWER

    def keep(self, piece: bytes) -> None:
        """A piece of the answer that has been passed on."""
        if self.reason:
            return
        self._answer_bytes += len(piece)
        self._pieces.append(piece)
        if self._answer_bytes > self.most_bytes:
            self.reason = "too-large"
            self._pieces = []

    @property
    def is_whole(self) -> bool:
        """The answer comes at once, not as a stream."""
        return "event-stream" not in self._content_type

    @property
    def refusal(self) -> str:
        """Why no student's answer could agree with the LLM's, where a student might have answered."""
        is_told = refuses_the_call(self.status) and self._is_known if self.status != 200 else True
        return self.reason if self.request is not None and is_told and is_refusal(self.reason) else ""

    def exchange(self) -> Exchange | None:
        """For the recorder; None where there is nothing to record, and no refusal to tell of."""
        if self.form is None or self.request is None or (self.reason and not self.refusal):
            return None
        return Exchange(
            self.form,
            self.request,
            self._request_bytes,
            self._content_type,
            self._encoding,
            self._pieces,
            self.is_over,
            self.began,
            self._first_seconds,
            self.seconds,
            self.said(SITE),
            self.subjects,
            self.routing,
            self.refusal,
        )

    @property
    def subjects(self) -> tuple[str, ...]:
        """Whom the client's headers say that it is about: each may come several times."""
        values = (_decoded(value) for name, value in self.all_headers if name == SUBJECT)
        return tuple(value for value in values if value.strip())

    def said(self, name: bytes) -> str:
        """A header of the client's, empty where there is none."""
        return _decoded(self.headers.get(name, b""))


def _decoded(value: bytes) -> str:
    """In UTF-8, as its body is, else in Latin-1."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.decode("latin-1")


class Relay:
    """Calls go to the recorder when they are over. `service` says which are answered here instead."""

    def __init__(
        self,
        settings: MirrorSettings,
        recorder: Recorder,
        service: MirrorService,
        stages: StageStore,
    ) -> None:
        self.settings, self.recorder, self.service = settings, recorder, service
        self.formats = settings.formats
        self.upstreams = Upstreams(settings, self.formats)
        self.under_way = 0  # requests
        # No client, which would add headers of its own, keep cookies and follow redirects.
        self.connections = Connections(_CONNECT_SECONDS, settings.upstream_timeout_seconds)
        self.audits = AuditRunner(stages, self.connections, recorder, self.ledger, service.keys)

    @property
    def ledger(self) -> Ledger:
        """What happens is written there."""
        return self.service.reconciler.ledger

    async def close(self, seconds: float) -> None:
        """Lets audits end that are under way, for so long, and ends the connections to the upstream."""
        await self.audits.close(seconds)
        await self.connections.close()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        most = self.settings.max_recorded_bytes
        form = format_of(scope["method"], scope["path"], self.formats)
        passage = RelayedCall(form, scope["path"], scope["headers"], most, scope["query_string"])
        body = RequestBody(receive, most)
        work = asyncio.ensure_future(self._pass(scope, body, passage, send))
        watching = asyncio.ensure_future(body.client_gone())
        self.under_way += 1
        try:
            await asyncio.wait({work, watching}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            if passage.routing is not None:
                self.ledger.routing(passage.routing, passage.seconds)
            watching.cancel()
            if not passage.is_over:
                work.cancel()
            await asyncio.wait({work})  # the connection to the upstream is done with by now
            if passage.status == GONE and not passage.is_over:  # an upstream may answer 499 too
                passage.reason = "client-gone"
                self._record(passage)
            self.under_way -= 1
            self._log(passage)
        if not work.cancelled():
            work.result()

    async def _pass(self, scope: Scope, body: RequestBody, passage: RelayedCall, send: Send) -> None:
        target = self.upstreams.target(scope["raw_path"], scope["query_string"], passage.headers)
        if target is None:
            said = "This mirror has no upstream for this path. Name one where the mirror is started."
            await _refuse(404, said, "no-upstream", passage, send)
            self._record(passage)
            return
        try:
            content = await body.begin(whole=passage.form is not None and self.service.answers)
            written = await self._own(content, passage)
            if written is not None and content is not None:
                await self._send_own(written, passage, send)
                self._audit(scope, target, content, passage)
                return
            answer = await self._ask(scope, target, body, content, passage)
        except ClientGone:
            return
        except FAILED as error:
            LOG.warning("the upstream gave no answer: %s", type(error).__name__)
            await _refuse(*meaning_of(error), passage, send)
            self._record(passage)
            return
        passage.look_at_answer(answer, is_known=self.service.keys.has(passage.headers, passage.query))
        if passage.form is not None:
            self.service.keys.note(passage.headers, answer.status, passage.query)
        try:
            if passage.reason:
                await _answer(answer, passage, send)
            else:
                await self.recorder.turn()
                with self.recorder.passing_on(passage.is_whole):
                    await _answer(answer, passage, send)
        finally:
            self._record(passage)
            await answer.close()

    async def _own(self, content: bytes | None, passage: RelayedCall) -> ResponseBody | None:
        """A student's answer; None where the LLM is to answer."""
        if content is None:
            return None
        passage.look_at_request(content, has_room=self.recorder.has_room)
        if passage.form is None or passage.request is None or passage.reason or not self.service.answers:
            return None
        try:
            routing = await self.service.routing(
                passage.request,
                passage.site,
                passage.headers,
                query=passage.query,
                can_audit=self.audits.has_room,
            )
            passage.routing = routing
            if routing is None or not (routing.is_ours or routing.is_sure):
                return None
            own = StudentCompletion(
                passage.request,
                orjson.loads(content),
                routing.answer,
                routing.student,
                routing.probabilities or {},
                path=f"{passage.path}?{passage.query.decode('latin-1')}",
            )
            written = passage.form.write(
                own
            )  # also where the draw is the LLM's: declined calls count alike in all modes
            return written if routing.is_ours else None
        except NotMirrored as found:
            passage.decline(found.reason)
        except Exception as error:  # whatever it is, the LLM can answer
            LOG.error("an answer of ours could not be made: %s", type(error).__name__)
            passage.decline("mirror-error")
        return None

    async def _send_own(self, written: ResponseBody, passage: RelayedCall, send: Send) -> None:
        passage.status = 200
        headers = [(b"content-type", written.content_type.encode()), (HEADER, passage.header)]
        if len(written.pieces) == 1:
            headers.append((b"content-length", str(len(written.pieces[0])).encode()))
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        for piece in written.pieces:
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        passage.is_over = True
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    def _audit(self, scope: Scope, target: Target, content: bytes, passage: RelayedCall) -> None:
        """Where it was drawn for one."""
        routing, form, request = passage.routing, passage.form, passage.request
        if routing is None or not routing.audit or form is None or request is None:
            return
        headers = sent_on(scope["headers"], target.host, narrow=True)
        if (b"transfer-encoding", b"chunked") in headers:  # it goes out whole by now
            framing = (b"transfer-encoding", b"content-length")
            headers = [(name, value) for name, value in headers if name not in framing]
            headers.append((b"content-length", str(len(content)).encode()))
        self.audits.begin(
            AuditRequest(
                form,
                request,
                routing,
                scope["method"],
                target,
                headers,
                content,
                self.settings.max_recorded_bytes,
                passage.said(SITE),
                passage.subjects,
                passage.query,
            )
        )

    async def _ask(
        self, scope: Scope, target: Target, body: RequestBody, content: bytes | None, passage: RelayedCall
    ) -> UpstreamAnswer:
        answer = await self.connections.ask(
            scope["method"],
            target.url,
            sent_on(scope["headers"], target.host, narrow=passage.form is not None),
            body if content is None else content,
        )
        if content is None and (content := body.content) is not None:
            passage.look_at_request(content, has_room=self.recorder.has_room)
        return answer

    def _record(self, passage: RelayedCall) -> None:
        exchange = passage.exchange()
        if exchange is not None:
            self.recorder.offer(exchange)
        elif passage.form is not None:
            self.recorder.count(passage.form.NAME, passage.reason)

    def _log(self, passage: RelayedCall) -> None:
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


async def _answer(answer: UpstreamAnswer, passage: RelayedCall, send: Send) -> None:
    dropped = of_this_connection(answer.headers) | {HEADER}
    headers = [(name, value) for name, value in answer.headers if name not in dropped]
    headers.append((HEADER, passage.header))
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    try:
        async for piece in answer.pieces():
            await send({"type": "http.response.body", "body": piece, "more_body": True})
            passage.keep(piece)
    except FAILED as error:
        # What came has been passed on; an answer that isn't ended has the client's connection closed.
        LOG.warning("the upstream's answer ended too early: %s", type(error).__name__)
        return
    passage.is_over = True
    await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _refuse(status: int, said: str, code: str, passage: RelayedCall, send: Send) -> None:
    """In the protocol's envelope."""
    passage.status, passage.reason, passage.is_over = status, code, True
    form = passage.form or USUAL
    body = form.error_body(said, code.replace("-", "_"))
    await send_json(send, status, body, (HEADER, passage.header))
