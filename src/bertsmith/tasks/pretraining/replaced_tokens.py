"""Replaced-token detection (ELECTRA, Clark et al. 2020): a small generator fills masks, and the
discriminator, which is the model to be trained, classifies every token as original or replaced.

N tokens in the packed batch, K masked positions, R rows that a head reads, H hidden size, E width of the
embeddings, V vocabulary.
"""

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bertsmith.data.batch import PackedBatch, Sequences, widest_float
from bertsmith.data.masking import GENERATED_TOKENS, IGNORED, MaskedTokens, Masker, as_uniforms
from bertsmith.model.bert import Bert
from bertsmith.model.config import BertConfig, make_config
from bertsmith.model.cross_entropy import sampled_vocabulary_loss, vocabulary_loss
from bertsmith.model.flops import encoder_flops, vocabulary_flops
from bertsmith.model.layers.elementwise import Activation
from bertsmith.model.layers.initialisation import initialise, meta_init
from bertsmith.model.layers.layer import Layer
from bertsmith.tasks.pretraining.masked_task import MaskedTask
from bertsmith.tasks.pretraining.pretraining import (
    MASKED_SUMS,
    MaskedLanguageHead,
    PretrainingModel,
    cross_entropy_sums,
    masked_metrics,
)

_ROWS = 128  # positions sampled at a time: x 30,522 pieces x 4 bytes are 16 MB
_BLOCK = 256  # pieces of the vocabulary whose probabilities are added up together
_REPLACED_SUMS = ("rtd_loss", "rtd_right", "rtd_count", "rtd_replaced", "rtd_found", "rtd_called")


