"""What a pre-training run will take, before anything is paid: hours, cost, memory, tokens, checkpoints.

The parts are counted where they belong: `workload` (steps and tokens), `step_cost` and `run_cost` (seconds),
`step_memory` (bytes). docs/plan.md says how far published runs were from what this predicts.
"""

from dataclasses import dataclass

import torch

from bertsmith.data.batch import usual_batch_tokens
from bertsmith.door import door, either, kind, number, optional, several, text, whole
from bertsmith.errors import InputError, RecipeError
from bertsmith.machine import Hardware
from bertsmith.model.config import BertConfig
from bertsmith.planning.accelerators import HERE, Accelerator, find_accelerator
from bertsmith.planning.fitting import memory_warnings
from bertsmith.planning.plan_inputs import find_inputs
from bertsmith.planning.run_cost import RunCost
from bertsmith.planning.step_cost import StepPart
from bertsmith.planning.this_accelerator import measure_here
from bertsmith.planning.workload import PhaseWork
from bertsmith.reporting.formatting import counted
from bertsmith.training.distributed import Ranks
from bertsmith.training.machine import Machine
from bertsmith.training.recipe import Recipe, read_recipe
from bertsmith.training.stable_checkpoint import from_phase_of_checkpoint
from bertsmith.training.step_memory import Memory, checkpoint_bytes, step_memory, tokens_at_once

# How far a prediction may be off. The largest miss among published runs that no share was taken from is 13 %
# (docs/plan.md), and a share of one model is taken for others; of this machine the rest is measured now. A
# share that is only assumed may be anything between a third and two thirds.
ERROR, ERROR_HERE, ERROR_ASSUMED = 0.25, 0.20, 0.50
_FLOAT = 4  # bytes
_LONGEST = {"tokens": 1e18, "steps": 1e15, "hours": 1e9}  # more is a slip of the finger
_FEW_TOKENS = 8192  # of a GPU in a step: what takes it about as long as the host needs to start all kernels


@dataclass(frozen=True)
class Plan:
    """What `plan` predicts. `parts` are of the whole run, and `hours` their sum, off by `error` at most; of a
    run of given hours (`in_time`) its steps and tokens are.

    `cost` is None without a price, `epochs` without a token store; these are of the corpus's own text.
    `share` is the products' of the peak.
    """

    recipe: Recipe
    hardware: Accelerator
    gpus: int
    hours: float
    error: float
    in_time: bool
    cost: float | None
    steps: int
    tokens: float
    tokens_per_second: float
    epochs: float | None
    share: float
    weights: int
    micro_batch_tokens: int
    memory: Memory
    checkpoint_bytes: int
    disk_bytes: int
    phases: tuple[PhaseWork, ...]
    parts: tuple[StepPart, ...]
    notes: tuple[str, ...]
    warnings: tuple[str, ...]

    @property
    def flops(self) -> float:
        """FLOP of all products, evaluation's among them."""
        return sum(part.flops for part in self.parts)


@door(
    recipe=either(text, kind(Recipe)),
    overrides=several(text),
    hardware=either(text, kind(Accelerator)),
    gpus=whole(1),
    price_per_hour=optional(number),
    tokens=optional(number),
)
def plan(
    recipe: str | Recipe,
    *overrides: str,
    hardware: str | Accelerator = HERE,
    gpus: int = 1,
    price_per_hour: float | None = None,
    tokens: float | None = None,
) -> Plan:
    """Predicts a pre-training run on `gpus` of a kind. Nothing is trained, and nothing is written.

    `hardware` is a name of accelerators.toml, or `here`, which measures this machine for some seconds.
    `price_per_hour` is of one GPU. `tokens` replaces the recipe's length by so many tokens of training.
    Raises RecipeError for a recipe that contradicts itself, InputError for unknown hardware.
    """
    recipe = _recipe(recipe, overrides)
    _check(recipe, gpus, tokens, price_per_hour)
    recipe = from_phase_of_checkpoint(recipe)
    inputs = find_inputs(recipe)
    accelerator = _accelerator(hardware, gpus, recipe, inputs.config)
    _require_precision(recipe.hardware.precision, accelerator)
    machine = _one_of(gpus, accelerator, recipe)
    checkpoint = checkpoint_bytes(inputs.model, recipe.optimizer)
    cost = RunCost(recipe, inputs, accelerator, machine, checkpoint)
    phases = cost.work(tokens)
    steps = sum(phase.steps for phase in phases)
    training = cost.steps_bill(phases)
    parts = (*training, *cost.pauses_bill(steps))
    hours = sum(part.seconds for part in parts) / 3600
    trained = sum(phase.tokens for phase in phases)
    own_text = sum(phase.steps * phase.step.own_text for phase in phases)
    memory = step_memory(inputs.model, recipe, machine)
    return Plan(
        recipe=recipe,
        hardware=accelerator,
        gpus=gpus,
        hours=hours,
        error=_error(accelerator),
        in_time=recipe.hours is not None and tokens is None,
        cost=None if price_per_hour is None else price_per_hour * hours * gpus,
        steps=steps,
        tokens=trained,
        tokens_per_second=trained / sum(part.seconds for part in training),
        epochs=None if inputs.store is None else own_text / max(len(inputs.store.tokens), 1),
        share=accelerator.share(inputs.config.hidden_size),
        weights=inputs.weights,
        micro_batch_tokens=tokens_at_once(recipe, machine),
        memory=memory,
        checkpoint_bytes=checkpoint,
        disk_bytes=(recipe.checkpoint.keep + 1) * checkpoint + _FLOAT * inputs.weights,
        phases=phases,
        parts=parts,
        notes=(
            *inputs.notes,
            *_weak_grounds(accelerator, inputs.config.hidden_size),
        ),
        warnings=(
            *_few_tokens(phases, accelerator, gpus),
            *memory_warnings(inputs.model, recipe, machine, accelerator),
        ),
    )


