"""Hardware that `bertsmith plan` knows: peak speed, memory, links, and the share of the peak that training
reaches.

The figures are in accelerators.toml, each with its source. Memory is in bytes, speed in FLOP/s or bytes per
second.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from itertools import pairwise
from typing import Any

from bertsmith.errors import InputError, did_you_mean

HERE = "here"
_MEASURED = "here-"


@dataclass(frozen=True)
class Accelerator:
    """A kind of GPU, or this machine's processor, and the machines that have it.

    `shares` maps a model's width to the share of `peak` that forward and backward passes reach.
    """

    name: str
    title: str
    source: str
    share_source: str
    shares: Mapping[int, float]
    peak: float = 0.0
    precision: str = "float32"
    memory: float = 0.0
    memory_bandwidth: float = 0.0
    link_bandwidth: float = 0.0
    gpus_per_node: int = 1
    network_bandwidth: float = 0.0

    @property
    def is_here(self) -> bool:
        """Whether this entry is this machine, measured now."""
        return self.name.startswith(_MEASURED)

    @property
    def is_assumed(self) -> bool:
        """Whether the share of its peak is assumed instead of measured."""
        return self.share_source.startswith("assumed")

    def share(self, width: int) -> float:
        """The share of the peak that a model of this width reaches, interpolated between known widths.
        Outside of them the nearest known width counts.
        """
        widths = sorted(self.shares)
        for lower, upper in pairwise(widths):
            if lower <= width <= upper:
                weight = (width - lower) / (upper - lower)
                return (1 - weight) * self.shares[lower] + weight * self.shares[upper]
        return self.shares[widths[0] if width < widths[0] else widths[-1]]

    def knows(self, width: int) -> bool:
        """Whether the width lies between known widths or equals one, so that `share` doesn't extrapolate."""
        return min(self.shares) <= width <= max(self.shares)


def find_accelerator(name: str) -> Accelerator:
    """The entry of that name in the table; `here` isn't one (see `plan.measure_here`). Raises InputError for
    an unknown name, suggesting the nearest.
    """
    table, lowered = list_accelerators(), name.lower()
    if lowered in table:
        return table[lowered]
    # for a100, suggest one of its kinds and not the a10
    longer_names = [entry for entry in table if entry.startswith(lowered)]
    near = did_you_mean(lowered, longer_names or [HERE, *table])
    raise InputError(
        f"Unknown hardware {name!r}.{near} There are: {HERE} (this machine, measured), {', '.join(table)}."
    )


def list_accelerators() -> dict[str, Accelerator]:
    """All entries that can be named, in the order of the file."""
    return {name: _make_entry(name) for name in _read_table() if not name.startswith(_MEASURED)}


def make_entry_for_here(device: str, **measured: Any) -> Accelerator:
    """The entry for this machine's kind of device, "cpu" or "cuda", completed by what was measured."""
    return _make_entry(f"here-{device}", **measured)


def _make_entry(entry: str, **measured: Any) -> Accelerator:
    values = _read_table()[entry]
    shares = {int(width): float(share) for width, share in values.get("share", {}).items()}
    others = {key: value for key, value in values.items() if key != "share"}
    return Accelerator(**{"name": entry, "shares": shares} | others | measured)


@cache
def _read_table() -> dict[str, dict[str, Any]]:
    path = resources.files("bertsmith.planning").joinpath("accelerators.toml")
    return tomllib.loads(path.read_text(encoding="utf-8"))
