"""ELECTRA's two models against transformers', through files in both directions: logits, losses, gradients."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from model_parity import assert_same, random_sample, with_large_weights
from torch import nn

from bertsmith.data.batch import Sequences
from bertsmith.data.masking import GENERATED_TOKENS, Masker, MaskingRates, as_uniforms
from bertsmith.model.checkpoint import load_encoder
from bertsmith.model.config import BertConfig, make_config
from bertsmith.model.cpu.inference import prepare_for_inference
from bertsmith.tasks.pretraining.pretraining_checkpoint import (
    load_replaced_token_model,
    save_replaced_token_model,
)
from bertsmith.tasks.pretraining.replaced_tokens import (
    ReplacedTokenModel,
    ReplacedTokenTask,
    generator_config,
    sample_pieces,
)
from bertsmith.text.tokens.tokenizer import Tokenizer

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{number}" for number in range(78))]
TOKENIZER = Tokenizer.from_pieces(PIECES, lowercase=True)
SHAPES = {  # embedding_size of the discriminator's; hidden_size is 24
    "own width of the embeddings": 16,
    "embeddings as wide as the layers": 24,
}
shapes = pytest.mark.parametrize("embedding", SHAPES.values(), ids=list(SHAPES))


def small_config(embedding: int) -> BertConfig:
    values = {
        "model_type": "electra",
        "vocab_size": len(PIECES),
        "hidden_size": 24,
        "num_hidden_layers": 2,
        "num_attention_heads": 3,
        "intermediate_size": 40,
        "max_position_embeddings": 40,
        "embedding_size": embedding,
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
    }
    return make_config(values, "test")


def small_model(embedding: int) -> ReplacedTokenModel:
    config = small_config(embedding)
    model = with_large_weights(ReplacedTokenModel(config, generator_config(config, 1 / 3)), seed=3)
    assert isinstance(model, ReplacedTokenModel)
    return model


def opened(cls: Any, folder: Path) -> Any:
    """Once it is certain that no key is missing, unexpected or of another shape."""
    model, info = cls.from_pretrained(folder, attn_implementation="eager", output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"] and not info["mismatched_keys"]
    return model.eval()


def sequences_of(seed: int) -> Sequences:
    draw = np.random.default_rng(seed)
    lengths = np.array([9, 30, 30, 4, 17])
    ids = draw.integers(5, len(PIECES), lengths.sum())
    ends = np.cumsum(lengths)
    ids[ends - lengths], ids[ends - 1] = TOKENIZER.cls_id, TOKENIZER.sep_id
    keys = draw.integers(0, 2**64, len(lengths), np.uint64)
    return Sequences(ids, np.zeros_like(ids), lengths, keys, np.zeros_like(lengths))


def task_of(model: ReplacedTokenModel) -> ReplacedTokenTask:
    store: Any = type("Store", (), {"tokens": np.arange(5, len(PIECES))})
    stream: Any = type("Stream", (), {"tokenizer": TOKENIZER, "store": store})
    masker = Masker(TOKENIZER, MaskingRates(mask_rate=0.3))
    return ReplacedTokenTask(model, [stream], masker, None, 0, torch.device("cpu"), weight=50.0)


def padded(values: torch.Tensor, lengths: list[int], fill: int) -> torch.Tensor:
    return nn.utils.rnn.pad_sequence(list(values.split(lengths)), batch_first=True, padding_value=fill)


@shapes
def test_losses_and_gradients_equal_those_of_transformers_two_models(embedding: int, tmp_path: Path) -> None:
    """The same masks and the same sampled tokens; the embeddings' gradient is the sum of both models'."""
    ours = small_model(embedding)
    save_replaced_token_model(tmp_path / "model", tmp_path / "generator", ours, TOKENIZER, {})
    generator = opened(transformers.ElectraForMaskedLM, tmp_path / "generator")
    discriminator = opened(transformers.ElectraForPreTraining, tmp_path / "model")
    task, sequences = task_of(ours), sequences_of(1)
    corrupted = task.corrupt(sequences, task.masker)
    masked, lengths = corrupted.masked, sequences.lengths.tolist()
    labels = torch.full((len(sequences.token_ids),), -100)
    labels[masked.positions] = masked.labels
    real = padded(torch.ones_like(labels), lengths, 0)
    inputs = {"attention_mask": real, "input_ids": padded(masked.token_ids, lengths, 0)}
    generated = generator(**inputs, labels=padded(labels, lengths, -100))
    rows = padded(labels, lengths, -100) != -100
    found = ours.masked_language().vocabulary_logits(
        ours.masked_language().encoder(
            replace(corrupted.batch, token_ids=masked.token_ids), masked.positions.sort().values
        )
    )
    assert_same(found, generated.logits[rows], "generator's logits")
    replaced = corrupted.replaced.long()
    assert replaced.sum() > 0
    inputs["input_ids"] = padded(corrupted.batch.token_ids, lengths, 0)
    detected = discriminator(**inputs, labels=padded(replaced, lengths, 0))
    logits = ours.replaced_token(ours.encoder(corrupted.batch))
    assert_same(logits, detected.logits[real == 1], "discriminator's logits")
    losses, counts = task.loss(sequences), task.counts(sequences)
    means = {name: losses[name] / counts[name] for name in losses}
    assert_same(means["mlm"], generated.loss, "generator's loss")
    assert_same(means["weighted_rtd"], 50 * detected.loss, "discriminator's loss")
    sum(means.values()).backward()  # type: ignore[union-attr]
    (generated.loss + 50 * detected.loss).backward()
    assert_same_gradients(ours, generator, discriminator)


def assert_same_gradients(ours: ReplacedTokenModel, generator: Any, discriminator: Any) -> None:
    shared = "electra.embeddings."
    theirs = {f"g.{name}": each.grad for name, each in generator.named_parameters()}
    theirs |= {f"d.{name}": each.grad for name, each in discriminator.named_parameters()}
    embeddings = ours.encoder.embeddings
    for ours_name, part in (
        ("word_embeddings", embeddings.token),
        ("position_embeddings", embeddings.position),
        ("token_type_embeddings", embeddings.segment),
        ("LayerNorm", embeddings.norm),
    ):
        wanted = theirs[f"g.{shared}{ours_name}.weight"] + theirs[f"d.{shared}{ours_name}.weight"]
        assert part is not None
        assert_same(part.weight.grad, wanted, f"gradient of {ours_name}")
    heads = (
        ("g.generator_predictions.dense.weight", ours.generator.masked_language.dense.weight),
        ("g.generator_lm_head.bias", ours.generator.masked_language.bias),
        ("g.electra.embeddings_project.weight", ours.generator.project.weight),  # type: ignore[union-attr]
        ("d.discriminator_predictions.dense.weight", ours.replaced_token.dense.weight),
        ("d.discriminator_predictions.dense_prediction.weight", ours.replaced_token.out.weight),
        ("d.electra.encoder.layer.1.output.dense.weight", ours.encoder.layers[1].feed_forward.down.weight),
        ("g.electra.encoder.layer.0.output.dense.weight", ours.generator.layers[0].feed_forward.down.weight),
    )
    for name, parameter in heads:
        assert_same(parameter.grad, theirs[name], f"gradient of {name}")


@shapes
def test_two_models_of_transformers_open_here_and_are_saved_as_they_were(
    embedding: int, tmp_path: Path
) -> None:
    shape = {
        "vocab_size": len(PIECES),
        "embedding_size": embedding,
        "num_hidden_layers": 2,
        "max_position_embeddings": 40,
    }
    large = transformers.ElectraConfig(**shape, hidden_size=24, num_attention_heads=3, intermediate_size=40)
    small = transformers.ElectraConfig(**shape, hidden_size=8, num_attention_heads=1, intermediate_size=12)
    discriminator = with_large_weights(transformers.ElectraForPreTraining(large), 1)
    generator: Any = with_large_weights(transformers.ElectraForMaskedLM(small), 2)
    generator.electra.embeddings.load_state_dict(discriminator.electra.embeddings.state_dict())
    discriminator.save_pretrained(tmp_path / "discriminator")
    generator.save_pretrained(tmp_path / "generator")
    ours, notes = load_replaced_token_model(tmp_path / "discriminator", 0.5, tmp_path / "generator")
    assert notes == ()
    ours.eval()
    sample = random_sample(ours.config, seed=3)
    inputs = {key: value for key, value in sample.padded.items() if key != "labels"}
    states = ours.encoder(sample.packed)
    assert_same(ours.replaced_token(states), discriminator(**inputs).logits[sample.rows], "discriminator")
    alone = ours.masked_language()
    logits = alone.vocabulary_logits(alone.encoder(sample.packed))
    assert_same(logits, generator(**inputs).logits[sample.rows], "generator")
    save_replaced_token_model(tmp_path / "again", tmp_path / "again-generator", ours, None, {})
    for theirs, folder in ((discriminator, "again"), (generator, "again-generator")):
        saved = opened(type(theirs), tmp_path / folder).state_dict()
        assert all(torch.equal(saved[name], tensor) for name, tensor in theirs.state_dict().items())


def test_sampled_pieces_are_those_of_the_softmax_of_transformers(tmp_path: Path) -> None:
    """By the inverse of its distribution function at each place's own uniform."""
    ours = small_model(16)
    save_replaced_token_model(tmp_path / "model", tmp_path / "generator", ours, None, {})
    generator = opened(transformers.ElectraForMaskedLM, tmp_path / "generator")
    task, sequences = task_of(ours), sequences_of(2)
    corrupted = task.corrupt(sequences, task.masker)
    masked, lengths = corrupted.masked, sequences.lengths.tolist()
    places = torch.zeros(len(sequences.token_ids), dtype=torch.bool)
    places[masked.positions] = True
    real = padded(torch.ones(len(places), dtype=torch.long), lengths, 0)
    logits = generator(input_ids=padded(masked.token_ids, lengths, 0), attention_mask=real).logits
    order = masked.positions.argsort()
    reached = logits[real == 1][places].double().softmax(1).cumsum(1)
    wanted = (reached <= as_uniforms(masked.draws, GENERATED_TOKENS)[order, None]).sum(1)
    assert corrupted.batch.token_ids[masked.positions][order].tolist() == wanted.tolist()


