"""The cost model: what one optimiser step computes, moves and exchanges, how many seconds that takes, and the
bill of a whole run.

T tokens, B sequences, K masked positions of a step over all GPUs; H hidden size, I feed-forward width,
V vocabulary, L sequence length.

    products      FLOP / (peak x share), where the share is one measured number for a kind of hardware and of
                  implementation; the encoder's are linear in tokens, attention's quadratic in the length
    attention     where its weights are written to memory (Bertsmith never does on a GPU): bytes / bandwidth
    optimiser     bytes of weights, gradients and moments / bandwidth; with Muon also its products
    exchange      a ring's all-reduce of the gradients, less what hides behind the last backward pass; with
                  hardware.shard=full also the weights, for every micro-batch

Loading data costs nothing here: it runs beside training, hundreds of times as fast (bench/text/loader.py).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from bertsmith.model.config import BertConfig
from bertsmith.model.flops import attention_flops, linear_flops, muon_flops, vocabulary_flops
from bertsmith.planning.accelerators import Accelerator
from bertsmith.planning.workload import PhaseWork, PlanInputs, StepAmounts, divide_steps
from bertsmith.training.machine import Machine
from bertsmith.training.recipe import Recipe

# The share of a published bandwidth that large copies and collectives reach in practice.
_REACHED = 0.8
# Bytes moved for a float32 weight: AdamW reads weight, gradient and two moments and writes three of them
# (28); clipping reads the gradient for its norm, then reads and writes it (12).
_OPTIMIZER_BYTES = 40
# Bytes of a weight that is sent to the GPUs that lack it, by the precision of the products.
_BYTES_GATHERED = {"float32": 4, "bfloat16": 2, "float16": 2}
_COPY_BANDWIDTH = 4e9  # bytes a second, assumed: a checkpoint's copy, written beside the training


@dataclass(frozen=True)
class Implementation:
    """What an implementation computes beyond the minimum.

    `logits_of_all_tokens`: it computes the vocabulary's logits for every token, not only for masked ones.
    `full_last_layer`: it computes the last layer for every token, not only for those that a head reads.
    `attention_passes`: how often attention's weights, two bytes each, pass through memory; 0 if they never
    leave the chip, 20 if each operation is a kernel (written; scaled, masked, softmax, dropout, each read and
    written; read for the product with the values; about as many backward). `gradient_bytes`: bytes of one
    gradient as GPUs exchange it.
    """

    logits_of_all_tokens: bool = False
    full_last_layer: bool = False
    attention_passes: int = 0
    gradient_bytes: int = 4


OURS = Implementation()
OPTIMIZER = "optimiser"


@dataclass(frozen=True)
class StepPart:
    """One line of the bill: the FLOP and bytes of all GPUs together, and the `seconds` of wall time."""

    name: str
    flops: float
    bytes: float
    seconds: float


def flops_by_part(
    config: BertConfig,
    step: StepAmounts,
    next_sentence: bool,
    how: Implementation = OURS,
    sampled_pieces: int = 0,
    generator: BertConfig | None = None,
) -> dict[str, float]:
    """FLOP of a step's matrix products by part, forward and twice as much backward.

    For Bertsmith's own steps, their sum is what the pre-training task's `flops` counts, and the pooler.
    `sampled_pieces`: the entries of the vocabulary that a masked token is compared with (sampled softmax); 0
    for all. With a `generator`, the step is one of replaced-token detection.
    """
    if generator is not None:
        return _replaced_token_flops(config, generator, step, sampled_pieces)
    hidden = config.hidden_size
    read = step.tokens if how.full_last_layer else step.masked + (step.sequences if next_sentence else 0)
    predicted = step.tokens if how.logits_of_all_tokens else step.masked
    forward = {
        "encoder layers": linear_flops(config, step.tokens, read),
        "attention": _attention_flops(config, step),
        "vocabulary": vocabulary_flops(config, predicted, sampled_pieces),
        "next sentence": step.sequences * 2 * hidden * (hidden + 2) if next_sentence else 0.0,
    }
    return {name: 3 * flops for name, flops in forward.items()}


def _replaced_token_flops(
    config: BertConfig, generator: BertConfig, step: StepAmounts, sampled_pieces: int
) -> dict[str, float]:
    """FLOP by part of a step of replaced-token detection (ELECTRA). The discriminator reads every token. The
    generator fills masks. To sample the replacements, its logits of the whole vocabulary are computed once
    more, without a backward pass.
    """
    hidden = config.hidden_size
    forward = {
        "encoder layers": linear_flops(config, step.tokens, step.tokens),
        "attention": _attention_flops(config, step),
        "replaced-token head": 2 * step.tokens * hidden * (hidden + 1),
        "generator": linear_flops(generator, step.tokens, step.masked) + _attention_flops(generator, step),
        "vocabulary": vocabulary_flops(generator, step.masked, sampled_pieces),
    }
    sampling = 2 * step.masked * generator.embedding_width * generator.vocab_size
    return {name: 3 * flops for name, flops in forward.items()} | {"sampling of replacements": sampling}


def _attention_flops(config: BertConfig, step: StepAmounts) -> float:
    # squares: the sum of the squared lengths of the sequences
    length = step.squares / step.tokens  # the mean length of a token's sequence
    return attention_flops(config, np.array([length])) * step.tokens / length


def compute_step_parts(
    config: BertConfig,
    weight_count: int,
    step: StepAmounts,
    next_sentence: bool,
    hardware: Accelerator,
    gpus: int,
    micro_batches: int = 1,
    how: Implementation = OURS,
    sharded: bool = False,
    muon: bool = False,
    sampled_pieces: int = 0,
    generator: BertConfig | None = None,
) -> list[StepPart]:
    """The parts of a step with their seconds. `micro_batches` is their number per GPU. `sharded`: each GPU
    holds a part of the weights. With `muon` each GPU computes the whole update of the layers' matrices.
    """
    speed = gpus * hardware.peak * hardware.share(config.hidden_size)
    bandwidth = _REACHED * hardware.memory_bandwidth
    scores = config.num_hidden_layers * config.num_attention_heads * step.squares
    moved_by_attention = 2.0 * how.attention_passes * scores
    parts = []
    products = flops_by_part(config, step, next_sentence, how, sampled_pieces, generator)
    for name, flops in products.items():
        moved = moved_by_attention if name == "attention" else 0.0
        seconds = flops / speed + moved / (gpus * bandwidth)
        parts.append(StepPart(name, flops, moved, seconds))
    computing = sum(part.seconds for part in parts)
    optimizer = float(_OPTIMIZER_BYTES * weight_count) / (gpus if sharded else 1)
    encoders = [config] if generator is None else [config, generator]
    orthogonal = sum(muon_flops(encoder) for encoder in encoders) if muon else 0.0
    seconds = optimizer / bandwidth + orthogonal / (speed / gpus)
    parts.append(StepPart(OPTIMIZER, orthogonal * gpus, optimizer * gpus, seconds))
    exchanged = float(how.gradient_bytes * weight_count)
    if sharded:
        # A micro-batch gathers the weights forward and backward and scatters its gradients: each is half of
        # an all-reduce, and the next layer's weights are sent while one layer computes.
        gathered = 2.0 * _BYTES_GATHERED[hardware.precision] * weight_count
        exchanged, hidden_behind = micro_batches * (gathered + exchanged) / 2, computing
    else:
        # Two thirds of a micro-batch are its backward pass, during which gradients are sent already.
        hidden_behind = computing / micro_batches * 2 / 3
    waiting = max(0.0, compute_exchange_seconds(exchanged, hardware, gpus) - hidden_behind)
    name = "exchange of weights and gradients" if sharded else "exchange of gradients"
    parts.append(StepPart(name, 0.0, _count_ring_bytes(exchanged, gpus), waiting))
    return parts


def compute_exchange_seconds(size: float, hardware: Accelerator, gpus: int) -> float:
    """The seconds of a ring all-reduce of `size` bytes, in which each GPU sends and receives almost twice as
    many.

    The slowest link counts: inside a machine, the link between two GPUs; between machines, the network of one
    machine as a whole, because NCCL lays one ring through each of its cards.
    """
    if gpus == 1:
        return 0.0
    inside = gpus <= hardware.gpus_per_node
    link = hardware.link_bandwidth if inside else min(hardware.link_bandwidth, hardware.network_bandwidth)
    return _count_ring_bytes(size, gpus) / gpus / (_REACHED * link)


def _count_ring_bytes(size: float, gpus: int) -> float:
    """The bytes that all GPUs together send in a ring all-reduce of `size` bytes."""
    return 2 * (gpus - 1) * size


@dataclass(frozen=True)
class RunCost:
    """Computes what a recipe costs on one kind of hardware. `machine`: device, precision and rank of one of
    the run's processes.
    """

    recipe: Recipe
    inputs: PlanInputs
    hardware: Accelerator
    machine: Machine
    checkpoint_bytes: int

    @cached_property
    def amounts(self) -> list[StepAmounts]:
        """The mean number of tokens, sequences and masked positions in a step, for each phase (of one
        sequence length).
        """
        phases = range(len(self.recipe.data.sequence_lengths))
        return [self.inputs.step(self.recipe, phase) for phase in phases]

    @cached_property
    def bills(self) -> list[list[StepPart]]:
        """The parts of one step, for each phase."""
        return [self._step_bill(step, self.recipe.loss.sampled_pieces) for step in self.amounts]

    def phase_work(self, tokens: float | None) -> tuple[PhaseWork, ...]:
        """Each phase with its number of steps, by `tokens` or, if None, the recipe's steps or hours."""
        lengths = self.recipe.data.sequence_lengths
        counts = self._count_steps(tokens)
        return tuple(PhaseWork(*phase) for phase in zip(lengths, counts, self.amounts, strict=True))

    def steps_bill(self, work: Sequence[PhaseWork]) -> list[StepPart]:
        """The parts of all training steps together."""
        bill = []
        for parts in zip(*self.bills, strict=True):  # of one name, a phase each
            counted_parts = list(zip([phase.steps for phase in work], parts, strict=True))
            flops = sum(count * part.flops for count, part in counted_parts)
            moved = sum(count * part.bytes for count, part in counted_parts)
            seconds = sum(count * part.seconds for count, part in counted_parts)
            bill.append(StepPart(parts[0].name, flops, moved, seconds))
        return bill

    def pauses_bill(self, steps: int) -> list[StepPart]:
        """The parts that interrupt training: evaluation, which is forward passes alone, and checkpoints."""
        of_step = self._step_bill(self.amounts[0], sampled_pieces=0)
        products = [part for part in of_step if part.flops and part.name != OPTIMIZER]
        batches = self.inputs.evaluated_tokens(self.recipe) / self.amounts[0].tokens
        # a step is a forward pass and a backward pass of twice its length
        times = count_times_due(self.recipe.evaluation.every, steps)
        # what is forgotten of general text is measured from an evaluation before the first step
        times += self.recipe.general is not None
        passes = times * batches / 3
        flops = passes * sum(part.flops for part in products)
        evaluation = StepPart("evaluation", flops, 0.0, passes * sum(part.seconds for part in products))
        parts = self.machine.ranks.count if self.machine.sharded else 1
        copied = self.checkpoint_bytes / parts * count_times_due(self.recipe.checkpoint.every, steps)
        return [evaluation, StepPart("checkpoints", 0.0, copied, copied / _COPY_BANDWIDTH)]

    def _step_bill(self, step: StepAmounts, sampled_pieces: int) -> list[StepPart]:
        gpus = self.machine.ranks.count
        return compute_step_parts(
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

    def _count_steps(self, tokens: float | None) -> list[int]:
        """The number of steps of each phase, by `tokens`, or by the recipe's steps or hours."""
        shares = self.recipe.data.sequence_shares
        if tokens is not None:
            mean = sum(share * step.tokens for share, step in zip(shares, self.amounts, strict=True))
            return divide_steps(self.recipe, max(1, round(tokens / mean)))
        if self.recipe.steps is not None:
            return divide_steps(self.recipe, self.recipe.steps)
        assert self.recipe.hours is not None
        hours = 3600 * self.recipe.hours
        # pauses are estimated by the steps that there would be without pauses, which are slightly too many
        pauses = sum(part.seconds for part in self.pauses_bill(sum(self._count_steps_in(hours))))
        return self._count_steps_in(max(0.0, hours - pauses))

    def _count_steps_in(self, seconds: float) -> list[int]:
        """The number of steps of each phase in so many seconds, of which each phase gets its share."""
        shares = self.recipe.data.sequence_shares
        of_a_step = [sum(part.seconds for part in bill) for bill in self.bills]
        pairs = zip(shares, of_a_step, strict=True)
        return [
            max(int(share > 0), round(seconds * share / seconds_of_step)) for share, seconds_of_step in pairs
        ]


def count_times_due(every: float, steps: int) -> int:
    """How often something happens in a run of so many steps, if `every` is an interval in steps, or a share
    of the run if below 1. The end of the run counts.
    """
    if every >= 1:
        return math.ceil(steps / int(every))
    # a share that falls due in the last step is the end itself, as in the loop's `is_due`
    return 1 + min(steps - 1, int((steps - 1) / steps / every + 1e-9))
