"""Compresses vectors: fewer dimensions, a byte or a bit for each dimension; and measures what that costs.

E vectors, D dimensions. Float vectors are (E, D) float32.

| precision | a vector of D dimensions | what is kept |
| --- | --- | --- |
| float32 | 4 D bytes | everything |
| int8 | D bytes | 256 steps between the lowest and the highest value that a dimension had |
| binary | D / 8 bytes | signs |
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from bertsmith.errors import InputError, NotFinite

Vectors = npt.NDArray[np.float32]
Codes = npt.NDArray[np.int8]
Bits = npt.NDArray[np.uint8]
Precision = Literal["float32", "int8", "binary"]

_STEPS = 255
_COMPARED = 1000  # vectors that are compared with each other: a million cosines


def normalised(vectors: Vectors) -> Vectors:
    """Scales vectors (E, D) to length 1; a vector of zeros stays. Raises NotFinite if a length overflows."""
    lengths = np.sqrt(np.einsum("ed,ed->e", vectors, vectors))[:, None]
    if not np.isfinite(lengths).all():
        raise NotFinite(
            "Vectors can't be brought to length 1: they are not finite, or too long for float32. The model's "
            "weights are too large or damaged. Take another copy of it."
        )
    return np.asarray(vectors / np.maximum(lengths, 1e-12), np.float32)


def cut(vectors: Vectors, dimensions: int, *, normalise: bool = True) -> Vectors:
    """Truncates vectors, (E, D) -> (E, dimensions), and scales them to length 1 again.

    Vectors of models that were trained for it lose little (Kusupati et al. 2022, Matryoshka). Raises
    InputError unless 1 <= dimensions <= D.
    """
    width = vectors.shape[1]
    if not 1 <= dimensions <= width:
        raise InputError(f"dimensions must be 1 to {width}, what the vectors have; found {dimensions}.")
    first = np.ascontiguousarray(vectors[:, :dimensions])
    return normalised(first) if normalise else first


@dataclass(frozen=True)
class Int8Ranges:
    """The `lowest` and `highest` value (D,) of each dimension, between which the 256 steps of int8 lie.

    They must be stored with the codes, which can't be decoded without them. Values outside are clipped.
    """

    lowest: Vectors
    highest: Vectors

    @classmethod
    def of(cls, vectors: Vectors) -> "Int8Ranges":
        """The ranges of vectors (E, D); a thousand are plenty. Raises InputError if there are none."""
        if not len(vectors):
            raise InputError("int8 needs at least one vector to learn the range of its dimensions from.")
        return cls(vectors.min(0), vectors.max(0))

    def encode(self, vectors: Vectors) -> Codes:
        """(E, D) -> int8 (E, D), rounded to the nearest step. Raises InputError for another D."""
        if vectors.shape[1] != len(self.lowest):
            raise InputError(f"expected vectors of {len(self.lowest)} dimensions, found {vectors.shape[1]}.")
        steps = np.rint((vectors - self.lowest) / self._step)
        return np.asarray(np.clip(steps, 0, _STEPS) - 128, np.int8)

    def decode(self, codes: Codes) -> Vectors:
        """int8 (E, D) -> (E, D), within half a step of what was encoded; of length 1 only nearly."""
        return np.asarray((codes.astype(np.float32) + 128) * self._step + self.lowest, np.float32)

    @property
    def _step(self) -> Vectors:
        width = (self.highest - self.lowest) / np.float32(_STEPS)
        return np.where(width == 0, np.float32(1), width)


def to_bits(vectors: Vectors) -> Bits:
    """(E, D) -> uint8 (E, ceil(D / 8)): a set bit for a value above 0, the first dimension highest."""
    return np.packbits(vectors > 0, axis=1)


def from_bits(bits: Bits, dimensions: int) -> Vectors:
    """uint8 (E, ceil(D / 8)) -> (E, D) of ±1 / sqrt(D), of length 1. Raises InputError if D doesn't fit."""
    if bits.shape[1] != -(-dimensions // 8):
        raise InputError(
            f"binary vectors of {dimensions} dimensions have {-(-dimensions // 8)} bytes, found "
            f"{bits.shape[1]}."
        )
    signs = np.unpackbits(bits, axis=1, count=dimensions).astype(np.float32) * 2 - 1
    return np.asarray(signs / np.sqrt(np.float32(dimensions)), np.float32)


@dataclass(frozen=True)
class Loss:
    """What compression costs, measured on a sample of so many `vectors`.

    `cosine`: the mean cosine of a vector and its compressed form (NaN if their widths differ).
    `cosine_error`: the mean absolute error of the cosines of pairs. `neighbours_kept`: the share of a
    vector's `k` nearest neighbours, `k` being at most a tenth of the others, that remain its nearest (NaN for
    two vectors).
    """

    cosine: float
    cosine_error: float
    neighbours_kept: float
    k: int
    vectors: int


def loss(vectors: Vectors, smaller: Vectors, k: int = 10) -> Loss:
    """Compares vectors (E, D) with their compressed form, decoded, of D or fewer dimensions. The first 1,000
    count.

    Raises InputError for fewer than two vectors, or different numbers of them.
    """
    if len(vectors) != len(smaller) or len(vectors) < 2:
        raise InputError(
            f"expected as many vectors of one kind as of the other, at least two; found {len(vectors)} and "
            f"{len(smaller)}."
        )
    full, small = normalised(vectors[:_COMPARED]), normalised(smaller[:_COMPARED])
    cosines, others = full @ full.T, small @ small.T
    apart = ~np.eye(len(full), dtype=np.bool_)
    # If k were all the others, all would be kept: at most a tenth of them, as in the gate of an export.
    k = min(k, max((len(full) - 1) // 10, 1))
    kept_share = (
        np.nan
        if k == len(full) - 1
        else np.mean(
            [
                len(np.intersect1d(a, b)) / k
                for a, b in zip(_nearest(cosines, k), _nearest(others, k), strict=True)
            ]
        )
    )
    same = np.einsum("ed,ed->e", full, small).mean() if full.shape == small.shape else np.nan
    error = np.abs(cosines - others)[apart].mean()
    return Loss(float(same), float(error), float(kept_share), k, len(full))


def _nearest(cosines: Vectors, k: int) -> npt.NDArray[np.int64]:
    """(E, E) -> (E, k): the indices of each vector's nearest others."""
    others = cosines.copy()
    np.fill_diagonal(others, -np.inf)
    return np.argpartition(-others, k - 1, axis=1)[:, :k]
