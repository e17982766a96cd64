"""A head that begins as the best linear model of the frozen encoder's features, and not at random (linear
probing, then fine-tuning: Kumar et al. 2022, section 3.4).

By itself it is the oldest use of BERT, and a baseline that fine-tuning has to beat; it costs one pass over
the examples.

E examples, R rows that the head answers for, F features, C outputs.
"""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any

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

FROZEN, FROZEN_ALONE = "frozen encoder + linear model", "frozen encoder"  # as tables call it
MOST_EXAMPLES = 20_000  # more are sampled: a pass over them takes a minute
_MOST_TO_CHOOSE_BY = 2000
# A head that answers for each token has hundreds of rows an example: at most half a GB of numbers.
_MOST_FEATURES, _MOST_ROWS_TO_CHOOSE_BY = 1 << 27, 100_000
_FOLDS, _FOLDS_TO_JUDGE = 3, 5  # to choose a strength; for what a linear model of nearly all rows says
# Of the mean loss, multiplied by the examples: as scikit-learn's 1 / C.
_STRENGTHS = (4.0, 1.0, 0.25, 0.06, 0.015, 0.004)
_USUAL_STRENGTH, _COLUMN_SHARES = 0.06, (1.0, 0.5, 0.25, 0.1, 0.03)
_ITERATIONS = 100


def features_of(model: TaskModel, encoded: Sequence[Any], progress: Progress | None = None) -> list[Tensor]:
    """(F,) of each example, or (R, F) where the head answers per row: what its last layer reads."""
    head = model.head

    def compute(batch: PackedBatch, layout: Layout) -> Tensor:
        return head.features(model.states(batch, layout), layout).float()

    found: list[Tensor | None] = [None] * len(encoded)
    done = 0
    with evaluating(model):
        for numbers, layout, outputs in forward_passes(compute, encoded, next(model.parameters()).device):
            ends = np.cumsum(layout.rows_of_example)[:-1] if head.per_row else None
            pieces = outputs if ends is None else np.split(outputs, ends)
            for number, piece in zip(numbers, pieces, strict=True):
                found[number] = torch.from_numpy(piece)
            done += len(numbers)
            if progress is not None:
                progress(done, len(encoded), "texts")
    return [each for each in found if each is not None]


