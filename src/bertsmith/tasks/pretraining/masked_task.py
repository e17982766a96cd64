"""The base class of pre-training tasks on masked text: batches, masks, samples of the vocabulary, and metrics
on held-out text. Each task adds its model and its losses.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import ClassVar, Generic, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from bertsmith.data.batch import Sequences, concatenate, split, usual_batch_tokens
from bertsmith.data.masking import Masker, MaskingRates
from bertsmith.data.store import TokenStore
from bertsmith.data.stream import Cursor, GlobalBatch, MixedStream, PretrainingStream
from bertsmith.model.cross_entropy import VocabularySample, VocabularySampler
from bertsmith.tasks.forward_passes import evaluating
from bertsmith.tasks.objective import Add, Gather
from bertsmith.text.tokens.tokenizer import Tokenizer

_COUNTED_TOKENS = 1_000_000  # enough to know the most frequent piece, the baseline of every evaluation
GENERAL = "general_"  # before the names of metrics on general text
_MEASURED = ("mlm_loss", "mlm_accuracy", "mlm_majority")  # on general text, which has no pairs
_HELDOUT_MICRO_BATCH = 2048  # tokens
ModelT = TypeVar("ModelT", bound=nn.Module)


def piece_counts(store: TokenStore, tokenizer: Tokenizer) -> npt.NDArray[np.int64]:
    """How often each token occurs in the first million tokens: (V,); special tokens have 0."""
    counts = np.bincount(store.tokens[:_COUNTED_TOKENS], minlength=tokenizer.vocab_size)
    counts[list(tokenizer.special_ids)] = 0
    return counts


def most_frequent_piece(store: TokenStore, tokenizer: Tokenizer) -> int:
    """The id of the most frequent token. Special tokens such as [UNK] are never a label and don't count."""
    return int(piece_counts(store, tokenizer).argmax())


