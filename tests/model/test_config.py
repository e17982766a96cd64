"""Shapes: what is impossible is refused with a sentence; config.json is read as transformers reads it."""

import json
from pathlib import Path
from typing import Any

import pytest
import transformers

from bertsmith.errors import ModelError
from bertsmith.model.config import PRESETS, BertConfig, make_config, preset
from bertsmith.model.config_json import config_from_hugging_face, config_to_hugging_face, read_labels

THEIRS = {
    "bert": transformers.BertConfig,
    "roberta": transformers.RobertaConfig,
    "distilbert": transformers.DistilBertConfig,
    "mpnet": transformers.MPNetConfig,
}
ARCHITECTURE = {
    "bert": "BertForPreTraining",
    "roberta": "RobertaForMaskedLM",
    "distilbert": "DistilBertForMaskedLM",
    "mpnet": "MPNetForMaskedLM",
}
families = pytest.mark.parametrize("family", sorted(THEIRS))


@pytest.mark.parametrize(
    ("size", "millions"),
    # Turc et al. 2019, table 1, and Devlin et al. 2019, section 3: embeddings and encoder
    [("tiny", 4.4), ("mini", 11.2), ("small", 28.8), ("medium", 41.4), ("base", 109.5), ("large", 335.1)],
)
def test_presets_have_the_published_number_of_weights(size: str, millions: float) -> None:
    config = preset(size)
    hidden, wide = config.hidden_size, config.intermediate_size
    layer = 4 * hidden * (hidden + 1) + 2 * hidden * wide + hidden + wide + 4 * hidden
    embeddings = (config.vocab_size + config.max_position_embeddings + config.type_vocab_size + 2) * hidden
    total = embeddings + config.num_hidden_layers * layer + hidden * (hidden + 1)
    assert total / 1e6 == pytest.approx(millions, abs=0.06)
    assert config.head_size == 64


@families
@pytest.mark.parametrize("size", sorted(PRESETS))
def test_a_shape_survives_config_json_and_back(family: str, size: str) -> None:
    config = preset(size, model_type=family, vocab_size=123)
    written = json.loads(json.dumps(config_to_hugging_face(config, ARCHITECTURE[family])))
    assert config_from_hugging_face(written, "test") == config


@families
def test_transformers_reads_the_same_shape_from_what_we_write(family: str, tmp_path: Path) -> None:
    config = preset("mini", model_type=family, vocab_size=123, hidden_act="relu", hidden_dropout_prob=0.25)
    (tmp_path / "config.json").write_text(json.dumps(config_to_hugging_face(config, ARCHITECTURE[family])))
    theirs = transformers.AutoConfig.from_pretrained(tmp_path)
    assert type(theirs) is THEIRS[family]
    assert config_from_hugging_face(theirs.to_dict(), "test") == config


@families
def test_a_config_json_that_leaves_everything_out_means_what_transformers_takes_it_for(family: str) -> None:
    assert config_from_hugging_face({"model_type": family}, "test") == config_from_hugging_face(
        THEIRS[family]().to_dict(), "test"
    )


def test_families_default_to_their_published_constants() -> None:
    roberta, distilbert = preset("base", model_type="roberta"), BertConfig(model_type="distilbert")
    assert (roberta.type_vocab_size, roberta.pad_token_id, roberta.layer_norm_eps) == (1, 1, 1e-5)
    assert (roberta.max_length, roberta.position_offset, roberta.vocab_size) == (512, 2, 50265)
    assert (distilbert.type_vocab_size, distilbert.has_pooler, distilbert.num_hidden_layers) == (0, False, 6)


def test_electra_s_embeddings_have_a_width_of_their_own_that_is_always_written(tmp_path: Path) -> None:
    """transformers takes 128 where config.json is silent, also for a base."""
    small, base = preset("small", model_type="electra"), preset("base", model_type="electra")
    assert (small.embedding_width, base.embedding_width, base.embedding_size) == (128, 768, None)
    for config, width in ((small, 128), (base, 768)):
        written = config_to_hugging_face(config, "ElectraForPreTraining")
        assert written["embedding_size"] == width
        assert config_from_hugging_face(written, "test") == config
        (tmp_path / "config.json").write_text(json.dumps(written))
        theirs = transformers.AutoConfig.from_pretrained(tmp_path)
        assert type(theirs) is transformers.ElectraConfig and theirs.embedding_size == width
        assert config_from_hugging_face(theirs.to_dict(), "test") == config
    summary = {"summary_type": "first", "summary_use_proj": True, "summary_activation": "gelu"}
    google = {"embedding_size": 128, "hidden_size": 256, "num_attention_heads": 4, "intermediate_size": 1024}
    published = {"model_type": "electra", "summary_last_dropout": 0.1, **google, **summary}
    assert config_from_hugging_face(published, "google/electra-small-discriminator") == small
    silent = config_from_hugging_face({"model_type": "electra"}, "test")
    assert silent == config_from_hugging_face(transformers.ElectraConfig().to_dict(), "test")
    assert silent.embedding_size == 128


