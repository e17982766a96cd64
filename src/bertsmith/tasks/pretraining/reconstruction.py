"""Pre-training on numbers: predicts the values of masked patches (He et al. 2022, section 3, but with [MASK]
in place of a patch as in BERT), and the tokens and numbers of masked cells in tables.

The values are the masked-language head's outputs for the last P tokens, without a softmax.

N tokens in the packed batch, K masked positions, H hidden size, V vocabulary, P values of a patch.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bertsmith.data.batch import PackedBatch, Sequences, to_device
from bertsmith.data.masking import IGNORED, MaskedTokens, Masker
from bertsmith.model.flops import encoder_flops, vocabulary_flops
from bertsmith.model.layers.layer import Layer
from bertsmith.tasks.pretraining.masked_task import MaskedTask, piece_counts
from bertsmith.tasks.pretraining.pretraining import (
    MASKED_SUMS,
    PretrainingModel,
    cross_entropy_sums,
    masked_metrics,
)
from bertsmith.text.tokens.tokenizer import Tokenizer
from bertsmith.text.tokens.value_tokenizers import NumberTokenizer


@dataclass
class PatchReconstruction(MaskedTask[PretrainingModel]):
    """Fulfils `Objective` with the squared error of normalised values, a mean over the values of masked
    patches.

    A masked patch is always [MASK], in evaluation too, since a random token would have no values.
    """

    def __post_init__(self) -> None:
        self.masker.rates = replace(self.masker.rates, masked=1.0, random=0.0)
        self.sampled_pieces = 0  # the loss doesn't use the vocabulary
        super().__post_init__()
        self.evaluation_masker = Masker(self.streams[0].tokenizer, self.rates, self.device)

    def counts(self, sequences: Sequences) -> dict[str, float]:
        """The number of values to predict."""
        assert sequences.values is not None
        return {"reconstruction": self.host_masker.count(sequences) * sequences.values.shape[1]}

    def loss(self, sequences: Sequences) -> dict[str, Tensor]:
        """The summed squared error of one micro-batch."""
        predicted, truth = self._predict(sequences, self.masker)
        return {"reconstruction": F.mse_loss(predicted.float(), truth, reduction="sum")}

    def flops(self, sequences: Sequences) -> float:
        """The FLOPs of the layers. With a decoder, the encoder reads the visible patches, the decoder all."""
        config, layers = self.model.config, self.model.decoder
        hidden = self.host_masker.count_masked(sequences)
        if layers is None:
            return 3 * encoder_flops(config, sequences.lengths, float(hidden.sum()))
        decoder = config.model_copy(update={"num_hidden_layers": len(layers), "layer_types": None})
        visible = sequences.lengths - hidden
        return 3 * (
            encoder_flops(config, visible, float(visible.sum()))
            + encoder_flops(decoder, sequences.lengths, float(hidden.sum()))
        )

    def metrics(self, sums: dict[str, float]) -> dict[str, float]:
        """The mean squared error of a value, that of always predicting the mean, and `explained`, the share
        of the latter that the model removes, 1 at best. Empty without held-out rows.
        """
        if not sums["count"]:
            return {}
        error, of_mean = sums["error"] / sums["count"], sums["of_mean"] / sums["count"]
        return {
            "reconstruction_error": error,
            "error_of_mean": of_mean,
            "explained": 1 - error / of_mean if of_mean else 0.0,
        }

    def _mask_batch(self, batch: PackedBatch, masked: MaskedTokens) -> PackedBatch:
        """The batch with masked tokens, and zeros, the mean, as the values of masked patches."""
        assert batch.values is not None
        hidden = masked.token_ids == self.host_masker.mask_id
        values = batch.values.masked_fill(hidden[:, None], 0.0)
        return replace(batch, token_ids=masked.token_ids, values=values)

    def _predict(self, sequences: Sequences, masker: Masker) -> tuple[Tensor, Tensor]:
        """Predicted and true values of the masked patches, both (K, P)."""
        unmasked = PackedBatch.of(sequences, self.device)
        masked = masker.draw(sequences, unmasked)
        batch = self._mask_batch(unmasked, masked)
        positions = masked.positions[masked.labels != IGNORED]
        if self.model.decoder is None:
            predicting = self.model.encoder(batch, positions)
        else:
            hidden = masker.count_masked(sequences)
            predicting = _decode(self.model, batch, masked.token_ids != masker.mask_id, hidden, positions)
        assert unmasked.values is not None
        truth = unmasked.values[positions]
        return patch_values(self.model, predicting, truth.shape[1]), truth

    @property
    def sum_names(self) -> tuple[str, ...]:
        return "error", "of_mean", "count"

    def sum_micro_batch(self, sequences: Sequences, masker: Masker) -> dict[str, float]:
        predicted, truth = self._predict(sequences, masker)
        return {
            "error": float(F.mse_loss(predicted.float(), truth, reduction="sum")),
            "of_mean": float(truth.square().sum()),
            "count": float(truth.numel()),
        }


def add_decoder(model: PretrainingModel, layers: int) -> None:
    """Gives the model a decoder of `layers` layers like its own, drawn from torch's generator; 0 adds
    none.
    """
    if layers:
        last = model.config.num_hidden_layers - 1
        model.decoder = nn.ModuleList(Layer(model.config, last) for _ in range(layers))
        for layer in model.decoder:
            layer.initialise(model.config)  # type: ignore[operator]


def _decode(
    model: PretrainingModel,
    batch: PackedBatch,
    visible: Tensor,
    hidden: npt.NDArray[np.int64],
    positions: Tensor,
) -> Tensor:
    """The hidden states (K, H) of the masked `positions`. The encoder reads only the `visible` rows (N,),
    with their own positions; the decoder reads its outputs, and the embeddings of [MASK] for the others.
    `hidden` (B,) has the number of masked patches of each sequence.
    """
    assert model.decoder is not None and batch.values is not None
    lengths = np.array(batch.lengths) - hidden
    ends = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    shown = PackedBatch(
        *(batch.token_ids[visible], batch.segment_ids[visible], batch.position_ids[visible]),
        *(to_device(ends, batch.token_ids.device), tuple(lengths.tolist()), batch.values[visible]),
    )
    encoded = model.encoder(shown)
    states = model.encoder.embeddings(batch).to(encoded.dtype).masked_scatter(visible[:, None], encoded)
    relative = model.encoder.relative_table()
    *lower, last = model.decoder
    for layer in lower:
        states = layer(states, batch, None, relative)
    decoded: Tensor = last(states, batch, positions, relative)
    return decoded


def patch_values(model: PretrainingModel, hidden_states: Tensor, count: int) -> Tensor:
    """Hidden states (K, H) -> values (K, P): the head's outputs for the last `count` tokens."""
    weight, bias = model.encoder.embeddings.token.weight, model.masked_language.bias
    return F.linear(model.masked_language(hidden_states), weight[-count:], bias[-count:])


