"""Chooses the method that suits a few rows, by cross-validation: each method is trained on all folds but one
and scored on the one left out, in turn. The final model is then trained on all rows.

out/choice.json         the methods, their scores, and the one chosen
out/choice.safetensors  the chosen method's outputs for the rows that it was scored on
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
from bertsmith.training.finetuning.methods import LINEAR, NAMES, NAMES_TEXTS, SELF_TRAINING, UNTRAINED

_FOLD = "fold"  # in choice.safetensors, the first part of the names of a fold's bound weights
TrainPart = Callable[[str, EncodedExamples], TaskModel]  # trains by a method on some of the rows
_FEWEST_FOLDS = 2  # the simplest method is scored on, whatever they take
# The prior for the gain of another method over the simplest: mean and standard deviation.
_USUAL_GAIN, _USUAL_SPREAD = 0.01, 0.03
_RESAMPLES = 200  # of the bootstrap


@dataclass(frozen=True)
class MethodScore:
    """A method's score on the `rows` rows that it was evaluated on, its gain over the simplest method on the
    same rows, the standard error of the gain, and the `usual` gain with its spread, known beforehand.

    `score` is None for a method that diverged, with the number of the fold (from 1) in `diverged`, and for
    one that wasn't tried because it takes more work than allowed. For the latter `seconds` estimates the time
    of all folds, and `minutes` is the setting that would allow it.
    """

    method: str
    score: float | None = None
    gain: float | None = None
    error: float | None = None
    rows: int = 0
    seconds: float = 0.0
    diverged: int | None = None
    minutes: int | None = None
    usual: tuple[float, float] = (_USUAL_GAIN, _USUAL_SPREAD)

    @property
    def is_hopeless(self) -> bool:
        """Whether the method is clearly worse than the simplest: its gain is two standard errors below 0."""
        return self.gain is not None and self.error is not None and self.gain + 2 * self.error < 0


@dataclass(frozen=True)
class MethodChoice:
    """The chosen method, the scores of all methods, and the chosen method's `outputs` for the rows (E,) that
    it was evaluated on. The outputs of a row come from a model that wasn't trained on that row. `bound` has
    for each fold the weights of its model that decoding needs, such as a CRF's transitions.
    """

    method: str
    tried: tuple[MethodScore, ...]
    rows: Ints
    outputs: list[Outputs]
    bound: Mapping[int, Bound] = field(default_factory=dict)

    def simplest_score(self) -> float | None:
        """The simplest method's score on the rows that the chosen one was evaluated on; None if unknown."""
        chosen = next(score for score in self.tried if score.method == self.method)
        return None if chosen.score is None or chosen.gain is None else chosen.score - chosen.gain


@dataclass(frozen=True)
class MethodWork:
    """The work of comparing methods, in FLOP. `folds` has for each method the work of training without each
    of the folds, and `final` that of training on all rows. A method is trained on another fold if that and
    its final training fit within `budget`; its first fold has to fit within `first_look` instead.
    """

    folds: Mapping[str, Sequence[float]]
    final: Mapping[str, float]
    budget: float
    first_look: float

    @property
    def methods(self) -> list[str]:
        """Names of the methods, the simplest first."""
        return list(self.folds)

    def total_of(self, method: str) -> float:
        """The work of all folds and the final training of one method."""
        return sum(self.folds[method]) + self.final[method]

    def total(self) -> float:
        """The work of evaluating all methods on all folds, and of the most expensive final training."""
        return sum(map(sum, self.folds.values())) + max(self.final.values())

    def fits(self, method: str, number: int, used: float) -> bool:
        """Whether fold `number` (from 0) and the final training fit into what `used` FLOP leave."""
        limit = self.budget if number else self.first_look
        return used + self.folds[method][number] + self.final[method] <= limit

    def out_of_reach(self) -> list[str]:
        """Methods that won't be tried. This is known beforehand, because the first round trains each method
        on its first fold in a fixed order.
        """
        used, untried = 0.0, list[str]()
        for index, method in enumerate(self.methods):
            if index and not self.fits(method, 0, used):
                untried.append(method)
            else:
                used += self.folds[method][0]
        return untried


