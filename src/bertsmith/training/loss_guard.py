"""Stops a run, or sends it back, before a bad batch spoils the weights."""

import math
from dataclasses import dataclass

from bertsmith.training.checkpoint import RunProgress

_SETTLED_STEPS = 50  # a young run's loss may jump
_MEMORY = 0.95  # of the running mean: about the last twenty steps


@dataclass(frozen=True)
class Guard:
    """Bad is what is not finite, or a loss over `spike_factor` times the running mean."""

    spike_factor: float

    def verdict(self, progress: RunProgress, loss: float, gradient_norm: float) -> str | None:
        """What is wrong with this step, or None. Called before the weights are changed."""
        if not math.isfinite(loss):
            return f"the loss is {loss}"
        if not math.isfinite(gradient_norm):
            return f"the gradient's norm is {gradient_norm}"
        if progress.recent_loss is None or progress.step < _SETTLED_STEPS:
            return None
        if loss > self.spike_factor * progress.recent_loss:
            return f"the loss jumped to {loss:.2f} from a running mean of {progress.recent_loss:.2f}"
        return None

    def recent(self, progress: RunProgress, loss: float) -> float:
        """The running mean after this step."""
        if progress.recent_loss is None:
            return loss
        return _MEMORY * progress.recent_loss + (1 - _MEMORY) * loss
