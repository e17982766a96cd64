"""The recorder: a queue of exchanges, and a thread that turns them into calls in the store.

    relay → offer → queue, bounded by bytes → thread: read, redact → batch → store

A call is stored within a tenth of a second of its answer, as long as the store works: if calls come faster
than that, answers wait (`wait_while_behind`). A store that is locked, full or unreachable is tried again
until it works; meanwhile the queue fills, and calls that no longer fit are counted and dropped.
"""

import asyncio
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from sqlalchemy.exc import DBAPIError, OperationalError

from bertsmith.errors import InputError
from bertsmith.mirror.call import QUEUE_FULL, Call, CallOutcome, NotMirrored, is_refusal
from bertsmith.mirror.exchange import Exchange, read_call
from bertsmith.mirror.identity import site_id, version_id
from bertsmith.mirror.redaction import Redactor
from bertsmith.mirror.store import Store
from bertsmith.serving import LOG

_BATCH = 50  # calls written together at most
# Seconds between reading two calls: the thread releases the interpreter's lock, which the relay would
# otherwise wait for at each of its steps.
_PAUSE = 0.0002
_GATHER_SECONDS = 0.03  # seconds that a call waits for others to be written with
# A call is to be stored within 0.1 s of its answer: from this many seconds or calls behind, answers wait.
_BEHIND_SECONDS, _BEHIND_CALLS = 0.08, 48
_STUCK_SECONDS = 0.2  # after a batch has taken so long, answers no longer wait for it
_LONGEST_TURN, _TURN_STEP = 0.25, 0.002  # seconds that an answer waits at most, and between two checks
_FIRST_WAIT, _LONGEST_WAIT = 0.1, 5.0  # seconds before a store that failed is tried again
_EXPIRE_EVERY = 3600.0  # seconds between two deletions of calls that are too old
_EXPIRE_RETRY = 60.0  # seconds after a deletion that another process's reading kept from finishing
_DAY = 86400.0
UNREADABLE = "unreadable"  # why an audit is void


