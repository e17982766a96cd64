"""PaddedModel: the packed model on padded batches, the module that is exported as a graph. It shares the
packed model's weights.

Positions are computed from the attention mask, so that sequences may be padded on either side.

B sequences, L tokens of the longest, N = B L, H hidden size, A heads, D head size, I feed-forward width,
C outputs.
"""

from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bertsmith.arrays import Ints
from bertsmith.model.bert import Bert
from bertsmith.model.layers.attention import SelfAttention
from bertsmith.model.layers.elementwise import FUNCTIONS
from bertsmith.model.layers.embeddings import Embeddings
from bertsmith.model.layers.layer import FeedForward, Layer
from bertsmith.model.layers.rotary import turn
from bertsmith.tasks.heads.pooling import Pooling, Projection
from bertsmith.tasks.task import Head

_HIDDEN = torch.finfo(torch.float32).min  # not -inf: a row whose keys are all hidden stays finite


class PaddedBatch(NamedTuple):
    """What layers need to know about a padded batch: `positions` (B, L), 0 for padding on the left, and
    `real` (B, L), True where there is a token.
    """

    positions: Tensor
    real: Tensor

    @staticmethod
    def of(attention_mask: Tensor) -> "PaddedBatch":
        """From an attention mask (B, L), int64, 1 for a token."""
        return PaddedBatch((attention_mask.cumsum(1) - 1).clamp(min=0), attention_mask > 0)

    @property
    def first(self) -> Tensor:
        """The column of each sequence's first token: (B,)."""
        return self.real.long().argmax(1)

    def bias(self, window: int | None) -> Tensor:
        """The additive attention mask: (B, 1, 1, L), or with a window (B, 1, L, L). 0 for visible keys."""
        is_visible = self.real[:, None, None]
        if window is not None:
            distance = self.positions[:, :, None] - self.positions[:, None]  # (B, L, L)
            is_visible = is_visible & (distance.abs() <= window)[:, None]
        return torch.zeros_like(is_visible, dtype=torch.float32).masked_fill(~is_visible, _HIDDEN)


