"""The cross-entropy over the vocabulary, with few passes through memory.

K masked positions, H hidden size, V vocabulary, T vocabulary rows of a tile.

The product with the vocabulary is the largest tensor of a step. Computed as product, log-softmax and their
gradients, it is written and read about eight times. Here it is computed in tiles that stay in the cache:
exponentials against a running maximum (as in flash attention, Dao et al. 2022, algorithm 1), and at the same
time their share of the gradient. It is written once, and read once in the backward pass.

`sampled_vocabulary_loss` estimates the loss from a sample of the vocabulary (sampled softmax, Jean et al.
2015, section 3.1).
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from bertsmith.data.batch import to_device
from bertsmith.data.masking import IGNORED
from bertsmith.data.stream import Cursor
from bertsmith.model.cpu import kernels

_REGISTER = 16  # float32 values of an AVX-512 register: on a CPU positions are padded to a multiple
_TILE = 1024  # x 300 positions x 4 bytes = 1.2 MB stay in the cache; on a GPU the vocabulary is one tile
_NO_SCORE = -1e30  # its exponential is zero
_POWER = 0.75  # of the counts (Mikolov et al. 2013, section 2.2), so that rare tokens are drawn more often
_STREAM = 0x736F6674  # separates these draws from the others of a seed


def vocabulary_loss(hidden_states: Tensor, weight: Tensor, bias: Tensor, labels: Tensor) -> Tensor:
    """Summed negative log-likelihood of `labels` under softmax(hidden_states weight^T + bias), in float32.

    hidden_states (K, H), weight (V, H), bias (V,), labels (K,) int64, with IGNORED for positions that don't
    count -> scalar. Differentiable once, with respect to the first three.
    """
    if _is_tiled(weight):
        padding = -len(labels) % _REGISTER
        hidden_states = F.pad(hidden_states, (0, 0, 0, padding))
        labels = F.pad(labels, (0, padding), value=IGNORED)
    loss: Tensor = _VocabularyLoss.apply(  # type: ignore[no-untyped-call]
        hidden_states, weight, bias, labels
    )
    return loss


class _VocabularyLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden_states: Tensor, weight: Tensor, bias: Tensor, labels: Tensor) -> Tensor:
        device, input_dtype = hidden_states.device.type, hidden_states.dtype
        dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else weight.dtype
        hidden_states = hidden_states.to(dtype)
        counted = labels != IGNORED
        targets = labels.where(counted, 0)
        tiles = weight.split(_TILE if _is_tiled(weight) else len(weight))
        exponentials = hidden_states.new_empty(len(weight), len(labels))  # (V, K)
        largest = torch.full_like(labels, -torch.inf, dtype=torch.float32)  # (K,) so far
        total = torch.zeros_like(largest)  # (K,) sum of exponentials so far
        expected = torch.zeros_like(hidden_states)  # (K, H) sum of exponentials times vocabulary rows
        maxima = []  # `largest` after each tile
        by_kernel = len(labels) % _REGISTER == 0 and kernels.can_read(exponentials)
        exponentiate = _exponentiate_by_kernel if by_kernel else _exponentiate_by_torch
        bias = bias.float() if by_kernel else bias.to(dtype)  # in the type of the products
        for tile, tile_bias, out in zip(
            tiles, _split_like(bias, tiles), _split_like(exponentials, tiles), strict=True
        ):
            tile = tile.to(dtype)
            shrink = exponentiate(tile, tile_bias, hidden_states.t(), largest, total, out)
            expected = torch.addmm(expected * shrink.unsqueeze(1).to(dtype), out.t(), tile)
            maxima.append(largest.clone())
        of_target = (hidden_states * weight[targets].to(dtype)).sum(1, dtype=torch.float32) + bias[targets]
        shrinks = [(maximum - largest).exp() / total for maximum in maxima]
        ctx.input_dtype = input_dtype
        ctx.save_for_backward(
            hidden_states, weight, targets, counted, total, expected, exponentials, *shrinks
        )
        return (total.log() + largest - of_target).where(counted, 0.0).sum()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        hidden_states, weight, targets, counted, total, expected, exponentials, *shrinks = ctx.saved_tensors
        scale = counted * upstream  # (K,), zero for ignored positions
        dtype = hidden_states.dtype
        mean = expected / total.unsqueeze(1).to(dtype)  # (K, H) the vocabulary row expected by the softmax
        hidden_gradient = (mean - weight[targets].to(dtype)) * scale.unsqueeze(1).to(dtype)
        weight_gradient, bias_gradient = torch.empty_like(weight), torch.empty_like(weight[:, 0])
        converts = weight.dtype != dtype
        if not _is_tiled(weight):
            # softmax - 1 of each target's softmax, in units of 1 / total, before the products rather than
            # after them: on a GPU adding rows up afterwards has another order in every run, and in half
            # precision the rows of frequent tokens would lose most of their digits
            at_targets = targets, torch.arange(len(targets), device=targets.device)
            rest = exponentials[at_targets].float() - total
            exponentials[at_targets] = rest.to(exponentials.dtype)
        parts = exponentials.split(len(weight) if len(shrinks) == 1 else _TILE)
        tiles = zip(
            parts,
            _split_like(weight_gradient, parts),
            _split_like(bias_gradient, parts),
            shrinks,
            strict=True,
        )
        for part, tile, tile_bias, shrink in tiles:
            factor = (shrink * scale).to(dtype)
            product = torch.mm(part, hidden_states * factor.unsqueeze(1), out=None if converts else tile)
            if converts:
                tile.copy_(product)
            tile_bias.copy_(part @ factor)
        if _is_tiled(weight):
            of_targets = scale.to(dtype)
            weight_gradient.index_add_(
                0, targets, (hidden_states * -of_targets.unsqueeze(1)).to(weight.dtype)
            )
            bias_gradient.index_add_(0, targets, -of_targets.to(weight.dtype))
        return hidden_gradient.to(ctx.input_dtype), weight_gradient, bias_gradient, None


def _exponentiate_by_torch(
    tile: Tensor, bias: Tensor, columns: Tensor, largest: Tensor, total: Tensor, out: Tensor
) -> Tensor:
    """Writes the exponentials of tile (T, H) times columns (H, K), plus bias (T,), minus `largest` (K,) to
    out (T, K).

    Updates `largest` and `total` (K,) by this tile. Returns the factors (K,) for the exponentials of earlier
    tiles.
    """
    torch.addmm(bias.unsqueeze(1), tile, columns, out=out)
    scores = out.float()  # (T, K): in float32 the same memory
    before = largest.clone()
    shrink = before.sub_(torch.maximum(largest, scores.amax(0), out=largest)).exp_()
    scores.sub_(largest).exp_()
    if scores is not out:
        out.copy_(scores)
    total.mul_(shrink).add_(scores.sum(0))
    return shrink


def _exponentiate_by_kernel(
    tile: Tensor, bias: Tensor, columns: Tensor, largest: Tensor, total: Tensor, out: Tensor
) -> Tensor:
    """The same as `_exponentiate_by_torch`, by the kernel in kernels/vocabulary.c."""
    torch.mm(tile, columns, out=out)
    shrink, bias = torch.empty_like(largest), bias.contiguous()
    kernels.load_library(kernels.find_instruction_set()).exponentiate(
        *(out.data_ptr(), bias.data_ptr(), *out.shape, out.dtype == torch.bfloat16),
        *(torch.get_num_threads(), largest.data_ptr(), total.data_ptr(), shrink.data_ptr()),
    )
    return shrink


def _is_tiled(weight: Tensor) -> bool:
    return weight.device.type == "cpu"


def _split_like(tensor: Tensor, parts: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Splits a tensor along the vocabulary in the sizes of `parts`."""
    pieces: tuple[Tensor, ...] = tensor.split([len(part) for part in parts])
    return pieces


