"""In which company a sequence is computed: alone, among others, beside the longest, with padding on either
side. A graph must answer the same in all of them.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

_SEED = 0
_BESIDE_THE_LONGEST = 64


class Arrangement(NamedTuple):
    """Batches of sequences by their numbers; `left`: padding stands before a sequence."""

    name: str
    batches: list[list[int]]
    left: bool = False


def alone(count: int) -> Arrangement:
    """Each by itself, nothing padded."""
    return Arrangement("alone", [[number] for number in range(count)])


def like_lengths(lengths: Sequence[int]) -> Arrangement:
    """32 at a time, as a service would batch them."""
    order = np.argsort(np.asarray(lengths), kind="stable").tolist()
    return Arrangement("32 of like length, padded on the right", _parts(order, 32))


def arrangements(lengths: Sequence[int]) -> list[Arrangement]:
    """All in which a graph is tried, the same for the same lengths."""
    draw = np.random.Generator(np.random.PCG64DXSM(_SEED))
    eight, many = (draw.permutation(len(lengths)).tolist() for _ in range(2))
    longest = int(np.argmax(lengths))
    shortest_first = np.argsort(np.asarray(lengths), kind="stable").tolist()
    beside = [[number, longest] for number in shortest_first[:_BESIDE_THE_LONGEST] if number != longest]
    rest = sorted({*range(len(lengths))}.difference(number for pair in beside for number in pair))
    return [
        alone(len(lengths)),
        Arrangement("8 of any length, padded on the right", _parts(eight, 8)),
        Arrangement("32 of any length, padded on the left", _parts(many, 32), left=True),
        like_lengths(lengths),
        Arrangement("beside the longest, padded on the left", [*beside, *_parts(rest, 32)], left=True),
    ]


def _parts(order: Sequence[int], size: int) -> list[list[int]]:
    return [list(order[start : start + size]) for start in range(0, len(order), size)]