class HeldOutOutputs(NamedTuple):
    """A method's outputs for each row, from a model that wasn't trained on it, the seconds they took, and the
    method's usual gain over the simplest with its spread, if it isn't that of any method.
    """

    outputs: list[Outputs]
    seconds: float
    usual: tuple[float, float] | None = None


def race_methods(
    task: Task[Any],
    work: MethodWork,
    train: EncodedExamples,
    folds: Ints,
    train_part: TrainPart,
    on_fold: Callable[[str, int], None] = lambda method, number: None,
    known: Mapping[str, HeldOutOutputs] = MappingProxyType({}),
) -> MethodChoice:
    """Evaluates the methods by cross-validation, as long as `work` allows, and returns the best one.

    `folds` (E,) has the fold of each row of `train`. `train_part(method, rows)` returns a model trained on
    these rows. `on_fold(method, number)` is called before each training, with the fold's number from 1.
    `known` has the outputs of methods that needn't be trained for this, for all rows.

    Each round trains every method on one more fold, the most promising first. A method that is clearly worse
    than the simplest is given up, and one that diverges is left out. The simplest is trained on at least two
    folds. The order depends on counted work, not on time: the same rows and settings lead to the same choice,
    however busy the machine is. The method with the largest expected gain over the simplest wins: the
    measured gain is shrunk towards a usual one by its uncertainty, so that chance on a few rows doesn't
    decide. Raises TrainingStopped if the simplest method diverges, since the others are compared with it.
    """
    race = _Race(task, work, train, folds, train_part, known, on_fold)
    race.run()
    scores = [race.score(method) for method in work.methods]
    method = max(scores, key=estimate_gain).method
    outputs = race.outputs[method]
    rows = np.array(sorted(outputs), np.int64)
    return MethodChoice(
        method, tuple(scores), rows, [outputs[row] for row in rows.tolist()], race.bound[method]
    )


def choose_method(
    session: FinetuneSession,
    recipe: FinetuneRecipe,
    work: MethodWork,
    on_fold: Callable[[str, int], None] = lambda method, number: None,
) -> MethodChoice:
    """`race_methods` for the training rows of a session with folds. If `work` has only one method, because
    the recipe names it, this only measures it.
    """
    assert session.folds is not None

    def train_part(method: str, rows: EncodedExamples) -> TaskModel:
        return session.learn(method, recipe, rows)

    known = _predict_untrained(session, recipe, work.methods) if session.knows_all_features else {}
    return race_methods(session.task, work, session.train, session.folds, train_part, on_fold, known)


def _predict_untrained(
    session: FinetuneSession, recipe: FinetuneRecipe, methods: Sequence[str]
) -> dict[str, HeldOutOutputs]:
    """Outputs of the methods that don't train the encoder, from features that are computed already."""
    assert session.folds is not None
    known, start = {}, time.monotonic()
    if LINEAR in methods and session.probe is not None and session.linear is not None:
        outputs = session.probe.predict_held_out(session.folds, session.linear.strength)
        known[LINEAR] = HeldOutOutputs(outputs, session.linear.seconds + time.monotonic() - start)
    elif LINEAR in methods:
        outputs = outputs_of(session.start(recipe, recipe.seed), session.train.encoded)
        known[LINEAR] = HeldOutOutputs(outputs, time.monotonic() - start)
    if SELF_TRAINING in methods and session.self_training is not None and session.probe is not None:
        start = time.monotonic()
        outputs = session.self_training.judge(session.folds)
        known[SELF_TRAINING] = HeldOutOutputs(
            outputs, session.self_training.seconds + time.monotonic() - start
        )
    for method in {NAMES, NAMES_TEXTS}.intersection(methods):
        if session.names is not None:
            start = time.monotonic()
            outputs = session.names.judge(session.folds, texts=method == NAMES_TEXTS)
            seconds = session.names.seconds + time.monotonic() - start
            usual = session.names.usual_gain(texts=method == NAMES_TEXTS)
            known[method] = HeldOutOutputs(outputs, seconds, usual)
    return known


