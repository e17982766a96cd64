"""Which method suits these few rows? Each is tried by cross-validation: learned from all folds but one, and
judged by the one left out, in turn. The final model then learns from all rows.

out/choice.json         what was tried, and what it reached
out/choice.safetensors  what the chosen method said of the rows it was judged by
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save

from bertsmith.arrays import Ints
from bertsmith.errors import BertsmithError, InputError, NotFinite, TrainingStopped
from bertsmith.files import atomic_write, make_folder, read_json, write_json
from bertsmith.reporting import formatting
from bertsmith.tasks.evaluating.evaluation import Evaluation, groups_of
from bertsmith.tasks.finetuning import EncodedExamples
from bertsmith.tasks.task import Bound, Metrics, Outputs, Prediction, Task
from bertsmith.tasks.task_model import TaskModel, outputs_of
from bertsmith.training.finetune_recipe import FinetuneRecipe
from bertsmith.training.finetuning.finetune_session import FinetuneSession
from bertsmith.training.finetuning.methods import LINEAR, SELF_TRAINING, UNTRAINED

_FOLD = "fold"  # in choice.safetensors, of what is a fold's and not a row's
TrainPart = Callable[[str, EncodedExamples], TaskModel]  # by a method, from some of the rows
_FEWEST_FOLDS = 2  # that the simplest method is judged by, whatever it takes
_USUAL_GAIN, _USUAL_SPREAD = 0.01, 0.03  # of other methods over the simplest
_RESAMPLES = 200


@dataclass(frozen=True)
class MethodScore:
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

    @property
    def is_hopeless(self) -> bool:
        """Whether it is clearly worse than the simplest."""
        return self.gain is not None and self.error is not None and self.gain + 2 * self.error < 0


@dataclass(frozen=True)
class MethodChoice:
    """The method chosen, all that were tried, and what the chosen one said of `rows` (E,) when it hadn't
    learned from them; `bound` is what decoding needs of the model that judged a fold.
    """

    method: str
    tried: tuple[MethodScore, ...]
    rows: Ints
    outputs: list[Outputs]
    bound: Mapping[int, Bound] = field(default_factory=dict)

    def simplest(self) -> float | None:
        """What the first method reached on the rows that the chosen one was judged by."""
        chosen = next(each for each in self.tried if each.method == self.method)
        return None if chosen.score is None or chosen.gain is None else chosen.score - chosen.gain


@dataclass(frozen=True)
class MethodWork:
    """What methods take, in FLOP: `folds` what each learns by from all folds but one, fold by fold, and
    `final` from all rows. Methods are compared until `budget` is used but for the final training of the next;
    until `look`, where it would be a method's first fold.
    """

    folds: Mapping[str, Sequence[float]]
    final: Mapping[str, float]
    budget: float
    look: float

    @property
    def methods(self) -> list[str]:
        """In their order, the simplest first."""
        return list(self.folds)

    def whole(self, method: str) -> float:
        """Of all folds and the final training."""
        return sum(self.folds[method]) + self.final[method]

    def of_all(self) -> float:
        """What is enough to judge all methods by all folds, and to train by any."""
        return sum(map(sum, self.folds.values())) + max(self.final.values())

    def fits(self, method: str, number: int, used: float) -> bool:
        """Whether this fold of the method, and its final training, are within what is left."""
        limit = self.budget if number else self.look
        return used + self.folds[method][number] + self.final[method] <= limit

    def out_of_reach(self) -> list[str]:
        """Methods that won't be tried: known beforehand, for each has its first fold in the first round."""
        used, found = 0.0, list[str]()
        for number, method in enumerate(self.methods):
            if number and not self.fits(method, 0, used):
                found.append(method)
            else:
                used += self.folds[method][0]
        return found


class HeldOutOutputs(NamedTuple):
    """What a method says of each row when it hasn't learned from it, and the seconds that took."""

    outputs: list[Outputs]
    seconds: float


