"""The relay: passes requests on to the upstream and answers back, byte for byte and as they come, and hands
the calls to the recorder. A fault of the mirror's own never reaches the client.

Headers that belong to a connection rather than to the message (RFC 9110, section 7.6.1) are not passed on. If
a call may be recorded, accept-encoding is narrowed to gzip, so that the mirror can read the answer. Every
answer gets one more header: x-bertsmith. Where a student answers, its answer is sent instead of the
upstream's.
"""

import asyncio
import time
from dataclasses import replace

import orjson
from starlette.types import Receive, Scope, Send

from bertsmith.mirror.answering.audits import AuditRunner, ReplayRunner, UpstreamRequest
from bertsmith.mirror.answering.ledger import Ledger
from bertsmith.mirror.answering.replays import ReplayStore
from bertsmith.mirror.answering.service import MirrorService
from bertsmith.mirror.answering.stage_store import StageStore
from bertsmith.mirror.call import (
    QUEUE_FULL,
    STUDENT_ANSWER,
    CallRouting,
    CompletionRequest,
    NotMirrored,
    is_refusal,
    may_answer_later,
    refuses_the_call,
    status_reason,
)
from bertsmith.mirror.exchange import Exchange, parse_request
from bertsmith.mirror.formats.registry import DEFAULT_FORMAT, find_format
from bertsmith.mirror.formats.wire_format import ResponseBody, StudentCompletion, WireFormat
from bertsmith.mirror.identity import site_id
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
    connection_headers,
    describe_failure,
    forwarded_headers,
    is_student_answer,
)
from bertsmith.serving import LOG

_READ = ("application/json", "text/event-stream")
GONE = 499  # the status of a call whose client went away before an answer began
_CONNECT_SECONDS = 10.0


class RelayedCall:
    """One request on its way through the relay, with what is known of it and of its answer so far.

    `reason` says why the call isn't recorded; if it is empty, it is. `routing` says who answers and why,
    where a student serves at this site. `is_over`: the whole answer has been sent to the client.
    """

    def __init__(
        self, form: WireFormat | None, path: str, headers: Headers, max_bytes: int, query: bytes = b""
    ) -> None:
        self.form, self.path = form, path
        self.all_headers, self.headers = headers, dict(headers)
        self.max_bytes, self.query = max_bytes, query
        self.request: CompletionRequest | None = None
        self.routing: CallRouting | None = None
        self.site = ""
        self.reason = "other-path" if self.form is None else "too-large"  # until the request has been read
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
        """How long ago the request came, in seconds."""
        return time.perf_counter() - self._clock

    @property
    def header(self) -> bytes:
        """The value of the answer's x-bertsmith header: what became of the call, and why."""
        routing = self.routing
        reason = self.reason or (routing.reason if routing is not None else "")
        outcome = "passthrough" if self.reason else "recorded"
        if routing is not None and not self.reason:
            outcome = "answered" if routing.is_ours else "relayed"
        parts = [outcome]
        parts += [f"site={self.site}"] if self.site else []
        parts += [f"student={routing.student}"] if routing is not None and routing.student else []
        if routing is not None and routing.values is not None:
            parts.append(f"confidence={routing.confidence:.4f}")
        parts += [f"reason={reason}"] if reason else []
        return "; ".join(parts).encode("latin-1", "replace")

    def read_request(self, content: bytes, *, has_room: bool) -> None:
        """Reads the request, and decides whether the call is recorded (`reason`)."""
        if self.form is None:
            return
        try:
            if len(content) > self.max_bytes:
                raise NotMirrored("too-large")
            if self.headers.get(b"content-encoding"):
                raise NotMirrored("encoding")
            self.request = parse_request(self.form, content, self.path)
            self.site = site_id(self.request, self.client_header(SITE))
            self._request_bytes, self.reason = len(content), "" if has_room else QUEUE_FULL
        except NotMirrored as error:
            self.reason = error.reason
        except Exception as error:
            self.reason = "mirror-error"
            LOG.error("a request could not be looked at: %s", type(error).__name__)

    def decline(self, reason: str) -> None:
        """Leaves to the LLM a call that the student could have answered, for a `reason` that holds for every
        call like it. The student never answers such calls, so they don't count as evidence about its answers.
        """
        if self.routing is not None:
            self.routing = replace(self.routing, reason=reason, audit="", is_sure=False, probability=1.0)

    def read_answer_head(self, answer: UpstreamAnswer, *, is_known: bool) -> None:
        """Decides by status and headers whether the answer is recorded. `is_known`: the client is one whom a
        student may answer.
        """
        self.status, self._first_seconds, self._is_known = answer.status, self.seconds, is_known
        if self.reason:
            return
        self._content_type = answer.header(b"content-type").lower()  # RFC 9110, section 8.3.1
        self._encoding = answer.header(b"content-encoding")
        if answer.status != 200:
            self.reason = status_reason(answer.status)
        elif not self._content_type.startswith(_READ):
            self.reason = "content-type"
        elif is_student_answer(answer):
            self.reason = STUDENT_ANSWER

    def keep(self, piece: bytes) -> None:
        """Keeps a piece of the answer that has been passed on, for the recorder."""
        if self.reason:
            return
        self._answer_bytes += len(piece)
        self._pieces.append(piece)
        if self._answer_bytes > self.max_bytes:
            self.reason = "too-large"
            self._pieces = []

    @property
    def is_whole(self) -> bool:
        """Whether the answer comes at once rather than as a stream."""
        return "event-stream" not in self._content_type

    @property
    def refusal(self) -> str:
        """The reason why no student's answer could agree with this one; empty if there is none, or if no
        student might have answered.
        """
        is_certain = refuses_the_call(self.status) and self._is_known if self.status != 200 else True
        return self.reason if self.request is not None and is_certain and is_refusal(self.reason) else ""

    def exchange(self) -> Exchange | None:
        """What the recorder gets: None if there is neither a call to record nor a refusal to count."""
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
            self.client_header(SITE),
            self.subjects,
            self.routing,
            self.refusal,
        )

    @property
    def subjects(self) -> tuple[str, ...]:
        """The people whom the call is about by the client's headers, which may stand there several times."""
        values = (_decode_header(value) for name, value in self.all_headers if name == SUBJECT)
        return tuple(value for value in values if value.strip())

    def client_header(self, name: bytes) -> str:
        """A header of the client's request; empty if it has none."""
        return _decode_header(self.headers.get(name, b""))