class PaddedEncoder(nn.Module):
    """Calls the encoder's own modules on padded batches (B, L, H)."""

    position_bias: Tensor | None

    def __init__(self, encoder: Bert) -> None:
        super().__init__()
        self.encoder = encoder
        config = encoder.config
        self.windows = [config.window(number) for number in range(config.num_hidden_layers)]
        relative = encoder.relative_table()
        position_bias = None if relative is None or config.relative_attention else relative.detach()
        self.register_buffer("position_bias", position_bias, persistent=False)  # (A, 2 R)
        for number, layer in enumerate(encoder.layer_sequence):
            assert isinstance(layer, Layer)
            rotary = layer.attention.rotary
            if rotary is not None:
                cosines, sines = rotary.tables(config.max_length, torch.device("cpu"))
                self.register_buffer(f"cosines_{number}", cosines[: config.max_length], persistent=False)
                self.register_buffer(f"sines_{number}", sines[: config.max_length], persistent=False)
            if layer.attention.distances is not None and relative is not None:
                products = layer.attention.distances(relative, layer.attention.qkv)
                rows = products.rows.within((config.max_length,)).to(relative.device)
                self.register_buffer("distance_rows", rows, persistent=False)
                for name in ("keys", "queries"):
                    product = getattr(products, name)  # (2 S, A, D)
                    part = None if product is None else product.detach().permute(1, 2, 0)
                    self.register_buffer(f"distance_{name}_{number}", part, persistent=False)

    def forward(self, input_ids: Tensor, padded: PaddedBatch, token_type_ids: Tensor | None) -> Tensor:
        """Token ids (B, L) -> the last layer's hidden states (B, L, H)."""
        states = embedded = _embed(self.encoder.embeddings, input_ids, padded, token_type_ids)
        all_states = [states]
        biases = {window: padded.bias(window) for window in dict.fromkeys(self.windows)}
        if self.position_bias is not None:
            columns = torch.arange(input_ids.shape[1], device=input_ids.device)
            distances = columns - columns[:, None] + self.position_bias.shape[1] // 2  # (L, L)
            added = self.position_bias[:, distances]  # (A, L, L)
            biases = {window: bias + added for window, bias in biases.items()}
        for number, layer in enumerate(self.encoder.layer_sequence):
            assert isinstance(layer, Layer)
            bias = biases[self.windows[number]]
            normalised = layer.attention_norm(states) if layer.pre_norm else states
            attended = states + self._attend(layer.attention, number, normalised, padded, bias)
            if layer.pre_norm:
                states = attended + _feed_forward(layer.feed_forward, layer.feed_forward_norm(attended))
            else:
                states = layer.attention_norm(attended)
                states = layer.feed_forward_norm(states + _feed_forward(layer.feed_forward, states))
            if number == 0 and self.encoder.convolution is not None:
                real = padded.real[:, :, None].to(states.dtype)
                states = self.encoder.convolution.of_padded(embedded * real, states)
            all_states.append(states)
        norm = self.encoder.final_norm
        last = states if norm is None else norm(states)
        return (
            last if self.encoder.layer_weights is None else self.encoder.mix_states([*all_states[:-1], last])
        )

    def _attend(
        self, attention: SelfAttention, number: int, states: Tensor, padded: PaddedBatch, bias: Tensor
    ) -> Tensor:
        heads, size = attention.heads, attention.head_size
        qkv = attention.qkv(states).unflatten(2, (3, heads, size))  # (B, L, 3, A, D)
        query, key, value = qkv.unbind(2)  # each (B, L, A, D)
        if attention.rotary is not None:
            positions = padded.positions.flatten()
            cosines, sines = (self.get_buffer(f"{name}_{number}")[positions] for name in ("cosines", "sines"))
            rotated = turn(
                qkv[:, :, :2].flatten(0, 1), cosines, sines, attention.rotary.pairs
            )  # (N, 2, A, D)
            query, key = rotated.unflatten(0, states.shape[:2]).unbind(2)
        query, key, value = (part.transpose(1, 2) for part in (query, key, value))  # (B, A, L, D)
        if attention.distances is None:
            scores = (query * size**-0.5) @ key.mT + bias  # (B, A, L, L)
        else:
            scores = self._disentangled_scores(query, key, number) + bias
        mixed = (scores.softmax(-1) @ value).transpose(1, 2).flatten(2)  # (B, L, H)
        output: Tensor = attention.output(mixed)
        return output

    def _disentangled_scores(self, query: Tensor, key: Tensor, number: int) -> Tensor:
        """The scores (B, A, L, L) of layer number `number`, of queries and keys (B, A, L, D): those of
        distances are looked up, which a graph can do for any length.
        """
        size, length = query.shape[3], query.shape[2]
        columns = torch.arange(length, device=query.device)
        distances = columns[:, None] - columns  # (L, L), of a query and a key
        rows = self.get_buffer("distance_rows")
        rows = rows[distances + (len(rows) - 1) // 2]
        keys, queries = (getattr(self, f"distance_{name}_{number}") for name in ("keys", "queries"))
        count = 1 + sum(part is not None for part in (keys, queries))
        scores: Tensor = query @ key.mT
        if keys is not None:
            met = query @ keys  # (B, A, L, 2 S)
            scores = scores + met.gather(3, rows.expand(*met.shape[:2], -1, -1))
        if queries is not None:
            met = key @ queries
            scores = scores + met.gather(3, rows.mT.expand(*met.shape[:2], -1, -1)).mT
        scaled: Tensor = scores * (count * size) ** -0.5
        return scaled


def _embed(
    embeddings: Embeddings, input_ids: Tensor, padded: PaddedBatch, token_type_ids: Tensor | None
) -> Tensor:
    embedded: Tensor = embeddings.token(input_ids)
    if embeddings.position is not None:
        embedded = embedded + embeddings.position(padded.positions + embeddings.position_offset)
    if embeddings.segment is not None and token_type_ids is None:  # RoBERTa's one, for both texts of a pair
        embedded = embedded + embeddings.segment.weight[0]
    elif embeddings.segment is not None:
        embedded = embedded + embeddings.segment(token_type_ids)
    if embeddings.project is not None and embeddings.projects_first:
        embedded = embeddings.project(embedded)
    normalised: Tensor = embeddings.norm(embedded)
    if embeddings.project is None or embeddings.projects_first:
        return normalised
    projected: Tensor = embeddings.project(normalised)
    return projected


def _feed_forward(feed_forward: FeedForward, states: Tensor) -> Tensor:
    activate = FUNCTIONS[feed_forward.activation.name]
    widened = feed_forward.up(states)  # (B, L, I), or twice as wide
    if feed_forward.gated:
        activated, factors = widened.chunk(2, dim=-1)
        product: Tensor = feed_forward.down(activate(activated) * factors)
        return product
    plain: Tensor = feed_forward.down(activate(widened))
    return plain


class PaddedHead(nn.Module):
    """A head on padded hidden states. `names` are the graph's outputs, in order. The first output has an
    answer for each token if `per_token`, else one for each sequence.
    """

    names: tuple[str, ...] = ()
    per_token: ClassVar[bool] = False

    def forward(self, states: Tensor, padded: PaddedBatch) -> tuple[Tensor, ...]:
        """(B, L, H) -> one output for each name."""
        raise NotImplementedError

    def of_sequence(self, outputs: Sequence[npt.NDArray[Any]], row: int, positions: Ints) -> npt.NDArray[Any]:
        """The graph's answer for the sequence in `row`, in the packed model's shape; of answers per token
        those at `positions`.
        """
        return np.asarray(outputs[0][row, positions] if self.per_token else outputs[0][row])


class StatesHead(PaddedHead):
    """Outputs the hidden states (B, L, H), for an encoder without a head."""

    names = ("last_hidden_state",)
    per_token = True

    def forward(self, states: Tensor, padded: PaddedBatch) -> tuple[Tensor, ...]:
        return (states,)


class VectorOutputs(PaddedHead):
    """Outputs a vector for each sequence (B, D), projected and perhaps truncated, and the hidden states
    (B, L, H).
    """

    names = ("sentence_embedding", "token_embeddings")

    def __init__(
        self,
        pooling: Pooling,
        normalise: bool,
        truncate_dim: int | None = None,
        projection: Projection | None = None,
    ) -> None:
        super().__init__()
        self.pooling, self.normalise, self.truncate_dim = pooling, normalise, truncate_dim
        self.projection = Projection([]) if projection is None else projection

    def forward(self, states: Tensor, padded: PaddedBatch) -> tuple[Tensor, ...]:
        vectors = self.projection(pool(states, padded, self.pooling))[:, : self.truncate_dim]
        return (to_unit_length(vectors) if self.normalise else vectors), states


class SequenceHead(PaddedHead):
    """Outputs (B, C), of a head with one answer for each sequence."""

    def __init__(self, head: Head, pooler: nn.Linear | None) -> None:
        super().__init__()
        self.head, self.pooler, self.names = head, pooler, head.graph_outputs

    def forward(self, states: Tensor, padded: PaddedBatch) -> tuple[Tensor, ...]:
        head = self.head
        if head.pooling is not None:
            return (head.outputs(to_unit_length(pool(states, padded, head.pooling))),)
        read = mean_of_tokens(states, padded) if head.reads_all else first_tokens(states, padded)
        if self.pooler is not None:
            read = self.pooler(read).tanh()
        return (head.outputs(read),)


class TokenHead(PaddedHead):
    """Outputs (B, L, C), of a head with an answer for each token; with several names (B, L) each."""

    per_token = True

    def __init__(self, head: Head) -> None:
        super().__init__()
        self.head, self.names = head, head.graph_outputs

    def forward(self, states: Tensor, padded: PaddedBatch) -> tuple[Tensor, ...]:
        outputs = self.head.outputs(states)
        if len(self.names) == 1:
            return (outputs,)
        return tuple(outputs[..., column] for column in range(len(self.names)))

    def of_sequence(self, outputs: Sequence[npt.NDArray[Any]], row: int, positions: Ints) -> npt.NDArray[Any]:
        """The answers (R, C) at `positions`; several outputs are stacked as the C columns."""
        if len(self.names) == 1:
            return super().of_sequence(outputs, row, positions)
        return np.stack([output[row, positions] for output in outputs], axis=-1)


def padded_head(head: Head, encoder: Bert, name: str) -> PaddedHead:
    """A task's head as a head on padded batches. Raises ModelError, with the task's `name`, if the head can't
    be exported.
    """
    head.refuse_graph(name)
    if head.text_vectors is not None:
        return VectorOutputs(*head.text_vectors, projection=head.projection)
    if head.per_row:
        return TokenHead(head)
    return SequenceHead(head, encoder.pooler if head.pooled else None)


class PaddedModel(nn.Module):
    """The module that is traced: encoder and head. With `one_segment` the tokenizer puts both texts of a pair
    into one segment, whatever tokenizer.json says; then the graph has no input of segments.
    """

    def __init__(self, encoder: Bert, head: PaddedHead, *, one_segment: bool) -> None:
        super().__init__()
        self.padded = PaddedEncoder(encoder)
        self.head = head
        self.has_segments = encoder.config.type_vocab_size > 1 and not one_segment

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the graph's inputs, in the order of `forward`."""
        return ("input_ids", "attention_mask", *(("token_type_ids",) if self.has_segments else ()))

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None
    ) -> tuple[Tensor, ...]:
        """Inputs (B, L), int64 each -> the head's outputs."""
        padded = PaddedBatch.of(attention_mask)
        outputs: tuple[Tensor, ...] = self.head(self.padded(input_ids, padded, token_type_ids), padded)
        return outputs


def mean_of_tokens(states: Tensor, padded: PaddedBatch) -> Tensor:
    """Mean of each sequence's tokens, without padding: (B, L, H) -> (B, H)."""
    real = padded.real.to(states.dtype)[:, :, None]
    return (states * real).sum(1) / real.sum(1)


def first_tokens(states: Tensor, padded: PaddedBatch) -> Tensor:
    """The hidden state of each sequence's first token: (B, L, H) -> (B, H)."""
    index = padded.first[:, None, None].expand(-1, 1, states.shape[2])
    return states.gather(1, index).squeeze(1)


def pool(states: Tensor, padded: PaddedBatch, pooling: str) -> Tensor:
    """Pools hidden states by mean, cls or max: (B, L, H) -> (B, H)."""
    if pooling == "mean":
        return mean_of_tokens(states, padded)
    if pooling == "cls":
        return first_tokens(states, padded)
    return states.masked_fill(~padded.real[:, :, None], _HIDDEN).amax(1)


def to_unit_length(vectors: Tensor) -> Tensor:
    """Scales vectors (B, H) to length 1."""
    return F.normalize(vectors, dim=1)
