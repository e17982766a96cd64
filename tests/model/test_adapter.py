"""An adapter's folder: written whole, read strictly."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from model_folders import tiny_config
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from bertsmith.errors import InputError, ModelError, ResourceError
from bertsmith.model import adapter
from bertsmith.model.adapter import load_adapter, save_adapter
from bertsmith.model.bert import Bert
from bertsmith.model.lora import add_lora, lora_settings, lora_tensors

QUERY = "base_model.model.encoder.layer.0.attention.self.query"
TARGETS = ("query", "key", "value", "attention_output", "feed_forward_up", "feed_forward_down", "pooler")
ROOT = "base_model.model."
HEAD = {"classifier.weight": torch.ones(3, 4), "classifier.bias": torch.arange(3.0)}
NO_POOLER = {"model_type": "distilbert", "type_vocab_size": 0}


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


def rewrite_tensors(folder: Path, change: Callable[[dict[str, Tensor]], object]) -> None:
    tensors = load_file(folder / "adapter_model.safetensors")
    change(tensors)
    save_file(tensors, folder / "adapter_model.safetensors")


def rewrite_settings(folder: Path, **changes: Any) -> None:
    path = folder / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.mark.parametrize("heads", [None, HEAD], ids=["bare", "with a head"])
@pytest.mark.parametrize(
    ("targets", "family"),
    [
        (("query", "value"), {}),
        (TARGETS, {}),
        (("feed_forward_down",), {}),
        (("value", "pooler"), {"model_type": "roberta", "type_vocab_size": 1}),
        (TARGETS[:-1], NO_POOLER),
    ],
)
def test_what_is_saved_comes_back_to_the_bit(
    targets: tuple[str, ...], family: dict[str, Any], heads: dict[str, Tensor] | None, tmp_path: Path
) -> None:
    saved = adapted_bert(targets, **family)
    save_adapter(tmp_path / "adapter", saved, heads=heads)
    model = new_bert(**family)
    found = load_adapter(tmp_path / "adapter", model)
    assert lora_settings(model) == lora_settings(saved)
    assert model.state_dict().keys() == saved.state_dict().keys()
    for name, tensor in saved.state_dict().items():
        assert torch.equal(model.state_dict()[name], tensor), name
    assert found.keys() == (heads or {}).keys()
    assert all(torch.equal(found[name], HEAD[name]) for name in found)


def test_a_pooler_trained_beside_is_a_head(tmp_path: Path) -> None:
    heads = {**HEAD, "bert.pooler.dense.bias": torch.full((4,), 0.5)}
    save_adapter(tmp_path / "adapter", adapted_bert(), heads=heads)
    found = load_adapter(tmp_path / "adapter", new_bert())
    assert found.keys() == heads.keys()
    assert torch.equal(found["bert.pooler.dense.bias"], heads["bert.pooler.dense.bias"])


def test_only_the_added_weights_are_written(folder: Path) -> None:
    names = load_file(folder / "adapter_model.safetensors").keys()
    assert names == {
        f"base_model.model.encoder.layer.{layer}.attention.self.{target}.lora_{factor}.weight"
        for layer in range(2)
        for target in ("query", "value")
        for factor in "AB"
    }
    assert {path.name for path in folder.iterdir()} == {"adapter_config.json", "adapter_model.safetensors"}


def test_a_loaded_adapter_can_be_trained_on_and_draws_no_random_number(folder: Path) -> None:
    model = new_bert()
    before = torch.get_rng_state()
    load_adapter(folder, model)
    assert torch.equal(torch.get_rng_state(), before)
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert trained == lora_tensors(model).keys()


def test_half_precision_in_the_file_becomes_the_type_of_the_model(folder: Path) -> None:
    rewrite_tensors(folder, lambda tensors: tensors.update({n: t.half() for n, t in tensors.items()}))
    model = new_bert()
    load_adapter(folder, model)
    assert {tensor.dtype for tensor in lora_tensors(model).values()} == {torch.float32}


def test_ends_of_names_choose_modules_as_in_peft(tmp_path: Path) -> None:
    """`output.dense` is two modules of a layer, `dense` is the pooler as well."""
    targets = ("attention_output", "feed_forward_up", "feed_forward_down", "pooler")
    save_adapter(tmp_path / "adapter", adapted_bert(targets), heads=HEAD)
    rewrite_settings(tmp_path / "adapter", target_modules=["dense"])
    load_adapter(tmp_path / "adapter", new_bert())
    rewrite_settings(tmp_path / "adapter", target_modules=["output.dense"])
    with pytest.raises(ModelError, match=r"don't account for: .*intermediate\.dense"):
        load_adapter(tmp_path / "adapter", new_bert())


SETTINGS: list[tuple[dict[str, Any], str]] = [
    ({"use_dora": True}, "use_dora: expected False"),
    ({"use_rslora": True}, "use_rslora"),
    ({"bias": "all"}, "bias"),
    ({"rank_pattern": {"query": 4}}, "rank_pattern"),
    ({"init_lora_weights": "pissa"}, "init_lora_weights"),
    ({"peft_type": "IA3"}, "peft_type"),
    ({"r": 0}, "r: expected greater"),
    ({"r": 10**9}, "r: expected less"),
    ({"r": True}, "r: expected a whole number"),
    ({"lora_alpha": -1.0}, "alpha above 0"),
    ({"lora_dropout": 1.5}, "dropout from 0"),
    ({"layers_to_transform": [0]}, "unknown key 'layers_to_transform'"),
    ({"a_key_of_tomorrow": 1}, "a_key_of_tomorrow"),
    ({"target_modules": "(a+)+query"}, "target_modules: expected a list"),
    ({"target_modules": ["lstm"]}, "must name modules of this encoder"),
    ({"target_modules": ["layer.0.attention.self.query"]}, "leaves out bert.encoder.layer.1.attention"),
    ({"target_modules": ["query"]}, "don't account for: .*value"),
    ({"target_modules": ["query", "value", "key"]}, "lacks .*key.lora_A"),
    ({"modules_to_save": ["query"]}, "account for: .*query.lora_A"),
]


@pytest.mark.parametrize(("changes", "complaint"), SETTINGS)
def test_settings_that_are_not_computed_or_do_not_fit_are_refused(
    changes: dict[str, Any], complaint: str, folder: Path
) -> None:
    rewrite_settings(folder, **changes)
    assert_refused(folder, complaint)


TENSORS: list[tuple[Callable[[dict[str, Tensor]], object], str]] = [
    (lambda tensors: tensors.pop(f"{QUERY}.lora_A.weight"), "lacks bert.*query.lora_A"),
    (lambda tensors: tensors.update({"classifier.weight": torch.ones(2)}), "account for: classifier.weight"),
    (lambda tensors: tensors.update({f"{ROOT}classifier.weight": torch.ones(2)}), "account for: "),
    (
        lambda tensors: tensors.update(
            {f"{QUERY}.lora_A.weight".replace("layer.0", "layer.2"): torch.ones(2)}
        ),
        r"account for: .*layer\.2",
    ),
    (
        lambda tensors: tensors.update(
            {f"{QUERY}.lora_A.weight".replace(ROOT, f"{ROOT}bert."): torch.ones(2)}
        ),
        "account for: ",
    ),
    (
        lambda tensors: tensors.update({f"{QUERY}.lora_B.weight": torch.ones(4, 3)}),
        r"\(4, 2\), found \(4, 3\)",
    ),
    (lambda tensors: tensors[f"{QUERY}.lora_B.weight"].fill_(torch.nan), "not finite"),
    (
        lambda tensors: tensors.update({f"{QUERY}.lora_B.weight": torch.ones(4, 2, dtype=torch.int64)}),
        "must hold floating-point",
    ),
]


@pytest.mark.parametrize(("change", "complaint"), TENSORS)
def test_tensors_that_do_not_fit_are_refused(
    change: Callable[[dict[str, Tensor]], object], complaint: str, folder: Path
) -> None:
    rewrite_tensors(folder, change)
    assert_refused(folder, complaint)


def assert_refused(folder: Path, complaint: str) -> None:
    model = new_bert()
    with pytest.raises(ModelError, match=complaint):
        load_adapter(folder, model)
    assert lora_settings(model) is None
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_links_and_pickles_are_not_opened(folder: Path) -> None:
    weights = folder / "adapter_model.safetensors"
    weights.rename(folder.parent / "elsewhere")
    weights.symlink_to(folder.parent / "elsewhere")
    assert_refused(folder, "symbolic link")
    weights.unlink()
    (folder / "adapter_model.bin").write_bytes(b"\x80\x04.")
    assert_refused(folder, "can run code")


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
    save_adapter(folder, adapted_bert(("key",)), replace=True)
    model = new_bert()
    load_adapter(folder, model)
    assert lora_settings(model) == lora_settings(adapted_bert(("key",)))


def test_a_second_adapter_is_refused_and_the_first_stays(folder: Path) -> None:
    model = adapted_bert()
    before = {name: tensor.clone() for name, tensor in lora_tensors(model).items()}
    with pytest.raises(ModelError, match="has LoRA already"):
        load_adapter(folder, model)
    assert all(torch.equal(before[name], tensor) for name, tensor in lora_tensors(model).items())


def test_a_full_disk_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise SafetensorError("I/O error: No space left on device (os error 28)")

    monkeypatch.setattr(adapter, "save_file", full)
    with pytest.raises(ResourceError, match="The disk is full"):
        save_adapter(tmp_path / "adapter", adapted_bert())
    assert list(tmp_path.iterdir()) == []