def _decode_header(value: bytes) -> str:
    """As UTF-8, like the body, or as Latin-1 where it isn't valid UTF-8."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.decode("latin-1")


class Relay:
    """An ASGI application that relays requests. Finished calls go to `recorder`; `service` decides which
    calls a student answers.
    """

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
        self.replays = ReplayRunner(
            ReplayStore(stages.store), service.reconciler.replays, self.audits, service.redactor
        )

    @property
    def ledger(self) -> Ledger:
        """Where the outcomes of calls are counted."""
        return self.service.reconciler.ledger

    async def close(self, seconds: float) -> None:
        """Waits up to `seconds` for the audits and replays under way, then closes the connections to the
        upstream.
        """
        await asyncio.gather(self.audits.close(seconds), self.replays.close(seconds))
        await self.connections.close()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        max_bytes = self.settings.max_recorded_bytes
        form = find_format(scope["method"], scope["path"], self.formats)
        call = RelayedCall(form, scope["path"], scope["headers"], max_bytes, scope["query_string"])
        body = RequestBody(receive, max_bytes)
        work = asyncio.ensure_future(self._pass(scope, body, call, send))
        watching = asyncio.ensure_future(body.client_gone())
        self.under_way += 1
        try:
            await asyncio.wait({work, watching}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            if call.routing is not None:
                self.ledger.routing(call.routing, call.seconds)
            watching.cancel()
            if not call.is_over:
                work.cancel()
            await asyncio.wait({work})  # the connection to the upstream is done with by now
            if call.status == GONE and not call.is_over:  # an upstream may answer 499 too
                call.reason = "client-gone"
                self._record(call)
            self.under_way -= 1
            self._log(call)
        if not work.cancelled():
            work.result()

    async def _pass(self, scope: Scope, body: RequestBody, call: RelayedCall, send: Send) -> None:
        target = self.upstreams.target(scope["raw_path"], scope["query_string"], call.headers)
        if target is None:
            message = "This mirror has no upstream for this path. Name one where the mirror is started."
            await _refuse(404, message, "no-upstream", call, send)
            self._record(call)
            return
        try:
            content = await body.begin(wait_for_all=call.form is not None and self.service.answers)
            body_to_send = await self._answer_by_student(content, call)
            if body_to_send is not None and content is not None:
                await self._send_student_answer(body_to_send, call, send)
                self._begin_audit(scope, target, content, call)
                self._begin_replay(scope, target, body, call)
                return
            answer = await self._ask(scope, target, body, content, call)
        except ClientGone:
            return
        except FAILED as error:
            LOG.warning("the upstream gave no answer: %s", type(error).__name__)
            await _refuse(*describe_failure(error), call, send)
            self._record(call)
            return
        call.read_answer_head(answer, is_known=self.service.keys.has(call.headers, call.query))
        if call.form is not None:
            self.service.keys.note(call.headers, answer.status, call.query)
        try:
            if call.reason:
                await _send_answer(answer, call, send)
            else:
                await self.recorder.wait_while_behind()
                with self.recorder.passing_on(call.is_whole):
                    await _send_answer(answer, call, send)
        finally:
            self._record(call)
            await answer.close()
        self._begin_replay(scope, target, body, call)

    async def _answer_by_student(self, content: bytes | None, call: RelayedCall) -> ResponseBody | None:
        """The body of a student's answer; None if the LLM is to answer."""
        if content is None:
            return None
        call.read_request(content, has_room=self.recorder.has_room)
        if call.form is None or call.request is None or call.reason or not self.service.answers:
            return None
        try:
            routing = await self.service.routing(
                call.request,
                call.site,
                call.headers,
                query=call.query,
                can_audit=self.audits.has_room,
            )
            call.routing = routing
            if routing is None or not (routing.is_ours or routing.is_sure):
                return None
            completion = StudentCompletion(
                call.request,
                orjson.loads(content),
                routing.answer,
                routing.student,
                routing.probabilities or {},
                path=f"{call.path}?{call.query.decode('latin-1')}",
            )
            # Also where the draw chose the LLM, so that declined calls are counted alike in all modes.
            body = call.form.write(completion)
            return body if routing.is_ours else None
        except NotMirrored as error:
            call.decline(error.reason)
        except Exception as error:  # whatever it is, the LLM can answer
            LOG.error("an answer of ours could not be made: %s", type(error).__name__)
            call.decline("mirror-error")
        return None

    async def _send_student_answer(self, body: ResponseBody, call: RelayedCall, send: Send) -> None:
        call.status = 200
        headers = [(b"content-type", body.content_type.encode()), (HEADER, call.header)]
        if len(body.chunks) == 1:
            headers.append((b"content-length", str(len(body.chunks[0])).encode()))
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        for chunk in body.chunks:
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
        call.is_over = True
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    def _begin_audit(self, scope: Scope, target: Target, content: bytes, call: RelayedCall) -> None:
        """Asks the LLM too, if the call was drawn for an audit."""
        if call.routing is None or not call.routing.audit:
            return
        if (request := self._build_request(scope, target, content, call)) is not None:
            self.audits.begin(request, call.routing)

    def _begin_replay(self, scope: Scope, target: Target, body: RequestBody, call: RelayedCall) -> None:
        """Asks a recorded input beside a call that was answered, if one waits for such a call."""
        if not self.replays.waits_for(call.site):
            return
        if may_answer_later(call.status):
            self.replays.pause()
        if call.reason or not call.is_over or (content := body.content) is None:
            return
        if (request := self._build_request(scope, target, content, call)) is not None:
            self.replays.begin(request)

    def _build_request(
        self, scope: Scope, target: Target, content: bytes, call: RelayedCall
    ) -> UpstreamRequest | None:
        """The client's request as it can be sent once more; None if it was not understood."""
        form, request = call.form, call.request
        if form is None or request is None:
            return None
        headers = forwarded_headers(scope["headers"], target.host, narrow=True)
        if (b"transfer-encoding", b"chunked") in headers:  # it goes out whole by now
            framing = (b"transfer-encoding", b"content-length")
            headers = [(name, value) for name, value in headers if name not in framing]
            headers.append((b"content-length", str(len(content)).encode()))
        return UpstreamRequest(
            form,
            request,
            call.site,
            scope["method"],
            target,
            headers,
            content,
            self.settings.max_recorded_bytes,
            call.client_header(SITE),
            call.subjects,
            call.query,
        )

    async def _ask(
        self, scope: Scope, target: Target, body: RequestBody, content: bytes | None, call: RelayedCall
    ) -> UpstreamAnswer:
        answer = await self.connections.ask(
            scope["method"],
            target.url,
            forwarded_headers(scope["headers"], target.host, narrow=call.form is not None),
            body if content is None else content,
        )
        if content is None and (content := body.content) is not None:
            call.read_request(content, has_room=self.recorder.has_room)
        return answer

    def _record(self, call: RelayedCall) -> None:
        exchange = call.exchange()
        if exchange is not None:
            self.recorder.offer(exchange)
        elif call.form is not None:
            self.recorder.count(call.form.NAME, call.reason)

    def _log(self, call: RelayedCall) -> None:
        if not self.settings.log_requests:
            return
        facts = {
            "message": "request",
            "protocol": "other" if call.form is None else call.form.NAME,
            "status": call.status,
            "ms": round(call.seconds * 1000, 3),
            "mirror": call.header.decode("latin-1"),
        }
        LOG.info("request", extra={"facts": facts})


async def _send_answer(answer: UpstreamAnswer, call: RelayedCall, send: Send) -> None:
    dropped = connection_headers(answer.headers) | {HEADER}
    headers = [(name, value) for name, value in answer.headers if name not in dropped]
    headers.append((HEADER, call.header))
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    try:
        async for piece in answer.pieces():
            await send({"type": "http.response.body", "body": piece, "more_body": True})
            call.keep(piece)
    except FAILED as error:
        # What came has been passed on; an answer that isn't ended has the client's connection closed.
        LOG.warning("the upstream's answer ended too early: %s", type(error).__name__)
        return
    call.is_over = True
    await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _refuse(status: int, message: str, code: str, call: RelayedCall, send: Send) -> None:
    """Sends an error in the protocol's own form; the call isn't recorded, for the reason `code`."""
    call.status, call.reason, call.is_over = status, code, True
    form = call.form or DEFAULT_FORMAT
    body = form.error_body(message, code.replace("-", "_"))
    await send_json(send, status, body, (HEADER, call.header))
