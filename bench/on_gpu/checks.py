"""Every path of the device against plain definitions and against the processor, each with its tolerance.

    L   length of a sequence     A   heads     D   head size     K   masked positions     V   vocabulary

Deviations are norms: |found - expected| / |expected|. float32 carries 6e-8 of each value, of which sums in
another order lose a few hundred times as much; bfloat16 carries 4e-3, and a backward pass over two layers
loses several times that. A check that raises has failed too.
"""

import copy
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bertsmith.data.batch import PackedBatch
from bertsmith.data.masking import IGNORED, Masker, MaskingRates
from bertsmith.model.config import BertConfig
from bertsmith.model.cpu.grouped_attention import attend_groups
from bertsmith.model.cross_entropy import vocabulary_loss
from bertsmith.model.layers.attention import attend
from bertsmith.model.layers.elementwise import Dropout
from bertsmith.training.optimizer import make_optimizer, set_learning_rate
from bertsmith.training.settings import OptimizerSettings
from on_gpu.work import made_up_tokenizer, pairs

FLOAT32, BFLOAT16 = 1e-4, 3e-2
_LENGTHS = (40, 40, 17, 64, 1, 130)
CPU = torch.device("cpu")

Compare = Callable[[torch.device], float]


@dataclass(frozen=True)
class Check:
    """`deviation` of the device's result must be at most `allowed`."""

    name: str
    allowed: float
    deviation: Compare


def attention(dtype: torch.dtype, path: str, device: torch.device) -> float:
    """Forward and gradient against softmax(q k^T / sqrt(D)) v, a sequence at a time in float64."""
    draw = torch.Generator().manual_seed(0)
    qkv = torch.randn(sum(_LENGTHS), 3, 4, 64, generator=draw).to(dtype)
    upstream = torch.randn(sum(_LENGTHS), 4, 64, generator=draw).to(dtype)
    zeros = np.zeros(sum(_LENGTHS), np.int64)
    batch = PackedBatch.pack(zeros, zeros, np.array(_LENGTHS), device)
    found, expected = _leaf(qkv.to(device)), _leaf(qkv.double())
    if path == "groups":
        attended = attend_groups(found, batch.lengths, make_mask=torch.ones_like)
    else:
        attended = attend(found, batch)
    attended.backward(upstream.to(device))
    plain = torch.cat([_plain_attention(each) for each in expected.split(_LENGTHS)])
    plain.backward(upstream.double())
    return max(apart(attended, plain), apart(found.grad, expected.grad))


def _plain_attention(qkv: Tensor) -> Tensor:
    """(L, 3, A, D) -> (L, A, D)."""
    query, key, value = qkv.permute(1, 2, 0, 3)  # each (A, L, D)
    weights = torch.softmax(query @ key.mT / math.sqrt(qkv.shape[-1]), -1)
    return (weights @ value).transpose(0, 1)


def vocabulary(dtype: torch.dtype, device: torch.device) -> float:
    """Loss and gradients against cross_entropy in float64; a tenth of the labels count nothing, and a few
    tokens are most of the labels, as in text.
    """
    draw = torch.Generator().manual_seed(1)
    states, weight = torch.randn(300, 64, generator=draw), torch.randn(2000, 64, generator=draw) / 4
    bias = torch.randn(2000, generator=draw)
    labels = (torch.rand(300, generator=draw) ** 6 * 2000).long()
    labels[::10] = IGNORED
    found = [_leaf(each.to(device)) for each in (states, weight, bias)]
    expected = [_leaf(each.double()) for each in (states, weight, bias)]
    with torch.autocast(device.type, dtype, enabled=dtype != torch.float32):
        loss = vocabulary_loss(*found, labels.to(device))
    loss.backward()
    scores = nn.functional.linear(*expected)
    plain = nn.functional.cross_entropy(scores, labels, ignore_index=IGNORED, reduction="sum")
    plain.backward()
    gradients = zip([loss, *(each.grad for each in found)], [plain, *(each.grad for each in expected)])
    return max(apart(one, other) for one, other in gradients)


def _leaf(values: Tensor) -> Tensor:
    """A copy that takes a gradient."""
    return values.clone().requires_grad_()


