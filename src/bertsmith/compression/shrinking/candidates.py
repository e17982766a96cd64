"""The candidates of a search for a smaller model (a static table, fewer or narrower layers), their results,
the choice among them, and the folder of the search, which is begun or resumed with the same settings.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from bertsmith.compression.distilling.recipes import DistilRecipe
from bertsmith.compression.distilling.tasks.data import hash_data_files
from bertsmith.compression.distilling.tasks.teacher import TaskTeacher
from bertsmith.errors import InputError
from bertsmith.files import make_folder, read_json, write_json
from bertsmith.model.config import BertConfig
from bertsmith.reporting import formatting

_LAYER_SHARES = (2 / 3, 1 / 2, 1 / 3)
_FEWEST_LAYERS = (3, 2, 1)

STATIC = "static"
FILE = "tried.json"
_EQUAL_WORK = 1.05  # times the least work counts as equal: other texts may reverse so small a difference
_SETTINGS_FILE, _VOCABULARY_FILE = "settings.json", "vocabulary.json"


@dataclass(frozen=True)
class ShrinkCandidate:
    """A smaller model to try: its `name` in tables and its folder's `slug`. `layers` is 0 for a static table;
    `width` and `feed_forward` (neurons) are None where they are the teacher's.
    """

    name: str
    slug: str
    layers: int
    width: int | None = None
    feed_forward: int | None = None


def list_candidates(config: BertConfig, *, static: bool = False) -> list[ShrinkCandidate]:
    """The candidates for a model of this shape, the quickest to train first. `static`: whether a static table
    can do the task.
    """

    def format_layers(layers: int) -> str:
        return f"{layers} layer{'' if layers == 1 else 's'}"

    def multiplications(candidate: ShrinkCandidate) -> int:
        """Multiplications a token, in the linear layers of attention and feed-forward parts."""
        width = candidate.width or config.hidden_size
        neurons = candidate.feed_forward or config.intermediate_size * width // config.hidden_size
        gates = 2 if config.feed_forward == "gated" else 1
        return candidate.layers * width * (4 * width + (gates + 1) * neurons)

    all_layers = config.num_hidden_layers
    counts = sorted({round(share * all_layers) for share in _LAYER_SHARES} | set(_FEWEST_LAYERS))
    candidates = [
        ShrinkCandidate(format_layers(count), f"layers-{count}", count)
        for count in counts
        if 1 <= count < all_layers
    ]
    if config.num_attention_heads % 2 == 0:  # half of the heads, of the same head size
        layers, width = max(all_layers // 2, 1), config.head_size * config.num_attention_heads // 2
        slug = f"layers-{layers}-width-{width}"
        candidates.append(ShrinkCandidate(f"{format_layers(layers)} of {width}", slug, layers, width))
    if all_layers > 2:
        layers, neurons = round(all_layers / 3), config.intermediate_size // 3
        name = f"{format_layers(layers)}, a third of the feed-forward"
        slug = f"layers-{layers}-feed-forward-{neurons}"
        candidates.append(ShrinkCandidate(name, slug, layers, None, neurons))
    candidates.sort(key=lambda candidate: (multiplications(candidate), candidate.layers))
    return [ShrinkCandidate("static table", STATIC, 0), *candidates] if static else candidates


@dataclass(frozen=True)
class CandidateResult:
    """What became of a candidate.

    `score` is the main metric on dev, `error` its standard error. `work` is what the encoder computes for
    dev, in FLOP. `milliseconds` are the measured times of a text among many and of one alone, `share` and
    `share_alone` the same as shares of the teacher's; nothing is chosen by them. `seconds` is what the
    candidate took to make, over all parts of an interrupted run, and `predicted` the seconds that asking the
    model took and training was expected to take.
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
        """Writes the file by which a candidate counts as finished: call it last."""
        write_json(folder / FILE, asdict(self))

    @classmethod
    def read(cls, folder: Path) -> "CandidateResult | None":
        """A finished candidate's result. None where it isn't finished, or where an older version wrote other
        fields.
        """
        path = folder / FILE
        values = read_json(path) if path.exists() else {}
        return cls(**values) if values.keys() == {field.name for field in fields(cls)} else None

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % interval of the score. The upper end of a metric up to 1 is at most 1."""
        spread = 1.96 * (self.error or 0.0)
        high = self.score + spread
        return self.score - spread, min(high, 1.0) if self.score <= 1 else high

    def sentence(self, whole: "CandidateResult", metric: str) -> str:
        """One line for the screen: its score and its time beside the whole model's."""
        if not whole.score:
            return f"{self.name}: {metric} {self.score:.4f}."
        return (
            f"{self.name}: {metric} {self.score:.4f}, {formatting.percent(self.score / whole.score)} of the "
            f"model's, in {formatting.percent(self.share_alone)} of its time."
        )


@dataclass(frozen=True)
class SkippedCandidate:
    """A candidate that wasn't trained: it would have taken `seconds`, and only `left` seconds remained."""

    name: str
    seconds: float
    left: float

    def sentence(self) -> str:
        """One line for the screen and the report: how long it would have taken, and how much time
        was left.
        """
        return (
            f"{self.name}: left out, it would take about {formatting.duration(self.seconds)}, and "
            f"{formatting.duration(self.left)} of the time are left"
        )


