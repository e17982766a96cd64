"""The vocabulary loss without the vocabulary's memory traffic.

K masked positions, H hidden size, V vocabulary, T vocabulary rows of a tile.

The product with the vocabulary is the largest tensor of a step. Taken apart into product, log-softmax and
their gradients it is written and read about eight times. Here it is made tile by tile, in cache:
exponentials against a running maximum (as in flash attention, Dao et al. 2022, algorithm 1), and at once
their share of the gradient. It is written once and read once, in the backward pass.

Or it is made against a sample of the vocabulary (sampled softmax, Jean et al. 2015, section 3.1).
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

_REGISTER = 16  # float32 values, of AVX-512: on a CPU positions are filled up to a multiple
_TILE = 1024  # x 300 positions x 4 bytes = 1.2 MB stay in cache; on a GPU the vocabulary is one tile
_HIDDEN = -1e30  # a score whose exponential is zero
_POWER = 0.75  # of the counts (Mikolov et al. 2013, section 2.2): rare pieces are drawn more often
_STREAM = 0x736F6674  # keeps these draws apart from the others of a seed


def vocabulary_loss(hidden_states: Tensor, weight: Tensor, bias: Tensor, labels: Tensor) -> Tensor:
    """Summed negative log-likelihood of `labels` under softmax(hidden_states weight^T + bias), in float32.

    hidden_states (K, H), weight (V, H), bias (V,), labels (K,) int64, where IGNORED counts nothing -> scalar.
    Differentiable once, in the first three.
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
        device, wide = hidden_states.device.type, hidden_states.dtype
        dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else weight.dtype
        hidden_states = hidden_states.to(dtype)
        counted = labels != IGNORED
        targets = labels.where(counted, 0)
        tiles = weight.split(_TILE if _is_tiled(weight) else len(weight))
        exponentials = hidden_states.new_empty(len(weight), len(labels))  # (V, K)
        largest = torch.full_like(labels, -torch.inf, dtype=torch.float32)  # (K,) so far
        total = torch.zeros_like(largest)  # (K,) sum of exponentials so far
        expected = torch.zeros_like(hidden_states)  # (K, H) sum of exponentials times vocabulary rows
        maxima = []  # of `largest` when each tile was made
        by_kernel = len(labels) % _REGISTER == 0 and kernels.can_read(exponentials)
        exponentiate = _by_kernel if by_kernel else _by_torch
        bias = bias.float() if by_kernel else bias.to(dtype)  # what is added to the products
        for tile, tile_bias, out in zip(tiles, _like(bias, tiles), _like(exponentials, tiles), strict=True):
            tile = tile.to(dtype)
            shrink = exponentiate(tile, tile_bias, hidden_states.t(), largest, total, out)
            expected = torch.addmm(expected * shrink.unsqueeze(1).to(dtype), out.t(), tile)
            maxima.append(largest.clone())
        of_target = (hidden_states * weight[targets].to(dtype)).sum(1, dtype=torch.float32) + bias[targets]
        shrinks = [(maximum - largest).exp() / total for maximum in maxima]
        ctx.wide = wide
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
        to_hidden_states = (mean - weight[targets].to(dtype)) * scale.unsqueeze(1).to(dtype)
        to_weight, to_bias = torch.empty_like(weight), torch.empty_like(weight[:, 0])
        converts = weight.dtype != dtype
        if not _is_tiled(weight):
            # softmax - 1 of each target's softmax, in units of 1 / total, before the products rather than
            # after them: on a GPU adding rows up afterwards has another order in every run, and in half
            # precision the rows of frequent tokens would lose most of their digits
            at_targets = targets, torch.arange(len(targets), device=targets.device)
            rest = exponentials[at_targets].float() - total
            exponentials[at_targets] = rest.to(exponentials.dtype)
        parts = exponentials.split(len(weight) if len(shrinks) == 1 else _TILE)
        tiles = zip(parts, _like(to_weight, parts), _like(to_bias, parts), shrinks, strict=True)
        for part, tile, tile_bias, shrink in tiles:
            factor = (shrink * scale).to(dtype)
            product = torch.mm(part, hidden_states * factor.unsqueeze(1), out=None if converts else tile)
            if converts:
                tile.copy_(product)
            tile_bias.copy_(part @ factor)
        if _is_tiled(weight):
            of_targets = scale.to(dtype)
            to_weight.index_add_(0, targets, (hidden_states * -of_targets.unsqueeze(1)).to(weight.dtype))
            to_bias.index_add_(0, targets, -of_targets.to(weight.dtype))
        return to_hidden_states.to(ctx.wide), to_weight, to_bias, None


