"""A model folder: strict when read, whole or absent when written."""

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from model_folders import QUERY, SPECIAL, WORDS, rewrite_config, rewrite_tensors, tiny_config
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from bertsmith.errors import InputError, ModelError, ResourceError
from bertsmith.files import tensors_written_to
from bertsmith.model.checkpoint import load_encoder, read_checkpoint, save_checkpoint
from bertsmith.tasks.pretraining.pretraining import PretrainingModel
from bertsmith.tasks.pretraining.pretraining_checkpoint import load_pretraining_model, save_pretraining_model
from bertsmith.text.tokens.tokenizer import Tokenizer


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.pop("bert.embeddings.LayerNorm.bias"), r"missing bert\.embeddings\.LayerNorm\.bias"),
        (lambda t: t.update({WORDS: torch.ones(12, 4)}), rf"{WORDS} must have .* \(11, 4\), found \(12, 4\)"),
        (lambda t: t.update({"bert.stray": torch.ones(1)}), r"doesn't have: bert\.stray"),
        (
            lambda t: t.update({"bert.pooler.dense.gamma.weight": torch.ones(1)}),
            r"doesn't have: bert\.pooler\.dense\.gamma\.weight",
        ),
        (lambda t: t.update({WORDS: t[WORDS].log()}), rf"not finite in {WORDS}"),
        (lambda t: t[QUERY].fill_(float("inf")), rf"not finite in .*{QUERY}"),
        (lambda t: t.update({WORDS: torch.ones(11, 4).int()}), rf"{WORDS} is int32; expected float32"),
        (lambda t: t.update({WORDS: torch.tensor(1.0)}), rf"{WORDS} must have .* \(11, 4\), found \(\)"),
        (lambda t: t.update({QUERY: torch.ones(4, 5)}), "pieces of one stack must have one shape"),
    ],
)  # fmt: skip
def test_a_tensor_that_does_not_fit_is_named(
    foreign_folder: Path, change: Callable[[dict[str, Tensor]], None], message: str
) -> None:
    rewrite_tensors(foreign_folder, change)
    with pytest.raises(ModelError, match=message):
        load_pretraining_model(foreign_folder)


def test_every_misfit_is_named_at_once(foreign_folder: Path) -> None:
    def change(tensors: dict[str, Tensor]) -> None:
        del tensors["bert.embeddings.LayerNorm.bias"]
        tensors["cls.seq_relationship.bias"] = torch.ones(3)

    rewrite_tensors(foreign_folder, change)
    with pytest.raises(ModelError, match=r"missing .*LayerNorm\.bias; cls\.seq_relationship\.bias must have"):
        load_pretraining_model(foreign_folder)


def test_a_config_of_another_shape_is_found_before_memory_is_taken(foreign_folder: Path) -> None:
    """65,536 x 2,000,000 values would be 524 GB."""
    rewrite_config(foreign_folder, hidden_size=65_536, vocab_size=2_000_000)
    with pytest.raises(ModelError, match=r"must have the shape \(8, 65536\), found \(8, 4\)"):
        load_encoder(foreign_folder)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_float_types_become_float32_and_it_is_said(foreign_folder: Path, dtype: torch.dtype) -> None:
    before = load_file(foreign_folder / "model.safetensors")
    rewrite_tensors(foreign_folder, lambda t: t.update({name: value.to(dtype) for name, value in t.items()}))
    model, notes = load_pretraining_model(foreign_folder)
    assert {value.dtype for value in model.state_dict().values()} == {torch.float32}
    assert torch.equal(model.encoder.embeddings.token.weight, before[WORDS].to(dtype).float())
    assert notes == (f"{len(before)} tensors were {str(dtype).removeprefix('torch.')} and are now float32",)


def test_a_float64_value_beyond_float32_is_not_finite(foreign_folder: Path) -> None:
    rewrite_tensors(
        foreign_folder, lambda t: t.update({WORDS: torch.full((11, 4), 1e300, dtype=torch.float64)})
    )
    with pytest.raises(ModelError, match="not finite"):
        load_pretraining_model(foreign_folder)


