"""Whether a run fits before it begins: memory for weights and a step, disk for its checkpoints. Bytes."""

import contextlib
from pathlib import Path

from torch import nn

from bertsmith.errors import ResourceError
from bertsmith.files import require_free_space
from bertsmith.machine import Hardware
from bertsmith.tasks.pretraining.objectives import PretrainedModel
from bertsmith.training.machine import Machine
from bertsmith.training.recipe import Recipe
from bertsmith.training.step_memory import step_memory

_CHECKPOINT_BYTES = 12  # a weight's, and of its two moments


def require_resources(
    model: PretrainedModel, recipe: Recipe, machine: Machine, hardware: Hardware, out: Path
) -> None:
    """Raises ResourceError with what is needed and what there is, DiskFull where that is disk."""
    weights = sum(parameter.numel() for parameter in model.parameters())
    checkpoint = _CHECKPOINT_BYTES * weights
    lacking = (recipe.checkpoint.keep + 1) * checkpoint - _size_of(out / "checkpoints")
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


def _size_of(folder: Path) -> int:
    """Bytes of all files in it that stand; another process may be taking partial ones away."""
    total = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):
            total += path.stat().st_size if path.is_file() else 0
    return total
