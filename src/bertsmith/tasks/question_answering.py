"""The answer to a question as a span of a passage: a start and an end score for each piece of the passage
(Devlin et al. 2019, sections 4.2 and 4.3).

[CLS] question [SEP] passage [SEP]; [CLS] stands for "no answer in this window". R rows read: [CLS] and the
passage's pieces of each window, T.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

from bertsmith.arrays import Floats, Int32s, Ints
from bertsmith.data.batch import to_device
from bertsmith.metrics.baselines import lexical_answers
from bertsmith.metrics.scores import question_scores
from bertsmith.metrics.thresholds import no_answer_threshold
from bertsmith.model.config import BertConfig
from bertsmith.tasks.evaluating.error_analysis import ErrorAnalysis, span_errors
from bertsmith.tasks.examples.answer_spans import encode_passage, gold_span, predict_span
from bertsmith.tasks.examples.encoding import EncodedExample
from bertsmith.tasks.heads.classifier_head import RowHead
from bertsmith.tasks.losses.distillation import DistillationLoss, SpanLoss
from bertsmith.tasks.saved_state import require_number
from bertsmith.tasks.task import (
    UNBOUND,
    AnswerNumber,
    Bound,
    Head,
    Metrics,
    Outputs,
    Prediction,
    Task,
    TaskSettings,
)
from bertsmith.text.labelled.squad import QuestionKeys, SquadQuestion, read_squad
from bertsmith.text.tokens.long_texts import TextEncoding
from bertsmith.text.tokens.tokenizer import Tokenizer


class AnswerSettings(TaskSettings):
    """As in BERT's published script, except for the stride, which here is the overlap of two windows. `group`
    is a key (`title` in SQuAD's JSON): questions that share its value are never divided between train and
    dev.
    """

    of_model: ClassVar[frozenset[str]] = TaskSettings.of_model | {"longest_answer"}
    max_length: int = Field(384, ge=16)
    """Tokens of a window, question included."""
    stride: int | None = Field(128, ge=0)
    """Tokens that two windows share."""
    longest_answer: int = Field(30, ge=1)
    """In pieces."""
    group: str | int | None = None
    """A key, in SQuAD's JSON `title`: as for classification. By default the passage."""


class SpanHead(RowHead):
    """A start and an end score for each row."""

    architecture: str | None = "ForQuestionAnswering"
    graph_outputs: ClassVar[tuple[str, ...]] = ("start_logits", "end_logits")

    def __init__(self, config: BertConfig) -> None:
        super().__init__(config, config.family.span_head, 2, dropout=0.0)


class QuestionAnswering(Task[SquadQuestion]):
    """Questions about passages, in SQuAD's files v1.1 and v2.0."""

    name = "question-answering"
    main_metric = "f1"
    Settings: ClassVar[type[TaskSettings]] = AnswerSettings
    baselines_learn = False
    activation = "softmax over the places of a window"
    decided = ("start", "end")
    answers_are_labels = True
    settings: AnswerSettings
    threshold: float | None = None  # None: every question has an answer (v1.1)

    @property
    def reads_pairs(self) -> bool:
        return True

    def read(self, path: Path | str, *, labelled: bool = True) -> list[SquadQuestion]:
        """Reads SQuAD's JSON, or JSON lines with the keys that --text, --text-pair and --label name."""
        settings = self.settings
        is_optional = self.optional_group is not None
        keys = QuestionKeys(
            settings.text, settings.text_pair, settings.label, settings.group, not is_optional
        )
        questions = read_squad(
            path, labelled=labelled, format=settings.format, keys=keys, encoding=settings.encoding
        )
        if labelled:
            self.tell_lost_groups(questions, path)
        return questions

    def example(self, text: Sequence[str], where: str = "the input") -> SquadQuestion:
        """An example from a question and a passage."""
        return SquadQuestion.of_input(text, where)

    def warnings(self, examples: Sequence[SquadQuestion]) -> list[str]:
        """Warns of answers that weren't found at the file's offsets."""
        moved = [example for example in examples if example.moved]
        if not moved:
            return []
        return [
            f"{sum(example.moved for example in moved):,} answers do not stand where the file says and were "
            f"taken from the nearest place that has them, the first in {moved[0].where}"
        ]

    def group_key(self, example: SquadQuestion) -> Sequence[str]:
        """The passage: if its questions were divided, its answers would be known from train."""
        return (example.passage,) if example.group is None else super().group_key(example)

    def texts(self, example: SquadQuestion) -> Sequence[str]:
        return example.question, example.passage

    def encode(
        self, example: SquadQuestion, pieces: Sequence[TextEncoding], tokenizer: Tokenizer
    ) -> EncodedExample:
        """Windows over the passage, each after the question, which is cut to leave room for at least eight
        tokens. The target is the row of the answer's start and of its end in each window; 0 is [CLS].
        """
        settings = self.settings
        encoded = encode_passage(pieces, tokenizer, settings.max_length, settings.stride)
        offsets = np.asarray(pieces[1].offsets, np.int32).reshape(-1, 2)
        targets = [self._find_target(example, offsets, bounds) for bounds in encoded.ranges]
        target = targets if example.answers or example.impossible else None
        return EncodedExample(encoded.windows, target, encoded.pieces)

    def head(self, config: BertConfig) -> Head:
        return SpanHead(config)

    def loss(self, outputs: Tensor, targets: Sequence[Any]) -> Tensor:
        """Cross-entropy of start and of end over each window's rows, half of either."""
        flat = [window_target for target in targets for window_target in target]
        sizes = [size for size, _, _ in flat]
        padded = nn.utils.rnn.pad_sequence(
            list(outputs.float().split(sizes)), batch_first=True, padding_value=-torch.inf
        )
        loss = torch.zeros((), device=outputs.device)
        for side in (0, 1):  # start, end
            gold = to_device(np.array([target[1 + side] for target in flat]), outputs.device)
            loss = loss + nn.functional.cross_entropy(padded[..., side], gold, reduction="sum") / 2
        return loss

    def count(self, targets: Sequence[Any]) -> float:
        """The number of windows, each of which has a target."""
        return sum(len(target) for target in targets)

    def distillation_loss(self, temperature: float, head: Head) -> DistillationLoss:
        return SpanLoss(temperature)

    def probabilities(self, outputs: Outputs) -> Floats | None:
        """Logits (R, 2) of a window -> probabilities (2, R)."""
        return super().probabilities(outputs.T)

    def decoding(self, tokenizer: Tokenizer) -> dict[str, Any]:
        settings = self.settings
        return {
            "no_answer_threshold": self.threshold,
            "longest_answer": settings.longest_answer,
            "stride": settings.stride,
        }

    def average(self, teachers: Sequence[Task[SquadQuestion]], outputs: Sequence[Sequence[Outputs]]) -> None:
        own_teachers = [teacher for teacher in teachers if isinstance(teacher, QuestionAnswering)]
        thresholds = [teacher.threshold for teacher in own_teachers if teacher.threshold is not None]
        self.threshold = float(np.mean(thresholds)) if thresholds else None

    def as_label(self, example: SquadQuestion, prediction: Prediction) -> SquadQuestion:
        is_answered = prediction["start"] is not None
        answers = ((prediction["answer"], prediction["start"]),) if is_answered else ()
        return replace(example, answers=answers, impossible=not is_answered)

    def calibrate(
        self, outputs: Sequence[Outputs], examples: Sequence[SquadQuestion], encoded: Sequence[EncodedExample]
    ) -> Metrics:
        """Chooses the odds from which "no answer" is given, by the F1 on dev, if dev has questions without an
        answer.
        """
        self.threshold = None
        if not any(example.impossible for example in examples):
            return {}
        predictions = self.decode(outputs, examples, encoded)
        golds = [[text for text, _ in example.answers] for example in examples]
        _, f1 = question_scores([str(prediction["answer"]) for prediction in predictions], golds)
        odds = np.array([prediction["null_odds"] for prediction in predictions])
        answerable = np.array([not example.impossible for example in examples])
        self.threshold = no_answer_threshold(odds, f1, answerable)
        return {"null_threshold": self.threshold}

    def answer_number(
        self, example: SquadQuestion, encoded: EncodedExample, outputs: Outputs, target: str | int | None
    ) -> AnswerNumber:
        """The probability of both ends of the answer or, if there is none, of row 0, which is [CLS]. The
        other rows are the passage's tokens.
        """
        self.refuse_target(target)
        (prediction,) = self.decode([outputs], [example], [encoded])
        start = end = 0
        if prediction["answer"]:
            offsets = encoded.decoding[0].offsets  # (R - 1, 2)
            start = 1 + int(np.flatnonzero(offsets[:, 1] > prediction["start"])[0])
            end = 1 + int(np.flatnonzero(offsets[:, 0] < prediction["end"])[-1])

        def both_ends(scores: Tensor) -> Tensor:
            """Logits (S, R, 2) -> the product (S,) of the two probabilities."""
            probabilities = scores.softmax(1)
            return torch.mul(probabilities[:, start, 0], probabilities[:, end, 1])

        return prediction["answer"] or "no answer", both_ends

    def decode(
        self, outputs: Sequence[Outputs], examples: Sequence[SquadQuestion], encoded: Sequence[EncodedExample]
    ) -> list[Prediction]:
        """Predictions with the answer ("" for none), its offsets in characters, its confidence, and the odds
        of no answer.
        """
        return [
            self._predict(output, example, windows)
            for output, example, windows in zip(outputs, examples, encoded, strict=True)
        ]

    def decode_by_folds(
        self,
        outputs: Sequence[Outputs],
        examples: Sequence[SquadQuestion],
        encoded: Sequence[EncodedExample],
        folds: Ints,
        bound: Mapping[int, Bound] = UNBOUND,
    ) -> list[Prediction]:
        """The threshold that decides whether a question has an answer is chosen on the other folds."""
        predictions: list[Prediction] = [{}] * len(outputs)
        for judge, _, rows, own, others in self._judges(folds, outputs, examples, encoded):
            judge.threshold = None
            if others[0]:
                judge.calibrate(*others)
            for row, prediction in zip(rows, judge.decode(*own), strict=True):
                predictions[row] = prediction
        return predictions

    def metrics(self, predictions: Sequence[Prediction], examples: Sequence[SquadQuestion]) -> Metrics:
        """Exact match and F1 by the official rules, as shares."""
        golds = [[text for text, _ in example.answers] for example in examples]
        exact, f1 = question_scores([str(prediction["answer"]) for prediction in predictions], golds)
        metrics = {"f1": float(f1.mean()), "exact_match": float(exact.mean())}
        impossible = np.array([example.impossible for example in examples])
        if impossible.any() and not impossible.all():
            metrics |= {
                "f1_answerable": float(f1[~impossible].mean()),
                "f1_unanswerable": float(f1[impossible].mean()),
            }
        return metrics

    def error_analysis(
        self, predictions: Sequence[Prediction], examples: Sequence[SquadQuestion]
    ) -> ErrorAnalysis:
        """Each question's answers and their F1, and the confidence of predicted answers."""
        golds = [[text for text, _ in example.answers] for example in examples]
        predicted = [str(prediction["answer"]) for prediction in predictions]
        confidence = [prediction["confidence"] for prediction in predictions]
        return span_errors(golds, predicted, confidence, *question_scores(predicted, golds))

    def baselines(
        self, train: Sequence[SquadQuestion], dev: Sequence[SquadQuestion]
    ) -> dict[str, list[Prediction]]:
        """Never an answer, and a span of the sentence that shares most words with the question."""
        lexical = lexical_answers([(example.question, example.passage) for example in dev])
        return {
            "no answer": [{"answer": ""} for _ in dev],
            lexical.name: [{"answer": answer} for answer in lexical.predictions],
        }

    def line(self, example: SquadQuestion, prediction: Prediction) -> dict[str, Any]:
        gold = (
            {"gold": [text for text, _ in example.answers]} if example.answers or example.impossible else {}
        )
        return {"id": example.id, "question": example.question, **gold, **prediction}

    def state(self) -> dict[str, Any]:
        return super().state() | {"threshold": self.threshold}

    @classmethod
    def from_state(cls, state: Mapping[str, Any], where: str) -> "QuestionAnswering":
        task = super().from_state(state, where)
        threshold = state.get("threshold")
        task.threshold = None if threshold is None else require_number(threshold, "threshold", where)
        return task

    def config_labels(self) -> dict[str, Any]:
        return {}

    def _find_target(
        self, example: SquadQuestion, offsets: Int32s, window: tuple[int, int]
    ) -> tuple[int, int, int]:
        """(rows, start, end) of the first answer in this window, or of [CLS] if the window doesn't
        hold it.
        """
        rows = 1 + window[1] - window[0]
        if not example.answers:
            return rows, 0, 0
        text, at = example.answers[0]
        span = gold_span(offsets, at, at + len(text), window)
        return (rows, 0, 0) if span is None else (rows, span[0] + 1, span[1] + 1)

    def _predict(self, output: Outputs, example: SquadQuestion, encoded: EncodedExample) -> Prediction:
        return predict_span(
            output, example.passage, encoded, longest=self.settings.longest_answer, threshold=self.threshold
        )
