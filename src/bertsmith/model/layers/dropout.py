"""Dropout at the price of one pass: on a CPU torch's own costs as much as the matrix product beside it.

A mask of 3,000 x 1,024 values in bfloat16 takes two cores 2.7 ms by torch's operations and 0.4 by the kernel
(kernels/dropout.c).
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bertsmith.model.cpu import kernels


class Dropout(nn.Module):
    """Zeroes each value with `probability` and scales the rest so that the mean stays.

    On a CPU a byte is drawn per value, so the probability is rounded to the nearest 1/256 (0.1 becomes
    0.1016) and the scale uses the rounded one: the expectation is exact in float32. In bfloat16 the scale
    has 8 bits as everything has, and 1.1130 becomes 1.1094, as 1.1111 does in torch's.
    """

    def __init__(self, probability: float) -> None:
        super().__init__()
        self.probability = probability

    def forward(self, x: Tensor) -> Tensor:
        """Any shape, float; the same shape back."""
        if not self.training or self.probability == 0.0:
            return x
        if x.device.type != "cpu":
            return F.dropout(x, self.probability)
        return x * self.mask(x)

    def mask(self, x: Tensor) -> Tensor:
        """Of x's shape and type: 0 for what is dropped, and the scale for what is kept."""
        if x.device.type != "cpu":
            return F.dropout(torch.ones_like(x), self.probability)
        dropped = min(round(self.probability * 256), 255)  # something must be left to scale
        return _mask(x, dropped, 256 / (256 - dropped))

    def extra_repr(self) -> str:
        return str(self.probability)


def _mask(x: Tensor, dropped: int, scale: float) -> Tensor:
    """Of x's shape and type: 0 with a probability of dropped / 256, else `scale`."""
    mask = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if kernels.can_read(mask):
        seed = int(torch.empty((), dtype=torch.int64, device=x.device).random_(-(2**63), None)) % 2**64
        is_bf16, threads = x.dtype == torch.bfloat16, torch.get_num_threads()
        library = kernels.library(kernels.instructions())
        library.dropout_mask(mask.data_ptr(), mask.numel(), seed, dropped, scale, is_bf16, threads)
        return mask
    draws = torch.empty((mask.numel() + 7) // 8, dtype=torch.int64)
    draws.random_(-(2**63), None)  # all 64 bits; the default range leaves the sign bit zero
    torch.ge(draws.view(torch.uint8)[: mask.numel()].view(x.shape), dropped, out=mask)
    return mask.mul_(scale)
