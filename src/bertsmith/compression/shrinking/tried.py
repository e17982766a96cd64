"""What became of each candidate, and which of those that keep what was asked computes least.

out/candidates/SLUG/tried.json   one candidate, once it is finished
out/results.json                 all of them, the choice, and what was left out
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from bertsmith.files import read_json, write_json

FILE = "tried.json"
_AS_LITTLE = 1.05  # times the least work: a text of other pieces may turn it round


@dataclass(frozen=True)
class Tried:
    """`score` is the main metric on dev, with its standard `error`; `work` is what the encoder computes for
    dev, in FLOP; `share` and `share_alone` are of the teacher's time for a text among many, and for one that
    comes alone, as measured: nothing is chosen by them. `seconds` is what it took to make,
    over all parts of an interrupted run; `predicted` what asking the model took and the training was expected
    to take.
    """

    name: str
    slug: str
    score: float
    error: float | None
    parameters: int
    bytes: int
    work: float
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
        """None for a candidate that is not finished, or that an older version measured in fewer ways."""
        path = folder / FILE
        found = read_json(path) if path.exists() else {}
        return cls(**found) if found.keys() == {field.name for field in fields(cls)} else None

    @property
    def interval(self) -> tuple[float, float]:
        """Where its score would be on other rows of this kind, in 95 of 100 cases. A share is at most 1."""
        spread = 1.96 * (self.error or 0.0)
        high = self.score + spread
        return self.score - spread, min(high, 1.0) if self.score <= 1 else high


@dataclass(frozen=True)
class LeftOut:
    """A candidate that would have taken `seconds`, more than there was left of the time."""

    name: str
    seconds: float
    left: float


@dataclass(frozen=True)
class OnTest:
    """The main metric with its standard error on rows that nothing was chosen by: the model's own, and that
    of the chosen one.
    """

    rows: int
    whole: float
    whole_error: float | None
    chosen: float
    chosen_error: float | None

    def sentence(self, metric: str) -> str:
        """Both, with 95 % intervals."""
        own, chosen = (
            f"{score:.4f}" if error is None else f"{score:.4f} ± {1.96 * error:.4f}"
            for score, error in ((self.whole, self.whole_error), (self.chosen, self.chosen_error))
        )
        kept = f", {self.chosen / self.whole:.1%} of it" if self.whole else ""
        return (
            f"On {self.rows:,} rows of test the model itself has {metric} {own}, the chosen {chosen}{kept}."
        )


@dataclass(frozen=True)
class Shrunk:
    """`whole` is the model itself; `tried` are the others, smallest first; `chosen` is one of all, and
    `on_test` what it is worth where there are test rows.
    """

    metric: str
    keep: float
    whole: Tried
    tried: tuple[Tried, ...]
    chosen: Tried
    left_out: tuple[LeftOut, ...]
    warnings: tuple[str, ...]
    on_test: OnTest | None = None

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
            "test": None if self.on_test is None else asdict(self.on_test),
            "left_out": [asdict(each) for each in self.left_out],
            "warnings": list(self.warnings),
        }


def choose(whole: Tried, tried: Sequence[Tried], keep: float) -> Tried:
    """Of those whose score is at least `keep` of the whole model's, that whose work is least, of such as
    compute as little but for a twentieth the one with fewest parameters; the model itself where there is
    none. Work is counted: a busy machine, or another one, chooses the same.
    """
    good = [whole, *(each for each in tried if each.score >= keep * whole.score)]
    least = min(each.work for each in good)
    as_little = [each for each in good if each.work <= _AS_LITTLE * least]
    return min(as_little, key=lambda each: (each.parameters, each.work))


def doubts(shrunk_from: Tried, tried: Sequence[Tried], chosen: Tried, keep: float, metric: str) -> list[str]:
    """Sentences on what to mistrust in a choice."""
    found = []
    wanted = keep * shrunk_from.score
    kept = [each for each in tried if each.score >= wanted]
    if chosen.slug == shrunk_from.slug and kept:
        smallest = min(kept, key=lambda each: each.parameters)
        found.append(
            f"no faster model keeps {keep:.0%} of the {metric}. Smaller ones do: {smallest.name}, "
            f"{smallest.parameters / 1e6:.1f} M parameters, lies in candidates/{smallest.slug}/model"
        )
    elif chosen.slug == shrunk_from.slug:
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
