"""What the mirror asks the LLM for beside clients' calls, with the headers of one of these.

Audits: the LLM is asked about a call that a student has answered, after the client has its answer.

    drawn → stored → LLM asked → recorded as a call → compared

An audit is stored before the LLM is asked, so that none is lost; between the draw and that moment it is in
memory only. An unreachable LLM is asked again until the audit's time is over. Audits wait meanwhile; when too
many wait, the LLM answers all calls. Replays (`bertsmith.mirror.answering.replays`) take what audits leave
of the concurrent requests, and stop for a while where the LLM is busy. Read `AuditRunner` first.
"""

import asyncio
import time
import uuid
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace

import orjson
from sqlalchemy.exc import DBAPIError

from bertsmith.mirror.answering.ledger import Ledger
from bertsmith.mirror.answering.reconciler import AUDIT_PATIENCE
from bertsmith.mirror.answering.replays import ANSWERED, ReplayQuestion, ReplayQueue, ReplayStore
from bertsmith.mirror.answering.service import KnownKeys
from bertsmith.mirror.answering.stage_store import StageStore
from bertsmith.mirror.answering.stages import VOID
from bertsmith.mirror.call import (
    STUDENT_ANSWER,
    SYSTEM_ROLES,
    CallOutcome,
    CallRouting,
    CompletionRequest,
    may_answer_later,
    refuses_the_call,
    status_reason,
)
from bertsmith.mirror.exchange import Exchange
from bertsmith.mirror.formats.wire_format import WireFormat
from bertsmith.mirror.identity import version_id
from bertsmith.mirror.recorder import Recorder
from bertsmith.mirror.redaction import Redactor
from bertsmith.mirror.upstreams import FAILED, Connections, Headers, Target, is_student_answer
from bertsmith.serving import LOG

_MOST_WAITING, _MOST_BYTES = 512, 32_000_000  # audits, and bytes of their requests
_AT_ONCE = 8  # concurrent requests to the LLM
_BESIDE = 2  # recorded inputs that are asked again beside one call
_TRYING = 0.9  # of the audit's patience: after all of it nobody knows what became of it
_FIRST_WAIT, _LONGEST_WAIT = 0.5, 30.0  # seconds before the LLM or the store is tried again
# Why an audit is void, beside the LLM's status.
_AWAY, _STOPPED, _OWN_FAULT = "no-connection", "mirror-stopped", "mirror-error"
_ASKED_ROLES = (*SYSTEM_ROLES, "user", "assistant")  # of messages that a wire format can write
# Headers about the body or the identity of one call, which another input isn't sent with.
_OF_ONE_CALL = {
    b"content-length", b"content-md5", b"digest", b"content-digest", b"transfer-encoding", b"idempotency-key",
    b"x-idempotency-key", b"x-request-id", b"x-client-request-id", b"traceparent", b"tracestate",
}  # fmt: skip


