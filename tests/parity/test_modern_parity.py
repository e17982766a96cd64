"""ModernBERT, Nomic's BERT and gte: the numbers of transformers, for many shapes, windows and spellings; and
a family with ALiBi, which transformers lacks, beside its plain definition.
"""

import dataclasses
import json
import math
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from model_parity import assert_parity, assert_same, random_sample, twin, with_large_weights
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from bertsmith.cli.main import main
from bertsmith.errors import ModelError
from bertsmith.inference.checking.check import check_model
from bertsmith.inference.checking.oracles import Oracle
from bertsmith.model.bert import Bert
from bertsmith.model.checkpoint import load_encoder, read_checkpoint
from bertsmith.model.config import make_config, preset
from bertsmith.model.config_json import config_from_hugging_face, config_to_hugging_face
from bertsmith.model.cpu.inference import prepare_for_inference
from bertsmith.model.families import FAMILIES, find_family
from bertsmith.model.layers.attention import Alibi
from bertsmith.tasks.checkpoints.sentence_folder import write_sentence_folder
from bertsmith.tasks.pretraining.pretraining_checkpoint import load_pretraining_model, save_pretraining_model
from bertsmith.text.tokens.tokenizer import Tokenizer
from jina_bert import SLOPES, jina_config
from text.tokenizer_samples import gemma_json

# hidden_size, num_hidden_layers, num_attention_heads, intermediate_size, and what differs
Shape = tuple[int, int, int, int, dict[str, Any]]
MODERN: dict[str, Shape] = {
    "every third layer global": (32, 5, 2, 48, {}),
    "one layer, one head": (18, 1, 1, 12, {}),
    "heads of two": (12, 3, 6, 20, {"local_attention": 4}),
    "biases and other norms": (
        *(32, 3, 2, 40),
        {"norm_bias": True, "attention_bias": True, "mlp_bias": True, "classifier_bias": True},
    ),
    "other activations": (32, 2, 2, 24, {"hidden_activation": "silu", "classifier_activation": "relu"}),
    "odd window": (32, 4, 2, 48, {"local_attention": 7}),
    "window of one token": (32, 4, 2, 48, {"local_attention": 1}),
    "local layers first": (24, 3, 3, 16, {"layer_types": ["sliding_attention"] * 2 + ["full_attention"]}),
    "ettin-17m": (256, 7, 4, 384, {}),
    "ettin-32m": (384, 10, 6, 576, {}),
}
NOMIC: dict[str, Shape] = {
    "two layers": (32, 2, 2, 48, {}),
    "one layer, one head": (18, 1, 1, 12, {}),
    "odd sizes": (42, 3, 3, 17, {"type_vocab_size": 3}),
    "heads of two": (12, 2, 6, 20, {"rope_parameters": {"rope_type": "default", "rope_theta": 10.0}}),
    "gelu": (32, 2, 2, 48, {"hidden_act": "gelu"}),
    "wide": (256, 4, 4, 384, {"layer_norm_eps": 1e-6}),
    "deep": (16, 7, 2, 32, {}),
}
GTE: dict[str, Shape] = {
    "two layers": (32, 2, 2, 48, {}),
    "one layer, one head": (18, 1, 1, 12, {"hidden_act": "silu"}),
    "no segments": (42, 3, 3, 17, {"type_vocab_size": 0}),
    "two segments": (24, 2, 3, 36, {"type_vocab_size": 2}),
    "another theta": (12, 2, 6, 20, {"rope_parameters": {"rope_type": "default", "rope_theta": 10.0}}),
    "linear factor": (
        *(24, 3, 3, 36),
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 500.0, "factor": 1.7}},
    ),
    "wide": (256, 4, 4, 384, {"layer_norm_eps": 1e-6}),
}
modern_shapes = pytest.mark.parametrize("shape", MODERN.values(), ids=list(MODERN))


def modern(shape: Shape, *, architecture: str = "ModernBertForMaskedLM", **more: Any) -> Any:
    return their_model(transformers.ModernBertConfig, architecture, shape, {"local_attention": 8} | more)


def nomic(shape: Shape, *, architecture: str = "NomicBertForMaskedLM", **more: Any) -> Any:
    return their_model(transformers.NomicBertConfig, architecture, shape, more)


def gte(shape: Shape, *, architecture: str = "GteForMaskedLM", **more: Any) -> Any:
    return their_model(transformers.GteConfig, architecture, shape, more)


def their_model(kind: Any, architecture: str, shape: Shape, more: dict[str, Any]) -> Any:
    names = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
    ids: dict[str, Any] = dict.fromkeys(("bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id"))
    values = dict(zip(names, shape[:4], strict=True)) | more | shape[4]
    config = kind(**values, **ids, vocab_size=97, pad_token_id=0, attn_implementation="eager")
    model = getattr(transformers, architecture)(config)
    wide = shape[0] > 64  # large weights in ten wide layers leave no digit to compare
    return model.eval() if wide else with_large_weights(model, seed=7)


