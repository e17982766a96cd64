"""Modules between two matrix products: activations by their names in config.json, norms (LayerNorm, Ba et al.
2016, with or without its bias; RMSNorm, Zhang and Sennrich 2019), and a dropout that takes one pass through
memory: on a CPU torch's own takes as long as the product beside it.
"""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bertsmith.model.config import BertConfig
from bertsmith.model.cpu import kernels

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
        """The activation of each value of x, in x's shape."""
        by_blocks = self.name == "gelu" and x.device.type == "cpu" and not torch.is_grad_enabled()
        if not by_blocks or len(x) <= _GELU_ROWS:
            return FUNCTIONS[self.name](x)
        # In blocks of one size, with the same result to the bit; the last block may compute some rows a
        # second time. oneDNN keeps code for every shape that it has met, allocated between the large blocks
        # of a forward pass: with a new shape for each batch the process grows by 1.5 MB a batch.
        result = torch.empty_like(x)
        for start in (*range(0, len(x) - _GELU_ROWS, _GELU_ROWS), len(x) - _GELU_ROWS):
            rows = slice(start, start + _GELU_ROWS)
            torch.ops.aten.gelu.out(x[rows], out=result[rows])
        return result

    def extra_repr(self) -> str:
        return self.name


def make_norm(config: BertConfig, width: int | None = None) -> nn.LayerNorm | nn.RMSNorm:
    """The config's norm over `width` values, by default the hidden size."""
    width = config.hidden_size if width is None else width
    if config.norm == "rms":
        return nn.RMSNorm(width, eps=config.layer_norm_eps)
    return nn.LayerNorm(width, eps=config.layer_norm_eps, bias=config.norm_bias)


class Dropout(nn.Module):
    """Zeroes each value with `probability` and scales the others, so that the mean stays the same.

    On a CPU a byte is drawn for each value, so the probability is rounded to the nearest 1/256 (0.1 becomes
    0.1016). The scale is that of the rounded probability, so the expectation is exact in float32. In bfloat16
    the scale is rounded to 8 bits: 1.1130 becomes 1.1094, as 1.1111 does in torch's dropout.
    """

    def __init__(self, probability: float) -> None:
        super().__init__()
        self.probability = probability

    def forward(self, x: Tensor) -> Tensor:
        """x (floats of any shape) with dropout in training mode, x itself otherwise."""
        if not self.training or self.probability == 0.0:
            return x
        if x.device.type != "cpu":
            return F.dropout(x, self.probability)
        return x * self.mask(x)

    def mask(self, x: Tensor) -> Tensor:
        """A mask of x's shape and type: 0 for dropped values, the scale for the others."""
        if x.device.type != "cpu":
            return F.dropout(torch.ones_like(x), self.probability)
        dropped = min(round(self.probability * 256), 255)  # something must be left to scale
        scale = 256 / (256 - dropped)
        mask = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        if kernels.can_read(mask):
            seed = int(torch.empty((), dtype=torch.int64, device=x.device).random_(-(2**63), None)) % 2**64
            is_bf16, threads = x.dtype == torch.bfloat16, torch.get_num_threads()
            library = kernels.load_library(kernels.find_instruction_set())
            library.dropout_mask(mask.data_ptr(), mask.numel(), seed, dropped, scale, is_bf16, threads)
            return mask
        draws = torch.empty((mask.numel() + 7) // 8, dtype=torch.int64)
        draws.random_(-(2**63), None)  # all 64 bits; the default range leaves the sign bit zero
        torch.ge(draws.view(torch.uint8)[: mask.numel()].view(x.shape), dropped, out=mask)
        return mask.mul_(scale)

    def extra_repr(self) -> str:
        return str(self.probability)
