"""How alike two texts are: each encoded alone by the same encoder, pooled, and compared by their cosine, or
by a classifier on (u, v, |u - v|) (Reimers and Gurevych 2019, section 3).

E examples, T texts (two an example), H hidden size, C classes.
"""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from torch import Tensor, nn

from bertsmith.data.batch import to_device
from bertsmith.errors import InputError, ModelError
from bertsmith.metrics import scores
from bertsmith.metrics.baselines import majority_class, mean_number, tfidf_classes, tfidf_cosine
from bertsmith.metrics.calibration import probabilities_of
from bertsmith.model.config import BertConfig
from bertsmith.tasks.checkpoints.sentence_folder import write_sentence_folder
from bertsmith.tasks.evaluating.error_analysis import ErrorAnalysis, class_errors, number_errors
from bertsmith.tasks.examples.encoding import EncodedExample, windows_apart
from bertsmith.tasks.examples.text_settings import RowSettings
from bertsmith.tasks.examples.text_task import TextExample, TextTask, missing_score_warnings
from bertsmith.tasks.heads.classifier_head import PairHead, VectorHead
from bertsmith.tasks.heads.pooling import Pooling
from bertsmith.tasks.losses.distillation import ClassLoss, CosineLoss, DistillationLoss
from bertsmith.tasks.saved_state import require_number
from bertsmith.tasks.task import AnswerNumber, Head, Metrics, Outputs, Prediction, Task, TaskSettings
from bertsmith.text.files.values import as_number
from bertsmith.text.labelled.label_names import find_stand_ins
from bertsmith.text.tokens.long_texts import TextEncoding
from bertsmith.text.tokens.tokenizer import Tokenizer


class SimilaritySettings(RowSettings):
    """Settings of similarity. `pooling` of a text's hidden states; when training starts, the one in the
    encoder's folder. `target`: whether labels are scores or classes.
    """

    of_model: ClassVar[frozenset[str]] = RowSettings.of_model | {"pooling", "target"}
    pooling: Pooling = "mean"
    """`mean`, `cls` or `max`; where it isn't given, as the model's folder says."""
    target: Literal["score", "class"] = "score"
    """`score` or `class`."""


