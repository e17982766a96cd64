"""Replaced-token detection as a task (Clark et al. 2020, section 3.1): the generator learns to fill masks,
and the discriminator to find what it filled wrongly.

Which piece the generator puts in is a function of its weights and of the token's place in the run, as masks
are: exact resume and ranks need nothing more.

N tokens in the packed batch, K masked positions, H hidden size.
"""

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from torch import Tensor
from torch.nn import functional as F

from bertsmith.data.batch import PackedBatch, Sequences
from bertsmith.data.masking import GENERATED_TOKENS, IGNORED, MaskedTokens, Masker, uniforms
from bertsmith.model.cross_entropy import vocabulary_loss
from bertsmith.model.flops import encoder_flops, vocabulary_flops
from bertsmith.model.sampled_softmax import sampled_vocabulary_loss
from bertsmith.tasks.pretraining.masked_task import MaskedTask
from bertsmith.tasks.pretraining.pretraining import MASKED_SUMS, cross_entropy_sums, masked_metrics
from bertsmith.tasks.pretraining.replaced_tokens import ReplacedTokenModel, sample_pieces

_REPLACED_SUMS = ("rtd_loss", "rtd_right", "rtd_count", "rtd_replaced", "rtd_found", "rtd_called")


class Corrupted(NamedTuple):
    """`predicting` (K, E) of the generator; `batch` with its pieces in place of the masked ones; `replaced`
    (N,) bool, which tokens are not the text's own.
    """

    masked: MaskedTokens
    predicting: Tensor
    batch: PackedBatch
    replaced: Tensor


@dataclass
class ReplacedTokenTask(MaskedTask[ReplacedTokenModel]):
    """Losses `mlm`, of the generator, and `weighted_rtd`, the discriminator's times `weight`: a token's loss
    is far smaller than a masked piece's (section 3.1's lambda).
    """

    weight: float = 50.0

    def counts(self, sequences: Sequences) -> dict[str, float]:
        """Masked tokens, and all tokens, special ones included."""
        return {
            "mlm": self.host_masker.count(sequences),
            "weighted_rtd": len(sequences.token_ids) / self.weight,
        }

    def loss(self, sequences: Sequences) -> dict[str, Tensor]:
        """Summed cross-entropies of one micro-batch. No gradient goes through the sampled pieces."""
        corrupted = self.corrupt(sequences, self.masker)
        head, weight = self.model.generator.masked_language, self.model.encoder.embeddings.token.weight
        labels = corrupted.masked.labels
        if self.sample is None:
            generating = vocabulary_loss(corrupted.predicting, weight, head.bias, labels)
        else:
            generating = sampled_vocabulary_loss(corrupted.predicting, weight, head.bias, labels, self.sample)
        logits = self.model.replaced_token(self.model.encoder(corrupted.batch)).float()
        detecting = F.binary_cross_entropy_with_logits(logits, corrupted.replaced.float(), reduction="sum")
        return {"mlm": generating, "weighted_rtd": detecting}

    def flops(self, sequences: Sequences) -> float:
        """Matrix products alone, backward counted as twice forward; the product that pieces are sampled from
        has no backward pass.
        """
        masked = float(self.host_masker.wanted(sequences).sum())
        return replaced_token_flops(self.model, sequences.lengths, masked, self.sampled_pieces)

    @property
    def summed(self) -> tuple[str, ...]:
        """What the metrics are made of."""
        return (*MASKED_SUMS, *_REPLACED_SUMS)

    def sums_of(self, sequences: Sequences, masker: Masker) -> dict[str, float]:
        """Of the generator's guesses at masks, and of what the discriminator says of its text."""
        corrupted = self.corrupt(sequences, masker)
        labels = corrupted.masked.labels
        kept = labels != IGNORED
        head, weight = self.model.generator.masked_language, self.model.encoder.embeddings.token.weight
        guesses = F.linear(corrupted.predicting[kept], weight, head.bias)
        totals = cross_entropy_sums("mlm", guesses, labels[kept])
        totals["mlm_majority_right"] = float((labels[kept] == self.most_frequent).sum())
        logits = self.model.replaced_token(self.model.encoder(corrupted.batch)).float()
        called, replaced = logits > 0, corrupted.replaced
        loss = F.binary_cross_entropy_with_logits(logits, replaced.float(), reduction="sum")
        return totals | {
            "rtd_loss": float(loss),
            "rtd_right": float((called == replaced).sum()),
            "rtd_count": float(len(replaced)),
            "rtd_replaced": float(replaced.sum()),
            "rtd_found": float((called & replaced).sum()),
            "rtd_called": float(called.sum()),
        }

    def metrics(self, sums: dict[str, float]) -> dict[str, float]:
        """The generator's figures as of any masked language model (`mlm_…`), and the discriminator's: loss in
        nats a token beside that of knowing the share of replaced tokens alone (`rtd_majority_loss`), accuracy
        beside that of calling every token the text's own, and of the replaced tokens the share that it finds
        (recall) and that its calls are right (precision).
        """
        metrics = masked_metrics(sums)
        if not metrics:
            return {}
        count, replaced = sums["rtd_count"], sums["rtd_replaced"]
        return metrics | {
            "rtd_loss": sums["rtd_loss"] / count,
            "rtd_majority_loss": _entropy(replaced / count),
            "rtd_accuracy": sums["rtd_right"] / count,
            "rtd_majority": max(replaced, count - replaced) / count,
            "rtd_recall": sums["rtd_found"] / max(replaced, 1.0),
            "rtd_precision": sums["rtd_found"] / max(sums["rtd_called"], 1.0),
        }

    def corrupt(self, sequences: Sequences, masker: Masker) -> Corrupted:
        """The generator's guesses at what `masker` masks, and one drawn piece for each."""
        model, batch = self.model, PackedBatch.of(sequences, self.device)
        masked = masker.draw(sequences, batch)
        to_fill = replace(batch, token_ids=masked.token_ids)
        embeddings = model.encoder.embeddings
        predicting = model.generator(embeddings.lookup(to_fill), to_fill, masked.positions)
        places = uniforms(masked.draws, GENERATED_TOKENS)
        bias = model.generator.masked_language.bias
        pieces = sample_pieces(predicting.detach(), embeddings.token.weight, bias, places)
        own = batch.token_ids[masked.positions]
        pieces = pieces.where(masked.labels != IGNORED, own)  # a place that no whole word filled
        filled = batch.token_ids.scatter(0, masked.positions, pieces)
        return Corrupted(masked, predicting, replace(batch, token_ids=filled), filled != batch.token_ids)


def _entropy(share: float) -> float:
    """In nats, of an event of this probability."""
    return -sum(each * math.log(each) for each in (share, 1 - share) if each > 0)


def replaced_token_flops(
    model: ReplacedTokenModel, lengths: npt.NDArray[np.int64], masked: float, sampled_pieces: int = 0
) -> float:
    """Of one step on sequences of these lengths with so many masked positions."""
    config, generator = model.config, model.generator.config
    tokens = float(lengths.sum())
    head = 2 * tokens * config.hidden_size * (config.hidden_size + 1)
    trained = encoder_flops(config, lengths, tokens) + head + encoder_flops(generator, lengths, masked)
    trained += vocabulary_flops(generator, masked, sampled_pieces)
    return 3 * trained + 2 * masked * generator.embedding_width * generator.vocab_size
