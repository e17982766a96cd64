"""What a pre-training run will take, before anything is paid: hours, cost, memory, tokens, checkpoints.

The parts are counted where they belong: `workload` (steps and tokens), `step_cost` (seconds), `step_memory`
(bytes). docs/plan.md says how far published runs were from what this predicts.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from bertsmith.errors import InputError, RecipeError
from bertsmith.training.accelerators import HERE, Accelerator, find_accelerator
from bertsmith.training.fitting import memory_warnings
from bertsmith.training.hardware import Hardware
from bertsmith.training.machine import CPU_MICRO_BATCH, CUDA_MICRO_BATCH
from bertsmith.training.plan_inputs import PlanInputs, find_inputs
from bertsmith.training.recipe import Recipe, read_recipe
from bertsmith.training.step_cost import Part, step_parts
from bertsmith.training.step_memory import Memory, checkpoint_bytes, step_memory
from bertsmith.training.this_accelerator import measure_here
from bertsmith.training.workload import PhaseWork, StepAmounts, steps_of_phases

# How far a prediction may be off: the largest miss among published runs that no share was taken from was
# 18 % (docs/plan.md); on this machine everything but the share is measured on the spot.
ERROR, ERROR_HERE = 0.25, 0.20
_DISK_BANDWIDTH = 1e9  # bytes a second, written, flushed and hashed: a checkpoint's, assumed
_SECONDS_OF_AN_HOUR = 3600


@dataclass(frozen=True)
class Plan:
    """What `plan` predicts. `parts` are of the whole run; `hours` is their sum, and off by `error` at most.

    `epochs` is None without a token store, `cost` without a price.
    """

    recipe: Recipe
    hardware: Accelerator
    gpus: int
    hours: float
    error: float
    cost: float | None
    steps: int
    phases: tuple[PhaseWork, ...]
    tokens: float
    tokens_per_second: float
    epochs: float | None
    operations: float
    share: float
    weights: int
    micro_batch_tokens: int
    memory: Memory
    checkpoint_bytes: int
    disk_bytes: int
    parts: tuple[Part, ...]
    notes: tuple[str, ...]
    warnings: tuple[str, ...]


def plan(
    recipe: str | Recipe,
    *overrides: str,
    hardware: str | Accelerator = HERE,
    gpus: int = 1,
    price_per_hour: float | None = None,
    tokens: float | None = None,
) -> Plan:
    """Predicts a pre-training run on `gpus` of a kind; nothing is trained and nothing is written.

    `hardware` is a name of accelerators.toml, or `here`, which measures this machine for about two seconds.
    `price_per_hour` is of one GPU. `tokens` replaces the recipe's length by so many tokens of training. Raises
    RecipeError for a recipe that contradicts itself, InputError for unknown hardware.
    """
    if isinstance(recipe, str):
        recipe = read_recipe(recipe, list(overrides))
    elif overrides:
        raise RecipeError(
            "Overrides go with a recipe's name or file; change the settings themselves instead."
        )
    if tokens is not None and not 0 < tokens < math.inf:
        raise InputError(f"tokens must be a positive number, found {tokens:g}.")
    machine = _hardware(hardware, gpus)
    inputs = find_inputs(recipe)
    if recipe.data.batch_size < gpus:
        raise RecipeError(
            f"data.batch_size = {recipe.data.batch_size} leaves some of the {gpus} GPUs without a sequence. "
            "Raise it, or plan for fewer GPUs."
        )
    return _Planner(recipe, inputs, machine, gpus).plan(price_per_hour, tokens)


def _hardware(hardware: str | Accelerator, gpus: int) -> Accelerator:
    if gpus < 1:
        raise InputError(f"gpus must be at least 1, found {gpus}.")
    if isinstance(hardware, Accelerator):
        return hardware
    if hardware != HERE:
        return find_accelerator(hardware)
    found = Hardware.detect()
    there = max(1, len(found.gpus))
    if gpus > there:
        what = f"{len(found.gpus)} GPU(s)" if found.gpus else "no GPU"
        raise InputError(f"This machine has {what}. Plan for {there}, or name other hardware.")
    return measure_here(hardware=found)


@dataclass(frozen=True)
class _Planner:
    recipe: Recipe
    inputs: PlanInputs
    hardware: Accelerator
    gpus: int

    @property
    def micro_batch_tokens(self) -> int:
        usual = CPU_MICRO_BATCH if self.hardware.name == "here-cpu" else CUDA_MICRO_BATCH
        return self.recipe.data.micro_batch_tokens or usual

    def plan(self, price: float | None, tokens: float | None) -> Plan:
        steps = [
            self.inputs.step(self.recipe, phase) for phase in range(len(self.recipe.data.sequence_lengths))
        ]
        bills = [self._bill(step) for step in steps]
        checkpoint = checkpoint_bytes(self.inputs.model)
        recipe, counts = self._lengths(steps, bills, checkpoint, tokens)
        work = tuple(
            PhaseWork(length, count, step)
            for length, count, step in zip(recipe.data.sequence_lengths, counts, steps, strict=True)
        )
        parts = [*_sum(bills, counts), *self._beside(recipe, sum(counts), steps[0], bills[0], checkpoint)]
        seconds = sum(part.seconds for part in parts)
        trained = sum(phase.tokens for phase in work)
        memory = step_memory(self.inputs.model, recipe, self.micro_batch_tokens)
        hours = seconds / _SECONDS_OF_AN_HOUR
        stored = None if self.inputs.store is None else len(self.inputs.store.tokens)
        return Plan(
            recipe=recipe,
            hardware=self.hardware,
            gpus=self.gpus,
            hours=hours,
            error=ERROR_HERE if self.hardware.name.startswith("here") else ERROR,
            cost=None if price is None else price * hours * self.gpus,
            steps=sum(counts),
            phases=work,
            tokens=trained,
            tokens_per_second=trained / sum(part.seconds for part in _sum(bills, counts)),
            epochs=trained / stored if stored else None,
            operations=sum(part.operations for part in _sum(bills, counts)),
            share=self.hardware.share(self.inputs.config.hidden_size),
            weights=self.inputs.weights,
            micro_batch_tokens=self.micro_batch_tokens,
            memory=memory,
            checkpoint_bytes=checkpoint,
            disk_bytes=(recipe.checkpoint.keep + 1) * checkpoint + memory.weights,
            parts=tuple(parts),
            notes=(*self.inputs.notes, *self._notes()),
            warnings=tuple(
                memory_warnings(self.inputs.model, recipe, self.micro_batch_tokens, self.hardware)
            ),
        )

    def _bill(self, step: StepAmounts) -> list[Part]:
        """Of one step."""
        micro_batches = max(1, math.ceil(step.tokens / self.gpus / self.micro_batch_tokens))
        return step_parts(
            self.inputs.config, self.inputs.weights, step, self.inputs.next_sentence, self.hardware,
            self.gpus, micro_batches,
        )  # fmt: skip

    def _lengths(
        self, steps: list[StepAmounts], bills: list[list[Part]], checkpoint: int, tokens: float | None
    ) -> tuple[Recipe, list[int]]:
        """The recipe with its steps known, and how many of them each phase has.

        A run of given hours gives each phase its share of the time that evaluations and checkpoints leave;
        so many tokens, its share of the steps.
        """
        shares = self.recipe.data.sequence_shares
        if tokens is not None:
            mean = sum(share * step.tokens for share, step in zip(shares, steps, strict=True))
            return self._of_steps(max(1, round(tokens / mean)))
        if self.recipe.steps is not None:
            return self._of_steps(self.recipe.steps)
        assert self.recipe.hours is not None
        seconds = [sum(part.seconds for part in bill) for bill in bills]
        beside = sum(part.seconds for part in self._beside(self.recipe, 1, steps[0], bills[0], checkpoint))
        left = max(0.0, self.recipe.hours * _SECONDS_OF_AN_HOUR - beside)
        counts = [max(1, round(left * share / each)) for share, each in zip(shares, seconds, strict=True)]
        return self.recipe, counts

    def _of_steps(self, steps: int) -> tuple[Recipe, list[int]]:
        recipe = self.recipe
        if recipe.steps != steps:
            warmup = recipe.optimizer.warmup
            shorter = recipe.optimizer.model_copy(update={"warmup": warmup if warmup < steps else 0.1})
            recipe = recipe.model_copy(update={"steps": steps, "hours": None, "optimizer": shorter})
        return recipe, steps_of_phases(recipe, steps)

    def _beside(
        self, recipe: Recipe, steps: int, step: StepAmounts, bill: list[Part], checkpoint: int
    ) -> list[Part]:
        """What stops the training now and then: evaluation, a forward pass alone, and checkpoints."""
        evaluations, saves = (
            times_due(recipe.evaluation.every, steps),
            times_due(recipe.checkpoint.every, steps),
        )
        share = recipe.evaluation.tokens / step.tokens / 3
        computing = [part for part in bill if part.operations]
        return [
            Part(
                "evaluation",
                sum(part.operations for part in computing) * share * evaluations,
                0.0,
                sum(part.seconds for part in computing) * share * evaluations,
            ),
            Part("checkpoints", 0.0, float(checkpoint * saves), checkpoint * saves / _DISK_BANDWIDTH),
        ]

    def _notes(self) -> list[str]:
        width, hardware = self.inputs.config.hidden_size, self.hardware
        if hardware.knows(width):
            return []
        known = ", ".join(str(each) for each in sorted(hardware.shares))
        slower = " Narrow models reach less of a GPU." if width < min(hardware.shares) else ""
        return [
            f"No share is known for a model {width} wide on {hardware.title}, only for {known}: the nearest "
            f"is taken.{slower}"
        ]


def times_due(every: float, steps: int) -> int:
    """How often what is done `every` so many steps, or share of the run, is done; the end is one of them."""
    if every >= 1:
        return steps // int(every) + bool(steps % int(every))
    return math.ceil(1 / every - 1e-9)


def _sum(bills: Sequence[Sequence[Part]], counts: Sequence[int]) -> list[Part]:
    """The parts of the steps of all phases."""
    return [
        replace(
            same[0],
            operations=sum(count * part.operations for count, part in zip(counts, same, strict=True)),
            bytes=sum(count * part.bytes for count, part in zip(counts, same, strict=True)),
            seconds=sum(count * part.seconds for count, part in zip(counts, same, strict=True)),
        )
        for same in zip(*bills, strict=True)
    ]
