"""What the simulations share: runs by seed, and the binomial test on how many of them broke a guarantee."""

import numpy as np
import pytest
from scipy.stats import binomtest

# Three hundred runs in every test run, a thousand in the slow ones.
each_size = pytest.mark.parametrize("runs", [150, pytest.param(1000, marks=pytest.mark.slow)])


def within(violations: int, runs: int, delta: float) -> bool:
    """No evidence, at 5 %, that a violation is more probable than `delta`."""
    return bool(binomtest(violations, runs, delta, alternative="greater").pvalue > 0.05)


def generator(seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)
