"""A classifier that says of texts what is to become of them, beside the event loop; and the log of what it
said, a line of JSON for each decision.

{"at": 1767225600.0, "side": "request", "protocol": "openai-chat", "action": "block", "label": "injection", …}
"""

import asyncio
import math
import os
import time
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from bertsmith.errors import InputError, ModelError
from bertsmith.mirror.guard.policy import ACTIONS, BLOCK, Action, SidePolicy
from bertsmith.serving import LOG

_THREADS = 2
_MOST_WAITING = 64  # judgements; what comes then can't be judged in time
_REMEMBERED = 10_000  # times


@dataclass(frozen=True)
class GuardVerdict:
    """`reason` says why nobody could judge; the action is then the policy's. `label` is the one that decided,
    with its `probability`.
    """

    action: Action
    label: str = ""
    probability: float | None = None
    reason: str = ""
    milliseconds: float = 0.0


class CantJudge(Exception):
    """Its reason is a word or two with hyphens; `milliseconds` were spent on asking the model."""

    def __init__(self, reason: str, milliseconds: float = 0.0) -> None:
        super().__init__(reason)
        self.reason, self.milliseconds = reason, milliseconds


class GuardJudge:
    """A fine-tuned model, opened by name or folder. Raises ModelError for one that gives no labels."""

    def __init__(self, model: str, seconds: float) -> None:
        # torch, which only a guard that runs needs
        from bertsmith.inference.predictor import Predictor
        from bertsmith.model.cpu.process import start_one_core_threads

        self.predictor, self.seconds = Predictor.load(model), seconds
        task = self.predictor.task
        if not task.has_probabilities:
            raise ModelError(
                f"The model {Path(model).name} is of the task {task.name}; a guard needs one of "
                "classification or multi-label."
            )
        self.labels = [str(each) for each in task.labels]
        self._threads = start_one_core_threads(_THREADS, "guard")
        self._waiting = 0
        self._threads.submit(self.predictor.predict, ["warm up"]).result()

    async def judge(self, texts: Sequence[str], policy: SidePolicy) -> GuardVerdict:
        """The first verdict that blocks, else the most severe. Raises CantJudge, after `seconds` at most."""
        if not texts:
            return GuardVerdict("allow")
        if self._waiting >= _MOST_WAITING:
            raise CantJudge("guard-busy")
        began = time.perf_counter()
        self._waiting += 1
        work = asyncio.get_running_loop().run_in_executor(
            self._threads, self._worst, texts, policy, began + self.seconds
        )
        work.add_done_callback(self._done)
        try:
            worst = await asyncio.wait_for(asyncio.shield(work), self.seconds)
        except (TimeoutError, CantJudge) as error:
            reason = error.reason if isinstance(error, CantJudge) else "guard-slow"
            raise CantJudge(reason, (time.perf_counter() - began) * 1000) from None
        except Exception as error:
            LOG.error("a text could not be judged: %s", type(error).__name__)
            raise CantJudge("guard-failed", (time.perf_counter() - began) * 1000) from None
        return replace(worst, milliseconds=(time.perf_counter() - began) * 1000)

    def _worst(self, texts: Sequence[str], policy: SidePolicy, until: float) -> GuardVerdict:
        """In a thread. What nobody waits for any more isn't computed: the next ones would be late for it. The
        longest come last: a file that counts as text, where `fail` is open, must not let the others pass.
        """
        worst: GuardVerdict | None = None
        predictions = self.predictor.predict_windows(sorted(texts, key=len))
        while worst is None or worst.action != BLOCK:
            if time.perf_counter() > until:
                raise CantJudge("guard-slow")
            if (prediction := next(predictions, None)) is None:
                break
            verdict = self._verdict(prediction, policy)
            if worst is None or _severity(verdict) > _severity(worst):
                worst = verdict
        return worst or GuardVerdict("allow")

    def _done(self, work: "asyncio.Future[Any]") -> None:
        self._waiting -= 1
        if not work.cancelled():
            work.exception()  # has been looked at, or comes too late

    def _verdict(self, prediction: Any, policy: SidePolicy) -> GuardVerdict:
        shares = {str(label): float(share) for label, share in prediction["probabilities"].items()}
        if not all(map(math.isfinite, shares.values())):  # which no cost is below
            raise CantJudge("guard-failed")
        several = "labels" in prediction
        given = tuple(prediction["labels"]) if several else (str(prediction["label"]),)
        action = policy.decide(given, shares, several=several)
        named = [label for label in shares if policy.action_of(label) == action]
        label = max(named or shares, key=lambda each: shares[each])
        return GuardVerdict(action, label, shares[label])

    def close(self) -> None:
        """Ends the threads."""
        self._threads.shutdown(wait=False, cancel_futures=True)


def _severity(verdict: GuardVerdict) -> tuple[int, float]:
    return ACTIONS.index(verdict.action), verdict.probability or 0.0


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

    def write(self, side: str, protocol: str, call: str, verdict: GuardVerdict, texts: list[str]) -> None:
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
