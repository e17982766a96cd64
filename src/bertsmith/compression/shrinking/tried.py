"""What became of each candidate, and which is the smallest that keeps what was asked.

out/candidates/SLUG/tried.json   one candidate, once it is finished
out/results.json                 all of them, the choice, and what was left out
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bertsmith.files import read_json, write_json

FILE = "tried.json"


@dataclass(frozen=True)
class Tried:
    """`score` is the main metric on dev, with its standard `error`; `share` and `share_alone` are of the
    teacher's time for a text among many, and for one that comes alone. `seconds` is what it took to make,
    `predicted` what its training alone was expected to take.
    """

    name: str
    slug: str
    score: float
    error: float | None
    parameters: int
    bytes: int
    milliseconds: float
    milliseconds_alone: float
    share: float
    share_alone: float
    seconds: float = 0.0
    predicted: float | None = None

    def write(self, folder: Path) -> None:
        """Last of all, so that whoever finds it finds the whole candidate."""
        write_json(folder / FILE, asdict(self))

    @classmethod
    def read(cls, folder: Path) -> "Tried | None":
        """None for a candidate that is not finished."""
        path = folder / FILE
        return cls(**read_json(path)) if path.exists() else None

    @property
    def interval(self) -> tuple[float, float]:
        """Where its score would be on other rows of this kind, in 95 of 100 cases."""
        spread = 1.96 * (self.error or 0.0)
        return self.score - spread, self.score + spread


@dataclass(frozen=True)
class LeftOut:
    """A candidate that would have taken `seconds`, more than there was left of the time."""

    name: str
    seconds: float
    left: float


@dataclass(frozen=True)
class Shrunk:
    """`whole` is the model itself; `tried` are the others, smallest first; `chosen` is one of all."""

    metric: str
    keep: float
    whole: Tried
    tried: tuple[Tried, ...]
    chosen: Tried
    left_out: tuple[LeftOut, ...]
    warnings: tuple[str, ...]

    @property
    def wanted(self) -> float:
        """The score that was asked for."""
        return self.keep * self.whole.score

    def record(self) -> dict[str, Any]:
        """results.json."""
        return {
            "metric": self.metric,
            "keep": self.keep,
            "wanted": self.wanted,
            "whole": asdict(self.whole),
            "tried": [asdict(each) for each in self.tried],
            "chosen": self.chosen.slug,
            "left_out": [asdict(each) for each in self.left_out],
            "warnings": list(self.warnings),
        }


def choose(whole: Tried, tried: Sequence[Tried], keep: float) -> Tried:
    """Of those whose score is at least `keep` of the whole model's, that which takes the least time for a
    text that comes alone, of equals the one with fewer parameters; the model itself where there is none.
    """
    good = [each for each in tried if each.score >= keep * whole.score]
    return min([*good, whole], key=lambda each: (round(each.share_alone, 2), each.parameters))


def doubts(shrunk_from: Tried, chosen: Tried, keep: float, metric: str) -> list[str]:
    """Sentences on what to mistrust in a choice."""
    found = []
    wanted = keep * shrunk_from.score
    if chosen.slug == shrunk_from.slug:
        found.append(
            f"no smaller model keeps {keep:.0%} of the {metric}: give more texts with --texts, more epochs, "
            "or ask for less with --keep"
        )
    elif chosen.interval[0] < wanted:
        found.append(
            f"{chosen.name} has {metric} {chosen.score:.4f} on dev, but on other rows it may have as little "
            f"as {chosen.interval[0]:.4f}, less than the {wanted:.4f} asked for: more dev rows would tell"
        )
    return found