def encoder_only(folder: Path) -> None:
    rewrite_tensors(folder, lambda t: [t.pop(name) for name in list(t) if name.startswith("cls.")])


def test_a_folder_without_the_head_is_refused_unless_it_may_be_new(foreign_folder: Path) -> None:
    encoder_only(foreign_folder)
    with pytest.raises(ModelError, match=r"has no masked-language head\. Pre-train it first"):
        load_pretraining_model(foreign_folder)
    torch.manual_seed(5)
    model, notes = load_pretraining_model(foreign_folder, allow_new_heads=True)
    assert model.next_sentence is not None
    assert "no masked-language head, next-sentence head: starting from random weights" in notes[0]
    assert 0 < float(model.masked_language.dense.weight.detach().abs().max()) <= 0.04  # two deviations
    assert model.masked_language.is_new and not model.masked_language.bias.any()
    before = load_file(foreign_folder / "model.safetensors")
    assert torch.equal(model.encoder.embeddings.token.weight, before[WORDS])


def test_a_missing_encoder_tensor_is_never_made_up(foreign_folder: Path) -> None:
    encoder_only(foreign_folder)
    rewrite_tensors(foreign_folder, lambda t: [t.pop("bert.encoder.layer.0.output.dense.bias")])
    with pytest.raises(ModelError, match=r"missing .*output\.dense\.bias"):
        load_pretraining_model(foreign_folder, allow_new_heads=True)


def test_half_a_head_is_never_filled_up(foreign_folder: Path) -> None:
    rewrite_tensors(foreign_folder, lambda t: [t.pop("cls.predictions.transform.dense.bias")])
    with pytest.raises(ModelError, match=r"missing cls\.predictions\.transform\.dense\.bias"):
        load_pretraining_model(foreign_folder, allow_new_heads=True)


def test_next_sentence_prediction_can_be_left_out(model_folder: Path) -> None:
    model, notes = load_pretraining_model(model_folder, next_sentence=False)
    assert model.next_sentence is None
    assert model.encoder.pooler is None
    assert "next-sentence head, pooler" in notes[0]


def test_a_family_without_next_sentence_prediction_gets_no_such_head(tmp_path: Path) -> None:
    """It could be trained for days and then not be saved."""
    config = tiny_config(model_type="roberta", type_vocab_size=1)
    save_pretraining_model(tmp_path / "model", PretrainingModel(config), None, {})
    with pytest.raises(ModelError, match=r"A roberta model has no next-sentence prediction"):
        load_pretraining_model(tmp_path / "model", next_sentence=True, allow_new_heads=True)
    model, notes = load_pretraining_model(tmp_path / "model", allow_new_heads=True)
    assert (model.next_sentence, notes) == (None, ())


def test_an_encoder_without_a_pooler_has_none(foreign_folder: Path) -> None:
    rewrite_tensors(foreign_folder, lambda t: [t.pop(name) for name in list(t) if "pooler" in name])
    assert load_encoder(foreign_folder).pooler is None


def test_models_are_loaded_ready_to_predict(model_folder: Path) -> None:
    assert not load_encoder(model_folder).training
    model, _ = load_pretraining_model(model_folder)
    assert not model.training
    assert all(parameter.requires_grad and not parameter.is_meta for parameter in model.parameters())


def test_loading_draws_no_random_number(model_folder: Path) -> None:
    before = torch.random.get_rng_state()
    load_pretraining_model(model_folder)
    load_encoder(model_folder)
    assert torch.equal(torch.random.get_rng_state(), before)


class FailingTokenizer:
    """Stands for a disk that fills up after the weights were written."""

    vocab_size = 5

    def save(self, folder: Path, *, segments: bool = True, max_length: int = 512) -> None:
        raise RuntimeError("in the middle")


