"""Layers for inference on a CPU where the kernels don't support them: their weights are packed in the order
in which oneDNN's products read them.

Otherwise every product would reorder them first, which for a short text takes as long as multiplying. An
activation after a product is computed while its values are still in the cache. And a layer is one module:
the calls of a dozen modules take a sixth of a short text's time.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bertsmith.data.batch import PackedBatch
from bertsmith.model.layers.attention import attend, select_rows
from bertsmith.model.layers.disentangled import DistanceProducts, attend_disentangled
from bertsmith.model.layers.layer import Layer

ROWS = 8  # inputs are padded to a multiple, so that more products share a shape, and oneDNN's code for it
# oneDNN's names of activations, with the algorithm.
_POST_OPS = {
    None: ("none", ""),
    "relu": ("relu", ""),
    "gelu": ("gelu", "none"),
    "gelu_new": ("gelu", "tanh"),
    "silu": ("swish", ""),
    "tanh": ("tanh", ""),
}


class PackedLayer(nn.Module):
    """A layer for inference by oneDNN, with the same outputs. It can't be trained or moved to another device.

    Products are in `precision`, with sums in float32.
    """

    def __init__(self, layer: Layer, precision: torch.dtype, relative: Tensor | None = None) -> None:
        """`relative` is what the encoder's `relative_table` returns, None for a family without one."""
        super().__init__()
        attention, feed_forward, self.precision = layer.attention, layer.feed_forward, precision
        self.heads, self.window = (3, attention.heads, attention.head_size), attention.window
        self.rotary, self.pre_norm = attention.rotary, layer.pre_norm
        self.products: DistanceProducts | None = None
        self.position_bias = relative if attention.distances is None else None
        if attention.distances is not None and relative is not None:
            with torch.no_grad():
                self.products = attention.distances(relative, attention.qkv).to(precision)
        self.qkv = PackedLinear(attention.qkv, None, precision)
        self.output = PackedLinear(attention.output, None, precision)
        self.attention_norm = _freeze_norm(layer.attention_norm)
        self.gate = feed_forward.activation if feed_forward.gated else None
        after = None if feed_forward.gated else feed_forward.activation.name
        self.up = PackedLinear(feed_forward.up, after, precision)
        self.down = PackedLinear(feed_forward.down, None, precision)
        self.feed_forward_norm = _freeze_norm(layer.feed_forward_norm)

    def forward(
        self,
        hidden_states: Tensor,
        batch: PackedBatch,
        rows: Tensor | None = None,
        relative: Tensor | None = None,
    ) -> Tensor:
        """The outputs (N, H) of hidden states (N, H), or (R, H) of the given rows, as `Layer` has them.
        `relative` isn't read: it was given before.
        """
        if self.pre_norm:
            hidden_states = select_rows(hidden_states, rows) + self._attend(
                self.attention_norm(hidden_states), batch, rows
            )
            return hidden_states + self._feed_forward(self.feed_forward_norm(hidden_states))
        attended = self._attend(hidden_states, batch, rows)
        hidden_states = self.attention_norm(select_rows(hidden_states, rows) + attended)
        return self.feed_forward_norm(hidden_states + self._feed_forward(hidden_states))

    def _attend(self, states: Tensor, batch: PackedBatch, rows: Tensor | None) -> Tensor:
        qkv = self.qkv(states).view(-1, *self.heads)
        if self.rotary is not None:
            qkv = self.rotary(qkv, batch)
        if self.products is not None:
            attended = attend_disentangled(qkv, batch, self.products)
        else:
            attended = attend(qkv, batch, window=self.window, position_bias=self.position_bias)
        return self.output(select_rows(attended.flatten(1), rows))

    def _feed_forward(self, states: Tensor) -> Tensor:
        widened = self.up(states)
        if self.gate is not None:
            activated, factors = widened.chunk(2, dim=-1)
            widened = self.gate(activated) * factors
        return self.down(widened)


class PackedLinear:
    """A linear module with packed weights, and an activation after the product, by its name in `Activation`.

    A pickled copy packs its weights anew.
    """

    def __init__(self, linear: nn.Linear, activation: str | None, precision: torch.dtype) -> None:
        self.precision = precision
        self.weight = _pack(linear.weight.detach().to(precision))
        self.bias = None if linear.bias is None else linear.bias.detach().to(precision)
        name, algorithm = _POST_OPS[activation]
        self.post_op: tuple[str, list[float], str] = name, [], algorithm

    def __call__(self, x: Tensor) -> Tensor:
        """The outputs (N, outputs) of x (N, inputs), in the module's precision."""
        x = x.to(self.precision)
        rows = len(x)
        if missing := -rows % ROWS:
            x = F.pad(x, (0, 0, 0, missing))
        multiply = torch.ops.mkldnn._linear_pointwise.default
        product: Tensor = multiply(x, self.weight, self.bias, *self.post_op)
        return product[:rows] if missing else product

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "weight": self.weight.to_dense()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state | {"weight": _pack(state["weight"])})


def can_pack_layer(layer: Layer) -> bool:
    """Whether a layer's outputs follow from its weights alone: those of an adapted linear module don't
    (LoRA).
    """
    attention, feed_forward = layer.attention, layer.feed_forward
    linears = attention.qkv, attention.output, feed_forward.up, feed_forward.down
    return all(type(linear) is nn.Linear for linear in linears)


def can_pack(precision: torch.dtype) -> bool:
    """Whether oneDNN multiplies in this precision on this machine."""
    if not torch.backends.mkldnn.is_available():
        return False
    if precision == torch.float16:  # some processors with AVX-512, and so bfloat16, lack it
        return bool(torch.ops.mkldnn._is_mkldnn_fp16_supported())
    return precision == torch.float32 or bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def _freeze_norm(norm: nn.Module) -> Callable[[Tensor], Tensor]:
    """A function that computes the norm with its present weights."""
    if isinstance(norm, nn.LayerNorm):
        bias = None if norm.bias is None else norm.bias.detach()
        layer_norm = partial(F.layer_norm, normalized_shape=list(norm.normalized_shape), bias=bias)
        return partial(layer_norm, weight=norm.weight.detach(), eps=norm.eps)
    if isinstance(norm, nn.RMSNorm):
        rms_norm = partial(F.rms_norm, normalized_shape=list(norm.normalized_shape))
        return partial(rms_norm, weight=norm.weight.detach(), eps=norm.eps)
    return nn.Identity()


def _pack(weight: Tensor) -> Tensor:
    packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight, None)
    return packed
