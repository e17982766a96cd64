"""A model that answers for rows: what it takes each for, and how sure it is.

E rows, C labels.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from bertsmith.arrays import Floats
from bertsmith.metrics.calibration import probabilities_of
from bertsmith.model.own_tokenizer import load_own_tokenizer
from bertsmith.tasks.computing.task_model import TaskModel
from bertsmith.tasks.examples.calibrated_task import CalibratedTask
from bertsmith.tasks.examples.text_task import TextExample, TextTask
from bertsmith.tasks.finetuning import EncodedExamples, encode_examples
from bertsmith.tasks.heads.classifier_head import ClassifierHead
from bertsmith.tasks.multi_label import MultiLabel
from bertsmith.tasks.task import Outputs


class AnsweringModel(NamedTuple):
    """A model that answers, and what reads for it."""

    model: TaskModel
    task: TextTask
    folder: Path

    def encode(self, rows: Sequence[TextExample]) -> EncodedExamples:
        tokenizer = load_own_tokenizer(self.folder, self.model.config)
        return encode_examples(self.task, rows, tokenizer)

    def outputs(self, features: Tensor) -> list[Outputs]:
        """(E, F), what the head's last layer reads -> (C,) of each."""
        head = self.model.head
        assert isinstance(head, ClassifierHead)
        with torch.inference_mode():
            found = head.in_units(head.out(features.to(head.out.weight.device)))
        return [*found.cpu().numpy()]


def probabilities_of_rows(task: TextTask, outputs: Sequence[Outputs]) -> Floats:
    """(E, C)."""
    temperature = task.temperature if isinstance(task, CalibratedTask) else 1.0
    return probabilities_of(np.stack(outputs), temperature, multi_label=isinstance(task, MultiLabel))


def likeliest_answers(task: TextTask, probabilities: Floats) -> Floats:
    """(E, C) of 0 and 1: the answer that each row would get."""
    if isinstance(task, MultiLabel):
        return (probabilities >= task.thresholds).astype(np.float64)
    return np.asarray(np.eye(probabilities.shape[1])[probabilities.argmax(1)])


def guess_of(task: TextTask, probabilities: Floats, likeliest: Floats) -> tuple[str, float]:
    """The answer as a file has it, and its probability: of several labels that of the least sure one."""
    names = [label for label, given in zip(task.labels, likeliest, strict=True) if given]
    sure = np.where(likeliest > 0, probabilities, 1 - probabilities)
    confidence = sure.min() if isinstance(task, MultiLabel) else probabilities.max()
    return separator_of(task).join(names), float(confidence)


def separator_of(task: TextTask) -> str:
    """What stands between several labels in a file."""
    return task.settings.separator if isinstance(task, MultiLabel) else ","
