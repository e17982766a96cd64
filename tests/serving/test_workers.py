"""Which threads wake and compute; what is slow to finish holds none of them, and stopping no event loop."""

import asyncio
import random
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bertsmith.serving.operations.operation import ForwardPass, PreparedRequest
from bertsmith.serving.queue import Job, WorkQueue
from bertsmith.serving.refusals import DeadlineError, ServiceOverload
from bertsmith.serving.workers import Workers, default_batch_tokens
from bertsmith.tasks.examples.encoding import EncodedExample, Window

CPU = torch.device("cpu")


def prepared(finish: Any, is_slow: bool = False, compute: Any = None) -> PreparedRequest:
    window = Window(np.ones(4, np.int64), np.zeros(4, np.int64), np.zeros(1, np.int64))
    run = ForwardPass(compute or (lambda batch, layout: torch.ones(len(batch.lengths), 1)), CPU, "m")
    return PreparedRequest(run, [EncodedExample((window,))], finish, [4], [False], is_slow=is_slow)


def test_a_batch_has_as_many_tokens_as_suit_the_device() -> None:
    assert default_batch_tokens(CPU) == Workers(WorkQueue(100), CPU).budget == 384
    assert default_batch_tokens(torch.device("cuda")) == 32_768
    assert Workers(WorkQueue(100), CPU, 77).budget == 77


@pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="counts how often a thread slept, as /proc says"
)
def test_a_request_that_comes_alone_wakes_no_thread_of_one_core() -> None:
    """Each thread that wakes takes the GIL from the event loop."""

    def count_sleeps() -> int:
        threads = [each for each in threading.enumerate() if each.name.startswith("one-core")]
        assert len(threads) == 2
        states = [Path(f"/proc/self/task/{each.native_id}/status").read_text() for each in threads]
        return sum(int(state.partition("\nvoluntary_ctxt_switches:")[2].split()[0]) for state in states)

    async def ask() -> None:
        queue = WorkQueue(1000)
        workers = Workers(queue, CPU)
        workers.cores = 2
        workers.start()
        try:
            await asyncio.sleep(0.1)
            before = count_sleeps()
            for _ in range(30):
                job = Job(prepared(len), time.monotonic() + 60, "", asyncio.get_running_loop())
                queue.admit(job)
                assert await job.future == 1
                while queue.computing:  # until then another request would not be alone
                    await asyncio.sleep(0.001)
            assert count_sleeps() - before < 30
        finally:
            await asyncio.to_thread(workers.stop)

    asyncio.run(ask())


@pytest.mark.parametrize("cores", [1, 2, 3])
def test_no_thread_sleeps_while_there_is_work_for_it(cores: int) -> None:
    """Whatever comes, is cancelled or too late, alone or not, and after pauses in which all sleep."""
    draw = random.Random(cores)

    async def ask() -> None:
        queue = WorkQueue(10**9)
        queue.rate = 1e12
        workers = Workers(queue, CPU, budget=8)
        workers.cores = cores
        workers.start()
        answered = 0
        try:
            for _ in range(60):
                jobs, patient = [], []
                for _ in range(draw.choice([1, 1, 2, 9])):
                    seconds = draw.choice([60.0, 60.0, 60.0, 0.0005])
                    work = prepared(len, compute=lambda batch, _: torch.ones(len(batch.lengths), 1))
                    job = Job(work, time.monotonic() + seconds, "", asyncio.get_running_loop())
                    try:
                        queue.admit(job)
                    except ServiceOverload:  # its deadline has passed
                        continue
                    if draw.random() < 0.2:
                        queue.cancel(job)
                    else:
                        jobs.append(job)
                        patient.append(seconds == 60.0)
                results = await asyncio.wait_for(
                    asyncio.gather(*(job.future for job in jobs), return_exceptions=True), 20
                )
                for result, waits in zip(results, patient, strict=True):
                    assert result == 1 or (not waits and isinstance(result, DeadlineError))
                answered += sum(patient)  # on a busy machine the others may come too late
                await asyncio.sleep(draw.choice([0, 0, 0.002]))
        finally:
            await asyncio.to_thread(workers.stop)
        assert answered > 80 and not queue.size and not queue.computing

    asyncio.run(ask())


def test_slow_ends_run_beside_each_other_and_beside_what_is_computed() -> None:
    go_on, names = threading.Event(), list[str]()

    def slow(outputs: Any) -> str:
        names.append(threading.current_thread().name)
        assert go_on.wait(30)
        return "found"

    async def ask() -> None:
        queue = WorkQueue(1000)
        workers = Workers(queue, CPU)
        workers.start()
        try:

            async def one(work: PreparedRequest) -> Any:
                job = Job(work, time.monotonic() + 60, "", asyncio.get_running_loop())
                queue.admit(job)
                results = await job.future
                return await workers.finish(job, results) if work.is_slow else results

            searching = [asyncio.ensure_future(one(prepared(slow, is_slow=True))) for _ in range(2)]
            async with asyncio.timeout(20):
                while len(names) < 2:
                    await asyncio.sleep(0.01)
                quick = await one(prepared(lambda outputs: "computed"))
            assert quick == "computed"
            go_on.set()
            assert await asyncio.gather(*searching) == ["found", "found"]
            assert all(name.startswith("finishing") for name in names)
        finally:
            go_on.set()
            await asyncio.to_thread(workers.stop)

    asyncio.run(ask())


def test_a_search_whose_deadline_passes_while_it_waits_is_not_begun_and_another_key_has_a_thread() -> None:
    """Each of the finishing threads that its key may have is busy, and it is the next one."""
    go_on, begun = threading.Event(), list[str]()

    def slow(name: str) -> Any:
        return lambda outputs: (begun.append(name), go_on.wait(30))

    async def ask() -> None:
        queue = WorkQueue(1000)
        workers = Workers(queue, CPU)
        workers.start()

        def job(name: str, seconds: float, key: str = "a") -> Job:
            deadline = time.monotonic() + seconds
            return Job(prepared(slow(name), is_slow=True), deadline, key, asyncio.get_running_loop())

        try:
            busy = [asyncio.ensure_future(workers.finish(job("busy", 60), [])) for _ in range(4)]
            async with asyncio.timeout(20):
                while len(begun) < 4:
                    await asyncio.sleep(0.01)
            async with asyncio.timeout(20):
                with pytest.raises(DeadlineError, match="Its time was over") as refused:
                    await workers.finish(job("late", 0.05), [])
            assert refused.value.retry_after and begun == ["busy"] * 4
            another = asyncio.ensure_future(workers.finish(job("another's", 60, "b"), []))
            async with asyncio.timeout(20):
                while len(begun) < 5:
                    await asyncio.sleep(0.01)
            go_on.set()
            await another
            await asyncio.gather(*busy)
        finally:
            go_on.set()
            await asyncio.to_thread(workers.stop)

    asyncio.run(ask())
