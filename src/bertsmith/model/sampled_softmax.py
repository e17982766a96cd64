"""The vocabulary loss against a sample of the vocabulary (sampled softmax, Jean et al. 2015, section 3.1).

The product with the vocabulary is most of what a small model computes: of two layers of 128 with 30,522
pieces and 30 % of the tokens masked, three quarters. Here a masked token is compared with its own piece and
with a sample that is drawn anew for every step. Piece i is in it with probability p_i, and its exponential
counts 1 / p_i times: the sum over the sample is on average the one over the vocabulary.

K masked positions, H hidden size, V vocabulary, S pieces in the sample.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional as F

from bertsmith.data.batch import to_device
from bertsmith.data.masking import IGNORED
from bertsmith.data.stream import Cursor

_HIDDEN = -1e30  # a score whose exponential is zero
_POWER = 0.75  # of the counts (Mikolov et al. 2013, section 2.2): rare pieces are drawn more often
_STREAM = 0x736F6674  # keeps these draws apart from the others of a seed


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
