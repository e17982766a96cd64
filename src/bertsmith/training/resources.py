"""Whether a run fits, known before it begins: memory for weights and a step, disk for its checkpoints.

All is counted from shapes alone, in bytes; `bertsmith plan` counts by the same.
"""

import contextlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from bertsmith.errors import ResourceError
from bertsmith.files import require_free_space
from bertsmith.machine import Hardware
from bertsmith.model.config import BertConfig
from bertsmith.model.cpu.grouped_attention import filled_length
from bertsmith.model.layers.attention import takes_flash_attention
from bertsmith.tasks.pretraining.objectives import PretrainedModel
from bertsmith.tasks.pretraining.replaced_tokens import ReplacedTokenModel
from bertsmith.training.machine import Machine
from bertsmith.training.optimizer import layer_matrices
from bertsmith.training.recipe import Recipe
from bertsmith.training.settings import OptimizerSettings
from bertsmith.training.tensor_file import SECTOR

_FLOAT = 4
_ACTIVATIONS_A_LAYER = 16  # values of width H kept for the backward pass, a token and layer; and of width I:
_WIDE_ACTIVATIONS = {"plain": 2, "gated": 3}
_STATE_FILE = 700  # bytes of state.json, which holds numbers and hashes alone
_HEADER_LENGTH = 8  # bytes: of the number before the header
_CHECKPOINT_BYTES = 12  # about: a weight's, and of its two moments


def require_resources(
    model: PretrainedModel, recipe: Recipe, machine: Machine, hardware: Hardware, out: Path
) -> None:
    """Raises ResourceError with what is needed and what there is, DiskFull where that is disk."""
    weights = sum(parameter.numel() for parameter in model.parameters())
    checkpoint = _CHECKPOINT_BYTES * weights
    there = 0
    for path in (out / "checkpoints").rglob("*"):
        with contextlib.suppress(OSError):  # another process may be taking partial ones away
            there += path.stat().st_size if path.is_file() else 0
    lacking = (recipe.checkpoint.keep + 1) * checkpoint - there
    on_disk = max(lacking, checkpoint) + 4 * weights  # the next one is written before an older one goes
    require_free_space(out, on_disk, "The run's checkpoints and model")
    needed = step_memory(model, recipe, machine).total
    if machine.device.type == "cpu":
        available, where = hardware.memory_available // machine.ranks.local_count, "this machine has free"
    else:
        available, where = min(gpu.memory for gpu in hardware.gpus), "the GPU has"
    if needed > available:
        raise ResourceError(
            f"The run needs about {needed / 1e9:.1f} GB of memory ({weights / 1e6:.0f} M weights, "
            f"{machine.micro_batch_tokens:,} tokens at a time), but {where} {available / 1e9:.1f} GB. "
            "Choose a smaller model.size or data.micro_batch_tokens."
        )


def require_room_to_save(model: nn.Module, out: Path) -> None:
    """Raises DiskFull where the weights wouldn't find room in `out`, known before they are trained."""
    weights = sum(parameter.numel() for parameter in model.parameters())
    require_free_space(out, 4 * weights, "Saving the model")


@dataclass(frozen=True)
class Memory:
    """Of one process, the first. `activations` is a rough bound, the rest is exact.

    `copy` is of the checkpoint that is written beside the training; a GPU's lies in the host's memory.
    """

    weights: int
    gradients: int
    moments: int
    copy: int
    activations: int

    @property
    def total(self) -> int:
        return self.weights + self.gradients + self.moments + self.copy + self.activations


