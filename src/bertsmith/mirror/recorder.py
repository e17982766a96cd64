"""The queue's other end: exchanges become calls in the store, in a thread of its own.

    relay → offer → queue, bounded by bytes → thread: read, redact → batch → store

What was answered is stored within a tenth of a second, as long as the store works: where calls come faster
than that, answers take their `turn`. A store that is locked, full or away is tried again until it works;
meanwhile the queue fills, and what no longer fits is counted and dropped.
"""

import asyncio
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from sqlalchemy.exc import DBAPIError, OperationalError

from bertsmith.errors import InputError
from bertsmith.mirror.call import QUEUE_FULL, Call, CallOutcome, NotMirrored, is_refusal
from bertsmith.mirror.exchange import Exchange, read_call
from bertsmith.mirror.identity import site_of, version_of
from bertsmith.mirror.redaction import Redactor
from bertsmith.mirror.store import Store
from bertsmith.serving import LOG

_BATCH = 50  # calls written together at most
# Seconds between two calls that are read: the thread lets go of the interpreter, which the relay else waits
# for at each of its steps.
_PAUSE = 0.0002
_GATHERED = 0.03  # seconds that a call waits for others to be written with
# Promised are 0.1 s from a call's answer until it is stored: from so many seconds or calls on, answers wait.
_BEHIND, _MANY = 0.08, 48
_STUCK = 0.2  # seconds of a batch, after which nothing waits for it
_LONGEST_TURN, _TURN_STEP = 0.25, 0.002  # seconds that an answer waits at most, and between two looks
_FIRST_WAIT, _LONGEST_WAIT = 0.1, 5.0  # seconds before a store that failed is tried again
_EXPIRED_EVERY = 3600.0  # seconds between two deletions of what is too old
_EXPIRED_AGAIN = 60.0  # seconds after one that another process's reading kept from ending
_DAY = 86400.0
UNREADABLE = "unreadable"  # why an audit is void