@dataclass(frozen=True)
class VocabularySample:
    """A sample of the vocabulary: `pieces` (S,) int64, token ids in ascending order; `log_share` (S,)
    float32, the log of each one's probability to be in the sample.
    """

    pieces: Tensor
    log_share: Tensor


class VocabularySampler:
    """Draws samples of about `size` tokens, each with a probability in proportion to a power of its count,
    but at most 1.

    The sample depends only on the seed and on the position of the step's batch in the text: so a step has one
    sample, whatever its micro-batches and ranks.
    """

    def __init__(
        self, counts: npt.NDArray[np.int64], size: int, seed: int, device: torch.device | str = "cpu"
    ) -> None:
        """`counts` (V,) are the tokens' counts in some text."""
        self._probabilities = _inclusion_probabilities(counts, size)
        self._seed, self._device = seed, device

    def draw(self, cursor: Cursor) -> VocabularySample:
        """The sample of the step whose batch begins at this position of the text."""
        seeds = [self._seed, cursor.phase, cursor.epoch, cursor.block, cursor.offset, _STREAM]
        draws = np.random.Generator(np.random.PCG64DXSM(seeds)).random(len(self._probabilities))
        pieces = np.flatnonzero(draws < self._probabilities)
        log_share = np.log(self._probabilities[pieces]).astype(np.float32)
        return VocabularySample(to_device(pieces, self._device), to_device(log_share, self._device))


def sampled_vocabulary_loss(
    hidden_states: Tensor, weight: Tensor, bias: Tensor, labels: Tensor, sample: VocabularySample
) -> Tensor:
    """The summed negative log-likelihood of `labels`, as by `vocabulary_loss`, estimated from a sample.

    hidden_states (K, H), weight (V, H), bias (V,), labels (K,) int64, with IGNORED for positions that don't
    count -> scalar, float32. The estimate of the softmax's denominator is unbiased, its log slightly too
    small.
    """
    counted = labels != IGNORED
    targets = labels.where(counted, 0)
    token_ids = torch.cat([sample.pieces, targets])
    sizes = [len(sample.pieces), len(targets)]
    rows, target_rows = F.embedding(token_ids, weight).split(sizes)
    biases, target_biases = F.embedding(token_ids, bias.unsqueeze(1)).squeeze(1).split(sizes)
    scores = F.linear(hidden_states, rows, biases - sample.log_share).float()  # (K, S)
    # a target counts once, in its own column
    scores = scores.masked_fill(targets.unsqueeze(1) == sample.pieces, _NO_SCORE)
    of_target = (hidden_states * target_rows).sum(1, dtype=torch.float32) + target_biases  # (K,)
    losses: Tensor = torch.logaddexp(scores.logsumexp(1), of_target) - of_target
    return losses.where(counted, 0.0).sum()


def _inclusion_probabilities(counts: npt.NDArray[np.int64], size: int) -> npt.NDArray[np.float64]:
    """The probability of each token (V,) to be in a sample: in proportion to a power of its count, at most 1,
    with the sum `size`. A count of 0 is taken for 1.
    """
    weights = np.maximum(counts, 1) ** _POWER
    falling = np.sort(weights)[::-1]
    rest = np.cumsum(falling[::-1])[::-1]  # the weights of each token and all rarer ones
    left = size - np.arange(len(weights))  # of the sample, when all more frequent tokens are in it
    certain = int(np.argmax(falling * left <= rest))  # the number of tokens that are in every sample
    shares: npt.NDArray[np.float64] = np.minimum(weights * (left[certain] / rest[certain]), 1.0)
    return shares