class ReplacedTokenHead(nn.Module):
    """The discriminator's head: dense → activation → one logit for each token, above 0 for a replaced one."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.activation = Activation(config.hidden_act)
        self.out = nn.Linear(config.hidden_size, 1)
        initialise(self, config.initializer_range)

    def forward(self, hidden_states: Tensor) -> Tensor:
        """Hidden states (N, H) -> logits (N,)."""
        logits: Tensor = self.out(self.activation(self.dense(hidden_states)))
        return logits.squeeze(1)


class Generator(nn.Module):
    """The generator: a masked language model on the discriminator's embeddings, with layers and a head of its
    own.
    """

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.config = config
        width = config.embedding_size
        self.project = None if width is None else nn.Linear(width, config.hidden_size)
        self.layers = nn.ModuleList(Layer(config, number) for number in range(config.num_hidden_layers))
        self.masked_language = MaskedLanguageHead(config)
        if self.project is not None:
            initialise(self.project, config.initializer_range)
        for layer in self.layers:
            layer.initialise(config)  # type: ignore[operator]

    def forward(self, embedded: Tensor, batch: PackedBatch, rows: Tensor) -> Tensor:
        """Embeddings (N, E) of the masked text -> vectors (R, E) at `rows`, which are compared with the token
        embeddings.
        """
        states = embedded if self.project is None else self.project(embedded)
        *lower, last = self.layers
        for layer in lower:
            states = layer(states, batch)
        predicting: Tensor = self.masked_language(last(states, batch, rows))
        return predicting


class ReplacedTokenModel(nn.Module):
    """A discriminator and a generator that share all embeddings (section 3.2), with their LayerNorm, as in
    google-research/electra. Each projects them itself where its hidden size differs from their width.
    """

    def __init__(self, config: BertConfig, generator: BertConfig) -> None:
        super().__init__()
        self.config = config
        self.encoder = Bert(config)
        self.replaced_token = ReplacedTokenHead(config)
        self.generator = Generator(generator)

    def another(self) -> "ReplacedTokenModel":
        """A model with the same parts and newly drawn weights."""
        return ReplacedTokenModel(self.config, self.generator.config)

    def masked_language(self) -> PretrainingModel:
        """The generator as a model of its own: the same weights, not a copy of them."""
        alone = meta_init(lambda: PretrainingModel(self.generator.config, next_sentence=False))
        embeddings = alone.encoder.embeddings
        shared = self.encoder.embeddings
        embeddings.token, embeddings.position = shared.token, shared.position
        embeddings.segment, embeddings.norm = shared.segment, shared.norm
        embeddings.project = self.generator.project
        alone.encoder.layers = self.generator.layers
        alone.masked_language = self.generator.masked_language
        return alone.train(self.training)


def generator_config(config: BertConfig, share: float) -> BertConfig:
    """The config of a generator as deep as the discriminator, with about `share` of its heads, width and
    feed-forward width (section 3.2), but at least one head. Heads are as wide as the discriminator's.
    """
    heads = max(1, round(config.num_attention_heads * share))
    width = heads * config.head_size
    smaller = {
        "num_attention_heads": heads,
        "hidden_size": width,
        "intermediate_size": max(1, round(config.intermediate_size * width / config.hidden_size)),
        "embedding_size": config.embedding_width,
    }
    return make_config(config.model_dump() | smaller, "the generator")


@torch.no_grad()
def sample_pieces(predicting: Tensor, weight: Tensor, bias: Tensor, uniforms: Tensor) -> Tensor:
    """Draws one token for each position from softmax(predicting weight^T + bias), by inverting its
    distribution function.

    predicting (K, E), weight (V, E), bias (V,), uniforms (K,) in [0, 1) -> token ids (K,) int64. The same
    uniform gives the same token, whatever the other positions are. (K, V) is never in memory at once.
    """
    pieces = [
        _invert_cdf(F.linear(rows, weight, bias).float().softmax(1), draws)
        for rows, draws in zip(predicting.split(_ROWS), uniforms.split(_ROWS), strict=True)
    ]
    return torch.cat(pieces) if pieces else torch.empty(0, dtype=torch.int64, device=predicting.device)


def _invert_cdf(probabilities: Tensor, uniforms: Tensor) -> Tensor:
    """The tokens (K,) at uniforms (K,) of distributions (K, V): finds the block of the vocabulary first, then
    the token in it. Cumulative sums of whole rows took longer than the product itself.
    """
    size = probabilities.shape[1]
    full_blocks = size // _BLOCK * _BLOCK
    blocks = probabilities[:, :full_blocks].unflatten(1, (size // _BLOCK, _BLOCK)).sum(2)
    rest = probabilities[:, full_blocks:].sum(1, keepdim=True)
    wide = widest_float(probabilities.device)
    cumulative = torch.cat([blocks, rest], 1).cumsum(1, dtype=wide)
    target = (uniforms * cumulative[:, -1]).unsqueeze(1)  # (K, 1)
    block = torch.searchsorted(cumulative, target, right=True).clamp_(max=cumulative.shape[1] - 1)
    before = F.pad(cumulative, (1, 0)).gather(1, block)
    offsets = torch.arange(_BLOCK, device=block.device)
    inside = probabilities.gather(1, (block * _BLOCK + offsets).clamp_(max=size - 1))  # (K, 256)
    offset = torch.searchsorted(inside.cumsum(1, dtype=wide), target - before, right=True)
    return (block * _BLOCK + offset.clamp_(max=_BLOCK - 1)).squeeze(1).clamp_(max=size - 1)


class CorruptedBatch(NamedTuple):
    """A batch with the generator's tokens in place of the masked ones. `predicting` (K, E) is the generator's
    output; `replaced` (N,) bool tells which tokens differ from the text's own.
    """

    masked: MaskedTokens
    predicting: Tensor
    batch: PackedBatch
    replaced: Tensor


@dataclass
class ReplacedTokenTask(MaskedTask[ReplacedTokenModel]):
    """Trains with the losses `mlm`, the generator's, and `weighted_rtd`, the discriminator's times `weight`,
    since the loss of a token is far smaller than that of a masked one (section 3.1's lambda).
    """

    weight: float = 50.0

    def counts(self, sequences: Sequences) -> dict[str, float]:
        """The number of masked tokens, and that of all tokens, special ones included, over `weight`."""
        return {
            "mlm": self.host_masker.count(sequences),
            "weighted_rtd": len(sequences.token_ids) / self.weight,
        }

    def loss(self, sequences: Sequences) -> dict[str, Tensor]:
        """The summed cross-entropies of one micro-batch. No gradient goes through the sampled tokens."""
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
        """The FLOPs of matrix products alone, backward counted as twice forward; the product for sampling
        tokens has no backward pass.
        """
        masked = float(self.host_masker.count_masked(sequences).sum())
        return replaced_token_flops(self.model, sequences.lengths, masked, self.sampled_pieces)

    @property
    def sum_names(self) -> tuple[str, ...]:
        """The names of the sums that the metrics are computed from."""
        return (*MASKED_SUMS, *_REPLACED_SUMS)

    def sum_micro_batch(self, sequences: Sequences, masker: Masker) -> dict[str, float]:
        """The sums on the generator's guesses of masked tokens, and on the discriminator's calls of replaced
        ones.
        """
        corrupted = self.corrupt(sequences, masker)
        labels = corrupted.masked.labels
        is_label = labels != IGNORED
        head, weight = self.model.generator.masked_language, self.model.encoder.embeddings.token.weight
        guesses = F.linear(corrupted.predicting[is_label], weight, head.bias)
        totals = cross_entropy_sums("mlm", guesses, labels[is_label])
        totals["mlm_majority_right"] = float((labels[is_label] == self.most_frequent).sum())
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
        """The generator's metrics as a masked language model (`mlm_…`), and the discriminator's: its loss in
        nats a token, with that of always answering the share of replaced tokens (`rtd_majority_loss`); its
        accuracy, with that of always giving the same answer; the share of replaced tokens that it finds
        (recall), and the share of its calls that are right (precision).
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

    def corrupt(self, sequences: Sequences, masker: Masker) -> CorruptedBatch:
        """Masks tokens by `masker`, and fills each position with a token drawn from the generator's
        guesses.
        """
        model, batch = self.model, PackedBatch.of(sequences, self.device)
        masked = masker.draw(sequences, batch)
        to_fill = replace(batch, token_ids=masked.token_ids)
        embeddings = model.encoder.embeddings
        predicting = model.generator(embeddings.lookup(to_fill), to_fill, masked.positions)
        draws = as_uniforms(masked.draws, GENERATED_TOKENS)
        bias = model.generator.masked_language.bias
        pieces = sample_pieces(predicting.detach(), embeddings.token.weight, bias, draws)
        own = batch.token_ids[masked.positions]
        pieces = pieces.where(masked.labels != IGNORED, own)  # positions that no whole word filled stay
        filled = batch.token_ids.scatter(0, masked.positions, pieces)
        return CorruptedBatch(masked, predicting, replace(batch, token_ids=filled), filled != batch.token_ids)


def _entropy(share: float) -> float:
    """The entropy in nats of an event with this probability."""
    return -sum(probability * math.log(probability) for probability in (share, 1 - share) if probability > 0)


def replaced_token_flops(
    model: ReplacedTokenModel, lengths: npt.NDArray[np.int64], masked: float, sampled_pieces: int = 0
) -> float:
    """The FLOPs of one step on sequences of these lengths with `masked` masked positions."""
    config, generator = model.config, model.generator.config
    tokens = float(lengths.sum())
    head = 2 * tokens * config.hidden_size * (config.hidden_size + 1)
    trained = encoder_flops(config, lengths, tokens) + head + encoder_flops(generator, lengths, masked)
    trained += vocabulary_flops(generator, masked, sampled_pieces)
    return 3 * trained + 2 * masked * generator.embedding_width * generator.vocab_size
