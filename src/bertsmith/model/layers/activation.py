"""The function between two products, by its name in config.json."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_new": partial(F.gelu, approximate="tanh"),
    "relu": F.relu,
    "silu": F.silu,
    "tanh": torch.tanh,
}
_GELU_ROWS = 128


class Activation(nn.Module):
    """gelu (Hendrycks and Gimpel 2016, exact), gelu_new (its form with tanh), relu, silu, tanh."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def forward(self, x: Tensor) -> Tensor:
        """Any shape; the same shape back."""
        by_blocks = self.name == "gelu" and x.device.type == "cpu" and not torch.is_grad_enabled()
        if by_blocks and len(x) > _GELU_ROWS:
            return _gelu_by_blocks(x)
        return FUNCTIONS[self.name](x)

    def extra_repr(self) -> str:
        return self.name


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