class Recorder:
    """`stored`, `dropped` and `failed` count calls; `passed` those that could not be mirrored, by reason."""

    def __init__(
        self,
        store: Store,
        redactor: Redactor,
        queue_bytes: int,
        retention_days: float | None = None,
        told: Callable[[CallOutcome], None] | None = None,
    ) -> None:
        self.store, self.redactor = store, redactor
        self.queue_bytes, self.retention_days = queue_bytes, retention_days
        self.told = told  # what the LLM said, once that is stored
        self.stored = self.dropped = self.failed = 0
        self.problem = ""
        self._changed = threading.Condition()
        self._waiting: deque[Exchange] = deque()
        self._waiting_bytes = 0
        self._passed: Counter[tuple[str, str]] = Counter()
        self._is_writing = False
        self._passing_on = 0  # answers that will be offered at once
        self._busy_since: float | None = None
        self._ends_at: float | None = None
        self._expired_at = 0.0
        self._expiry_problem = ""
        self._thread = threading.Thread(target=self._work, name="recorder", daemon=True)

    def start(self) -> None:
        """Begins the thread."""
        self._thread.start()

    @property
    def has_room(self) -> bool:
        """For one more; the last one may be larger than the room."""
        return self._waiting_bytes < self.queue_bytes

    def offer(self, exchange: Exchange) -> bool:
        """Whether it waits to be stored; else it has been counted and let go of. Never waits itself."""
        with self._changed:
            if self._waiting_bytes >= self.queue_bytes or self._ends_at is not None:
                self.count(exchange.form.NAME, QUEUE_FULL)
                return False
            self._waiting.append(exchange)
            self._waiting_bytes += exchange.size
            self._changed.notify()
            return True

    def count(self, protocol: str, reason: str) -> None:
        """A call that could not be mirrored."""
        with self._changed:
            self._passed[protocol, reason] += 1
            self.dropped += reason == QUEUE_FULL

    async def turn(self) -> None:
        """Waits while more was answered than is stored in time, unless the store doesn't work."""
        end = time.monotonic() + _LONGEST_TURN
        while self._is_behind and time.monotonic() < end:
            await asyncio.sleep(_TURN_STEP)

    @contextmanager
    def passing_on(self, is_whole: bool) -> Iterator[None]:
        """An answer, which is offered at once if it is whole; a stream may take its time."""
        self._passing_on += is_whole
        try:
            yield
        finally:
            self._passing_on -= is_whole

    @property
    def _is_behind(self) -> bool:
        began = self._busy_since
        if self.problem or (began is not None and time.monotonic() - began > _STUCK):
            return False
        return self.waiting + self._passing_on >= _MANY or self.waiting_seconds > _BEHIND

    @property
    def waiting_seconds(self) -> float:
        """Since the oldest of the calls that wait was answered."""
        with self._changed:
            oldest = self._waiting[0] if self._waiting else None
        return 0.0 if oldest is None else max(0.0, time.time() - oldest.began - oldest.seconds)

    @property
    def waiting(self) -> int:
        """Calls that are yet to be stored, those being written among them."""
        with self._changed:
            return len(self._waiting)

    @property
    def is_idle(self) -> bool:
        """All that was offered and counted is in the store."""
        with self._changed:
            return not (self._waiting or self._passed or self._is_writing)

    def close(self, seconds: float) -> int:
        """Stores what waits, for so long at most; gives how many calls are lost."""
        with self._changed:
            self._ends_at = time.monotonic() + seconds
            self._changed.notify()
        self._thread.join(seconds + 1)
        return len(self._waiting)

    def _work(self) -> None:
        while True:
            batch = self._next()
            problem, self._busy_since = "", time.monotonic() if batch else None
            try:
                calls, outcomes = self._calls(batch)
                with self._changed:
                    passed, self._passed = self._passed, Counter()
                    self._is_writing = True
                if not self._write(calls, passed):
                    return
                if self.told is not None:
                    for outcome in outcomes:
                        self.told(outcome)
            except Exception as error:  # no batch may end the thread
                problem = f"{type(error).__name__} in a batch of {len(batch)} calls"
            if problem:
                self._say(problem)
            self._busy_since = None
            with self._changed:
                self._is_writing = False
                for exchange in batch:
                    self._waiting.popleft()
                    self._waiting_bytes -= exchange.size
                if self._ends_at is not None and not (self._waiting or self._passed):
                    return

    def _next(self) -> list[Exchange]:
        """What waits, which stays in the queue until it is stored; now and then nothing."""
        with self._changed:
            if not self._waiting and self._ends_at is None:
                self._changed.wait(1.0)
        if self._ends_at is None:
            time.sleep(_GATHERED)
        with self._changed:
            return [self._waiting[place] for place in range(min(_BATCH, len(self._waiting)))]

    def _calls(self, batch: list[Exchange]) -> tuple[list[Call], list[CallOutcome]]:
        """And what they say of a student."""
        calls, outcomes = list[Call](), list[CallOutcome]()
        for exchange in batch:
            if self._ends_at is None:
                time.sleep(_PAUSE)
            routing = exchange.routing
            try:
                call = read_call(exchange, self.redactor)
                calls.append(call)
                outcomes.append(CallOutcome(call.version, call.request, routing, call.completion.value))
            except NotMirrored as found:
                self.count(exchange.form.NAME, found.reason)
                outcomes += self._unanswered(exchange, found.reason)
            except Exception as error:  # one strange call is not to end the recording of all
                self.failed += 1
                LOG.error("a call could not be recorded: %s", type(error).__name__)
                if routing is not None and routing.audit:  # a fault of ours is no evidence against a student
                    outcomes.append(CallOutcome(routing.version, None, routing, reason=UNREADABLE))
        return calls, outcomes

    def _unanswered(self, exchange: Exchange, reason: str) -> list[CallOutcome]:
        """What a call without an answer that can be read says of a student, if anything."""
        routing = exchange.routing
        if not is_refusal(reason):
            return [] if routing is None else [CallOutcome(routing.version, None, routing, reason=reason)]
        try:
            request = self.redactor.begin().redact_request(exchange.request)
            version = version_of(request, site_of(exchange.request, exchange.named))
        except Exception as error:
            LOG.error("a call could not be looked at: %s", type(error).__name__)
            return []
        return [CallOutcome(version, request, routing, reason=reason)]

    def _write(self, calls: list[Call], passed: Counter[tuple[str, str]]) -> bool:
        """False where the mirror has to end before the store works again."""
        wait = _FIRST_WAIT
        while True:
            try:
                if calls or passed:
                    self.store.add(calls, passed)
                    self.stored += len(calls)
                    calls, passed = [], Counter()
                self._expire()
                self._say(self._expiry_problem)
                return True
            except OperationalError as error:
                self._say(_said(error))
            except OSError as error:
                self._say(type(error).__name__)
            except Exception as error:  # what no other try would store
                if len(calls) + bool(passed) > 1:
                    return all([self._write([], passed), *(self._write([each], Counter()) for each in calls)])
                self.failed += len(calls)
                LOG.error("a call could not be stored: %s", _said(error))
                return True
            if self._ended(wait):
                return False
            wait = min(2 * wait, _LONGEST_WAIT)

    def _ended(self, seconds: float) -> bool:
        """Waits, and says whether the time to store anything is over."""
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
            self._expired_at, self._expiry_problem = time.monotonic() + _EXPIRED_AGAIN, str(error)
            return
        self._expired_at, self._expiry_problem = time.monotonic() + _EXPIRED_EVERY, ""
        if deleted:
            LOG.info("%d calls were older than %g days and are deleted", deleted, self.retention_days)

    def _say(self, problem: str) -> None:
        """Once, when it begins and when it ends."""
        if problem and problem != self.problem:
            LOG.error("the store can't be written and is tried again: %s", problem)
        if self.problem and not problem:
            LOG.info("the store is written again")
        self.problem = problem


def _said(error: Exception) -> str:
    """The database's own words without the statement: its values may be texts."""
    if not isinstance(error, DBAPIError):
        return type(error).__name__
    words = str(error.orig).splitlines()
    return (words[0] if words else type(error).__name__)[:200]
