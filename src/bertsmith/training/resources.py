"""Whether a run fits before it begins: memory for weights and a step, disk for its checkpoints. Bytes."""

from pathlib import Path

from bertsmith.errors import ResourceError
from bertsmith.files import require_free_space
from bertsmith.tasks.pretraining import PretrainingModel
from bertsmith.training.hardware import Hardware
from bertsmith.training.machine import Machine
from bertsmith.training.recipe import Recipe

_BYTES_A_WEIGHT = 16  # float32 weight, gradient and AdamW's two moments
_ACTIVATIONS_A_LAYER = 24  # values of width H kept for the backward pass, a token and layer (post-norm, GELU)


def require_resources(
    model: PretrainingModel, recipe: Recipe, machine: Machine, hardware: Hardware, out: Path
) -> None:
    """Raises ResourceError with what is needed and what there is."""
    weights = sum(parameter.numel() for parameter in model.parameters())
    on_disk = (recipe.checkpoint.keep + 1) * 12 * weights + 4 * weights
    require_free_space(out, on_disk, "The run's checkpoints and model")
    needed = weight_bytes(weights, machine) + step_bytes(model, recipe, machine)
    if machine.device.type == "cpu":
        available, where = hardware.memory_available // machine.ranks.count, "this machine has free"
    else:
        available, where = min(gpu.memory for gpu in hardware.gpus), "the GPU has"
    if needed > available:
        raise ResourceError(
            f"The run needs about {needed / 1e9:.1f} GB of memory ({weights / 1e6:.0f} M weights, "
            f"{machine.micro_batch_tokens:,} tokens at a time), but {where} {available / 1e9:.1f} GB. "
            "Choose a smaller model.size or data.micro_batch_tokens."
        )


def weight_bytes(weights: int, machine: Machine) -> int:
    """Of one process. One that holds a part has all weights as well, at the start and in an evaluation."""
    if not machine.sharded:
        return _BYTES_A_WEIGHT * weights
    return _BYTES_A_WEIGHT * weights // machine.ranks.count + 4 * weights


def step_bytes(model: PretrainingModel, recipe: Recipe, machine: Machine) -> int:
    """Roughly what the forward pass of one micro-batch of a rank keeps."""
    config = model.config
    longest = max(recipe.data.sequence_lengths)
    share = -(-recipe.data.batch_size * longest // machine.ranks.count)  # of the global batch
    tokens = max(min(machine.micro_batch_tokens, share), longest)
    hidden = tokens * config.num_hidden_layers * _ACTIVATIONS_A_LAYER * config.hidden_size
    vocabulary = tokens * recipe.masking.chosen * config.vocab_size
    return int(4 * (hidden + vocabulary))
