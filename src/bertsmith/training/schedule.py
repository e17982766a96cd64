"""The learning rate over a run: linear warm-up, then linear decay to zero (Devlin et al. 2019, appendix A.2);
or warm-up, a stable phase, and a decay from which any stable checkpoint can begin (WSD, Hu et al. 2024).
"""

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Schedule:
    """`peak` is reached at the share `warmup` of the run; progress is in [0, 1].

    `decay` is the share at its end in which the rate falls, by 1 - √ of how far the decay has come (Hägele et
    al. 2024, section 4); None: all after the warm-up, linearly.
    """

    peak: float
    warmup: float
    decay: float | None = None

    def learning_rate(self, progress: float) -> float:
        """Zero at both ends; where there is no decay, `peak` to the end."""
        if progress < self.warmup:
            return self.peak * progress / self.warmup
        if self.decay is None:
            return self.peak * max(0.0, 1.0 - progress) / (1.0 - self.warmup)
        return self.peak * (1.0 - math.sqrt(self.decayed(progress)))

    def decayed(self, progress: float) -> float:
        """How far the decay has come, in [0, 1]."""
        decay = 1.0 - self.warmup if self.decay is None else self.decay
        return min(max((progress - (1.0 - decay)) / decay, 0.0), 1.0) if decay > 0 else 0.0

    def is_stable(self, progress: float) -> bool:
        """Whether the rate has reached its peak, and is to fall from here on at the earliest."""
        if self.decay is None:
            return False
        return self.warmup - 1e-9 <= progress <= 1.0 - self.decay + 1e-9