def step_memory(model: PretrainedModel, recipe: Recipe, machine: Machine) -> Memory:
    """What training takes. `model` may be a blueprint: nothing but shapes is read.

    A process that holds a part of everything has all weights as well, at the start and in an evaluation.
    """
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    size = _FLOAT * sum(parameter.numel() for parameter in trained)
    weights = _FLOAT * sum(parameter.numel() for parameter in model.parameters())
    parts = machine.ranks.count if machine.sharded else 1
    state = list(_state_shapes(model, recipe.optimizer).values())
    moments = _FLOAT * (sum(math.prod(shape) for shape in state if shape) // parts + state.count(()))
    return Memory(
        weights=weights + weights // parts if machine.sharded else weights,
        gradients=size // parts,
        moments=moments,
        copy=weights // parts + moments if machine.device.type == "cpu" else 0,
        activations=activation_bytes(model, recipe, machine),
    )


def activation_bytes(model: PretrainedModel, recipe: Recipe, machine: Machine) -> int:
    """Roughly what the forward pass of one micro-batch of a rank keeps; in half precision that is half of it,
    and each weight once more.
    """
    config, each = model.config, machine.precision.itemsize
    tokens = tokens_at_once(recipe, machine)
    encoders = [config, *([model.generator.config] if isinstance(model, ReplacedTokenModel) else [])]
    hidden = 0
    for encoder in encoders:
        a_layer = _ACTIVATIONS_A_LAYER * encoder.hidden_size
        a_layer += _WIDE_ACTIVATIONS[encoder.feed_forward] * encoder.intermediate_size
        hidden += each * tokens * encoder.num_hidden_layers * a_layer
    attention = sum(_attention_bytes(encoder, recipe, machine) for encoder in encoders)
    predicted = tokens * max(recipe.masking.mask_rate, recipe.masking.final_mask_rate or 0)
    pieces = min(recipe.loss.sampled_pieces or config.vocab_size, config.vocab_size)
    vocabulary = _FLOAT * predicted * pieces
    weights = each * sum(parameter.numel() for parameter in model.parameters()) if each < _FLOAT else 0
    return int(hidden + vocabulary + weights + attention)


def _attention_bytes(config: BertConfig, recipe: Recipe, machine: Machine) -> int:
    """Attention weights and their dropout mask, where they are kept: a row of values a token and head, as
    long as the longest sequence filled up.
    """
    device, drops = machine.device.type, config.attention_probs_dropout_prob > 0
    if takes_flash_attention(device, machine.precision, config.head_size) or (device != "cpu" and not drops):
        return 0
    longest = max(recipe.data.sequence_lengths)
    filled = filled_length(longest, machine.precision)
    values = (1 + drops) * config.num_attention_heads * filled * filled / longest
    each = machine.precision.itemsize
    return int(tokens_at_once(recipe, machine) * config.num_hidden_layers * each * values)


def tokens_at_once(recipe: Recipe, machine: Machine) -> int:
    """Of one rank: no more than its share of the global batch, no fewer than a sequence."""
    longest = max(recipe.data.sequence_lengths)
    share = -(-recipe.data.batch_size * longest // machine.ranks.count)
    return max(min(machine.micro_batch_tokens, share), longest)


def checkpoint_bytes(model: nn.Module, settings: OptimizerSettings) -> int:
    """Of one checkpoint of a run: weights, moments, AdamW's step counts, and the files' headers."""
    weights = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    moments = _state_shapes(model, settings)
    return _safetensors_bytes(weights) + _safetensors_bytes(moments) + _STATE_FILE


def _state_shapes(model: nn.Module, settings: OptimizerSettings) -> dict[str, tuple[int, ...]]:
    """Of the optimiser's state: two moments of AdamW's and a count of steps, or one of Muon's."""
    muons = layer_matrices(model) if settings.kind == "muon" else {}
    shapes: dict[str, tuple[int, ...]] = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            moments = ("momentum_buffer",) if name in muons else ("exp_avg", "exp_avg_sq")
            shapes |= {f"{name}.{moment}": tuple(parameter.shape) for moment in moments}
            if name not in muons:
                shapes[f"{name}.step"] = ()
    return shapes


def _safetensors_bytes(shapes: Mapping[str, tuple[int, ...]]) -> int:
    """A header of JSON in whole sectors, then the tensors' values: as `tensor_file` writes them."""
    header: dict[str, object] = {}
    end = 0
    for name, shape in shapes.items():
        start, end = end, end + _FLOAT * int(torch.Size(shape).numel())
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [start, end]}
    length = len(json.dumps(header, separators=(",", ":")))
    return -(-(_HEADER_LENGTH + length) // SECTOR) * SECTOR + end