def mean_lengths(features: Sequence[Tensor], columns: int) -> float | Tensor:
    """What makes features of mean square length 1 of them, so that strengths mean the same for every encoder:
    one number or, where the last are those of columns beside the text, (F,): each part for itself.
    """
    if columns:
        text, beside = ([feature[..., place] for feature in features] for place in text_and_columns(columns))
        both = [mean_lengths(part, 0) for part in (text, beside)]
        widths = torch.tensor([text[0].shape[-1], columns])
        return torch.tensor(both).repeat_interleave(widths)
    squares = sum(float(feature.square().sum()) for feature in features)
    return math.sqrt(squares / sum(feature.numel() // feature.shape[-1] for feature in features)) or 1.0


def text_and_columns(columns: int) -> tuple[slice, slice]:
    """Where the text's features are, and those of columns beside it."""
    return slice(None, -columns), slice(-columns, None)


@dataclass(frozen=True)
class LinearStart:
    """The weights that the head's last layer begins with, how strongly they were held small, and the seconds
    it took.
    """

    weight: Tensor
    bias: Tensor
    strength: float
    seconds: float

    def apply(self, model: TaskModel) -> None:
        """Puts them into a model of the same head."""
        assert isinstance(model.head, ClassifierHead)
        with torch.no_grad():
            model.head.out.weight.copy_(self.weight)
            model.head.out.bias.copy_(self.bias)


def fit_linear_start(task: Task[Any], model: TaskModel, train: EncodedExamples) -> LinearStart | None:
    """Minimises the task's own loss over the head's last layer, with its squares held small; how strongly is
    chosen by cross-validation. None for a head that isn't linear in features, and too few examples.

    Deterministic. The model stays as it is.
    """
    probe = LinearProbe.of(task, model, train)
    return None if probe is None else probe.best()


class LinearProbe:
    """The task's loss on examples as a function of the head's last layer, whose features are computed once:
    a fold, or a part of the examples, costs no pass of its own. `seconds` is how long the pass took.
    `examples` are those drawn by `of`.
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
        """`features` (F,) of each example, or (R, F). See `of`."""
        self._task, self._head, self._examples = copy(task), head, examples
        self.examples: EncodedExamples | None = None
        self._task.bind(head)  # and stays so: the task may be bound to a trained one by the time of `judge`
        self._features, self._targets, self.seconds = features, targets, seconds
        self._scale = mean_lengths(features, head.columns)

    @classmethod
    def of(
        cls,
        task: Task[Any],
        model: TaskModel,
        train: EncodedExamples,
        most: int | None = None,
        progress: Progress | None = None,
    ) -> "LinearProbe | None":
        """On `most` of the examples, drawn once and for all: by default 20,000, and whose features fit into
        half a GB. None for a head that isn't linear in features, and for fewer than two examples.
        """
        head, begun = model.head, time.monotonic()
        if not isinstance(head, ClassifierHead) or len(train) < 2:
            return None
        if most is None:
            rows = 0
            if head.per_row:
                rows = sum(len(window.rows) for example in train.encoded for window in example.windows)
            width = max(rows / len(train), 1) * head.out.in_features
            most = max(min(MOST_EXAMPLES, int(_MOST_FEATURES / width)), 2)
        chosen = train.some(_some(len(train), most))
        features = features_of(model, chosen.encoded, progress)
        targets = [each.target for each in chosen.encoded]
        probe = cls(task, head, chosen.examples, features, targets, time.monotonic() - begun)
        probe.examples = chosen
        if head.columns:
            probe.weigh_columns()
        return probe

    def __len__(self) -> int:
        return len(self._targets)

    def weigh_columns(self) -> None:
        """Settles by cross-validation how large the columns' features are beside the text's, and so how
        strongly their weights are held small: at the same size, columns that say nothing cost seven points of
        accuracy with banking77's 77 classes of eight rows.
        """
        whole = self._scale
        chosen, folds = self._judging()
        of_columns = text_and_columns(self._head.columns)[1]
        scales, losses = [], []
        for share in _COLUMN_SHARES:
            self._scale = torch.as_tensor(whole).clone()
            self._scale[of_columns] /= share
            scales.append(self._scale)
            losses.append(0.0)
            for learned, held in _divided(chosen, folds):
                weights = self.begin()
                self.solve(weights, learned, _USUAL_STRENGTH)
                losses[-1] += self.loss(weights, held)
        self._scale = scales[int(np.argmin(losses))]

    def _enough(self) -> int:
        """Examples to choose by: one for each fold at least."""
        rows = sum(map(len, self._features)) / len(self) if self._head.per_row else 1
        return min(_MOST_TO_CHOOSE_BY, max(int(_MOST_ROWS_TO_CHOOSE_BY / max(rows, 1)), _FOLDS_TO_JUDGE))

    def _judging(self) -> tuple[Ints, Ints]:
        """Rows to choose by, and the fold of each."""
        chosen = _some(len(self._targets), self._enough())
        return chosen, folds_of(self._task, [self._examples[each] for each in chosen], _FOLDS)

    def scaled(self, features: Tensor) -> Tensor:
        """(…, F) as `solve` takes them."""
        return features / self._scale

    def without(self, *, text: bool = False, columns: bool = False) -> "LinearProbe":
        """The same examples without what the text says, or without what the columns beside it do."""
        of_text, of_columns = text_and_columns(self._head.columns)
        features = [feature.clone() for feature in self._features]
        for feature in features:
            if text:
                feature[..., of_text] = 0
            if columns:
                feature[..., of_columns] = 0
        return LinearProbe(self._task, self._head, self._examples, features, self._targets, self.seconds)

    def class_shares(self, rows: Ints) -> Tensor:
        """(C,) how often each class is the target of some of a classification's examples, each once more than
        it is.
        """
        targets = torch.tensor([self._targets[row] for row in rows.tolist()])
        counts = torch.bincount(targets, minlength=self._head.out.out_features) + 1.0
        return counts / counts.sum()

    def best(self) -> LinearStart:
        """With the strength that does best on examples it hasn't learned from."""
        begun = time.monotonic()
        losses = np.zeros(len(_STRENGTHS))
        for learned, held in _divided(*self._judging()):
            weights = self.begin()
            for number, strength in enumerate(_STRENGTHS):  # each begins where the one before ended
                self.solve(weights, learned, strength)
                losses[number] += self.loss(weights, held)
        strength = _STRENGTHS[int(losses.argmin())]
        weights = self.begin()
        self.solve(weights, np.arange(len(self._targets)), strength)
        return LinearStart(*self.unscaled(weights), strength, self.seconds + time.monotonic() - begun)

    def judge(self, folds: Ints, strength: float, share: float = 1.0, seed: int = 0) -> list[Outputs]:
        """What is said of each example, (C,) or (R, C), by the linear model that learned from the other
        folds, or from that share of them, drawn by the seed. `folds` (E,): at least two.
        """
        found: list[Outputs] = [np.empty(0, np.float32)] * len(self._targets)
        for held, weights in self.learned(folds, strength, share, seed):
            for row, piece in zip(held.tolist(), self._outputs_of(weights, held), strict=True):
                found[row] = piece
        return found

    def judge_some(self, strength: float) -> tuple[Ints, list[Outputs]]:
        """Some of the examples, and what is said of each by the linear model that learned from the other
        folds: as many folds as where methods are cross-validated, one after another until there are enough.

        Each learns from most of the examples, as the final model does. One that knows fewer examples is far
        surer that a label it never saw isn't there, and thresholds chosen by it let the final one give that
        label to every text.
        """
        every = np.arange(len(self._targets))
        rows, said = list[int](), list[Outputs]()
        for learned, held in _divided(every, folds_of(self._task, self._examples, _FOLDS_TO_JUDGE)):
            weights = self.begin()
            self.solve(weights, learned, strength)
            rows += held.tolist()
            said += self._outputs_of(weights, held)
            if len(rows) >= self._enough():
                break
        return np.array(rows), said

    def _outputs_of(self, weights: tuple[Tensor, Tensor], rows: Ints) -> list[Outputs]:
        outputs = self.outputs(weights, rows).numpy()
        ends = np.cumsum([len(self._features[row]) for row in rows[:-1].tolist()])
        return np.split(outputs, ends) if self._head.per_row else list(outputs)

    def learned(
        self, folds: Ints, strength: float, share: float = 1.0, seed: int = 0
    ) -> Iterator[tuple[Ints, tuple[Tensor, Tensor]]]:
        """The rows of each fold, with the weights learned from the others as `judge` has it."""
        draw = np.random.default_rng(seed)
        for fold in sorted(set(folds.tolist())):
            held, others = np.flatnonzero(folds == fold), np.flatnonzero(folds != fold)
            if share < 1:
                others = np.sort(draw.choice(others, max(round(share * len(others)), 1), replace=False))
            weights = self.begin()
            self.solve(weights, others, strength)
            yield held, weights

    def features(self, rows: Ints) -> Tensor:
        """(E, F), or (R, F), of some of the examples."""
        parts = [self._features[row] for row in rows.tolist()]
        return torch.cat(parts) if self._head.per_row else torch.stack(parts)

    def answers(self, weights: tuple[Tensor, Tensor], features: Tensor) -> Tensor:
        """(E, C), or (R, C), of features as `features` has them."""
        with torch.no_grad():
            return self._outputs(weights, self.scaled(features))

    def begin(self) -> tuple[Tensor, Tensor]:
        """No weights, and the head's own biases: what it would say without a look at the text."""
        out = self._head.out
        weight = torch.zeros_like(out.weight, device="cpu").requires_grad_()
        return weight, out.bias.detach().cpu().clone().requires_grad_()

    def unscaled(self, weights: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """As the head takes them."""
        return weights[0].detach() / self._scale, weights[1].detach()

    def outputs(self, weights: tuple[Tensor, Tensor], rows: Ints) -> Tensor:
        """(E, C), or (R, C), of some of the examples."""
        with torch.no_grad():
            return self._outputs(weights, self._data(rows)[0])

    def loss(self, weights: tuple[Tensor, Tensor], rows: Ints) -> float:
        """Per count, on some of the examples."""
        features, targets = self._data(rows)
        with torch.no_grad():
            return float(self._summed(weights, features, targets, 0.0) / self._task.count(targets))

    def solve(self, weights: tuple[Tensor, Tensor], rows: Ints, strength: float) -> None:
        """Changes `weights` to the minimum over some of the examples."""
        data = self._data(rows)
        count = self._task.count(data[1])
        minimise(weights, lambda: self._summed(weights, *data, strength) / count)

    def total(self, weights: tuple[Tensor, Tensor], rows: Ints, strength: float) -> Tensor:
        """The summed loss of some of the examples, and what holds the weights small."""
        return self._summed(weights, *self._data(rows), strength)

    def _data(self, rows: Ints) -> tuple[Tensor, list[Any]]:
        return self.scaled(self.features(rows)), [self._targets[row] for row in rows.tolist()]

    def _summed(
        self, weights: tuple[Tensor, Tensor], features: Tensor, targets: list[Any], strength: float
    ) -> Tensor:
        loss = self._task.loss(self._outputs(weights, features), targets)
        return loss + strength / 2 * weights[0].square().sum()

    def _outputs(self, weights: tuple[Tensor, Tensor], features: Tensor) -> Tensor:
        weight, bias = weights
        return self._head.in_units(features @ weight.T + bias)


def minimise(
    weights: tuple[Tensor, Tensor], total: Callable[[], Tensor], iterations: int = _ITERATIONS
) -> None:
    """Changes `weights` so that `total`, which is convex in them, is least (L-BFGS)."""
    optimizer = torch.optim.LBFGS(
        weights,
        max_iter=iterations,
        tolerance_grad=1e-6,
        tolerance_change=1e-7,
        line_search_fn="strong_wolfe",
    )

    def closure() -> Tensor:
        optimizer.zero_grad()
        found = total()
        found.backward(inputs=weights)  # and not of a CRF, whose training would begin with it
        return found

    optimizer.step(closure)


def _divided(rows: Ints, folds: Ints) -> Iterator[tuple[Ints, Ints]]:
    """Those to learn from and those to judge by, fold by fold, where there are both."""
    for fold in sorted(set(folds.tolist())):
        learned, held = rows[folds != fold], rows[folds == fold]
        if len(learned) and len(held):
            yield learned, held


def _some(count: int, most: int) -> Ints:
    """All, or as many as there may be, drawn once and for all."""
    if count <= most:
        return np.arange(count)
    return np.sort(np.random.default_rng(0).choice(count, most, replace=False))
