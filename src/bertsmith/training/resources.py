"""Checks before a run begins that it fits: memory for weights and a step, disk space for its checkpoints.

Everything is counted in bytes from shapes alone. `bertsmith plan` uses the same functions.
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
from bertsmith.model.cpu.grouped_attention import padded_length
from bertsmith.model.layers.attention import supports_flash_attention
from bertsmith.tasks.pretraining.objectives import PretrainedModel
from bertsmith.tasks.pretraining.replaced_tokens import ReplacedTokenModel
from bertsmith.training.machine import Machine
from bertsmith.training.optimizer import find_layer_matrices
from bertsmith.training.recipe import Recipe
from bertsmith.training.settings import OptimizerSettings
from bertsmith.training.tensor_file import SECTOR

_FLOAT = 4
# How many vectors of width hidden_size, and of width intermediate_size by the kind of feed-forward, the
# forward pass keeps for the backward pass, per token and layer.
_ACTIVATIONS_A_LAYER = 16
_WIDE_ACTIVATIONS = {"plain": 2, "gated": 3}
_DISTANCE_VALUES = 6  # as many for each row of the table of distances, and for each distance that is met
_STATE_FILE = 700  # bytes of state.json, which holds numbers and hashes alone
_HEADER_LENGTH = 8  # bytes: of the number before the header
_CHECKPOINT_BYTES = 12  # about: a weight's, and of its two moments


def require_resources(
    model: PretrainedModel, recipe: Recipe, machine: Machine, hardware: Hardware, out: Path
) -> None:
    """Raises ResourceError when the run needs more memory than there is, DiskFull when it needs more disk
    space; both name what is needed and what there is.
    """
    weights = sum(parameter.numel() for parameter in model.parameters())
    checkpoint = _CHECKPOINT_BYTES * weights
    written = 0
    for path in (out / "checkpoints").rglob("*"):
        with contextlib.suppress(OSError):  # another process may be removing partial checkpoints
            written += path.stat().st_size if path.is_file() else 0
    missing = (recipe.checkpoint.keep + 1) * checkpoint - written
    # the next checkpoint is written before an older one is removed
    disk_space = max(missing, checkpoint) + 4 * weights
    require_free_space(out, disk_space, "The run's checkpoints and model")
    needed = estimate_step_memory(model, recipe, machine).total
    if machine.device.type != "cuda":  # Apple's GPU shares the processor's memory
        available, owner = hardware.memory_available // machine.ranks.local_count, "this machine has free"
    else:
        available, owner = min(gpu.memory for gpu in hardware.gpus), "the GPU has"
    if needed > available:
        raise ResourceError(
            f"The run needs about {needed / 1e9:.1f} GB of memory ({weights / 1e6:.0f} M weights, "
            f"{machine.micro_batch_tokens:,} tokens at a time), but {owner} {available / 1e9:.1f} GB. "
            "Choose a smaller model.size or data.micro_batch_tokens."
        )


def require_room_to_save(model: nn.Module, out: Path) -> None:
    """Raises DiskFull when the model's weights don't fit on the disk of `out`; called before training."""
    weights = sum(parameter.numel() for parameter in model.parameters())
    require_free_space(out, 4 * weights, "Saving the model")


@dataclass(frozen=True)
class Memory:
    """The bytes of memory that training takes in the first process. `activations` is a rough bound, the
    others are exact.

    `copy` is the copy of the state that is being written as a checkpoint; of a model on a GPU it lies in the
    host's memory and counts as 0.
    """

    weights: int
    gradients: int
    moments: int
    copy: int
    activations: int

    @property
    def total(self) -> int:
        return self.weights + self.gradients + self.moments + self.copy + self.activations


def estimate_step_memory(model: PretrainedModel, recipe: Recipe, machine: Machine) -> Memory:
    """Estimates the memory that training takes. `model` may be on the meta device: only shapes are read.

    A process of a sharded model holds all weights as well, at the start and in evaluations.
    """
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    size = _FLOAT * sum(parameter.numel() for parameter in trained)
    weights = _FLOAT * sum(parameter.numel() for parameter in model.parameters())
    parts = machine.ranks.count if machine.sharded else 1
    state = list(_list_state_shapes(model, recipe.optimizer).values())
    moments = _FLOAT * (sum(math.prod(shape) for shape in state if shape) // parts + state.count(()))
    return Memory(
        weights=weights + weights // parts if machine.sharded else weights,
        gradients=size // parts,
        moments=moments,
        copy=weights // parts + moments if machine.device.type == "cpu" else 0,
        activations=estimate_activation_bytes(model, recipe, machine),
    )


def estimate_activation_bytes(model: PretrainedModel, recipe: Recipe, machine: Machine) -> int:
    """Estimates the bytes that the forward pass of one micro-batch keeps on a rank. Half precision needs half
    of that, and a copy of each weight.
    """
    config, itemsize = model.config, machine.precision.itemsize
    tokens = count_tokens_at_once(recipe, machine)
    encoders = [config, *([model.generator.config] if isinstance(model, ReplacedTokenModel) else [])]
    hidden = 0
    for encoder in encoders:
        values = _ACTIVATIONS_A_LAYER * encoder.hidden_size
        values += _WIDE_ACTIVATIONS[encoder.feed_forward] * encoder.intermediate_size
        hidden += itemsize * tokens * encoder.num_hidden_layers * values
    attention = sum(_estimate_attention_bytes(encoder, recipe, machine) for encoder in encoders)
    predicted_tokens = tokens * max(recipe.masking.mask_rate, recipe.masking.final_mask_rate or 0)
    candidates = min(recipe.loss.sampled_pieces or config.vocab_size, config.vocab_size)
    vocabulary = _FLOAT * predicted_tokens * candidates
    weights = (
        itemsize * sum(parameter.numel() for parameter in model.parameters()) if itemsize < _FLOAT else 0
    )
    return int(hidden + vocabulary + weights + attention)


def _estimate_attention_bytes(config: BertConfig, recipe: Recipe, machine: Machine) -> int:
    """Estimates the bytes of attention weights and their dropout mask, 0 where they aren't kept: for each
    token and head a row as long as the longest sequence, padded.
    """
    device, drops = machine.device.type, config.attention_probs_dropout_prob > 0
    is_plain = config.position_bias == "none" and not config.relative_attention
    has_flash = is_plain and supports_flash_attention(device, machine.precision, config.head_size)
    if has_flash or (device != "cpu" and not drops and not config.relative_attention):
        return 0
    longest = max(recipe.data.sequence_lengths)
    padded = padded_length(longest, machine.precision)
    copies = 1 + drops * (2 if config.relative_attention else 1)
    values = copies * config.num_attention_heads * padded * padded / longest
    kept = count_tokens_at_once(recipe, machine) * values
    if config.relative_attention:  # what is made of the table, and of each length's distances
        rows = 2 * config.relative_span[0] + 2 * sum(recipe.data.sequence_lengths)
        kept += config.hidden_size * _DISTANCE_VALUES * rows
    return int(kept * config.num_hidden_layers * machine.precision.itemsize)


def count_tokens_at_once(recipe: Recipe, machine: Machine) -> int:
    """How many tokens a rank computes at once: at most its share of the global batch, at least a sequence."""
    longest = max(recipe.data.sequence_lengths)
    share = -(-recipe.data.batch_size * longest // machine.ranks.count)
    return max(min(machine.micro_batch_tokens, share), longest)


def count_checkpoint_bytes(model: nn.Module, settings: OptimizerSettings) -> int:
    """The size in bytes of one checkpoint of a run: weights, moments, AdamW's step counts, files' headers."""
    weights = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    moments = _list_state_shapes(model, settings)
    return _count_safetensors_bytes(weights) + _count_safetensors_bytes(moments) + _STATE_FILE


def _list_state_shapes(model: nn.Module, settings: OptimizerSettings) -> dict[str, tuple[int, ...]]:
    """The shapes of the optimiser's state by name: two moments and a count of steps for each of AdamW's
    parameters, one moment for each of Muon's.
    """
    muon_weights = find_layer_matrices(model) if settings.kind == "muon" else {}
    shapes: dict[str, tuple[int, ...]] = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            moments = ("momentum_buffer",) if name in muon_weights else ("exp_avg", "exp_avg_sq")
            shapes |= {f"{name}.{moment}": tuple(parameter.shape) for moment in moments}
            if name not in muon_weights:
                shapes[f"{name}.step"] = ()
    return shapes


def _count_safetensors_bytes(shapes: Mapping[str, tuple[int, ...]]) -> int:
    """The size of a safetensors file as `tensor_file` writes it: a JSON header padded to whole sectors, then
    the tensors in float32.
    """
    header: dict[str, object] = {}
    end = 0
    for name, shape in shapes.items():
        start, end = end, end + _FLOAT * int(torch.Size(shape).numel())
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [start, end]}
    length = len(json.dumps(header, separators=(",", ":")))
    return -(-(_HEADER_LENGTH + length) // SECTOR) * SECTOR + end
