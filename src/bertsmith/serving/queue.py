"""Accepted work, ordered by deadline, fair between keys: what is admitted, and what is computed next.

    admit ──► [ jobs by rank ] ──► take: one batch of one pass, within a token budget
       └► Overloaded, with the seconds after which to come back

A job's rank is its deadline plus the lead that its key has over the key that was given least, so that one
client's flood goes behind the others' requests (start-time fair queueing, Goyal et al. 1996, on deadlines).
Times are of time.monotonic, in seconds.
"""

import asyncio
import time
from bisect import insort
from collections import Counter
from collections.abc import Callable, Sequence
from threading import Condition, Lock
from typing import Any, NamedTuple

from bertsmith.serving.operations.operation import Pass, Prepared
from bertsmith.serving.refusals import Expired, Overloaded
from bertsmith.tasks.examples.encoding import Encoded
from bertsmith.tasks.task import Outputs

_FIRST_RATE = 4000.0  # tokens a second, until the first batches were timed
_WEIGHT = 0.1  # of the last batch in what is believed of the next
_SOONEST = 0.05  # seconds after which to come back, at least


class Job:
    """An accepted request. Made and cancelled by the event loop; computed by the workers, perhaps in several
    batches at a time. `future` has the answer.
    """

    def __init__(
        self, prepared: Prepared, deadline: float, key: str, loop: asyncio.AbstractEventLoop
    ) -> None:
        self.prepared, self.deadline, self.key, self.loop = prepared, deadline, key, loop
        self.future: asyncio.Future[Any] = loop.create_future()
        self.outputs: list[Outputs | None] = [None] * len(prepared.encoded)
        self.rank = deadline
        self.taken = 0  # of its sequences, in order
        self.left = prepared.tokens  # that no worker has taken
        self.begun = self.ended = 0.0
        self.over = False  # cancelled, failed or answered
        self._missing = len(self.outputs)
        self._lock = Lock()

    def settle(self, place: int, output: Outputs) -> None:
        """From a worker; the last one decodes, and so answers."""
        with self._lock:
            self.outputs[place] = output
            self._missing -= 1
            if self._missing or self.over:
                return
        try:
            results = self.prepared.finish([each for each in self.outputs if each is not None])
        except Exception as error:
            self.fail(error)
            return
        self._end(lambda: self.future.set_result(results))

    def fail(self, error: BaseException) -> None:
        """From any thread."""
        self._end(lambda: self.future.set_exception(error))

    def _end(self, settle: Any) -> None:
        if self.over:
            return
        self.over, self.ended = True, time.monotonic()
        try:
            self.loop.call_soon_threadsafe(lambda: None if self.future.done() else settle())
        except RuntimeError:  # the loop was closed: nobody waits any more
            return


class Taken(NamedTuple):
    """A sequence of a job, by its place in it."""

    job: Job
    place: int

    @property
    def encoded(self) -> Encoded:
        return self.job.prepared.encoded[self.place]


class Batch(NamedTuple):
    """Sequences of one pass."""

    run: Pass
    taken: Sequence[Taken]
    tokens: int