@dataclass(frozen=True)
class ReportedScores:
    """The main metric and its standard error on the test rows, by which nothing was chosen: the whole model's
    and the chosen one's.
    """

    rows: int
    whole: float
    whole_error: float | None
    chosen: float
    chosen_error: float | None

    def sentence(self, metric: str) -> str:
        """One line for screen and report: both scores with their 95 % intervals."""
        own, chosen = (
            f"{score:.4f}" if error is None else f"{score:.4f} ± {1.96 * error:.4f}"
            for score, error in ((self.whole, self.whole_error), (self.chosen, self.chosen_error))
        )
        share = f", {self.chosen / self.whole:.1%} of it" if self.whole else ""
        return (
            f"On {self.rows:,} rows of test the model itself has {metric} {own}, the chosen {chosen}{share}."
        )


@dataclass(frozen=True)
class ShrinkResults:
    """Every figure of a search. `whole` is the model that was shrunk, `tried` the smaller ones in the order
    in which they were made, `chosen` one of all these; `on_test` is None without test rows.
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
        """The lowest score that is good enough."""
        return self.keep * self.whole.score

    def record(self) -> dict[str, Any]:
        """The content of results.json: plain values, scores as shares of 1."""
        return {
            "metric": self.metric,
            "keep": self.keep,
            "wanted": self.wanted,
            "whole": asdict(self.whole),
            "tried": [asdict(result) for result in self.tried],
            "chosen": self.chosen.slug,
            "test": None if self.on_test is None else asdict(self.on_test),
            "left_out": [asdict(candidate) for candidate in self.left_out],
            "warnings": list(self.warnings),
        }


def choose(whole: CandidateResult, tried: Sequence[CandidateResult], keep: float) -> CandidateResult:
    """The model of least work among those that keep the share `keep` of the whole model's score; of models
    whose work is within a twentieth of the least, the one with the fewest parameters. The whole model where
    no smaller one is good enough. Work is counted, not measured: a busy machine chooses the same.
    """
    good = [whole, *(result for result in tried if result.score >= keep * whole.score)]
    least_work = min(result.work for result in good)
    equal = [result for result in good if result.work <= _EQUAL_WORK * least_work]
    return min(equal, key=lambda result: (result.parameters, result.work))


def find_doubts(
    whole: CandidateResult,
    tried: Sequence[CandidateResult],
    chosen: CandidateResult,
    keep: float,
    metric: str,
) -> list[str]:
    """Sentences on why the choice may be doubted, with what to do; empty when nothing speaks against it."""
    sentences = []
    lowest = keep * whole.score
    good = [result for result in tried if result.score >= lowest]
    if chosen.slug == whole.slug and good:
        smallest = min(good, key=lambda result: result.parameters)
        sentences.append(
            f"no faster model keeps {keep:.0%} of the {metric}. Smaller ones do: {smallest.name}, "
            f"{smallest.parameters / 1e6:.1f} M parameters, lies in candidates/{smallest.slug}/model"
        )
    elif chosen.slug == whole.slug:
        sentences.append(
            f"no smaller model keeps {keep:.0%} of the {metric}: give more texts with --texts, more epochs, "
            "or ask for less with --keep"
        )
    elif chosen.interval[0] < lowest:
        sentences.append(
            f"{chosen.name} has {metric} {chosen.score:.4f} on dev, but on other rows it may have as little "
            f"as {chosen.interval[0]:.4f}, less than the {lowest:.4f} asked for: more dev rows would tell"
        )
    return sentences


def collect_search_settings(
    whole: TaskTeacher, recipe: DistilRecipe, overrides: Sequence[str], values: Mapping[str, Any], prune: bool
) -> dict[str, Any]:
    """All that decides how the candidates come out: a search is resumed only with the same."""
    return {
        "model": whole.sha256,
        "files": hash_data_files(recipe),
        "settings": sorted(overrides),
        "values": {name: value for name, value in sorted(values.items()) if value is not None},
        "prune": prune,
    }


def begin_search(out: Path, settings: dict[str, Any]) -> None:
    """Makes the folder of a search, or checks that it was begun with the same settings.

    Raises InputError where the folder holds a search with other settings, or something else.
    """
    path = out / _SETTINGS_FILE
    if path.exists():
        stored = read_json(path)
        differ = [name for name, value in settings.items() if stored.get(name) != value]
        if differ:
            raise InputError(
                f"{out} was begun with another {', '.join(differ)}. Resume with the same, or choose another "
                "folder."
            )
        return
    if out.exists() and not all(entry.name.startswith(f".{_SETTINGS_FILE}") for entry in out.iterdir()):
        raise InputError(f"{out} holds something else than a search of this kind. Choose another folder.")
    make_folder(out)
    write_json(path, settings)


def settle_pruning(out: Path, prune: bool) -> bool:
    """Whether candidates have the pruned vocabulary. The first decision is written down and stays, even where
    a resumed search asks for another share of the score: half-trained candidates began with it.
    """
    path = out / _VOCABULARY_FILE
    if not path.exists():
        write_json(path, {"pruned": prune})
    return bool(read_json(path)["pruned"])
