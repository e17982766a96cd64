"""A model without its dropout, for as long as something is measured."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """The model in evaluation mode; afterwards, also after an error, in the mode that it was in.

    One that is in evaluation mode stays as it is: to walk through its modules takes a tenth of the time of a
    text that a small model answers alone.
    """
    if not model.training:
        yield
        return
    model.eval()
    try:
        yield
    finally:
        model.train()
