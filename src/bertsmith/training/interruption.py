"""Ctrl-C, SIGTERM and SIGHUP end a run between two steps, with a checkpoint; a second Ctrl-C ends it at once.

Schedulers and launchers often send SIGTERM more than once, or after a Ctrl-C: it never ends the run early.
Nor does SIGHUP, a terminal that closes; where nohup has it ignored, it stays so. Windows doesn't know it.
"""

import signal
import threading
from types import FrameType, TracebackType
from typing import Any, NoReturn, Self


class Interruption:
    """While the block runs, `asked` says whether someone asked to stop. Elsewhere than in the main thread:
    never.
    """

    def __init__(self) -> None:
        self.asked = False
        self._by = signal.SIGINT
        self._previous: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            numbers = [signal.SIGINT, signal.SIGTERM]
            if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
                numbers.append(signal.SIGHUP)
            for number in numbers:
                self._previous[number] = signal.signal(number, self._ask)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._give_back()

    def end(self) -> NoReturn:
        """What the signal would have done at once: SIGTERM's or SIGHUP's own handler, where there is one;
        else, and on ranks that got none, KeyboardInterrupt.
        """
        terminate = self._previous.get(self._by)
        if self._by != signal.SIGINT and callable(terminate):
            terminate(self._by, None)
        raise KeyboardInterrupt

    def _ask(self, number: int, frame: FrameType | None) -> None:
        self.asked, self._by = True, signal.Signals(number)
        if number == signal.SIGINT:
            signal.signal(number, self._previous.pop(signal.SIGINT))

    def _give_back(self) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._previous = {}
