"""The same numbers as transformers on the same weights, for every family, many shapes, and real weights."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from model_parity import assert_parity, assert_same, random_sample, twin, with_large_weights
from safetensors.torch import load_file, save_file

from bertsmith.errors import ModelError
from bertsmith.model.bert import Bert
from bertsmith.model.checkpoint import load_encoder
from bertsmith.model.config import preset
from bertsmith.model.config_json import config_from_hugging_face
from bertsmith.model.locate import locate_model
from bertsmith.tasks.pretraining.pretraining_checkpoint import load_pretraining_model, save_pretraining_model
from jina_bert import jina_config

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
    "jina_bert": "JinaBertForPreTraining",
    "roberta": "RobertaForMaskedLM",
    "xlm-roberta": "XLMRobertaForMaskedLM",
    "camembert": "CamembertForMaskedLM",
    "distilbert": "DistilBertForMaskedLM",
    "electra": "ElectraForMaskedLM",
    "mpnet": "MPNetForMaskedLM",
    "albert": "AlbertForPreTraining",
}
CONFIGS = {
    "bert": partial(transformers.BertConfig, type_vocab_size=3, layer_norm_eps=1e-7),
    "jina_bert": partial(jina_config, type_vocab_size=3),
    "roberta": partial(transformers.RobertaConfig, type_vocab_size=3, layer_norm_eps=1e-5),
    "xlm-roberta": partial(transformers.XLMRobertaConfig, layer_norm_eps=1e-5),
    "camembert": partial(transformers.CamembertConfig, type_vocab_size=1),
    "distilbert": transformers.DistilBertConfig,
    "electra": partial(transformers.ElectraConfig, embedding_size=20, type_vocab_size=3),
    "mpnet": transformers.MPNetConfig,
    "albert": partial(transformers.AlbertConfig, embedding_size=20, type_vocab_size=3),
}


def their_model(
    family: str, shape: Shape, *, architecture: str = "", attention: str = "eager", **more: Any
) -> Any:
    names = DISTILBERT_NAMES if family == "distilbert" else BERT_NAMES
    values: dict[str, Any] = dict(zip(names, shape, strict=True))
    if family == "jina_bert" and values["hidden_act"] == "relu":  # else it is of the head alone
        values["feed_forward_type"] = "reglu"
    config = CONFIGS[family](
        **values, **more, vocab_size=97, max_position_embeddings=40, attn_implementation=attention
    )
    return with_large_weights(getattr(transformers, architecture or PRETRAINING[family])(config), seed=7)


@shapes
@pytest.mark.parametrize("family", list(PRETRAINING))
def test_states_logits_loss_and_gradients_equal_transformers(
    family: str, shape: Shape, tmp_path: Path
) -> None:
    theirs = their_model(family, shape)
    ours = twin(theirs, tmp_path / "model")
    for seed in range(3):
        assert_parity(theirs, ours, random_sample(ours.config, seed))


# What differs from the third version of DeBERTa. There are few buckets, so that distances share some.
DISENTANGLED: dict[str, dict[str, Any]] = {
    "as the third version": {},
    "as the largest of the second": {"conv_kernel_size": 3, "conv_act": "gelu"},
    "convolution in groups, segments": {"conv_kernel_size": 5, "conv_groups": 4, "type_vocab_size": 3},
    "keys of its own": {"share_att_key": False},
    "c2p alone": {"pos_att_type": "c2p"},
    "p2c alone, of its own": {"pos_att_type": ["p2c"], "share_att_key": False},
    "embeddings of another width, positions": {"embedding_size": 20, "position_biased_input": True},
    "a row for each distance": {"position_buckets": -1, "norm_rel_ebd": "none"},
    "fewer distances than positions": {"max_relative_positions": 16, "hidden_act": "relu"},
    "one layer": {"num_hidden_layers": 1, "conv_kernel_size": 3},
    "attention without distances": {
        "relative_attention": False,
        "pos_att_type": None,
        "norm_rel_ebd": "none",
        "position_biased_input": True,
    },
}
DEBERTA: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 48,
    "max_position_embeddings": 40,
    "relative_attention": True,
    "pos_att_type": "p2c|c2p",
    "share_att_key": True,
    "position_buckets": 8,
    "norm_rel_ebd": "layer_norm",
    "position_biased_input": False,
}


def deberta(architecture: str = "DebertaV2ForMaskedLM", **changes: Any) -> Any:
    config = transformers.DebertaV2Config(**DEBERTA | changes)
    return with_large_weights(getattr(transformers, architecture)(config), seed=7)


@pytest.mark.parametrize("changes", DISENTANGLED.values(), ids=list(DISENTANGLED))
def test_disentangled_attention_equals_transformers(changes: dict[str, Any], tmp_path: Path) -> None:
    theirs = deberta(**changes)
    ours = twin(theirs, tmp_path / "model")
    for seed in range(2):
        assert_parity(theirs, ours, random_sample(ours.config, seed))
    assert_parity(theirs, ours, random_sample(ours.config, seed=3, lengths=(1, 38, 5, 5, 1)))


@pytest.mark.parametrize("changes", [{}, {"conv_kernel_size": 3}], ids=["plain", "convolution"])
def test_texts_of_more_tokens_than_the_table_has_distances(changes: dict[str, Any], tmp_path: Path) -> None:
    sizes = {"max_position_embeddings": 512, "position_buckets": 256, "num_hidden_layers": 1}
    theirs = deberta(**sizes, **changes)
    ours = twin(theirs, tmp_path / "model")
    sample = random_sample(ours.config, seed=2, lengths=(700, 3, 530))
    inputs = {key: value for key, value in sample.padded.items() if key != "labels"}
    with torch.no_grad():
        expected = theirs.deberta(**inputs).last_hidden_state[sample.rows]
        assert_same(ours.encoder(sample.packed), expected, "hidden states")


def test_few_scores_at_a_time_are_the_same_scores(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    theirs = deberta()
    ours = twin(theirs, tmp_path / "model")
    for most in (1 << 9, 1 << 12):  # a few queries of a sequence, a few sequences
        monkeypatch.setattr("bertsmith.model.layers.disentangled._MOST_SCORES", most)
        assert_parity(theirs, ours, random_sample(ours.config, seed=4, lengths=(16, 16, 16, 9, 30, 30)))


def test_the_masked_word_head_of_the_third_version_is_read_under_its_own_name(tmp_path: Path) -> None:
    """lm_predictions, which transformers' default classes leave out. The published files also have
    mask_predictions, and a table of positions that nothing reads.
    """
    theirs = deberta(legacy=False)
    theirs.save_pretrained(tmp_path / "model")
    file = tmp_path / "model" / "model.safetensors"
    unread = {
        "mask_predictions.dense.weight": torch.ones(32, 32),
        "mask_predictions.classifier.bias": torch.ones(1),
        "deberta.embeddings.position_embeddings.weight": torch.ones(40, 32),
    }
    save_file(load_file(file) | unread, file)
    ours, notes = load_pretraining_model(tmp_path / "model")
    assert notes == ()
    sample = random_sample(ours.config, seed=5)
    expected = theirs(**sample.padded)
    states = ours.encoder(sample.packed)
    assert_same(ours.vocabulary_logits(states), expected.logits[sample.rows], "MLM logits")
    save_pretraining_model(tmp_path / "saved", ours, None, {})
    usual, keys = transformers.AutoModelForMaskedLM.from_pretrained(
        tmp_path / "saved", output_loading_info=True
    )
    assert not any(keys[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert_same(expected.logits, usual.eval()(**sample.padded).logits, "logits of what was saved")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"relative_attention": False}, "relative_attention = False doesn't go with pos_att_type"),
        ({"pos_att_type": "c2p|p2p"}, "pos_att_type"),
        ({"norm_rel_ebd": "rms"}, "norm_rel_ebd"),
        ({"conv_kernel_size": 4}, "conv_kernel_size = 4 must be odd"),
        ({"conv_kernel_size": 3, "conv_groups": 5}, "conv_groups = 5 must divide hidden_size = 32"),
        ({"position_buckets": 1}, "position_buckets = 1 must be at least 2"),
        ({"pooler_hidden_act": "tanh"}, "pooler_hidden_act is 'tanh'; only 'gelu' is supported"),
    ],
)
def test_disentangled_attention_of_another_kind_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        config_from_hugging_face({"model_type": "deberta-v2"} | DEBERTA | changes, "test")


@pytest.mark.parametrize(("size", "weights"), [("xsmall", 22), ("small", 44), ("base", 86), ("large", 304)])
def test_published_sizes_of_deberta_have_the_published_number_of_weights(size: str, weights: int) -> None:
    """In millions, without the vocabulary's (microsoft/DeBERTa)."""
    with torch.device("meta"):
        model = Bert(preset(size, model_type="deberta-v2"))
    count = sum(parameter.numel() for parameter in model.parameters())
    assert (count - model.embeddings.token.weight.numel()) / 1e6 == pytest.approx(weights, abs=1.5)


