"""Attention weights of every layer and head, as an explicit softmax: what the fused kernels never write down.

N tokens of a sequence, L layers, A heads, D head size, H hidden size.
"""

import math
from typing import Any

import torch
from torch import Tensor

from bertsmith.data.batch import PackedBatch
from bertsmith.model.bert import Bert
from bertsmith.model.layers.attention import SelfAttention
from bertsmith.model.layers.layer import Layer


@torch.no_grad()
def attention_weights(encoder: Bert, batch: PackedBatch) -> Tensor:
    """(L, A, N, N) in float32 of a batch of one sequence: how much of what token i (third axis) receives is
    of token j (fourth). Each row adds up to 1. The encoder isn't prepared for inference.
    """
    found: list[Tensor] = []

    def note(attention: Any, given: tuple[Any, ...]) -> None:
        found.append(weights_of(attention, given[0], batch))

    layers = [layer for layer in encoder.layers if isinstance(layer, Layer)]
    hooks = [layer.attention.register_forward_pre_hook(note) for layer in layers]
    try:
        encoder(batch)
    finally:
        for hook in hooks:
            hook.remove()
    return torch.stack(found)


def weights_of(attention: SelfAttention, hidden_states: Tensor, batch: PackedBatch) -> Tensor:
    """softmax(q k^T / sqrt(D)) of what a layer's attention is given: (N, H) -> (A, N, N)."""
    qkv: Tensor = attention.qkv(hidden_states)
    qkv = qkv.view(-1, 3, attention.heads, attention.head_size)  # (N, 3, A, D)
    if attention.rotary is not None:
        qkv = attention.rotary(qkv, batch)
    query, key, _ = qkv.transpose(0, 2).unbind(1)  # each (A, N, D)
    scores = query @ key.mT / math.sqrt(attention.head_size)
    if attention.window is not None:
        places = batch.position_ids
        far = (places[:, None] - places).abs() > attention.window
        scores = scores.masked_fill(far, -torch.inf)
    return scores.float().softmax(-1)
