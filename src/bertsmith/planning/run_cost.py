"""The bill of a whole run: its steps by phase, and what stops the training between them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from bertsmith.planning.accelerators import Accelerator
from bertsmith.planning.plan_inputs import PlanInputs
from bertsmith.planning.step_cost import OPTIMIZER, StepPart, step_parts
from bertsmith.planning.workload import PhaseWork, StepAmounts, steps_of_phases
from bertsmith.training.machine import Machine
from bertsmith.training.recipe import Recipe

_SECONDS_OF_AN_HOUR = 3600
_COPY_BANDWIDTH = 4e9  # bytes a second, assumed: a checkpoint's copy, written beside the training


@dataclass(frozen=True)
class RunCost:
    """Prices a recipe on one kind of hardware; `machine` is one of its processes."""

    recipe: Recipe
    inputs: PlanInputs
    hardware: Accelerator
    machine: Machine
    checkpoint_bytes: int

    @cached_property
    def amounts(self) -> list[StepAmounts]:
        """What a step of each phase holds."""
        phases = range(len(self.recipe.data.sequence_lengths))
        return [self.inputs.step(self.recipe, phase) for phase in phases]

    @cached_property
    def bills(self) -> list[list[StepPart]]:
        """Of one step of each phase."""
        return [self._bill(step, self.recipe.loss.sampled_pieces) for step in self.amounts]

    def work(self, tokens: float | None) -> tuple[PhaseWork, ...]:
        """Each phase with its number of steps: by the recipe, or by `tokens` in place of its length."""
        lengths = self.recipe.data.sequence_lengths
        counts = self._counts(tokens)
        return tuple(PhaseWork(*phase) for phase in zip(lengths, counts, self.amounts, strict=True))

    def steps_bill(self, work: Sequence[PhaseWork]) -> list[StepPart]:
        """The parts of all steps together."""
        counts = [phase.steps for phase in work]
        return [_times(parts, counts) for parts in zip(*self.bills, strict=True)]

    def pauses_bill(self, steps: int) -> list[StepPart]:
        """What stops the training now and then: evaluation, a forward pass alone, and checkpoints."""
        of_step = self._bill(self.amounts[0], sampled_pieces=0)
        products = [part for part in of_step if part.flops and part.name != OPTIMIZER]
        batches = self.inputs.evaluated_tokens(self.recipe) / self.amounts[0].tokens
        # a step's products are a forward pass and a backward one that is twice as long
        passes = times_due(self.recipe.evaluation.every, steps) * batches / 3
        flops = passes * sum(part.flops for part in products)
        evaluation = StepPart("evaluation", flops, 0.0, passes * sum(part.seconds for part in products))
        parts = self.machine.ranks.count if self.machine.sharded else 1
        copied = self.checkpoint_bytes / parts * times_due(self.recipe.checkpoint.every, steps)
        return [evaluation, StepPart("checkpoints", 0.0, copied, copied / _COPY_BANDWIDTH)]

    def _bill(self, step: StepAmounts, sampled_pieces: int) -> list[StepPart]:
        gpus = self.machine.ranks.count
        return step_parts(
            self.inputs.config,
            self.inputs.weights,
            step,
            self.inputs.next_sentence,
            self.hardware,
            gpus,
            micro_batches=max(1, math.ceil(step.tokens / gpus / self.machine.micro_batch_tokens)),
            sharded=self.machine.sharded,
            muon=self.recipe.optimizer.kind == "muon",
            sampled_pieces=sampled_pieces,
            generator=self.inputs.generator,
        )

    def _counts(self, tokens: float | None) -> list[int]:
        """Steps of each phase."""
        shares = self.recipe.data.sequence_shares
        if tokens is not None:
            mean = sum(share * step.tokens for share, step in zip(shares, self.amounts, strict=True))
            return steps_of_phases(self.recipe, max(1, round(tokens / mean)))
        if self.recipe.steps is not None:
            return steps_of_phases(self.recipe, self.recipe.steps)
        assert self.recipe.hours is not None
        hours = self.recipe.hours * _SECONDS_OF_AN_HOUR
        # pauses are priced by the steps there would be without them, which is not quite as many too many
        pauses = sum(part.seconds for part in self.pauses_bill(sum(self._counts_in(hours))))
        return self._counts_in(max(0.0, hours - pauses))

    def _counts_in(self, seconds: float) -> list[int]:
        """Each phase gets its share of the time, as in a run of given hours."""
        shares = self.recipe.data.sequence_shares
        of_a_step = [sum(part.seconds for part in bill) for bill in self.bills]
        pairs = zip(shares, of_a_step, strict=True)
        return [max(share > 0, round(seconds * share / each)) for share, each in pairs]


def _times(parts: Sequence[StepPart], counts: Sequence[int]) -> StepPart:
    """One part over the steps of all phases."""
    pairs = list(zip(counts, parts, strict=True))
    return StepPart(
        parts[0].name,
        flops=sum(count * part.flops for count, part in pairs),
        bytes=sum(count * part.bytes for count, part in pairs),
        seconds=sum(count * part.seconds for count, part in pairs),
    )


def times_due(every: float, steps: int) -> int:
    """How often what is done `every` so many steps, or share of the run, is done; the end is one of them."""
    if every >= 1:
        return math.ceil(steps / int(every))
    return min(steps, math.ceil(1 / every - 1e-9))
