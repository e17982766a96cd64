"""What is admitted, in which order it is computed, and what a flood does to others."""

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from bertsmith.model.bert import Bert
from bertsmith.model.config import make_config
from bertsmith.serving.operations.operation import ForwardPass, PreparedRequest
from bertsmith.serving.queue import Job, WorkQueue
from bertsmith.serving.refusals import DeadlineError, ServiceOverload
from bertsmith.tasks.examples.encoding import EncodedExample, Window

RUN, OTHER = (ForwardPass(lambda batch, layout: torch.zeros(1), torch.device("cpu"), name) for name in "ab")


def job(
    lengths: list[int],
    seconds: float = 10.0,
    key: str = "",
    run: ForwardPass = RUN,
    finish: Callable[..., Any] = list,
) -> Job:
    encoded = [
        EncodedExample((Window(np.zeros(n, np.int64), np.zeros(n, np.int64), np.zeros(1, np.int64)),))
        for n in lengths
    ]
    prepared = PreparedRequest(run, encoded, finish, lengths, [False] * len(lengths))
    return Job(prepared, time.monotonic() + seconds, key, asyncio.get_running_loop())


def taken(queue: WorkQueue, budget: int = 100) -> list[Job]:
    batch = queue.take(budget, time.monotonic())
    return [each.job for each in batch.sequences] if batch is not None else []


def in_a_loop(test: Callable[[], Any]) -> Callable[[], None]:
    def run() -> None:
        async def inside() -> None:
            test()
            await asyncio.sleep(0.01)  # what was settled arrives

        asyncio.run(inside())

    run.__name__ = test.__name__
    return run


@in_a_loop
def test_the_most_urgent_comes_first_whenever_it_came() -> None:
    queue = WorkQueue(10_000)
    jobs = [job([60], seconds) for seconds in (9, 3, 6)]
    for each in jobs:
        queue.admit(each)
    assert [taken(queue)[0] for _ in range(3)] == [jobs[1], jobs[2], jobs[0]]


@in_a_loop
def test_a_batch_has_one_pass_and_keeps_to_its_budget() -> None:
    queue = WorkQueue(10_000)
    jobs = [job([40], 1), job([40], 2, run=OTHER), job([40], 3), job([40], 4)]
    for each in jobs:
        queue.admit(each)
    assert taken(queue) == [jobs[0], jobs[2]]
    assert taken(queue) == [jobs[1]]
    assert taken(queue) == [jobs[3]]
    assert taken(queue) == []


@in_a_loop
def test_a_text_above_the_budget_is_computed_alone() -> None:
    queue = WorkQueue(10_000)
    queue.admit(job([500]))
    queue.admit(job([10]))
    batch = queue.take(100, time.monotonic())
    assert batch is not None
    assert batch.tokens == 500


@in_a_loop
def test_the_texts_of_a_request_may_be_computed_in_several_batches_and_are_answered_together() -> None:
    queue = WorkQueue(10_000)
    request = job([60, 60, 60], finish=lambda outputs: [float(each[0]) for each in outputs])
    queue.admit(request)
    batches = [queue.take(100, time.monotonic()) for _ in range(3)]
    for number in (2, 0, 1):  # in whatever order the cores are done
        batch = batches[number]
        assert batch is not None
        assert not request.is_over
        (each,) = batch.sequences
        each.job.settle(each.position, np.array([each.position], np.float32))
    assert request.is_over
    request.future.add_done_callback(lambda found: results.append(found.result()))
    results: list[Any] = []
    asyncio.get_running_loop().call_later(0.005, lambda: _equal(results, [[0.0, 1.0, 2.0]]))


def _equal(found: Any, expected: Any) -> None:
    assert found == expected


@in_a_loop
def test_what_would_be_late_is_refused_at_once_and_told_when_to_come_back() -> None:
    queue = WorkQueue(1_000_000)
    queue.rate = 1000.0
    queue.admit(job([2000], 2.2))
    with pytest.raises(ServiceOverload) as refused:
        queue.admit(job([500], 2.3))
    assert refused.value.retry_after == pytest.approx(0.2, abs=0.05)  # 2.5 seconds of work, due in 2.3
    with pytest.raises(ServiceOverload):
        queue.require_time_left(time.monotonic() - 0.1, "", "a")
    queue.require_time_left(time.monotonic() + 2.3, "", "a")
    assert queue.size == 1
    assert queue.waiting_tokens == 2000


@in_a_loop
def test_an_urgent_request_is_refused_where_it_would_make_an_accepted_one_late() -> None:
    queue = WorkQueue(1_000_000)
    queue.rate = 1000.0
    queue.admit(job([2000], 2.2))
    queue.admit(job([100], 1.5))
    with pytest.raises(ServiceOverload):
        queue.admit(job([300], 1.0))
    queue.admit(job([300], 1.0, "another"))  # whose turn it is


@in_a_loop
def test_an_idle_service_takes_whatever_comes() -> None:
    queue = WorkQueue(100)
    queue.rate = 1.0
    queue.admit(job([5000], 0.1))
    assert queue.size == 1


