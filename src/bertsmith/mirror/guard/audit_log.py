"""The guard's audit log: a line of JSON for each decision, and how long decisions take.

{"at": 1767225600.0, "side": "request", "protocol": "openai-chat", "action": "block", "label": "injection", …}
"""

import os
import time
from collections import Counter, deque
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from bertsmith.errors import InputError
from bertsmith.mirror.guard.judge import Verdict
from bertsmith.serving import LOG

_REMEMBERED = 10_000  # times


class AuditLog:
    """Appended to. Raises InputError for a file that can't be; a disk that is full later is said and counted
    (`lost`), and no call waits for it.
    """

    def __init__(self, path: Path, *, with_texts: bool) -> None:
        self.path, self.with_texts, self.lost = path, with_texts, 0
        self.actions: Counter[str] = Counter()
        self._milliseconds: deque[float] = deque(maxlen=_REMEMBERED)
        try:
            self._file = path.open("ab+", buffering=0)
            self._is_cut = self._ends_within_a_line()
        except OSError as error:
            raise InputError(
                f"The log {path} can't be written: {error.strerror}. Name another with --log."
            ) from None

    def write(self, side: str, protocol: str, call: str, verdict: Verdict, texts: list[str]) -> None:
        """One decision; both sides of a call have its name."""
        self.actions[f"{side}-{verdict.action}"] += 1
        if verdict.milliseconds:  # the model was asked, whether it could say something or not
            self._milliseconds.append(verdict.milliseconds)
        line: dict[str, Any] = {
            "at": round(time.time(), 3),
            "call": call,
            "side": side,
            "protocol": protocol,
            "action": verdict.action,
            "label": verdict.label or None,
            "probability": None if verdict.probability is None else round(verdict.probability, 6),
            "reason": verdict.reason or None,
            "ms": round(verdict.milliseconds, 3),
        }
        if self.with_texts:
            line["texts"] = texts
        written, content = 0, b"\n" * self._is_cut + orjson.dumps(line) + b"\n"
        why: str | None = "no room"
        try:
            written = self._file.write(content) or 0
        except OSError as error:
            why = error.strerror
        if written:
            self._is_cut = written < len(content)
        if written < len(content):
            self.lost += 1
            if self.lost == 1:
                LOG.error("the audit log can't be written: %s", why)

    def _ends_within_a_line(self) -> bool:
        """As after a kill, or on a full disk: the next line begins on one of its own."""
        if not self._file.seekable() or not self._file.tell():
            return False
        self._file.seek(-1, os.SEEK_END)
        return self._file.read(1) != b"\n"

    def facts(self) -> dict[str, Any]:
        """Decisions counted, and what half and 99 % of them took at most, in milliseconds."""
        times = np.array(self._milliseconds)
        p50, p99 = np.percentile(times, [50, 99]).tolist() if len(times) else (None, None)
        return {
            "decisions": dict(self.actions),
            "p50_ms": p50,
            "p99_ms": p99,
            "log_lost": self.lost,
        }

    def close(self) -> None:
        """Ends the file."""
        self._file.close()
