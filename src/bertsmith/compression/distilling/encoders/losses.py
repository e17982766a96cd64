"""The losses between a student and its teacher: soft targets, cosines, and self-attention relations
(MiniLMv2: Wang et al. 2021), the similarities of queries, keys and values between the tokens of a text. Each
is a sum, since the training loop divides by the count over the global batch.

N tokens, K masked positions, B texts, V vocabulary, H hidden size of the teacher, h of the student, D
dimensions of a vector. R sequences of L tokens, G relation heads.
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
    """The Kullback-Leibler divergence in nats between the teacher's and the student's predictions at a
    temperature, times its square (Hinton et al. 2015, section 2.1; Sanh et al. 2019, section 2), summed over
    rows of logits (K, V).
    """
    target = (taught.float() / temperature).log_softmax(-1)
    prediction = (learned.float() / temperature).log_softmax(-1)
    return F.kl_div(prediction, target, reduction="sum", log_target=True) * temperature**2


def cosine_loss(taught: Tensor, learned: Tensor) -> Tensor:
    """1 − cosine, summed over rows: hidden states (N, H) (Sanh et al. 2019, section 2), or vectors (B, D),
    where it is half of the squared distance between the vectors scaled to length 1.
    """
    return (1 - F.cosine_similarity(taught.float(), learned.float(), dim=-1)).sum()


def relation_heads(teacher_width: int, student_width: int, most: int) -> int:
    """The largest number of heads, at most `most`, that divides both widths. Raises ModelError for `most` <
    1.
    """
    for heads in range(most, 0, -1):
        if teacher_width % heads == 0 and student_width % heads == 0:
            return heads
    raise ModelError(f"Relations need at least one head, not {most}.")


@contextmanager
def collect_products(attention: SelfAttention) -> Iterator[list[Tensor]]:
    """Collects the queries, keys and values (N, 3 H) of a layer's forward passes in the list that it yields,
    before rotary positions are applied.
    """
    products: list[Tensor] = []

    def collect(_: nn.Module, __: Any, output: Tensor) -> None:
        # rotary positions are applied in place, which would change the collected tensor
        products.append(output if attention.rotary is None else output.clone())

    handle = attention.qkv.register_forward_hook(collect)
    try:
        yield products
    finally:
        handle.remove()


def relation_loss(taught: Tensor, learned: Tensor, lengths: Sequence[int], heads: int) -> Tensor:
    """The Kullback-Leibler divergence in nats between the teacher's and the student's self-attention
    relations: the mean over queries, keys, values and relation heads, summed over the tokens (Wang et al.
    2021, equation 4, with each of its three weights a third).

    `taught` (N, 3 H) and `learned` (N, 3 h) are the queries, keys and values of one layer each, `lengths`
    those of the sequences; padding tokens behind these count nothing.
    """
    total = learned.new_zeros((), dtype=torch.float32)
    start = 0
    for length, sequences in groupby(lengths):  # neighbours of equal length are computed together
        rows = slice(start, start + length * len(list(sequences)))
        start = rows.stop
        with torch.no_grad():
            target = _log_relations(taught[rows], length, heads)
        relations = _log_relations(learned[rows], length, heads)
        total = total + F.kl_div(relations, target, reduction="sum", log_target=True)
    return total / (_KINDS * heads)


def _log_relations(products: Tensor, length: int, heads: int) -> Tensor:
    """(R L, 3 H) -> (3, R, G, L, L): the log softmax of each token's scaled dot products with all tokens."""
    with torch.autocast(products.device.type, enabled=False):  # half precision is too coarse for the scores
        split = products.float().view(-1, length, _KINDS, heads, products.shape[1] // (_KINDS * heads))
        by_head = split.permute(2, 0, 3, 1, 4)  # (3, R, G, L, H / G)
        scores = by_head @ by_head.transpose(-1, -2) / by_head.shape[-1] ** 0.5
    relations: Tensor = scores.log_softmax(-1)
    return relations