class Similarity(TextTask):
    """Similarity of two texts that are encoded separately, so that vectors can be stored and compared."""

    name = "similarity"
    Settings: ClassVar[type[TaskSettings]] = SimilaritySettings
    settings: SimilaritySettings
    makes_vectors = True
    gives_score = True
    bounds = (-1.0, 1.0)  # of the cosine
    answers_are_labels = True
    lowest, highest = 0.0, 1.0

    @property
    def main_metric(self) -> str:  # type: ignore[override]
        return "spearman" if self.settings.target == "score" else "accuracy"

    @property
    def reads_pairs(self) -> bool:
        return True

    @property
    def compares_vectors(self) -> bool:
        return self.settings.target == "score"

    def as_target(self, value: Any, where: str) -> Any:
        return as_number(value, where) if self.settings.target == "score" else self.as_own_label(value, where)

    def stand_ins(self, labels: Collection[Any]) -> Collection[Any]:
        return () if self.settings.target == "score" else find_stand_ins(labels, self.labels)

    def fit(self, train: Sequence[TextExample]) -> None:
        """Takes the range of the scores, which is mapped to cosines from 0 to 1; or the classes."""
        values = sorted({example.label for example in train})
        if len(values) < 2:
            raise InputError(
                f"Every one of the {len(train):,} training pairs has the label {values[0]!r}, from "
                f"{train[0].where} on: there is nothing to learn. Is --label the right column?"
            )
        if self.settings.target == "score":
            self.lowest, self.highest = float(values[0]), float(values[-1])
        else:
            self.labels = tuple(values)

    def target(self, label: Any) -> Any:
        if self.settings.target == "class":
            return self.label_ids[label]
        return (label - self.lowest) / (self.highest - self.lowest)

    def check(self, examples: Sequence[TextExample]) -> None:
        for example in examples:
            if example.text_pair is None:
                raise InputError(
                    f"{example.where}: similarity needs two texts. Name the second: --text-pair."
                )
            if self.settings.target == "class":
                self.require_known(example.label, example.where)

    def warnings(self, examples: Sequence[TextExample]) -> list[str]:
        return missing_score_warnings(examples) if self.settings.target == "score" else []

    def labels_of(self, example: TextExample) -> tuple[str, ...]:
        return (example.label,) if self.settings.target == "class" else ()

    def encode(
        self, example: TextExample, pieces: Sequence[TextEncoding], tokenizer: Tokenizer
    ) -> EncodedExample:
        """Encodes the two texts in windows of their own."""
        text_windows = windows_apart(tokenizer, pieces, self.settings.max_length, self.settings.stride)
        return EncodedExample(text_windows, None if example.label is None else self.target(example.label))

    def head(self, config: BertConfig) -> Head:
        return PairHead(
            config, self.settings.pooling, len(self.labels), self.copy_projection(config.hidden_size)
        )

    def loss(self, outputs: Tensor, targets: Sequence[Any]) -> Tensor:
        """Summed squared error of the cosine (E, 1), or cross-entropy of logits (E, C)."""
        gold = to_device(np.array(targets), outputs.device)
        if self.settings.target == "class":
            return nn.functional.cross_entropy(outputs.float(), gold, reduction="sum")
        return ((outputs.float().squeeze(1) - gold.float()) ** 2).sum()

    def distillation_loss(self, temperature: float, head: Head) -> DistillationLoss:
        return ClassLoss(temperature) if self.settings.target == "class" else DistillationLoss(deviation=1.0)

    def decoding(self, tokenizer: Tokenizer) -> dict[str, Any]:
        return {"range": [self.lowest, self.highest]} | super().decoding(tokenizer)

    def outputs_of_vectors(self, vectors: Outputs) -> Outputs:
        """The cosine (1,) of an example's two vectors (2, H)."""
        first, second = vectors
        lengths = max(float(np.linalg.norm(first) * np.linalg.norm(second)), 1e-12)
        return np.array([float(first @ second / lengths)], np.float32)

    def as_teacher(self) -> Task[TextExample]:
        """The task with vectors as outputs; a subclass, or a task of classes, stays as it is."""
        if type(self) is not Similarity or not self.compares_vectors:
            return self
        return VectorSimilarity.from_state(self.state(), "the teacher")

    def answer_number(
        self, example: TextExample, encoded: EncodedExample, outputs: Outputs, target: str | int | None
    ) -> AnswerNumber:
        """The probability of a class, or the cosine of the two texts."""
        if self.labels:
            index = self.label_number(outputs[0], target)
            return self.labels[index], lambda logits: logits.softmax(1)[:, index]
        self.refuse_target(target)
        return "similarity", lambda cosines: cosines[:, 0]

    def decode(
        self, outputs: Sequence[Outputs], examples: Sequence[TextExample], encoded: Sequence[EncodedExample]
    ) -> list[Prediction]:
        """Predictions with similarity (the cosine) and score (in the range of the labels), or label and
        confidence.
        """
        if self.settings.target == "class":
            probabilities = probabilities_of(np.stack(outputs))
            return [
                {"label": self.labels[int(row.argmax())], "confidence": round(float(row.max()), 6)}
                for row in probabilities
            ]
        cosines = [min(max(float(output[0]), -1.0), 1.0) for output in outputs]  # rounding may exceed 1
        width = self.highest - self.lowest
        return [{"similarity": cosine, "score": self.lowest + width * max(cosine, 0.0)} for cosine in cosines]

    def metrics(self, predictions: Sequence[Prediction], examples: Sequence[TextExample]) -> Metrics:
        """Spearman and Pearson correlation of the cosine; for classes the metrics of classification."""
        if self.settings.target == "class":
            gold = [self.target(example.label) for example in examples]
            predicted = [self.target(prediction["label"]) for prediction in predictions]
            return scores.classification(gold, predicted, self.labels)
        cosines = [prediction["similarity"] for prediction in predictions]
        metrics = scores.regression([example.label for example in examples], cosines)
        return {"spearman": metrics["spearman"], "pearson": metrics["pearson"]}

    def error_analysis(
        self, predictions: Sequence[Prediction], examples: Sequence[TextExample]
    ) -> ErrorAnalysis:
        """True and predicted scores, or what `class_errors` says of classes."""
        gold = [example.label for example in examples]
        if self.settings.target == "score":
            return number_errors(gold, [prediction["score"] for prediction in predictions])
        predicted = [prediction["label"] for prediction in predictions]
        return class_errors(
            self.labels, gold, predicted, [prediction["confidence"] for prediction in predictions]
        )

    def baselines(
        self, train: Sequence[TextExample], dev: Sequence[TextExample]
    ) -> dict[str, list[Prediction]]:
        """The most frequent class and logistic regression over TF-IDF; for scores their mean and the cosine
        of TF-IDF vectors.
        """
        train_pairs, dev_pairs = _text_pairs(train), _text_pairs(dev)
        if self.settings.target == "class":
            gold = [self.target(example.label) for example in train]
            classifiers = majority_class(gold, len(dev)), tfidf_classes(train_pairs, gold, dev_pairs)
            return {
                baseline.name: [{"label": self.labels[index]} for index in baseline.predictions]
                for baseline in classifiers
            }
        mean = mean_number([example.label for example in train], len(dev))
        return {
            baseline.name: [{"similarity": float(number)} for number in baseline.predictions]
            for baseline in (mean, tfidf_cosine(train_pairs, dev_pairs))
        }

    def state(self) -> dict[str, Any]:
        return super().state() | {"range": [self.lowest, self.highest]}

    @classmethod
    def from_state(cls, state: Mapping[str, Any], where: str) -> "Similarity":
        task = super().from_state(state, where)
        ends = state.get("range")
        if not isinstance(ends, list) or len(ends) != 2:
            raise ModelError(f"{where}: range: expected two numbers, found {str(ends)[:80]!r}.")
        task.lowest, task.highest = (require_number(end, "range", where) for end in ends)
        if task.lowest >= task.highest:
            raise ModelError(f"{where}: range: expected the lower number first, found {ends}.")
        return task

    def config_labels(self) -> dict[str, Any]:
        return {}

    def write_extra_files(self, folder: Path, config: BertConfig) -> None:
        """Writes the files that sentence-transformers reads: how the encoder's hidden states are pooled."""
        write_sentence_folder(
            folder,
            config,
            self.settings.pooling,
            self.settings.max_length,
            projection=self.trained_projection,
        )