class _Race:
    """Trains the methods beside each other, fold by fold. `outputs` has for each method the outputs by row,
    and `bound` the weights for decoding by fold.
    """

    def __init__(
        self,
        task: Task[Any],
        work: MethodWork,
        train: EncodedExamples,
        folds: Ints,
        train_part: TrainPart,
        known: Mapping[str, HeldOutOutputs],
        on_fold: Callable[[str, int], None],
    ) -> None:
        self._on_fold = on_fold
        self._task, self._work, self._train = task, work, train
        self._folds, self._train_part, self._known = folds, train_part, known
        self._fold_ids, methods = sorted(set(folds.tolist())), work.methods
        self._simplest = methods[0]
        self.outputs: dict[str, dict[int, Outputs]] = {
            method: dict(enumerate(known[method].outputs)) if method in known else {} for method in methods
        }
        self.bound: dict[str, dict[int, Bound]] = {method: {} for method in methods}
        self._seconds = {method: known[method].seconds if method in known else 0.0 for method in methods}
        self._used = 0.0  # FLOP
        self._diverged: dict[str, int] = {}  # the number of the fold, from 1
        self._scores: dict[str, MethodScore] = {}  # kept until the next fold: the bootstrap takes time

    def run(self) -> None:
        """Trains until all methods have all folds, or no more work fits."""
        running = [method for method in self._work.methods if method not in self._known]
        simplest_outputs = self.outputs[self._simplest]
        for number, fold in enumerate(self._fold_ids):
            for method in sorted(running, key=lambda name: name != self._simplest):
                is_simplest = method == self._simplest
                required = is_simplest and number < _FEWEST_FOLDS
                comparable = is_simplest or int(np.flatnonzero(self._folds == fold)[0]) in simplest_outputs
                if not comparable or not (required or self._work.fits(method, number, self._used)):
                    running.remove(method)
                    continue
                start = time.monotonic()
                try:
                    self._train_fold(method, number, fold)
                except (TrainingStopped, NotFinite) as error:
                    self._give_up(method, number, error)
                self._used += self._work.folds[method][number]
                self._seconds[method] += time.monotonic() - start
                self._scores.pop(method, None)
            running = [method for method in running if method not in self._diverged]
            scores = {method: self.score(method) for method in running}
            running = [method for method in running if not scores[method].is_hopeless]
            running.sort(key=lambda method: -estimate_gain(scores[method]))

    def score(self, method: str) -> MethodScore:
        """The method's score so far, compared with the simplest method on the same rows."""
        if not self.outputs[method]:
            return MethodScore(method, seconds=self._seconds[method], diverged=self._diverged.get(method))
        if method in self._scores:
            return self._scores[method]
        rows, seconds = np.array(sorted(self.outputs[method]), np.int64), self._seconds[method]
        split, folds = self._train.some(rows), self._folds[rows]

        def predict(name: str) -> list[Prediction]:
            outputs = [self.outputs[name][row] for row in rows.tolist()]
            return self._task.decode_by_folds(outputs, split.examples, split.encoded, folds, self.bound[name])

        predictions = predict(method)
        if method == self._simplest:
            score = main_score(self._task, predictions, split.examples)
            self._scores[method] = MethodScore(method, score, rows=len(rows), seconds=seconds)
        else:
            score, gain, error = measure_gain(
                self._task, predictions, predict(self._simplest), split.examples
            )
            usual = self._known[method].usual if method in self._known else None
            if usual is None:
                usual = _USUAL_GAIN, _USUAL_SPREAD
            else:  # a few rows that agree by chance don't outweigh what is known beforehand
                error = math.hypot(error, 1 / len(rows))
            self._scores[method] = MethodScore(method, score, gain, error, len(rows), seconds, usual=usual)
        return self._scores[method]

    def _train_fold(self, method: str, number: int, fold: int) -> None:
        """Trains on the other folds, and keeps the outputs for the rows of this one."""
        self._on_fold(method, number + 1)
        held_out = np.flatnonzero(self._folds == fold)
        model = self._train_part(method, self._train.some(np.flatnonzero(self._folds != fold)))
        if bound := self._task.bound_weights():
            self.bound[method][fold] = bound
        encoded = self._train.some(held_out).encoded
        self.outputs[method] |= zip(held_out.tolist(), outputs_of(model, encoded), strict=True)

    def _give_up(self, method: str, number: int, error: BertsmithError) -> None:
        """Leaves out a method that diverged, and drops its outputs of other folds. Raises if the others can't
        go on without it.
        """
        if method in UNTRAINED:  # the given weights themselves give outputs that aren't finite
            raise error
        if method == self._simplest:
            reason, folds = str(error).partition(". ")[0], len(self._fold_ids)
            raise TrainingStopped(
                f"{method} diverged in fold {number + 1} of {folds} of its cross-validation. {reason}. "
                "To go on, begin again in another folder with a lower optimizer.learning_rate, or by another "
                "method."
            ) from error
        self._diverged[method] = number + 1
        self.outputs[method].clear()
        self.bound[method].clear()


