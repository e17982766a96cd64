"""Which method suits these few rows? Each is tried by cross-validation: learned from all folds but one, and
judged by the one left out, in turn. The final model then learns from all rows.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from bertsmith.arrays import Ints
from bertsmith.errors import BertsmithError, NotFinite, TrainingStopped
from bertsmith.tasks.computing.task_model import TaskModel, outputs_of
from bertsmith.tasks.evaluating.evaluation import Evaluation
from bertsmith.tasks.evaluating.uncertainty import groups_of
from bertsmith.tasks.finetuning import EncodedExamples
from bertsmith.tasks.task import Bound, Metrics, Outputs, Prediction, Task
from bertsmith.training.finetuning.choice import Choice, Tried
from bertsmith.training.finetuning.methods import UNTRAINED
from bertsmith.training.finetuning.work import Work

TrainPart = Callable[[str, EncodedExamples], TaskModel]  # by a method, from some of the rows
_FEWEST_FOLDS = 2  # that the simplest method is judged by, whatever it takes
_USUAL_GAIN, _USUAL_SPREAD = 0.01, 0.03  # of other methods over the simplest
_RESAMPLES = 200


class Judged(NamedTuple):
    """What a method says of each row when it hasn't learned from it, and the seconds that took."""

    outputs: list[Outputs]
    seconds: float


def choose(
    task: Task[Any],
    work: Work,
    train: EncodedExamples,
    folds: Ints,
    train_part: TrainPart,
    on_fold: Callable[[str, int], None] = lambda method, number: None,
    judged: Mapping[str, Judged] = MappingProxyType({}),
) -> Choice:
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
    method = max(tried, key=expected_gain).method
    found = race.outputs[method]
    rows = np.array(sorted(found), np.int64)
    return Choice(method, tuple(tried), rows, [found[row] for row in rows.tolist()], race.bound[method])


class _Race:
    """Methods beside each other, fold by fold."""

    def __init__(
        self,
        task: Task[Any],
        work: Work,
        train: EncodedExamples,
        folds: Ints,
        train_part: TrainPart,
        judged: Mapping[str, Judged],
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
        self._standing: dict[str, Tried] = {}  # since its last fold: a bootstrap takes its time

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
            running = [each for each in running if each not in self._diverged and not self._hopeless(each)]
            running.sort(key=lambda each: -expected_gain(self.tried(each)))

    def tried(self, method: str) -> Tried:
        """How it stands."""
        if not self.outputs[method]:
            return Tried(method, seconds=self._seconds[method], diverged=self._diverged.get(method))
        if method not in self._standing:
            outputs = self.outputs[method], self.outputs[self._first]
            bound = self.bound[method], self.bound[self._first]
            given = self._task, method, *outputs, *bound, self._train, self._folds
            self._standing[method] = _compared(*given, self._seconds[method])
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

    def _hopeless(self, method: str) -> bool:
        tried = self.tried(method)
        if tried.gain is None or tried.error is None:
            return False
        return tried.gain + 2 * tried.error < 0


def expected_gain(tried: Tried) -> float:
    """Over the simplest method, whose own is 0: the mean of the gain given what was measured, where gains are
    as usual beforehand (normal, both).
    """
    if tried.gain is None or tried.error is None:
        return 0.0 if tried.score is not None else -math.inf
    known, usual = 1 / max(tried.error, 1e-3) ** 2, 1 / _USUAL_SPREAD**2
    return round((known * tried.gain + usual * _USUAL_GAIN) / (known + usual), 3)  # less is nothing


def evaluate_choice(task: Task[Any], choice: Choice, train: EncodedExamples, folds: Ints) -> Evaluation:
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


def _compared(
    task: Task[Any],
    method: str,
    outputs: dict[int, Outputs],
    simplest: dict[int, Outputs],
    bound: Mapping[int, Bound],
    bound_simplest: Mapping[int, Bound],
    train: EncodedExamples,
    folds: Ints,
    seconds: float,
) -> Tried:
    rows = np.array(sorted(outputs), np.int64)
    judged = train.some(rows)

    def predictions(of: dict[int, Outputs], bound: Mapping[int, Bound]) -> list[Prediction]:
        found = [of[row] for row in rows.tolist()]
        return task.decode_by_folds(found, judged.examples, judged.encoded, folds[rows], bound)

    ours = predictions(outputs, bound)
    if outputs is simplest:
        return Tried(method, score_of(task, ours, judged.examples), rows=len(rows), seconds=seconds)
    reached, gain, error = gain_of(task, ours, predictions(simplest, bound_simplest), judged.examples)
    return Tried(method, reached, gain, error, len(rows), seconds)


def gain_of(
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
        pair = [_finite(score(rows)) for score in scorers]
        differences.append(pair[0] - pair[1])
    reached = score_of(task, ours, examples)
    return reached, reached - score_of(task, theirs, examples), float(np.std(differences))


def score_of(task: Task[Any], predictions: Sequence[Prediction], examples: Sequence[Any]) -> float:
    """The main metric; -1 where it is no number."""
    metrics: Metrics = task.metrics(predictions, examples)
    return _finite(metrics[task.main_metric])


def _finite(score: float) -> float:
    return score if math.isfinite(score) else -1.0
