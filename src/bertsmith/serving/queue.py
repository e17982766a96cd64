"""Accepted work: what is admitted, and what is computed next.

    admit ──► [ key → its jobs by deadline ] ──► take: one batch of one pass, within a token budget
       └► Overloaded, with the seconds after which to come back

The key that was given the fewest tokens has its most urgent job computed next, so that one client's flood
doesn't delay the others (start-time fair queueing, Goyal et al. 1996). A request is admitted if it will be
done in time, as it seems, and makes no other of its key late. Times are of time.monotonic, in seconds.
"""

import asyncio
import math
import time
from bisect import insort
from collections.abc import Callable, Sequence
from threading import Condition, Lock
from typing import Any, NamedTuple

from bertsmith.serving.operations.operation import Pass, PreparedRequest
from bertsmith.serving.refusals import DeadlineError, ServiceOverload
from bertsmith.tasks.examples.encoding import EncodedExample
from bertsmith.tasks.task import Outputs

_FIRST_RATE = 4000.0  # tokens a second, until the first batches were timed
_FIRST_WEIGHT = 50.0**2  # of that rate: as a batch of so many tokens
_LASTING = 10 * 384.0**2  # of all that was timed: about ten full batches of a core
_SOONEST = 0.05  # seconds after which to come back, at least


class Job:
    """An accepted request. Made and cancelled by the event loop; computed by the workers, perhaps in several
    batches at a time. `future` has the answer.
    """

    def __init__(
        self, prepared: PreparedRequest, deadline: float, key: str, loop: asyncio.AbstractEventLoop
    ) -> None:
        self.prepared, self.deadline, self.key, self.loop = prepared, deadline, key, loop
        self.future: asyncio.Future[Any] = loop.create_future()
        self.outputs: list[Any] = [None] * len(prepared.encoded)
        self.taken = 0  # of its sequences, in order
        self.left = prepared.tokens  # that no worker has taken
        self.begun = self.ended = 0.0
        self.over = False  # cancelled, failed or answered
        self._missing = len(self.outputs)
        self._lock = Lock()

    def settle(self, place: int, output: Outputs) -> None:
        """From a worker; the last one decodes, and so answers, unless that is slow: then the future has what
        is still to be finished.
        """
        try:
            kept = self.prepared.keep(output)
            with self._lock:
                self.outputs[place] = kept
                self._missing -= 1
                if self._missing or self.over:
                    return
            results = self.outputs if self.prepared.is_slow else self.prepared.finish(self.outputs)
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


class JobSequence(NamedTuple):
    """A sequence of a job, by its place in it."""

    job: Job
    place: int

    @property
    def encoded(self) -> EncodedExample:
        return self.job.prepared.encoded[self.place]


class Batch(NamedTuple):
    """Sequences of one pass."""

    run: Pass
    taken: Sequence[JobSequence]
    tokens: int


