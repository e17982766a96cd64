"""A head that starts from the best linear model of the frozen encoder's features instead of random weights
(linear probing, then fine-tuning: Kumar et al. 2022, section 3.4).

The linear model alone is the oldest use of BERT and a baseline that fine-tuning has to beat. It costs one
pass over the examples.

E examples, R rows that the head answers for, F features, C outputs.
"""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from bertsmith.arrays import Ints
from bertsmith.data.batch import PackedBatch
from bertsmith.progress import Progress
from bertsmith.tasks.examples.encoding import Layout
from bertsmith.tasks.examples.held_out import folds_of
from bertsmith.tasks.finetuning import EncodedExamples
from bertsmith.tasks.forward_passes import evaluating, forward_passes
from bertsmith.tasks.heads.classifier_head import ClassifierHead
from bertsmith.tasks.task import Outputs, Task
from bertsmith.tasks.task_model import TaskModel

FROZEN, FROZEN_ALONE = "frozen encoder + linear model", "frozen encoder"  # names in tables
MOST_EXAMPLES = 20_000  # more are sampled: a pass over them takes a minute
_MOST_TO_CHOOSE_BY = 2000
# A head that answers for each token has hundreds of rows an example: the limit is half a GB of numbers.
_MOST_FEATURES, _MOST_ROWS_TO_CHOOSE_BY = 1 << 27, 100_000
# Folds to choose a strength by; folds for held-out predictions, whose models learn from nearly all rows.
_FOLDS, _HELD_OUT_FOLDS = 3, 5
# Relative to the summed loss: scikit-learn's 1 / C.
_STRENGTHS = (4.0, 1.0, 0.25, 0.06, 0.015, 0.004)
_USUAL_STRENGTH, _COLUMN_SHARES = 0.06, (1.0, 0.5, 0.25, 0.1, 0.03)
_ITERATIONS = 100


def compute_features(
    model: TaskModel, encoded: Sequence[Any], progress: Progress | None = None
) -> list[Tensor]:
    """The input of the head's last layer for each example: (F,), or (R, F) for a head that is `per_row`."""
    head = model.head

    def compute(batch: PackedBatch, layout: Layout) -> Tensor:
        return head.features(model.states(batch, layout), layout).float()

    features: list[Tensor | None] = [None] * len(encoded)
    done = 0
    with evaluating(model):
        for numbers, layout, outputs in forward_passes(compute, encoded, next(model.parameters()).device):
            ends = np.cumsum(layout.rows_of_example)[:-1] if head.per_row else None
            by_example = outputs if ends is None else np.split(outputs, ends)
            for number, array in zip(numbers, by_example, strict=True):
                features[number] = torch.from_numpy(array)
            done += len(numbers)
            if progress is not None:
                progress(done, len(encoded), "texts")
    return [feature for feature in features if feature is not None]


class TextFeatures(NamedTuple):
    """Texts without labels, the features (F,) of each, and the seconds that these took."""

    examples: Sequence[Any]
    features: list[Tensor]
    seconds: float

    @classmethod
    def of(cls, model: TaskModel, texts: EncodedExamples, progress: Progress | None = None) -> "TextFeatures":
        """Computes the features by the `model`."""
        start = time.monotonic()
        features = compute_features(model, texts.encoded, progress)
        return cls(texts.examples, features, time.monotonic() - start)


