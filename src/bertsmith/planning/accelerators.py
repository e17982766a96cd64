"""What `bertsmith plan` knows of hardware: peak, memory, links, and the share of the peak training reaches.

The figures stand in accelerators.toml, each with its source. Bytes are bytes, speeds FLOP/s or bytes a
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
    """One kind of GPU, or the processor of this machine, and the machines it stands in.

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
        """Whether it was measured on the spot."""
        return self.name.startswith(_MEASURED)

    @property
    def is_assumed(self) -> bool:
        """Whether nobody has measured the share of its peak."""
        return self.share_source.startswith("assumed")

    def share(self, width: int) -> float:
        """Of the peak, for a model `width` wide: interpolated between the widths that are known."""
        known = sorted(self.shares)
        for lower, upper in pairwise(known):
            if lower <= width <= upper:
                weight = (width - lower) / (upper - lower)
                return (1 - weight) * self.shares[lower] + weight * self.shares[upper]
        return self.shares[known[0] if width < known[0] else known[-1]]

    def knows(self, width: int) -> bool:
        """Whether `share` rests on widths to both sides, or on this very one."""
        return min(self.shares) <= width <= max(self.shares)


def find_accelerator(name: str) -> Accelerator:
    """An entry of the table. Raises InputError naming the nearest; `here` is `measure_here`'s to answer."""
    table, wanted = accelerators(), name.lower()
    if wanted in table:
        return table[wanted]
    # a100 means one of its kinds, not the a10
    longer = [entry for entry in table if entry.startswith(wanted)]
    meant = did_you_mean(wanted, longer or [HERE, *table])
    raise InputError(
        f"Unknown hardware {name!r}.{meant} There are: {HERE} (this machine, measured), {', '.join(table)}."
    )


def accelerators() -> dict[str, Accelerator]:
    """All that can be named, in the order of the file."""
    return {name: _make_entry(name) for name in _read_table() if not name.startswith(_MEASURED)}


def entry_for_here(device: str, **measured: Any) -> Accelerator:
    """The entry of this machine's kind of device ("cpu" or "cuda"), completed by what was measured."""
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
