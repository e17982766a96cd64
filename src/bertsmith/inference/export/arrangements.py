"""In which company a sequence is computed: alone, among others, beside the longest, with padding on either
side. A graph must answer the same in all of them.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

_SEED = 0
_BESIDE_THE_LONGEST = 64
# What attention takes grows with a batch's sequences times the square of the longest's tokens: as many as 32
# of 512 have, some 400 MB for twelve heads. A single sequence may be longer.
_MOST_PLACES = 32 * 512**2


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
    return Arrangement("32 of like length, padded on the right", _parts(_ascending(lengths), lengths, 32))


def all_together(lengths: Sequence[int], *, left: bool = False) -> Arrangement:
    """In one batch, or in as few as there is memory for."""
    side = "left" if left else "right"
    return Arrangement(
        f"all together, padded on the {side}", _parts(_ascending(lengths), lengths, len(lengths)), left
    )


def arrangements(lengths: Sequence[int]) -> list[Arrangement]:
    """All in which a graph is tried, the usual one first; the same for the same lengths."""
    draw = np.random.Generator(np.random.PCG64DXSM(_SEED))
    eight, many = (draw.permutation(len(lengths)).tolist() for _ in range(2))
    return [
        like_lengths(lengths),
        alone(len(lengths)),
        Arrangement("8 of any length, padded on the right", _parts(eight, lengths, 8)),
        Arrangement("32 of any length, padded on the left", _parts(many, lengths, 32), left=True),
        Arrangement("beside the longest, padded on the left", _beside_the_longest(lengths), left=True),
    ]


def _beside_the_longest(lengths: Sequence[int]) -> list[list[int]]:
    """The shortest, each in a pair with the longest of those that fit twice into memory; then the others."""
    order = _ascending(lengths)
    fitting = [number for number in order if 2 * lengths[number] ** 2 <= _MOST_PLACES]
    longest = fitting[-1] if fitting else None
    short = [number for number in fitting[:_BESIDE_THE_LONGEST] if number != longest]
    pairs = [[number, longest] for number in short if longest is not None]
    rest = sorted({*order}.difference(number for pair in pairs for number in pair))
    return [*pairs, *_parts(rest, lengths, 32)]


def _ascending(lengths: Sequence[int]) -> list[int]:
    order: list[int] = np.argsort(np.asarray(lengths), kind="stable").tolist()
    return order


def _parts(order: Sequence[int], lengths: Sequence[int], size: int) -> list[list[int]]:
    """Batches of at most `size`, in order."""
    parts: list[list[int]] = []
    longest = 0
    for number in order:
        longest = max(longest, lengths[number])
        fits = bool(parts) and len(parts[-1]) < size and (len(parts[-1]) + 1) * longest**2 <= _MOST_PLACES
        if fits:
            parts[-1].append(number)
        else:
            parts.append([number])
            longest = lengths[number]
    return parts
