"""The classifier that judges texts, in threads beside the event loop, and the audit log: one JSON line for
each decision.

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
_MAX_WAITING = 64  # judgements; one more could not be made in time
_TIMES_KEPT = 10_000  # durations that the percentiles are computed from


@dataclass(frozen=True)
class GuardVerdict:
    """What happens to a side of a call: allow, review or block.

    `label` is the one that decided, with its `probability`. `reason` is set where the model could not judge:
    the action then follows from the policy's `fail`.
    """

    action: Action
    label: str = ""
    probability: float | None = None
    reason: str = ""
    milliseconds: float = 0.0


class CantJudge(Exception):
    """The texts could not be judged, for a `reason` such as guard-slow, after `milliseconds`."""

    def __init__(self, reason: str, milliseconds: float = 0.0) -> None:
        super().__init__(reason)
        self.reason, self.milliseconds = reason, milliseconds


class GuardJudge:
    """A fine-tuned classifier, loaded by name or folder; it has `seconds` for each judgement.

    Raises ModelError for a model that gives no labels with probabilities.
    """

    def __init__(self, model: str, seconds: float) -> None:
        # imports torch, which only a running guard needs
        from bertsmith.inference.predictor import Predictor
        from bertsmith.model.cpu.process import start_one_core_threads

        self.predictor, self.seconds = Predictor.load(model), seconds
        task = self.predictor.task
        if not task.has_probabilities:
            raise ModelError(
                f"The model {Path(model).name} is of the task {task.name}; a guard needs one of "
                "classification or multi-label."
            )
        self.labels = [str(label) for label in task.labels]
        self._threads = start_one_core_threads(_THREADS, "guard")
        self._waiting = 0
        self._threads.submit(self.predictor.predict, ["warm up"]).result()

    async def judge(self, texts: Sequence[str], policy: SidePolicy) -> GuardVerdict:
        """The first verdict that blocks, or else the most severe one; allow if there are no texts.

        Raises CantJudge, after `seconds` at most.
        """
        if not texts:
            return GuardVerdict("allow")
        if self._waiting >= _MAX_WAITING:
            raise CantJudge("guard-busy")
        began = time.perf_counter()
        self._waiting += 1
        work = asyncio.get_running_loop().run_in_executor(
            self._threads, self._find_worst, texts, policy, began + self.seconds
        )
        work.add_done_callback(self._finish)
        try:
            worst = await asyncio.wait_for(asyncio.shield(work), self.seconds)
        except (TimeoutError, CantJudge) as error:
            reason = error.reason if isinstance(error, CantJudge) else "guard-slow"
            raise CantJudge(reason, (time.perf_counter() - began) * 1000) from None
        except Exception as error:
            LOG.error("a text could not be judged: %s", type(error).__name__)
            raise CantJudge("guard-failed", (time.perf_counter() - began) * 1000) from None
        return replace(worst, milliseconds=(time.perf_counter() - began) * 1000)

    def _find_worst(self, texts: Sequence[str], policy: SidePolicy, until: float) -> GuardVerdict:
        """Judges texts, shortest first, in a thread, until the time `until` of `perf_counter`.

        After that nobody waits for the result, and going on would delay the next judgements. The longest text
        comes last: where `fail` is open, a file that counts as text must not let the others pass unjudged.
        """
        worst: GuardVerdict | None = None
        predictions = self.predictor.predict_windows(sorted(texts, key=len))
        while worst is None or worst.action != BLOCK:
            if time.perf_counter() > until:
                raise CantJudge("guard-slow")
            if (prediction := next(predictions, None)) is None:
                break
            verdict = self._make_verdict(prediction, policy)
            if worst is None or _severity(verdict) > _severity(worst):
                worst = verdict
        return worst or GuardVerdict("allow")

    def _finish(self, work: "asyncio.Future[Any]") -> None:
        self._waiting -= 1
        if not work.cancelled():
            work.exception()  # marks it as retrieved; `judge` has raised it, or it came too late

    def _make_verdict(self, prediction: Any, policy: SidePolicy) -> GuardVerdict:
        shares = {str(label): float(share) for label, share in prediction["probabilities"].items()}
        if not all(map(math.isfinite, shares.values())):  # no cost would compare with NaN
            raise CantJudge("guard-failed")
        several = "labels" in prediction
        predicted = tuple(prediction["labels"]) if several else (str(prediction["label"]),)
        action = policy.decide(predicted, shares, several=several)
        deciding = [label for label in shares if policy.action_of(label) == action]
        label = max(deciding or shares, key=lambda name: shares[name])
        return GuardVerdict(action, label, shares[label])

    def close(self) -> None:
        """Stops the threads without waiting for the judgements under way."""
        self._threads.shutdown(wait=False, cancel_futures=True)


def _severity(verdict: GuardVerdict) -> tuple[int, float]:
    return ACTIONS.index(verdict.action), verdict.probability or 0.0


class AuditLog:
    """The file that decisions are appended to, and their counts.

    Raises InputError for a file that can't be written. If the disk fills up later, that is logged once and
    the lines are counted in `lost`; no call fails or waits because of it.
    """

    def __init__(self, path: Path, *, with_texts: bool) -> None:
        self.path, self.with_texts, self.lost = path, with_texts, 0
        self.actions: Counter[str] = Counter()
        self._milliseconds: deque[float] = deque(maxlen=_TIMES_KEPT)
        try:
            self._file = path.open("ab+", buffering=0)
            self._is_cut = self._ends_within_a_line()
        except OSError as error:
            raise InputError(
                f"The log {path} can't be written: {error.strerror}. Name another with --log."
            ) from None

    def write(self, side: str, protocol: str, call: str, verdict: GuardVerdict, texts: list[str]) -> None:
        """Appends one decision. `call` is the id that both sides of a call share."""
        self.actions[f"{side}-{verdict.action}"] += 1
        if verdict.milliseconds:  # the model was run, whether it could judge or not
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
        """Whether the last line is cut, as after a kill or on a full disk: then a line break goes first."""
        if not self._file.seekable() or not self._file.tell():
            return False
        self._file.seek(-1, os.SEEK_END)
        return self._file.read(1) != b"\n"

    def facts(self) -> dict[str, Any]:
        """Counts of decisions by side and action, the median and 99th percentile of their time in ms, lost
        lines.
        """
        times = np.array(self._milliseconds)
        p50, p99 = np.percentile(times, [50, 99]).tolist() if len(times) else (None, None)
        return {
            "decisions": dict(self.actions),
            "p50_ms": p50,
            "p99_ms": p99,
            "log_lost": self.lost,
        }

    def close(self) -> None:
        """Closes the log's file; nothing is written afterwards."""
        self._file.close()
