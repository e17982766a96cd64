"""The training objective of encoder distillation: student and frozen teacher read the same text, and the loss
is their difference.

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
    collect_products,
    cosine_loss,
    relation_loss,
    soft_target_loss,
)
from bertsmith.compression.distilling.encoders.student import StudentModel
from bertsmith.compression.distilling.encoders.teacher import EncoderTeacher, VectorCache, rotate_products
from bertsmith.data.batch import PackedBatch, Sequences, ragged_range, split
from bertsmith.data.masking import MaskedTokens, Masker
from bertsmith.data.pairs import Instances
from bertsmith.data.store import TokenStore
from bertsmith.data.stream import Cursor, GlobalBatch, PretrainingStream
from bertsmith.inference.embedding.vectors import Vectors
from bertsmith.model.flops import encoder_flops, vocabulary_flops
from bertsmith.model.layers.attention import SelfAttention
from bertsmith.tasks.forward_passes import evaluating
from bertsmith.tasks.heads.pooling import Pooling, Projection, pool_sequences
from bertsmith.tasks.objective import Add, Gather

_SINGLE = 0.5  # share of texts that are one sentence: texts that are compared and searched are mostly short
SHORTEST = 4  # tokens of a text, unless the document ends
_HELDOUT_MICRO_BATCH = 4096  # tokens


@dataclass(frozen=True)
class TextStream(PretrainingStream):
    """Batches of texts in the order of `PretrainingStream`. The `labels` of their sequences are the numbers
    of the texts' first sentences in the store, which identify the texts.

    `prefixes` are token ids that are put before texts by turns: those for queries, for documents, and for
    texts in general. A text that is longer than `max_length` with its prefix is cut.
    """

    prefixes: Sequence[Sequence[int]] = ((),)

    def batches(self, cursor: Cursor, last_epoch: int | None = None) -> Iterator[GlobalBatch]:
        """As `PretrainingStream.batches`, with prefixes; `batch_tokens` doesn't count these."""
        for batch in super().batches(cursor, last_epoch):
            yield replace(batch, sequences=_add_prefixes(batch.sequences, self.prefixes))

    def make_instances(self, documents: Ints, generator: np.random.Generator) -> Instances:
        """The texts of the documents; `is_random` holds the number of each text's first sentence."""
        room = self.max_length - 2 - max(map(len, self.prefixes))
        rows = [row for document in documents.tolist() for row in texts_of(self.store, document, room)]
        starts, ends, sentences = np.array(rows, np.int64).reshape(-1, 3).T
        return Instances(starts, ends, ends, ends, sentences)


def texts_of(store: TokenStore, document: int, room: int) -> list[tuple[int, int, int]]:
    """Divides a document into texts of at most `room` tokens: (first token, one past the last token, first
    sentence) of each. Every sentence is in exactly one text.

    Half of the texts are one sentence. The others get sentences until they have a random number of tokens
    between `SHORTEST` and `room`. Sentences shorter than `SHORTEST` are joined with the next. The same
    document always gives the same texts.
    """
    first, last = store.document_starts[document : document + 2].tolist()
    starts: list[int] = store.sentence_starts[first : last + 1].tolist()
    draws = np.random.Generator(np.random.PCG64DXSM([0x7E47, document])).random((len(starts), 2)).tolist()
    texts = []
    sentence = 0
    while sentence < last - first:
        single, share = draws[sentence]
        target_length = SHORTEST if single < _SINGLE else SHORTEST + int(share * (room - SHORTEST))
        end = sentence + 1
        while end < last - first and starts[end] - starts[sentence] < target_length:
            if starts[end + 1] - starts[sentence] > room:
                break
            end += 1
        texts.append((starts[sentence], min(starts[end], starts[sentence] + room), first + sentence))
        sentence = end
    return texts


def _add_prefixes(sequences: Sequences, prefixes: Sequence[Sequence[int]]) -> Sequences:
    """The sequences with a prefix behind each [CLS], chosen by the text's number."""
    if not any(prefixes):
        return sequences
    chosen = sequences.labels % len(prefixes)
    prefix_lengths = np.array([len(prefix) for prefix in prefixes], np.int64)[chosen]
    lengths = sequences.lengths + prefix_lengths
    starts = np.cumsum(lengths) - lengths
    token_ids = np.empty(int(lengths.sum()), np.int64)
    old_starts = np.cumsum(sequences.lengths) - sequences.lengths
    token_ids[starts] = sequences.token_ids[old_starts]
    token_ids[ragged_range(starts + 1, prefix_lengths)] = np.concatenate(
        [np.asarray(prefixes[number], np.int64) for number in chosen.tolist()]
    )
    rest = sequences.lengths - 1
    token_ids[ragged_range(starts + 1 + prefix_lengths, rest)] = sequences.token_ids[
        ragged_range(old_starts + 1, rest)
    ]
    return Sequences(token_ids, np.zeros_like(token_ids), lengths, sequences.keys, sequences.labels)


