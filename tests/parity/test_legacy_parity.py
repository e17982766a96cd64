"""The old checkpoints of other people import, with the numbers transformers gives for their tensors."""

from pathlib import Path

import pytest
import torch
import transformers
from model_parity import assert_same, random_sample

from bertsmith.model.checkpoint import load_encoder
from bertsmith.model.legacy import convert_legacy


@pytest.mark.parametrize(
    ("name", "model_class"),
    [
        ("bert-xsmall-dummy", transformers.BertModel),
        ("camphr_bert", transformers.BertModel),
        ("camphr_ner_bert", transformers.BertForTokenClassification),
    ],
)
def test_a_legacy_checkpoint_gives_transformers_numbers_after_import(
    name: str, model_class: type[transformers.PreTrainedModel], shared_data: Path, tmp_path: Path
) -> None:
    source = shared_data / "fixtures_ckpt" / name
    reference = model_class(transformers.BertConfig.from_pretrained(source)).eval()
    tensors = torch.load(source / "pytorch_model.bin", weights_only=True)
    tensors.pop("bert.embeddings.position_ids", None)
    reference.load_state_dict(tensors, strict=True)
    convert_legacy(source, tmp_path / "model")

    ours = load_encoder(tmp_path / "model")
    sample = random_sample(ours.config, seed=1)
    inputs = {key: value for key, value in sample.padded.items() if key != "labels"}
    with torch.no_grad():
        expected = reference(**inputs, output_hidden_states=True)
        states = ours.all_hidden_states(sample.packed)
    for layer, (found, wanted) in enumerate(zip(states, expected.hidden_states, strict=True)):
        assert_same(found, wanted[sample.rows], f"hidden states after layer {layer}")

    again, info = model_class.from_pretrained(tmp_path / "model", output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    with torch.no_grad():
        assert torch.equal(again.eval()(**inputs)[0], expected[0])
    assert again.config.id2label == reference.config.id2label
