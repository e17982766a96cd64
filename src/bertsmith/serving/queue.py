"""The queue of requests: decides which are admitted and which are computed next.

    admit ──► [ flow → its jobs by deadline ] ──► take: one batch of one encoder, within a token budget
       └► ServiceOverload, with the seconds after which to come back

A flow has the requests of one key to one model. The next job is the most urgent one of the flow that was
granted the fewest tokens for its weight, so that one client's flood, or one to a single model, doesn't delay
the others (start-time fair queueing, Goyal et al. 1996). Keys weigh the same, whatever number of models each
asks; so do the models that a key asks. A request is admitted if, by the measured rate, it will meet its
deadline and make no other request of its flow miss one. Times are those of time.monotonic, in seconds.
"""

import asyncio
import math
import time
from bisect import insort
from collections import Counter
from collections.abc import Callable, Sequence
from threading import Lock, RLock
from typing import Any, NamedTuple

from bertsmith.serving.operations.operation import PreparedRequest, compute_together
from bertsmith.serving.refusals import DeadlineError, ServiceOverload
from bertsmith.tasks.examples.encoding import EncodedExample
from bertsmith.tasks.task import Outputs

_INITIAL_RATE = 4000.0  # tokens a second, until the first batches were timed
_INITIAL_WEIGHT = 50.0**2  # of that rate: as a batch of so many tokens
_MEMORY = 10 * 384.0**2  # of all that was timed: about ten full batches of a core
_SHORTEST_WAIT = 0.05  # seconds after which to come back, at least


class Job:
    """An accepted request. The event loop creates and cancels it; workers compute it, perhaps in several
    batches at the same time. `future` gets the answer.
    """

    def __init__(
        self, prepared: PreparedRequest, deadline: float, key: str, loop: asyncio.AbstractEventLoop
    ) -> None:
        self.prepared, self.deadline, self.key, self.loop = prepared, deadline, key, loop
        self.flow = _FlowName(key, prepared.forward.model)
        self.future: asyncio.Future[Any] = loop.create_future()
        self.outputs: list[Any] = [None] * len(prepared.encoded)
        self.next_index = 0  # the first sequence that no worker has taken
        self.waiting_tokens = prepared.tokens  # of the sequences that no worker has taken
        self.begun = self.ended = 0.0
        self.is_over = False  # cancelled, failed or answered
        self._missing = len(self.outputs)
        self._lock = Lock()

    def settle(self, index: int, output: Outputs) -> None:
        """Stores the output of one sequence, in a worker's thread. The last one finishes the request and sets
        the future's result; if finishing is slow, the future gets the unfinished outputs.
        """
        try:
            reduced = self.prepared.reduce(output)
            with self._lock:
                self.outputs[index] = reduced
                self._missing -= 1
                if self._missing or self.is_over:
                    return
            results = self.outputs if self.prepared.is_slow else self.prepared.finish(self.outputs)
        except Exception as error:
            self.fail(error)
            return
        self._end(lambda: self.future.set_result(results))

    def fail(self, error: BaseException) -> None:
        """Sets the future's exception, from any thread."""
        self._end(lambda: self.future.set_exception(error))

    def _end(self, set_outcome: Callable[[], None]) -> None:
        """Ends the job once, and sets the outcome of its future in the event loop."""
        if self.is_over:
            return
        self.is_over, self.ended = True, time.monotonic()
        try:
            self.loop.call_soon_threadsafe(lambda: None if self.future.done() else set_outcome())
        except RuntimeError:  # the loop was closed: nobody waits any more
            return


class _FlowName(NamedTuple):
    """Whose requests to which model wait together."""

    key: str
    model: str


class JobSequence(NamedTuple):
    """One sequence of a job, by its position in the prepared request."""

    job: Job
    position: int

    @property
    def encoded(self) -> EncodedExample:
        return self.job.prepared.encoded[self.position]


class JobBatch(NamedTuple):
    """Sequences of several jobs that one forward pass of an encoder computes together, for one model or for
    several that share the encoder.
    """

    sequences: Sequence[JobSequence]
    tokens: int

    @property
    def models(self) -> set[str]:
        """The names of the models that answer."""
        return {sequence.job.prepared.forward.model for sequence in self.sequences}

    def compute_outputs(self) -> list[Outputs]:
        """The outputs of each sequence. Raises NotFinite."""
        passes = [sequence.job.prepared.forward for sequence in self.sequences]
        return compute_together(passes, [sequence.encoded for sequence in self.sequences])