@modern_shapes
def test_modernbert_has_the_numbers_of_transformers(shape: Shape, tmp_path: Path) -> None:
    theirs = modern(shape)
    ours = twin(theirs, tmp_path / "model")
    for seed in range(3):
        assert_parity(theirs, ours, random_sample(ours.config, seed))


@pytest.mark.parametrize("shape", NOMIC.values(), ids=list(NOMIC))
def test_nomic_bert_has_the_numbers_of_transformers(shape: Shape, tmp_path: Path) -> None:
    theirs = nomic(shape)
    ours = twin(theirs, tmp_path / "model")
    for seed in range(3):
        assert_parity(theirs, ours, random_sample(ours.config, seed))


@pytest.mark.parametrize("shape", GTE.values(), ids=list(GTE))
def test_gte_has_the_numbers_of_transformers(shape: Shape, tmp_path: Path) -> None:
    theirs = gte(shape)
    ours = twin(theirs, tmp_path / "model")
    for seed in range(3):
        assert_parity(theirs, ours, random_sample(ours.config, seed))


@pytest.mark.parametrize("window", [1, 2, 5, 16, 31, 32, 64])
@pytest.mark.parametrize("lengths", [(1,), (3, 3), (15, 16, 17), (31, 33, 32), (65, 2, 40), (129,)])
def test_any_window_and_lengths_below_at_and_above_it(
    window: int, lengths: tuple[int, ...], tmp_path: Path
) -> None:
    theirs = modern((32, 4, 2, 48, {}), local_attention=window)
    ours = twin(theirs, tmp_path / "model")
    assert_parity(theirs, ours, random_sample(ours.config, seed=1, lengths=lengths))


@pytest.mark.parametrize("family", [modern, nomic, gte])
def test_their_default_attention_gives_the_same_numbers_too(
    family: Callable[..., Any], tmp_path: Path
) -> None:
    theirs = family((32, 3, 2, 48, {}))
    theirs.set_attn_implementation("sdpa")
    ours = twin(theirs, tmp_path / "model")
    assert_parity(theirs, ours, random_sample(ours.config, seed=2))


def test_a_config_of_transformers_4_gives_what_one_of_transformers_5_gives(tmp_path: Path) -> None:
    """The two thetas and the pattern of layers in their old spelling."""
    theirs = modern((32, 5, 2, 48, {}), rope_parameters=thetas(5000.0, 70.0))
    theirs.save_pretrained(tmp_path / "model")
    new = json.loads((tmp_path / "model/config.json").read_text())
    old = {key: value for key, value in new.items() if key not in ("rope_parameters", "layer_types")}
    old |= {"global_rope_theta": 5000.0, "local_rope_theta": 70.0, "global_attn_every_n_layers": 3}
    (tmp_path / "model/config.json").write_text(json.dumps(old))
    assert config_from_hugging_face(old, "old") == config_from_hugging_face(new, "new")
    ours = load_encoder(tmp_path / "model")
    sample = random_sample(ours.config, seed=3)
    inputs = {key: value for key, value in sample.padded.items() if key != "labels"}
    expected = theirs.model(**inputs).last_hidden_state
    assert_same(ours(sample.packed), expected[sample.rows], "hidden states")


@pytest.mark.parametrize(("given", "expected"), [({"global_rope_theta": 5000.0}, 5000.0), ({}, 160_000.0)])
def test_a_local_theta_of_null_is_the_global_one(
    given: dict[str, Any], expected: float, tmp_path: Path
) -> None:
    """As transformers 4 computes it; without the key it is 10,000."""
    theirs = modern((32, 5, 2, 48, {}), rope_parameters=thetas(5000.0, 70.0))
    theirs.save_pretrained(tmp_path / "model")
    values = json.loads((tmp_path / "model/config.json").read_text())
    values.pop("rope_parameters")
    assert (
        config_from_hugging_face(values | given | {"local_rope_theta": None}, "x").local_rope_theta
        == expected
    )
    assert config_from_hugging_face(values | given, "x").local_rope_theta == 10_000.0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"global_rope_theta": 7.0}, "global_rope_theta = 7.0 and rope_parameters.full_attention.rope_theta"),
        ({"local_rope_theta": 7.0}, "local_rope_theta = 7.0 and rope_parameters.sliding_attention"),
        ({"global_attn_every_n_layers": 2}, "global_attn_every_n_layers = 2 and layer_types say different"),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, "rope_scaling is"),
        ({"layer_types": ["full_attention", "chunked_attention"]}, "layer_types is .*chunked_attention"),
        ({"layer_types": ["full_attention"] * 3}, "layer_types has 3 entries for 5 layers"),
        ({"decoder_bias": False}, "decoder_bias is False; only True is supported"),
        ({"hidden_act": "silu"}, "unknown key 'hidden_act'"),
        ({"type_vocab_size": 2}, "unknown key 'type_vocab_size'"),
        ({"pre_norm": False}, "unknown key 'pre_norm'"),
        ({"head_dim": 12}, "unknown key 'head_dim'"),
        (
            {"rope_parameters": {"full_attention": {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0}}},
            "only plain rotary positions",
        ),
        (
            {"rope_parameters": {"rope_type": "default", "rope_theta": 777.0}},
            "expected an object with full_att",
        ),
        ({"rope_parameters": [1]}, r"rope_parameters is \[1\]; expected an object"),
    ],
)
def test_what_would_change_the_numbers_is_refused_by_name(changes: dict[str, Any], message: str) -> None:
    settings = modern((32, 5, 2, 48, {})).config.to_dict()
    settings = {key: value for key, value in settings.items() if value is not None}
    config_from_hugging_face(settings, "untouched")
    with pytest.raises(ModelError, match=message):
        config_from_hugging_face(settings | changes, "test")