def race_methods(
    task: Task[Any],
    work: MethodWork,
    train: EncodedExamples,
    folds: Ints,
    train_part: TrainPart,
    on_fold: Callable[[str, int], None] = lambda method, number: None,
    judged: Mapping[str, HeldOutOutputs] = MappingProxyType({}),
) -> MethodChoice:
    """Judges the methods, the simplest first, fold after fold, as long as `work` allows.

    In a round each is judged by one more fold, the most promising first; one that is clearly worse than the
    simplest is given up. The simplest is always judged by two folds, or `judged` has what it says of all.
    `on_fold` hears which method begins its fold of this number. A method that diverges is left out; raises
    TrainingStopped where it is the first, beside which the others are judged. No clock decides: the same rows
    and settings choose the same, however busy the machine is.
    The one chosen has the largest expected gain over the simplest: what was measured, shrunk towards what is
    usual by how uncertain it is, so that chance on a few rows doesn't decide.
    """
    race = _Race(task, work, train, folds, train_part, judged, on_fold)
    race.run()
    tried = [race.tried(method) for method in work.methods]
    method = max(tried, key=estimate_gain).method
    found = race.outputs[method]
    rows = np.array(sorted(found), np.int64)
    return MethodChoice(method, tuple(tried), rows, [found[row] for row in rows.tolist()], race.bound[method])


def choose_method(
    session: FinetuneSession,
    recipe: FinetuneRecipe,
    work: MethodWork,
    on_fold: Callable[[str, int], None] = lambda method, number: None,
) -> MethodChoice:
    """The same for the rows of a session that judge in turn; the recipe may name the method, and it is only
    measured.
    """
    assert session.folds is not None

    def train_part(method: str, rows: EncodedExamples) -> TaskModel:
        return session.learn(method, recipe, rows)

    judged = _predict_untrained(session, recipe, work.methods) if session.knows_features else {}
    return race_methods(session.task, work, session.train, session.folds, train_part, on_fold, judged)


def _predict_untrained(
    session: FinetuneSession, recipe: FinetuneRecipe, methods: Sequence[str]
) -> dict[str, HeldOutOutputs]:
    """From the features that the start was learned from."""
    assert session.folds is not None
    found, begun = {}, time.monotonic()
    if LINEAR in methods and session.probe is not None and session.linear is not None:
        outputs = session.probe.judge(session.folds, session.linear.strength)
        found[LINEAR] = HeldOutOutputs(outputs, session.linear.seconds + time.monotonic() - begun)
    elif LINEAR in methods:
        outputs = outputs_of(session.start(recipe, recipe.seed), session.train.encoded)
        found[LINEAR] = HeldOutOutputs(outputs, time.monotonic() - begun)
    if SELF_TRAINING in methods and session.self_training is not None and session.probe is not None:
        begun = time.monotonic()
        outputs = session.self_training.judge(session.folds)
        found[SELF_TRAINING] = HeldOutOutputs(
            outputs, session.self_training.seconds + time.monotonic() - begun
        )
    return found


