"""What the fixtures of the fault tests are made of, and their types."""

from collections.abc import Callable

from evidence import Evidence
from nursery import Settings

WORDS = [first + second for first in "bcdfghklmnprstvw" for second in ("al", "en", "ir", "om", "un", "ate")]
STEPS = 36

# Settings of a run in a new folder, with the given top-level keys changed.
NewRun = Callable[..., Settings]
# What an uninterrupted run of so many ranks comes to, its weights divided between them or not.
Uninterrupted = Callable[..., Evidence]