@dataclass
class MaskedTask(ABC, Generic[ModelT]):
    """Fulfils `Objective` except for the losses. `streams` has one stream for each phase; `heldout` is the
    stream for evaluation, or None.

    With `sampled_pieces` the training loss is estimated from about that many tokens of the vocabulary, drawn
    by `seed` and the position in the text; held-out metrics always use all of it.

    Metrics on `general_heldout` show what a model forgets of the text that it was trained on before.
    """

    model: ModelT
    streams: Sequence[PretrainingStream | MixedStream]
    masker: Masker
    heldout: PretrainingStream | None
    heldout_tokens: int
    device: torch.device
    sampled_pieces: int = 0
    seed: int = 0
    general_heldout: PretrainingStream | None = None
    needs_global_batch: ClassVar[bool] = False

    def __post_init__(self) -> None:
        stream = self.streams[0]
        self.rates = self.masker.rates
        # On the CPU: counts tokens and FLOPs without waiting for the device on which `masker` draws.
        self.host_masker = Masker(stream.tokenizer, self.rates)
        # Metrics use the published masking rates whatever the training uses, so that they can be compared.
        self.evaluation_masker = Masker(stream.tokenizer, MaskingRates(), self.device)
        self.most_frequent = most_frequent_piece(stream.store, stream.tokenizer)
        self.sampler: VocabularySampler | None = None
        self.sample: VocabularySample | None = None  # of the next step
        if 0 < self.sampled_pieces < stream.tokenizer.vocab_size:
            counts = piece_counts(stream.store, stream.tokenizer)
            self.sampler = VocabularySampler(counts, self.sampled_pieces, self.seed, self.device)

    def batches(self, cursor: Cursor) -> Iterator[GlobalBatch]:
        """Endless batches: the phase's stream from `cursor` on."""
        return self.streams[cursor.phase].batches(cursor)

    def prepare_step(self, cursor: Cursor, decayed: float) -> dict[str, float]:
        """Prepares a step: draws its sample of the vocabulary, and sets the masking rate, which may fall in
        the decay (`decayed` is the share of it that is over). Returns the masking rate of this step for the
        log, where it falls in the decay.
        """
        if self.sampler is not None:
            self.sample = self.sampler.draw(cursor)
        self.masker.rates = self.host_masker.rates = self.rates.at(decayed)
        return {} if self.rates.final_mask_rate is None else {"mask_rate": self.masker.rates.mask_rate}

    def begin_step(self, micro_batches: Sequence[Sequence[Sequences]], rank: int, gather: Gather) -> None:
        """Does nothing, because no sequence's loss depends on another's."""

    @abstractmethod
    def counts(self, sequences: Sequences) -> dict[str, float]:
        """The denominator of each loss for these sequences, by the loss's name."""

    @abstractmethod
    def loss(self, sequences: Sequences) -> dict[str, Tensor]:
        """The summed losses of one micro-batch, by the names of `counts`."""

    @abstractmethod
    def flops(self, sequences: Sequences) -> float:
        """The FLOPs of matrix products alone, backward counted as twice forward (see
        bertsmith.model.flops).
        """

    def evaluate(self, rank: int, ranks: int, add: Add) -> dict[str, float]:
        """The metrics on held-out text, of which each rank measures its share; see `metrics`. `add` sums
        dictionaries over the ranks. With general text also general_mlm_loss, general_mlm_accuracy and
        general_mlm_majority on it.
        """
        metrics = self.metrics(add(self.sum_heldout(rank, ranks)))
        if self.general_heldout is None:
            return metrics
        general = self.metrics(add(self.sum_heldout(rank, ranks, self.general_heldout)))
        return metrics | {f"{GENERAL}{name}": general[name] for name in _MEASURED if name in general}

    @torch.no_grad()
    def sum_heldout(
        self, rank: int, ranks: int, heldout: PretrainingStream | None = None, masker: Masker | None = None
    ) -> dict[str, float]:
        """The sums of `sum_micro_batch` over this rank's share of the held-out sequences, the same sequences
        and masks at every call. By default, `heldout` is the task's own and `masker` its evaluation masker.
        """
        totals = dict.fromkeys(self.sum_names, 0.0)
        with evaluating(self.model):
            batches = self._heldout_batches(heldout or self.heldout)
            for batch, tokens in self._with_micro_batch_tokens(islice(batches, rank, None, ranks)):
                for micro_batch in split(batch, 1, tokens)[0]:
                    for name, value in self.sum_micro_batch(
                        micro_batch, masker or self.evaluation_masker
                    ).items():
                        totals[name] += value
        return totals

    @property
    @abstractmethod
    def sum_names(self) -> tuple[str, ...]:
        """The names of the sums that `sum_micro_batch` returns."""

    @abstractmethod
    def sum_micro_batch(self, sequences: Sequences, masker: Masker) -> dict[str, float]:
        """The sums that metrics are computed from, for held-out sequences masked by `masker`."""

    @abstractmethod
    def metrics(self, sums: dict[str, float]) -> dict[str, float]:
        """Metrics from the `sum_heldout` of all ranks; empty without held-out text."""

    def _heldout_batches(self, heldout: PretrainingStream | None) -> Iterator[Sequences]:
        """One pass over held-out text, or over its first `heldout_tokens` tokens."""
        if heldout is None:
            return
        tokens = 0
        for batch in heldout.batches(Cursor(), last_epoch=0):
            if tokens >= self.heldout_tokens:
                return
            tokens += int(batch.sequences.lengths.sum())
            yield batch.sequences

    def _with_micro_batch_tokens(self, batches: Iterator[Sequences]) -> Iterator[tuple[Sequences, int]]:
        """Yields each batch with the number of tokens of its micro-batches. A GPU gets all batches as one,
        because it would wait for the host between small ones.
        """
        if self.device.type != "cuda":
            yield from ((batch, _HELDOUT_MICRO_BATCH) for batch in batches)
        elif share := list(batches):
            yield concatenate(share), usual_batch_tokens("cuda")