class WorkQueue:
    """Shared by the event loop, which admits and cancels, and the workers, which take and finish."""

    def __init__(self, most_tokens: int) -> None:
        self.most_tokens = most_tokens
        self.changed = Condition()
        self.computing = 0  # batches
        self._jobs: list[tuple[float, int, Job]] = []  # by rank, and by their order of arrival
        self._count = 0
        self._in_flight = 0  # tokens that workers have
        self._given: dict[str, float] = {}  # tokens a key was given, above the key that got least
        self._keys: Counter[str] = Counter()  # jobs a key has here
        self.rate = _FIRST_RATE  # tokens a second by all workers together
        self._tokens = 0
        self.last_admitted = self.last_finished = time.monotonic()
        self.on_batch: Callable[[Batch], None] = lambda batch: None

    # -- the event loop's side -----------------------------------------------------------------------------

    def require_hope(self, deadline: float, key: str) -> None:
        """Raises Overloaded where even an empty request of this key would come too late."""
        with self.changed:
            self._require_time(deadline, self._rank(deadline, key), 0)

    def admit(self, job: Job) -> None:
        """All of it or nothing. Raises Overloaded."""
        tokens = job.prepared.tokens
        with self.changed:
            job.rank = self._rank(job.deadline, job.key)
            self._require_time(job.deadline, job.rank, tokens)
            if self._tokens + tokens > self.most_tokens and self._tokens:
                wait = max(self._tokens / self.rate, _SOONEST)
                raise Overloaded(f"{self._tokens:,} tokens are waiting already. {_again(wait)}", wait)
            self._given[job.key] = self._given.get(job.key, self._least()) + tokens
            self._keys[job.key] += 1
            self._count += 1
            self._tokens += tokens
            self.last_admitted = time.monotonic()
            insort(self._jobs, (job.rank, self._count, job))
            self.changed.notify_all()

    def cancel(self, job: Job) -> None:
        """Takes out what no worker has begun with."""
        with self.changed:
            job.over = True
            self._remove(job)

    async def idle(self) -> None:
        """Waits until all that was admitted is answered."""
        while self.size or self.computing:
            await asyncio.sleep(0.01)

    @property
    def size(self) -> int:
        """Jobs that wait."""
        return len(self._jobs)

    @property
    def waiting_tokens(self) -> int:
        """Tokens that wait."""
        return self._tokens

    def wait(self) -> float:
        """Seconds until what is here now will have been computed, as it seems."""
        return (self._tokens + self._in_flight) / self.rate

    # -- the workers' side: all under `changed` ------------------------------------------------------------

    def take(self, budget: int, now: float) -> Batch | None:
        """The most urgent work and what may be computed with it: at most `budget` tokens, at least one
        sequence. What has expired is refused instead. None where nothing waits.
        """
        self._expire(now)
        if not self._jobs:
            return None
        run = self._jobs[0][2].prepared.run
        taken, tokens = list[Taken](), 0
        for _, _, job in list(self._jobs):
            if job.prepared.run is not run:
                continue
            while job.taken < len(job.prepared.encoded):
                size = job.prepared.encoded[job.taken].tokens
                if taken and tokens + size > budget:
                    break
                taken.append(Taken(job, job.taken))
                tokens += size
                job.taken += 1
                job.left -= size
                job.begun = job.begun or now
            if job.taken == len(job.prepared.encoded):
                self._remove(job)
            if tokens >= budget:
                break
        self._tokens -= tokens
        self._in_flight += tokens
        self.computing += 1
        return Batch(run, taken, tokens)

    def finished(self, batch: Batch, seconds: float, at_a_time: int) -> None:
        """`at_a_time` batches were computed beside each other, this one among them."""
        self.computing -= 1
        self.last_finished = time.monotonic()
        self.on_batch(batch)
        self._in_flight -= batch.tokens
        rate = batch.tokens * at_a_time / max(seconds, 1e-6)
        self.rate += _WEIGHT * (rate - self.rate)

    # -- inside --------------------------------------------------------------------------------------------

    def _rank(self, deadline: float, key: str) -> float:
        least = self._least()
        return deadline + max(self._given.get(key, least) - least, 0.0) / self.rate

    def _least(self) -> float:
        """What the key was given that got least of those that wait here."""
        return min((self._given[key] for key in self._keys), default=0.0)

    def _require_time(self, deadline: float, rank: float, tokens: int) -> None:
        ahead = sum(job.left for other, _, job in self._jobs if other <= rank)
        needed = (ahead + self._in_flight + tokens) / self.rate
        late = time.monotonic() + needed - deadline
        if late > 0 and (ahead or self._in_flight):
            wait = max(late, _SOONEST)
            raise Overloaded(
                f"This would be answered {late * 1000:,.0f} ms after its deadline. {_again(wait)}", wait
            )

    def _expire(self, now: float) -> None:
        for job in [job for _, _, job in self._jobs if job.deadline <= now or job.over]:
            self._remove(job)
            job.fail(
                Expired("Its time was over before it was computed.", retry_after=max(self.wait(), _SOONEST))
            )

    def _remove(self, job: Job) -> None:
        for number, (_, _, other) in enumerate(self._jobs):
            if other is job:
                del self._jobs[number]
                self._tokens -= job.left
                self._keys[job.key] -= 1
                if not self._keys[job.key]:
                    del self._keys[job.key]
                if not self._keys:
                    self._given.clear()
                return


def _again(seconds: float) -> str:
    return f"Come back in {seconds:.2f} seconds."
