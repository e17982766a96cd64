"""The layers between a pooled vector and a text's vector, in the folders that sentence-transformers has for
them: 2_Dense/, 3_LayerNorm/, 4_Normalize/, and the weights of a WeightedLayerPooling before the pooling.
"""

from __future__ import annotations

import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertsmith.errors import ModelError
from bertsmith.files import tensors_written_to, write_json
from bertsmith.model.folder_keys import (
    DENSE,
    DENSE_ACTIVATIONS,
    DROPOUT,
    LAYER_NORM,
    NORMALIZE,
    WEIGHTED_LAYER_POOLING,
    FileKeys,
)
from bertsmith.model.sentence_files import torch_module_name
from bertsmith.model.untrusted import plain_file, read_settings, read_tensors

if TYPE_CHECKING:  # who computes without torch reads these folders too
    from torch import Tensor, nn

    from bertsmith.tasks.heads.pooling import Projection, ProjectionLayer

WEIGHTS = "model.safetensors"
WITHOUT_FILES = ("Normalize", "Dropout")  # their folder may be missing: Git and the hub keep no empty ones
LAYER_KEYS = {"Dense": DENSE, "LayerNorm": LAYER_NORM, "Normalize": NORMALIZE, "Dropout": DROPOUT}


@dataclass(frozen=True)
class SentenceModule:
    """A module of sentence-transformers: its class and its folder, which may be missing."""

    kind: str
    folder: Path


def read_projection(modules: Sequence[SentenceModule], width: int) -> Projection | None:
    """The layers H -> D behind the pooling of a model of this width, see `SentenceSettings.projection`; None
    without any.

    Raises ModelError for an activation that isn't torch's, layers that don't fit each other, and broken
    files.
    """
    from bertsmith.model.layers.initialisation import meta_init
    from bertsmith.tasks.heads.pooling import Projection, make_projection_layer

    layers: list[ProjectionLayer] = []
    inputs = width
    for module in modules:
        settings, where = read_layer_settings(module)
        layer = meta_init(lambda: make_projection_layer(module.kind, settings, where))  # noqa: B023
        outputs = layer.width(inputs)
        if outputs is None:
            raise ModelError(
                f"{where}: this {module.kind} is for vectors of {_inputs_of(layer)} dimensions, and what is "
                f"before it makes {inputs}. Use a folder whose files belong together."
            )
        _load_layer(layer, module.folder)
        layers.append(layer)
        inputs = outputs
    return Projection(layers).eval().requires_grad_(False) if layers else None


def _inputs_of(layer: ProjectionLayer) -> Any:
    return layer.settings.get("in_features", layer.settings.get("dimension"))


def read_layer_settings(module: SentenceModule) -> tuple[dict[str, Any], str]:
    """The keys of a layer's config.json that aren't null or about names, and the file's path."""
    if not (module.folder / "config.json").exists() and module.kind in WITHOUT_FILES:
        return {}, str(module.folder)
    path = plain_file(module.folder, "config.json")
    settings = read_checked(LAYER_KEYS[module.kind], path)
    if module.kind == "Dense":
        dotted_name = settings.get("activation_function", "torch.nn.Tanh")
        settings["activation_function"] = torch_module_name(dotted_name)
        if settings["activation_function"] not in DENSE_ACTIVATIONS:
            raise ModelError(
                f"{path}: activation_function is {reprlib.repr(dotted_name)}. Bertsmith computes "
                f"{', '.join(DENSE_ACTIVATIONS)} of torch.nn, and never imports what a file names. Use "
                "another model."
            )
    named = {key: value for key, value in settings.items() if value is not None and "module_" not in key}
    return named, str(path)


