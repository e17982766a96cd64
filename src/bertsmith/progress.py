"""How long work tells how far it is; the library itself prints nothing."""

from collections.abc import Callable

# (done, total or None when unknown, what is counted): called a few times a second at most.
Progress = Callable[[int, int | None, str], None]
