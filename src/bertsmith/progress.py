"""How long work tells how far it is; the library itself prints nothing."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

# (done, total or None when unknown, what is counted): called a few times a second at most.
Progress = Callable[[int, int | None, str], None]
Show = Callable[[str], AbstractContextManager[Progress]]  # a bar of that title


@contextmanager
def silent(title: str) -> Iterator[Progress]:
    """A `Show` that shows nothing: for calls from a program."""
    yield lambda done, total, unit: None