def _by_torch(
    tile: Tensor, bias: Tensor, columns: Tensor, largest: Tensor, total: Tensor, out: Tensor
) -> Tensor:
    """Exponentials of tile (T, H) times columns (H, K), plus bias (T,), against `largest` (K,) -> out (T, K).

    Brings largest and total (K,) up to this tile. Returns (K,) what earlier tiles' are to be multiplied with.
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


def _by_kernel(
    tile: Tensor, bias: Tensor, columns: Tensor, largest: Tensor, total: Tensor, out: Tensor
) -> Tensor:
    """As `_by_torch`, computed by the kernel in kernels/vocabulary.c."""
    torch.mm(tile, columns, out=out)
    shrink, bias = torch.empty_like(largest), bias.contiguous()
    kernels.library(kernels.instructions()).exponentiate(
        *(out.data_ptr(), bias.data_ptr(), *out.shape, out.dtype == torch.bfloat16),
        *(torch.get_num_threads(), largest.data_ptr(), total.data_ptr(), shrink.data_ptr()),
    )
    return shrink


def _is_tiled(weight: Tensor) -> bool:
    return weight.device.type == "cpu"


def _like(tensor: Tensor, parts: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Divided along the vocabulary as `parts` are."""
    pieces: tuple[Tensor, ...] = tensor.split([len(part) for part in parts])
    return pieces


@dataclass(frozen=True)
class VocabularySample:
    """pieces (S,) int64, ascending; log_share (S,) float32, the log of each one's probability to be here."""

    pieces: Tensor
    log_share: Tensor


class VocabularySampler:
    """Draws samples of about `size` pieces, each piece in proportion to a power of its count, at most always.

    Only the seed and the place of a step's batch in the text decide: a step has one sample, whatever its
    micro-batches and ranks.
    """

    def __init__(
        self, counts: npt.NDArray[np.int64], size: int, seed: int, device: torch.device | str = "cpu"
    ) -> None:
        """counts (V,) of the pieces in some text."""
        self._shares = _shares(counts, size)
        self._seed, self._device = seed, device

    def draw(self, place: Cursor) -> VocabularySample:
        """The sample of the step whose batch begins there."""
        seeds = [self._seed, place.phase, place.epoch, place.block, place.offset, _STREAM]
        draws = np.random.Generator(np.random.PCG64DXSM(seeds)).random(len(self._shares))
        pieces = np.flatnonzero(draws < self._shares)
        log_share = np.log(self._shares[pieces]).astype(np.float32)
        return VocabularySample(to_device(pieces, self._device), to_device(log_share, self._device))


def sampled_vocabulary_loss(
    hidden_states: Tensor, weight: Tensor, bias: Tensor, labels: Tensor, sample: VocabularySample
) -> Tensor:
    """Summed negative log-likelihood of `labels`, as `vocabulary_loss` has it, estimated from a sample.

    hidden_states (K, H), weight (V, H), bias (V,), labels (K,) int64, where IGNORED counts nothing -> scalar,
    float32. The estimate of the softmax's denominator is unbiased, its log slightly too small.
    """
    counted = labels != IGNORED
    targets = labels.where(counted, 0)
    wanted = torch.cat([sample.pieces, targets])
    sizes = [len(sample.pieces), len(targets)]
    rows, target_rows = F.embedding(wanted, weight).split(sizes)
    biases, target_biases = F.embedding(wanted, bias.unsqueeze(1)).squeeze(1).split(sizes)
    scores = F.linear(hidden_states, rows, biases - sample.log_share).float()  # (K, S)
    # the target counts once, and by its own column
    scores = scores.masked_fill(targets.unsqueeze(1) == sample.pieces, _HIDDEN)
    of_target = (hidden_states * target_rows).sum(1, dtype=torch.float32) + target_biases  # (K,)
    losses: Tensor = torch.logaddexp(scores.logsumexp(1), of_target) - of_target
    return losses.where(counted, 0.0).sum()


def _shares(counts: npt.NDArray[np.int64], size: int) -> npt.NDArray[np.float64]:
    """(V,) each piece's probability: in proportion to its count's power, no more than 1, `size` together.

    A piece that was never counted is taken for one that was counted once.
    """
    weights = np.maximum(counts, 1) ** _POWER
    falling = np.sort(weights)[::-1]
    rest = np.cumsum(falling[::-1])[::-1]  # what each piece and all rarer ones weigh together
    left = size - np.arange(len(weights))  # of the sample, when all more frequent pieces are in it
    certain = int(np.argmax(falling * left <= rest))  # the first that isn't
    shares: npt.NDArray[np.float64] = np.minimum(weights * (left[certain] / rest[certain]), 1.0)
    return shares
