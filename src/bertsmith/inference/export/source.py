"""ExportSource: the model to export, as a padded model on the same weights, and the answers of the packed
model, which the graph must match.

R rows that a head reads, C outputs, H hidden size.
"""

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from bertsmith.data.batch import PackedBatch
from bertsmith.inference.embedding.embedder import pooled_in_batches, projected
from bertsmith.inference.embedding.vectors import normalised
from bertsmith.inference.engine import start_engine
from bertsmith.inference.export.padded import PaddedModel, StatesHead, VectorOutputs, padded_head
from bertsmith.model.bert import Bert
from bertsmith.model.checkpoint import refuse_adapter
from bertsmith.tasks.checkpoints.infer_task import locate_with_layers, model_kind
from bertsmith.tasks.checkpoints.projection_folders import read_projection
from bertsmith.tasks.checkpoints.sentence_folder import (
    SentenceSettings,
    load_vector_encoder,
    read_pooling,
    read_sentence_settings,
    refuse_unpooled_prompts,
)
from bertsmith.tasks.checkpoints.task_checkpoint import load_task_model
from bertsmith.tasks.examples.encoding import EncodedExample, Layout, Window
from bertsmith.tasks.forward_passes import forward_passes
from bertsmith.tasks.task import Task
from bertsmith.tasks.task_model import TaskModel, outputs_of
from bertsmith.text.tokens.tokenizer import Tokenizer
from bertsmith.text.tokens.value_tokenizers import require_text

Answer = npt.NDArray[np.floating[Any]]  # for one sequence: (C,), (R, C) or (H,)

_CPU = torch.device("cpu")


@dataclass(frozen=True)
class ExportSource:
    """The model to export. `task` is None for an encoder alone, whose pooling is in `sentences`. `packed` is
    the model as `predict` and `embed` use it, in float32.
    """

    name: str
    folder: Path
    padded: PaddedModel
    packed: TaskModel | Bert
    tokenizer: Tokenizer
    task: Task[Any] | None
    sentences: SentenceSettings | None
    max_length: int
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        require_text(self.tokenizer, "Export")

    @property
    def kind(self) -> str:
        """The kind of answer: "vectors", "states" (hidden states), or the task's name."""
        if self.task is not None and not isinstance(self.padded.head, VectorOutputs):
            return self.task.name
        return "vectors" if isinstance(self.padded.head, VectorOutputs) else "states"

    @property
    def by_angle(self) -> bool:
        """Whether answers are vectors or hidden states, which are compared by their cosines."""
        return self.kind in ("vectors", "states")

    @property
    def decided(self) -> tuple[str, ...]:
        """The keys of a prediction in which graph and model must agree."""
        return () if self.task is None or self.by_angle else self.task.decided

    def answers(self, windows: Sequence[Window]) -> list[Answer]:
        """The packed model's answers, one for each window."""
        encoded = [EncodedExample((window,)) for window in windows]
        head = self.padded.head
        if isinstance(head, VectorOutputs):
            pooled = np.empty((len(encoded), self.packed.config.hidden_size), np.float32)
            encoder = self._encoder
            for indices, vectors in pooled_in_batches(encoder, encoded, head.pooling, _CPU, torch.float32):
                pooled[indices] = vectors
            vectors_of_all = projected(pooled, head.projection)[:, : head.truncate_dim]
            return list(normalised(vectors_of_all) if head.normalise else vectors_of_all)
        if isinstance(head, StatesHead):
            return self._hidden_states(encoded)
        assert isinstance(self.packed, TaskModel)
        return list(outputs_of(self.packed, encoded))

    @property
    def _encoder(self) -> Bert:
        return self.packed if isinstance(self.packed, Bert) else self.packed.encoder

    def _hidden_states(self, encoded: Sequence[EncodedExample]) -> list[Answer]:
        def compute(batch: PackedBatch, layout: Layout) -> Tensor:
            states: Tensor = self._encoder(batch)
            return states

        answers: list[Answer] = [np.zeros(0, np.float32)] * len(encoded)
        for indices, layout, states in forward_passes(compute, encoded, _CPU):
            ends = np.cumsum(layout.rows_of_example)[:-1]
            for number, rows in zip(indices, np.split(states, ends), strict=True):
                answers[number] = rows
        return answers


def open_source(name: str | Path, task: type[Task[Any]] | None = None) -> ExportSource:
    """Opens a model for export, by path, alias or hub name. `task` is the task's class if you wrote it
    yourself. Raises ModelError for a model that can't be exported, and as loading does.
    """
    folder = locate_with_layers(name)
    if model_kind(folder) == "task":
        return _open_task_source(str(name), folder, task)
    sentences = read_sentence_settings(folder)
    refuse_unpooled_prompts(folder, sentences, "an exported graph")
    encoder = load_vector_encoder(sentences)
    projection = read_projection(sentences.projection, encoder.config.hidden_size)
    encoder.pooler = None
    is_embedder = read_pooling(folder) is not None
    vectors = VectorOutputs(sentences.pooling, True, sentences.truncate_dim, projection)
    head = vectors if is_embedder else StatesHead()
    engine = start_engine(deepcopy(encoder), sentences.encoder, _CPU, torch.float32)
    longest = min(sentences.max_length or encoder.config.max_length, encoder.config.max_length)
    notes = () if is_embedder else ("The folder says nothing of vectors or a task: its hidden states.",)
    padded = PaddedModel(encoder, head, one_segment=engine.tokenizer.one_segment)
    return ExportSource(
        str(name), folder, padded, engine.model, engine.tokenizer, None, sentences, longest, notes
    )


def _open_task_source(name: str, folder: Path, task_class: type[Task[Any]] | None) -> ExportSource:
    refuse_adapter(folder)
    model, task = load_task_model(folder, task_class)
    head = padded_head(model.head, model.encoder, task.name)
    notes: tuple[str, ...] = ()
    if task.settings.stride is not None and not head.per_token:
        notes = (
            "Of a longer text the graph reads the first window; Bertsmith's own predictions join several.",
        )
        task.settings = task.settings.model_copy(update={"stride": None})
    packed = deepcopy(model)
    task.bind(packed.head)
    engine = start_engine(packed, folder, _CPU, torch.float32)
    padded = PaddedModel(model.encoder, head, one_segment=engine.tokenizer.one_segment)
    return ExportSource(
        name, folder, padded, packed, engine.tokenizer, task, None, task.settings.max_length, notes
    )