class WorkQueue:
    """The jobs that wait. The event loop admits and cancels them; workers take and finish batches of them.

    `on_change` is called, under the lock, after each change that may let a worker begin.
    """

    def __init__(self, most_tokens: int) -> None:
        self.most_tokens = most_tokens
        self.lock = RLock()
        self.on_change: Callable[[], None] = lambda: None
        self.computing = 0  # batches
        self.rate = _INITIAL_RATE  # tokens a second by all workers together
        self._squares, self._products = _INITIAL_WEIGHT, _INITIAL_WEIGHT / _INITIAL_RATE
        self.waiting_tokens = 0
        self.began_waiting = self.last_finished = time.monotonic()
        self.on_batch: Callable[[JobBatch], None] = lambda batch: None
        self._flows: dict[_FlowName, _Flow] = {}  # those that have a waiting job
        self._count = 0  # jobs admitted so far, which orders those of equal deadlines
        self._in_flight = 0  # tokens that workers are computing

    # -- the event loop's side -------------------------------------------------------------------------------

    def require_time_left(self, deadline: float, key: str, model: str, tokens: int = 0) -> None:
        """Raises ServiceOverload if a request of this key to the model would miss the deadline, or make
        another miss its own, even with as few `tokens`.
        """
        with self.lock:
            self._require_time(deadline, _FlowName(key, model), tokens)

    def admit(self, job: Job) -> None:
        """Adds a whole job, or raises ServiceOverload."""
        tokens = job.waiting_tokens
        with self.lock:
            self._require_time(job.deadline, job.flow, tokens)
            self._require_room(job.flow, tokens)
            if not self._flows:
                self.began_waiting = time.monotonic()
            if job.flow not in self._flows:
                # A new flow starts at the least of the others: it can't claim the time before it came.
                least = min((flow.granted for flow in self._flows.values()), default=0.0)
                self._flows[job.flow] = _Flow(job.key, least)
            flow = self._flows[job.flow]
            self._count += 1
            insort(flow.jobs, (job.deadline, self._count, job))
            flow.waiting += tokens
            self.waiting_tokens += tokens
            self.on_change()

    def cancel(self, job: Job) -> None:
        """Removes the sequences of a job that no worker has taken."""
        with self.lock:
            job.is_over = True
            self._remove(job)
            self.on_change()  # the remaining jobs may suit another worker

    @property
    def size(self) -> int:
        """The number of jobs that wait; callable from any thread."""
        with self.lock:
            return sum(len(flow.jobs) for flow in self._flows.values())

    def estimate_wait(self) -> float:
        """The estimated seconds until all present work is computed."""
        return (self.waiting_tokens + self._in_flight) / self.rate

    def make_deadline_error(self) -> DeadlineError:
        """The error for a request whose deadline has passed; callable from any thread."""
        return DeadlineError(
            "Its time was over before it was computed.", max(self.estimate_wait(), _SHORTEST_WAIT)
        )

    # -- the workers' side: all under `lock` -----------------------------------------------------------------

    def take(self, budget: int, now: float) -> JobBatch | None:
        """Takes the next batch: at least one sequence, and more up to `budget` tokens; None if nothing waits.
        Jobs whose deadline passed before a worker began with them fail.
        """
        late_jobs = [
            job
            for flow in self._flows.values()
            for _, _, job in flow.jobs
            # A job that a worker has begun goes on: else a retry would compute its finished part again.
            if job.is_over or (job.deadline <= now and not job.next_index)
        ]
        for job in late_jobs:
            self._remove(job)
            job.fail(self.make_deadline_error())
        if not self._flows:
            return None
        flows, models = sorted(self._flows.values(), key=lambda flow: flow.granted), self._count_models()
        layers, sequences, tokens = flows[0].jobs[0][2].prepared.forward.layers, list[JobSequence](), 0
        waiting = [(flow, job) for flow in flows for _, _, job in flow.jobs]
        for flow, job in waiting:
            if sequences and tokens >= budget:
                break
            if job.prepared.forward.layers is layers:
                taken = self._take_sequences(flow, job, sequences, budget - tokens, now)
                flow.granted += taken * models[flow.key]
                tokens += taken
        self._in_flight += tokens
        self.computing += 1
        batch = JobBatch(sequences, tokens)
        self.on_batch(batch)  # counted before any of its answers is sent
        return batch

    def finish_batch(self, batch: JobBatch, seconds: float, at_a_time: int) -> None:
        """Records that a batch took `seconds`, while `at_a_time` batches, this one included, were
        computed.
        """
        self.computing -= 1
        self.last_finished = time.monotonic()
        self._in_flight -= batch.tokens
        self._update_rate(batch.tokens, max(seconds, 1e-6) / at_a_time)

    # -- inside ----------------------------------------------------------------------------------------------

    def _update_rate(self, tokens: int, seconds: float) -> None:
        """Updates the rate: the slope of the least-squares line through 0 that fits the latest batches. A
        batch is weighted by the square of its tokens, because a small one spends its time on other things.
        """
        fading = math.exp(-(tokens**2) / _MEMORY)
        self._squares = fading * self._squares + tokens**2
        self._products = fading * self._products + tokens * seconds
        self.rate = self._squares / self._products

    def _take_sequences(
        self, flow: "_Flow", job: Job, sequences: list[JobSequence], room: int, now: float
    ) -> int:
        """Moves as many sequences of a job to `sequences` as fit into `room`; returns their tokens."""
        tokens = 0
        while job.next_index < len(job.prepared.encoded):
            size = job.prepared.encoded[job.next_index].tokens
            if sequences and tokens + size > room:
                break
            sequences.append(JobSequence(job, job.next_index))
            tokens += size
            job.next_index += 1
            job.begun = job.begun or now
        job.waiting_tokens -= tokens
        flow.waiting -= tokens
        self.waiting_tokens -= tokens
        if job.next_index == len(job.prepared.encoded):
            self._remove(job)
        return tokens

    def _count_models(self, *more: _FlowName) -> Counter[str]:
        """How many models each key waits for, with further flows: a flow's weight is one by its key's
        number.
        """
        return Counter(name.key for name in {*self._flows, *more})

    def _require_room(self, name: _FlowName, tokens: int) -> None:
        """Raises ServiceOverload if the queue is full. A single key may use all `most_tokens`. If several
        keys wait, each has an equal share, and in it each model that the key waits for, even if another has
        filled the queue, up to twice `most_tokens` in all.
        """
        if not self.waiting_tokens:
            return
        models = self._count_models(name)
        share = self.most_tokens / len(models)
        mine = sum(flow.waiting for flow in self._flows.values() if flow.key == name.key)
        of_model = self._flows[name].waiting if name in self._flows else 0
        within = mine + tokens <= share or of_model + tokens <= share / models[name.key]
        total = self.waiting_tokens + tokens
        if total <= self.most_tokens * (2 if within else 1) and (within or not mine):
            return
        wait = max(self.waiting_tokens / self.rate, _SHORTEST_WAIT)
        whose = f", {mine:,} of them this key's" if len(models) > 1 and mine else ""
        raise ServiceOverload(
            f"{self.waiting_tokens:,} tokens are waiting already{whose}. {_retry_sentence(wait)}", wait
        )

    def _require_time(self, deadline: float, name: _FlowName, tokens: int) -> None:
        """Raises ServiceOverload if the request would miss its deadline or delay another of its flow too
        long.

        All more urgent work of its own flow comes first, and of each other flow at most as much as that, by
        their weights.
        """
        own, models = self._flows.get(name), self._count_models(name)
        mine = own.jobs if own is not None else []
        others = [
            (flow.waiting, models[name.key] / models[flow.key])
            for flow in self._flows.values()
            if flow is not own
        ]
        now, before = time.monotonic(), tokens  # `before`: tokens of this flow up to and including a request
        lateness = [0.0]
        for due, _, job in mine:
            if due <= deadline:
                before += job.waiting_tokens
        lateness.append(self._estimate_end(now, before, others) - deadline)
        for due, _, job in mine:  # the less urgent ones, which the new one delays
            if due > deadline:
                before += job.waiting_tokens
                lateness.append(self._estimate_end(now, before, others) - due)
        late = max(lateness)
        if late > 0 and (mine or others or self._in_flight):
            wait = max(late, _SHORTEST_WAIT)
            raise ServiceOverload(
                f"There is more work than can be done before its deadline, by {late * 1000:,.0f} ms. "
                f"{_retry_sentence(wait)}",
                wait,
            )

    def _estimate_end(self, now: float, mine: int, others: Sequence[tuple[int, float]]) -> float:
        """When `mine` tokens of a flow will be computed, if each other flow gets as many times that first as
        its weight is larger. `others` are the waiting tokens and the relative weights of these.
        """
        before = sum(min(waiting, mine * weight) for waiting, weight in others)
        return now + (self._in_flight + mine + before) / self.rate

    def _remove(self, job: Job) -> None:
        """Takes a job, if it still waits, out of its flow, and drops the flow if it is empty."""
        flow = self._flows.get(job.flow)
        if flow is None:
            return
        for index, (_, _, other) in enumerate(flow.jobs):
            if other is job:
                del flow.jobs[index]
                flow.waiting -= job.waiting_tokens
                self.waiting_tokens -= job.waiting_tokens
                break
        if not flow.jobs:
            del self._flows[job.flow]


class _Flow:
    """The jobs of one key for one model, the most urgent first, as (deadline, count, job). `granted`: the
    tokens that workers took, by the flow's weight, counted from the least of the other flows when this one
    came; `waiting`: the tokens that no worker has taken.
    """

    def __init__(self, key: str, granted: float) -> None:
        self.key = key
        self.jobs: list[tuple[float, int, Job]] = []
        self.granted, self.waiting = granted, 0


def _retry_sentence(seconds: float) -> str:
    return f"Come back in {seconds:.2f} seconds."