class WorkQueue:
    """Shared by the event loop, which admits and cancels, and the workers, which take and finish."""

    def __init__(self, most_tokens: int) -> None:
        self.most_tokens = most_tokens
        self.changed = Condition()
        self.computing = 0  # batches
        self.rate = _FIRST_RATE  # tokens a second by all workers together
        self._squares, self._products = _FIRST_WEIGHT, _FIRST_WEIGHT / _FIRST_RATE
        self.waiting_tokens = 0
        self.began_waiting = self.last_finished = time.monotonic()
        self.on_batch: Callable[[Batch], None] = lambda batch: None
        self._clients: dict[str, _KeyQueue] = {}  # those that have a job here
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
            self._require_room(job.key, tokens)
            if not self._clients:
                self.began_waiting = time.monotonic()
            if job.key not in self._clients:
                # As the one that was given least: a new one has no arrears to claim.
                least = min((client.given for client in self._clients.values()), default=0.0)
                self._clients[job.key] = _KeyQueue(least)
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
            self.changed.notify_all()  # what is left may be for another worker than before

    @property
    def size(self) -> int:
        """Jobs that wait. From any thread."""
        with self.changed:
            return sum(len(client.jobs) for client in self._clients.values())

    def wait(self) -> float:
        """Seconds until what is here now will have been computed, as it seems."""
        return (self.waiting_tokens + self._in_flight) / self.rate

    def expired(self) -> DeadlineError:
        """What a request is told whose deadline has passed. From any thread."""
        return DeadlineError("Its time was over before it was computed.", max(self.wait(), _SOONEST))

    # -- the workers' side: all under `changed` --------------------------------------------------------------

    def take(self, budget: int, now: float) -> Batch | None:
        """The work that is next, and what may be computed with it: at most `budget` tokens, at least one
        sequence. What expires before it is begun is refused instead. None where nothing waits.
        """
        late = [
            job
            for client in self._clients.values()
            for _, _, job in client.jobs
            # Not what was begun: what was computed of it would be thrown away, and asked for again.
            if job.over or (job.deadline <= now and not job.taken)
        ]
        for job in late:
            self._remove(job)
            job.fail(self.expired())
        if not self._clients:
            return None
        clients = sorted(self._clients.values(), key=lambda each: each.given)
        run, taken, tokens = clients[0].jobs[0][2].prepared.run, list[JobSequence](), 0
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
        self._learn(batch.tokens, max(seconds, 1e-6) / at_a_time)

    # -- inside ----------------------------------------------------------------------------------------------

    def _learn(self, tokens: int, seconds: float) -> None:
        """The line through 0 that fits the batches of late best: by least squares, a batch counts by the
        square of its tokens. A small one takes its time for other things than tokens, and says little.
        """
        fading = math.exp(-(tokens**2) / _LASTING)
        self._squares = fading * self._squares + tokens**2
        self._products = fading * self._products + tokens * seconds
        self.rate = self._squares / self._products

    def _take(self, client: "_KeyQueue", job: Job, taken: list[JobSequence], room: int, now: float) -> int:
        """Adds as many sequences of a job to `taken` as there is room for; how many tokens they have."""
        tokens = 0
        while job.taken < len(job.prepared.encoded):
            size = job.prepared.encoded[job.taken].tokens
            if taken and tokens + size > room:
                break
            taken.append(JobSequence(job, job.taken))
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

    def _require_room(self, key: str, tokens: int) -> None:
        """One key alone may have all tokens that may wait. Where several wait, each has its equal share, also
        when another has taken all before; twice `most_tokens` is the end of it.
        """
        if not self.waiting_tokens:
            return
        mine = self._clients[key].waiting if key in self._clients else 0
        share = self.most_tokens / len({key, *self._clients})
        within, total = mine + tokens <= share, self.waiting_tokens + tokens
        if total <= self.most_tokens * (2 if within else 1) and (within or not mine):
            return
        wait = max(self.waiting_tokens / self.rate, _SOONEST)
        whose = f", {mine:,} of them this key's" if len(self._clients) > 1 and mine else ""
        raise ServiceOverload(
            f"{self.waiting_tokens:,} tokens are waiting already{whose}. {_again(wait)}", wait
        )

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
            raise ServiceOverload(
                f"There is more work than can be done before its deadline, by {late * 1000:,.0f} ms. "
                f"{_again(wait)}",
                wait,
            )

    def _done(self, now: float, mine: int, others: Sequence[int]) -> float:
        return now + (self._in_flight + mine + sum(min(each, mine) for each in others)) / self.rate

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


class _KeyQueue:
    """The jobs of one key, the most urgent first. `given`: tokens, counted from what others had been given
    when it came; `waiting`: tokens.
    """

    def __init__(self, given: float) -> None:
        self.jobs: list[tuple[float, int, Job]] = []
        self.given, self.waiting = given, 0


def _again(seconds: float) -> str:
    return f"Come back in {seconds:.2f} seconds."
