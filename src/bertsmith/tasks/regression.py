"""A number for each text or pair: [CLS] → pooler → dropout → dense, squared error (Devlin et al. 2019).

E examples.
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from bertsmith.data.batch import to_device, widest_float
from bertsmith.errors import InputError, ModelError
from bertsmith.metrics import scores
from bertsmith.metrics.baselines import mean_number, tfidf_numbers
from bertsmith.model.config import BertConfig
from bertsmith.tasks.evaluating.error_analysis import ErrorAnalysis, number_errors
from bertsmith.tasks.examples.encoding import EncodedExample
from bertsmith.tasks.examples.text_settings import MixedSettings
from bertsmith.tasks.examples.text_task import (
    TextExample,
    TextTask,
    as_text_or_pair,
    missing_score_warnings,
)
from bertsmith.tasks.heads.classifier_head import PooledHead
from bertsmith.tasks.heads.pooling import Pooling
from bertsmith.tasks.saved_state import require_number, require_truth
from bertsmith.tasks.task import AnswerNumber, Head, Metrics, Outputs, Prediction, TaskSettings
from bertsmith.text.files.values import as_number

# Relative to the mean. Weights and answers are float32: a deviation of this size has eight steps there.
_LEAST_DEVIATION = 1e-6
# Read by CrossEncoder of sentence-transformers, which ignores problem_type.
_NO_ACTIVATION = {"sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity"}}


class NumberHead(PooledHead):
    """Predicts in the unit of the labels, but learns standardised numbers (mean 0, deviation 1).

    Otherwise prices in thousands would need a learning rate of their own. `finish` folds the unit into the
    weights, so that transformers computes the same numbers. Until then outputs are converted in float64.
    """

    def __init__(
        self,
        config: BertConfig,
        mean: float,
        deviation: float,
        pooling: Pooling | None = None,
        columns: int = 0,
    ) -> None:
        super().__init__(config, 1, pooling, columns)
        self.mean, self.deviation = mean, deviation

    def outputs(self, states: Tensor) -> Tensor:
        """Outputs in the unit of the labels, for a graph in float32."""
        outputs = super().outputs(states)
        is_finished = (self.mean, self.deviation) == (0.0, 1.0)
        return outputs if is_finished else outputs * self.deviation + self.mean

    def taken_over(self, tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """All but the output layer, because the teacher's answers have another unit."""
        return {name: tensor for name, tensor in tensors.items() if not name.startswith("out.")}

    def to_label_units(self, outputs: Tensor) -> Tensor:
        """Converts standardised outputs (E, 1) into the unit of the labels, in the device's widest float."""
        return outputs.to(widest_float(outputs.device)) * self.deviation + self.mean

    @torch.no_grad()
    def finish(self) -> None:
        self.out.weight.mul_(self.deviation)
        self.out.bias.mul_(self.deviation).add_(self.mean)
        self.mean, self.deviation = 0.0, 1.0


