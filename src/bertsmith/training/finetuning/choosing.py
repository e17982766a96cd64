"""Which method suits these few rows? Each is tried by cross-validation: learned from all folds but one, and
judged by the one left out, in turn. The final model then learns from all rows.

out/choice.json         what was tried, and what it reached
out/choice.safetensors  what the chosen method said of the rows it was judged by
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from safetensors.numpy import load_file, save

from bertsmith.arrays import Ints
from bertsmith.files import atomic_write, read_json, write_json
from bertsmith.tasks.evaluation import Evaluation
from bertsmith.tasks.finetuning import EncodedExamples
from bertsmith.tasks.task import Metrics, Outputs, Prediction, Task
from bertsmith.tasks.task_model import TaskModel, outputs_of

TrainPart = Callable[[str, EncodedExamples], TaskModel]  # by a method, from some of the rows
_FEWEST_FOLDS = 2  # that a method must be judged by to be chosen
_RESAMPLES = 200
_STEP = 3  # times what a forward pass takes


@dataclass(frozen=True)
class Tried:
    """A method's score on the rows it was judged by, and by how much it beats the simplest one there, with
    the standard error of this difference. Without a score it wasn't tried: time was up.
    """

    method: str
    score: float | None = None
    gain: float | None = None
    error: float | None = None
    rows: int = 0
    seconds: float = 0.0


class Judged(NamedTuple):
    """What a method says of each row when it hasn't learned from it, the seconds that took, and those of one
    pass over all rows.
    """

    outputs: list[Outputs]
    seconds: float
    pass_seconds: float


@dataclass(frozen=True)
class Choice:
    """The method chosen, all that were tried, and what the chosen one said of `rows` (E,) when it hadn't
    learned from them.
    """

    method: str
    tried: tuple[Tried, ...]
    rows: Ints
    outputs: list[Outputs]

    def simplest(self) -> float | None:
        """What the first method reached on the rows that the chosen one was judged by."""
        chosen = next(each for each in self.tried if each.method == self.method)
        return None if chosen.score is None or chosen.gain is None else chosen.score - chosen.gain


def choose(
    task: Task[Any],
    methods: Mapping[str, float],
    train: EncodedExamples,
    folds: Ints,
    train_part: TrainPart,
    seconds: float,
    on_tried: Callable[[Tried], None] = lambda tried: None,
    judged: Mapping[str, Judged] = MappingProxyType({}),
) -> Choice:
    """Tries the methods, each with the epochs it trains, the simplest first, until the time is up.

    The first is always tried. The one chosen gains most over the first, on the folds that both were
    judged by. `on_tried` hears of each that is over. `judged` has those that needn't be tried any more.
    """
    begun = time.monotonic()
    found: dict[str, dict[int, Outputs]] = {}
    tried: list[Tried] = []
    simplest, forward, forward_rows = next(iter(methods)), 0.0, 0
    numbers = sorted(set(folds.tolist()))
    for place, (method, epochs) in enumerate(methods.items()):
        started, outputs = time.monotonic(), dict[int, Outputs]()
        if method in judged:
            known = judged[method]
            outputs = dict(enumerate(known.outputs))
            started -= known.seconds
            forward, forward_rows = forward + known.pass_seconds, forward_rows + len(train)
        learned = len(train) * (1 - 1 / len(numbers))
        expected = _STEP * epochs * learned * forward / max(forward_rows, 1)
        for done, fold in enumerate(numbers if method not in judged else ()):
            now = time.monotonic()
            left = seconds - (now - begun)
            a_fold = (now - started) / done if done else expected
            folds_needed = max(_FEWEST_FOLDS - done, 1)
            needed = place == 0 and done < _FEWEST_FOLDS
            if not needed and (left <= 0 or a_fold * folds_needed > left):
                break
            held = np.flatnonzero(folds == fold)
            model = train_part(method, train.some(np.flatnonzero(folds != fold)))
            now = time.monotonic()
            outputs |= zip(held.tolist(), outputs_of(model, train.some(held).encoded), strict=True)
            forward, forward_rows = forward + time.monotonic() - now, forward_rows + len(held)
        folds_judged = len({int(folds[row]) for row in outputs})
        took = time.monotonic() - started
        if folds_judged < min(_FEWEST_FOLDS, len(numbers)):
            tried.append(Tried(method, seconds=took))
        else:
            found[method] = outputs
            tried.append(_compared(task, method, outputs, found[simplest], train, took))
        on_tried(tried[-1])
    method = _best(tried)
    rows = np.array(sorted(found[method]), np.int64)
    return Choice(method, tuple(tried), rows, [found[method][row] for row in rows.tolist()])


def evaluate_choice(task: Task[Any], choice: Choice, train: EncodedExamples, folds: Ints) -> Evaluation:
    """The chosen method's figures on the rows it was judged by, beside the task's baselines, which learn
    from the same folds.
    """
    judged = train.some(choice.rows)
    predictions = task.decode(choice.outputs, judged.examples, judged.encoded)
    guessed: dict[str, dict[int, Prediction]] = {}
    for fold in sorted(set(folds[choice.rows].tolist())):
        held = np.flatnonzero(folds == fold).tolist()
        learned = [train.examples[row] for row in np.flatnonzero(folds != fold).tolist()]
        for name, guesses in task.baselines(learned, [train.examples[row] for row in held]).items():
            guessed.setdefault(name, {}).update(zip(held, guesses, strict=True))
    baselines = {
        name: task.metrics([found[row] for row in choice.rows.tolist()], judged.examples)
        for name, found in guessed.items()
        if len(found) == len(judged)
    }
    return Evaluation(task.metrics(predictions, judged.examples), baselines, predictions, judged)


def write_choice(out: Path, choice: Choice) -> None:
    """So that a run that is resumed needn't choose again."""
    arrays = {str(row): each for row, each in zip(choice.rows.tolist(), choice.outputs, strict=True)}
    atomic_write(out / "choice.safetensors", save(arrays))
    write_json(
        out / "choice.json", {"method": choice.method, "tried": [asdict(each) for each in choice.tried]}
    )


