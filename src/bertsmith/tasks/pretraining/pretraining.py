"""Pre-training as a task: masked language modelling and next-sentence prediction (Devlin et al. 2019,
section 3.1).

N tokens in the packed batch, B sequences, H hidden size, V vocabulary, K masked positions.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bertsmith.data.batch import PackedBatch, Sequences, concatenate, to_device, usual_batch_tokens
from bertsmith.data.masking import IGNORED, MaskedTokens, Masker, MaskingRates
from bertsmith.data.split import split
from bertsmith.data.store import TokenStore
from bertsmith.data.stream import Cursor, GlobalBatch, PretrainingStream
from bertsmith.model.bert import Bert
from bertsmith.model.config import BertConfig
from bertsmith.model.cross_entropy import vocabulary_loss
from bertsmith.model.flops import encoder_flops, vocabulary_flops
from bertsmith.model.layers.activation import Activation
from bertsmith.model.layers.initialisation import initialise
from bertsmith.model.layers.norm import make_norm
from bertsmith.model.sampled_softmax import VocabularySample, VocabularySampler, sampled_vocabulary_loss
from bertsmith.tasks.computing.evaluation_mode import evaluating
from bertsmith.tasks.objective import Add, Gather
from bertsmith.text.tokens.tokenizer import Tokenizer

_HELDOUT_MICRO_BATCH = 2048  # tokens
_COUNTED_TOKENS = 1_000_000  # enough to know the most frequent piece, the baseline of every evaluation


class MaskedLanguageHead(nn.Module):
    """dense → activation → norm, then the token embeddings transposed plus a bias of its own."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size, bias=config.head_bias)
        self.activation = Activation(config.masked_language_act)
        self.norm = make_norm(config)
        self.bias = nn.Parameter(torch.zeros(config.vocab_size))
        initialise(self, config.initializer_range)

    def forward(self, hidden_states: Tensor) -> Tensor:
        """(K, H) -> (K, H), what the vocabulary is compared with."""
        transformed: Tensor = self.norm(self.activation(self.dense(hidden_states)))
        return transformed


class PretrainingModel(nn.Module):
    """An encoder with its heads.

    Without `next_sentence` (RoBERTa, DistilBERT, or by choice) there is neither that head nor a pooler:
    nothing would train them.
    """

    def __init__(self, config: BertConfig, next_sentence: bool | None = None) -> None:
        super().__init__()
        self.config = config
        self.encoder = Bert(config)
        self.masked_language = MaskedLanguageHead(config)
        self.decoder: nn.ModuleList | None = None  # of patches, while it is trained; never saved
        self.next_sentence: nn.Linear | None = None
        if config.has_next_sentence if next_sentence is None else next_sentence:
            self.next_sentence = nn.Linear(config.hidden_size, 2)
            initialise(self.next_sentence, config.initializer_range)
        else:
            self.encoder.pooler = None

    def vocabulary_logits(self, hidden_states: Tensor) -> Tensor:
        """(K, H) rows of hidden states -> (K, V)."""
        weight = self.encoder.embeddings.token.weight
        return F.linear(self.masked_language(hidden_states), weight, self.masked_language.bias)

    def masked_language_loss(
        self, hidden_states: Tensor, labels: Tensor, sample: VocabularySample | None = None
    ) -> Tensor:
        """(K, H) rows and (K,) labels -> the summed loss, estimated where there is a sample."""
        weight, bias = self.encoder.embeddings.token.weight, self.masked_language.bias
        transformed = self.masked_language(hidden_states)
        if sample is None:
            return vocabulary_loss(transformed, weight, bias, labels)
        return sampled_vocabulary_loss(transformed, weight, bias, labels, sample)

    def next_sentence_logits(self, first_tokens: Tensor) -> Tensor:
        """(B, H) -> (B, 2): column 0: the second segment follows the first; column 1: it is random."""
        if self.next_sentence is None:
            raise ValueError("this model has no next-sentence head")
        logits: Tensor = self.next_sentence(self.encoder.pool(first_tokens))
        return logits