def masks(whole_words: bool, device: torch.device) -> float:
    """How many ids, positions and labels differ from the processor's: none may."""
    tokenizer = made_up_tokenizer(600)
    sequences = pairs("mixed", 4000, 0, tokenizer, longest=128)
    found = []
    for place in (CPU, device):
        masker = Masker(tokenizer, MaskingRates(whole_words=whole_words), place)
        drawn = masker.draw(sequences, PackedBatch.of(sequences, place))
        found.append(torch.cat([drawn.token_ids, drawn.positions, drawn.labels]).cpu())
    return float((found[0] != found[1]).sum())


def dropout(device: torch.device) -> float:
    """How far the share of zeros is from the probability, and the mean of what stays from its scale."""
    torch.manual_seed(0)
    values = torch.ones(1_000_000, device=device)
    kept = Dropout(0.1).train()(values)
    return max(abs(float((kept == 0).float().mean()) - 0.1), abs(float(kept.mean()) - 1))


def optimiser(device: torch.device) -> float:
    """Five steps of the fused AdamW against its formulas in float64 (Loshchilov and Hutter 2019)."""
    torch.manual_seed(2)
    model = nn.Linear(50, 30)
    settings = OptimizerSettings(weight_decay=0.1)
    reference = [parameter.detach().double() for parameter in model.parameters()]
    moments = [(torch.zeros_like(each), torch.zeros_like(each)) for each in reference]
    model.to(device)
    fused = make_optimizer(model, settings)
    set_learning_rate(fused, 0.01)
    for step in range(1, 6):
        gradients = [torch.randn(each.shape) for each in reference]
        for parameter, gradient in zip(model.parameters(), gradients, strict=True):
            parameter.grad = gradient.to(device)
        fused.step()
        for value, (first, second), gradient, decay in zip(
            reference, moments, gradients, (0.1, 0.0), strict=True
        ):
            _adamw(value, first, second, gradient.double(), step, decay, settings)
    return max(apart(one, other) for one, other in zip(model.parameters(), reference, strict=True))


def _adamw(
    value: Tensor, first: Tensor, second: Tensor, gradient: Tensor, step: int, decay: float, by: Any
) -> None:
    value.mul_(1 - 0.01 * decay)
    first.lerp_(gradient, 1 - by.beta1)
    second.lerp_(gradient**2, 1 - by.beta2)
    corrected = (second / (1 - by.beta2**step)).sqrt() + by.epsilon
    value.sub_(0.01 / (1 - by.beta1**step) * first / corrected)


def small_config(vocabulary: int = 600) -> BertConfig:
    """Two layers with heads of 64, which flash attention takes; no dropout, or nothing could be compared."""
    return BertConfig.model_validate(
        {
            "vocab_size": vocabulary,
            "hidden_size": 128,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "intermediate_size": 256,
            "max_position_embeddings": 128,
            "hidden_dropout_prob": 0.0,
            "attention_probs_dropout_prob": 0.0,
        }
    )


def spread_out(model: nn.Module) -> None:
    """Weights far larger than at birth: with 0.02 every softmax is nearly uniform and hides errors."""
    draw = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=draw) * 0.1
            parameter.copy_(noise + 1 if "norm" in name and name.endswith("weight") else noise)


def on(module: nn.Module, device: torch.device) -> nn.Module:
    """A copy there."""
    return copy.deepcopy(module).to(device)


def apart(found: Tensor | None, expected: Tensor | None) -> float:
    """|found - expected| / |expected|; infinite where one is missing or not a number."""
    if found is None or expected is None:
        return 0.0 if found is expected else math.inf
    one, other = found.detach().double().cpu(), expected.detach().double().cpu()
    scale = max(float(other.norm()), 1e-30)
    distance = float((one - other).norm()) / scale
    return distance if math.isfinite(distance) else math.inf


def parts() -> Iterator[Check]:
    """Of the bricks; `model_checks` has those of whole models."""
    single, half = torch.float32, torch.bfloat16
    yield Check("attention in runs of equal length, float32", FLOAT32, partial(attention, single, "equal"))
    yield Check("attention on dropout's path, float32", FLOAT32, partial(attention, single, "groups"))
    yield Check("variable-length attention, bfloat16", BFLOAT16, partial(attention, half, "varlen"))
    yield Check("vocabulary loss, float32", FLOAT32, partial(vocabulary, single))
    yield Check("vocabulary loss, bfloat16", BFLOAT16, partial(vocabulary, half))
    yield Check("masks of tokens, differing ids", 0, partial(masks, False))
    yield Check("masks of whole words, differing ids", 0, partial(masks, True))
    yield Check("dropout, share and mean", 4e-3, dropout)
    yield Check("fused AdamW, five steps", FLOAT32, optimiser)