def test_a_failure_in_the_middle_leaves_the_old_model_and_nothing_else(model_folder: Path) -> None:
    before = {path.name: path.read_bytes() for path in model_folder.iterdir()}
    with pytest.raises(RuntimeError, match="in the middle"):
        save_pretraining_model(
            model_folder, PretrainingModel(tiny_config()), FailingTokenizer(), {}, overwrite=True
        )
    assert {path.name: path.read_bytes() for path in model_folder.iterdir()} == before
    assert list(model_folder.parent.iterdir()) == [model_folder]


def test_an_existing_folder_is_replaced_only_when_asked(model_folder: Path) -> None:
    model = PretrainingModel(tiny_config())
    with pytest.raises(InputError, match="already exists"):
        save_pretraining_model(model_folder, model, None, {})
    save_pretraining_model(model_folder, model, None, {}, overwrite=True)
    assert not (model_folder / "vocab.txt").exists()


def test_a_broken_model_is_not_saved(tmp_path: Path) -> None:
    model = PretrainingModel(tiny_config())
    model.encoder.embeddings.norm.bias.data[1] = float("nan")
    with pytest.raises(ModelError, match=r"not saved: bert\.embeddings\.LayerNorm\.bias holds values"):
        save_pretraining_model(tmp_path / "model", model, None, {})
    assert list(tmp_path.iterdir()) == []


def test_a_tokenizer_of_another_model_is_not_saved(tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_pieces([*SPECIAL, *"abcdefg"], lowercase=True)
    with pytest.raises(ModelError, match="12 pieces, the model only 11 rows"):
        save_pretraining_model(tmp_path / "model", PretrainingModel(tiny_config()), tokenizer, {})


def test_an_architecture_without_its_head_is_not_saved(tmp_path: Path) -> None:
    model = PretrainingModel(tiny_config(), next_sentence=False)
    with pytest.raises(ModelError, match="A BertForPreTraining needs next_sentence"):
        save_checkpoint(tmp_path / "m", model.state_dict(), model.config, "BertForPreTraining", task="x")


def test_provenance_comes_back(model_folder: Path) -> None:
    manifest = read_checkpoint(model_folder).manifest
    assert manifest is not None
    assert (manifest.provenance, manifest.task) == ({"steps": 3}, "pretraining")
    there = {path.name for path in model_folder.iterdir()}
    assert set(manifest.files) == there - {"bertsmith.json", "README.md"}


def test_a_full_disk_leaves_the_model_that_was_there(
    model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def half_written(tensors: dict[str, Tensor], path: Path, metadata: dict[str, str]) -> None:
        path.write_bytes(b"half")
        raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")

    before = {path.name: path.read_bytes() for path in model_folder.iterdir()}
    monkeypatch.setattr("bertsmith.model.checkpoint.save_file", half_written)
    with pytest.raises(ResourceError, match=r"The disk is full: .*model was not written"):
        save_pretraining_model(model_folder, PretrainingModel(tiny_config()), None, {}, overwrite=True)
    assert {path.name: path.read_bytes() for path in model_folder.iterdir()} == before
    assert list(model_folder.parent.glob(".*")) == []


def test_what_stopped_safetensors_is_known_by_its_number(tmp_path: Path) -> None:
    """The system's own words, as this version of safetensors passes them on."""
    with pytest.raises(IsADirectoryError), tensors_written_to(tmp_path):
        save_file({"weight": torch.ones(2)}, tmp_path)


@pytest.mark.parametrize(("umask", "expected"), [(0o022, 0o644), (0o027, 0o640), (0o077, 0o600)])
def test_files_have_the_mode_that_the_umask_says(tmp_path: Path, umask: int, expected: int) -> None:
    """safetensors makes files for their owner alone: a service of another user couldn't read the model."""
    before = os.umask(umask)
    try:
        save_pretraining_model(tmp_path / "model", PretrainingModel(tiny_config()), None, {})
    finally:
        os.umask(before)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "model").iterdir()}
    names = "config.json", "model.safetensors", "bertsmith.json", "README.md"
    assert modes == dict.fromkeys(names, expected)
