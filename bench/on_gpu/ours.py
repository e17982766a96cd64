"""Our sides: steps of the real loop, and an encoder that pools what it reads."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bertsmith.data.batch import PackedBatch, Sequences
from bertsmith.data.masking import Masker, MaskingRates
from bertsmith.data.stream import Cursor, GlobalBatch
from bertsmith.inference.embedding.embedder import pooled_in_batches
from bertsmith.model.bert import Bert
from bertsmith.model.config import BertConfig
from bertsmith.model.layers import attention
from bertsmith.model.layers.attention import supports_flash_attention
from bertsmith.tasks.classification import Classification
from bertsmith.tasks.examples.encoding import EncodedExample
from bertsmith.tasks.finetuning import EncodedExamples, FinetuningObjective
from bertsmith.tasks.objective import Objective
from bertsmith.tasks.pretraining.pretraining import PretrainingModel, PretrainingTask
from bertsmith.tasks.task_model import TaskModel
from bertsmith.text.tokens.tokenizer import Tokenizer
from bertsmith.training.loop import Loop
from bertsmith.training.machine import Machine, Ranks
from bertsmith.training.settings import CheckpointSettings, EvaluationSettings, RunSettings
from on_gpu.scale import Scale

_NEVER = 1_000_000_000
_ROUNDED = 128  # tokens: one graph serves the lengths up to the next multiple


class Steps:
    """The real loop, a step for each global batch; dropout as published but for what a GPU has none of."""

    def __init__(self, task: Objective, scale: Scale) -> None:
        self.task = task
        task.model.train()
        self._loop = make_loop(task, machine(scale))

    def prepare(self, sequences: Sequences) -> Sequences:
        """Nothing: packing, masks and copies are part of the step."""
        return sequences

    def step(self, sequences: Sequences) -> None:
        """Forward, backward, clipping, AdamW."""
        self._loop.advance(GlobalBatch(sequences, Cursor(), Cursor()))


class Pretraining(Steps):
    """Masked language modelling and next-sentence prediction."""

    def __init__(self, scale: Scale, size: str, tokenizer: Tokenizer, *, compiled: bool = False) -> None:
        task = pretraining_task(scale.config(size), tokenizer, scale.device)
        if compiled:
            compile_encoder(task.model.encoder)
        super().__init__(task, scale)


class Finetune(Steps):
    """Classification of sentences into two classes, from random weights."""

    def __init__(
        self, scale: Scale, size: str, examples: Sequence[EncodedExample], *, compiled: bool = False
    ) -> None:
        super().__init__(finetuning_task(scale.config(size), examples, scale.device, compiled), scale)


class Embedding:
    """Texts as token ids -> a vector each, as Embedder computes it: batches of like length, their mean."""

    def __init__(self, scale: Scale, size: str, *, compiled: bool = False) -> None:
        torch.manual_seed(0)
        self._scale = scale
        self.config = scale.config(size)
        self._encoder = Bert(self.config).to(scale.device).eval()
        if compiled:
            compile_encoder(self._encoder)

    def prepare(self, encoded: Sequence[EncodedExample]) -> Sequence[EncodedExample]:
        """Nothing: packing and copies are part of the work."""
        return encoded

    def step(self, encoded: Sequence[EncodedExample]) -> np.ndarray:
        """(E, H) on the host."""
        scale, vectors = self._scale, np.empty((len(encoded), self.config.hidden_size), np.float32)
        how = scale.device, scale.precision, scale.embed_tokens
        for numbers, found in pooled_in_batches(self._encoder, encoded, "mean", *how):
            vectors[numbers] = found
        return vectors


def machine(scale: Scale) -> Machine:
    """One process; its peak is measured elsewhere."""
    return Machine(scale.device, scale.precision, 1.0, Ranks(), scale.step_tokens)


def make_loop(task: Objective, on: Machine) -> Loop:
    """Without evaluations, checkpoints or a folder."""
    recipe = RunSettings(
        steps=_NEVER,
        evaluation=EvaluationSettings(every=_NEVER),
        checkpoint=CheckpointSettings(every=_NEVER),
    )
    return Loop(task, recipe, on, None, _Silent())


def pretraining_task(
    config: BertConfig, tokenizer: Tokenizer, device: torch.device, rates: MaskingRates | None = None
) -> PretrainingTask:
    """A new model, the same at every call, and no text: batches are given from outside."""
    torch.manual_seed(0)
    model = PretrainingModel(config).to(device)
    masker = Masker(tokenizer, rates or MaskingRates(), device)
    return PretrainingTask(model, [_NoText(tokenizer)], masker, None, 0, device)  # type: ignore[list-item]


def finetuning_task(
    config: BertConfig, examples: Sequence[EncodedExample], device: torch.device, compiled: bool = False
) -> FinetuningObjective:
    """Two classes, batches of 32."""
    torch.manual_seed(0)
    task = Classification(Classification.Settings(), ("no", "yes"))
    model = TaskModel(Bert(config), task.head(config)).to(device)
    if compiled:
        compile_encoder(model.encoder)
    return FinetuningObjective(task, model, EncodedExamples(examples, examples), None, 32, 0, device)


def global_batches(objective: FinetuningObjective, count: int) -> list[Sequences]:
    """The first batches of the epoch."""
    batches: Iterator[GlobalBatch] = objective.batches(Cursor())
    return [batch.sequences for batch in islice(batches, count)]


def compile_encoder(encoder: Bert, backend: str | Callable[..., Any] = "inductor") -> None:
    """torch.compile for the whole encoder, once for batches of all lengths: the numbers of tokens, sequences
    and rows are symbols, and the longest length, which the kernel of attention wants on the host, is rounded
    up, which changes no value. On a GPU there is one graph; on a processor attention, whose kernels torch
    can't follow, divides it.
    """
    if on_cpu := not supports_flash_attention(
        encoder.embeddings.token.weight.device.type, torch.bfloat16, 64
    ):
        attention.attend = torch.compiler.disable(attention.attend)

    def encode(batch: PackedBatch, rows: Tensor | None) -> Tensor:
        states, relative = encoder.embeddings(batch), encoder.relative_table()
        last = encoder.config.num_hidden_layers - 1
        for number in range(last + 1):
            states = encoder.apply_layer(number, states, batch, rows if number == last else None, relative)
        return states if encoder.final_norm is None else encoder.final_norm(states)

    compiled = torch.compile(encode, dynamic=True, fullgraph=not on_cpu, backend=backend)

    def forward(batch: PackedBatch, rows: Tensor | None = None) -> Tensor:
        longest = -(-max(batch.lengths) // _ROUNDED) * _ROUNDED
        states: Tensor = compiled(batch if on_cpu else replace(batch, lengths=(longest,)), rows)
        return states[: -batch.padding] if rows is None and batch.padding else states

    encoder.forward = forward  # type: ignore[method-assign]


class _NoText:
    """In the place of a stream, of which a task wants the tokenizer and the most frequent piece."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer, self.store, self.tokens = tokenizer, self, np.zeros(1, np.int64)


class _Silent:
    def record(self, kind: str, step: int, **values: Any) -> None:
        """Nothing."""

    def rewind(self, step: int) -> None:
        """Nothing."""