@in_a_loop
def test_no_more_than_so_many_tokens_wait() -> None:
    queue = WorkQueue(1000)
    queue.rate = 1e9
    queue.admit(job([900]))
    with pytest.raises(ServiceOverload, match="900 tokens are waiting"):
        queue.admit(job([200]))


@in_a_loop
def test_expired_work_is_never_computed() -> None:
    queue = WorkQueue(10_000)
    late, fresh = job([10], 0.01), job([10], 5)
    queue.admit(late)
    queue.admit(fresh)
    batch = queue.take(100, time.monotonic() + 1)
    assert batch is not None
    assert [each.job for each in batch.sequences] == [fresh]
    assert late.is_over
    late.future.add_done_callback(lambda found: _equal(type(found.exception()), DeadlineError))


@in_a_loop
def test_what_was_begun_is_computed_to_its_end_though_its_deadline_has_passed() -> None:
    queue = WorkQueue(10_000)
    queue.rate = 1e9
    begun, waits = job([60, 60, 60], 1), job([60], 2)
    queue.admit(begun)
    queue.admit(waits)
    while batch := queue.take(60, time.monotonic() + (3 if begun.next_index else 0)):
        for each in batch.sequences:
            each.job.settle(each.position, np.zeros(1, np.float32))
    begun.future.add_done_callback(lambda found: _equal(len(found.result()), 3))
    waits.future.add_done_callback(lambda found: _equal(type(found.exception()), DeadlineError))
    assert (begun.is_over, begun.waiting_tokens, waits.next_index, queue.size) == (True, 0, 0, 0)


@in_a_loop
def test_what_was_begun_is_dropped_when_its_client_goes_or_a_batch_of_it_fails() -> None:
    queue = WorkQueue(10_000)
    queue.rate = 1e9
    gone, broken = job([60, 60], 1), job([60, 60], 1)
    for each in (gone, broken):
        queue.admit(each)
        assert taken(queue, 60) == [each]
        queue.cancel(gone)
    broken.fail(ValueError())
    assert queue.take(60, time.monotonic() + 3) is None
    assert (queue.size, queue.waiting_tokens) == (0, 0)
    broken.future.add_done_callback(lambda found: _equal(type(found.exception()), ValueError))


@in_a_loop
def test_a_cancelled_request_leaves_the_queue() -> None:
    queue = WorkQueue(10_000)
    gone, stays = job([10, 10]), job([10])
    queue.admit(gone)
    queue.admit(stays)
    queue.cancel(gone)
    assert queue.waiting_tokens == 10
    assert taken(queue) == [stays]
    assert queue.waiting_tokens == 0


@in_a_loop
def test_a_flood_of_one_key_does_not_delay_another() -> None:
    queue = WorkQueue(1_000_000)
    queue.rate = 1000.0
    flood = [job([100], 60, "batch") for _ in range(200)]
    for each in flood:
        queue.admit(each)
    website = [job([100], 60, "website") for _ in range(5)]
    for each in website:
        queue.admit(each)
    order = [taken(queue)[0] for _ in range(30)]
    assert set(website) < set(order[:12])


@in_a_loop
def test_keys_that_ask_for_as_much_take_turns() -> None:
    queue = WorkQueue(1_000_000)
    for number in range(40):
        queue.admit(job([100], 60, "ab"[number >= 20]))
    order = [taken(queue)[0].key for _ in range(40)]
    assert order[:20].count("b") == 10
    assert order.count("b") == 20


@in_a_loop
def test_who_was_away_has_nothing_saved_up() -> None:
    queue = WorkQueue(1_000_000)
    for _ in range(20):
        queue.admit(job([100], 60, "a"))
    for _ in range(10):
        taken(queue)
    for _ in range(10):
        queue.admit(job([100], 60, "b"))
    assert [taken(queue)[0].key for _ in range(10)].count("b") == 5


@in_a_loop
def test_models_that_share_an_encoder_are_computed_in_one_batch() -> None:
    queue, encoder = (
        WorkQueue(10_000),
        Bert(make_config({"hidden_size": 16, "num_attention_heads": 1, "num_hidden_layers": 1}, "test")),
    )
    shared = [ForwardPass(RUN.compute, RUN.device, name, encoder=encoder) for name in "xyz"]
    jobs = [job([20], run=run) for run in (shared[0], RUN, shared[1], OTHER, shared[2], shared[0])]
    for request in jobs:
        queue.admit(request)
    batch = queue.take(100, time.monotonic())
    assert batch is not None
    assert {sequence.job for sequence in batch.sequences} == {jobs[0], jobs[2], jobs[4], jobs[5]}
    assert batch.models == set("xyz")
    assert [len(taken(queue)) for _ in range(3)] == [1, 1, 0]


@in_a_loop
def test_a_flood_to_one_model_does_not_delay_another() -> None:
    """Though both are of one key, and the flood came first."""
    queue = WorkQueue(1_000_000)
    queue.rate = 1000.0
    for _ in range(200):
        queue.admit(job([100], 60))
    for _ in range(10):
        taken(queue)
    others = [job([100], 60, run=OTHER) for _ in range(5)]
    for request in others:
        queue.admit(request)
    order = [taken(queue)[0] for _ in range(12)]
    assert set(others) < set(order)


