"""The learning rate over a run: linear warm-up, then linear decay to zero (Devlin et al. 2019, appendix
A.2).
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Schedule:
    """`peak` is reached at the share `warmup` of the run; progress is in [0, 1]."""

    peak: float
    warmup: float

    def learning_rate(self, progress: float) -> float:
        """Zero at both ends."""
        if progress < self.warmup:
            return self.peak * progress / self.warmup
        return self.peak * max(0.0, 1.0 - progress) / (1.0 - self.warmup)
