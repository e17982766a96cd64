"""What a model's outputs say of a field: its value, and how sure that is.

    enum, boolean, ordinal   softmax over the classes learned; the likeliest, with its probability
    labels                   a sigmoid a label; those above their thresholds, with the probability of the set
                             as if labels were independent
    number                   softmax over ranges of the numbers learned, each with its centre; that centre
                             which has the most probability within the field's tolerance of it

E texts, C classes.
"""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict
from pydantic import Field as Bounded

from bertsmith.arrays import Floats
from bertsmith.metrics.calibration import COLDEST, HOTTEST, confidence_of, probabilities_of
from bertsmith.mirror.fields import ABSENT, Field, is_number, plain


class Guess(NamedTuple):
    """A field's value as `Field.read` gives it, and the probability that the teacher says the same. `spread`
    has the probability of each value learned, of fields that hold one of several.
    """

    value: Any
    confidence: float
    spread: tuple[tuple[Any, float], ...] = ()


class FieldHead(BaseModel):
    """How a model's C outputs for the field `path` are read.

    `classes`: numbers of `Field.classes`, or of its labels, in the order of the outputs; of a number field
    the place of None or ABSENT there, and -1 for a range. `centres` (C,) are a number field's, `thresholds`
    (C,) a labels field's; both are empty elsewhere.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    path: str
    classes: tuple[int, ...]
    temperature: float = Bounded(1.0, ge=COLDEST, le=HOTTEST)
    thresholds: tuple[float, ...] = ()
    centres: tuple[float, ...] = ()

    def tells_apart(self, field: Field) -> bool:
        """Whether it has more than one answer to give."""
        return len(self.classes) > (field.kind != "labels")

    def probabilities(self, field: Field, logits: npt.ArrayLike) -> Floats:
        """(E, C) of logits (E, C)."""
        return probabilities_of(logits, self.temperature, multi_label=field.kind == "labels")

    def guesses(self, field: Field, logits: npt.ArrayLike) -> list[Guess]:
        """Of logits (E, C), one a text."""
        probabilities = self.probabilities(field, logits)
        if field.kind == "labels":
            return self._labels(field, probabilities)
        if field.kind == "number":
            return [self._number(field, row) for row in probabilities]
        best = probabilities.argmax(axis=1)
        values = [field.classes[number] for number in self.classes]
        return [
            Guess(values[place], float(row[place]), tuple(zip(values, row.tolist(), strict=True)))
            for place, row in zip(best, probabilities, strict=True)
        ]

    def _labels(self, field: Field, probabilities: Floats) -> list[Guess]:
        thresholds = np.array(self.thresholds or [0.5] * len(self.classes))
        sure = confidence_of(probabilities, thresholds)
        return [
            Guess(
                tuple(field.values[number] for number, holds in zip(self.classes, row, strict=True) if holds)
                or field.nothing,
                float(confidence),
            )
            for row, confidence in zip(probabilities >= thresholds, sure, strict=True)
        ]

    def _number(self, field: Field, probabilities: Floats) -> Guess:
        values = [self._centre(field, place) for place in range(len(self.classes))]
        near = np.array([[field.same(one, other) for other in values] for one in values], np.float64)
        mass = near @ probabilities
        best = int(mass.argmax())
        return Guess(values[best], float(min(mass[best], 1.0)))

    def _centre(self, field: Field, place: int) -> Any:
        if self.classes[place] >= 0:
            return field.classes[self.classes[place]]
        return plain(self.centres[place])


def place_of_number(head: FieldHead, field: Field, value: Any) -> int | None:
    """The output that stands for a value of a number field: that of the nearest centre. None for what is
    neither a number nor one of its classes.
    """
    if value is None or value is ABSENT:
        number = next((n for n, each in enumerate(field.classes) if each is value), None)
        return head.classes.index(number) if number in head.classes else None
    if not is_number(value):
        return None
    ranges = [place for place, number in enumerate(head.classes) if number < 0]
    return min(ranges, key=lambda place: abs(head.centres[place] - value), default=None)