NOMICS_OWN = {  # as its authors spell it
    "model_type": "nomic_bert",
    "activation_function": "swiglu",
    "attn_pdrop": 0.0,
    "embd_pdrop": 0.0,
    "layer_norm_epsilon": 1e-12,
    "n_embd": 24,
    "n_head": 2,
    "n_inner": 36,
    "n_layer": 2,
    "n_positions": 2048,
    "prenorm": False,
    "qkv_proj_bias": False,
    "resid_pdrop": 0.0,
    "rotary_emb_base": 1000,
    "rotary_emb_fraction": 1.0,
    "rotary_emb_interleaved": False,
    "rotary_emb_scale_base": None,
    "type_vocab_size": 2,
    "vocab_size": 97,
}


def test_nomic_settings_as_its_authors_spell_them_give_the_same_config() -> None:
    theirs = nomic((24, 2, 2, 36, {})).config.to_dict()
    settings = {key: value for key, value in theirs.items() if value is not None}
    assert config_from_hugging_face(NOMICS_OWN, "authors") == config_from_hugging_face(
        settings, "transformers"
    )
    for key, value in {"prenorm": True, "rotary_emb_fraction": 0.5, "rotary_emb_interleaved": True}.items():
        with pytest.raises(ModelError, match=key):
            config_from_hugging_face(NOMICS_OWN | {key: value}, "test")
    with pytest.raises(ModelError, match="head_dim is 24"):
        config_from_hugging_face(settings | {"head_dim": 24}, "test")


def test_whatever_opens_nomics_own_layout_warns_that_it_met_no_published_checkpoint(tmp_path: Path) -> None:
    nomic((24, 2, 2, 36, {})).save_pretrained(tmp_path / "model")
    (tmp_path / "model" / "config.json").write_text(json.dumps(NOMICS_OWN))
    with pytest.warns(UserWarning, match="never compared with a published checkpoint") as warned:
        load_encoder(tmp_path / "model")
        weights = tmp_path / "model" / "model.safetensors"
        torch.save(load_file(weights), weights.with_name("pytorch_model.bin"))
        weights.unlink()
        assert main(["import", str(tmp_path / "model"), "--out", str(tmp_path / "new")]) == 0
        load_encoder(tmp_path / "new")  # whose config.json is as transformers has it
    assert len(warned) == 2
    for each in warned:
        line = warnings.formatwarning(each.message, each.category, each.filename, each.lineno)
        assert line.startswith(f"Warning: {tmp_path}/model/") and line.count("\n") == 1


def test_nomic_bert_is_read_with_its_head_in_the_layout_of_its_authors(tmp_path: Path) -> None:
    """NomicBertForPreTraining of nomic-ai/contrastors: prefix "bert", no biases in the head, a decoder."""
    theirs = nomic((24, 2, 2, 36, {}))
    with torch.no_grad():
        for bias in (theirs.cls.predictions.decoder.bias, theirs.cls.predictions.transform.dense.bias):
            bias.zero_()
    theirs.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"architectures": ["NomicBertForPreTraining"]}))
    biases = ("cls.predictions.bias", "cls.predictions.decoder.bias", "cls.predictions.transform.dense.bias")
    tensors = {
        name.replace("nomic_bert.", "bert."): tensor
        for name, tensor in load_file(tmp_path / "model.safetensors").items()
        if name not in biases
    }
    tensors["cls.predictions.decoder.weight"] = tensors["bert.embeddings.word_embeddings.weight"].clone()
    save_file(tensors, tmp_path / "model.safetensors")
    ours, notes = load_pretraining_model(tmp_path)
    assert notes == ()
    assert_parity(theirs, ours, random_sample(ours.config, seed=0))
    assert read_checkpoint(tmp_path).architecture == "NomicBertForMaskedLM"
    del tensors["cls.predictions.transform.layer_norm.bias"]
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(ModelError, match=r"missing cls\.predictions\.transform\.layer_norm\.bias"):
        load_pretraining_model(tmp_path)


