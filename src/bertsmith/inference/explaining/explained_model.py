"""ExplainedModel: a model in float32 with gradients, whose answer to an input is one number to explain.

S copies of an input in a batch, N tokens of one copy, R rows that the head reads, C classes, V vocabulary,
H hidden size.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from bertsmith.arrays import Bools
from bertsmith.data.batch import PackedBatch
from bertsmith.errors import InputError
from bertsmith.machine import device_of
from bertsmith.model.bert import Bert
from bertsmith.tasks.checkpoints.infer_task import ModelKind, locate_with_layers, model_kind
from bertsmith.tasks.examples.encoding import EncodedExample, Layout
from bertsmith.tasks.finetuning import pieces_of
from bertsmith.tasks.forward_passes import forward_pass
from bertsmith.tasks.golden.subject import (
    GoldenInput,
    GoldenSubject,
    MaskSubject,
    TaskSubject,
    VectorSubject,
    open_subject,
)
from bertsmith.tasks.pretraining.fill_mask import masked_window
from bertsmith.tasks.task import Task
from bertsmith.tasks.task_model import at_least_float32

LONGEST = 512  # tokens of an input that can be explained


@dataclass(frozen=True)
class ExplainedInput:
    """An input as the model reads it: one window, or two if its two texts are encoded apart.

    `compute` gives the explained number, named `target`, for each of S copies: (S,), differentiable.
    `replaced` (N,) marks the tokens that a baseline replaces: all but special tokens, and if two texts are
    encoded apart only the second text's, whose similarity to the first is explained.
    """

    encoded: EncodedExample
    replaced: Bools
    target: str
    compute: Callable[[PackedBatch, Layout], Tensor]


class ExplainedModel(ABC):
    """A copy of a model that has gradients, which a model prepared for inference hasn't. Subclasses say which
    number is explained.
    """

    is_of_vectors: ClassVar[bool] = False  # its answer is the cosine of two texts; one text has none

    def __init__(self, subject: GoldenSubject) -> None:
        subject.model.requires_grad_(False).eval()
        assert isinstance(subject.encoder, Bert)  # open_explained_model refused static tables
        self.subject, self.encoder, self.tokenizer = subject, subject.encoder, subject.tokenizer

    @abstractmethod
    def read(self, given: Any, target: str | int | None = None) -> ExplainedInput:
        """Encodes an input. `target` is a class, a token of the vocabulary for the first mask, or the number
        of a word; None is the model's own answer. Raises InputError for an input that the model doesn't read,
        a target that it doesn't have, and more than one window or `LONGEST` tokens.
        """

    @property
    def device(self) -> torch.device:
        """The device on which the model computes."""
        return self.subject.device

    def make_input(self, encoded: EncodedExample, target: str, compute: Any) -> ExplainedInput:
        """An explained input, with the mask of tokens that a baseline replaces."""
        last = max(window.text for window in encoded.windows)
        template = self.tokenizer.template
        special_ids = (*template.before, *template.between, *template.behind, self.tokenizer.mask_id)
        replaced = [~np.isin(w.token_ids, special_ids) & (w.text == last) for w in encoded.windows]
        return ExplainedInput(encoded, np.concatenate(replaced), target, compute)

    def outputs(self, encoded: EncodedExample, compute: Any) -> Any:
        """The model's outputs for the input itself, as NumPy arrays."""
        return forward_pass(compute, [encoded], self.device).outputs


class _ExplainedTaskModel(ExplainedModel):
    """Explains a fine-tuned model: the number that its task answers with."""

    subject: TaskSubject

    def read(self, given: Any, target: str | int | None = None) -> ExplainedInput:
        model, task = self.subject.model, self.subject.task
        example = task.example(given)
        (pieces,) = pieces_of(task, [task.texts(example)], self.tokenizer)
        encoded = require_short(task.encode(example, pieces, self.tokenizer))
        rows = sum(len(window.rows) for window in encoded.windows)

        def outputs_of(batch: PackedBatch, layout: Layout) -> Tensor:
            return at_least_float32(model(batch, layout))

        name, number = task.answer_number(example, encoded, self.outputs(encoded, outputs_of), target)

        def compute(batch: PackedBatch, layout: Layout) -> Tensor:
            outputs = outputs_of(batch, layout)
            if model.head.per_row:
                outputs = outputs.view(-1, rows, outputs.shape[-1])  # (S R, C) -> (S, R, C)
            return number(outputs)

        return self.make_input(encoded, name, compute)


