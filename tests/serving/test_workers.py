"""What is slow to finish holds no thread that computes, and stopping holds no event loop."""

import asyncio
import threading
import time
from typing import Any

import numpy as np
import torch

from bertsmith.serving.operations.operation import Pass, Prepared
from bertsmith.serving.queue import Job, WorkQueue
from bertsmith.serving.workers import Workers, usual_budget
from bertsmith.tasks.examples.encoding import Encoded, Window

CPU = torch.device("cpu")


def prepared(finish: Any, is_slow: bool = False, compute: Any = None) -> Prepared:
    window = Window(np.ones(4, np.int64), np.zeros(4, np.int64), np.zeros(1, np.int64))
    run = Pass(compute or (lambda batch, layout: torch.ones(len(batch.lengths), 1)), CPU, "m")
    return Prepared(run, [Encoded((window,))], finish, [4], [False], is_slow=is_slow)


def test_a_batch_has_as_many_tokens_as_suit_the_device() -> None:
    assert usual_budget(CPU) == Workers(WorkQueue(100), CPU).budget == 384
    assert usual_budget(torch.device("cuda")) == 32_768
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

            async def one(work: Prepared) -> Any:
                job = Job(work, time.monotonic() + 60, "", asyncio.get_running_loop())
                queue.admit(job)
                results = await job.future
                return await workers.finish(work, results) if work.is_slow else results

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