def _load_layer(layer: ProjectionLayer, folder: Path) -> None:
    """Loads a layer from its folder. Raises ModelError unless its file has just the layer's tensors."""
    expected = layer.state_dict()
    if not expected:
        return
    if not (folder / WEIGHTS).exists() and (folder / "pytorch_model.bin").exists():
        raise ModelError(
            f"{folder} holds a pytorch_model.bin, a format that can run code. Convert the model once, "
            f"safely: bertsmith import {folder.parent} --out NEW_FOLDER"
        )
    path = plain_file(folder, WEIGHTS)
    tensors = read_tensors(path)
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    wanted = {name: tuple(tensor.shape) for name, tensor in expected.items()}
    if shapes != wanted:
        raise ModelError(
            f"{path}: expected {_describe_shapes(wanted)}, as config.json says; found "
            f"{_describe_shapes(shapes)}. Use a folder whose files belong together."
        )
    for name, tensor in tensors.items():
        if not (tensor.is_floating_point() and bool(tensor.isfinite().all())):
            raise ModelError(f"{path}: a value of {name} isn't a finite number. Take another copy.")
    layer.load_state_dict({name: tensor.float() for name, tensor in tensors.items()}, assign=True)


def _describe_shapes(shapes: Mapping[str, tuple[int, ...]]) -> str:
    """The first tensors by name, with their shapes."""
    named = [f"{name[:40]} {shape}" for name, shape in sorted(shapes.items())[:4]]
    return ", ".join(named) + (" and more" if len(shapes) > 4 else "") or "no tensors"


def read_layer_weights(folder: Path, count: int) -> Tensor:
    """The weight of each of `count` hidden states, zero below the first layer that has one."""
    import torch

    path = plain_file(folder, "config.json")
    settings = read_checked(WEIGHTED_LAYER_POOLING, path)
    start, layers = settings.get("layer_start", 4), settings.get("num_hidden_layers", 12)
    tensors = read_tensors(plain_file(folder, WEIGHTS))
    weights, shapes = tensors.get("layer_weights"), {name: tuple(t.shape) for name, t in tensors.items()}
    expected = layers + 1 - start if type(start) is type(layers) is int else -1
    if weights is None or len(tensors) > 1 or weights.shape != (expected,) or not 0 <= start < count:
        raise ModelError(
            f"{path}: expected layer_start, num_hidden_layers, and a weight of each layer from one to the "
            f"other; found {reprlib.repr(start)}, {reprlib.repr(layers)} and {_describe_shapes(shapes)}. "
            "Use a folder whose files belong together."
        )
    if start + expected != count:
        raise ModelError(
            f"{path}: num_hidden_layers is {layers}, but the encoder has {count - 1} layers. Use a folder "
            "whose files belong together."
        )
    weights = weights.float()
    if not bool((weights / weights.sum()).isfinite().all()):
        raise ModelError(f"{folder}: the weights of the layers have no finite mean. Take another copy.")
    return torch.cat([torch.zeros(start), weights])


def read_checked(keys: FileKeys, path: Path) -> dict[str, Any]:
    """The content of a file. Raises ModelError for a key or value that `keys` doesn't accept."""
    settings = read_settings(path)
    keys.require(settings, str(path))
    return settings


def as_projection(linear: nn.Linear) -> Projection:
    """A linear layer as a Dense without an activation, on the same weights."""
    from bertsmith.model.layers.initialisation import meta_init
    from bertsmith.tasks.heads.pooling import Dense, Projection

    dense = meta_init(lambda: Dense(linear.in_features, linear.out_features, linear.bias is not None))
    dense.linear = linear
    return Projection([dense])


def write_layer(folder: Path, layer: ProjectionLayer) -> None:
    from safetensors.torch import save_file

    from bertsmith.tasks.heads.pooling import Dense

    folder.mkdir()
    settings = dict(layer.settings)
    if isinstance(layer, Dense):
        activation = type(layer.activation_function)
        settings["activation_function"] = f"{activation.__module__}.{activation.__name__}"
    if settings:
        write_json(folder / "config.json", settings)
    weights = {name: tensor.detach().contiguous() for name, tensor in layer.state_dict().items()}
    if weights:
        with tensors_written_to(folder / WEIGHTS):
            save_file(weights, folder / WEIGHTS)