NEW_CONFIG = {
    "architectures": ["NewForMaskedLM"],
    "auto_map": {
        "AutoConfig": "Alibaba-NLP/new-impl--configuration.NewConfig",
        "AutoModelForMaskedLM": "modeling.NewForMaskedLM",
    },
    "attention_probs_dropout_prob": 0.0,
    "classifier_dropout": None,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "hidden_size": 24,
    "id2label": {"0": "LABEL_0"},
    "initializer_range": 0.02,
    "intermediate_size": 40,
    "label2id": {"LABEL_0": 0},
    "layer_norm_eps": 1e-12,
    "layer_norm_type": "layer_norm",
    "logn_attention_clip1": False,
    "logn_attention_scale": False,
    "max_position_embeddings": 64,
    "model_type": "new",
    "num_attention_heads": 3,
    "num_hidden_layers": 2,
    "pack_qkv": True,
    "pad_token_id": 1,
    "position_embedding_type": "rope",
    "rope_scaling": {"factor": 8.0, "type": "ntk"},
    "rope_theta": 20000,
    "torch_dtype": "float16",
    "transformers_version": "4.39.1",
    "type_vocab_size": 1,
    "unpad_inputs": False,
    "use_memory_efficient_attention": False,
    "vocab_size": 97,
}


def save_as_authors(theirs: Any, folder: Path, **changes: Any) -> None:
    """A model of transformers' as the authors of gte save it: their prefix and config.json."""
    theirs.save_pretrained(folder)
    tensors = load_file(folder / "model.safetensors")
    renamed = {
        f"new.{name.removeprefix('gte.')}" if name.startswith("gte.") else name: tensor
        for name, tensor in tensors.items()
    }
    renamed["lm_head.decoder.weight"] = tensors["gte.embeddings.word_embeddings.weight"].clone()
    save_file(renamed, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(NEW_CONFIG | changes))


@pytest.mark.parametrize(("factor", "theta"), [(8.0, 20000), (2, 160000), (1.0, 10.0)])
def test_gte_as_its_authors_save_it_has_their_scaled_positions(
    factor: float, theta: float, tmp_path: Path
) -> None:
    """Base theta * f, and all frequencies divided by f^(2 / D): TEI's rotary.rs and the authors' code. Since
    transformers has no such type, its frequencies are set by that formula.
    """
    theirs = gte((24, 2, 3, 40, {}), max_position_embeddings=64)
    head = 24 // 3
    bases = (theta * factor) ** (torch.arange(0, head, 2) / head)
    theirs.gte.rotary_emb.inv_freq = 1 / bases / factor ** (2 / head)
    save_as_authors(
        theirs, tmp_path / "model", rope_theta=theta, rope_scaling={"factor": factor, "type": "ntk"}
    )
    with pytest.warns(UserWarning, match="as the authors of gte have it"):
        ours, notes = load_pretraining_model(tmp_path / "model")
    assert notes == ()
    assert ours.config.model_type == "gte" and ours.config.max_length == 64
    for seed in range(2):
        assert_parity(theirs, ours, random_sample(ours.config, seed))
    save_pretraining_model(tmp_path / "new", ours, None, {})
    again = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path / "new").eval()
    assert_parity(again, ours, random_sample(ours.config, seed=2))


def test_gte_as_its_authors_save_it_is_imported_from_their_older_file(tmp_path: Path) -> None:
    theirs = gte((24, 2, 3, 40, {}), max_position_embeddings=64)
    save_as_authors(theirs, tmp_path / "model", rope_scaling=None, rope_theta=160000.0)
    weights = tmp_path / "model" / "model.safetensors"
    torch.save(load_file(weights), weights.with_name("pytorch_model.bin"))
    weights.unlink()
    with pytest.warns(UserWarning, match="as the authors of gte have it"):
        assert main(["import", str(tmp_path / "model"), "--out", str(tmp_path / "new")]) == 0
    ours, _ = load_pretraining_model(tmp_path / "new")
    assert_parity(theirs, ours, random_sample(ours.config, seed=3))