def estimate_gain(score: MethodScore) -> float:
    """The expected gain over the simplest method: the posterior mean, where the prior of gains and the error
    of the measured one are both normal. 0 for the simplest method, minus infinity for one without a score.
    """
    if score.gain is None or score.error is None:
        return 0.0 if score.score is not None else -math.inf
    usual_gain, spread = score.usual
    measured, prior = 1 / max(score.error, 1e-3) ** 2, 1 / spread**2  # precisions
    # rounded, so that differences too small to matter leave the simpler method chosen
    return round((measured * score.gain + prior * usual_gain) / (measured + prior), 3)


def discount(score: MethodScore) -> float:
    """By how much the cross-validated score of a method that was chosen is to be changed: of methods that are
    equally good the luckiest is chosen, so its gain counts as far as it is expected (`estimate_gain`). At
    most half the gain's standard error, as the larger of two equal scores is 0.56 of it too high.
    """
    if score.gain is None or score.error is None:
        return 0.0
    return min(max(estimate_gain(score) - score.gain, -score.error / 2), score.error / 2)


def measure_gain(
    task: Task[Any], ours: Sequence[Prediction], theirs: Sequence[Prediction], examples: Sequence[Any]
) -> tuple[float, float, float]:
    """Returns the main metric of `ours`, by how much it is above that of `theirs`, and the standard error of
    this difference, from a bootstrap over the examples, or over the groups that they belong to.
    """
    generator, groups = np.random.default_rng(0), groups_of(task, examples)
    scorers = [task.scorer(predictions, examples) for predictions in (ours, theirs)]
    differences = []
    for _ in range(_RESAMPLES):
        rows = generator.integers(0, len(groups), len(groups))
        if len(groups) < len(examples):
            rows = np.concatenate([groups[number] for number in rows.tolist()])
        pair = [_finite_or_lowest(score(rows)) for score in scorers]
        differences.append(pair[0] - pair[1])
    score = main_score(task, ours, examples)
    return score, score - main_score(task, theirs, examples), float(np.std(differences))


def main_score(task: Task[Any], predictions: Sequence[Prediction], examples: Sequence[Any]) -> float:
    """The main metric; -1, the lowest correlation, if it is NaN or infinite."""
    metrics: Metrics = task.metrics(predictions, examples)
    return _finite_or_lowest(metrics[task.main_metric])


def _finite_or_lowest(score: float) -> float:
    return score if math.isfinite(score) else -1.0


def evaluate_choice(task: Task[Any], choice: MethodChoice, train: EncodedExamples, folds: Ints) -> Evaluation:
    """Evaluates the chosen method on the rows (E,) of its folds, beside the task's baselines, which are
    fitted on the same other folds. `folds` are those of all rows of `train`.
    """
    split = train.some(choice.rows)
    predictions = task.decode_by_folds(
        choice.outputs, split.examples, split.encoded, folds[choice.rows], choice.bound
    )
    by_row: dict[str, dict[int, Prediction]] = {}
    for fold in sorted(set(folds[choice.rows].tolist())):
        held_out = np.flatnonzero(folds == fold).tolist()
        others = [train.examples[row] for row in np.flatnonzero(folds != fold).tolist()]
        for name, fold_predictions in task.baselines(
            others, [train.examples[row] for row in held_out]
        ).items():
            by_row.setdefault(name, {}).update(zip(held_out, fold_predictions, strict=True))
    baseline_predictions = {
        name: [row_predictions[row] for row in choice.rows.tolist()]
        for name, row_predictions in by_row.items()
        if len(row_predictions) == len(split)
    }
    if baseline_predictions:
        first = next(iter(baseline_predictions))  # the most frequent answer
        if _differ_by_fold_alone(baseline_predictions[first], folds[choice.rows]):
            baseline_predictions[first] = task.baselines(split.examples, split.examples)[first]
    baselines = {
        name: task.metrics(of_baseline, split.examples) for name, of_baseline in baseline_predictions.items()
    }
    return Evaluation(task.metrics(predictions, split.examples), baselines, predictions, split)


