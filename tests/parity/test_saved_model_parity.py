"""What we save opens in transformers with no missing or unexpected key, and gives the same numbers."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from model_parity import assert_parity, assert_same, random_sample, with_large_weights
from safetensors import safe_open

import jina_bert  # noqa: F401  transformers lacks it
from bertsmith.model.bert import Bert
from bertsmith.model.checkpoint import load_encoder, save_checkpoint
from bertsmith.model.config import BertConfig, make_config
from bertsmith.model.families import FAMILIES
from bertsmith.tasks.pretraining.pretraining import PretrainingModel
from bertsmith.tasks.pretraining.pretraining_checkpoint import load_pretraining_model, save_pretraining_model
from bertsmith.text.tokens.tokenizer import Tokenizer

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "river", "##s", "run", "##ning", "."]
families = pytest.mark.parametrize("family", list(FAMILIES))


def small_config(family: str) -> BertConfig:
    shape = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 40}
    shape |= {"local_attention": 8} if family == "modernbert" else {}
    shape |= {"embedding_size": 16} if family in ("electra", "albert") else {}
    return make_config(
        {
            "model_type": family,
            "vocab_size": 83,
            "pad_token_id": FAMILIES[family].published.get("pad_token_id", 0) % 83,
            "max_position_embeddings": 40,
        }
        | shape,
        "test",
    )


def small_model(family: str) -> PretrainingModel:
    model = with_large_weights(PretrainingModel(small_config(family)), seed=3)
    assert isinstance(model, PretrainingModel)
    return model


def pretraining_class(family: str) -> Any:
    record = FAMILIES[family]
    suffix = "ForPreTraining" if record.has_next_sentence else "ForMaskedLM"
    return getattr(transformers, record.class_prefix + suffix)


def open_in_transformers(auto_class: Any, folder: Path) -> tuple[Any, set[str], set[str]]:
    """The model, and the missing and unexpected keys."""
    model, info = auto_class.from_pretrained(folder, attn_implementation="eager", output_loading_info=True)
    assert not info["mismatched_keys"]
    return model.eval(), set(info["missing_keys"]), set(info["unexpected_keys"])


@families
def test_a_pretrained_model_opens_with_no_missing_or_unexpected_key_and_equal_numbers(
    family: str, tmp_path: Path
) -> None:
    ours = small_model(family)
    save_pretraining_model(tmp_path / "model", ours, None, {})
    theirs, missing, unexpected = open_in_transformers(pretraining_class(family), tmp_path / "model")
    assert (missing, unexpected) == (set(), set())
    for seed in range(2):
        assert_parity(theirs, ours, random_sample(ours.config, seed))


@families
def test_the_file_holds_the_names_transformers_itself_would_write(family: str, tmp_path: Path) -> None:
    save_pretraining_model(tmp_path / "ours", small_model(family), None, {})
    theirs, _, _ = open_in_transformers(pretraining_class(family), tmp_path / "ours")
    theirs.save_pretrained(tmp_path / "theirs")
    with (
        safe_open(tmp_path / "ours/model.safetensors", "pt") as ours_file,
        safe_open(tmp_path / "theirs/model.safetensors", "pt") as their_file,
    ):
        assert sorted(ours_file.keys()) == sorted(their_file.keys())
        assert ours_file.metadata() == their_file.metadata()
        for name in ours_file.keys():  # noqa: SIM118
            assert torch.equal(ours_file.get_tensor(name), their_file.get_tensor(name)), name


@families
def test_it_opens_as_a_masked_language_model_and_as_an_encoder_too(family: str, tmp_path: Path) -> None:
    ours = small_model(family)
    save_pretraining_model(tmp_path / "model", ours, None, {})
    sample = random_sample(ours.config, seed=1)
    inputs = {key: value for key, value in sample.padded.items() if key != "labels"}
    states = ours.encoder(sample.packed)
    masked, missing, _ = open_in_transformers(transformers.AutoModelForMaskedLM, tmp_path / "model")
    assert missing == set()
    assert_same(ours.vocabulary_logits(states), masked(**inputs).logits[sample.rows], "MLM logits")
    encoder, missing, _ = open_in_transformers(transformers.AutoModel, tmp_path / "model")
    # transformers' own RobertaForMaskedLM and MPNetForMaskedLM have no pooler either
    has_no_pooler = family in ("roberta", "xlm-roberta", "camembert", "mpnet")
    assert missing == ({"pooler.dense.weight", "pooler.dense.bias"} if has_no_pooler else set())
    assert_same(states, encoder(**inputs).last_hidden_state[sample.rows], "hidden states")


@families
def test_a_bare_encoder_opens_as_one(family: str, tmp_path: Path) -> None:
    config = small_config(family)
    ours = with_large_weights(Bert(config), seed=4)
    if family in ("nomic_bert", "gte"):  # their classes have no pooler
        ours.pooler = None
    architecture = FAMILIES[family].class_prefix + "Model"
    tensors = {f"encoder.{name}": tensor for name, tensor in ours.state_dict().items()}
    save_checkpoint(tmp_path / "model", tensors, config, architecture, task="encoder")
    theirs, missing, unexpected = open_in_transformers(transformers.AutoModel, tmp_path / "model")
    assert (missing, unexpected) == (set(), set())
    sample = random_sample(config, seed=2)
    inputs = {key: value for key, value in sample.padded.items() if key != "labels"}
    assert_same(ours(sample.packed), theirs(**inputs).last_hidden_state[sample.rows], "hidden states")
    again = load_encoder(tmp_path / "model").state_dict()
    assert all(torch.equal(again[name], tensor) for name, tensor in ours.state_dict().items())


@families
def test_saving_and_loading_change_no_bit(family: str, tmp_path: Path) -> None:
    ours = small_model(family)
    save_pretraining_model(tmp_path / "model", ours, None, {"steps": 7})
    again, notes = load_pretraining_model(tmp_path / "model")
    assert notes == ()
    assert again.config == ours.config
    assert again.state_dict().keys() == ours.state_dict().keys()
    assert all(torch.equal(again.state_dict()[name], tensor) for name, tensor in ours.state_dict().items())


@pytest.mark.parametrize(
    ("family", "architecture"),
    [
        *(("bert", "Bert"), ("roberta", "Roberta"), ("camembert", "Camembert")),
        *(("distilbert", "DistilBert"), ("mpnet", "MPNet")),
    ],
)
def test_what_the_tokenizer_beside_it_makes_of_a_pair_is_what_the_model_takes(
    family: str, architecture: str, tmp_path: Path
) -> None:
    """RoBERTa has one segment, DistilBERT and MPNet none, also where the vocabulary is WordPiece."""
    first = [PIECES[1], PIECES[0]] if family == "mpnet" else PIECES[:2]  # its padding is 1
    tokenizer = Tokenizer.from_pieces([*first, *PIECES[2:]], lowercase=True)
    save_pretraining_model(tmp_path / "model", small_model(family), tokenizer, {})
    inputs = transformers.AutoTokenizer.from_pretrained(tmp_path / "model")(
        "A river", "rivers", return_tensors="pt"
    )
    assert ("token_type_ids" in inputs) == (family == "bert")
    opened = getattr(transformers, f"{architecture}ForMaskedLM").from_pretrained(tmp_path / "model")
    assert opened(**inputs).logits.shape[1] == len(inputs["input_ids"][0])


def test_the_tokenizer_beside_the_weights_opens_in_transformers(tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_pieces(PIECES, lowercase=True)
    save_pretraining_model(tmp_path / "model", small_model("bert"), tokenizer, {})
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "model")
    text = "A river's rivers running."
    assert theirs(text)["input_ids"][1:-1] == tokenizer.encode(text).ids
    assert theirs(text)["input_ids"][0] == tokenizer.cls_id
