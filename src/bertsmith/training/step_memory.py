"""The memory of one GPU and the size of a checkpoint, from names and shapes alone. Bytes."""

import json
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import nn

from bertsmith.tasks.pretraining import PretrainingModel
from bertsmith.training.distributed import Ranks
from bertsmith.training.machine import Machine
from bertsmith.training.recipe import Recipe
from bertsmith.training.resources import step_bytes

_FLOAT = 4
_MOMENTS = ("exp_avg", "exp_avg_sq")
_STATE_FILE = 700  # bytes of state.json, which holds numbers and hashes alone
_HEADER_LENGTH, _HEADER_ALIGNMENT = 8, 8


@dataclass(frozen=True)
class Memory:
    """Of one GPU. The first three are exact; `activations` is the rough bound that a run checks itself by."""

    weights: int
    gradients: int
    moments: int
    activations: int

    @property
    def total(self) -> int:
        return self.weights + self.gradients + self.moments + self.activations


def step_memory(model: PretrainingModel, recipe: Recipe, micro_batch_tokens: int, gpus: int = 1) -> Memory:
    """What training takes. `model` may be a blueprint: nothing but shapes is read."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    size = _FLOAT * sum(parameter.numel() for parameter in trained)
    weights = _FLOAT * sum(parameter.numel() for parameter in model.parameters())
    machine = Machine(torch.device("cpu"), torch.float32, 1.0, Ranks(0, gpus), micro_batch_tokens)
    activations = step_bytes(model, recipe, machine)
    return Memory(weights, size, 2 * size + _FLOAT * len(trained), activations)


def checkpoint_bytes(model: nn.Module) -> int:
    """Of one checkpoint of a run: weights, AdamW's moments and step counts, and the files' headers."""
    weights = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    moments: dict[str, tuple[int, ...]] = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            moments |= {f"{name}.{moment}": tuple(parameter.shape) for moment in _MOMENTS}
            moments[f"{name}.step"] = ()
    return _safetensors_bytes(weights) + _safetensors_bytes(moments) + _STATE_FILE


def _safetensors_bytes(shapes: Mapping[str, tuple[int, ...]]) -> int:
    """A header of JSON, then the tensors' values: the format as its README gives it."""
    header: dict[str, object] = {}
    end = 0
    for name, shape in shapes.items():
        start, end = end, end + _FLOAT * int(torch.Size(shape).numel())
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [start, end]}
    length = len(json.dumps(header, separators=(",", ":")))
    return _HEADER_LENGTH + length + -length % _HEADER_ALIGNMENT + end