def measure_lengths(features: Sequence[Tensor], columns: int) -> float | Tensor:
    """The root mean square length by which features are divided, so that strengths mean the same for every
    encoder. One number or, if the last features are those of columns beside the text, (F,): text and columns
    are scaled separately.
    """
    if columns:
        text, of_columns = (
            [feature[..., part] for feature in features] for part in slice_text_and_columns(columns)
        )
        lengths = [measure_lengths(part, 0) for part in (text, of_columns)]
        widths = torch.tensor([text[0].shape[-1], columns])
        return torch.tensor(lengths).repeat_interleave(widths)
    squares = sum(float(feature.square().sum()) for feature in features)
    return math.sqrt(squares / sum(feature.numel() // feature.shape[-1] for feature in features)) or 1.0


def slice_text_and_columns(columns: int) -> tuple[slice, slice]:
    """The slices of the text's features and of the features of `columns` beside it, which come last."""
    return slice(None, -columns), slice(-columns, None)


@dataclass(frozen=True)
class LinearStart:
    """The initial weights of the head's last layer, the strength of their L2 penalty, and the seconds that
    fitting took.
    """

    weight: Tensor
    bias: Tensor
    strength: float
    seconds: float

    def apply(self, model: TaskModel) -> None:
        """Copies the weights into a model with the same head."""
        assert isinstance(model.head, ClassifierHead)
        with torch.no_grad():
            model.head.out.weight.copy_(self.weight)
            model.head.out.bias.copy_(self.bias)


def fit_linear_start(task: Task[Any], model: TaskModel, train: EncodedExamples) -> LinearStart | None:
    """Minimises the task's own loss over the head's last layer with an L2 penalty, whose strength is chosen
    by cross-validation. None for a head that isn't linear in its features, or for too few examples.

    Deterministic. The model stays as it is.
    """
    probe = LinearProbe.of(task, model, train)
    return None if probe is None else probe.fit_best()


class LinearProbe:
    """The task's loss on examples as a function of the head's last layer. Features are computed once, so a
    fold or a subset costs no pass of its own. `seconds` is how long that pass took; `examples` are those
    drawn by `of`.
    """

    def __init__(
        self,
        task: Task[Any],
        head: ClassifierHead,
        examples: Sequence[Any],
        features: Sequence[Tensor],
        targets: Sequence[Any],
        seconds: float,
    ) -> None:
        """`features`: (F,) or (R, F) of each example. See `of`."""
        self._task, self._head, self._examples = copy(task), head, examples
        self.examples: EncodedExamples | None = None
        self._task.bind(
            head
        )  # the copy stays bound: by the time of `predict_held_out` the task may have a trained head
        self._features, self._targets, self.seconds = features, targets, seconds
        self._scale = measure_lengths(features, head.column_features)

    @classmethod
    def of(
        cls,
        task: Task[Any],
        model: TaskModel,
        train: EncodedExamples,
        most: int | None = None,
        progress: Progress | None = None,
    ) -> "LinearProbe | None":
        """A probe on at most `most` examples, drawn once. By default at most 20,000, and no more than have
        features of half a GB. None for a head that isn't linear in its features, or for fewer than two
        examples.
        """
        head, started = model.head, time.monotonic()
        if not isinstance(head, ClassifierHead) or len(train) < 2:
            return None
        if most is None:
            rows = 0
            if head.per_row:
                rows = sum(len(window.rows) for example in train.encoded for window in example.windows)
            width = max(rows / len(train), 1) * head.out.in_features
            most = max(min(MOST_EXAMPLES, int(_MOST_FEATURES / width)), 2)
        chosen = train.some(_draw(len(train), most))
        features = compute_features(model, chosen.encoded, progress)
        targets = [example.target for example in chosen.encoded]
        probe = cls(task, head, chosen.examples, features, targets, time.monotonic() - started)
        probe.examples = chosen
        if head.column_features:
            probe.weigh_columns()
        return probe

    def __len__(self) -> int:
        return len(self._targets)

    def weigh_columns(self) -> None:
        """Chooses by cross-validation how large the columns' features are relative to the text's, and so how
        strong their penalty is. At equal size, useless columns cost seven points of accuracy with banking77's
        77 classes of eight rows.
        """
        full_scale = self._scale
        chosen, folds = self._draw_choosing_folds()
        of_columns = slice_text_and_columns(self._head.column_features)[1]
        scales, losses = [], []
        for share in _COLUMN_SHARES:
            self._scale = torch.as_tensor(full_scale).clone()
            self._scale[of_columns] /= share
            scales.append(self._scale)
            losses.append(0.0)
            for train_rows, held_rows in _split_by_fold(chosen, folds):
                weights = self.make_initial_weights()
                self.solve(weights, train_rows, _USUAL_STRENGTH)
                losses[-1] += self.loss(weights, held_rows)
        self._scale = scales[int(np.argmin(losses))]

    def _count_rows_to_choose_by(self) -> int:
        """How many examples to choose by: at least one for each fold."""
        rows = sum(map(len, self._features)) / len(self) if self._head.per_row else 1
        return min(_MOST_TO_CHOOSE_BY, max(int(_MOST_ROWS_TO_CHOOSE_BY / max(rows, 1)), _HELD_OUT_FOLDS))

    def _draw_choosing_folds(self) -> tuple[Ints, Ints]:
        """Draws the rows (n,) to choose a strength by, and gives each its fold (n,)."""
        chosen = _draw(len(self._targets), self._count_rows_to_choose_by())
        return chosen, folds_of(self._task, [self._examples[row] for row in chosen], _FOLDS)

    def scale(self, features: Tensor) -> Tensor:
        """Divides features (…, F) by their lengths, as `solve` takes them."""
        return features / self._scale

    def with_zeroed(self, *, text: bool = False, columns: bool = False) -> "LinearProbe":
        """The same examples with the features of the text, or of the columns, set to zero."""
        of_text, of_columns = slice_text_and_columns(self._head.column_features)
        features = [feature.clone() for feature in self._features]
        for feature in features:
            if text:
                feature[..., of_text] = 0
            if columns:
                feature[..., of_columns] = 0
        return LinearProbe(self._task, self._head, self._examples, features, self._targets, self.seconds)

    def count_class_shares(self, rows: Ints) -> Tensor:
        """How often each class (C,) is the target of these examples of a classification, with one added to
        each count.
        """
        targets = torch.tensor([self._targets[row] for row in rows.tolist()])
        counts = torch.bincount(targets, minlength=self._head.out.out_features) + 1.0
        return counts / counts.sum()

    def fit_best(self) -> LinearStart:
        """Fits all examples with the strength that does best in cross-validation."""
        started = time.monotonic()
        losses = np.zeros(len(_STRENGTHS))
        for train_rows, held_rows in _split_by_fold(*self._draw_choosing_folds()):
            weights = self.make_initial_weights()
            for index, strength in enumerate(_STRENGTHS):  # each starts from the solution of the one before
                self.solve(weights, train_rows, strength)
                losses[index] += self.loss(weights, held_rows)
        strength = _STRENGTHS[int(losses.argmin())]
        weights = self.make_initial_weights()
        self.solve(weights, np.arange(len(self._targets)), strength)
        return LinearStart(*self.unscale(weights), strength, self.seconds + time.monotonic() - started)

    def predict_held_out(
        self, folds: Ints, strength: float, share: float = 1.0, seed: int = 0
    ) -> list[Outputs]:
        """Each example's outputs, (C,) or (R, C), by the linear model fitted to the other folds, or to this
        share of them, drawn by the seed. `folds` (E,) has at least two.
        """
        outputs: list[Outputs] = [np.empty(0, np.float32)] * len(self._targets)
        for held_rows, weights in self.fit_folds(folds, strength, share, seed):
            for row, output in zip(held_rows.tolist(), self._split_outputs(weights, held_rows), strict=True):
                outputs[row] = output
        return outputs

    def predict_some_held_out(self, strength: float) -> tuple[Ints, list[Outputs]]:
        """Outputs of some of the examples, each by the linear model fitted to the other folds. There are as
        many folds as for cross-validated methods; one after another is predicted until there are enough
        examples. Returns the examples' indices and their outputs.

        Each model learns from most of the examples, like the final model. A model that knows fewer is far
        surer that a label it hasn't seen is absent, and thresholds chosen by it would let the final model
        give that label to every text.
        """
        every = np.arange(len(self._targets))
        rows, outputs = list[int](), list[Outputs]()
        for train_rows, held_rows in _split_by_fold(
            every, folds_of(self._task, self._examples, _HELD_OUT_FOLDS)
        ):
            weights = self.make_initial_weights()
            self.solve(weights, train_rows, strength)
            rows += held_rows.tolist()
            outputs += self._split_outputs(weights, held_rows)
            if len(rows) >= self._count_rows_to_choose_by():
                break
        return np.array(rows), outputs

    def _split_outputs(self, weights: tuple[Tensor, Tensor], rows: Ints) -> list[Outputs]:
        """The outputs of these examples, (C,) or (R, C) each."""
        outputs = self.outputs(weights, rows).numpy()
        row_ends = np.cumsum([len(self._features[row]) for row in rows[:-1].tolist()])
        return np.split(outputs, row_ends) if self._head.per_row else list(outputs)

    def fit_folds(
        self, folds: Ints, strength: float, share: float = 1.0, seed: int = 0
    ) -> Iterator[tuple[Ints, tuple[Tensor, Tensor]]]:
        """Yields the rows of each fold, with the weights fitted to the others as in `predict_held_out`."""
        generator = np.random.default_rng(seed)
        for fold in sorted(set(folds.tolist())):
            held_rows, others = np.flatnonzero(folds == fold), np.flatnonzero(folds != fold)
            if share < 1:
                others = np.sort(generator.choice(others, max(round(share * len(others)), 1), replace=False))
            weights = self.make_initial_weights()
            self.solve(weights, others, strength)
            yield held_rows, weights

    def features(self, rows: Ints) -> Tensor:
        """Features (E, F), or (R, F), of these examples."""
        parts = [self._features[row] for row in rows.tolist()]
        return torch.cat(parts) if self._head.per_row else torch.stack(parts)

    def predict(self, weights: tuple[Tensor, Tensor], features: Tensor) -> Tensor:
        """Outputs (E, C), or (R, C), for features as `features` returns them."""
        with torch.no_grad():
            return self._outputs(weights, self.scale(features))

    def make_initial_weights(self) -> tuple[Tensor, Tensor]:
        """Zero weights (C, F) and a copy of the head's biases (C,): outputs that don't depend on the text."""
        out = self._head.out
        weight = torch.zeros_like(out.weight, device="cpu").requires_grad_()
        return weight, out.bias.detach().cpu().clone().requires_grad_()

    def unscale(self, weights: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """Weights and biases in the scale of the head's features."""
        return weights[0].detach() / self._scale, weights[1].detach()

    def outputs(self, weights: tuple[Tensor, Tensor], rows: Ints) -> Tensor:
        """Outputs (E, C), or (R, C), of these examples."""
        with torch.no_grad():
            return self._outputs(weights, self._data(rows)[0])

    def loss(self, weights: tuple[Tensor, Tensor], rows: Ints) -> float:
        """The task's loss on these examples, divided by its count."""
        features, targets = self._data(rows)
        with torch.no_grad():
            return float(self._penalised_loss(weights, features, targets, 0.0) / self._task.count(targets))

    def solve(self, weights: tuple[Tensor, Tensor], rows: Ints, strength: float) -> None:
        """Changes `weights` to the minimum of the penalised loss on these examples."""
        data = self._data(rows)
        count = self._task.count(data[1])
        minimise(weights, lambda: self._penalised_loss(weights, *data, strength) / count)

    def penalised_loss(self, weights: tuple[Tensor, Tensor], rows: Ints, strength: float) -> Tensor:
        """The loss summed over these examples, plus the penalty: what `solve` minimises."""
        return self._penalised_loss(weights, *self._data(rows), strength)

    def _data(self, rows: Ints) -> tuple[Tensor, list[Any]]:
        return self.scale(self.features(rows)), [self._targets[row] for row in rows.tolist()]

    def _penalised_loss(
        self, weights: tuple[Tensor, Tensor], features: Tensor, targets: list[Any], strength: float
    ) -> Tensor:
        loss = self._task.loss(self._outputs(weights, features), targets)
        return loss + strength / 2 * weights[0].square().sum()

    def _outputs(self, weights: tuple[Tensor, Tensor], features: Tensor) -> Tensor:
        weight, bias = weights
        return self._head.to_label_units(features @ weight.T + bias)


def minimise(
    weights: tuple[Tensor, Tensor], total: Callable[[], Tensor], iterations: int = _ITERATIONS
) -> None:
    """Changes `weights` to the minimum of `total`, which is convex in them (L-BFGS)."""
    optimizer = torch.optim.LBFGS(
        weights,
        max_iter=iterations,
        tolerance_grad=1e-6,
        tolerance_change=1e-7,
        line_search_fn="strong_wolfe",
    )

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = total()
        loss.backward(inputs=weights)  # leaves no gradient in a CRF, whose own training comes later
        return loss

    optimizer.step(closure)


def _split_by_fold(rows: Ints, folds: Ints) -> Iterator[tuple[Ints, Ints]]:
    """Yields, for each fold, the rows to learn from and the held-out rows, if there are both."""
    for fold in sorted(set(folds.tolist())):
        train_rows, held_rows = rows[folds != fold], rows[folds == fold]
        if len(train_rows) and len(held_rows):
            yield train_rows, held_rows


def _draw(count: int, most: int) -> Ints:
    """All indices below `count`, or `most` of them, always the same ones."""
    if count <= most:
        return np.arange(count)
    return np.sort(np.random.default_rng(0).choice(count, most, replace=False))
