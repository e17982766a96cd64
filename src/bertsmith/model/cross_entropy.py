"""The vocabulary loss without the vocabulary's memory traffic.

K masked positions, H hidden size, V vocabulary.

The product with the vocabulary is the largest tensor of a step (K x V). Taken apart into product, log-softmax
and their gradients it is written and read about eight times; here one buffer holds logits, then
probabilities, then the gradient, in blocks of rows that stay in cache.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from bertsmith.data.masking import IGNORED

_BLOCK_ROWS = 128  # 128 x 30,522 float32 = 16 MB stay in cache; fewer rows read the vocabulary too often


def vocabulary_loss(hidden_states: Tensor, weight: Tensor, bias: Tensor, labels: Tensor) -> Tensor:
    """Summed negative log-likelihood of `labels` under softmax(hidden_states weight^T + bias), in float32.

    hidden_states (K, H), weight (V, H), bias (V,), labels (K,) int64, where IGNORED counts nothing -> scalar.
    Differentiable once, in the first three.
    """
    loss: Tensor = _VocabularyLoss.apply(  # type: ignore[no-untyped-call]
        hidden_states, weight, bias, labels
    )
    return loss


class _VocabularyLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden_states: Tensor, weight: Tensor, bias: Tensor, labels: Tensor) -> Tensor:
        device = hidden_states.device.type
        if torch.is_autocast_enabled(device):
            dtype = torch.get_autocast_dtype(device)
            hidden_states, weight, bias = hidden_states.to(dtype), weight.to(dtype), bias.to(dtype)
        counted = labels != IGNORED
        targets = labels.where(counted, 0).unsqueeze(1)  # (K, 1)
        gradient = hidden_states.new_empty(len(labels), len(weight))  # (K, V)
        losses = hidden_states.new_empty(len(labels), dtype=torch.float32)
        rows = _BLOCK_ROWS if device == "cpu" else len(labels)
        for start in range(0, len(labels), max(rows, 1)):
            block = slice(start, start + rows)
            losses[block] = _loss_and_gradient(
                hidden_states[block], weight, bias, targets[block], gradient[block]
            )
        ctx.save_for_backward(hidden_states, weight, gradient, counted)
        return losses.where(counted, 0.0).sum()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        hidden_states, weight, gradient, counted = ctx.saved_tensors
        scale = (counted * upstream).to(weight.dtype)  # (K,), zero for ignored rows
        to_hidden_states = (gradient @ weight).mul_(scale.unsqueeze(1))
        to_weight = gradient.t() @ (hidden_states * scale.unsqueeze(1))
        return to_hidden_states, to_weight, gradient.t() @ scale, None


def _loss_and_gradient(
    hidden_states: Tensor, weight: Tensor, bias: Tensor, targets: Tensor, out: Tensor
) -> Tensor:
    """Losses (K,) of one block of rows; leaves softmax - onehot(targets) in `out` (K, V)."""
    torch.addmm(bias, hidden_states, weight.t(), out=out)
    logits = out.float()  # the same memory in float32
    of_target = logits.gather(1, targets)
    largest = logits.amax(1, keepdim=True)
    logits.sub_(largest).exp_()
    total = logits.sum(1, keepdim=True)
    logits.mul_(total.reciprocal())
    logits.scatter_add_(1, targets, logits.new_full((1, 1), -1.0).expand_as(targets))
    if logits is not out:
        out.copy_(logits)
    return (total.log() + largest - of_target).squeeze(1)
