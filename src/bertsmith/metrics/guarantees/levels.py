"""Checks that the files of this folder share: shares such as ε and δ, and arrays of one length."""

from numbers import Real
from typing import Any

import numpy as np
import numpy.typing as npt

from bertsmith.arrays import Floats
from bertsmith.door import found
from bertsmith.errors import InputError


def share(value: Any, name: str) -> None:
    """A number above 0 and below 1. Raises InputError."""
    if not isinstance(value, Real) or isinstance(value, bool) or not 0 < float(value) < 1:
        raise InputError(f"{name} must lie above 0 and below 1 (0.05 is 5 %), found {found(value)}.")


def shares(values: npt.ArrayLike, name: str) -> Floats:
    """(E,) values from 0 to 1, at least one. Raises InputError."""
    array = np.asarray(values, np.float64)
    if array.ndim != 1 or not len(array):
        raise InputError(f"{name} must be one value a call and at least one, found the shape {array.shape}.")
    wrong = np.flatnonzero(~((array >= 0) & (array <= 1)))
    if len(wrong):
        raise InputError(f"{name} must lie from 0 to 1, found {array[wrong[0]]} at call {wrong[0] + 1}.")
    return array


def numbers(values: npt.ArrayLike, name: str) -> Floats:
    """(E,) finite values, at least one. Raises InputError."""
    array = np.asarray(values, np.float64)
    if array.ndim != 1 or not len(array):
        raise InputError(f"{name} must be one value a call and at least one, found the shape {array.shape}.")
    wrong = np.flatnonzero(~np.isfinite(array))
    if len(wrong):
        raise InputError(f"{name} must be finite, found {array[wrong[0]]} at call {wrong[0] + 1}.")
    return array


def counts(part: npt.ArrayLike, whole: npt.ArrayLike, name: str) -> tuple[Floats, Floats]:
    """Whole numbers with 0 <= part <= whole. Raises InputError."""
    part, whole = np.broadcast_arrays(np.asarray(part, np.float64), np.asarray(whole, np.float64))
    if not ((part >= 0) & (part <= whole) & (part % 1 == 0) & (whole % 1 == 0)).all():
        raise InputError(f"{name} must be whole numbers, from 0 to the number of calls they are counted in.")
    return part, whole