def without_decoder(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A model's weights without those of its decoder, which is needed in training alone."""
    return {name: tensor for name, tensor in weights.items() if not name.startswith("decoder.")}


def warn_no_better_than_mean(metrics: dict[str, float]) -> list[str]:
    """A warning where the model is no better than always predicting the mean; otherwise empty."""
    if metrics.get("explained", 1.0) > 0.005:
        return []
    return [
        f"held-out reconstruction error {metrics['reconstruction_error']:.3f} is no better than always "
        f"predicting the mean ({metrics['error_of_mean']:.3f}): this model has learned nothing yet"
    ]


@dataclass
class TableReconstruction(PatchReconstruction):
    """Fulfils `Objective` with the cross-entropy of the tokens, a mean over masked cells, and the squared
    error of normalised numbers, a mean over the masked ones. A masked cell is always [MASK].
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        stream = self.streams[0]
        assert isinstance(stream.tokenizer, NumberTokenizer)
        is_number = np.zeros(stream.tokenizer.vocab_size, bool)
        is_number[[stream.tokenizer.ids[piece] for piece in stream.tokenizer.scales]] = True
        self.is_number = torch.from_numpy(is_number).to(self.device)  # (V,)
        counts = piece_counts(stream.store, stream.tokenizer)
        self.most_frequent = int(np.where(is_number, 0, counts).argmax())  # of cells without numbers

    def counts(self, sequences: Sequences) -> dict[str, float]:
        """The number of masked cells, and of numbers among them, but at least one, since a batch may have
        none.
        """
        masked = self.host_masker.draw(sequences, PackedBatch.of(sequences))
        labels = masked.labels[masked.labels != IGNORED]
        numbers = int(self.is_number.cpu()[labels].sum())
        return {"mlm": len(labels), "reconstruction": max(numbers, 1)}

    def loss(self, sequences: Sequences) -> dict[str, Tensor]:
        """The summed losses of one micro-batch, by the names of `counts`."""
        predicting, labels, truth = self._encode_masked_cells(sequences, self.masker)
        predicted = patch_values(self.model, predicting, 1).float().squeeze(1)
        errors = F.mse_loss(predicted, truth, reduction="none") * self.is_number[labels]
        return {
            "mlm": self.model.masked_language_loss(predicting, labels),
            "reconstruction": errors.sum(),
        }

    def flops(self, sequences: Sequences) -> float:
        """Matrix products alone, backward counted as twice forward (see bertsmith.model.flops)."""
        masked = float(self.host_masker.count_masked(sequences).sum())
        encoder = encoder_flops(self.model.config, sequences.lengths, masked)
        return 3 * (encoder + vocabulary_flops(self.model.config, masked, 0))

    @property
    def sum_names(self) -> tuple[str, ...]:
        return (*MASKED_SUMS, *super().sum_names)

    def metrics(self, sums: dict[str, float]) -> dict[str, float]:
        """The metrics of masked language modelling on cells without numbers, and those of patches on
        numbers.
        """
        return masked_metrics(sums) | super().metrics(sums)

    def sum_micro_batch(self, sequences: Sequences, masker: Masker) -> dict[str, float]:
        predicting, labels, truth = self._encode_masked_cells(sequences, masker)
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

    def _encode_masked_cells(self, sequences: Sequences, masker: Masker) -> tuple[Tensor, Tensor, Tensor]:
        """The hidden states (K, H) of the masked cells, their tokens (K,), and their normalised numbers (K,),
        0 for cells without one.
        """
        unmasked = PackedBatch.of(sequences, self.device)
        masked = masker.draw(sequences, unmasked)
        is_label = masked.labels != IGNORED
        positions = masked.positions[is_label]
        predicting = self.model.encoder(self._mask_batch(unmasked, masked), positions)
        assert unmasked.values is not None
        return predicting, masked.labels[is_label], unmasked.values[positions, 0]


def reconstruction_class(tokenizer: Tokenizer) -> type[PatchReconstruction]:
    """The task class for inputs of this tokenizer: tables of numbers, or patches."""
    return TableReconstruction if isinstance(tokenizer, NumberTokenizer) else PatchReconstruction
