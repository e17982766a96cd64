"""The feed-forward part of a layer.

N tokens, H hidden size, I feed-forward width.
"""

from torch import Tensor, nn

from bertsmith.model.config import BertConfig
from bertsmith.model.cpu import gated, gelu
from bertsmith.model.layers.activation import Activation
from bertsmith.model.layers.dropout import Dropout


class FeedForward(nn.Module):
    """H → I → H with an activation between (Vaswani et al. 2017, section 3.3).

    Gated, `up` has 2 I outputs: the first I are activated, and multiply the other I (Shazeer 2020, GLU
    variants).
    """

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.gated = config.feed_forward == "gated"
        size, bias = config.intermediate_size, config.feed_forward_bias
        self.up = nn.Linear(config.hidden_size, size * (1 + self.gated), bias=bias)
        self.down = nn.Linear(size, config.hidden_size, bias=bias)
        self.activation = Activation(config.hidden_act)
        inside = config.dropout_places == "inside"
        self.dropout = Dropout(config.hidden_dropout_prob if inside else 0.0)

    def forward(self, hidden_states: Tensor) -> Tensor:
        """(N, H) -> (N, H)."""
        widened: Tensor = self.down(self.dropout(self._activated(hidden_states)))
        return widened

    def _activated(self, hidden_states: Tensor) -> Tensor:
        """(N, H) -> (N, I)."""
        name = self.activation.name
        if self.gated and gated.can_take(self.up, hidden_states, name):
            return gated.gated_of(self.up, hidden_states, name)
        if self.gated:
            activated, factors = self.up(hidden_states).chunk(2, dim=-1)
            product: Tensor = self.activation(activated) * factors
            return product
        if name == "gelu" and gelu.can_take(self.up, hidden_states):
            return gelu.gelu_of(self.up, hidden_states)
        plain: Tensor = self.activation(self.up(hidden_states))
        return plain
