"""The harness that holds our models against transformers', so that each test of it stays short.

Weights are drawn much larger than a trained model's (deviation 0.15, random LayerNorm gains and all
biases): with the usual 0.02 every softmax is nearly uniform and every gain 1, and a swapped pair of tensors
would pass.

TOLERANCE is 1e-5, absolute where values are of order 1 and relative to the largest value of a tensor above
that: float32 carries 6e-8 of each value, and sums of up to a thousand products in another order lose about
a hundred times as much.
"""

import copy
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional as F

from bertsmith.data.batch import PackedBatch
from bertsmith.model.config import BertConfig
from bertsmith.model.weights import to_hugging_face
from bertsmith.tasks.pretraining.pretraining import PretrainingModel
from bertsmith.tasks.pretraining.pretraining_checkpoint import load_pretraining_model

TOLERANCE = 1e-5
IGNORED = -100


class Sample(NamedTuple):
    """One batch in both layouts. `rows` picks the N real tokens out of the padded B x L."""

    packed: PackedBatch
    padded: dict[str, Tensor]
    rows: Tensor
    labels: Tensor
    pair_labels: Tensor


def random_sample(config: BertConfig, seed: int, lengths: tuple[int, ...] | None = None) -> Sample:
    """Random lengths (not sorted, with runs of equal ones), ids, segments and labels; 20 % are masked."""
    draw = np.random.Generator(np.random.PCG64DXSM(seed))
    longest = min(config.max_length, 24)
    sizes = (
        np.array(lengths) if lengths else np.repeat(draw.integers(1, longest + 1, 5), draw.integers(1, 3, 5))
    )
    # ids above pad_token_id: padding inside a text would shift RoBERTa's positions in transformers
    token_ids = draw.integers(config.pad_token_id + 1, config.vocab_size, sizes.sum())
    segment_ids = draw.integers(0, max(config.type_vocab_size, 1), sizes.sum())
    labels = np.where(
        draw.random(sizes.sum()) < 0.2, draw.integers(0, config.vocab_size, sizes.sum()), IGNORED
    )
    labels[0] = token_ids[0]  # never a batch without a label
    packed = PackedBatch.pack(token_ids, segment_ids, sizes)
    pair_labels = torch.from_numpy(draw.integers(0, 2, len(sizes)))
    return Sample(
        packed, *_pad(packed, torch.from_numpy(labels), config), torch.from_numpy(labels), pair_labels
    )


def _pad(packed: PackedBatch, labels: Tensor, config: BertConfig) -> tuple[dict[str, Tensor], Tensor]:
    real = torch.arange(max(packed.lengths)) < torch.tensor(packed.lengths).unsqueeze(1)  # (B, L)

    def spread(values: Tensor, fill: int) -> Tensor:
        return torch.full(real.shape, fill).masked_scatter(real, values)

    padded = {
        "input_ids": spread(packed.token_ids, config.pad_token_id),
        "attention_mask": real.long(),
        "labels": spread(labels, IGNORED),
    }
    if config.type_vocab_size:
        padded["token_type_ids"] = spread(packed.segment_ids, 0)
    return padded, real


def with_large_weights(model: nn.Module, seed: int) -> nn.Module:
    """Every parameter at random; LayerNorm gains around 1."""
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.normal_(0.0, 0.15, generator=draw)
            module, _, leaf = name.lower().rpartition(".")
            if "norm" in module.rpartition(".")[2] and leaf == "weight":
                parameter.add_(1.0)
    return model.eval()


def twin(theirs: nn.Module, folder: Path) -> PretrainingModel:
    """Our model with the weights that `theirs` saves: the whole way through files."""
    theirs.save_pretrained(folder)
    ours, notes = load_pretraining_model(folder)
    assert notes == ()
    return ours


def assert_same(ours: Tensor, theirs: Tensor, what: str) -> None:
    """Equal to TOLERANCE (see the top of this file), and finite."""
    ours, theirs = ours.detach(), theirs.detach()
    assert ours.shape == theirs.shape, f"{what}: {tuple(ours.shape)} against {tuple(theirs.shape)}"
    assert bool(theirs.isfinite().all()), f"{what}: the reference is not finite"
    scale = max(1.0, float(theirs.abs().max())) if theirs.numel() else 1.0
    difference = float((ours - theirs).abs().max()) if theirs.numel() else 0.0
    assert difference <= TOLERANCE * scale, (
        f"{what}: off by {difference:.2e} where the largest value is {scale:.3g}"
    )


