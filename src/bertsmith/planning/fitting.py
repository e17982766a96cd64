"""Does a planned run fit into a GPU's memory, and what would? Bytes."""

from dataclasses import replace

from bertsmith.planning.accelerators import Accelerator, accelerators
from bertsmith.tasks.pretraining.objectives import PretrainedModel
from bertsmith.training.machine import Machine
from bertsmith.training.recipe import Recipe
from bertsmith.training.step_memory import step_memory, tokens_at_once

_GB = 1e9


def memory_warnings(
    model: PretrainedModel, recipe: Recipe, machine: Machine, hardware: Accelerator
) -> list[str]:
    """Nothing where it fits; else what is needed, and what would do: a smaller micro-batch, weights divided
    between the GPUs, a larger GPU.
    """
    needed = step_memory(model, recipe, machine).total
    if needed <= hardware.memory:
        return []
    said = (
        f"This does not fit: about {needed / _GB:.1f} GB are needed with "
        f"{tokens_at_once(recipe, machine):,} tokens at a time, and {hardware.title} has "
        f"{hardware.memory / _GB:.1f} GB."
    )
    fitting = largest_micro_batch(model, recipe, machine, hardware.memory)
    if fitting is not None:
        return [f"{said} data.micro_batch_tokens={fitting} would, with the same result."]
    return [f"{said} No micro-batch is small enough: {_advice(model, recipe, machine, hardware)}."]


def _advice(model: PretrainedModel, recipe: Recipe, machine: Machine, hardware: Accelerator) -> str:
    several = machine.ranks.count > 1
    divided = replace(machine, sharded=True)
    if several and largest_micro_batch(model, recipe, divided, hardware.memory) is not None:
        return "hardware.shard=full would divide weights, gradients and moments between the GPUs"
    for entry in sorted(accelerators().values(), key=lambda entry: entry.memory):
        if largest_micro_batch(model, recipe, machine, entry.memory) is not None:
            return f"--hardware {entry.name} would hold it"
    return "choose a smaller model.size"


def largest_micro_batch(
    model: PretrainedModel, recipe: Recipe, machine: Machine, memory: float
) -> int | None:
    """The largest power of two, from the longest sequence up, that fits; None if none does."""

    def fits(tokens: int) -> bool:
        return step_memory(model, recipe, replace(machine, micro_batch_tokens=tokens)).total <= memory

    longest = max(recipe.data.sequence_lengths)
    tokens = 1 << (longest - 1).bit_length()
    if not fits(tokens):
        return None
    most = recipe.data.batch_size * longest / machine.ranks.count
    while tokens < most and fits(2 * tokens):
        tokens *= 2
    return tokens