def test_the_layers_kernel_serves_it(tmp_path: Path) -> None:
    """Widths that the kernels take: the same states to their own rounding."""
    config = make_config(
        {"model_type": "electra", "hidden_size": 64, "embedding_size": 32, "num_attention_heads": 2}
        | {"num_hidden_layers": 2, "intermediate_size": 128, "vocab_size": 90, "max_position_embeddings": 40},
        "test",
    )
    torch.manual_seed(1)
    model = ReplacedTokenModel(config, generator_config(config, 0.5))
    save_replaced_token_model(tmp_path / "model", tmp_path / "generator", model, None, {})
    plain, prepared = load_encoder(tmp_path / "model"), load_encoder(tmp_path / "model")
    prepare_for_inference(prepared)
    sample = random_sample(config, seed=4)
    with torch.inference_mode():
        assert_same(prepared(sample.packed), plain(sample.packed), "hidden states")


def test_sampling_in_one_piece_and_in_rows_is_the_same() -> None:
    draw = torch.Generator().manual_seed(0)
    states, weight = torch.randn(300, 8, generator=draw), torch.randn(50, 8, generator=draw)
    bias, places = torch.randn(50, generator=draw), torch.rand(300, dtype=torch.float64, generator=draw)
    together = sample_pieces(states, weight, bias, places)
    alone = [
        int(sample_pieces(states[row : row + 1], weight, bias, places[row : row + 1])) for row in range(300)
    ]
    assert together.tolist() == alone
