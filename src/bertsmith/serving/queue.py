"""Accepted work: what is admitted, and what is computed next.

    admit ──► [ key → its jobs by deadline ] ──► take: one batch of one pass, within a token budget
       └► Overloaded, with the seconds after which to come back

The key that was given the fewest tokens has its most urgent job computed next, so that one client's flood
doesn't delay the others (start-time fair queueing, Goyal et al. 1996). A request is admitted if it will be
done in time, as it seems, and makes no other of its key late. Times are of time.monotonic, in seconds.
"""

import asyncio
import time
from bisect import insort
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
        self.rate = _FIRST_RATE  # tokens a second by all workers together
        self.waiting_tokens = 0
        self.began_waiting = self.last_finished = time.monotonic()
        self.on_batch: Callable[[Batch], None] = lambda batch: None
        self._clients: dict[str, _Client] = {}  # those that have a job here
        self._count = 0
        self._in_flight = 0  # tokens that workers have

    # -- the event loop's side -------------------------------------------------------------------------------

    def require_hope(self, deadline: float, key: str) -> None:
        """Raises Overloaded where even an empty request of this key would come too late."""
        with self.changed:
            self._require_time(deadline, key, 0)

    def admit(self, job: Job) -> None:
        """All of it or nothing. Raises Overloaded."""
        tokens = job.left
        with self.changed:
            self._require_time(job.deadline, job.key, tokens)
            if self.waiting_tokens and self.waiting_tokens + tokens > self.most_tokens:
                wait = max(self.waiting_tokens / self.rate, _SOONEST)
                raise Overloaded(f"{self.waiting_tokens:,} tokens are waiting already. {_again(wait)}", wait)
            if not self._clients:
                self.began_waiting = time.monotonic()
            if job.key not in self._clients:
                self._clients[job.key] = _Client(self._least())
            client = self._clients[job.key]
            self._count += 1
            insort(client.jobs, (job.deadline, self._count, job))
            client.waiting += tokens
            self.waiting_tokens += tokens
            self.changed.notify_all()

    def cancel(self, job: Job) -> None:
        """Takes out what no worker has begun with."""
        with self.changed:
            job.over = True
            self._remove(job)

    @property
    def size(self) -> int:
        """Jobs that wait."""
        return sum(len(client.jobs) for client in self._clients.values())

    def wait(self) -> float:
        """Seconds until what is here now will have been computed, as it seems."""
        return (self.waiting_tokens + self._in_flight) / self.rate

    # -- the workers' side: all under `changed` --------------------------------------------------------------

    def take(self, budget: int, now: float) -> Batch | None:
        """The work that is next, and what may be computed with it: at most `budget` tokens, at least one
        sequence. What has expired is refused instead. None where nothing waits.
        """
        self._expire(now)
        if not self._clients:
            return None
        clients = sorted(self._clients.values(), key=lambda each: each.given)
        run, taken, tokens = clients[0].jobs[0][2].prepared.run, list[Taken](), 0
        waiting = [(each, job) for each in clients for _, _, job in each.jobs]
        for client, job in waiting:
            if taken and tokens >= budget:
                break
            if job.prepared.run is run:
                tokens += self._take(client, job, taken, budget - tokens, now)
        self._in_flight += tokens
        self.computing += 1
        batch = Batch(run, taken, tokens)
        self.on_batch(batch)  # before anybody has its answer
        return batch

    def finished(self, batch: Batch, seconds: float, at_a_time: int) -> None:
        """`at_a_time` batches were computed beside each other, this one among them."""
        self.computing -= 1
        self.last_finished = time.monotonic()
        self._in_flight -= batch.tokens
        rate = batch.tokens * at_a_time / max(seconds, 1e-6)
        self.rate += _WEIGHT * (rate - self.rate)

    # -- inside ----------------------------------------------------------------------------------------------

    def _take(self, client: "_Client", job: Job, taken: list[Taken], room: int, now: float) -> int:
        """Adds as many sequences of a job to `taken` as there is room for; how many tokens they have."""
        tokens = 0
        while job.taken < len(job.prepared.encoded):
            size = job.prepared.encoded[job.taken].tokens
            if taken and tokens + size > room:
                break
            taken.append(Taken(job, job.taken))
            tokens += size
            job.taken += 1
            job.begun = job.begun or now
        job.left -= tokens
        client.waiting -= tokens
        client.given += tokens
        self.waiting_tokens -= tokens
        if job.taken == len(job.prepared.encoded):
            self._remove(job)
        return tokens

    def _least(self) -> float:
        """What the client was given that got least: a new one begins there, and has no arrears to claim."""
        return min((client.given for client in self._clients.values()), default=0.0)

    def _require_time(self, deadline: float, key: str, tokens: int) -> None:
        """Of its own key all that is more urgent comes before; of each other key as much as that at most."""
        client = self._clients.get(key)
        mine = client.jobs if client is not None else []
        others = [each.waiting for each in self._clients.values() if each is not client]
        now, before = time.monotonic(), tokens
        lateness = [0.0]
        for due, _, job in mine:
            if due <= deadline:
                before += job.left
        lateness.append(self._done(now, before, others) - deadline)
        for due, _, job in mine:  # the less urgent ones, which the new one delays
            if due > deadline:
                before += job.left
                lateness.append(self._done(now, before, others) - due)
        late = max(lateness)
        if late > 0 and (mine or others or self._in_flight):
            wait = max(late, _SOONEST)
            raise Overloaded(
                f"There is more work than can be done before its deadline, by {late * 1000:,.0f} ms. "
                f"{_again(wait)}",
                wait,
            )

    def _done(self, now: float, mine: int, others: Sequence[int]) -> float:
        return now + (self._in_flight + mine + sum(min(each, mine) for each in others)) / self.rate

    def _expire(self, now: float) -> None:
        late = [
            job
            for client in self._clients.values()
            for _, _, job in client.jobs
            if job.deadline <= now or job.over
        ]
        for job in late:
            self._remove(job)
            job.fail(Expired("Its time was over before it was computed.", max(self.wait(), _SOONEST)))

    def _remove(self, job: Job) -> None:
        client = self._clients.get(job.key)
        if client is None:
            return
        for number, (_, _, other) in enumerate(client.jobs):
            if other is job:
                del client.jobs[number]
                client.waiting -= job.left
                self.waiting_tokens -= job.left
                break
        if not client.jobs:
            del self._clients[job.key]


class _Client:
    """The jobs of one key, the most urgent first. `given`: tokens, counted from what others had been given
    when it came; `waiting`: tokens.
    """

    def __init__(self, given: float) -> None:
        self.jobs: list[tuple[float, int, Job]] = []
        self.given, self.waiting = given, 0


def _again(seconds: float) -> str:
    return f"Come back in {seconds:.2f} seconds."