def our_gradients(model: PretrainingModel) -> dict[str, Tensor]:
    """The gradient of every parameter under Hugging Face's names."""
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    without = [name for name, gradient in gradients.items() if gradient is None]
    assert not without, f"no gradient reaches {without}"
    return to_hugging_face(gradients, model.config, bare=False)  # type: ignore[arg-type]


def our_loss(model: PretrainingModel, sample: Sample) -> Tensor:
    """Mean over masked tokens, plus mean over pairs where there is a next-sentence head."""
    hidden_states = model.encoder(sample.packed)
    masked = sample.labels != IGNORED
    loss = model.masked_language_loss(hidden_states[masked], sample.labels[masked]) / masked.sum()
    if model.next_sentence is not None:
        loss = loss + F.cross_entropy(
            model.next_sentence_logits(hidden_states[sample.packed.first_rows]), sample.pair_labels
        )
    return loss


def assert_parity(theirs: Any, ours: PretrainingModel, sample: Sample) -> None:
    """Every layer's hidden states, the pooler, both logits, the loss and the gradient of every parameter."""
    inputs = dict(sample.padded)
    if ours.next_sentence is not None:
        order = ours.config.family.sentence_order
        inputs["sentence_order_label" if order else "next_sentence_label"] = sample.pair_labels
    expected = theirs(**inputs, output_hidden_states=True)
    states = ours.encoder.all_hidden_states(sample.packed)
    assert len(states) == len(expected.hidden_states)
    for layer, (found, wanted) in enumerate(zip(states, expected.hidden_states, strict=True)):
        assert_same(found, wanted[sample.rows], f"hidden states after layer {layer}")
    assert torch.equal(ours.encoder(sample.packed), states[-1])
    logits = expected.prediction_logits if ours.next_sentence is not None else expected.logits
    assert_same(ours.vocabulary_logits(states[-1]), logits[sample.rows], "MLM logits")
    if ours.next_sentence is not None:
        _assert_pooled(theirs, ours, sample, expected, states[-1])
    loss = our_loss(ours, sample)
    assert_same(loss, expected.loss, "loss")
    _assert_gradients(theirs, ours, loss, expected.loss)


def _assert_pooled(theirs: Any, ours: PretrainingModel, sample: Sample, expected: Any, last: Tensor) -> None:
    if ours.config.model_type == "albert":  # its pooler is a bare linear module
        pooled = torch.tanh(theirs.base_model.pooler(expected.hidden_states[-1][:, 0]))
        pair_logits = expected.sop_logits
    else:
        pooled = theirs.base_model.pooler(expected.hidden_states[-1])
        pair_logits = expected.seq_relationship_logits
    assert_same(ours.encoder.pool(last[sample.packed.first_rows]), pooled, "pooler")
    logits = ours.next_sentence_logits(last[sample.packed.first_rows])
    assert_same(logits, pair_logits, "pair head's logits")


def _assert_gradients(theirs: Any, ours: PretrainingModel, our_loss: Tensor, their_loss: Tensor) -> None:
    ours.zero_grad()
    theirs.zero_grad()
    our_loss.backward()
    their_loss.backward()
    found = our_gradients(ours)
    wanted = file_gradients(theirs)
    assert found.keys() == wanted.keys()
    for name, gradient in wanted.items():
        assert_same(found[name], gradient, f"gradient of {name}")


def file_gradients(theirs: Any) -> dict[str, Tensor]:
    """Under the names of the file. Nomic's and gte's modules have other names in memory, and stack otherwise:
    what transformers writes says which is which.
    """
    gradients = {name: parameter.grad for name, parameter in theirs.named_parameters()}
    if "lm_head.decoder.weight" in gradients:  # XLM-RoBERTa's class names the tied table by its head
        tied = gradients.pop("lm_head.decoder.weight")
        gradients["roberta.embeddings.word_embeddings.weight"] = tied
    if theirs.config.model_type not in ("nomic_bert", "gte"):
        return gradients
    of_gradients = copy.deepcopy(theirs)
    for name, parameter in of_gradients.named_parameters():
        parameter.data = gradients[name].clone()
    with TemporaryDirectory() as folder:
        of_gradients.save_pretrained(folder)
        return load_file(Path(folder) / "model.safetensors")