@dataclass(frozen=True)
class EncoderLosses:
    """The losses by name with their weights, and their settings: the temperature of soft targets, the number
    of relation heads, the pooling of vectors, their projection to fewer dimensions, and before it the
    teacher's own `layers` behind the pooling.
    """

    weights: dict[str, float]
    temperature: float = 2.0
    heads: int = 1
    pooling: Pooling = "mean"
    projection: Tensor | None = None  # (D, H): the teacher's vectors in fewer dimensions
    layers: Projection | None = None

    @property
    def masks(self) -> bool:
        """Whether a loss needs masked words."""
        return "soft" in self.weights or "mlm" in self.weights


@dataclass
class EncoderDistillation:
    """The `Objective` of encoder distillation. Each loss is divided by its number of tokens, masked tokens or
    texts over its weight, so that the log shows the mean loss times its weight.

    `heldout` is None where nothing is measured. With a `cache`, the teacher's vectors of texts come from it.
    """

    model: StudentModel
    teacher: EncoderTeacher
    losses: EncoderLosses
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
        # Whatever the share of masked words has come to, metrics are of the same words.
        self.evaluation_masker = Masker(self.stream.tokenizer, self.rates, self.device)

    def batches(self, cursor: Cursor) -> Iterator[GlobalBatch]:
        """An endless stream of global batches from `cursor` on."""
        return self.stream.batches(cursor)

    def prepare_step(self, cursor: Cursor, decayed: float) -> dict[str, float]:
        """Sets the share of words to mask for this step, where it changes with the learning rate's decay."""
        rates = self.rates.at(decayed) if self.losses.masks else self.rates
        self.masker.rates = self.host_masker.rates = rates
        return {}

    def counts(self, sequences: Sequences) -> dict[str, float]:
        """The divisor of each loss: its number of masked tokens, tokens or texts over its weight."""
        units = self._units(sequences, self.host_masker)
        return {name: units[name] / weight for name, weight in self.losses.weights.items()}

    def _units(self, sequences: Sequences, masker: Masker) -> dict[str, float]:
        """The number of masked tokens, tokens or texts that each loss is summed over."""
        tokens = float(sequences.lengths.sum())
        masked = float(masker.count(sequences)) if self.losses.masks else 0.0
        texts = float(len(sequences))
        units = {"soft": masked, "mlm": masked, "states": tokens, "relations": tokens, "vectors": texts}
        return {name: units[name] for name in self.losses.weights}

    def begin_step(self, micro_batches: Sequence[Sequence[Sequences]], rank: int, gather: Gather) -> None:
        """Does nothing: the loss of a text doesn't depend on the other texts of the batch."""

    def loss(self, sequences: Sequences) -> dict[str, Tensor]:
        """Each loss by name, summed over the micro-batch and without its weight."""
        return self._losses(sequences, self.masker)

    def flops(self, sequences: Sequences) -> float:
        """The FLOPs of a micro-batch: three times the student's forward pass and once the teacher's. The
        computation of the losses is not counted.
        """
        tokens = float(sequences.lengths.sum())
        flops = 3 * encoder_flops(self.model.config, sequences.lengths, tokens)
        flops += encoder_flops(self.teacher.config, sequences.lengths, tokens)
        if self.losses.masks:
            masked = float(self.host_masker.count_masked(sequences).sum())
            flops += 3 * vocabulary_flops(self.model.config, masked)
            if "soft" in self.losses.weights:
                flops += vocabulary_flops(self.teacher.config, masked)
        return flops

    def evaluate(self, rank: int, ranks: int, add: Add) -> dict[str, float]:
        """The mean of each loss on held-out text, unweighted, as `NAME_loss`; their weighted sum as
        `loss`.
        """
        sums = add(self._sum_heldout(rank, ranks))
        names = list(self.losses.weights)
        if not names or not sums[f"{names[0]}_count"]:
            return {}
        means = {name: sums[name] / sums[f"{name}_count"] for name in names}
        total = sum(mean * self.losses.weights[name] for name, mean in means.items())
        return {"loss": total, **{f"{name}_loss": mean for name, mean in means.items()}}

    @torch.no_grad()
    def _sum_heldout(self, rank: int, ranks: int) -> dict[str, float]:
        """The sums and counts of the losses over this rank's held-out batches."""
        names = self.losses.weights
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
        """The batches of the first `heldout_tokens` tokens of held-out text."""
        tokens = 0
        for batch in self.heldout.batches(Cursor(), last_epoch=0) if self.heldout is not None else ():
            if tokens >= self.heldout_tokens:
                return
            tokens += int(batch.sequences.lengths.sum())
            yield batch.sequences

    # -- one micro-batch -----------------------------------------------------------------------------------

    def _losses(self, sequences: Sequences, masker: Masker, heldout: bool = False) -> dict[str, Tensor]:
        weights = self.losses.weights
        batch = PackedBatch.of(sequences, self.device)
        masked: MaskedTokens | None = None
        if self.losses.masks:
            masked = masker.draw(sequences, batch)
            batch = replace(batch, token_ids=masked.token_ids)
        last_attention = self.model.encoder.layer_sequence[-1].attention
        assert isinstance(last_attention, SelfAttention)
        collecting = (
            collect_products(last_attention) if "relations" in weights else nullcontext(list[Tensor]())
        )
        with collecting as products:
            states = self.model.encoder(batch)
        if set(weights) == {"vectors"}:  # the only output of the teacher, which may be cached
            target = self._cached_vectors(sequences, batch, heldout)
            return {"vectors": cosine_loss(target, self._student_vectors(states, batch))}
        taught = self.teacher(batch)
        losses: dict[str, Tensor] = {}
        if "states" in weights:
            losses["states"] = cosine_loss(taught.states[: len(states)], self.model.widen(states))
        if "relations" in weights and taught.products is not None:
            # layers below with the same weights were collected too
            learned = rotate_products(last_attention, products[-1], batch)
            losses["relations"] = relation_loss(taught.products, learned, batch.lengths, self.losses.heads)
        if "vectors" in weights:
            target = self._teacher_vectors(taught.states, batch)
            losses["vectors"] = cosine_loss(target, self._student_vectors(states, batch))
        if masked is not None:
            losses |= self._word_losses(taught.states, states, masked)
        return losses

    def _word_losses(self, taught: Tensor, states: Tensor, masked: MaskedTokens) -> dict[str, Tensor]:
        """The losses of masked words (K,). Masked positions without a label count nothing."""
        weights, has_label = self.losses.weights, masked.labels >= 0
        positions, labels = masked.positions[has_label], masked.labels[has_label]
        logits = self.model.vocabulary_logits(states[positions])
        losses: dict[str, Tensor] = {}
        if "soft" in weights:
            target = self.teacher.logits(taught[positions])
            losses["soft"] = soft_target_loss(target, logits, self.losses.temperature)
        if "mlm" in weights:
            losses["mlm"] = F.cross_entropy(logits.float(), labels, reduction="sum")
        return losses

    def _student_vectors(self, states: Tensor, batch: PackedBatch) -> Tensor:
        """The student's vectors (B, D) of its hidden states (N, h)."""
        return self.model.vectors(pool_sequences(states.float(), batch, self.losses.pooling))

    def _teacher_vectors(self, taught: Tensor, batch: PackedBatch) -> Tensor:
        """The teacher's vectors (B, D) of its hidden states (N, H), not scaled to length 1."""
        pooled = pool_sequences(taught.float(), batch, self.losses.pooling)
        projection = self.losses.projection
        if self.losses.layers is not None:
            with torch.no_grad():
                pooled = self.losses.layers(pooled)
        return pooled if projection is None else F.linear(F.normalize(pooled, dim=1), projection)

    def _cached_vectors(self, sequences: Sequences, batch: PackedBatch, heldout: bool) -> Tensor:
        """The teacher's vectors (B, D), from the cache where it has them. Those of held-out texts aren't
        cached.
        """
        if self.cache is None or heldout:
            return self._teacher_vectors(self.teacher(batch).states, batch)

        def compute(indices: Ints) -> Vectors:
            part = PackedBatch.of(sequences.take(indices), self.device)
            return self._teacher_vectors(self.teacher(part).states, part).cpu().numpy()

        return torch.from_numpy(self.cache.get(sequences.labels, compute)).to(self.device)
