"""The same numbers as transformers on the same weights, for every family, many shapes, and real weights."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from model_parity import assert_parity, assert_same, random_sample, twin, with_large_weights

from bertsmith.model.checkpoint import load_encoder
from bertsmith.model.config_json import config_from_hugging_face
from bertsmith.model.locate import locate_model

# hidden_size, num_hidden_layers, num_attention_heads, intermediate_size, hidden_act
SHAPES = {
    "two layers": (32, 2, 4, 64, "gelu"),
    "one layer, one head": (20, 1, 1, 28, "gelu"),
    "odd sizes": (21, 3, 3, 17, "gelu"),
    "heads of one": (6, 2, 6, 5, "gelu"),
    "gelu_new": (32, 2, 2, 48, "gelu_new"),
    "relu": (32, 2, 2, 48, "relu"),
    "deep": (16, 7, 2, 32, "gelu"),
}
Shape = tuple[int, int, int, int, str]
BERT_NAMES = (
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "hidden_act",
)
DISTILBERT_NAMES = ("dim", "n_layers", "n_heads", "hidden_dim", "activation")
shapes = pytest.mark.parametrize("shape", SHAPES.values(), ids=list(SHAPES))

PRETRAINING = {
    "bert": "BertForPreTraining",
    "roberta": "RobertaForMaskedLM",
    "distilbert": "DistilBertForMaskedLM",
    "electra": "ElectraForMaskedLM",
}
CONFIGS = {
    "bert": partial(transformers.BertConfig, type_vocab_size=3, layer_norm_eps=1e-7),
    "roberta": partial(transformers.RobertaConfig, type_vocab_size=3, layer_norm_eps=1e-5),
    "distilbert": transformers.DistilBertConfig,
    "electra": partial(transformers.ElectraConfig, embedding_size=20, type_vocab_size=3),
}


def their_model(family: str, shape: Shape, *, architecture: str = "", attention: str = "eager") -> Any:
    names = DISTILBERT_NAMES if family == "distilbert" else BERT_NAMES
    values = dict(zip(names, shape, strict=True))
    config = CONFIGS[family](
        **values, vocab_size=97, max_position_embeddings=40, attn_implementation=attention
    )
    return with_large_weights(getattr(transformers, architecture or PRETRAINING[family])(config), seed=7)


@shapes
@pytest.mark.parametrize("family", ["bert", "roberta", "distilbert", "electra"])
def test_states_logits_loss_and_gradients_equal_transformers(
    family: str, shape: Shape, tmp_path: Path
) -> None:
    theirs = their_model(family, shape)
    ours = twin(theirs, tmp_path / "model")
    for seed in range(3):
        assert_parity(theirs, ours, random_sample(ours.config, seed))


@pytest.mark.parametrize("lengths", [(1,), (1, 1, 1), (38,), (5, 5, 5, 5), (2, 17, 2, 17, 1)])
@pytest.mark.parametrize("family", ["bert", "roberta", "electra"])
def test_any_mixture_of_lengths_gives_the_same_numbers(
    family: str, lengths: tuple[int, ...], tmp_path: Path
) -> None:
    theirs = their_model(family, SHAPES["two layers"])
    ours = twin(theirs, tmp_path / "model")
    assert_parity(theirs, ours, random_sample(ours.config, seed=1, lengths=lengths))


def test_their_default_attention_gives_the_same_numbers_too(tmp_path: Path) -> None:
    theirs = their_model("bert", SHAPES["two layers"], attention="sdpa")
    ours = twin(theirs, tmp_path / "model")
    assert_parity(theirs, ours, random_sample(ours.config, seed=2))


def test_bert_without_next_sentence_prediction_equals_their_masked_language_model(tmp_path: Path) -> None:
    theirs = their_model("bert", SHAPES["two layers"], architecture="BertForMaskedLM")
    ours = twin(theirs, tmp_path / "model")
    assert ours.next_sentence is None
    assert ours.encoder.pooler is None
    assert_parity(theirs, ours, random_sample(ours.config, seed=3))


@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_pooler_of_a_bare_encoder_equals_transformers(family: str, tmp_path: Path) -> None:
    bare = {"bert": "BertModel", "roberta": "RobertaModel"}[family]
    theirs = their_model(family, SHAPES["odd sizes"], architecture=bare)
    theirs.save_pretrained(tmp_path / "model")
    ours = load_encoder(tmp_path / "model")
    sample = random_sample(ours.config, seed=4)
    inputs = {key: value for key, value in sample.padded.items() if key != "labels"}
    states = ours(sample.packed)
    assert_same(ours.pool(states[sample.packed.first_rows]), theirs(**inputs).pooler_output, "pooler")


def test_real_minilm_weights_give_the_same_hidden_states_and_pooler() -> None:
    folder = locate_model("minilm").folder
    theirs = transformers.BertModel.from_pretrained(folder, attn_implementation="eager").eval()
    ours = load_encoder(folder)
    assert ours.config == config_from_hugging_face(theirs.config.to_dict(), "minilm")
    sample = random_sample(ours.config, seed=5, lengths=(7, 120, 31, 31, 3, 512))
    inputs = {key: value for key, value in sample.padded.items() if key != "labels"}
    with torch.no_grad():
        expected = theirs(**inputs, output_hidden_states=True)
        states = ours.all_hidden_states(sample.packed)
        pooled = ours.pool(states[-1][sample.packed.first_rows])
    for layer, (found, wanted) in enumerate(zip(states, expected.hidden_states, strict=True)):
        assert_same(found, wanted[sample.rows], f"hidden states after layer {layer}")
    assert_same(pooled, expected.pooler_output, "pooler")
