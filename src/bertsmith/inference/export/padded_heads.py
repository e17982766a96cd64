"""Heads of tasks on padded batches, and the encoder with one of them: the module that becomes a graph.

B sequences, L tokens of the longest, H hidden size, C outputs.
"""

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
from torch import Tensor, nn

from bertsmith.arrays import Ints
from bertsmith.errors import ModelError
from bertsmith.inference.export.padded import (
    Padded,
    PaddedEncoder,
    first_tokens,
    mean_of_tokens,
    of_length_one,
    pooled,
)
from bertsmith.model.bert import Bert
from bertsmith.model.layers.activation import FUNCTIONS
from bertsmith.tasks.heads.classifier_head import ClassifierHead, PooledHead, RowHead
from bertsmith.tasks.heads.pooling import Pooling
from bertsmith.tasks.heads.vector_head import VectorHead
from bertsmith.tasks.question_answering import SpanHead
from bertsmith.tasks.regression import NumberHead
from bertsmith.tasks.similarity import PairHead
from bertsmith.tasks.task import Head


class PaddedHead(nn.Module):
    """`names` are those of the graph's outputs, in order; the first has `per_token` an answer for each token,
    else one for each sequence.
    """

    names: ClassVar[tuple[str, ...]] = ()
    per_token: ClassVar[bool] = False

    def forward(self, states: Tensor, padded: Padded) -> tuple[Tensor, ...]:
        """(B, L, H) -> an output for each name."""
        raise NotImplementedError

    def of_sequence(self, outputs: Sequence[npt.NDArray[Any]], row: int, places: Ints) -> npt.NDArray[Any]:
        """What a run of the graph says of one sequence, in the packed model's shape; of an answer for each
        token those of `places`.
        """
        return np.asarray(outputs[0][row, places] if self.per_token else outputs[0][row])


class States(PaddedHead):
    """No head: hidden states (B, L, H)."""

    names = ("last_hidden_state",)
    per_token = True

    def forward(self, states: Tensor, padded: Padded) -> tuple[Tensor, ...]:
        return (states,)


class Vectors(PaddedHead):
    """A vector for each sequence (B, H), or its first dimensions, and its tokens' hidden states (B, L, H)."""

    names = ("sentence_embedding", "token_embeddings")

    def __init__(self, pooling: Pooling, normalise: bool, truncate_dim: int | None = None) -> None:
        super().__init__()
        self.pooling, self.normalise, self.truncate_dim = pooling, normalise, truncate_dim

    def forward(self, states: Tensor, padded: Padded) -> tuple[Tensor, ...]:
        vectors = pooled(states, padded, self.pooling)[:, : self.truncate_dim]
        return (of_length_one(vectors) if self.normalise else vectors), states


class SequenceLogits(PaddedHead):
    """Logits (B, C) of a `PooledHead`."""

    names = ("logits",)

    def __init__(self, head: PooledHead, pooler: nn.Linear | None) -> None:
        super().__init__()
        self.head, self.pooler = head, pooler

    def forward(self, states: Tensor, padded: Padded) -> tuple[Tensor, ...]:
        head = self.head
        if head.pooling is not None:
            return (_answered(head, of_length_one(pooled(states, padded, head.pooling))),)
        read = mean_of_tokens(states, padded) if head.reads_all else first_tokens(states, padded)
        if self.pooler is not None:
            read = self.pooler(read).tanh()
        return (_answered(head, _features(head, read)),)


class TokenLogits(PaddedHead):
    """Logits (B, L, C) of a `RowHead`."""

    names: ClassVar[tuple[str, ...]] = ("logits",)
    per_token = True

    def __init__(self, head: RowHead) -> None:
        super().__init__()
        self.head = head

    def forward(self, states: Tensor, padded: Padded) -> tuple[Tensor, ...]:
        return (_answered(self.head, _features(self.head, states)),)


class SpanLogits(TokenLogits):
    """Start and end logits, each (B, L)."""

    names = ("start_logits", "end_logits")

    def forward(self, states: Tensor, padded: Padded) -> tuple[Tensor, ...]:
        (logits,) = super().forward(states, padded)
        return logits[..., 0], logits[..., 1]

    def of_sequence(self, outputs: Sequence[npt.NDArray[Any]], row: int, places: Ints) -> npt.NDArray[Any]:
        """(R, 2)."""
        return np.stack([output[row, places] for output in outputs], axis=-1)


class PaddedModel(nn.Module):
    """The module that is traced. With `one_segment` its tokenizer tells no texts apart, whatever
    tokenizer.json says to those who read the folder: then the graph isn't told either.
    """

    def __init__(self, encoder: Bert, head: PaddedHead, *, one_segment: bool) -> None:
        super().__init__()
        self.padded = PaddedEncoder(encoder)
        self.head = head
        self.has_segments = encoder.config.type_vocab_size > 1 and not one_segment
        self.max_length = encoder.config.max_length

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names, in the order of `forward`."""
        return ("input_ids", "attention_mask", *(("token_type_ids",) if self.has_segments else ()))

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None
    ) -> tuple[Tensor, ...]:
        """(B, L) int64 each -> the head's outputs."""
        padded = Padded.of(attention_mask)
        outputs: tuple[Tensor, ...] = self.head(self.padded(input_ids, padded, token_type_ids), padded)
        return outputs


def padded_head(head: Head, encoder: Bert, name: str) -> PaddedHead:
    """The same head on padded batches. Raises ModelError, with the task's `name`, where there is none."""
    if isinstance(head, PairHead) and head.classifier is not None:
        raise ModelError(
            f"The model is for {name} with classes: it compares the vectors of two texts with a layer, but "
            "an exported graph reads one text at a time. Train with target=score, or classification on pairs."
        )
    if isinstance(head, VectorHead):
        return Vectors(head.pooling, head.normalise)
    if isinstance(head, PairHead):
        return Vectors(head.pooling, True)  # of which the cosine is the product
    if isinstance(head, SpanHead):
        return SpanLogits(head)
    if isinstance(head, RowHead):
        return TokenLogits(head)
    if isinstance(head, PooledHead) and head.columns:
        raise ModelError(
            f"The model for {name} reads columns of a table beside the text (features), but an exported "
            "graph reads texts alone. Train without features, or serve this model with bertsmith serve."
        )
    if isinstance(head, PooledHead):
        return SequenceLogits(head, encoder.pooler if head.pooled else None)
    raise ModelError(
        f"The head {type(head).__name__} of the task {name} can't be exported. Those of Bertsmith's own "
        "tasks can."
    )


def _features(head: ClassifierHead, states: Tensor) -> Tensor:
    if head.dense is not None and head.activation is not None:
        states = FUNCTIONS[head.activation.name](head.dense(states))
    return states if head.norm is None else head.norm(states)


def _answered(head: ClassifierHead, features: Tensor) -> Tensor:
    outputs: Tensor = head.out(features)
    if isinstance(head, NumberHead) and (head.mean, head.deviation) != (0.0, 1.0):
        outputs = outputs * head.deviation + head.mean
    return outputs
