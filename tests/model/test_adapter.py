"""An adapter's folder is written whole or not at all; that PEFT opens it is a test of parity."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from model_folders import tiny_config
from safetensors import SafetensorError
from safetensors.torch import load_file

from bertsmith.errors import InputError, ModelError, ResourceError
from bertsmith.model import lora
from bertsmith.model.bert import Bert
from bertsmith.model.lora import add_lora, lora_tensors, save_adapter

ROOT = "base_model.model."


def new_bert(**changes: Any) -> Bert:
    torch.manual_seed(0)
    return Bert(tiny_config(num_hidden_layers=2, **changes)).eval()


def adapted_bert(targets: tuple[str, ...] = ("query", "value"), **changes: Any) -> Bert:
    model = new_bert(**changes)
    add_lora(model, rank=2, alpha=3.0, dropout=0.25, targets=targets)
    with torch.no_grad():
        for tensor in lora_tensors(model).values():
            tensor.normal_()
    return model


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_adapter(tmp_path / "adapter", adapted_bert())
    return tmp_path / "adapter"


def test_only_the_added_weights_are_written(folder: Path) -> None:
    names = load_file(folder / "adapter_model.safetensors").keys()
    assert names == {
        f"base_model.model.encoder.layer.{layer}.attention.self.{target}.lora_{factor}.weight"
        for layer in range(2)
        for target in ("query", "value")
        for factor in "AB"
    }
    assert {path.name for path in folder.iterdir()} == {"adapter_config.json", "adapter_model.safetensors"}
    config = json.loads((folder / "adapter_config.json").read_text())
    assert (config["peft_type"], config["r"], config["lora_alpha"], config["lora_dropout"]) == (
        "LORA",
        2,
        3.0,
        0.25,
    )
    assert config["target_modules"] == [
        f"encoder.layer.{layer}.attention.self.{target}"
        for layer in range(2)
        for target in ("query", "value")
    ]


def test_an_adapter_is_not_written_without_lora_or_with_broken_values(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="has no LoRA to save"):
        save_adapter(tmp_path / "adapter", new_bert())
    model = adapted_bert()
    with torch.no_grad():
        next(iter(lora_tensors(model).values())).fill_(torch.inf)
    with pytest.raises(ModelError, match=r"was not saved: .*not finite"):
        save_adapter(tmp_path / "adapter", model)
    assert list(tmp_path.iterdir()) == []


def test_an_adapter_is_replaced_only_when_asked(folder: Path) -> None:
    with pytest.raises(InputError, match="already exists"):
        save_adapter(folder, adapted_bert())
    model = adapted_bert(("key",))
    save_adapter(folder, model, overwrite=True)
    saved = load_file(folder / "adapter_model.safetensors")
    assert len(saved) == len(lora_tensors(model)) == 4
    assert torch.equal(
        saved[f"{ROOT}encoder.layer.1.attention.self.key.lora_B.weight"],
        lora_tensors(model)["layers.1.attention.qkv.lora_B.key"],
    )


def test_a_full_disk_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise SafetensorError("I/O error: No space left on device (os error 28)")

    monkeypatch.setattr(lora, "save_file", full)
    with pytest.raises(ResourceError, match="The disk is full"):
        save_adapter(tmp_path / "adapter", adapted_bert())
    assert list(tmp_path.iterdir()) == []