class Recorder:
    """Stores the calls that the relay offers. `on_outcome` is called with each call's outcome once its batch
    is stored. `stored`, `dropped` (no room) and `failed` (an error) count calls. `problem` says why the store
    can't be written now; empty if it can.
    """

    def __init__(
        self,
        store: Store,
        redactor: Redactor,
        queue_bytes: int,
        retention_days: float | None = None,
        on_outcome: Callable[[CallOutcome], None] | None = None,
    ) -> None:
        self.store, self.redactor = store, redactor
        self.queue_bytes, self.retention_days = queue_bytes, retention_days
        self.on_outcome = on_outcome
        self.stored = self.dropped = self.failed = 0
        self.problem = ""
        self._changed = threading.Condition()
        self._waiting: deque[Exchange] = deque()
        self._waiting_bytes = 0
        self._skipped: Counter[tuple[str, str]] = Counter()
        self._is_writing = False
        self._passing_on = 0  # whole answers that are being sent and will be offered next
        self._busy_since: float | None = None
        self._ends_at: float | None = None
        self._expired_at = 0.0
        self._expiry_problem = ""
        self._thread = threading.Thread(target=self._work, name="recorder", daemon=True)

    def start(self) -> None:
        """Starts the thread that writes the store."""
        self._thread.start()

    @property
    def has_room(self) -> bool:
        """Whether the queue takes another exchange; the last one may exceed its bytes."""
        return self._waiting_bytes < self.queue_bytes

    def offer(self, exchange: Exchange) -> bool:
        """Queues an exchange; False if there is no room and it was counted as dropped. Never blocks."""
        with self._changed:
            if self._waiting_bytes >= self.queue_bytes or self._ends_at is not None:
                self.count(exchange.form.NAME, QUEUE_FULL)
                return False
            self._waiting.append(exchange)
            self._waiting_bytes += exchange.size
            self._changed.notify()
            return True

    def count(self, protocol: str, reason: str) -> None:
        """Counts a call that is not recorded, by its reason."""
        with self._changed:
            self._skipped[protocol, reason] += 1
            self.dropped += reason == QUEUE_FULL

    async def wait_while_behind(self) -> None:
        """Waits while the store is behind, a quarter of a second at most; not at all if it doesn't work."""
        end = time.monotonic() + _LONGEST_TURN
        while self._is_behind and time.monotonic() < end:
            await asyncio.sleep(_TURN_STEP)

    @contextmanager
    def passing_on(self, is_whole: bool) -> Iterator[None]:
        """While an answer is sent. A whole one counts as waiting already, since it is offered right after; a
        stream may take its time.
        """
        self._passing_on += is_whole
        try:
            yield
        finally:
            self._passing_on -= is_whole

    @property
    def _is_behind(self) -> bool:
        began = self._busy_since
        if self.problem or (began is not None and time.monotonic() - began > _STUCK_SECONDS):
            return False
        return self.waiting + self._passing_on >= _BEHIND_CALLS or self.waiting_seconds > _BEHIND_SECONDS

    @property
    def waiting_seconds(self) -> float:
        """Seconds since the answer of the oldest call in the queue; 0 if it is empty."""
        with self._changed:
            oldest = self._waiting[0] if self._waiting else None
        return 0.0 if oldest is None else max(0.0, time.time() - oldest.began - oldest.seconds)

    @property
    def waiting(self) -> int:
        """The number of calls that are not stored yet, including those being written."""
        with self._changed:
            return len(self._waiting)

    @property
    def is_idle(self) -> bool:
        """Whether everything that was offered and counted is in the store."""
        with self._changed:
            return not (self._waiting or self._skipped or self._is_writing)

    def close(self, seconds: float) -> int:
        """Stores the queue, for at most `seconds`; returns how many calls are lost."""
        with self._changed:
            self._ends_at = time.monotonic() + seconds
            self._changed.notify()
        self._thread.join(seconds + 1)
        return len(self._waiting)

    def _work(self) -> None:
        while True:
            batch = self._next_batch()
            problem, self._busy_since = "", time.monotonic() if batch else None
            try:
                calls, outcomes = self._read_batch(batch)
                with self._changed:
                    skipped, self._skipped = self._skipped, Counter()
                    self._is_writing = True
                if not self._write(calls, skipped):
                    return
                if self.on_outcome is not None:
                    for outcome in outcomes:
                        self.on_outcome(outcome)
            except Exception as error:  # no batch may end the thread
                problem = f"{type(error).__name__} in a batch of {len(batch)} calls"
            if problem:
                self._report(problem)
            self._busy_since = None
            with self._changed:
                self._is_writing = False
                for exchange in batch:
                    self._waiting.popleft()
                    self._waiting_bytes -= exchange.size
                if self._ends_at is not None and not (self._waiting or self._skipped):
                    return

    def _next_batch(self) -> list[Exchange]:
        """The next exchanges, which stay in the queue until they are stored; empty after a second without
        any.
        """
        with self._changed:
            if not self._waiting and self._ends_at is None:
                self._changed.wait(1.0)
        if self._ends_at is None:
            time.sleep(_GATHER_SECONDS)
        with self._changed:
            return [self._waiting[index] for index in range(min(_BATCH, len(self._waiting)))]

    def _read_batch(self, batch: list[Exchange]) -> tuple[list[Call], list[CallOutcome]]:
        """The calls of a batch, and the outcome of each exchange as evidence about its student."""
        calls, outcomes = list[Call](), list[CallOutcome]()
        for exchange in batch:
            if self._ends_at is None:
                time.sleep(_PAUSE)
            routing = exchange.routing
            try:
                call = read_call(exchange, self.redactor)
                calls.append(call)
                answer = call.completion.value
                outcomes.append(CallOutcome(call.version, call.request, routing, answer, began=call.began))
            except NotMirrored as error:
                self.count(exchange.form.NAME, error.reason)
                outcomes += self._read_refusal(exchange, error.reason)
            except Exception as error:  # a call that can't be read must not end the recording of all
                self.failed += 1
                LOG.error("a call could not be recorded: %s", type(error).__name__)
                # The mirror's own fault is no evidence against a student.
                if routing is not None and routing.audit:
                    outcomes.append(CallOutcome(routing.version, None, routing, reason=UNREADABLE))
        return calls, outcomes

    def _read_refusal(self, exchange: Exchange, reason: str) -> list[CallOutcome]:
        """The outcome of a call whose answer can't be read, if it says anything about a student."""
        routing = exchange.routing
        if not is_refusal(reason):
            return [] if routing is None else [CallOutcome(routing.version, None, routing, reason=reason)]
        try:
            request = self.redactor.begin_call().redact_request(exchange.request)
            version = version_id(request, site_id(exchange.request, exchange.named))
            request = replace(request, subjects=tuple(dict.fromkeys((*exchange.subjects, *request.subjects))))
        except Exception as error:
            LOG.error("a call could not be looked at: %s", type(error).__name__)
            return []
        return [CallOutcome(version, request, routing, reason=reason, began=exchange.began)]

    def _write(self, calls: list[Call], skipped: Counter[tuple[str, str]]) -> bool:
        """Stores a batch, trying again until it works; False if the mirror has to stop before."""
        wait = _FIRST_WAIT
        while True:
            try:
                if calls or skipped:
                    self.store.add(calls, skipped)
                    self.stored += len(calls)
                    calls, skipped = [], Counter()
                self._expire()
                self._report(self._expiry_problem)
                return True
            except OperationalError as error:
                self._report(_describe_error(error))
            except OSError as error:
                self._report(type(error).__name__)
            except Exception as error:  # an error that trying again would not mend
                if len(calls) + bool(skipped) > 1:
                    return all(
                        [self._write([], skipped), *(self._write([call], Counter()) for call in calls)]
                    )
                self.failed += len(calls)
                LOG.error("a call could not be stored: %s", _describe_error(error))
                return True
            if self._wait_is_over(wait):
                return False
            wait = min(2 * wait, _LONGEST_WAIT)

    def _wait_is_over(self, seconds: float) -> bool:
        """Waits for so long; returns whether the time that `close` gave is over."""
        with self._changed:
            left = seconds if self._ends_at is None else min(seconds, self._ends_at - time.monotonic())
            if left > 0:
                self._changed.wait(left)
            return self._ends_at is not None and time.monotonic() >= self._ends_at

    def _expire(self) -> None:
        if self.retention_days is None or time.monotonic() < self._expired_at:
            return
        try:
            deleted = self.store.expire(time.time() - self.retention_days * _DAY)
        except InputError as error:  # the rows are deleted, the log isn't written over: later
            self._expired_at, self._expiry_problem = time.monotonic() + _EXPIRE_RETRY, str(error)
            return
        self._expired_at, self._expiry_problem = time.monotonic() + _EXPIRE_EVERY, ""
        if deleted:
            LOG.info("%d calls were older than %g days and are deleted", deleted, self.retention_days)

    def _report(self, problem: str) -> None:
        """Logs a problem once when it begins and once when it ends."""
        if problem and problem != self.problem:
            LOG.error("the store can't be written and is tried again: %s", problem)
        if self.problem and not problem:
            LOG.info("the store is written again")
        self.problem = problem


def _describe_error(error: Exception) -> str:
    """The database's message without the statement, whose values may be users' texts."""
    if not isinstance(error, DBAPIError):
        return type(error).__name__
    words = str(error.orig).splitlines()
    return (words[0] if words else type(error).__name__)[:200]