class _Race:
    """Methods beside each other, fold by fold."""

    def __init__(
        self,
        task: Task[Any],
        work: MethodWork,
        train: EncodedExamples,
        folds: Ints,
        train_part: TrainPart,
        judged: Mapping[str, HeldOutOutputs],
        on_fold: Callable[[str, int], None],
    ) -> None:
        self._on_fold = on_fold
        self._task, self._work, self._train = task, work, train
        self._folds, self._train_part, self._judged = folds, train_part, judged
        self._numbers, methods = sorted(set(folds.tolist())), work.methods
        self._first = methods[0]
        self.outputs: dict[str, dict[int, Outputs]] = {
            method: dict(enumerate(judged[method].outputs)) if method in judged else {} for method in methods
        }
        self.bound: dict[str, dict[int, Bound]] = {method: {} for method in methods}
        self._seconds = {method: judged[method].seconds if method in judged else 0.0 for method in methods}
        self._used = 0.0  # of the work
        self._diverged: dict[str, int] = {}  # in which of its folds
        self._standing: dict[str, MethodScore] = {}  # since its last fold: a bootstrap takes its time

    def run(self) -> None:
        """Until all folds are judged by, or no more work fits."""
        running = [method for method in self._work.methods if method not in self._judged]
        simplest = self.outputs[self._first]
        for number, fold in enumerate(self._numbers):
            for method in sorted(running, key=lambda each: each != self._first):
                needed = method == self._first and number < _FEWEST_FOLDS
                beside = method == self._first or int(np.flatnonzero(self._folds == fold)[0]) in simplest
                if not beside or not (needed or self._work.fits(method, number, self._used)):
                    running.remove(method)
                    continue
                begun = time.monotonic()
                try:
                    self._judge(method, number, fold)
                except (TrainingStopped, NotFinite) as error:
                    self._give_up(method, number, error)
                self._used += self._work.folds[method][number]
                self._seconds[method] += time.monotonic() - begun
                self._standing.pop(method, None)
            running = [each for each in running if each not in self._diverged]
            standing = {each: self.tried(each) for each in running}
            running = [each for each in running if not standing[each].is_hopeless]
            running.sort(key=lambda each: -estimate_gain(standing[each]))

    def tried(self, method: str) -> MethodScore:
        """How it stands, beside the simplest on the rows that it was judged by itself."""
        if not self.outputs[method]:
            return MethodScore(method, seconds=self._seconds[method], diverged=self._diverged.get(method))
        if method in self._standing:
            return self._standing[method]
        rows, seconds = np.array(sorted(self.outputs[method]), np.int64), self._seconds[method]
        judged, folds = self._train.some(rows), self._folds[rows]

        def predictions(of: str) -> list[Prediction]:
            outputs = [self.outputs[of][row] for row in rows.tolist()]
            return self._task.decode_by_folds(outputs, judged.examples, judged.encoded, folds, self.bound[of])

        ours = predictions(method)
        if method == self._first:
            score = main_score(self._task, ours, judged.examples)
            self._standing[method] = MethodScore(method, score, rows=len(rows), seconds=seconds)
        else:
            found = measure_gain(self._task, ours, predictions(self._first), judged.examples)
            self._standing[method] = MethodScore(method, *found, len(rows), seconds)
        return self._standing[method]

    def _judge(self, method: str, number: int, fold: int) -> None:
        self._on_fold(method, number + 1)
        held = np.flatnonzero(self._folds == fold)
        model = self._train_part(method, self._train.some(np.flatnonzero(self._folds != fold)))
        if bound := self._task.bound_weights():
            self.bound[method][fold] = bound
        encoded = self._train.some(held).encoded
        self.outputs[method] |= zip(held.tolist(), outputs_of(model, encoded), strict=True)

    def _give_up(self, method: str, number: int, error: BertsmithError) -> None:
        """It diverged, and what it said of other folds counts no more."""
        if method in UNTRAINED:  # what was not trained came so
            raise error
        if method == self._first:
            reason, folds = str(error).partition(". ")[0], len(self._numbers)
            raise TrainingStopped(
                f"{method} diverged in fold {number + 1} of {folds} of its cross-validation. {reason}. "
                "To go on, begin again in another folder with a lower optimizer.learning_rate, or by another "
                "method."
            ) from error
        self._diverged[method] = number + 1
        self.outputs[method].clear()
        self.bound[method].clear()


def estimate_gain(tried: MethodScore) -> float:
    """Over the simplest method, whose own is 0: the mean of the gain given what was measured, where gains are
    as usual beforehand (normal, both).
    """
    if tried.gain is None or tried.error is None:
        return 0.0 if tried.score is not None else -math.inf
    known, usual = 1 / max(tried.error, 1e-3) ** 2, 1 / _USUAL_SPREAD**2
    return round((known * tried.gain + usual * _USUAL_GAIN) / (known + usual), 3)  # less is nothing


def measure_gain(
    task: Task[Any], ours: Sequence[Prediction], theirs: Sequence[Prediction], examples: Sequence[Any]
) -> tuple[float, float, float]:
    """Our main metric, by how much it is above theirs, and the standard error of that, by the bootstrap over
    the examples, or over the groups that they belong to.
    """
    draw, groups = np.random.default_rng(0), groups_of(task, examples)
    scorers = [task.scorer(said, examples) for said in (ours, theirs)]
    differences = []
    for _ in range(_RESAMPLES):
        rows = draw.integers(0, len(groups), len(groups))
        if len(groups) < len(examples):
            rows = np.concatenate([groups[number] for number in rows.tolist()])
        pair = [_finite_or_lowest(score(rows)) for score in scorers]
        differences.append(pair[0] - pair[1])
    reached = main_score(task, ours, examples)
    return reached, reached - main_score(task, theirs, examples), float(np.std(differences))


