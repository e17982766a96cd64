"""What someone who watches a run wants to know, gathered from the records of its log."""

from collections import deque
from typing import Any

from bertsmith.reporting.curves import Curve

Record = dict[str, Any]
BESIDE_MLM = {"NSP": "nsp_loss", "SOP": "sop_loss", "RTD": "weighted_rtd_loss"}


class RunState:
    """Takes in the records of a run as they come.

    total_steps, total_seconds: the budget, where there is one; with both, the first to run out counts.
    """

    def __init__(self, total_steps: int | None = None, total_seconds: float | None = None) -> None:
        self.total_steps, self.total_seconds = total_steps, total_seconds
        self.latest: Record = {}
        self.evaluation: Record = {}
        self.sequence_length: int | None = None
        self.checkpoint: int | None = None
        self.training_loss = Curve(600)
        self.heldout_loss = Curve(200)
        self._recent_losses: deque[dict[str, float | None]] = deque(maxlen=20)
        self._pace: deque[tuple[int, float]] = deque(maxlen=200)

    def take_in(self, record: Record) -> None:
        """Takes in any record of the log; those that nobody watches are passed over."""
        actions = {
            "step": self._take_step,
            "evaluation": self._take_evaluation,
            "phase": self._take_phase,
            "checkpoint": self._take_checkpoint,
        }
        if record["kind"] in actions:
            actions[record["kind"]](record)

    def rewind(self, step: int) -> None:
        """Forgets the steps after `step`, which were taken back."""
        self.training_loss.cut_after(step)
        self.heldout_loss.cut_after(step)
        self._recent_losses.clear()
        self._pace.clear()

    def _take_step(self, record: Record) -> None:
        self.latest = record
        shown = record.get("mlm_loss", record.get("loss"))
        others = {name: record.get(key) for name, key in BESIDE_MLM.items()}
        self._recent_losses.append({"shown": shown, **others})
        self.training_loss.add(record["step"], shown)
        if record.get("elapsed") is not None:
            self._pace.append((record["step"], record["elapsed"]))

    def _take_evaluation(self, record: Record) -> None:
        self.evaluation = record
        self.heldout_loss.add(record["step"], record.get("mlm_loss"))

    def _take_phase(self, record: Record) -> None:
        self.sequence_length = record.get("sequence_length")
        self._pace.clear()  # the pace of shorter sequences says nothing about the time left

    def _take_checkpoint(self, record: Record) -> None:
        self.checkpoint = record["step"]

    @property
    def loss_name(self) -> str:
        """What the loss curve shows: MLM alone where it is known, as others would hide its course."""
        return "MLM loss" if "mlm_loss" in self.latest or not self.latest else "loss"

    @property
    def loss(self) -> float | None:
        """Mean of the last 20 records: single batches jump too much to be read."""
        return self._recent("shown")

    @property
    def others(self) -> list[str]:
        """What is learnt beside masked pieces, by its short name."""
        return [name for name, key in BESIDE_MLM.items() if key in self.latest]

    @property
    def other_losses(self) -> dict[str, float | None]:
        """Of each, the mean of the last 20 records; of replaced tokens as it counts in the sum of losses."""
        return {f"{name} loss": self._recent(name) for name in self.others}

    def _recent(self, name: str) -> float | None:
        return _mean([losses[name] for losses in self._recent_losses])

    @property
    def elapsed(self) -> float:
        """Seconds of training so far."""
        return float(self.latest.get("elapsed") or 0.0)

    @property
    def share_done(self) -> float:
        """0..1 of the budget that runs out first; 0 when there is none."""
        steps = self.latest.get("step", 0) / self.total_steps if self.total_steps else 0.0
        seconds = self.elapsed / self.total_seconds if self.total_seconds else 0.0
        return min(1.0, max(steps, seconds))

    @property
    def seconds_left(self) -> float | None:
        """Seconds of training until the budget runs out, at the recent pace; None when not known yet."""
        candidates = []
        if self.total_seconds:
            candidates.append(max(0.0, self.total_seconds - self.elapsed))
        seconds_per_step = self._seconds_per_step()
        if self.total_steps and seconds_per_step is not None:
            candidates.append(max(0, self.total_steps - self.latest["step"]) * seconds_per_step)
        return min(candidates, default=None)

    def _seconds_per_step(self) -> float | None:
        if len(self._pace) < 2:
            return None
        (first_step, first_second), (last_step, last_second) = self._pace[0], self._pace[-1]
        return (last_second - first_second) / (last_step - first_step) if last_step > first_step else None


def _mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
