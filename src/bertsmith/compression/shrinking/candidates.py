"""Which smaller models are tried (a static table, fewer layers, narrower ones), what became of each, which is
chosen, and the folder of the search, begun once or again with the same settings.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from bertsmith.compression.distilling.recipes import DistilRecipe
from bertsmith.compression.distilling.tasks.data import data_hashes
from bertsmith.compression.distilling.tasks.teacher import TaskTeacher
from bertsmith.errors import InputError
from bertsmith.files import make_folder, read_json, write_json
from bertsmith.model.config import BertConfig
from bertsmith.reporting import formatting

_SHARES = (2 / 3, 1 / 2, 1 / 3)  # of the layers, above the last few
_LAST = (3, 2, 1)


STATIC = "static"
FILE = "tried.json"
_AS_LITTLE = 1.05  # times the least work: a text of other pieces may turn it round
_SETTINGS, _VOCABULARY = "settings.json", "vocabulary.json"


@dataclass(frozen=True)
class ShrinkCandidate:
    """`name` as tables show it, `slug` as its folder is called. `layers` is 0 for a static
    table; `width` and the neurons of `feed_forward` parts None for the teacher's.
    """

    name: str
    slug: str
    layers: int
    width: int | None = None
    feed_forward: int | None = None


def ladder(config: BertConfig, *, static: bool = False) -> list[ShrinkCandidate]:
    """The quickest to train first. `static`: the task can be answered from a static table."""

    def counted(layers: int) -> str:
        return f"{layers} layer{'' if layers == 1 else 's'}"

    def products(candidate: ShrinkCandidate) -> int:
        """How many multiplications a token costs, in products of attention and of feed-forward parts."""
        width = candidate.width or config.hidden_size
        neurons = candidate.feed_forward or config.intermediate_size * width // config.hidden_size
        gates = 2 if config.feed_forward == "gated" else 1
        return candidate.layers * width * (4 * width + (gates + 1) * neurons)

    whole = config.num_hidden_layers
    counts = sorted({round(share * whole) for share in _SHARES} | set(_LAST))
    found = [
        ShrinkCandidate(counted(count), f"layers-{count}", count) for count in counts if 1 <= count < whole
    ]
    if config.num_attention_heads % 2 == 0:  # half of the heads, of their size
        layers, narrow = max(whole // 2, 1), config.head_size * config.num_attention_heads // 2
        slug = f"layers-{layers}-width-{narrow}"
        found.append(ShrinkCandidate(f"{counted(layers)} of {narrow}", slug, layers, narrow))
    if whole > 2:
        layers, neurons = round(whole / 3), config.intermediate_size // 3
        name = f"{counted(layers)}, a third of the feed-forward"
        found.append(ShrinkCandidate(name, f"layers-{layers}-feed-forward-{neurons}", layers, None, neurons))
    found.sort(key=lambda each: (products(each), each.layers))
    return [ShrinkCandidate("static table", STATIC, 0), *found] if static else found


@dataclass(frozen=True)
class CandidateResult:
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
    def read(cls, folder: Path) -> "CandidateResult | None":
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

    def sentence(self, whole: "CandidateResult", metric: str) -> str:
        """How good and how fast it is beside the whole model."""
        if not whole.score:
            return f"{self.name}: {metric} {self.score:.4f}."
        return (
            f"{self.name}: {metric} {self.score:.4f}, {formatting.percent(self.score / whole.score)} of the "
            f"model's, in {formatting.percent(self.share_alone)} of its time."
        )


@dataclass(frozen=True)
class SkippedCandidate:
    """A candidate that would have taken `seconds`, more than there was left of the time."""

    name: str
    seconds: float
    left: float

    def sentence(self) -> str:
        """Why it was left out."""
        return (
            f"{self.name}: left out, it would take about {formatting.duration(self.seconds)}, and "
            f"{formatting.duration(self.left)} of the time are left"
        )


@dataclass(frozen=True)
class ReportedScores:
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
class ShrinkResults:
    """`whole` is the model itself; `tried` are the others, smallest first; `chosen` is one of all, and
    `on_test` what it is worth where there are test rows.
    """

    metric: str
    keep: float
    whole: CandidateResult
    tried: tuple[CandidateResult, ...]
    chosen: CandidateResult
    left_out: tuple[SkippedCandidate, ...]
    warnings: tuple[str, ...]
    on_test: ReportedScores | None = None

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


def choose(whole: CandidateResult, tried: Sequence[CandidateResult], keep: float) -> CandidateResult:
    """Of those whose score is at least `keep` of the whole model's, that whose work is least, of such as
    compute as little but for a twentieth the one with fewest parameters; the model itself where there is
    none. Work is counted: a busy machine, or another one, chooses the same.
    """
    good = [whole, *(each for each in tried if each.score >= keep * whole.score)]
    least = min(each.work for each in good)
    as_little = [each for each in good if each.work <= _AS_LITTLE * least]
    return min(as_little, key=lambda each: (each.parameters, each.work))


def doubts(
    shrunk_from: CandidateResult,
    tried: Sequence[CandidateResult],
    chosen: CandidateResult,
    keep: float,
    metric: str,
) -> list[str]:
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


def asked_for(
    whole: TaskTeacher, recipe: DistilRecipe, overrides: Sequence[str], values: Mapping[str, Any], prune: bool
) -> dict[str, Any]:
    """What the candidates follow from."""
    return {
        "model": whole.sha256,
        "files": data_hashes(recipe),
        "settings": sorted(overrides),
        "values": {name: value for name, value in sorted(values.items()) if value is not None},
        "prune": prune,
    }


def begin_search(out: Path, asked: dict[str, Any]) -> None:
    """Raises InputError where the folder holds a search with other settings, or something else."""
    path = out / _SETTINGS
    if path.exists():
        begun = read_json(path)
        differ = [name for name, value in asked.items() if begun.get(name) != value]
        if differ:
            raise InputError(
                f"{out} was begun with another {', '.join(differ)}. Resume with the same, or choose another "
                "folder."
            )
        return
    if out.exists() and not all(each.name.startswith(f".{_SETTINGS}") for each in out.iterdir()):
        raise InputError(f"{out} holds something else than a search of this kind. Choose another folder.")
    make_folder(out)
    write_json(path, asked)


def decided_once(out: Path, pruned: bool) -> bool:
    """Whether candidates have the pruned vocabulary. A search that goes on keeps what was decided, though
    another share of the score be asked for now: half-trained candidates began with it.
    """
    path = out / _VOCABULARY
    if not path.exists():
        write_json(path, {"pruned": pruned})
    return bool(read_json(path)["pruned"])
