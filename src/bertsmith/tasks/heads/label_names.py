"""Classes from their names: which class a text belongs to, from the vectors of the class names, of texts
without labels, and of a few labelled rows.

U unlabelled texts, E labelled rows, C classes, P phrasings of a name, F features.
"""

from dataclasses import dataclass

import numpy as np

from bertsmith.arrays import Floats, Ints

_TEMPERATURE, _BALANCE, _NAME_WEIGHT, _ROUNDS = 0.05, 0.5, 0.5, 10
_SUREST, _FEWEST_KEPT, _HALF_WIDTH = 0.3, 0.8, 0.15


@dataclass(frozen=True)
class NameStart:
    """Probabilities (U, C) of the classes for each unlabelled text, the `way` they were found by (`names`:
    the nearest name; `texts`: prototypes that the unlabelled texts helped to place), why it was taken, what
    share of texts the other ways would class otherwise, and the expected accuracy with its 95 % interval.
    """

    probabilities: Floats
    way: str
    reason: str
    disagreement: dict[str, float]
    expected: tuple[float, float, float]  # accuracy, lower and upper end


def classify_by_names(
    names: Floats, texts: Floats, rows: Floats | None = None, labels: Ints | None = None
) -> NameStart:
    """Finds the classes of `texts` (U, F) from the vectors of `names` (P, C, F), and of labelled `rows` (E,
    F) with their `labels` (E,) where there are some. Vectors needn't have unit length. Deterministic.

    Ten rounds: every text is shared out softly over the classes, with a half step towards equal classes
    (Cuturi 2013, with the exponent 1/2), and a class's prototype is the mean of its texts, its rows and, with
    the weight of half a text, its name. They are taken if most of the texts that the names alone are surest
    of keep their class.
    """
    vectors, prototypes = _normalise(texts), _normalise(names.mean(0))
    anchors = _NAME_WEIGHT * prototypes
    if rows is not None and labels is not None:
        np.add.at(anchors, labels, _normalise(rows))
        prototypes = _normalise(anchors)
    nearest = _softmax(vectors @ prototypes.T / _TEMPERATURE)
    shared = nearest
    for _ in range(_ROUNDS):
        shared = _softmax(vectors @ prototypes.T / _TEMPERATURE)
        shared = shared / np.maximum(shared.sum(0), 1e-9) ** _BALANCE
        shared /= shared.sum(1, keepdims=True)
        means = shared.T @ vectors / np.maximum(shared.sum(0), 1e-9)[:, None]
        prototypes = _normalise(means + anchors)
    kept = _share_that_stays(nearest, shared)
    fewer = len(texts) < names.shape[1]
    way = "names" if fewer or kept < _FEWEST_KEPT else "texts"
    reason = (
        f"{len(texts):,} texts are fewer than the {names.shape[1]:,} classes"
        if fewer
        else f"of the texts that the names alone are surest of, {kept:.0%} keep their class"
    )
    probabilities = shared if way == "texts" else nearest
    other = nearest if way == "texts" else shared
    differ = float((probabilities.argmax(1) != other.argmax(1)).mean()) if len(texts) else 0.0
    expected = float(probabilities.max(1).mean()) if len(texts) else 1 / names.shape[1]
    interval = (expected, max(expected - _HALF_WIDTH, 0.0), min(expected + _HALF_WIDTH, 1.0))
    return NameStart(probabilities, way, reason, {"names" if way == "texts" else "texts": differ}, interval)


def _share_that_stays(first: Floats, second: Floats) -> float:
    """The share of texts of which both probabilities (U, C) have the same class, among those with the widest
    margin of the first.
    """
    if not len(first):
        return 0.0
    highest = np.partition(first, -2, axis=1)[:, -2:]
    surest = np.argsort(highest[:, 0] - highest[:, 1], kind="stable")[: max(int(_SUREST * len(first)), 1)]
    return float((first[surest].argmax(1) == second[surest].argmax(1)).mean())


def _normalise(vectors: Floats) -> Floats:
    """The vectors (…, F) with length 1; those without length stay."""
    lengths = np.linalg.norm(vectors, axis=-1, keepdims=True)
    return np.asarray(vectors / np.where(lengths > 0, lengths, 1))


def _softmax(logits: Floats) -> Floats:
    shifted = np.exp(logits - logits.max(1, keepdims=True))
    return np.asarray(shifted / shifted.sum(1, keepdims=True))