def test_google_s_own_file_is_taken_for_bert() -> None:
    google = {"hidden_size": 8, "num_attention_heads": 2, "directionality": "bidi", "pooler_fc_size": 8}
    assert config_from_hugging_face(google, "test").model_type == "bert"


def test_null_says_nothing() -> None:
    """Of the family either, and of code of its own."""
    said = dict.fromkeys(("model_type", "auto_map", "hidden_size", "is_decoder", "architectures"))
    assert config_from_hugging_face(said, "test") == config_from_hugging_face({}, "test")


def test_other_names_of_an_activation_are_understood() -> None:
    assert config_from_hugging_face({"hidden_act": "gelu_pytorch_tanh"}, "test").hidden_act == "gelu_new"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {"hidden_size": 100, "num_attention_heads": 12},
            "num_attention_heads = 12 must divide hidden_size = 100",
        ),
        ({"hidden_szie": 8}, "unknown key 'hidden_szie'. Did you mean 'hidden_size'"),
        ({"rotary_base": 10_000}, "unknown key 'rotary_base'"),
        ({"_private_kernel": "somebody/kernel"}, "unknown key '_private_kernel'"),
        ({"attn_implementation": "somebody/kernel"}, "attn_implementation is 'somebody/kernel'"),
        ({"auto_map": {"AutoModel": "evil.py"}}, "asks to run code of its own"),
        ({"architectures": ["RobertaModel"]}, "has no model_type, which would mean BERT"),
        ({"type_vocab_size": 1, "model_type": None}, "has no model_type, which would mean BERT"),  # of 2019
        (
            {"model_type": "llama"},
            "There is no family 'llama'. There are: bert, jina_bert, roberta, xlm-roberta",
        ),
        ({"model_type": ["bert"]}, r"There is no family.*\['bert'\]"),
        ({"model_type": "x" * 10_000}, r"There is no family 'xx[x.]{,40}'\. There are"),
        ({"hidden_act": "swiglu"}, "hidden_act.*found 'swiglu'"),
        ({"hidden_act": ["gelu"]}, "hidden_act"),
        ({"is_decoder": True}, "is_decoder is True"),
        ({"position_embedding_type": "relative_key"}, "'relative_key'; only 'absolute' is supported"),
        ({"vocab_size": 10**12}, "vocab_size.*less than or equal to 2000000, found 1000000000000"),
        ({"hidden_dropout_prob": float("nan")}, "hidden_dropout_prob.*finite"),
        ({"hidden_dropout_prob": 1.0}, "hidden_dropout_prob.*less than 1, found 1.0"),
        ({"type_vocab_size": 0}, "type_vocab_size = 0 is impossible for bert"),
        ({"embedding_size": 64}, "unknown key 'embedding_size'"),
        ({"model_type": "roberta", "max_position_embeddings": 2}, "leaves no position"),
    ],
)
def test_what_can_not_be_computed_is_refused_with_its_key(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        config_from_hugging_face(values, "test")


def test_an_unknown_size_names_the_known_ones() -> None:
    with pytest.raises(ModelError, match=r"'huge'\. The published sizes are: tiny, mini"):
        preset("huge")


def test_an_impossible_change_of_a_size_names_the_size() -> None:
    with pytest.raises(ModelError, match="the size tiny: num_attention_heads = 3 must divide"):
        preset("tiny", num_attention_heads=3)


@pytest.mark.parametrize("name", ["local_attention", "head_act", "embedding_dropout"])
def test_what_a_saved_model_could_not_say_is_refused(name: str) -> None:
    """Left out, it would be as published: local attention where there was none."""
    with pytest.raises(ModelError, match=f"{name} = None is impossible for modernbert: give"):
        make_config({"model_type": "modernbert", name: None}, "here")


def test_make_config_names_the_place() -> None:
    with pytest.raises(ModelError, match=r"^here: vocab_size: .*found 0\.$"):
        make_config({"vocab_size": 0}, "here")


def test_labels_travel_only_in_their_own_types() -> None:
    given = {"id2label": {"0": "O", "1": "B-PER"}, "label2id": {"O": 0, "B-PER": 1}, "hidden_size": 4}
    assert read_labels(given, "test") == {"id2label": given["id2label"], "label2id": given["label2id"]}
    with pytest.raises(ModelError, match=r"id2label\.0"):
        read_labels({"id2label": {"0": {"nested": "settings"}}}, "test")
