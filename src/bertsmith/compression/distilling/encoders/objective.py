"""A student beside its frozen teacher, as the loop sees it: the same text for both, and their difference.

N tokens in the packed batch, B texts, K masked positions, H hidden size, D dimensions of a vector.
"""

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from itertools import islice
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from bertsmith.arrays import Ints
from bertsmith.compression.distilling.encoders.losses import (
    cosine_loss,
    products_of,
    relation_loss,
    soft_target_loss,
)
from bertsmith.compression.distilling.encoders.student import StudentModel
from bertsmith.compression.distilling.encoders.teacher import EncoderTeacher, VectorCache, with_positions
from bertsmith.data.batch import PackedBatch, Sequences, ragged_range, split
from bertsmith.data.masking import MaskedTokens, Masker
from bertsmith.data.pairs import Instances
from bertsmith.data.store import TokenStore
from bertsmith.data.stream import Cursor, GlobalBatch, PretrainingStream
from bertsmith.inference.embedding.vectors import Vectors
from bertsmith.model.flops import encoder_flops, vocabulary_flops
from bertsmith.model.layers.attention import SelfAttention
from bertsmith.tasks.forward_passes import evaluating
from bertsmith.tasks.heads.pooling import Pooling, pool_sequences
from bertsmith.tasks.objective import Add, Gather

_SINGLE = 0.5  # of texts are one sentence: what is compared and searched for is mostly short
SHORTEST = 4  # tokens of a text, where the document goes on
_HELDOUT_MICRO_BATCH = 4096  # tokens


@dataclass(frozen=True)
class TextStream(PretrainingStream):
    """Batches of texts in the order of `PretrainingStream`; `labels` of their sequences are the numbers of
    the texts' first sentences in the store, which name them.

    `prefixes` are token ids that stand before a text, by turns: those of queries, of documents, and of
    texts of which nothing is said. A text that is longer than `max_length` with them is cut.
    """

    prefixes: Sequence[Sequence[int]] = ((),)

    def batches(self, cursor: Cursor, last_epoch: int | None = None) -> Iterator[GlobalBatch]:
        """As `PretrainingStream.batches`; what `batch_tokens` counts is without prefixes."""
        for batch in super().batches(cursor, last_epoch):
            yield replace(batch, sequences=_prefixed(batch.sequences, self.prefixes))

    def instances_of(self, documents: Ints, generator: np.random.Generator) -> Instances:
        """The texts of some documents; `is_random` has the number of each one's first sentence."""
        room = self.max_length - 2 - max(map(len, self.prefixes))
        rows = [row for document in documents.tolist() for row in texts_of(self.store, document, room)]
        starts, ends, sentences = np.array(rows, np.int64).reshape(-1, 3).T
        return Instances(starts, ends, ends, ends, sentences)


def texts_of(store: TokenStore, document: int, room: int) -> list[tuple[int, int, int]]:
    """(first token, one past the last, first sentence) of each text of a document; every sentence is in one.

    Half of them are one sentence. The others have sentences until a length is reached that is drawn between
    a few tokens and `room`; very short sentences are never alone. A text ends at `room` tokens.
    """
    first, last = store.document_starts[document : document + 2].tolist()
    starts: list[int] = store.sentence_starts[first : last + 1].tolist()
    draws = np.random.Generator(np.random.PCG64DXSM([0x7E47, document])).random((len(starts), 2)).tolist()
    texts = []
    sentence = 0
    while sentence < last - first:
        single, share = draws[sentence]
        wanted = SHORTEST if single < _SINGLE else SHORTEST + int(share * (room - SHORTEST))
        end = sentence + 1
        while end < last - first and starts[end] - starts[sentence] < wanted:
            if starts[end + 1] - starts[sentence] > room:
                break
            end += 1
        texts.append((starts[sentence], min(starts[end], starts[sentence] + room), first + sentence))
        sentence = end
    return texts


def _prefixed(sequences: Sequences, prefixes: Sequence[Sequence[int]]) -> Sequences:
    """With a prefix behind each [CLS]: which one follows from the text's number."""
    if not any(prefixes):
        return sequences
    chosen = sequences.labels % len(prefixes)
    lengths = np.array([len(prefix) for prefix in prefixes], np.int64)[chosen]
    together = sequences.lengths + lengths
    starts = np.cumsum(together) - together
    token_ids = np.empty(int(together.sum()), np.int64)
    own_starts = np.cumsum(sequences.lengths) - sequences.lengths
    token_ids[starts] = sequences.token_ids[own_starts]
    token_ids[ragged_range(starts + 1, lengths)] = np.concatenate(
        [np.asarray(prefixes[number], np.int64) for number in chosen.tolist()]
    )
    rest = sequences.lengths - 1
    token_ids[ragged_range(starts + 1 + lengths, rest)] = sequences.token_ids[
        ragged_range(own_starts + 1, rest)
    ]
    return Sequences(token_ids, np.zeros_like(token_ids), together, sequences.keys, sequences.labels)