@dataclass
class PretrainingTask:
    """Fulfils `Objective`: `streams` holds one stream a phase, `heldout` evaluation's own or None.

    With `sampled_pieces` the training loss is estimated from about so many pieces of the vocabulary, drawn
    by `seed` and place in the text; held-out figures are always of all.
    """

    model: PretrainingModel
    streams: list[PretrainingStream]
    masker: Masker
    heldout: PretrainingStream | None
    heldout_tokens: int
    device: torch.device
    sampled_pieces: int = 0
    seed: int = 0
    needs_global_batch: ClassVar[bool] = False

    def __post_init__(self) -> None:
        stream = self.streams[0]
        self.rates = self.masker.rates
        self.host_masker = Masker(stream.tokenizer, self.rates)
        # whatever is trained with, figures are of the published masks, and so can be compared
        self.evaluation_masker = Masker(stream.tokenizer, MaskingRates(), self.device)
        self.most_frequent = most_frequent_piece(stream.store, stream.tokenizer)
        self.sampler: VocabularySampler | None = None
        self.sample: VocabularySample | None = None  # of the step that is next
        if 0 < self.sampled_pieces < stream.tokenizer.vocab_size:
            counts = _piece_counts(stream.store, stream.tokenizer)
            self.sampler = VocabularySampler(counts, self.sampled_pieces, self.seed, self.device)

    def batches(self, cursor: Cursor) -> Iterator[GlobalBatch]:
        """Endless; the phase's stream from `cursor` on."""
        return self.streams[cursor.phase].batches(cursor)

    def follow(self, cursor: Cursor, decayed: float) -> dict[str, float]:
        """The step's sample of the vocabulary, and the share of tokens to predict where it falls in the
        decay.
        """
        if self.sampler is not None:
            self.sample = self.sampler.draw(cursor)
        self.masker.rates = self.host_masker.rates = self.rates.at(decayed)
        return {} if self.rates.final_mask_rate is None else {"mask_rate": self.masker.rates.mask_rate}

    def counts(self, sequences: Sequences) -> dict[str, float]:
        """Masked tokens, and sequences."""
        counts: dict[str, float] = {"mlm": self.host_masker.count(sequences)}
        if self.model.next_sentence is not None:
            counts["nsp"] = len(sequences)
        return counts

    def begin_step(self, micro_batches: Sequence[Sequence[Sequences]], rank: int, gather: Gather) -> None:
        """Nothing: no sequence's loss depends on another."""

    def loss(self, sequences: Sequences) -> dict[str, Tensor]:
        """Summed cross-entropies of one micro-batch."""
        masked, first_tokens, predicting = self._encode(sequences, self.masker)
        losses = {"mlm": self.model.masked_language_loss(predicting, masked.labels, self.sample)}
        if self.model.next_sentence is not None:
            logits = self.model.next_sentence_logits(first_tokens)
            labels = to_device(sequences.labels, self.device)
            losses["nsp"] = F.cross_entropy(logits.float(), labels, reduction="sum")
        return losses

    def flops(self, sequences: Sequences) -> float:
        """Matrix products alone, backward counted as twice forward (see bertsmith.model.flops)."""
        config = self.model.config
        masked = float(self.host_masker.wanted(sequences).sum())
        read = masked + (len(sequences) if self.model.next_sentence is not None else 0)
        encoder = encoder_flops(config, sequences.lengths, read)
        return 3 * (encoder + vocabulary_flops(config, masked, self.sampled_pieces))

    def evaluate(self, rank: int, ranks: int, add: Add) -> dict[str, float]:
        """Each rank measures its share of the held-out sequences; see `metrics`."""
        return self.metrics(add(self.sums(rank, ranks)))

    @torch.no_grad()
    def sums(self, rank: int, ranks: int) -> dict[str, float]:
        """The same held-out sequences and masks at every call: this rank's share of them."""
        totals = self._no_sums()
        with evaluating(self.model):
            for batch, tokens in self._at_once(islice(self._heldout_batches(), rank, None, ranks)):
                for micro_batch in split(batch, 1, tokens)[0]:
                    for name, value in self._sums_of(micro_batch).items():
                        totals[name] += value
        return totals

    def metrics(self, sums: dict[str, float]) -> dict[str, float]:
        """Loss in nats per masked token, perplexity, and accuracies in [0, 1]; empty without held-out text.

        Beside each accuracy stands its baseline: always the most frequent piece, always the same answer.
        """
        if not sums["mlm_count"]:
            return {}
        loss = sums["mlm_loss"] / sums["mlm_count"]
        metrics = {
            "mlm_loss": loss,
            "mlm_perplexity": math.exp(min(loss, 700.0)),
            "mlm_accuracy": sums["mlm_right"] / sums["mlm_count"],
            "mlm_majority": sums["mlm_majority_right"] / sums["mlm_count"],
        }
        if sums.get("nsp_count"):
            metrics["nsp_majority"] = max(sums["nsp_random"], sums["nsp_count"] - sums["nsp_random"])
            metrics["nsp_majority"] /= sums["nsp_count"]
            metrics["nsp_loss"] = sums["nsp_loss"] / sums["nsp_count"]
            metrics["nsp_accuracy"] = sums["nsp_right"] / sums["nsp_count"]
        return metrics

    def _heldout_batches(self) -> Iterator[Sequences]:
        """One pass over held-out text, or its first `heldout_tokens`."""
        if self.heldout is None:
            return
        tokens = 0
        for batch in self.heldout.batches(Cursor(), last_epoch=0):
            if tokens >= self.heldout_tokens:
                return
            tokens += int(batch.sequences.lengths.sum())
            yield batch.sequences

    def _at_once(self, batches: Iterator[Sequences]) -> Iterator[tuple[Sequences, int]]:
        """With the size of micro-batches. A GPU would wait for the host between small ones."""
        if self.device.type != "cuda":
            yield from ((batch, _HELDOUT_MICRO_BATCH) for batch in batches)
        elif share := list(batches):
            yield concatenate(share), usual_batch_tokens("cuda")

    def _encode(self, sequences: Sequences, masker: Masker) -> tuple[MaskedTokens, Tensor, Tensor]:
        """Masks, and the hidden states that the heads read: first tokens (B, H), masked positions (K, H)."""
        batch = PackedBatch.of(sequences, self.device)
        masked = masker.draw(sequences, batch)
        batch = replace(batch, token_ids=masked.token_ids)
        first_rows = batch.first_rows if self.model.next_sentence is not None else batch.first_rows[:0]
        states = self.model.encoder(batch, torch.cat([first_rows, masked.positions]))
        first_tokens, predicting = states.split([len(first_rows), len(masked.positions)])
        return masked, first_tokens, predicting

    def _no_sums(self) -> dict[str, float]:
        """The names of `_sums_of`, the same on a rank that has no sequence."""
        totals = {"mlm_loss": 0.0, "mlm_right": 0.0, "mlm_count": 0.0, "mlm_majority_right": 0.0}
        if self.model.next_sentence is not None:
            totals |= {"nsp_loss": 0.0, "nsp_right": 0.0, "nsp_count": 0.0, "nsp_random": 0.0}
        return totals

    def _sums_of(self, sequences: Sequences) -> dict[str, float]:
        masked, first_tokens, predicting = self._encode(sequences, self.evaluation_masker)
        kept = masked.labels != IGNORED
        labels = masked.labels[kept]
        logits = self.model.vocabulary_logits(predicting[kept]).float()
        sums = {"mlm": (logits, labels)}
        if self.model.next_sentence is not None:
            answers = to_device(sequences.labels, self.device)
            sums["nsp"] = (self.model.next_sentence_logits(first_tokens).float(), answers)
        totals = {"mlm_majority_right": float((labels == self.most_frequent).sum())}
        if "nsp" in sums:
            totals["nsp_random"] = float(sequences.labels.sum())
        for name, (scores, truth) in sums.items():
            totals[f"{name}_loss"] = float(F.cross_entropy(scores, truth, reduction="sum"))
            totals[f"{name}_right"] = float((scores.argmax(1) == truth).sum())
            totals[f"{name}_count"] = float(len(truth))
        return totals


def most_frequent_piece(store: TokenStore, tokenizer: Tokenizer) -> int:
    """Its id. A special token such as [UNK] is never a label, so none counts."""
    return int(_piece_counts(store, tokenizer).argmax())


@torch.no_grad()
def start_at_frequencies(model: PretrainingModel, store: TokenStore, tokenizer: Tokenizer) -> None:
    """Sets the vocabulary's bias, where it is untrained (all zero), to the log of each piece's frequency.

    A new head then knows from its first step what else it would have to learn first: which pieces are common
    (the prior of Lin et al. 2017, section 4.1). Going on from an encoder without a head, that is most of what
    a short run learns.
    """
    if not model.masked_language.bias.any():
        frequencies = np.log(_piece_counts(store, tokenizer) + 1.0)
        model.masked_language.bias.copy_(torch.from_numpy(frequencies - frequencies.mean()))


def _piece_counts(store: TokenStore, tokenizer: Tokenizer) -> npt.NDArray[np.int64]:
    """(V,) in the first million tokens; special tokens 0."""
    counts = np.bincount(store.tokens[:_COUNTED_TOKENS], minlength=tokenizer.vocab_size)
    counts[list(tokenizer.special_ids)] = 0
    return counts
