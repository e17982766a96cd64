"""What a graph must keep to, to be written at all."""

import math
from dataclasses import dataclass

from bertsmith.errors import InputError

ERROR = 0.05  # the chance of calling an agreement proven that is not there, over all tries together
CALIBRATION = 0.02  # by which a refitted calibration error may exceed the model's


@dataclass(frozen=True)
class ExportLimits:
    """Of int8; float32's are `EXACT`.

    agreement: the lowest share of answers like the model's, in every arrangement, that the file must prove.
    change: the largest change of any probability, or of a number in deviations of the file's.
    cosine: the smallest between a vector and the model's.
    neighbours: the smallest share of the nearest, a tenth of the others but at most ten, that stay so.
    """

    agreement: float = 0.95
    change: float = 0.1
    cosine: float = 0.97
    neighbours: float = 0.9

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            if not is_number or not math.isfinite(value) or not 0 < value <= 1:
                raise InputError(f"{name} must be a number above 0 and at most 1, found {value!r}.")
        if self.agreement == 1:
            raise InputError("agreement must be below 1: no finite file proves that no answer ever differs.")

    @property
    def of_a_cosine(self) -> float:
        """By how much it may be less than 1."""
        return 1 - self.cosine


@dataclass(frozen=True)
class Exact:
    """Of float32: every answer the same, probabilities to 1e-4, cosines to 1e-5, all neighbours."""

    change: float = 1e-4
    of_a_cosine: float = 1e-5
    neighbours: float = 1.0


EXACT = Exact()
