"""Pre-training on tables whose numbers are read as they are: a masked cell is predicted by its piece, and a
number by its value too.

The masked-language head has both: its outputs are compared with the vocabulary, and the last one is the value
(see bertsmith.tasks.pretraining.patch_reconstruction). K masked cells, H hidden size, V vocabulary.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from bertsmith.data.batch import PackedBatch, Sequences
from bertsmith.data.masking import IGNORED, Masker
from bertsmith.model.flops import encoder_flops, vocabulary_flops
from bertsmith.tasks.pretraining.patch_reconstruction import PatchReconstruction, patch_values
from bertsmith.tasks.pretraining.piece_counts import piece_counts
from bertsmith.tasks.pretraining.pretraining import MASKED_SUMS, cross_entropy_sums, masked_metrics
from bertsmith.text.tokens.number_tokenizer import NumberTokenizer
from bertsmith.text.tokens.tokenizer import Tokenizer


@dataclass
class TableReconstruction(PatchReconstruction):
    """Fulfils `Objective`: cross-entropy of the pieces, a mean over masked cells, and squared error of the
    normalised numbers, a mean over those that are masked. A masked cell is [MASK] always.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        stream = self.streams[0]
        assert isinstance(stream.tokenizer, NumberTokenizer)
        is_number = np.zeros(stream.tokenizer.vocab_size, bool)
        is_number[[stream.tokenizer.ids[piece] for piece in stream.tokenizer.scales]] = True
        self.is_number = torch.from_numpy(is_number).to(self.device)  # (V,)
        counts = piece_counts(stream.store, stream.tokenizer)
        self.most_frequent = int(np.where(is_number, 0, counts).argmax())  # of the cells that are no numbers

    def counts(self, sequences: Sequences) -> dict[str, float]:
        """Masked cells, and the numbers among them; at least one, for a batch may have none."""
        masked = self.host_masker.draw(sequences, PackedBatch.of(sequences))
        labels = masked.labels[masked.labels != IGNORED]
        numbers = int(self.is_number.cpu()[labels].sum())
        return {"mlm": len(labels), "reconstruction": max(numbers, 1)}

    def loss(self, sequences: Sequences) -> dict[str, Tensor]:
        """Summed losses of one micro-batch."""
        predicting, labels, truth = self._masked(sequences, self.masker)
        predicted = patch_values(self.model, predicting, 1).float().squeeze(1)
        errors = F.mse_loss(predicted, truth, reduction="none") * self.is_number[labels]
        return {
            "mlm": self.model.masked_language_loss(predicting, labels),
            "reconstruction": errors.sum(),
        }

    def flops(self, sequences: Sequences) -> float:
        """Matrix products alone, backward counted as twice forward (see bertsmith.model.flops)."""
        masked = float(self.host_masker.wanted(sequences).sum())
        encoder = encoder_flops(self.model.config, sequences.lengths, masked)
        return 3 * (encoder + vocabulary_flops(self.model.config, masked, 0))

    @property
    def summed(self) -> tuple[str, ...]:
        return (*MASKED_SUMS, *super().summed)

    def metrics(self, sums: dict[str, float]) -> dict[str, float]:
        """Those of masked language modelling over the cells that are no numbers, and those of patches over
        the numbers.
        """
        return masked_metrics(sums) | super().metrics(sums)

    def sums_of(self, sequences: Sequences, masker: Masker) -> dict[str, float]:
        predicting, labels, truth = self._masked(sequences, masker)
        numbers = self.is_number[labels]
        predicted = patch_values(self.model, predicting[numbers], 1).float().squeeze(1)
        pieces = labels[~numbers]
        logits = self.model.vocabulary_logits(predicting[~numbers])
        return {
            "error": float(F.mse_loss(predicted, truth[numbers], reduction="sum")),
            "of_mean": float(truth[numbers].square().sum()),
            "count": float(numbers.sum()),
            "mlm_majority_right": float((pieces == self.most_frequent).sum()),
            **cross_entropy_sums("mlm", logits, pieces),
        }

    def _masked(self, sequences: Sequences, masker: Masker) -> tuple[Tensor, Tensor, Tensor]:
        """Of the masked cells: hidden states (K, H), pieces (K,), normalised numbers (K,), 0 for others."""
        whole = PackedBatch.of(sequences, self.device)
        masked = masker.draw(sequences, whole)
        kept = masked.labels != IGNORED
        positions = masked.positions[kept]
        predicting = self.model.encoder(self._masked_batch(whole, masked), positions)
        assert whole.values is not None
        return predicting, masked.labels[kept], whole.values[positions, 0]


def reconstruction_of(tokenizer: Tokenizer) -> type[PatchReconstruction]:
    """How what such a tokenizer reads is pre-trained on."""
    return TableReconstruction if isinstance(tokenizer, NumberTokenizer) else PatchReconstruction
