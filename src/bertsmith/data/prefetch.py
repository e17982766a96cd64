"""Batches made beside the training, so that a step never waits for the next one."""

import queue
import threading
from collections.abc import Generator, Iterator
from typing import TypeVar

T = TypeVar("T")
_PATIENCE = 1.0  # seconds: a thread that reads a quiet pipe may never come back, and must not stop Ctrl-C


def prefetch(items: Iterator[T], ahead: int = 2) -> Generator[T, None, None]:
    """The same items in the same order, made by a thread up to `ahead` early. Closing it ends the thread, at
    once or as soon as the item is made that it is at.

    An error in the thread is raised here, where its item would have come.
    """
    made: queue.Queue[tuple[T | None, BaseException | None]] = queue.Queue(ahead)
    closed = threading.Event()

    def put(item: T | None, error: BaseException | None) -> None:
        while not closed.is_set():
            try:
                made.put((item, error), timeout=0.1)
                return
            except queue.Full:
                continue

    def work() -> None:
        try:
            for item in items:
                put(item, None)
                if closed.is_set():
                    return
            put(None, StopIteration())
        except BaseException as error:  # handed on to the consumer, whatever it is
            put(None, error)

    thread = threading.Thread(target=work, name="prefetch", daemon=True)
    thread.start()
    try:
        while True:
            item, error = made.get()
            if isinstance(error, StopIteration):
                return
            if error is not None:
                raise error
            yield item  # type: ignore[misc]
    finally:
        closed.set()
        thread.join(_PATIENCE)