@in_a_loop
def test_a_request_in_time_is_admitted_beside_a_flood_to_another_model() -> None:
    queue = WorkQueue(10_000)
    queue.rate = 1000.0
    for _ in range(100):
        queue.admit(job([100], 120))
    with pytest.raises(ServiceOverload):
        queue.admit(job([100], 120))
    queue.admit(job([100], 0.5, run=OTHER))  # of 0.2 seconds, as each flow has half
    with pytest.raises(ServiceOverload):
        queue.admit(job([300], 0.5, run=OTHER))


@in_a_loop
def test_a_key_has_no_more_for_asking_several_models() -> None:
    queue = WorkQueue(1_000_000)
    runs = [ForwardPass(RUN.compute, RUN.device, name) for name in "abcd"]
    for number in range(200):
        queue.admit(job([100], 60, "many", runs[number % 4]))
        queue.admit(job([100], 60, "one", runs[0]))
    order = [batch.sequences[0].job for _ in range(80) if (batch := queue.take(100, time.monotonic()))]
    assert sum(request.key == "one" for request in order) == pytest.approx(40, abs=2)
    of_many = Counter(request.prepared.forward.model for request in order if request.key == "many")
    assert all(count == pytest.approx(10, abs=1) for count in of_many.values())


@in_a_loop
def test_the_rate_follows_what_batches_take() -> None:
    queue = WorkQueue(1_000_000)
    for _ in range(200):
        queue.admit(job([100]))
        batch = queue.take(100, time.monotonic())
        assert batch is not None
        queue.finish_batch(batch, 0.01, 2)
    assert queue.rate == pytest.approx(20_000, rel=0.01)
    assert queue.computing == 0
    assert queue.estimate_wait() == 0


@in_a_loop
def test_small_batches_say_little_about_the_rate_of_large_ones() -> None:
    queue = WorkQueue(1_000_000)

    def computed(tokens: int, seconds: float) -> None:
        queue.admit(job([tokens]))
        batch = queue.take(384, time.monotonic())
        assert batch is not None
        queue.finish_batch(batch, seconds, 1)

    for _ in range(20):
        computed(384, 0.0384)
    for _ in range(1000):  # most of whose time is a batch's own
        computed(5, 0.005)
    assert 8000 < queue.rate < 10_500
    for _ in range(40):  # a machine that has become slower is believed
        computed(384, 0.0768)
    assert queue.rate == pytest.approx(5000, rel=0.05)


@in_a_loop
def test_one_key_cannot_take_the_room_of_another() -> None:
    queue = WorkQueue(1000)
    queue.rate = 1e9
    for _ in range(10):
        queue.admit(job([100], key="batch"))
    queue.admit(job([400], key="website"))  # though all was taken: within its half
    with pytest.raises(ServiceOverload):
        queue.admit(job([200], key="website"))
    with pytest.raises(ServiceOverload, match="of them this key's"):
        queue.admit(job([100], key="batch"))  # it has more than its half
    while queue.size:
        taken(queue, 100)
    queue.admit(job([900], key="batch"))  # alone it may have all


@in_a_loop
def test_however_many_keys_there_are_the_room_has_an_end() -> None:
    queue = WorkQueue(1000)
    queue.rate = 1e9
    queue.admit(job([1000], key="first"))
    with pytest.raises(ServiceOverload):
        for number in range(100):
            queue.admit(job([50], key=str(number)))
    assert queue.waiting_tokens <= 2000


def test_the_size_may_be_asked_while_others_change_it() -> None:
    """From the event loop or a page of metrics, while workers take."""
    queue = WorkQueue(10_000)
    read = threading.Event()

    async def ask() -> None:
        queue.admit(job([10]))
        with queue.lock:
            asking = threading.Thread(target=lambda: (queue.size, read.set()))
            asking.start()
            assert not read.wait(0.1)
        asking.join()
        assert read.is_set()

    asyncio.run(ask())


def test_a_cancelled_request_wakes_those_who_wait_for_what_is_left() -> None:
    """A worker waits while what waits is for another kind of worker; without the cancelled one it is its."""
    queue = WorkQueue(10_000)
    left = list[int]()

    async def ask() -> None:
        gone = job([10])
        queue.admit(gone)
        queue.admit(job([20]))
        queue.on_change = lambda: left.append(queue.waiting_tokens)
        queue.cancel(gone)
        assert left == [20]

    asyncio.run(ask())


def test_of_outputs_only_what_is_kept_waits_for_the_others() -> None:
    async def ask() -> None:
        request = job([10, 10], finish=list)
        object.__setattr__(request.prepared, "reduce", lambda logits: float(logits.max()))
        request.settle(1, np.arange(1_000_000, dtype=np.float32))
        assert request.outputs == [None, 999_999.0]
        request.settle(0, np.ones(3, np.float32))
        assert await request.future == [1.0, 999_999.0]

    asyncio.run(ask())