class VectorSimilarity(Similarity):
    """Similarity with a head that returns the vectors, so that a student can learn them. It is saved as
    Similarity, for both heads have the same weights: those of the projection, if there is one.
    """

    def distillation_loss(self, temperature: float, head: Head) -> DistillationLoss:
        return CosineLoss()

    def head(self, config: BertConfig) -> Head:
        projection = self.copy_projection(config.hidden_size)
        return VectorHead(self.settings.pooling, normalise=True, projection=projection)

    def loss(self, outputs: Tensor, targets: Sequence[Any]) -> Tensor:
        """(E, 2, H) -> the summed squared error of the cosines."""
        return self.losses(outputs, targets).sum()

    def losses(self, outputs: Tensor, targets: Sequence[Any]) -> Tensor:
        """(E, 2, H) -> (E,), the squared error of each cosine."""
        gold = to_device(np.array(targets, np.float32), outputs.device)
        first, second = outputs.float().unbind(1)
        return ((first * second).sum(1) - gold).square()

    def decode(
        self, outputs: Sequence[Outputs], examples: Sequence[TextExample], encoded: Sequence[EncodedExample]
    ) -> list[Prediction]:
        """Like `Similarity.decode`, for outputs that are two vectors (2, H)."""
        cosines = [(output[0] * output[1]).sum(keepdims=True) for output in outputs]
        return super().decode(cosines, examples, encoded)


def _text_pairs(examples: Sequence[TextExample]) -> list[tuple[str, str]]:
    return [(example.text, example.text_pair or "") for example in examples]