def test_gte_settings_that_mean_something_else_are_refused(tmp_path: Path) -> None:
    plain = NEW_CONFIG | {"rope_scaling": None}
    assert config_from_hugging_face(plain, "x").rope_theta == 20000
    silent = {key: value for key, value in plain.items() if key not in ("rope_theta", "pad_token_id")}
    config = config_from_hugging_face(silent, "x")
    assert (config.rope_theta, config.pad_token_id) == (10_000.0, 0)  # NewConfig's own defaults
    assert (
        config_from_hugging_face(silent | {"model_type": "gte", "auto_map": None}, "x").rope_theta == 160_000
    )
    snowflake = {"AutoModel": "modeling_hf_alibaba_nlp_gte.GteModel"}
    config_from_hugging_face(plain | {"model_type": "gte", "auto_map": snowflake}, "x")
    for changes, message in [
        ({"auto_map": {"AutoModel": "modeling.OtherModel"}}, "asks to run code of its own"),
        ({"auto_map": ["modeling.NewModel"]}, "asks to run code of its own"),
        ({"layer_norm_type": "rms_norm"}, "layer_norm_type is 'rms_norm'; only 'layer_norm'"),
        ({"logn_attention_scale": True}, "logn_attention_scale is True"),
        ({"pack_qkv": False}, "pack_qkv is False"),
        ({"position_embedding_type": "absolute"}, "position_embedding_type is 'absolute'; only 'rope'"),
        ({"rope_scaling": {"type": "ntk", "factor": 8.0, "mixed_b": 0.5}}, "mixed_b.*only rotary positions"),
        ({"rope_scaling": {"type": "dynamic", "factor": 8.0}}, "only rotary positions of the types default"),
        ({"rope_scaling": {"type": "ntk", "factor": 0.5}}, "with a factor from 1 on"),
        ({"rope_scaling": {"type": "ntk", "factor": True}}, "with a factor from 1 on"),
        ({"rope_scaling": {"type": "ntk"}}, "with a factor from 1 on"),
        ({"rope_scaling": {"type": "default", "factor": 2}}, "only rotary positions"),
        ({"rope_scaling": 3}, "rope_scaling is 3"),
        ({"rope_scaling": {"type": "ntk", "factor": 2}, "rope_theta": None}, "needs rope_theta"),
        ({"rope_scaling": {"type": "ntk", "factor": 2, "rope_theta": 7}}, "say different things"),
        (
            {"rope_parameters": {"type": "linear", "factor": 2}, "rope_scaling": {"type": "default"}},
            "different",
        ),
    ]:
        with pytest.raises(ModelError, match=message):
            config_from_hugging_face(NEW_CONFIG | changes, "x")


@pytest.mark.parametrize("size", ["ettin-17m", "ettin-32m", "ettin-68m", "base", "large"])
def test_published_sizes_have_the_published_number_of_weights(size: str) -> None:
    """In millions (Weller et al. 2025, table 1; Warner et al. 2024, table 4)."""
    published = {"ettin-17m": 17, "ettin-32m": 32, "ettin-68m": 68, "base": 149, "large": 395}
    with torch.device("meta"):
        model = Bert(preset(size, model_type="modernbert"))
    assert sum(parameter.numel() for parameter in model.parameters()) / 1e6 == pytest.approx(
        published[size], abs=0.6
    )


@pytest.mark.parametrize("model_type", ["modernbert", "nomic_bert"])
def test_what_is_written_is_read_back_and_is_what_transformers_reads(model_type: str) -> None:
    shape = {"hidden_size": 24, "num_hidden_layers": 4, "num_attention_heads": 2, "intermediate_size": 36}
    config = make_config({"model_type": model_type, "vocab_size": 60, "pad_token_id": 0, **shape}, "test")
    written = config_to_hugging_face(config, "Some")
    assert config_from_hugging_face(written, "test") == config
    kind = {"modernbert": transformers.ModernBertConfig, "nomic_bert": transformers.NomicBertConfig}
    read = kind[model_type](**{key: value for key, value in written.items() if key != "model_type"})
    read_back = {key: value for key, value in read.to_dict().items() if value is not None}
    assert config_from_hugging_face(read_back, "test") == config


def test_a_classifier_of_modernbert_keeps_its_head_under_the_names_of_the_file(tmp_path: Path) -> None:
    """head.dense stands before the vocabulary in one class, before the classifier in another."""
    theirs = modern((32, 2, 2, 48, {}), architecture="ModernBertForSequenceClassification")
    theirs.save_pretrained(tmp_path / "model")
    ours = load_encoder(tmp_path / "model")
    sample = random_sample(ours.config, seed=4)
    inputs = {key: value for key, value in sample.padded.items() if key != "labels"}
    assert_same(ours(sample.packed), theirs.model(**inputs).last_hidden_state[sample.rows], "hidden states")
    with safe_open(tmp_path / "model/model.safetensors", "pt") as file:
        assert "head.dense.weight" in file.keys()  # noqa: SIM118


def thetas(everywhere: float, local: float) -> dict[str, Any]:
    return {
        "full_attention": {"rope_type": "default", "rope_theta": everywhere},
        "sliding_attention": {"rope_type": "default", "rope_theta": local},
    }


