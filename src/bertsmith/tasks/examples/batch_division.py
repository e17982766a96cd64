"""An epoch's examples, in the order drawn for it, as batches in which some must not meet, or some must.

Both are functions of their arguments alone: a resumed run finds the same batches again.
"""

from collections.abc import Sequence
from itertools import chain

import numpy as np

from bertsmith.arrays import Ints


def apart(texts: Sequence[Sequence[int]], order: Ints, batch_size: int) -> list[Ints]:
    """Batches in which no two examples have a text in common; texts[example] are an example's, by number.

    Each example joins the first batch that has room behind all those that hold a text of its own. What is
    left at the end stands in smaller batches. A batch of one is left out, unless there is no other.
    """
    batches: list[list[int]] = []
    open_from = 0  # all batches before are full
    free_from: dict[int, int] = {}  # text -> the first batch behind all those that it is in
    for example in order.tolist():
        place = max(open_from, *(free_from.get(text, 0) for text in texts[example]))
        while place < len(batches) and len(batches[place]) == batch_size:
            place += 1
        if place == len(batches):
            batches.append([])
        batches[place].append(example)
        free_from |= dict.fromkeys(texts[example], place + 1)
        while open_from < len(batches) and len(batches[open_from]) == batch_size:
            open_from += 1
    kept = [batch for batch in batches if len(batch) > 1] or batches
    return [np.array(batch, np.int64) for batch in kept]


def together(groups: Ints, order: Ints, batch_size: int) -> list[Ints]:
    """Batches of about `batch_size` examples in which each group is whole; groups (E,) by number.

    Groups stand in the order of their first examples. A group that is larger than a batch is one by itself.
    """
    members: dict[int, list[int]] = {}
    for example in order.tolist():
        members.setdefault(int(groups[example]), []).append(example)
    ends = np.cumsum([len(each) for each in members.values()])
    parts = -(-len(order) // batch_size)
    part_of = (ends - 1) * parts // len(order)
    last_of_part = np.flatnonzero(np.diff(part_of))
    return np.split(np.array(list(chain(*members.values())), np.int64), ends[last_of_part])
