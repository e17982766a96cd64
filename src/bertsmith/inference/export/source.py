"""The model that is exported: its padded twin on the same weights, and what the packed model answers.

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
from bertsmith.inference.embedding.embedder import pooled_in_batches
from bertsmith.inference.embedding.vectors import normalised
from bertsmith.inference.engine import start_engine
from bertsmith.inference.export.padded import PaddedModel, StatesHead, VectorHead, padded_head
from bertsmith.model.bert import Bert
from bertsmith.model.checkpoint import load_encoder
from bertsmith.tasks.checkpoints.infer_task import locate_with_layers, model_kind
from bertsmith.tasks.checkpoints.sentence_folder import (
    SentenceSettings,
    read_pooling,
    read_sentence_settings,
    refuse_projection,
)
from bertsmith.tasks.checkpoints.task_checkpoint import load_task_model
from bertsmith.tasks.examples.encoding import EncodedExample, Layout, Window
from bertsmith.tasks.forward_passes import forward_passes
from bertsmith.tasks.task import Task
from bertsmith.tasks.task_model import TaskModel, outputs_of
from bertsmith.text.tokens.tokenizer import Tokenizer
from bertsmith.text.tokens.value_tokenizers import require_text

Answer = npt.NDArray[np.floating[Any]]  # of one sequence: (C,), (R, C) or (H,)

_CPU = torch.device("cpu")


@dataclass(frozen=True)
class ExportSource:
    """`task` is None for an encoder alone, which `sentences` says how to pool. `packed` computes in float32
    by what `predict` and `embed` compute by.
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
        """What the graph answers with, for those who compare it."""
        if self.task is not None and not isinstance(self.padded.head, VectorHead):
            return self.task.name
        return "vectors" if isinstance(self.padded.head, VectorHead) else "states"

    @property
    def by_angle(self) -> bool:
        """Whether its answers are vectors or hidden states, which are compared by their cosines."""
        return self.kind in ("vectors", "states")

    @property
    def decided(self) -> tuple[str, ...]:
        """The keys of a prediction that the graph has to give alike."""
        return () if self.task is None or self.by_angle else self.task.decided

    def answers(self, windows: Sequence[Window]) -> list[Answer]:
        """The packed model's, a sequence each."""
        encoded = [EncodedExample((window,)) for window in windows]
        head = self.padded.head
        if isinstance(head, VectorHead):
            found = np.empty((len(encoded), self.packed.config.hidden_size), np.float32)
            encoder = self._encoder
            for numbers, vectors in pooled_in_batches(encoder, encoded, head.pooling, _CPU, torch.float32):
                found[numbers] = vectors
            found = found[:, : head.truncate_dim]
            return list(normalised(found) if head.normalise else found)
        if isinstance(head, StatesHead):
            return self._states(encoded)
        assert isinstance(self.packed, TaskModel)
        return list(outputs_of(self.packed, encoded))

    @property
    def _encoder(self) -> Bert:
        return self.packed if isinstance(self.packed, Bert) else self.packed.encoder

    def _states(self, encoded: Sequence[EncodedExample]) -> list[Answer]:
        def compute(batch: PackedBatch, layout: Layout) -> Tensor:
            states: Tensor = self._encoder(batch)
            return states

        found: list[Answer] = [np.zeros(0, np.float32)] * len(encoded)
        for numbers, layout, states in forward_passes(compute, encoded, _CPU):
            ends = np.cumsum(layout.rows_of_example)[:-1]
            for number, rows in zip(numbers, np.split(states, ends), strict=True):
                found[number] = rows
        return found


def open_source(name: str | Path, task: type[Task[Any]] | None = None) -> ExportSource:
    """By path, alias or hub name; `task` for a model of a task of one's own. Raises ModelError for what can't
    be exported, and as loading does.
    """
    folder = locate_with_layers(name)
    if model_kind(folder) == "task":
        return _open_task_source(str(name), folder, task)
    sentences = read_sentence_settings(folder)
    refuse_projection(folder, sentences.projection, "an exported graph")
    encoder = load_encoder(sentences.encoder)
    encoder.pooler = None
    is_embedder = read_pooling(folder) is not None
    head = VectorHead(sentences.pooling, True, sentences.truncate_dim) if is_embedder else StatesHead()
    engine = start_engine(deepcopy(encoder), sentences.encoder, _CPU, torch.float32)
    longest = min(sentences.max_length or encoder.config.max_length, encoder.config.max_length)
    notes = () if is_embedder else ("The folder says nothing of vectors or a task: its hidden states.",)
    padded = PaddedModel(encoder, head, one_segment=engine.tokenizer.one_segment)
    return ExportSource(
        str(name), folder, padded, engine.model, engine.tokenizer, None, sentences, longest, notes
    )


def _open_task_source(name: str, folder: Path, kind: type[Task[Any]] | None) -> ExportSource:
    model, task = load_task_model(folder, kind)
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