def read_choice(out: Path) -> Choice | None:
    """None where none was made. Raises InputError for a damaged file."""
    if not (out / "choice.json").exists():
        return None
    record = read_json(out / "choice.json")
    outputs = {int(row): each for row, each in load_file(out / "choice.safetensors").items()}
    rows = np.array(sorted(outputs), np.int64)
    tried = tuple(Tried(**each) for each in record["tried"])
    return Choice(record["method"], tried, rows, [outputs[row] for row in rows.tolist()])


def as_sentence(tried: Tried, metric: str) -> str:
    """'contrastive: accuracy 0.8410 (+0.0073 ± 0.0081) on 496 rows, 41 s'."""
    if tried.score is None:
        return f"{tried.method}: not tried, for want of time; minutes=10 gives more"
    gain = "" if tried.gain is None else f" ({tried.gain:+.4f} ± {tried.error:.4f})"
    return f"{tried.method}: {metric} {tried.score:.4f}{gain} on {tried.rows:,} rows, {tried.seconds:.0f} s"


def _best(tried: Sequence[Tried]) -> str:
    """The one that gains most over the first, which stays where none does."""
    return max(tried, key=lambda each: each.gain or 0.0).method


def _compared(
    task: Task[Any],
    method: str,
    outputs: dict[int, Outputs],
    simplest: dict[int, Outputs],
    train: EncodedExamples,
    seconds: float,
) -> Tried:
    rows = np.array(sorted(outputs), np.int64)
    judged = train.some(rows)

    def predictions(of: dict[int, Outputs]) -> list[Prediction]:
        return task.decode([of[row] for row in rows.tolist()], judged.examples, judged.encoded)

    ours = predictions(outputs)
    if outputs is simplest:
        return Tried(method, score_of(task, ours, judged.examples), rows=len(rows), seconds=seconds)
    reached, gain, error = gain_of(task, ours, predictions(simplest), judged.examples)
    return Tried(method, reached, gain, error, len(rows), seconds)


def gain_of(
    task: Task[Any], ours: Sequence[Prediction], theirs: Sequence[Prediction], examples: Sequence[Any]
) -> tuple[float, float, float]:
    """Our main metric, by how much it is above theirs, and the standard error of that, by the bootstrap over
    the examples.
    """
    draw = np.random.default_rng(0)
    differences = []
    for _ in range(_RESAMPLES):
        places = draw.integers(0, len(examples), len(examples)).tolist()
        drawn = [examples[place] for place in places]
        pair = [score_of(task, [of[place] for place in places], drawn) for of in (ours, theirs)]
        differences.append(pair[0] - pair[1])
    reached = score_of(task, ours, examples)
    return reached, reached - score_of(task, theirs, examples), float(np.std(differences))


def score_of(task: Task[Any], predictions: Sequence[Prediction], examples: Sequence[Any]) -> float:
    """The main metric; -1 where it is no number."""
    metrics: Metrics = task.metrics(predictions, examples)
    value = metrics[task.main_metric]
    return value if math.isfinite(value) else -1.0
