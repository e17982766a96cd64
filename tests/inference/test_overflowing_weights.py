"""Finite weights whose states overflow: one sentence wherever a model is used, and nothing is written."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from test_predictor import saved_model

from bertsmith.cli.main import main
from bertsmith.errors import NotFinite
from bertsmith.inference.embedding.embedder import Embedder
from bertsmith.inference.embedding.vectors import normalised
from bertsmith.inference.features import Features
from bertsmith.inference.masked_language import MaskedLanguageModel
from bertsmith.inference.predictor import Predictor
from bertsmith.model.checkpoint import load_encoder
from bertsmith.model.manifest import read_verified_manifest, write_manifest
from bertsmith.tasks.pretraining.pretraining import PretrainingModel
from bertsmith.text.tokens.tokenizer import Tokenizer

WIDENING = "encoder.layer.0.intermediate.dense.weight"
READERS: dict[str, Callable[[Path], Callable[[list[str]], Any]]] = {
    "documents": lambda folder: Embedder(folder, compute_dtype=torch.float32).documents,
    "predict": lambda folder: Predictor.load(folder).predict,
    "encode": lambda folder: Features(folder).encode,
}


@pytest.fixture(scope="module")
def spoilt(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("large") / "model"
    return with_large_weights(saved_model(place, "classification", ["no", "yes"], heads=1))


@pytest.fixture(scope="module")
def spoilt_encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("large") / "encoder"
    return with_large_weights(saved_model(place, "similarity", [0.0, 1.0], pair=True, heads=1))


def with_large_weights(folder: Path) -> Path:
    manifest = read_verified_manifest(folder)
    assert manifest is not None
    tensors = load_file(folder / "model.safetensors")
    (name,) = (name for name in tensors if name.endswith(WIDENING))
    tensors[name] = large_weights(tensors[name])
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    write_manifest(folder, manifest)
    return folder


def large_weights(weights: torch.Tensor) -> torch.Tensor:
    """Of both signs: with equal ones the products are a layer norm's sum, zero but for rounding."""
    signs = torch.randint(0, 2, weights.shape, generator=torch.Generator().manual_seed(0)) * 2 - 1
    return signs.to(weights.dtype) * 1e37


@pytest.mark.parametrize("name", READERS)
def test_values_that_are_not_finite_are_refused(
    spoilt: Path, spoilt_encoder: Path, name: str, inference_way: str
) -> None:
    folder = spoilt_encoder if name == "documents" else spoilt
    with pytest.raises(NotFinite, match=r"expected to give finite values, but they overflow: its weights"):
        READERS[name](folder)(["bano delo", "firu"])


def test_vectors_in_int16_are_refused_too(spoilt_encoder: Path, inference_way: str) -> None:
    if inference_way == "torch":
        pytest.skip("products in int16 are the kernels'")
    with pytest.raises(NotFinite, match="overflow"):
        Embedder(spoilt_encoder, compute_dtype=torch.int16).documents(["bano delo", "firu"])


def test_the_commands_say_so_and_write_nothing(
    spoilt: Path, spoilt_encoder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "in.csv").write_text("text,label\nbano,yes\ndelo firu,no\n")
    for command in (
        ["embed", str(spoilt_encoder), str(tmp_path / "in.csv"), "--out", str(tmp_path / "out.parquet")],
        ["predict", str(spoilt), str(tmp_path / "in.csv"), "--out", str(tmp_path / "out.jsonl")],
        ["evaluate", str(spoilt), str(tmp_path / "in.csv")],
    ):
        assert main(command) == 2
        shown = capsys.readouterr()
        assert "The model was expected to give finite values" in " ".join(shown.err.split())
        assert shown.out == ""
        assert not list(tmp_path.glob("out*"))


def test_masks_are_not_filled_with_what_is_no_number(tiny_bert: Path, tiny_tokenizer: Tokenizer) -> None:
    model = PretrainingModel(load_encoder(tiny_bert).config)
    widening = model.encoder.layers[0].feed_forward.up.weight
    widening.data.copy_(large_weights(widening.data))
    with pytest.raises(NotFinite, match="overflow"):
        MaskedLanguageModel(model.eval(), tiny_tokenizer).fill_mask("red [MASK]")


def test_vectors_too_long_for_their_length_are_refused() -> None:
    with pytest.raises(NotFinite, match="too long for float32"):
        normalised(torch.full((1, 4), 1e30).numpy())


def test_no_tensor_of_the_largest_numbers_traces_back(tiny_bert: Path, tiny_tokenizer: Tokenizer) -> None:
    """Each by itself, as 3e38, is within float32: what comes of it is finite, or refused."""
    torch.manual_seed(0)
    model = PretrainingModel(load_encoder(tiny_bert).config).eval()
    asked, refused = MaskedLanguageModel(model, tiny_tokenizer), 0
    for parameter in model.parameters():
        before = parameter.detach().clone()
        parameter.data.fill_(3e38)
        try:
            (candidates,) = asked.fill_mask("red [MASK]")
            assert all(0 <= candidate.probability <= 1 for candidate in candidates)
        except NotFinite:
            refused += 1
        parameter.data.copy_(before)
    assert refused > 5