class _ExplainedMaskModel(ExplainedModel):
    """Explains a masked language model: the probability of a token in place of the first mask."""

    subject: MaskSubject

    def read(self, given: Any, target: str | int | None = None) -> ExplainedInput:
        model, tokenizer = self.subject.model, self.tokenizer
        if not isinstance(given, str):
            raise InputError(f"Expected a text with a mask, found {type(given).__name__}.")
        window, longest = masked_window(tokenizer, given, "The text"), model.config.max_length
        if (length := len(window.token_ids)) > longest:
            raise InputError(f"The text has {length:,} tokens; this model reads at most {longest:,}.")
        encoded = require_short(EncodedExample((replace(window, rows=window.rows[:1]),)))

        def logits(batch: PackedBatch, layout: Layout) -> Tensor:  # (S, V)
            all_logits = model.vocabulary_logits(model.encoder(batch, layout.rows))
            return all_logits[:, : tokenizer.vocab_size].float()

        if target is None:
            token_id = int(self.outputs(encoded, logits)[0].argmax())
        elif isinstance(target, str):
            token_id = tokenizer.token_to_id(target)
        else:
            raise InputError(f"target must be a piece of the vocabulary, found {target!r}.")

        def compute(batch: PackedBatch, layout: Layout) -> Tensor:
            return logits(batch, layout).softmax(1)[:, token_id]

        return self.make_input(encoded, tokenizer.id_to_token(token_id), compute)


class _ExplainedVectorModel(ExplainedModel):
    """Explains an embedding model: the cosine of a query and a document. A single text is compared with
    itself, so that its attention can be shown.
    """

    is_of_vectors = True
    subject: VectorSubject

    def read(self, given: Any, target: str | int | None = None) -> ExplainedInput:
        match given:
            case str():
                golden_input = GoldenInput(given)
            case [str() as query, str() as document]:
                golden_input = GoldenInput((query, document))
            case _:
                raise InputError("Expected a text, or a query and a document to compare.")
        if target is not None:
            raise InputError(
                f"target: for vectors only the cosine is explained, found {target!r}. Leave target out."
            )

        def compute(batch: PackedBatch, layout: Layout) -> Tensor:
            projected = self.subject.vectors(self.encoder(batch, layout.rows).float(), layout)
            vectors = projected.view(layout.examples, -1, projected.shape[-1])  # (S, 1 or 2, D)
            vectors = vectors[..., : self.subject.sentences.truncate_dim]
            return F.cosine_similarity(vectors[:, 0], vectors[:, -1])

        return self.make_input(require_short(self.subject.item(golden_input).encoded), "cosine", compute)


_KINDS: dict[type[GoldenSubject], type[ExplainedModel]] = {
    TaskSubject: _ExplainedTaskModel,
    MaskSubject: _ExplainedMaskModel,
    VectorSubject: _ExplainedVectorModel,
}


def open_explained_model(
    name: str | Path,
    device: torch.device | str = "auto",
    as_vectors: bool = False,
    task: type[Task[Any]] | None = None,
) -> ExplainedModel:
    """Opens a model by path, alias or hub name. `as_vectors` ignores its head; `task` is the task's class if
    you wrote it yourself. Raises ModelError as the loaders do.
    """
    folder, target_device = locate_with_layers(name), device_of(device)
    kind: ModelKind = "embedding" if as_vectors else model_kind(folder)
    subject = open_subject(folder, task, kind, "Looking inside")
    subject.model.to(target_device)
    return _KINDS[type(subject)](subject)


def require_short(encoded: EncodedExample) -> EncodedExample:
    """Returns the input. Raises InputError for more than one window per text, or more than
    `LONGEST` tokens.
    """
    windows, texts = len(encoded.windows), len({window.text for window in encoded.windows})
    if windows > texts:
        raise InputError(f"The input takes {windows} windows, but only one can be explained. Shorten it.")
    if encoded.tokens > LONGEST:
        raise InputError(
            f"The input has {encoded.tokens:,} tokens; at most {LONGEST} can be explained. Shorten it."
        )
    return encoded
