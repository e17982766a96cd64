"""Pre-training as a task: masked language modelling, and whether two segments follow each other (Devlin et
al. 2019, section 3.1) or are in order (Lan et al. 2020, section 3.1).

N tokens in the packed batch, B sequences, H hidden size, E width of the embeddings, V vocabulary, K masked
positions.
"""

import math
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bertsmith.data.batch import PackedBatch, Sequences, to_device
from bertsmith.data.masking import IGNORED, MaskedTokens, Masker
from bertsmith.data.store import TokenStore
from bertsmith.model.bert import Bert
from bertsmith.model.config import BertConfig
from bertsmith.model.cross_entropy import VocabularySample, sampled_vocabulary_loss, vocabulary_loss
from bertsmith.model.flops import encoder_flops, vocabulary_flops
from bertsmith.model.layers.elementwise import Activation, make_norm
from bertsmith.model.layers.initialisation import initialise
from bertsmith.tasks.pretraining.masked_task import MaskedTask, piece_counts
from bertsmith.text.tokens.pieces import count_piece_characters
from bertsmith.text.tokens.tokenizer import Tokenizer

MASKED_SUMS = ("mlm_loss", "mlm_right", "mlm_count", "mlm_majority_right")


class MaskedLanguageHead(nn.Module):
    """The head for masked tokens: dense → activation → norm, then the transposed token embeddings and a bias.

    `is_new` is set to False by whoever loads a trained head: the weights don't show it, since some families
    train without a bias.
    """

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.embedding_width, bias=config.head_bias)
        self.activation = Activation(config.masked_language_act)
        self.norm = make_norm(config, config.embedding_width)
        self.bias = nn.Parameter(torch.zeros(config.vocab_size))
        self.is_new = True
        initialise(self, config.initializer_range)

    def forward(self, hidden_states: Tensor) -> Tensor:
        """Hidden states (K, H) -> vectors (K, E) that are compared with the token embeddings."""
        transformed: Tensor = self.norm(self.activation(self.dense(hidden_states)))
        return transformed


class PretrainingModel(nn.Module):
    """An encoder with its pre-training heads.

    Without `next_sentence` (RoBERTa, DistilBERT, or by choice) there is neither that head nor a pooler, since
    nothing would train them. With `sentence_order` the head predicts whether a pair is swapped, as ALBERT's
    always does, instead of whether the second segment follows the first.
    """

    def __init__(
        self, config: BertConfig, next_sentence: bool | None = None, sentence_order: bool = False
    ) -> None:
        super().__init__()
        self.config, self.sentence_order = config, sentence_order or config.family.sentence_order
        self.encoder = Bert(config)
        self.masked_language = MaskedLanguageHead(config)
        self.decoder: nn.ModuleList | None = None  # of patches, while it is trained; never saved
        self.next_sentence: nn.Linear | None = None
        if config.has_next_sentence if next_sentence is None else next_sentence:
            self.next_sentence = nn.Linear(config.hidden_size, 2)
            initialise(self.next_sentence, config.initializer_range)
        else:
            self.encoder.pooler = None

    def another(self) -> "PretrainingModel":
        """A model with the same parts and newly drawn weights."""
        return PretrainingModel(self.config, self.next_sentence is not None, self.sentence_order)

    @property
    def pair_loss(self) -> str:
        """The name of the pair head's loss and metrics."""
        return "sop" if self.sentence_order else "nsp"

    def vocabulary_logits(self, hidden_states: Tensor) -> Tensor:
        """Hidden states (K, H) -> logits (K, V) over the vocabulary."""
        weight = self.encoder.embeddings.token.weight
        return F.linear(self.masked_language(hidden_states), weight, self.masked_language.bias)

    def masked_language_loss(
        self, hidden_states: Tensor, labels: Tensor, sample: VocabularySample | None = None
    ) -> Tensor:
        """The summed loss of hidden states (K, H) and labels (K,), estimated if there is a sample."""
        weight, bias = self.encoder.embeddings.token.weight, self.masked_language.bias
        transformed = self.masked_language(hidden_states)
        if sample is None:
            return vocabulary_loss(transformed, weight, bias, labels)
        return sampled_vocabulary_loss(transformed, weight, bias, labels, sample)

    def next_sentence_logits(self, first_tokens: Tensor) -> Tensor:
        """Hidden states of first tokens (B, H) -> logits (B, 2): column 0 for a second segment that follows
        the first, column 1 for a random one or a swapped pair. Raises ValueError without such a head.
        """
        if self.next_sentence is None:
            raise ValueError("this model has no next-sentence head")
        logits: Tensor = self.next_sentence(self.encoder.pool(first_tokens))
        return logits


