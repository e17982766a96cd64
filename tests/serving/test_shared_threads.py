"""A flood of one key leaves the others a thread; what is due before its turn is refused when it is due."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from bertsmith.serving.refusals import DeadlineError
from bertsmith.serving.workers import SharedThreads

LATER = 60.0


class Held:
    """Work that goes on when it is told to; `begun` has the names of what was begun, in order."""

    def __init__(self) -> None:
        self.begun = list[str]()
        self._go_on = dict[str, threading.Event]()
        self.all = threading.Event()

    def work(self, name: str) -> str:
        self.begun.append(name)
        event = self._go_on.setdefault(name, threading.Event())
        end = time.monotonic() + 30
        while not event.is_set() and not self.all.is_set():
            assert time.monotonic() < end
            time.sleep(0.001)
        return name

    def let(self, name: str) -> None:
        self._go_on.setdefault(name, threading.Event()).set()

    async def wait(self, *names: str) -> None:
        """Until these, and no others, were begun."""
        async with asyncio.timeout(20):
            while sorted(self.begun) != sorted(names):
                await asyncio.sleep(0.001)
        await asyncio.sleep(0.02)
        assert sorted(self.begun) == sorted(names)


@asynccontextmanager
async def shared(most: int) -> AsyncIterator[tuple[SharedThreads, Held]]:
    threads, held = SharedThreads(most, "shared", lambda: DeadlineError("Its time was over.", 1.0)), Held()
    try:
        yield threads, held
    finally:
        held.all.set()
        await asyncio.to_thread(threads.stop)


def ask(threads: SharedThreads, held: Held, name: str, seconds: float = LATER) -> "asyncio.Task[str]":
    """Under the key that the name begins with."""
    return asyncio.ensure_future(threads.run(name[0], time.monotonic() + seconds, held.work, name))


def test_a_flood_of_one_key_leaves_a_thread_for_another() -> None:
    async def run() -> None:
        async with shared(2) as (threads, held):
            flood = [ask(threads, held, f"a{number}") for number in range(20)]
            await held.wait("a0", "a1")
            other = ask(threads, held, "b0")
            await held.wait("a0", "a1", "b0")
            held.let("b0")
            assert await other == "b0"
            await held.wait("a0", "a1", "b0")  # the third isn't for the same key
            held.all.set()
            assert await asyncio.gather(*flood) == [f"a{number}" for number in range(20)]

    asyncio.run(run())


def test_the_next_turn_is_of_the_key_with_the_fewest_threads_and_then_of_the_one_that_waited_longest() -> (
    None
):
    async def run() -> None:
        async with shared(2) as (threads, held):
            asked = [ask(threads, held, f"a{number}") for number in range(4)]
            await held.wait("a0", "a1")
            asked += [ask(threads, held, f"b{number}") for number in range(3)]
            asked += [ask(threads, held, "c0")]
            await held.wait("a0", "a1", "b0")
            held.let("a0")
            await held.wait("a0", "a1", "b0", "c0")
            held.let("c0")
            await held.wait("a0", "a1", "b0", "c0", "a2")  # a and b have one each; a's last turn was earlier
            held.let("a1")
            await held.wait("a0", "a1", "b0", "c0", "a2", "b1")
            held.all.set()
            await asyncio.gather(*asked)

    asyncio.run(run())


def test_what_is_due_first_is_first_of_a_key() -> None:
    async def run() -> None:
        async with shared(1) as (threads, held):
            asked = [ask(threads, held, "a0"), ask(threads, held, "a1", 50), ask(threads, held, "a2", 40)]
            await held.wait("a0")
            held.let("a0")
            await held.wait("a0", "a2")
            held.all.set()
            await asyncio.gather(*asked)

    asyncio.run(run())


def test_what_is_due_before_its_turn_is_refused_then_and_what_was_begun_is_answered() -> None:
    async def run() -> None:
        async with shared(1) as (threads, held):
            began = time.monotonic()
            begun = ask(threads, held, "a0", 0.1)
            late = ask(threads, held, "a1", 0.2)
            with pytest.raises(DeadlineError):
                await late
            assert 0.2 <= time.monotonic() - began < 20
            with pytest.raises(DeadlineError):
                await ask(threads, held, "b0", -1)
            held.let("a0")
            assert await begun == "a0"
            assert await asyncio.gather(ask(threads, held, "a2"), asyncio.to_thread(held.let, "a2"))
            assert held.begun == ["a0", "a2"]

    asyncio.run(run())


def test_whoever_goes_away_is_not_begun_and_has_its_thread_until_it_is_done() -> None:
    async def run() -> None:
        async with shared(1) as (threads, held):
            begun, waiting, next_one = (ask(threads, held, name) for name in ("a0", "a1", "a2"))
            await held.wait("a0")
            for gone in (begun, waiting):
                gone.cancel()
            await held.wait("a0")
            held.let("a0")
            await held.wait("a0", "a2")
            held.let("a2")
            assert await next_one == "a2"

    asyncio.run(run())


def test_an_error_is_that_of_who_asked() -> None:
    def fail() -> None:
        raise ValueError("no")

    async def run() -> None:
        async with shared(1) as (threads, held):
            with pytest.raises(ValueError, match="no"):
                await threads.run("a", time.monotonic() + LATER, fail)
            held.let("a0")
            assert await ask(threads, held, "a0") == "a0"

    asyncio.run(run())
