"""A model that answers for rows: what it takes each for, and how sure it is.

E rows, C labels.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from bertsmith.arrays import Floats
from bertsmith.model.own_tokenizer import load_own_tokenizer
from bertsmith.progress import Progress
from bertsmith.tasks.examples.text_task import TextExample, TextTask
from bertsmith.tasks.finetuning import EncodedExamples, encode_examples
from bertsmith.tasks.heads.linear_start import features_of
from bertsmith.tasks.task_model import TaskModel, outputs_of


class AnsweringModel(NamedTuple):
    """A model that answers, and what reads for it."""

    model: TaskModel
    task: TextTask
    folder: Path

    def encode(self, rows: Sequence[TextExample]) -> EncodedExamples:
        tokenizer = load_own_tokenizer(self.folder, self.model.config)
        return encode_examples(self.task, rows, tokenizer)

    def answer(self, rows: Sequence[TextExample], progress: Progress | None) -> tuple[Floats, Floats]:
        """(E, F) what the head's last layer reads of the rows, and (E, C) the probabilities of the labels."""
        encoded = self.encode(rows).encoded
        features = torch.stack(features_of(self.model, encoded, progress))
        with torch.inference_mode():
            found = self.model.head.answer_features(features)
        outputs = np.stack(outputs_of(self.model, encoded)) if found is None else found.cpu().numpy()
        return features.numpy().astype(np.float64), self.task.label_probabilities(outputs)
