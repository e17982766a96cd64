"""What the fixtures of the fault tests are made of, and their types."""

from collections.abc import Callable
from typing import Any

from evidence import Evidence
from nursery import Settings

WORDS = [first + second for first in "bcdfghklmnprstvw" for second in ("al", "en", "ir", "om", "un", "ate")]
STEPS = 36
# By kind. Muon's rate is in units of AdamW's.
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "adamw": {"learning_rate": 1e-2, "warmup": 4},
    "muon": {"kind": "muon", "learning_rate": 3e-3, "warmup": 4},
}

# Settings of a run in a new folder, with the given top-level keys changed.
NewRun = Callable[..., Settings]
# What an uninterrupted run of so many ranks comes to, its weights divided between them or not, by optimizer.
Uninterrupted = Callable[..., Evidence]