# -- ALiBi ---------------------------------------------------------------------------------------------------


@pytest.fixture
def alibi_family(monkeypatch: pytest.MonkeyPatch) -> str:
    """BERT's layers as Günther et al. 2023 (arXiv 2310.19923) change them: ALiBi, GEGLU, no positions."""
    changes = {
        "position_bias": "alibi",
        "position_biased_input": False,
        "feed_forward": "gated",
        "up_bias": False,
    }
    record = dataclasses.replace(find_family("bert"), model_type="with-alibi", published=changes)
    monkeypatch.setitem(FAMILIES, "with-alibi", record)
    return "with-alibi"


def alibi_states(encoder: Bert, ids: torch.Tensor) -> torch.Tensor:
    """One sequence's states, a head at a time, from the weights alone."""
    weights, config = {name: tensor.double() for name, tensor in encoder.state_dict().items()}, encoder.config

    def norm(x: torch.Tensor, name: str) -> torch.Tensor:
        gain, shift = weights[f"{name}.weight"], weights[f"{name}.bias"]
        return torch.nn.functional.layer_norm(x, x.shape[1:], gain, shift, config.layer_norm_eps)

    embedded = weights["embeddings.token.weight"][ids] + weights["embeddings.segment.weight"][0]
    states, places = norm(embedded, "embeddings.norm"), torch.arange(len(ids))
    for layer in (f"layers.{number}" for number in range(config.num_hidden_layers)):
        qkv = states @ weights[f"{layer}.attention.qkv.weight"].T + weights[f"{layer}.attention.qkv.bias"]
        mixed = []
        for head, slope in enumerate(SLOPES[config.num_attention_heads]):
            query, key, value = qkv.unflatten(1, (3, config.num_attention_heads, -1))[:, :, head].unbind(1)
            scores = query @ key.T / math.sqrt(query.shape[1]) - 2**slope * (places - places[:, None]).abs()
            mixed.append(scores.softmax(1) @ value)
        output = torch.cat(mixed, 1) @ weights[f"{layer}.attention.output.weight"].T
        states = norm(states + output + weights[f"{layer}.attention.output.bias"], f"{layer}.attention_norm")
        gate, up = (states @ weights[f"{layer}.feed_forward.up.weight"].T).chunk(2, dim=1)
        inner = torch.nn.functional.gelu(gate) * up
        widened = inner @ weights[f"{layer}.feed_forward.down.weight"].T
        states = norm(
            states + widened + weights[f"{layer}.feed_forward.down.bias"], f"{layer}.feed_forward_norm"
        )
    return states


@pytest.mark.parametrize("heads", [1, 2, 8, 12])
@pytest.mark.parametrize("size", [3, 16])  # by torch's operations, and by the kernels
def test_alibi_has_its_plain_definition(heads: int, size: int, alibi_family: str) -> None:
    shape = {"hidden_size": heads * size, "num_attention_heads": heads, "num_hidden_layers": 2}
    sizes = {"intermediate_size": 48, "vocab_size": 60, "max_position_embeddings": 300}
    encoder = Bert(make_config({"model_type": alibi_family} | shape | sizes, "test"))
    with_large_weights(encoder, seed=2)
    assert isinstance(encoder.relative, Alibi) and "relative" not in str(list(encoder.state_dict()))
    sample = random_sample(encoder.config, seed=3, lengths=(7, 300, 1, 40))
    batch = dataclasses.replace(sample.packed, segment_ids=torch.zeros_like(sample.packed.segment_ids))
    wanted = torch.cat([alibi_states(encoder, ids) for ids in batch.token_ids.split(batch.lengths)]).float()
    assert_same(encoder(batch), wanted, "hidden states")
    with torch.no_grad():
        assert_same(encoder(batch), wanted, "hidden states without gradients")
        assert_same(prepare_for_inference(encoder)(batch), wanted, "hidden states for inference")


def mmbert(folder: Path) -> Any:
    """mmBERT in the small, as the hub has it: transformers' model, and Gemma's kind of tokenizer."""
    tokenizer = Tokenizer.load(gemma_json(folder, MMBERT_TEXTS))
    ids = {"bos_token_id": 2, "cls_token_id": 1, "eos_token_id": 1, "sep_token_id": 1, "pad_token_id": 0}
    config = transformers.ModernBertConfig(
        vocab_size=tokenizer.vocab_size + 7,  # as the published one has rows without a piece
        hidden_size=32,
        num_hidden_layers=4,
        num_attention_heads=2,
        intermediate_size=48,
        local_attention=8,
        rope_parameters=thetas(160_000.0, 160_000.0),
        classifier_pooling="mean",
        attn_implementation="eager",
        **ids,
    )
    model = with_large_weights(transformers.ModernBertForMaskedLM(config), seed=7)
    model.save_pretrained(folder)
    values = json.loads((folder / "config.json").read_text())
    values = {key: value for key, value in values.items() if key not in ("rope_parameters", "layer_types")}
    values |= {"global_rope_theta": 160_000, "local_rope_theta": 160_000, "global_attn_every_n_layers": 3}
    values |= {"layer_norm_eps": 1e-5, "norm_eps": 1e-5, "position_embedding_type": "sans_pos"}
    values |= {"mask_token_id": 4, "sparse_prediction": False, "sparse_pred_ignore_index": -100}
    (folder / "config.json").write_text(json.dumps(values))
    return model


