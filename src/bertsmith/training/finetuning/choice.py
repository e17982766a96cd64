"""The method chosen for few rows and all that were tried, as a run keeps them:

out/choice.json         what was tried, and what it reached
out/choice.safetensors  what the chosen method said of the rows it was judged by
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save

from bertsmith.arrays import Ints
from bertsmith.errors import InputError
from bertsmith.files import atomic_write, read_json, write_json
from bertsmith.reporting import formatting
from bertsmith.tasks.task import Bound, Outputs

_FOLD = "fold"  # in choice.safetensors, of what is a fold's and not a row's


@dataclass(frozen=True)
class Tried:
    """A method's score on the rows it was judged by, and by how much it beats the simplest one there, with
    the standard error of this difference. Without a score it `diverged` in the fold of this number, or wasn't
    tried: it takes more work than was allowed. `seconds` are then those that it would take by all folds, and
    `minutes` the setting that allows it.
    """

    method: str
    score: float | None = None
    gain: float | None = None
    error: float | None = None
    rows: int = 0
    seconds: float = 0.0
    diverged: int | None = None
    minutes: int | None = None


@dataclass(frozen=True)
class Choice:
    """The method chosen, all that were tried, and what the chosen one said of `rows` (E,) when it hadn't
    learned from them; `bound` is what decoding needs of the model that judged a fold.
    """

    method: str
    tried: tuple[Tried, ...]
    rows: Ints
    outputs: list[Outputs]
    bound: Mapping[int, Bound] = field(default_factory=dict)

    def simplest(self) -> float | None:
        """What the first method reached on the rows that the chosen one was judged by."""
        chosen = next(each for each in self.tried if each.method == self.method)
        return None if chosen.score is None or chosen.gain is None else chosen.score - chosen.gain


def write_choice(out: Path, choice: Choice) -> None:
    """So that a run that is resumed needn't choose again."""
    arrays = {str(row): each for row, each in zip(choice.rows.tolist(), choice.outputs, strict=True)}
    for fold, bound in choice.bound.items():
        arrays |= {f"{_FOLD}.{fold}.{name}": weights for name, weights in bound.items()}
    atomic_write(out / "choice.safetensors", save(arrays))
    write_json(
        out / "choice.json", {"method": choice.method, "tried": [asdict(each) for each in choice.tried]}
    )


def read_choice(out: Path) -> Choice | None:
    """None where none was made. Raises InputError for a damaged file."""
    if not (out / "choice.json").exists():
        return None
    record = read_json(out / "choice.json")
    arrays = out / "choice.safetensors"
    try:
        found = load_file(arrays)
    except (OSError, SafetensorError) as error:
        raise InputError(
            f"{arrays}: expected what the chosen method said of the rows, beside choice.json; it is not "
            f"there, or damaged ({error}). Begin again in another folder."
        ) from error
    outputs: dict[int, Outputs] = {}
    bound: dict[int, dict[str, Outputs]] = {}
    for key, each in found.items():
        if key.startswith(_FOLD):
            _, fold, name = key.split(".", 2)
            bound.setdefault(int(fold), {})[name] = each
        else:
            outputs[int(key)] = each
    rows = np.array(sorted(outputs), np.int64)
    tried = tuple(Tried(**each) for each in record["tried"])
    return Choice(record["method"], tried, rows, [outputs[row] for row in rows.tolist()], bound)


def not_tried(tried: Tried) -> str:
    """'not tried: it would take about 1:40; minutes=7 allows it'."""
    takes = f"it would take about {formatting.duration(tried.seconds)}; " if tried.seconds else ""
    return f"not tried: {takes}minutes={tried.minutes} allows it"


def as_sentence(tried: Tried, metric: str) -> str:
    """'contrastive: accuracy 0.8410 (+0.0073 ± 0.0081) on 496 rows, 41 s'."""
    if tried.diverged is not None:
        return f"{tried.method}: diverged in fold {tried.diverged} and left out; try a lower learning rate"
    if tried.score is None:
        return f"{tried.method}: {not_tried(tried)}"
    gain = "" if tried.gain is None else f" ({tried.gain:+.4f} ± {tried.error:.4f})"
    return f"{tried.method}: {metric} {tried.score:.4f}{gain} on {tried.rows:,} rows, {tried.seconds:.0f} s"