@dataclass
class PretrainingTask(MaskedTask[PretrainingModel]):
    """Masked language modelling, and next-sentence or sentence-order prediction where the model has that
    head: losses `mlm`, and `nsp` or `sop`.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        self.characters = torch.from_numpy(count_piece_characters(self.streams[0].tokenizer))

    def counts(self, sequences: Sequences) -> dict[str, float]:
        """The number of masked tokens, and that of sequences if there is a pair head."""
        counts: dict[str, float] = {"mlm": self.host_masker.count(sequences)}
        if self.model.next_sentence is not None:
            counts[self.model.pair_loss] = len(sequences)
        return counts

    def loss(self, sequences: Sequences) -> dict[str, Tensor]:
        """The summed cross-entropies of one micro-batch, by the names of `counts`."""
        masked, first_tokens, predicting = self.encode(sequences, self.masker)
        losses = {"mlm": self.model.masked_language_loss(predicting, masked.labels, self.sample)}
        if self.model.next_sentence is not None:
            logits = self.model.next_sentence_logits(first_tokens)
            labels = to_device(sequences.labels, self.device)
            losses[self.model.pair_loss] = F.cross_entropy(logits.float(), labels, reduction="sum")
        return losses

    def flops(self, sequences: Sequences) -> float:
        """Matrix products alone, backward counted as twice forward (see bertsmith.model.flops)."""
        config = self.model.config
        masked = float(self.host_masker.count_masked(sequences).sum())
        read = masked + (len(sequences) if self.model.next_sentence is not None else 0)
        encoder = encoder_flops(config, sequences.lengths, read)
        return 3 * (encoder + vocabulary_flops(config, masked, self.sampled_pieces))

    @property
    def sum_names(self) -> tuple[str, ...]:
        """The sums behind the metrics, and the number of characters that the masked tokens stand for."""
        masked = (*MASKED_SUMS, "mlm_characters")
        if self.model.next_sentence is None:
            return masked
        pair = self.model.pair_loss
        return (*masked, f"{pair}_loss", f"{pair}_right", f"{pair}_count", f"{pair}_random")

    def metrics(self, sums: dict[str, float]) -> dict[str, float]:
        """Loss in nats per masked token, perplexity, and accuracies in [0, 1]; empty without held-out text.

        Each accuracy comes with its baseline: always the most frequent token, always the same answer. There
        are no metrics on pairs where the held-out stream has none.
        """
        metrics = masked_metrics(sums)
        pair, has_pairs = self.model.pair_loss, self.heldout is not None and self.heldout.next_sentence
        if metrics and has_pairs and sums.get(f"{pair}_count"):
            count, other = sums[f"{pair}_count"], sums[f"{pair}_random"]
            metrics |= {
                f"{pair}_majority": max(other, count - other) / count,
                f"{pair}_loss": sums[f"{pair}_loss"] / count,
                f"{pair}_accuracy": sums[f"{pair}_right"] / count,
            }
        return metrics

    def encode(self, sequences: Sequences, masker: Masker) -> tuple[MaskedTokens, Tensor, Tensor]:
        """Masks tokens by `masker`, and returns them with the hidden states that the heads read: of first
        tokens (B, H) and of masked positions (K, H).
        """
        batch = PackedBatch.of(sequences, self.device)
        masked = masker.draw(sequences, batch)
        batch = replace(batch, token_ids=masked.token_ids)
        first_rows = batch.first_rows if self.model.next_sentence is not None else batch.first_rows[:0]
        states = self.model.encoder(batch, torch.cat([first_rows, masked.positions]))
        first_tokens, predicting = states.split([len(first_rows), len(masked.positions)])
        return masked, first_tokens, predicting

    def sum_micro_batch(self, sequences: Sequences, masker: Masker) -> dict[str, float]:
        masked, first_tokens, predicting = self.encode(sequences, masker)
        totals = masked_sums(self.model, masked, predicting, self.most_frequent)
        labels = masked.labels[masked.labels != IGNORED]
        totals["mlm_characters"] = float(self.characters[labels.cpu()].sum())
        if self.model.next_sentence is not None:
            pair, truth = self.model.pair_loss, to_device(sequences.labels, self.device)
            totals |= cross_entropy_sums(pair, self.model.next_sentence_logits(first_tokens), truth)
            totals[f"{pair}_random"] = float(sequences.labels.sum())
        return totals


def masked_sums(
    model: PretrainingModel, masked: MaskedTokens, predicting: Tensor, most_frequent: int
) -> dict[str, float]:
    """The sums behind `masked_metrics`, from hidden states (K, H) of the masked positions; `most_frequent` is
    the id that the baseline always answers.
    """
    is_label = masked.labels != IGNORED
    labels = masked.labels[is_label]
    baseline = {"mlm_majority_right": float((labels == most_frequent).sum())}
    return cross_entropy_sums("mlm", model.vocabulary_logits(predicting[is_label]), labels) | baseline


def cross_entropy_sums(name: str, logits: Tensor, truth: Tensor) -> dict[str, float]:
    """The summed loss of logits (R, C) and classes (R,), the number of right answers, and R."""
    scores = logits.float()
    return {
        f"{name}_loss": float(F.cross_entropy(scores, truth, reduction="sum")),
        f"{name}_right": float((scores.argmax(1) == truth).sum()),
        f"{name}_count": float(len(truth)),
    }


def masked_metrics(sums: dict[str, float]) -> dict[str, float]:
    """The metrics from `masked_sums` over all held-out text; empty where there was none."""
    if not sums["mlm_count"]:
        return {}
    loss = sums["mlm_loss"] / sums["mlm_count"]
    return {
        "mlm_loss": loss,
        "mlm_perplexity": math.exp(min(loss, 700.0)),
        "mlm_accuracy": sums["mlm_right"] / sums["mlm_count"],
        "mlm_majority": sums["mlm_majority_right"] / sums["mlm_count"],
    }


@torch.no_grad()
def start_at_frequencies(head: MaskedLanguageHead, store: TokenStore, tokenizer: Tokenizer) -> None:
    """Sets the bias of a new head to the log of each token's frequency.

    A new head would otherwise have to learn first which tokens are common (the prior of Lin et al. 2017,
    section 4.1). For an encoder without a head, that is most of what a short run learns.
    """
    if head.is_new:
        counts = piece_counts(store, tokenizer)
        spare = len(head.bias) - len(counts)  # rows of the table after the vocabulary
        frequencies = np.log(np.pad(counts, (0, spare)) + 1.0)
        head.bias.copy_(torch.from_numpy(frequencies - frequencies.mean()))