def main_score(task: Task[Any], predictions: Sequence[Prediction], examples: Sequence[Any]) -> float:
    """The main metric; -1 where it is no number."""
    metrics: Metrics = task.metrics(predictions, examples)
    return _finite_or_lowest(metrics[task.main_metric])


def _finite_or_lowest(score: float) -> float:
    return score if math.isfinite(score) else -1.0


def evaluate_choice(task: Task[Any], choice: MethodChoice, train: EncodedExamples, folds: Ints) -> Evaluation:
    """The chosen method's figures on the rows it was judged by, beside the task's baselines, which learn
    from the same folds.
    """
    judged = train.some(choice.rows)
    predictions = task.decode_by_folds(
        choice.outputs, judged.examples, judged.encoded, folds[choice.rows], choice.bound
    )
    guessed: dict[str, dict[int, Prediction]] = {}
    for fold in sorted(set(folds[choice.rows].tolist())):
        held = np.flatnonzero(folds == fold).tolist()
        learned = [train.examples[row] for row in np.flatnonzero(folds != fold).tolist()]
        for name, guesses in task.baselines(learned, [train.examples[row] for row in held]).items():
            guessed.setdefault(name, {}).update(zip(held, guesses, strict=True))
    answers = {
        name: [found[row] for row in choice.rows.tolist()]
        for name, found in guessed.items()
        if len(found) == len(judged)
    }
    if answers:
        first = next(iter(answers))  # the most frequent answer
        if _differ_by_fold_alone(answers[first], folds[choice.rows]):
            answers[first] = task.baselines(judged.examples, judged.examples)[first]
    baselines = {name: task.metrics(given, judged.examples) for name, given in answers.items()}
    return Evaluation(task.metrics(predictions, judged.examples), baselines, predictions, judged)


def _differ_by_fold_alone(answers: list[Prediction], folds: Ints) -> bool:
    """Whether all rows of a fold have one answer, and not all folds the same. Such a baseline is worth what
    one constant is: the most frequent class of the other folds is the one that a fold itself has least of,
    and the mean of the others is low where a fold's own numbers are high.
    """
    different = {(fold, repr(each)) for fold, each in zip(folds.tolist(), answers, strict=True)}
    return len(different) == len(set(folds.tolist())) and len({answer for _, answer in different}) > 1


# -- the choice, as a run keeps it ---------------------------------------------------------------------


def write_choice(out: Path, choice: MethodChoice) -> None:
    """So that a run that is resumed needn't choose again."""
    make_folder(out)
    arrays = {str(row): each for row, each in zip(choice.rows.tolist(), choice.outputs, strict=True)}
    for fold, bound in choice.bound.items():
        arrays |= {f"{_FOLD}.{fold}.{name}": weights for name, weights in bound.items()}
    atomic_write(out / "choice.safetensors", save(arrays))
    write_json(
        out / "choice.json", {"method": choice.method, "tried": [asdict(each) for each in choice.tried]}
    )


def read_choice(out: Path) -> MethodChoice | None:
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
    tried = tuple(MethodScore(**each) for each in record["tried"])
    return MethodChoice(record["method"], tried, rows, [outputs[row] for row in rows.tolist()], bound)


def describe_untried(tried: MethodScore) -> str:
    """'not tried: it would take about 1:40; minutes=7 allows it'."""
    takes = f"it would take about {formatting.duration(tried.seconds)}; " if tried.seconds else ""
    return f"not tried: {takes}minutes={tried.minutes} allows it"


def describe_score(tried: MethodScore, metric: str) -> str:
    """'contrastive: accuracy 0.8410 (+0.0073 ± 0.0081) on 496 rows, 41 s'."""
    if tried.diverged is not None:
        return f"{tried.method}: diverged in fold {tried.diverged} and left out; try a lower learning rate"
    if tried.score is None:
        return f"{tried.method}: {describe_untried(tried)}"
    gain = "" if tried.gain is None else f" ({tried.gain:+.4f} ± {tried.error:.4f})"
    return f"{tried.method}: {metric} {tried.score:.4f}{gain} on {tried.rows:,} rows, {tried.seconds:.0f} s"
