"""Many numbers as a few that change when any of them does: random projections with fixed signs.

n numbers, P projections of them.
"""

import numpy as np
import numpy.typing as npt

from bertsmith.arrays import Floats

PROJECTIONS = 32

# splitmix64 (Steele, Lea and Flood 2014). Written out, since what is stored must be the same for ever, which
# the generators of NumPy and torch don't promise.
_STEP, _FIRST, _SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


def signs(count: int, projections: int = PROJECTIONS) -> npt.NDArray[np.int8]:
    """(n, P) of 1 and -1: row i is bits 0 … P-1 of splitmix64's number i, a bit that is set meaning -1."""
    word = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(_STEP)
    word = (word ^ (word >> np.uint64(30))) * np.uint64(_FIRST)
    word = (word ^ (word >> np.uint64(27))) * np.uint64(_SECOND)
    word ^= word >> np.uint64(31)
    bits = (word[:, None] >> np.arange(projections, dtype=np.uint64)) & np.uint64(1)
    return (1 - 2 * bits.astype(np.int8)).astype(np.int8)


def project(numbers: npt.ArrayLike, projections: int = PROJECTIONS) -> Floats:
    """Numbers of any shape, in their order -> (P,), as large as they are: their signed sums over √n. Up to P
    numbers stay what they are.
    """
    flat = np.asarray(numbers, np.float64).ravel()
    if len(flat) <= projections:
        return flat
    return np.asarray(flat @ signs(len(flat), projections) / np.sqrt(len(flat)), np.float64)
