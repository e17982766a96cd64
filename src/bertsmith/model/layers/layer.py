"""One layer of an encoder: attention, then feed-forward, each with its residual sum and its norm.

N tokens in the packed batch, H hidden size, R rows that a head reads.
"""

import math

import torch
from torch import Tensor, nn

from bertsmith.data.batch import PackedBatch
from bertsmith.model.config import BertConfig
from bertsmith.model.cpu.activation import can_fuse_gate, can_fuse_gelu, fused_gate, fused_gelu
from bertsmith.model.layers.attention import SelfAttention, select_rows
from bertsmith.model.layers.elementwise import Activation, Dropout, make_norm
from bertsmith.model.layers.initialisation import initialise


class FeedForward(nn.Module):
    """Two linear layers, H → I → H, with an activation between them (Vaswani et al. 2017, section 3.3).

    A gated one has 2 I outputs of `up`: the first I are activated and multiplied with the other I (Shazeer
    2020, GLU variants).
    """

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.gated = config.feed_forward == "gated"
        size, bias = config.intermediate_size, config.feed_forward_bias
        up_bias = bias if config.up_bias is None else config.up_bias
        self.up = nn.Linear(config.hidden_size, size * (1 + self.gated), bias=up_bias)
        self.down = nn.Linear(size, config.hidden_size, bias=bias)
        self.activation = Activation(config.hidden_act)
        inside = config.dropout_places != "outputs"
        self.dropout = Dropout(config.hidden_dropout_prob if inside else 0.0)

    def forward(self, hidden_states: Tensor) -> Tensor:
        """The outputs (N, H) of hidden states (N, H)."""
        widened: Tensor = self.down(self.dropout(self._activate(hidden_states)))
        return widened

    def _activate(self, hidden_states: Tensor) -> Tensor:
        """The activated inner values (N, I) of hidden states (N, H)."""
        name = self.activation.name
        if self.gated and can_fuse_gate(self.up, hidden_states, name):
            return fused_gate(self.up, hidden_states, name)
        if self.gated:
            activated, factors = self.up(hidden_states).chunk(2, dim=-1)
            product: Tensor = self.activation(activated) * factors
            return product
        if name == "gelu" and can_fuse_gelu(self.up, hidden_states):
            return fused_gelu(self.up, hidden_states)
        plain: Tensor = self.activation(self.up(hidden_states))
        return plain


class Layer(nn.Module):
    """A layer of the encoder. Its norms come after the residual sums (post-norm, Vaswani et al. 2017), or
    before attention and the feed-forward part (pre-norm, Xiong et al. 2020).
    """

    def __init__(self, config: BertConfig, number: int) -> None:
        super().__init__()
        self.pre_norm = config.pre_norm
        has_norm = number > 0 or config.first_norm
        self.attention = SelfAttention(config, number)
        self.attention_norm = make_norm(config) if has_norm else nn.Identity()
        self.feed_forward = FeedForward(config)
        self.feed_forward_norm = make_norm(config)
        outside = config.dropout_places != "inside"
        attention_dropout = config.hidden_dropout_prob if outside else config.attention_probs_dropout_prob
        self.attention_dropout = Dropout(attention_dropout)
        both = config.dropout_places in ("outputs", "outputs and inside")
        self.feed_forward_dropout = Dropout(config.hidden_dropout_prob if both else 0.0)

    @torch.no_grad()
    def initialise(self, config: BertConfig) -> None:
        """Draws all weights. The output weights of pre-norm layers start smaller the more layers there are,
        so that the residual stream doesn't grow with their number (Radford et al. 2019; ModernBERT too).
        """
        initialise(self, config.initializer_range)
        if self.pre_norm:
            for product in (self.attention.output, self.feed_forward.down):
                product.weight.mul_(1 / math.sqrt(2 * config.num_hidden_layers))

    def forward(
        self,
        hidden_states: Tensor,
        batch: PackedBatch,
        rows: Tensor | None = None,
        relative: Tensor | None = None,
    ) -> Tensor:
        """The outputs (N, H) of hidden states (N, H), or (R, H) of the given rows alone, which attend to
        all. `relative` is the encoder's `relative_table`.
        """
        if self.pre_norm:
            attended = self.attention(self.attention_norm(hidden_states), batch, rows, relative)
            hidden_states = select_rows(hidden_states, rows) + self.attention_dropout(attended)
            widened = self.feed_forward_dropout(self.feed_forward(self.feed_forward_norm(hidden_states)))
            summed: Tensor = hidden_states + widened
            return summed
        attended = self.attention(hidden_states, batch, rows, relative)
        attended = self.attention_dropout(attended)
        hidden_states = self.attention_norm(select_rows(hidden_states, rows) + attended)
        widened = self.feed_forward_dropout(self.feed_forward(hidden_states))
        normalised: Tensor = self.feed_forward_norm(hidden_states + widened)
        return normalised
