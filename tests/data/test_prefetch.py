"""Prefetching changes when a batch is made, and nothing else; it ends with its consumer."""

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing

import pytest

from bertsmith.data.stream import prefetch


def counted(made: list[int], total: int = 10**9) -> Iterator[int]:
    for number in range(total):
        made.append(number)
        yield number


def threads() -> int:
    return sum(thread.name == "prefetch" for thread in threading.enumerate())


def wait_until(condition) -> None:  # type: ignore[no-untyped-def]
    until = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < until, "it never happened"
        time.sleep(0.005)


@pytest.mark.parametrize("ahead", [1, 2, 7])
def test_the_same_items_in_the_same_order(ahead: int) -> None:
    assert list(prefetch(counted([], 500), ahead)) == list(range(500))
    assert list(prefetch(iter([]), ahead)) == []
    assert list(prefetch(iter([None, False, 0]), ahead)) == [None, False, 0]
    assert threads() == 0


def test_nothing_is_made_before_the_first_is_asked_for() -> None:
    made: list[int] = []
    prefetch(counted(made)).close()
    assert made == []
    assert threads() == 0


def test_items_are_made_early_but_not_without_bound() -> None:
    made: list[int] = []
    with closing(prefetch(counted(made), ahead=3)) as items:
        assert next(items) == 0
        wait_until(lambda: len(made) == 5)  # one taken, three waiting, one in the thread's hand
        time.sleep(0.05)
        assert len(made) == 5


def test_closing_ends_the_thread_while_the_queue_is_full() -> None:
    made: list[int] = []
    items = prefetch(counted(made))
    next(items)
    wait_until(lambda: len(made) == 4)
    items.close()
    assert threads() == 0
    assert len(made) == 4


def test_an_error_comes_where_its_item_would_have_come() -> None:
    def failing() -> Iterator[int]:
        yield 1
        yield 2
        raise KeyError("third")

    items = prefetch(failing())
    assert [next(items), next(items)] == [1, 2]
    with pytest.raises(KeyError, match="third"):
        next(items)
    assert threads() == 0


def test_an_error_of_the_consumer_ends_the_thread() -> None:
    def consume() -> None:
        with closing(prefetch(counted([]))) as items:
            for _ in items:
                raise RuntimeError("the step failed")

    with pytest.raises(RuntimeError, match="the step failed"):
        consume()
    assert threads() == 0


WAITING = """
import os, signal, threading
from bertsmith.data.stream import prefetch
from bertsmith.text.files.rows import stream_rows

signal.signal(signal.SIGINT, signal.default_int_handler)
threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
list(prefetch(stream_rows("-", ["text"])))
"""


def test_ctrl_c_ends_a_process_whose_input_is_a_quiet_pipe() -> None:
    """Neither does it wait for the thread that reads, nor does Python abort at its end for its sake."""
    process = subprocess.Popen(
        [sys.executable, "-c", WAITING], stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdin is not None and process.stderr is not None
    try:
        assert process.wait(60) == -signal.SIGINT
        found = process.stderr.read()
        assert found.rstrip().endswith("KeyboardInterrupt") and "Fatal" not in found
    finally:
        process.kill()
        process.stdin.close()
        process.stderr.close()
        process.wait()