class _UnansweredRequest(Exception):
    """The LLM answered this attempt with a `status` that is no answer."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


@dataclass(frozen=True)
class UpstreamRequest:
    """The client's request, to be sent to the LLM. Its headers, which hold the key, stay in memory. `site` is
    the place in the application, `named` the name that the client gave it.
    """

    form: WireFormat
    completion_request: CompletionRequest
    site: str
    method: str
    target: Target
    headers: Headers
    content: bytes
    most_bytes: int
    named: str = ""
    subjects: tuple[str, ...] = ()
    query: bytes = b""


class AuditRunner:
    """Runs audits in the event loop. `waiting` counts those that are neither settled nor recorded yet."""

    def __init__(
        self,
        store: StageStore,
        connections: Connections,
        recorder: Recorder,
        ledger: Ledger,
        keys: KnownKeys,
    ) -> None:
        self.store, self.connections, self.keys = store, connections, keys
        self.recorder, self.ledger = recorder, ledger
        self.waiting = 0
        self._bytes = 0
        self.slots = asyncio.Semaphore(_AT_ONCE)
        self._closing = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def has_room(self) -> bool:
        """Whether one more audit may begin: bounded in number and in bytes of requests."""
        return self.waiting < _MOST_WAITING and self._bytes < _MOST_BYTES

    def begin(self, request: UpstreamRequest, routing: CallRouting) -> None:
        """Starts the audit of a request as a task of the event loop, and returns immediately."""
        self.waiting += 1
        self._bytes += len(request.content)
        task = asyncio.ensure_future(self._audit(request, routing))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self, seconds: float) -> None:
        """Waits up to `seconds` for the audits under way, then cancels the others, which become void. An
        unreachable LLM is asked one last time.
        """
        self._closing.set()
        await _end_tasks(self._tasks, seconds)

    async def _audit(self, request: UpstreamRequest, routing: CallRouting) -> None:
        routing = replace(routing, audit=uuid.uuid4().hex)
        try:
            async with self.slots:
                await self._store_draw(routing)
                answer = await self._ask_with_retries(request)
                if isinstance(answer, str):
                    self.ledger.outcome(
                        CallOutcome(routing.version, None, routing, reason=VOID, cause=answer)
                    )
                    return
                await _offer(replace(answer, routing=routing), self.recorder)
        except asyncio.CancelledError:
            self.ledger.outcome(CallOutcome(routing.version, None, routing, reason=VOID, cause=_STOPPED))
            raise
        except Exception as error:
            LOG.error("an audit could not be made: %s", type(error).__name__)
            # A fault of ours is no evidence against the student.
            self.ledger.outcome(CallOutcome(routing.version, None, routing, reason=VOID, cause=_OWN_FAULT))
        finally:
            self.waiting -= 1
            self._bytes -= len(request.content)

    async def _store_draw(self, routing: CallRouting) -> None:
        """Stores the audit, trying again until the database takes it."""
        wait = _FIRST_WAIT
        row = routing.audit, routing.version, routing.student, routing.probability, routing.least
        while True:
            writing = asyncio.ensure_future(asyncio.to_thread(self.store.draw, *row))
            try:
                await asyncio.shield(writing)
                return
            except asyncio.CancelledError:
                # A thread can't be ended: the row is there before it is void.
                await asyncio.gather(writing, return_exceptions=True)
                raise
            except DBAPIError:
                await asyncio.sleep(wait)
                wait = min(2 * wait, _LONGEST_WAIT)

    async def _ask_with_retries(self, request: UpstreamRequest) -> Exchange | str:
        """The LLM's answer, or the cause why there is none and the audit is void: the LLM was unreachable for
        too long, or no longer accepts the caller.
        """
        began, wait = time.monotonic(), _FIRST_WAIT
        while True:
            try:
                async with asyncio.timeout(began + _TRYING * AUDIT_PATIENCE - time.monotonic()):
                    return await _ask_once(request, self.connections, self.keys)
            except _UnansweredRequest as failure:
                cause, may_come = status_reason(failure.status), may_answer_later(failure.status)
            except (TimeoutError, *FAILED):
                cause, may_come = _AWAY, True
            is_last = self._closing.is_set() or time.monotonic() + wait > began + AUDIT_PATIENCE / 2
            if not may_come or is_last:
                return cause
            with suppress(TimeoutError):
                await asyncio.wait_for(self._closing.wait(), wait)
            wait = min(2 * wait, _LONGEST_WAIT)


class ReplayRunner:
    """Asks recorded inputs beside passing calls, two beside each, one after the other. `waiting` counts the
    calls beside which something may still be asked.
    """

    def __init__(
        self, replays: ReplayStore, queue: ReplayQueue, audits: AuditRunner, redactor: Redactor
    ) -> None:
        self.replays, self.queue, self.audits, self.redactor = replays, queue, audits, redactor
        self.waiting = 0
        self._resumes_at, self._wait = 0.0, _FIRST_WAIT  # seconds of the monotonic clock
        self._is_closing = False
        self._tasks: set[asyncio.Task[None]] = set()

    def waits_for(self, site: str) -> bool:
        """Whether a call of this site may take one along now."""
        if site not in self.queue.sites or self._is_closing or self.audits.slots.locked():
            return False
        return self.audits.recorder.has_room and time.monotonic() >= self._resumes_at

    def begin(self, passing: UpstreamRequest) -> None:
        """Starts to ask the next recorded inputs of the version of a call that the LLM has just answered, if
        there are any, as a task of the event loop, and returns immediately.
        """
        self.waiting += 1
        task = asyncio.ensure_future(self._replay(passing))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def pause(self) -> None:
        """Asks nothing for a while, each time twice as long: the LLM has no time."""
        self._resumes_at = time.monotonic() + self._wait
        self._wait = min(2 * self._wait, _LONGEST_WAIT)

    async def close(self, seconds: float) -> None:
        """Waits up to `seconds` for the answers under way, and forgets the others: none is asked twice."""
        self._is_closing = True
        await _end_tasks(self._tasks, seconds)

    async def _replay(self, passing: UpstreamRequest) -> None:
        try:
            async with self.audits.slots:
                for _ in range(_BESIDE):
                    question = await asyncio.to_thread(self._claim_next, passing)
                    if question is None or not await self._ask(question, passing):
                        break
        except Exception as error:
            LOG.error("a recorded input could not be asked again: %s", type(error).__name__)
            self.pause()
        finally:
            self.waiting -= 1

    def _claim_next(self, passing: UpstreamRequest) -> ReplayQuestion | None:
        """Beside the event loop, for redaction takes its time."""
        request = self.redactor.begin_call().redact_request(passing.completion_request)
        version = version_id(request, passing.site)
        while passing.form.KEY and (question := self.queue.take(version)) is not None:
            if not self.replays.claim(question.id):
                continue
            if all(message.role in _ASKED_ROLES for message in question.call.request.inputs):
                return question
            self.replays.settle(question.id, "tool-messages")
        return None

    async def _ask(self, question: ReplayQuestion, passing: UpstreamRequest) -> bool:
        """Whether the LLM had time for it."""
        own, recorded = passing.completion_request, question.call.request
        messages = (*own.system, *recorded.inputs)
        request = replace(own, messages=messages, subjects=recorded.subjects)
        content = orjson.dumps(passing.form.write_request(request))
        headers = [(name, value) for name, value in passing.headers if name.lower() not in _OF_ONE_CALL]
        headers.append((b"content-length", str(len(content)).encode()))
        asking = replace(passing, completion_request=request, headers=headers, content=content, subjects=())
        cause = ""
        try:
            answer = await _ask_once(asking, self.audits.connections, self.audits.keys)
        except _UnansweredRequest as failure:
            cause = status_reason(failure.status)
        except FAILED:
            cause = _AWAY
        if cause:
            self.pause()
            await asyncio.to_thread(self.replays.postpone, question.id, cause)
            return False
        self._wait = _FIRST_WAIT
        await _offer(replace(answer, source=question.source, call_id=question.id), self.audits.recorder)
        await asyncio.to_thread(self.replays.settle, question.id, answer.refusal or ANSWERED)
        return True


async def _end_tasks(under_way: Iterable[asyncio.Task[None]], seconds: float) -> None:
    """Waits up to `seconds` for tasks, and cancels those that haven't ended by then."""
    tasks = list(under_way)
    if tasks:
        await asyncio.wait(tasks, timeout=seconds)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _offer(answer: Exchange, recorder: Recorder) -> None:
    """Hands an answer to the recorder, once that has room."""
    while not (recorder.has_room and recorder.offer(answer)):
        await asyncio.sleep(_FIRST_WAIT)


async def _ask_once(request: UpstreamRequest, connections: Connections, keys: KnownKeys) -> Exchange:
    began, clock = time.time(), time.perf_counter()
    answer = await connections.ask(request.method, request.target.url, request.headers, request.content)
    keys.note(dict(request.headers), answer.status, request.query)
    pieces, size, refusal = list[bytes](), 0, ""
    try:
        first = time.perf_counter() - clock
        if refuses_the_call(answer.status):
            refusal = status_reason(answer.status)
        elif answer.status != 200:
            raise _UnansweredRequest(answer.status)
        elif is_student_answer(answer):
            refusal = STUDENT_ANSWER
        else:
            async for piece in answer.pieces():
                pieces.append(piece)
                size += len(piece)
                if size > request.most_bytes:
                    pieces, refusal = [], "too-large"
                    break
    finally:
        await answer.close()
    return Exchange(
        request.form,
        request.completion_request,
        len(request.content),
        answer.header(b"content-type").lower(),
        answer.header(b"content-encoding"),
        pieces,
        True,
        began,
        first,
        time.perf_counter() - clock,
        request.named,
        request.subjects,
        refusal=refusal,
    )
