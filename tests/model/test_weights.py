"""The table of names: reversible, and deaf to nothing."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from bertsmith.errors import ModelError
from bertsmith.model.config import BertConfig, make_config
from bertsmith.model.families import FAMILIES
from bertsmith.model.weights import from_hugging_face, part_of, to_hugging_face
from bertsmith.tasks.pretraining.pretraining import PretrainingModel

QUERY = "bert.encoder.layer.1.attention.self.query.weight"
KEY = "bert.encoder.layer.1.attention.self.key.weight"


def tiny_config(family: str = "bert", layers: int = 2) -> BertConfig:
    shape = {"hidden_size": 4, "num_hidden_layers": layers, "num_attention_heads": 2, "intermediate_size": 6}
    return make_config({"model_type": family, "vocab_size": 11, "max_position_embeddings": 8} | shape, "test")


def their_tensors(family: str = "bert", *, bare: bool = False) -> dict[str, Tensor]:
    config = tiny_config(family)
    torch.manual_seed(1)
    ours = {name: torch.randn_like(value) for name, value in PretrainingModel(config).state_dict().items()}
    if bare:
        ours = {name: value for name, value in ours.items() if name.startswith("encoder.")}
    return to_hugging_face(ours, config, bare=bare)


@settings(max_examples=30, deadline=None)
@given(family=st.sampled_from(sorted(FAMILIES)), layers=st.integers(1, 13), bare=st.booleans())
def test_there_and_back_is_the_same_to_the_bit(family: str, layers: int, bare: bool) -> None:
    config = tiny_config(family, layers)
    ours = {name: torch.randn_like(value) for name, value in PretrainingModel(config).state_dict().items()}
    if bare:
        ours = {name: value for name, value in ours.items() if name.startswith("encoder.")}
    again = from_hugging_face(to_hugging_face(ours, config, bare=bare), config, "test").tensors
    assert again.keys() == ours.keys()
    assert all(torch.equal(again[name], value) for name, value in ours.items())


def test_query_key_and_value_are_stacked_in_this_order() -> None:
    theirs = their_tensors()
    ours = from_hugging_face(theirs, tiny_config(), "test").tensors
    prefix = "bert.encoder.layer.1.attention.self"
    pieces = [theirs[f"{prefix}.{name}.weight"] for name in ("query", "key", "value")]
    assert torch.equal(ours["encoder.layers.1.attention.qkv.weight"], torch.cat(pieces))


def test_old_spellings_are_understood() -> None:
    theirs = their_tensors()
    old = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): value
        for name, value in theirs.items()
    }
    assert old.keys() != theirs.keys()
    new = from_hugging_face(theirs, tiny_config(), "test").tensors
    again = from_hugging_face(old, tiny_config(), "test").tensors
    assert again.keys() == new.keys()
    assert all(torch.equal(again[name], value) for name, value in new.items())


@pytest.mark.parametrize("name", ["embeddings.position_ids", "bert.embeddings.position_ids"])
def test_tables_of_indices_are_dropped(name: str) -> None:
    theirs = their_tensors()
    plain = from_hugging_face(theirs, tiny_config(), "test")
    found = from_hugging_face(theirs | {name: torch.arange(8).float()}, tiny_config(), "test")
    assert found.tensors.keys() == plain.tensors.keys()
    assert found.carried == {}


def test_a_head_without_a_part_of_ours_is_carried_under_its_own_name() -> None:
    head = {"classifier.weight": torch.ones(3, 4), "classifier.bias": torch.ones(3)}
    found = from_hugging_face(their_tensors() | head, tiny_config(), "test")
    assert found.carried.keys() == head.keys()


TWINS = [
    ("bert", "cls.predictions.decoder.weight", "bert.embeddings.word_embeddings.weight"),
    ("bert", "cls.predictions.decoder.bias", "cls.predictions.bias"),
    ("roberta", "lm_head.decoder.weight", "roberta.embeddings.word_embeddings.weight"),
    ("roberta", "lm_head.decoder.bias", "lm_head.bias"),
    ("distilbert", "vocab_projector.weight", "distilbert.embeddings.word_embeddings.weight"),
]


@pytest.mark.parametrize(("family", "twin", "first"), TWINS)
def test_a_tied_tensor_written_twice_must_be_equal(family: str, twin: str, first: str) -> None:
    theirs, config = their_tensors(family), tiny_config(family)
    equal = from_hugging_face(theirs | {twin: theirs[first].clone()}, config, "test").tensors
    assert equal.keys() == from_hugging_face(theirs, config, "test").tensors.keys()
    different = theirs[first].clone()
    different.view(-1)[0] += 1e-3
    with pytest.raises(ModelError, match=rf"test: {twin} differs from .*ties"):
        from_hugging_face(theirs | {twin: different}, config, "test")


@pytest.mark.parametrize(("family", "twin", "first"), TWINS)
def test_a_tied_tensor_written_only_under_its_second_name_is_found(
    family: str, twin: str, first: str
) -> None:
    theirs, config = their_tensors(family), tiny_config(family)
    wanted = from_hugging_face(theirs, config, "test").tensors
    theirs[twin] = theirs.pop(first)
    found = from_hugging_face(theirs, config, "test").tensors
    assert all(torch.equal(found[name], value) for name, value in wanted.items())


def test_an_unknown_tensor_is_named() -> None:
    with pytest.raises(ModelError, match=r"with 2 layers doesn't have: bert\.encoder\.layer\.2\.output"):
        from_hugging_face(
            their_tensors() | {"bert.encoder.layer.2.output.dense.bias": torch.ones(4)}, tiny_config(), "test"
        )


def test_many_unknown_tensors_are_counted_not_listed() -> None:
    strangers = {f"decoder.{number}": torch.ones(1) for number in range(100)}
    with pytest.raises(ModelError, match="and 96 more"):
        from_hugging_face(their_tensors() | strangers, tiny_config(), "test")


def test_a_stack_with_a_missing_piece_is_named() -> None:
    theirs = their_tensors()
    del theirs[KEY]
    with pytest.raises(ModelError, match=rf"lacks {KEY}"):
        from_hugging_face(theirs, tiny_config(), "test")


def test_pieces_that_only_add_up_to_the_right_shape_are_refused() -> None:
    theirs = their_tensors()
    theirs[QUERY], theirs[KEY] = torch.ones(6, 4), torch.ones(2, 4)
    with pytest.raises(ModelError, match=r"must have one shape; found .*query.weight \(6, 4\)"):
        from_hugging_face(theirs, tiny_config(), "test")


def test_one_tensor_under_two_spellings_is_refused() -> None:
    theirs = their_tensors()
    theirs["bert.embeddings.LayerNorm.gamma"] = theirs["bert.embeddings.LayerNorm.weight"]
    with pytest.raises(ModelError, match=r"bert\.embeddings\.LayerNorm\.weight twice"):
        from_hugging_face(theirs, tiny_config(), "test")


def test_names_with_and_without_the_prefix_may_not_be_mixed_for_one_tensor() -> None:
    theirs = their_tensors()
    theirs["pooler.dense.bias"] = theirs["bert.pooler.dense.bias"]
    with pytest.raises(ModelError, match="twice"):
        from_hugging_face(theirs, tiny_config(), "test")


def test_every_tensor_of_ours_belongs_to_a_part() -> None:
    names = PretrainingModel(tiny_config()).state_dict()
    assert {part_of(name) for name in names} == {"encoder", "pooler", "masked_language", "next_sentence"}
