"""What is slow to finish holds no thread that computes, and stopping holds no event loop."""

import asyncio
import threading
import time
from typing import Any

import numpy as np
import pytest
import torch

from bertsmith.serving.operations.operation import ForwardPass, PreparedRequest
from bertsmith.serving.queue import Job, WorkQueue
from bertsmith.serving.refusals import DeadlineError
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
