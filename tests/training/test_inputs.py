"""What of a held-out part can be measured on: decided before a run begins, by what a stream of it needs."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from bertsmith.training.inputs import _measured


class Store(SimpleNamespace):
    """Documents of so many sentences."""

    def __init__(self, *sentences: int) -> None:
        super().__init__(path=Path("heldout"), document_starts=np.cumsum([0, *sentences]))

    def __len__(self) -> int:
        return len(self.document_starts) - 1


@pytest.mark.parametrize(
    ("sentences", "pairs", "usable"),
    [
        ([3, 2], True, True),
        ([1, 1, 1], True, False),  # no sentence has a next one
        ([3], True, False),  # nor another document
        ([], True, False),
        ([1], False, True),
        ([], False, False),
    ],
)
def test_a_held_out_part_that_makes_no_sequences_is_told_and_left_out(
    sentences: list[int], pairs: bool, usable: bool
) -> None:
    store: Any = Store(*sentences)
    measured, notes = _measured(store, pairs)
    assert (measured is store) is usable
    assert [note.startswith("nothing is measured on the held-out part") for note in notes] == (
        [] if usable else [True]
    )