def _recipe(recipe: str | Recipe, overrides: tuple[str, ...]) -> Recipe:
    if isinstance(recipe, str):
        return read_recipe(recipe, list(overrides))
    if overrides:
        raise RecipeError(
            "Overrides go with a recipe's name or file. With a Recipe, change its own settings instead."
        )
    return recipe


def _check(recipe: Recipe, gpus: int, tokens: float | None, price: float | None) -> None:
    if tokens is not None and tokens <= 0:
        raise InputError(f"tokens must be a positive number, found {tokens:g}.")
    if price is not None and price < 0:
        raise InputError(f"price_per_hour must be a number from 0 up, found {price:g}.")
    lengths = {"tokens": tokens, "steps": recipe.steps, "hours": recipe.hours}
    for name, length in lengths.items():
        if length is not None and length > _LONGEST[name]:
            raise InputError(
                f"{name} must be {_LONGEST[name]:.0e} at most, found {length:.3g}. Are there too many digits?"
            )
    if recipe.data.batch_size < gpus:
        raise RecipeError(
            f"data.batch_size = {recipe.data.batch_size} leaves some of the {gpus} GPUs without a sequence. "
            "Raise it, or plan for fewer GPUs."
        )


def _one_of(gpus: int, accelerator: Accelerator, recipe: Recipe) -> Machine:
    """One of the processes, for all that is counted from shapes."""
    device = "cpu" if accelerator.name == "here-cpu" else "cuda"
    return Machine(
        device=torch.device(device),
        precision=getattr(torch, accelerator.precision),
        peak=accelerator.peak,
        ranks=Ranks(0, gpus),
        micro_batch_tokens=recipe.data.micro_batch_tokens or usual_batch_tokens(device),
        sharded=recipe.hardware.shard == "full" and gpus > 1,
    )


def _error(accelerator: Accelerator) -> float:
    """How far the hours may be off, as a share of them."""
    if accelerator.share_source.startswith("assumed"):
        return ERROR_ASSUMED
    return ERROR_HERE if accelerator.is_here else ERROR


def _accelerator(hardware: str | Accelerator, gpus: int, recipe: Recipe, config: BertConfig) -> Accelerator:
    """By name, or measured now; given ones are taken as they are."""
    if isinstance(hardware, Accelerator):
        return hardware
    if hardware != HERE:
        return find_accelerator(hardware)
    found = Hardware.detect()
    there = 0 if recipe.hardware.device == "cpu" else len(found.gpus)
    if gpus > max(1, there):
        only = f"only {counted(there, 'GPU')}"
        what = only if there else "no GPU to use, and its processor counts as one"
        raise InputError(f"gpus is {gpus}, but this machine has {what}. Name the hardware to plan for.")
    return measure_here(config, recipe.hardware, found)


def _require_precision(asked: str, hardware: Accelerator) -> None:
    if asked not in ("auto", hardware.precision):
        raise RecipeError(
            f"hardware.precision = {asked}, but for {hardware.title} only the speed in {hardware.precision} "
            f"is known. Leave it at auto, or measure the machine itself: --hardware {HERE}."
        )


def _weak_grounds(machine: Accelerator, width: int) -> list[str]:
    """What of peak and share is not known, for all else hangs on them."""
    notes = []
    if machine.share_source.startswith("assumed"):
        notes.append(
            f"The share of the peak is assumed, not measured, on {machine.title}: a few minutes of the run "
            "itself, whose log has the share, are worth their price before days are paid."
        )
    if not machine.knows(width):
        known = " and ".join(str(each) for each in sorted(machine.shares))
        notes.append(
            f"The share is known for a width of {known}, not for {width}: the nearest is taken. Narrow "
            "models reach less, wide ones more."
        )
    return notes


def _few_tokens(phases: tuple[PhaseWork, ...], machine: Accelerator, gpus: int) -> list[str]:
    """Kernels that are too short: nothing in the cost model, and the reason why small batches disappoint."""
    fewest = min(phase.step.tokens for phase in phases) / gpus
    if machine.name == "here-cpu" or fewest >= _FEW_TOKENS:
        return []
    return [
        f"A GPU gets only {fewest:,.0f} tokens a step. Starting the kernels, which is not counted here, then "
        "takes about as long as computing: expect twice the time. Raise data.batch_size, or take fewer GPUs."
    ]