class Regression(TextTask):
    """A number for each text or pair."""

    name = "regression"
    main_metric = "spearman"
    Settings: ClassVar[type[TaskSettings]] = MixedSettings
    settings: MixedSettings
    mean, deviation = 0.0, 1.0
    gives_score = True
    relevance = "score"
    is_linear = True
    answers_are_labels = True
    has_sigmoid = False  # True for a cross-encoder whose scores are in [0, 1]
    bounds: tuple[float, float] | None = None  # of the training scores; None if unknown

    @property
    def activation(self) -> str | None:  # type: ignore[override]
        return "sigmoid" if self.has_sigmoid else None

    def probabilities(self, outputs: Outputs) -> None:
        """None: scores are numbers, even after a sigmoid."""

    def as_target(self, value: Any, where: str) -> float:
        return as_number(value, where)

    def fit(self, train: Sequence[TextExample]) -> None:
        """Takes mean, deviation and bounds of the scores."""
        numbers = np.array([example.label for example in train])
        self.mean, self.deviation = float(numbers.mean()), float(numbers.std())
        self.bounds = float(numbers.min()), float(numbers.max())
        self.fit_columns(train)
        if numbers.min() == numbers.max():  # the deviation may be a rounding error instead of 0
            raise InputError(
                f"Every one of the {len(train):,} training texts has the score {self.mean:g}, from "
                f"{train[0].where} on: there is nothing to learn. Is --label the right column?"
            )
        if self.deviation < _LEAST_DEVIATION * abs(self.mean):
            raise InputError(
                f"The scores of the {len(train):,} training texts, from {train[0].where} on, deviate by "
                f"{self.deviation:g} from their mean, {self.mean:.10g}. A model's numbers have seven digits, "
                "and its answers would be alike. Subtract a number near the mean from every score, and add "
                "it to the answers."
            )

    def warnings(self, examples: Sequence[TextExample]) -> list[str]:
        return missing_score_warnings(examples)

    def head(self, config: BertConfig) -> Head:
        return NumberHead(config, self.mean, self.deviation, self.settings.linear_pooling, self.column_width)

    def loss(self, outputs: Tensor, targets: Sequence[float]) -> Tensor:
        """Summed squared error, in units of the training scores' deviation. For a cross-encoder with scores
        in [0, 1], cross-entropy as in sentence-transformers.
        """
        gold = to_device(np.array(targets, np.float64), outputs.device)
        if self.has_sigmoid:
            return F.binary_cross_entropy_with_logits(outputs.squeeze(1).to(gold), gold, reduction="sum")
        return (((outputs.squeeze(1) - gold) / self.deviation) ** 2).sum()

    def begin_student(self, answers: Sequence[Outputs]) -> None:
        numbers = np.concatenate(answers)
        self.mean, self.deviation = float(numbers.mean()), float(numbers.std()) or 1.0

    def check_taught(self, labelled: Sequence[TextExample]) -> None:
        """Raises InputError for labels on another scale than the teacher's scores."""
        for example in labelled if self.has_sigmoid else ():
            if not 0 <= example.label <= 1:
                raise InputError(
                    f"{example.where}: the label is {example.label:g}, but the teacher's scores lie between "
                    "0 and 1. Bring the labels to that scale, or give the rows without them, as texts."
                )

    def answer_number(
        self, example: TextExample, encoded: EncodedExample, outputs: Outputs, target: str | int | None
    ) -> AnswerNumber:
        self.refuse_target(target)
        return "score", lambda numbers: numbers[:, 0].sigmoid() if self.has_sigmoid else numbers[:, 0]

    def decode(
        self, outputs: Sequence[Outputs], examples: Sequence[TextExample], encoded: Sequence[EncodedExample]
    ) -> list[Prediction]:
        """Predictions with a score each, in the unit of the labels."""
        numbers = [float(output[0]) for output in outputs]
        if self.has_sigmoid:
            numbers = np.exp(-np.logaddexp(0, -np.array(numbers))).tolist()
        return [{"score": number} for number in numbers]

    def metrics(self, predictions: Sequence[Prediction], examples: Sequence[TextExample]) -> Metrics:
        """Spearman and Pearson correlation, and the mean absolute error."""
        gold = [example.label for example in examples]
        return scores.regression(gold, [prediction["score"] for prediction in predictions])

    def error_analysis(
        self, predictions: Sequence[Prediction], examples: Sequence[TextExample]
    ) -> ErrorAnalysis:
        """True and predicted scores, pair by pair."""
        return number_errors(
            [example.label for example in examples], [prediction["score"] for prediction in predictions]
        )

    def baselines(
        self, train: Sequence[TextExample], dev: Sequence[TextExample]
    ) -> dict[str, list[Prediction]]:
        """The mean of train, and ridge regression over TF-IDF."""
        gold = [example.label for example in train]
        texts = [as_text_or_pair(example) for example in train]
        baselines = (
            mean_number(gold, len(dev)),
            tfidf_numbers(texts, gold, [as_text_or_pair(example) for example in dev]),
        )
        return {
            baseline.name: [{"score": float(number)} for number in baseline.predictions]
            for baseline in baselines
        }

    def state(self) -> dict[str, Any]:
        bounds = {"bounds": None if self.bounds is None else [*self.bounds]}
        return super().state() | bounds | ({"has_sigmoid": True} if self.has_sigmoid else {})

    @classmethod
    def from_state(cls, state: Mapping[str, Any], where: str) -> Self:
        task = super().from_state(state, where)
        task.has_sigmoid = require_truth(state.get("has_sigmoid", False), "has_sigmoid", where)
        match state.get("bounds"):
            case [lowest, highest]:
                task.bounds = (
                    require_number(lowest, "bounds", where),
                    require_number(highest, "bounds", where),
                )
            case None:
                pass
            case other:
                raise ModelError(
                    f"{where}: bounds must be the lowest and the highest score, or null, found {other!r}. "
                    "The file was altered: take it from a copy, or train again."
                )
        return task

    def config_labels(self) -> dict[str, Any]:
        """With the activation that other libraries apply to the output: a sigmoid, unless the config says
        otherwise.
        """
        names = {"id2label": {"0": "score"}, "label2id": {"score": 0}}
        return names if self.has_sigmoid else names | {"problem_type": "regression"} | _NO_ACTIVATION
