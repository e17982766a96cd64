"""Does a planned run fit into a GPU's memory, and what would? Bytes."""

from bertsmith.tasks.pretraining import PretrainingModel
from bertsmith.training.accelerators import Accelerator, accelerators
from bertsmith.training.recipe import Recipe
from bertsmith.training.step_memory import step_memory

_GB = 1e9


def memory_warnings(
    model: PretrainingModel, recipe: Recipe, micro_batch_tokens: int, hardware: Accelerator
) -> list[str]:
    """Nothing where it fits; else what is needed, and what would do: a smaller micro-batch, a larger GPU."""
    memory = step_memory(model, recipe, micro_batch_tokens)
    if memory.total <= hardware.memory:
        return []
    said = (
        f"This does not fit: about {memory.total / _GB:.1f} GB are needed with {micro_batch_tokens:,} tokens "
        f"at a time, and {hardware.title} has {hardware.memory / _GB:.1f} GB."
    )
    fitting = largest_micro_batch(model, recipe, hardware.memory)
    if fitting is not None:
        return [f"{said} data.micro_batch_tokens={fitting} would, with the same result."]
    larger = [
        entry.name
        for entry in sorted(accelerators().values(), key=lambda entry: entry.memory)
        if step_memory(model, recipe, max(recipe.data.sequence_lengths)).total <= entry.memory
    ]
    advice = f"--hardware {larger[0]} would hold it" if larger else "choose a smaller model.size"
    return [
        f"{said} No micro-batch is small enough, and more GPUs don't help, since each holds the whole model: "
        f"{advice}."
    ]


def largest_micro_batch(model: PretrainingModel, recipe: Recipe, memory: float) -> int | None:
    """The largest power of two, from the longest sequence up, that fits; None if none does."""
    longest = max(recipe.data.sequence_lengths)
    tokens = 1 << (longest - 1).bit_length()
    if step_memory(model, recipe, tokens).total > memory:
        return None
    most = recipe.data.batch_size * longest
    while tokens < most and step_memory(model, recipe, 2 * tokens).total <= memory:
        tokens *= 2
    return tokens
