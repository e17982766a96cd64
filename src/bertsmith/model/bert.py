"""BERT on packed batches: embeddings → encoder → hidden states → pooling (Devlin et al. 2019, section 3).

N tokens in the packed batch, B sequences, H hidden size, I feed-forward width.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bertsmith.data.batch import PackedBatch
from bertsmith.model.config import BertConfig
from bertsmith.model.cpu.gelu import can_take, gelu_of
from bertsmith.model.layers.attention import SelfAttention, take
from bertsmith.model.layers.dropout import Dropout

_GELU_ROWS = 128


class Embeddings(nn.Module):
    """Token + position + segment embeddings, normalised (Devlin et al. 2019, figure 2)."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.position_offset = config.position_offset
        self.token = nn.Embedding(config.vocab_size, config.hidden_size)
        self.position = nn.Embedding(config.max_position_embeddings, config.hidden_size)
        self.segment = (
            nn.Embedding(config.type_vocab_size, config.hidden_size) if config.type_vocab_size else None
        )
        self.norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.dropout = Dropout(config.hidden_dropout_prob)

    def forward(self, batch: PackedBatch) -> Tensor:
        """-> (N, H)."""
        embedded = self.token(batch.token_ids) + self.position(batch.position_ids + self.position_offset)
        if self.segment is not None:
            segments = batch.segment_ids
            if self.segment.num_embeddings == 1:  # RoBERTa's, for both texts of a pair
                segments = torch.zeros_like(segments)
            embedded = embedded + self.segment(segments)
        normalised: Tensor = self.dropout(self.norm(embedded))
        return normalised


class FeedForward(nn.Module):
    """Two products with the activation between: H → I → H."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.up = nn.Linear(config.hidden_size, config.intermediate_size)
        self.down = nn.Linear(config.intermediate_size, config.hidden_size)
        self.activation = Activation(config.hidden_act)

    def forward(self, hidden_states: Tensor) -> Tensor:
        """(N, H) -> (N, H)."""
        if self.activation.name == "gelu" and can_take(self.up, hidden_states):
            activated = gelu_of(self.up, hidden_states)
        else:
            activated = self.activation(self.up(hidden_states))
        widened: Tensor = self.down(activated)
        return widened


class Layer(nn.Module):
    """Attention, then feed-forward; after each, dropout, the residual sum and LayerNorm (post-norm)."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.attention = SelfAttention(config)
        self.attention_norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.feed_forward = FeedForward(config)
        self.feed_forward_norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.dropout = Dropout(config.hidden_dropout_prob)

    def forward(self, hidden_states: Tensor, batch: PackedBatch, rows: Tensor | None = None) -> Tensor:
        """(N, H) -> (N, H), or (R, H) for the given rows alone: which attend to all."""
        attended = self.dropout(self.attention(hidden_states, batch, rows))
        hidden_states = self.attention_norm(take(hidden_states, rows) + attended)
        widened = self.dropout(self.feed_forward(hidden_states))
        normalised: Tensor = self.feed_forward_norm(hidden_states + widened)
        return normalised


class Bert(nn.Module):
    """The encoder of every family; `config` says which of the independent parts it has."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.config = config
        self.embeddings = Embeddings(config)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.num_hidden_layers))
        self.pooler = nn.Linear(config.hidden_size, config.hidden_size) if config.has_pooler else None
        initialise(self, config.initializer_range)

    def forward(self, batch: PackedBatch, rows: Tensor | None = None) -> Tensor:
        """The last layer's hidden states (N, H), or (R, H) where a head reads only the given rows.

        The last layer then computes no others: with 15 % of the tokens masked, that saves more than half of
        it. Spare tokens of the batch are left out.
        """
        hidden_states: Tensor = self.embeddings(batch)
        *lower, last = self.layers
        for layer in lower:
            hidden_states = layer(hidden_states, batch)
        states: Tensor = last(hidden_states, batch, rows)
        return _without_spare(states, batch) if rows is None else states

    def all_hidden_states(self, batch: PackedBatch) -> list[Tensor]:
        """The embeddings' output and every layer's: num_hidden_layers + 1 tensors of (N, H), spare tokens
        left out.
        """
        states: list[Tensor] = [self.embeddings(batch)]
        for layer in self.layers:
            states.append(layer(states[-1], batch))
        return [_without_spare(each, batch) for each in states]

    def pool(self, first_tokens: Tensor) -> Tensor:
        """tanh(W h + b) of the hidden states of `batch.first_rows`: (B, H) -> (B, H).

        Raises ValueError for a family without a pooler (DistilBERT).
        """
        if self.pooler is None:
            raise ValueError(
                f"a {self.config.model_type} model has no pooler; use the first token's hidden state"
            )
        return torch.tanh(self.pooler(first_tokens))


class Activation(nn.Module):
    """The function between two products, by its name in config.json."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def forward(self, x: Tensor) -> Tensor:
        """Any shape; the same shape back."""
        if self.name == "relu":
            return F.relu(x)
        if self.name == "gelu_new":
            return F.gelu(x, approximate="tanh")
        if x.device.type == "cpu" and not torch.is_grad_enabled() and len(x) > _GELU_ROWS:
            return _gelu_by_blocks(x)
        return F.gelu(x)

    def extra_repr(self) -> str:
        return self.name


def _without_spare(states: Tensor, batch: PackedBatch) -> Tensor:
    return states[: -batch.spare] if batch.spare else states


def _gelu_by_blocks(x: Tensor) -> Tensor:
    """`F.gelu`, to the bit, in blocks of one size; the last block may compute some rows a second time.

    oneDNN keeps code for every shape that it has met, allocated between the large blocks of a forward pass:
    with a shape a batch the process grows by 1.5 MB a batch.
    """
    result = torch.empty_like(x)
    for start in (*range(0, len(x) - _GELU_ROWS, _GELU_ROWS), len(x) - _GELU_ROWS):
        rows = slice(start, start + _GELU_ROWS)
        torch.ops.aten.gelu.out(x[rows], out=result[rows])
    return result


def initialise(module: nn.Module, standard_deviation: float) -> None:
    """Normal weights truncated at two deviations, zero biases, LayerNorm at one (google-research/bert)."""
    for part in module.modules():
        if isinstance(part, nn.Linear | nn.Embedding):
            truncated_normal_(part.weight, standard_deviation)
        if isinstance(part, nn.Linear) and part.bias is not None:
            nn.init.zeros_(part.bias)
        if isinstance(part, nn.LayerNorm):
            nn.init.ones_(part.weight)
            nn.init.zeros_(part.bias)


@torch.no_grad()
def truncated_normal_(weight: Tensor, standard_deviation: float) -> None:
    """Draws again what lies beyond two deviations; fifteen times as fast as torch's inverse of the error
    function.
    """
    if weight.is_meta:  # a blueprint has no values
        return
    weight.normal_(0, standard_deviation)
    outside = weight.abs() > 2 * standard_deviation
    while outside.any():
        weight[outside] = torch.empty(int(outside.sum())).normal_(0, standard_deviation)
        outside = weight.abs() > 2 * standard_deviation
