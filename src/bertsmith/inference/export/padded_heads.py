"""Heads of tasks on padded batches, and the encoder with one of them: the module that becomes a graph.

B sequences, L tokens of the longest, H hidden size, C outputs.
"""

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
from torch import Tensor, nn

from bertsmith.arrays import Ints
from bertsmith.inference.export.padded import (
    Padded,
    PaddedEncoder,
    first_tokens,
    mean_of_tokens,
    of_length_one,
    pooled,
)
from bertsmith.model.bert import Bert
from bertsmith.tasks.heads.pooling import Pooling
from bertsmith.tasks.task import Head


class PaddedHead(nn.Module):
    """`names` are those of the graph's outputs, in order; the first has `per_token` an answer for each token,
    else one for each sequence.
    """

    names: tuple[str, ...] = ()
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


class SequenceOutputs(PaddedHead):
    """(B, C) of a head with one answer for each example."""

    def __init__(self, head: Head, pooler: nn.Linear | None) -> None:
        super().__init__()
        self.head, self.pooler, self.names = head, pooler, head.graph_outputs

    def forward(self, states: Tensor, padded: Padded) -> tuple[Tensor, ...]:
        head = self.head
        if head.pooling is not None:
            return (head.outputs(of_length_one(pooled(states, padded, head.pooling))),)
        read = mean_of_tokens(states, padded) if head.reads_all else first_tokens(states, padded)
        if self.pooler is not None:
            read = self.pooler(read).tanh()
        return (head.outputs(read),)


class TokenOutputs(PaddedHead):
    """Of a head with an answer for each row: (B, L, C), or (B, L) for each of several names."""

    per_token = True

    def __init__(self, head: Head) -> None:
        super().__init__()
        self.head, self.names = head, head.graph_outputs

    def forward(self, states: Tensor, padded: Padded) -> tuple[Tensor, ...]:
        outputs = self.head.outputs(states)
        if len(self.names) == 1:
            return (outputs,)
        return tuple(outputs[..., column] for column in range(len(self.names)))

    def of_sequence(self, outputs: Sequence[npt.NDArray[Any]], row: int, places: Ints) -> npt.NDArray[Any]:
        """(R, C)."""
        if len(self.names) == 1:
            return super().of_sequence(outputs, row, places)
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
    head.refuse_graph(name)
    if head.text_vectors is not None:
        return Vectors(*head.text_vectors)
    if head.per_row:
        return TokenOutputs(head)
    return SequenceOutputs(head, encoder.pooler if head.pooled else None)
