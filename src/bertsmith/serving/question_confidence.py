"""How sure an answer to a typed question is, as System One's specification reckons it.

n options or levels.
"""

import numpy as np

from bertsmith.arrays import Floats


def choice_confidence(shares: Floats) -> float:
    """(n,) -> how far the likeliest is above chance: 1 for a certain answer, 0 for all alike."""
    n = len(shares)
    return 1.0 if n == 1 else float(np.clip((shares.max() - 1 / n) / (1 - 1 / n), 0, 1))


def score_confidence(shares: Floats) -> float:
    """(n,) -> 1 less the mean distance from the likeliest level, as a share of what a flat guess has."""
    n = len(shares)
    if n == 1:
        return 1.0
    levels = np.arange(n)
    spread = np.abs(levels - (n - 1) / 2).mean()
    return float(max(0.0, 1 - (shares * np.abs(levels - shares.argmax())).sum() / spread))