@pytest.mark.parametrize(
    ("size", "family", "weights", "changes"),
    [
        *((size, "albert", count, {}) for size, count in (("base", 12), ("large", 18), ("xlarge", 60))),
        ("xxlarge", "albert", 223, {}),  # in transformers' list of models; the paper has 235
        ("base", "gte", 305, {}),  # gte-multilingual-base
        ("base", "gte", 137, {"vocab_size": 30528, "type_vocab_size": 0}),  # gte-base-en-v1.5
        ("large", "gte", 434, {"vocab_size": 30528, "type_vocab_size": 2}),
    ],
)
def test_published_sizes_of_albert_and_gte_have_the_published_number_of_weights(
    size: str, family: str, weights: int, changes: dict[str, Any]
) -> None:
    """In millions (Lan et al. 2020, table 1; Zhang et al. 2024, and the models' pages)."""
    with torch.device("meta"):
        model = Bert(preset(size, model_type=family, **changes))
    assert sum(p.numel() for p in model.parameters()) / 1e6 == pytest.approx(weights, abs=1.5)


@pytest.mark.parametrize(
    ("layers", "groups", "inner"),
    [(4, 2, 1), (6, 3, 1), (5, 2, 1), (7, 3, 1), (3, 3, 1), (2, 1, 3), (4, 2, 2), (1, 1, 2)],
)
def test_layers_that_share_weights_are_computed_in_transformers_order(
    layers: int, groups: int, inner: int, tmp_path: Path
) -> None:
    shared = {"num_hidden_groups": groups, "inner_group_num": inner}
    theirs = their_model("albert", (24, layers, 3, 32, "gelu_new"), **shared)
    ours = twin(theirs, tmp_path / "model")
    assert len(ours.encoder.layers) == groups * inner
    assert ours.config.num_hidden_layers == len(ours.encoder.layer_sequence) == layers * inner
    for seed in range(2):
        assert_parity(theirs, ours, random_sample(ours.config, seed))
    save_pretraining_model(tmp_path / "ours", ours, None, {})
    again = transformers.AlbertForPreTraining.from_pretrained(tmp_path / "ours").eval()
    assert (again.config.num_hidden_layers, again.config.inner_group_num) == (layers, inner)
    assert_parity(again, ours, random_sample(ours.config, seed=2))


@pytest.mark.parametrize("lengths", [(1,), (1, 1, 1), (38,), (5, 5, 5, 5), (2, 17, 2, 17, 1)])
@pytest.mark.parametrize("family", ["bert", "jina_bert", "roberta", "electra", "mpnet", "albert"])
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


@pytest.mark.parametrize("family", ["bert", "jina_bert", "roberta", "camembert", "mpnet"])
def test_pooler_of_a_bare_encoder_equals_transformers(family: str, tmp_path: Path) -> None:
    bare = PRETRAINING[family].removesuffix("ForMaskedLM").removesuffix("ForPreTraining") + "Model"
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
