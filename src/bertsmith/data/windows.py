"""A text that is longer than the model can read, as overlapping windows: one rule for every head.

    T   tokens of the text

A window is a range (start, end) of the text's tokens. Each head reads every token in exactly one window, the
one that shows most of its surroundings, in training as in prediction.
"""

from collections.abc import Sequence, Sized

import numpy as np
import numpy.typing as npt

from bertsmith.text.tokens.sequence_rules import USUAL_TRUNCATION, Truncation

TokenRange = tuple[int, int]


def windows(
    token_ids: Sized, room: int, stride: int | None, truncation: Truncation = USUAL_TRUNCATION
) -> list[TokenRange]:
    """Ranges of at most `room` tokens that cover the whole text, each sharing `stride` tokens with the next.

    The last one is moved back until it is full, so that no window has little to go by: it may share more.
    A text that fits is one window, an empty text too: (0, 0). With `stride` None the text is cut to `room`
    tokens instead, at the end that `truncation` says. Raises ValueError for a room below 1 and a stride
    outside 0 … room - 1.
    """
    if room < 1:
        raise ValueError(f"a window needs room for at least one token, found room = {room}")
    if stride is not None and not 0 <= stride < room:
        raise ValueError(
            f"expected a stride from 0 to {room - 1}, below the {room} tokens of a window, found {stride}"
        )
    tokens = len(token_ids)
    if stride is None or tokens <= room:
        return [truncation.range(tokens, min(tokens, room))]
    last = tokens - room
    starts = [*range(0, last, room - stride), last]
    return [(start, start + room) for start in starts]


def owner(ranges: Sequence[TokenRange]) -> npt.NDArray[np.int64]:
    """(T,) for each token up to the last window's end the index of the window that is to read it.

    It is the one in which the token stands farthest from the nearer end, the first of several. A token that
    no window covers has -1.
    """
    tokens = max((end for _, end in ranges), default=0)
    most_context = np.full(tokens, -1, np.int64)
    owners = np.full(tokens, -1, np.int64)
    for index, (start, end) in enumerate(ranges):
        from_start = np.arange(end - start)
        context = np.minimum(from_start, from_start[::-1])
        better = context > most_context[start:end]
        most_context[start:end][better] = context[better]
        owners[start:end][better] = index
    return owners
