"""A gate, GeGLU or SwiGLU, in one pass through memory, and its gradients in another (kernels/activation.c).

N rows, H hidden size, I feed-forward width.
"""

from torch import Tensor, nn
from torch.nn import functional as F

from bertsmith.model.cpu.gelu import activate, takes_products_of

ACTIVATIONS = ("gelu", "silu")


def can_take(linear: nn.Module, x: Tensor, activation: str) -> bool:
    """Whether `gated_of` is for this module, its input and this activation: where the kernels are.

    In training and outside, with gradients and without, so that both give the same to the bit.
    """
    return activation in ACTIVATIONS and takes_products_of(linear, x, halves=2)


def gated_of(linear: nn.Linear, x: Tensor, activation: str) -> Tensor:
    """act(W1 x + b1) * (W2 x + b2), the halves of one linear module (Shazeer 2020): (N, H) -> (N, I).

    With a bias or without. Computed in float32 from products of the precision in use, and rounded once.
    Differentiable once.
    """
    return activate(F.linear(x, linear.weight), linear.bias, activation, gated=True)
