"""What a student is measured by against its teacher, each summed, for the loop divides by the global count:
soft targets, cosines, and relations of self-attention, how alike the queries, keys and values of two tokens
are (MiniLMv2: Wang et al. 2021).

N tokens, K masked positions, B texts, V vocabulary, H hidden size, D dimensions of a vector.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bertsmith.errors import ModelError
from bertsmith.model.layers.attention import SelfAttention

_KINDS = 3  # queries, keys, values


def soft_target_loss(taught: Tensor, learned: Tensor, temperature: float) -> Tensor:
    """Logits (K, V) of both -> the Kullback-Leibler divergence of what is predicted at a temperature, times
    its square, in nats (Hinton et al. 2015, section 2.1; Sanh et al. 2019, section 2).
    """
    target = (taught.float() / temperature).log_softmax(-1)
    found = (learned.float() / temperature).log_softmax(-1)
    return F.kl_div(found, target, reduction="sum", log_target=True) * temperature**2


def cosine_loss(taught: Tensor, learned: Tensor) -> Tensor:
    """One less the cosine, summed over rows: hidden states (N, H) (Sanh et al. 2019, section 2), or vectors
    (B, D), where it is half of the squared distance of vectors of length 1.
    """
    return (1 - F.cosine_similarity(taught.float(), learned.float(), dim=-1)).sum()


def relation_heads(teacher_width: int, student_width: int, wanted: int) -> int:
    """Into how many heads both widths are divided: the most up to `wanted`. Raises ModelError for none."""
    for heads in range(wanted, 0, -1):
        if teacher_width % heads == 0 and student_width % heads == 0:
            return heads
    raise ModelError(f"Relations need at least one head, not {wanted}.")


@contextmanager
def products_of(attention: SelfAttention) -> Iterator[list[Tensor]]:
    """Queries, keys and values (N, 3 H) of a layer's forward passes, without its rotary positions."""
    found: list[Tensor] = []

    def keep(_: nn.Module, __: Any, output: Tensor) -> None:
        # turned in place by rotary positions, which would change what is kept
        found.append(output if attention.rotary is None else output.clone())

    handle = attention.qkv.register_forward_hook(keep)
    try:
        yield found
    finally:
        handle.remove()


def relation_loss(taught: Tensor, learned: Tensor, lengths: Sequence[int], heads: int) -> Tensor:
    """How far the student's relations are from the teacher's: the Kullback-Leibler divergence in nats, the
    mean over queries, keys, values and relation heads, summed over the tokens (equation 4 there, whose three
    weights are a third each).

    `taught` (N, 3 H) and `learned` (N, 3 h) are queries, keys and values of one layer each; spare tokens of
    the batch count nothing.
    """
    total = learned.new_zeros((), dtype=torch.float32)
    start = 0
    for length, neighbours in groupby(lengths):  # of equal length
        rows = slice(start, start + length * len(list(neighbours)))
        start = rows.stop
        with torch.no_grad():
            target = _log_relations(taught[rows], length, heads)
        found = _log_relations(learned[rows], length, heads)
        total = total + F.kl_div(found, target, reduction="sum", log_target=True)
    return total / (_KINDS * heads)


def _log_relations(products: Tensor, length: int, heads: int) -> Tensor:
    """(R L, 3 H) -> (3, R, G, L, L): log softmax of each token's scaled products with all tokens."""
    with torch.autocast(products.device.type, enabled=False):  # half precision would blur the scores
        split = products.float().view(-1, length, _KINDS, heads, products.shape[1] // (_KINDS * heads))
        each = split.permute(2, 0, 3, 1, 4)  # (3, R, G, L, H / G)
        scores = each @ each.transpose(-1, -2) / each.shape[-1] ** 0.5
    relations: Tensor = scores.log_softmax(-1)
    return relations