def _differ_by_fold_alone(predictions: list[Prediction], folds: Ints) -> bool:
    """Whether all rows of a fold have the same prediction, but not all folds the same one.

    A constant fitted on the other folds scores worse than one constant for all rows: the most frequent class
    of the other folds is the one that the fold itself has least of, and the mean of the others is low where
    the fold's own numbers are high.
    """
    different = {(fold, repr(answer)) for fold, answer in zip(folds.tolist(), predictions, strict=True)}
    return len(different) == len(set(folds.tolist())) and len({answer for _, answer in different}) > 1


# -- the files of a choice -----------------------------------------------------------------------------


def write_choice(out: Path, choice: MethodChoice) -> None:
    """Writes choice.json and choice.safetensors, so that a run that is resumed needn't choose again."""
    make_folder(out)
    arrays = {str(row): output for row, output in zip(choice.rows.tolist(), choice.outputs, strict=True)}
    for fold, bound in choice.bound.items():
        arrays |= {f"{_FOLD}.{fold}.{name}": weights for name, weights in bound.items()}
    atomic_write(out / "choice.safetensors", save(arrays))
    record = {"method": choice.method, "tried": [asdict(score) for score in choice.tried]}
    write_json(out / "choice.json", record)


def read_choice(out: Path) -> MethodChoice | None:
    """Reads the choice that a run made before; None if there is none. Raises InputError for damaged files."""
    if not (out / "choice.json").exists():
        return None
    record = read_json(out / "choice.json")
    path = out / "choice.safetensors"
    try:
        arrays = load_file(path)
    except (OSError, SafetensorError) as error:
        raise InputError(
            f"{path}: expected what the chosen method said of the rows, beside choice.json; it is not "
            f"there, or damaged ({error}). Begin again in another folder."
        ) from error
    outputs: dict[int, Outputs] = {}
    bound: dict[int, dict[str, Outputs]] = {}
    for key, array in arrays.items():
        if key.startswith(_FOLD):
            _, fold, name = key.split(".", 2)
            bound.setdefault(int(fold), {})[name] = array
        else:
            outputs[int(key)] = array
    rows = np.array(sorted(outputs), np.int64)
    usual = (_USUAL_GAIN, _USUAL_SPREAD)  # which a run of before had for all methods
    scores = tuple(
        MethodScore(**score | {"usual": tuple(score.get("usual", usual))}) for score in record["tried"]
    )
    return MethodChoice(record["method"], scores, rows, [outputs[row] for row in rows.tolist()], bound)


def describe_untried(score: MethodScore) -> str:
    """Formats as 'not tried: it would take about 1:40; minutes=7 allows it'."""
    duration = f"it would take about {formatting.duration(score.seconds)}; " if score.seconds else ""
    return f"not tried: {duration}minutes={score.minutes} allows it"


def describe_score(score: MethodScore, metric: str) -> str:
    """Formats as 'contrastive: accuracy 0.8410 (+0.0073 ± 0.0081) on 496 rows, 41 s'."""
    if score.diverged is not None:
        return f"{score.method}: diverged in fold {score.diverged} and left out; try a lower learning rate"
    if score.score is None:
        return f"{score.method}: {describe_untried(score)}"
    gain = "" if score.gain is None else f" ({score.gain:+.4f} ± {score.error:.4f})"
    return f"{score.method}: {metric} {score.score:.4f}{gain} on {score.rows:,} rows, {score.seconds:.0f} s"