MMBERT_TEXTS = [
    "Der M\u00fcller mahlt  das Mehl.\nIt is <table>fine</table> \U0001f600",
    "\u4e2d\u6587\u6ca1\u6709\u7a7a\u683c\u3002 caf\u00e9 \x00 x\n\n\ny",
] * 9


def test_mmbert_opens_and_what_is_saved_of_it_opens_in_transformers(tmp_path: Path) -> None:
    theirs = mmbert(tmp_path / "hub")
    their_tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "hub")
    ours, notes = load_pretraining_model(tmp_path / "hub")
    tokenizer = Tokenizer.load(tmp_path / "hub")
    assert notes == ()
    assert ours.config.rope_theta == ours.config.local_rope_theta == 160_000.0
    for seed in range(2):
        assert_parity(theirs, ours, random_sample(ours.config, seed))
    save_pretraining_model(tmp_path / "saved", ours, tokenizer, {})
    again = transformers.ModernBertForMaskedLM.from_pretrained(tmp_path / "saved").eval()
    saved_tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "saved")
    for text in [*MMBERT_TEXTS[:2], "Der <mask> mahlt", "", "\U0001f600"]:
        inputs = their_tokenizer(text, return_tensors="pt")
        assert inputs.input_ids.tolist() == saved_tokenizer(text, return_tensors="pt").input_ids.tolist()
        assert_same(again(**inputs).logits, theirs(**inputs).logits, text)


@pytest.mark.parametrize("oracle", ["transformers", "sentence-transformers"])
def test_mmbert_s_texts_get_the_numbers_and_vectors_of_other_libraries(
    oracle: Oracle, tmp_path: Path
) -> None:
    mmbert(tmp_path)
    if oracle == "sentence-transformers":
        write_sentence_folder(tmp_path, load_encoder(tmp_path).config, "mean", 64)
    comparison = check_model(tmp_path, against=oracle).comparisons["float32"]
    assert comparison.agrees, comparison.differences
    assert comparison.texts >= 15


# The file of jina-embeddings-v2-small-en, smaller.
JINA_CONFIG = {
    "_name_or_path": "jinaai/jina-bert-implementation",
    "model_max_length": 8192,
    "architectures": ["JinaBertForMaskedLM"],
    "attention_probs_dropout_prob": 0.0,
    "auto_map": {
        "AutoConfig": "jinaai/jina-bert-implementation--configuration_bert.JinaBertConfig",
        "AutoModelForMaskedLM": "jinaai/jina-bert-implementation--modeling_bert.JinaBertForMaskedLM",
        "AutoModel": "jinaai/jina-bert-implementation--modeling_bert.JinaBertModel",
        "AutoModelForSequenceClassification": "modeling_bert.JinaBertForSequenceClassification",
    },
    "classifier_dropout": None,
    "gradient_checkpointing": False,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "hidden_size": 24,
    "initializer_range": 0.02,
    "intermediate_size": 40,
    "layer_norm_eps": 1e-12,
    "max_position_embeddings": 8192,
    "model_type": "bert",
    "num_attention_heads": 6,
    "num_hidden_layers": 2,
    "pad_token_id": 0,
    "position_embedding_type": "alibi",
    "torch_dtype": "float32",
    "transformers_version": "4.26.0",
    "type_vocab_size": 2,
    "use_cache": True,
    "vocab_size": 97,
    "feed_forward_type": "geglu",
    "emb_pooler": "mean",
    "attn_implementation": "torch",
}


def jina(folder: Path, **changes: Any) -> Any:
    """A model with jina's parts, saved as jina's are."""
    shape = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 6, "intermediate_size": 40}
    config = jina_config(**shape, vocab_size=97, max_position_embeddings=8192, attn_implementation="eager")
    theirs = with_large_weights(transformers.BertForMaskedLM(config), seed=7)
    theirs.save_pretrained(folder)
    (folder / "config.json").write_text(json.dumps(JINA_CONFIG | changes))
    return theirs


