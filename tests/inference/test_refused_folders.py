"""Folders that aren't computed yet say what they are, and what to do instead."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from bertsmith.errors import ModelError
from bertsmith.inference.embedding.embedder import Embedder
from bertsmith.model.legacy import convert_legacy
from sentence_folders import POOLING, TRANSFORMER, WIDTH, save_sentence_folder, write

DENSE = {"in_features": WIDTH, "out_features": 4}


@pytest.mark.parametrize(
    ("behind", "sentence"),
    [
        *(
            ([POOLING, ("Dense", DENSE | {"activation_function": name})], f"is {name!r}. .* never imports")
            for name in (
                "os.system",
                "torch.tanh",
                "torch.hub.load",
                "torch.nn.GLU",
                "Tanh",
                "a.torch.nn.Tanh",
            )
        ),
        ([POOLING, ("Dense", DENSE | {"activation_function": 5})], "activation_function is 5"),
        ([POOLING, ("Dense", DENSE | {"out_features": 0})], "out_features = 0"),
        ([POOLING, ("Dense", DENSE | {"use_residual": 1})], "use_residual = 1"),
        ([POOLING, ("Dense", DENSE | {"in_features": 8})], "is for vectors of 8 dimensions, .* makes 16"),
        ([POOLING, ("Dense", DENSE), ("LayerNorm", {"dimension": 5})], "of 5 dimensions, .* makes 4"),
        ([POOLING, ("Dropout", {"dropout": 2})], "dropout = 2"),
        ([("Pooling", {"pooling_mode": "lasttoken"})], "expected one pooling of .*; found lasttoken"),
        ([("Pooling", {"pooling_mode": ["cls", "mean"]})], "found cls and mean"),
        (
            [("Pooling", {"pooling_mode_weightedmean_tokens": True})],
            "pooling_mode_weightedmean_tokens is True",
        ),
        ([POOLING, ("LayerNorm", {})], "2_LayerNorm has no config.json"),
        ([POOLING, ("Router", {})], "a module Router, which sends queries and documents through different"),
        ([POOLING, ("Asym", {})], "a module Asym, which sends queries and documents through different"),
        ([("CNN", {}), POOLING], "a module CNN, which convolves the vectors of tokens"),
        ([("LSTM", {}), POOLING], "a module LSTM, which reads the vectors of tokens one after the other"),
        ([POOLING, ("SpladePooling", {})], "a module SpladePooling, which Bertsmith doesn't compute yet"),
    ],
)
def test_an_embedding_model_of_other_modules_names_the_first(
    tmp_path: Path, behind: list[tuple[str, dict[str, object]]], sentence: str
) -> None:
    folder = save_sentence_folder(tmp_path / "model", [TRANSFORMER, *behind])
    with pytest.raises(ModelError, match=sentence):
        Embedder(folder)


@pytest.mark.parametrize("kind", ["WordEmbeddings", "BoW", "WordWeights"])
def test_what_stands_in_an_encoder_s_place_is_named(tmp_path: Path, kind: str) -> None:
    folder = save_sentence_folder(tmp_path / "model", [(kind, {}), POOLING])
    with pytest.raises(ModelError, match=f"a module {kind}, which .*: Bertsmith doesn't compute that"):
        Embedder(folder)


@pytest.mark.parametrize(
    "modules",
    [
        [TRANSFORMER, ("Normalize", {}), POOLING],
        [POOLING, TRANSFORMER],
        [("Normalize", {}), TRANSFORMER, POOLING],
    ],
)
def test_modules_in_another_order_are_refused(
    tmp_path: Path, modules: list[tuple[str, dict[str, object]]]
) -> None:
    """sentence-transformers 6.2 computes the first without normalising, and can't load the others."""
    folder = save_sentence_folder(tmp_path / "model", modules)
    order = ", ".join(kind for kind, _ in modules)
    with pytest.raises(
        ModelError, match=f"has its modules in the order {order}, .* Transformer and Pooling first"
    ):
        Embedder(folder)


@pytest.mark.parametrize("module", [0, 1])
def test_a_module_of_a_packages_own_is_not_taken_for_the_librarys(tmp_path: Path, module: int) -> None:
    """sentence-transformers runs its code, or refuses the folder where it mayn't."""
    folder = save_sentence_folder(tmp_path / "model")
    modules = json.loads((folder / "modules.json").read_text())
    modules[module]["type"] = f"custom_st.{modules[module]['type'].rpartition('.')[2]}"
    write(folder / "modules.json", modules)
    with pytest.raises(ModelError, match=r"'custom_st.* is a module with code of its own"):
        Embedder(folder)


@pytest.mark.parametrize(
    "names",
    [
        ("model-00001-of-00002.safetensors", "model.safetensors.index.json"),
        ("pytorch_model-00001-of-00002.bin", "pytorch_model.bin.index.json"),
    ],
)
def test_weights_in_several_files_say_how_they_become_one(tmp_path: Path, names: tuple[str, str]) -> None:
    folder = save_sentence_folder(tmp_path / "model")
    (folder / "model.safetensors").rename(folder / names[0])
    write(folder / names[1], {"weight_map": {}})
    with pytest.raises(ModelError, match="in several files, which Bertsmith doesn't read yet"):
        Embedder(folder)
    if names[0].endswith(".bin"):
        torch.save(load_file(folder / names[0]), folder / names[0])
        with pytest.raises(ModelError, match="in several files, which Bertsmith doesn't read yet"):
            convert_legacy(folder, tmp_path / "new")
