"""Linear modules as inference on a processor wants them: their weights lie as oneDNN's products read them.

Else every product brings them into that order first, which for a short text takes as long as multiplying; and
an activation that follows is computed while its values are still in the cache.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bertsmith.model.attention import SelfAttention
from bertsmith.model.bert import Bert, FeedForward
from bertsmith.model.products import keep_few_shapes

ROWS = 8  # products of a multiple of so many rows share their shapes, and so oneDNN's code for them
# Names of activations as oneDNN has them, with the algorithm.
_AFTER = {None: ("none", ""), "relu": ("relu", ""), "gelu": ("gelu", "none"), "gelu_new": ("gelu", "tanh")}


class PackedLinear(nn.Module):
    """A linear module whose weights can only be multiplied with: they are neither trained nor moved.

    `activation`, of `Activation`'s names, follows the product. Products are in `precision`, with sums in
    float32. A pickled copy packs its weights anew.
    """

    def __init__(self, linear: nn.Linear, activation: str | None, precision: torch.dtype) -> None:
        super().__init__()
        self.precision, self.activation = precision, activation
        self.weight = _pack(linear.weight.detach().to(precision))
        self.bias = linear.bias.detach().to(precision)

    def forward(self, x: Tensor) -> Tensor:
        """(N, inputs) -> (N, outputs), in the precision."""
        rows = len(x)
        whole = x.to(self.precision)
        if rows % ROWS:  # even nothing would be filled up by a copy
            whole = F.pad(whole, (0, 0, 0, -rows % ROWS))
        name, algorithm = _AFTER[self.activation]
        product: Tensor = torch.ops.mkldnn._linear_pointwise(
            whole, self.weight, self.bias, name, [], algorithm
        )
        return product[:rows]

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "weight": self.weight.to_dense()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state | {"weight": _pack(state["weight"])})


def packed(encoder: Bert, precision: torch.dtype = torch.float32) -> Bert:
    """The encoder itself, for inference on a processor from now on: its layers' products in `precision`.

    As it is on a GPU, and where oneDNN has no such product: off x86 and ARM, in bfloat16 without AVX-512.
    """
    if next(encoder.parameters()).device.type != "cpu" or not can_pack(precision):
        return encoder
    with torch.inference_mode():
        keep_few_shapes()
    for part in list(encoder.layers.modules()):
        if isinstance(part, FeedForward):
            part.up = PackedLinear(part.up, part.activation.name, precision)  # type: ignore[assignment]
            part.activation = nn.Identity()  # type: ignore[assignment]
            part.down = PackedLinear(part.down, None, precision)  # type: ignore[assignment]
        if isinstance(part, SelfAttention):
            part.qkv = PackedLinear(part.qkv, None, precision)  # type: ignore[assignment]
            part.output = PackedLinear(part.output, None, precision)  # type: ignore[assignment]
    return encoder


def can_pack(precision: torch.dtype) -> bool:
    """Whether oneDNN multiplies in this precision here."""
    if not torch.backends.mkldnn.is_available():
        return False
    return precision == torch.float32 or bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def _pack(weight: Tensor) -> Tensor:
    found: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight, None)
    return found