@dataclass(frozen=True)
class EncoderLosses:
    """What is compared, and how much each loss counts; `heads` are those of relations."""

    weights: dict[str, float]
    temperature: float = 2.0
    heads: int = 1
    pooling: Pooling = "mean"
    projection: Tensor | None = None  # (D, H): the teacher's vectors in fewer dimensions

    @property
    def masks(self) -> bool:
        return "soft" in self.weights or "mlm" in self.weights


@dataclass
class EncoderDistillation:
    """Fulfils `Objective`. A loss is divided by its tokens, masked tokens or texts, and weighted by the
    inverse of its count, so that what the log shows is the loss itself times its weight.

    `heldout` is None where nothing is measured. With a `cache`, the teacher's vectors of texts come from it.
    """

    model: StudentModel
    teacher: EncoderTeacher
    comparison: EncoderLosses
    stream: PretrainingStream
    heldout: PretrainingStream | None
    heldout_tokens: int
    masker: Masker
    device: torch.device
    cache: VectorCache | None = None
    needs_global_batch: ClassVar[bool] = False

    def __post_init__(self) -> None:
        self.rates = self.masker.rates
        self.host_masker = Masker(self.stream.tokenizer, self.rates)
        # Whatever the share of masked words has come to, figures are of the same words.
        self.evaluation_masker = Masker(self.stream.tokenizer, self.rates, self.device)

    def batches(self, cursor: Cursor) -> Iterator[GlobalBatch]:
        """Endless, from `cursor` on."""
        return self.stream.batches(cursor)

    def follow(self, cursor: Cursor, decayed: float) -> dict[str, float]:
        """The share of words to mask, where it changes with the learning rate's decay."""
        rates = self.rates.at(decayed) if self.comparison.masks else self.rates
        self.masker.rates = self.host_masker.rates = rates
        return {}

    def counts(self, sequences: Sequences) -> dict[str, float]:
        """Masked tokens, tokens or texts, by the weight of each loss."""
        units = self._units(sequences, self.host_masker)
        return {name: units[name] / weight for name, weight in self.comparison.weights.items()}

    def _units(self, sequences: Sequences, masker: Masker) -> dict[str, float]:
        """What each loss is a sum over."""
        tokens = float(sequences.lengths.sum())
        masked = float(masker.count(sequences)) if self.comparison.masks else 0.0
        texts = float(len(sequences))
        of = {"soft": masked, "mlm": masked, "states": tokens, "relations": tokens, "vectors": texts}
        return {name: of[name] for name in self.comparison.weights}

    def begin_step(self, micro_batches: Sequence[Sequence[Sequences]], rank: int, gather: Gather) -> None:
        """Nothing: each text's loss is its own."""

    def loss(self, sequences: Sequences) -> dict[str, Tensor]:
        """Summed losses of a micro-batch."""
        return self._losses(sequences, self.masker)

    def flops(self, sequences: Sequences) -> float:
        """The student's three passes and the teacher's one; what only compares them is not counted."""
        tokens = float(sequences.lengths.sum())
        found = 3 * encoder_flops(self.model.config, sequences.lengths, tokens)
        found += encoder_flops(self.teacher.config, sequences.lengths, tokens)
        if self.comparison.masks:
            masked = float(self.host_masker.wanted(sequences).sum())
            found += 3 * vocabulary_flops(self.model.config, masked)
            if "soft" in self.comparison.weights:
                found += vocabulary_flops(self.teacher.config, masked)
        return found

    def evaluate(self, rank: int, ranks: int, add: Add) -> dict[str, float]:
        """Each loss on held-out text, its mean without its weight, and their weighted sum as `loss`."""
        sums = add(self._sums(rank, ranks))
        names = list(self.comparison.weights)
        if not names or not sums[f"{names[0]}_count"]:
            return {}
        means = {name: sums[name] / sums[f"{name}_count"] for name in names}
        total = sum(mean * self.comparison.weights[name] for name, mean in means.items())
        return {"loss": total, **{f"{name}_loss": mean for name, mean in means.items()}}

    @torch.no_grad()
    def _sums(self, rank: int, ranks: int) -> dict[str, float]:
        names = self.comparison.weights
        sums = dict.fromkeys([*names, *(f"{name}_count" for name in names)], 0.0)
        with evaluating(self.model):
            for batch in islice(self._heldout_batches(), rank, None, ranks):
                for micro_batch in split(batch, 1, _HELDOUT_MICRO_BATCH)[0]:
                    losses = self._losses(micro_batch, self.evaluation_masker, heldout=True)
                    for name, count in self._units(micro_batch, self.evaluation_masker).items():
                        sums[name] += float(losses[name])
                        sums[f"{name}_count"] += count
        return sums

    def _heldout_batches(self) -> Iterator[Sequences]:
        """One pass over held-out text, or its first tokens."""
        tokens = 0
        for batch in self.heldout.batches(Cursor(), last_epoch=0) if self.heldout is not None else ():
            if tokens >= self.heldout_tokens:
                return
            tokens += int(batch.sequences.lengths.sum())
            yield batch.sequences

    # -- one micro-batch -----------------------------------------------------------------------------------

    def _losses(self, sequences: Sequences, masker: Masker, heldout: bool = False) -> dict[str, Tensor]:
        weights = self.comparison.weights
        batch = PackedBatch.of(sequences, self.device)
        masked: MaskedTokens | None = None
        if self.comparison.masks:
            masked = masker.draw(sequences, batch)
            batch = replace(batch, token_ids=masked.token_ids)
        last = self.model.encoder.layers[-1].attention
        assert isinstance(last, SelfAttention)
        capturing = products_of(last) if "relations" in weights else nullcontext(list[Tensor]())
        with capturing as products:
            states = self.model.encoder(batch)
        if set(weights) == {"vectors"}:  # of the teacher nothing else is needed, which may be on the disk
            target = self._known_vectors(sequences, batch, heldout)
            return {"vectors": cosine_loss(target, self._own_vectors(states, batch))}
        taught = self.teacher(batch)
        losses: dict[str, Tensor] = {}
        if "states" in weights:
            losses["states"] = cosine_loss(taught.states[: len(states)], self.model.compared(states))
        if "relations" in weights and taught.products is not None:
            learned = with_positions(last, products[0], batch)
            losses["relations"] = relation_loss(
                taught.products, learned, batch.lengths, self.comparison.heads
            )
        if "vectors" in weights:
            target = self._vectors(taught.states, batch)
            losses["vectors"] = cosine_loss(target, self._own_vectors(states, batch))
        if masked is not None:
            losses |= self._word_losses(taught.states, states, masked)
        return losses

    def _word_losses(self, taught: Tensor, states: Tensor, masked: MaskedTokens) -> dict[str, Tensor]:
        """Of masked words (K,); those that no word filled count nothing."""
        weights, filled = self.comparison.weights, masked.labels >= 0
        positions, labels = masked.positions[filled], masked.labels[filled]
        logits = self.model.vocabulary_logits(states[positions])
        losses: dict[str, Tensor] = {}
        if "soft" in weights:
            target = self.teacher.logits(taught[positions])
            losses["soft"] = soft_target_loss(target, logits, self.comparison.temperature)
        if "mlm" in weights:
            losses["mlm"] = F.cross_entropy(logits.float(), labels, reduction="sum")
        return losses

    def _own_vectors(self, states: Tensor, batch: PackedBatch) -> Tensor:
        """(N, H) -> (B, D) of the student."""
        return self.model.vectors(pool_sequences(states.float(), batch, self.comparison.pooling))

    def _vectors(self, taught: Tensor, batch: PackedBatch) -> Tensor:
        """(N, H) -> (B, D) of the teacher, of any length."""
        pooled = pool_sequences(taught.float(), batch, self.comparison.pooling)
        projection = self.comparison.projection
        return pooled if projection is None else F.linear(F.normalize(pooled, dim=1), projection)

    def _known_vectors(self, sequences: Sequences, batch: PackedBatch, heldout: bool) -> Tensor:
        """The teacher's (B, D), computed where the disk has none; of held-out texts always."""
        if self.cache is None or heldout:
            return self._vectors(self.teacher(batch).states, batch)

        def compute(places: Ints) -> Vectors:
            part = PackedBatch.of(sequences.take(places), self.device)
            return self._vectors(self.teacher(part).states, part).cpu().numpy()

        return torch.from_numpy(self.cache.get(sequences.labels, compute)).to(self.device)