def test_jina_opens_as_its_authors_save_it_and_is_saved_as_they_do(tmp_path: Path) -> None:
    theirs = jina(tmp_path / "model")
    with pytest.warns(UserWarning, match=r"as the authors of jina_bert have it \(auto_map in"):
        ours, notes = load_pretraining_model(tmp_path / "model")
    assert notes == () and ours.config.max_length == 8192
    assert_parity(theirs, ours, random_sample(ours.config, seed=0, lengths=(3, 1200, 1, 40)))
    save_pretraining_model(tmp_path / "new", ours, None, {})
    again, _ = load_pretraining_model(tmp_path / "new")  # without the warning, which fails a test
    assert again.config == ours.config
    assert load_file(tmp_path / "new/model.safetensors").keys() == (
        load_file(tmp_path / "model/model.safetensors").keys()
    )
    written = json.loads((tmp_path / "new/config.json").read_text())
    ours_alone = {"tie_word_embeddings", "attn_implementation"}
    assert {key: written[key] for key in JINA_CONFIG.keys() & written.keys() if key != "auto_map"} == {
        key: value for key, value in JINA_CONFIG.items() if key in written and key != "auto_map"
    }
    assert written.keys() - JINA_CONFIG.keys() <= ours_alone
    known = {"AutoModelForMaskedLM", "AutoModel", "AutoConfig"}
    assert {key: written["auto_map"][key] for key in known} == {
        key: JINA_CONFIG["auto_map"][key]
        for key in known  # type: ignore[index]
    }
    (tmp_path / "new/bertsmith.json").unlink()
    written.pop("auto_map")
    (tmp_path / "new/config.json").write_text(json.dumps(written))
    plain, _ = load_pretraining_model(tmp_path / "new")
    assert plain.config == ours.config


@pytest.mark.filterwarnings("ignore:.*never compared with a published checkpoint")
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"feed_forward_type": "original"}, "feed_forward_type is 'original'; only 'geglu' or 'reglu'"),
        ({"feed_forward_type": ["geglu"]}, r"feed_forward_type is \['geglu'\]; only 'geglu' or 'reglu'"),
        ({"emb_pooler": "cls"}, "emb_pooler is 'cls'; only 'mean' is supported"),
        ({"auto_map": {"AutoModel": "modeling.OtherModel"}}, "asks to run code of its own"),
        ({"position_embedding_type": "absolute", "auto_map": None}, "unknown key 'model_max_length'"),
        ({"model_type": "jina_embeddings_v3"}, "There is no family 'jina_embeddings_v3'"),
        ({"model_type": "xlm-roberta"}, "asks to run code of its own"),
        ({"rotary_emb_base": 1}, "unknown key 'rotary_emb_base'"),
    ],
)
def test_settings_of_jinas_that_mean_something_else_are_refused(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    jina(tmp_path / "model", **changes)
    with pytest.raises(ModelError, match=message):
        load_encoder(tmp_path / "model")


@pytest.mark.filterwarnings("ignore:.*never compared with a published checkpoint")
def test_jinas_normalised_queries_and_keys_are_refused_by_name(tmp_path: Path) -> None:
    jina(tmp_path / "model")
    tensors = load_file(tmp_path / "model/model.safetensors")
    tensors["bert.encoder.layer.0.attention.self.layer_norm_q.weight"] = torch.ones(24)
    save_file(tensors, tmp_path / "model/model.safetensors")
    with pytest.raises(ModelError, match=r"has normalised queries and keys \(jina-embeddings-v2-base-code\)"):
        load_encoder(tmp_path / "model")


def test_an_activation_that_jinas_files_have_no_name_for_is_refused() -> None:
    with pytest.raises(ModelError, match=r"hidden_act = silu is impossible for jina_bert: .* gelu or relu"):
        make_config({"model_type": "jina_bert", "hidden_act": "silu"}, "test")
    relu = make_config({"model_type": "jina_bert", "hidden_act": "relu", "head_act": "gelu_new"}, "test")
    assert config_from_hugging_face(config_to_hugging_face(relu, "JinaBertModel"), "test") == relu
    old = {"model_type": "bert", "position_embedding_type": "alibi", "feed_forward_type": "geglu"}
    silent = config_from_hugging_face(old, "test")  # JinaBertConfig's own defaults
    assert (silent.max_length, silent.vocab_size, silent.attention_probs_dropout_prob) == (512, 30522, 0.1)


@pytest.mark.parametrize(("size", "weights"), [("small", 33), ("base", 137), ("large", 435)])
def test_published_sizes_of_jinas_have_the_published_number_of_weights(size: str, weights: int) -> None:
    """In millions (Günther et al. 2023, table 1)."""
    with torch.device("meta"):
        model = Bert(preset(size, model_type="jina_bert"))
    assert sum(p.numel() for p in model.parameters()) / 1e6 == pytest.approx(weights, abs=1.5)
