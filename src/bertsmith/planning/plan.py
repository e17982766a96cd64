"""plan: predicts what a pre-training run will take, before anything is paid: hours, cost, memory, tokens,
checkpoints.

workload.py counts steps and tokens, cost.py seconds, training/resources.py bytes. This file puts them
together, checks whether the run fits into memory, and measures this machine if it is planned for.
bench/results/published-runs.md compares predictions with published runs.
"""

import statistics
import time
from dataclasses import dataclass, replace

import numpy as np
import torch

from bertsmith.argument_checks import (
    any_of,
    check_arguments,
    check_number,
    check_text,
    instance_of,
    integer_from,
    list_of,
    optional,
)
from bertsmith.data.batch import PackedBatch, usual_batch_tokens
from bertsmith.errors import InputError, RecipeError
from bertsmith.machine import Hardware, synchronize
from bertsmith.model.config import BertConfig
from bertsmith.model.cpu.onednn_matmul import fast_matmul
from bertsmith.planning.accelerators import (
    HERE,
    Accelerator,
    find_accelerator,
    list_accelerators,
    make_entry_for_here,
)
from bertsmith.planning.cost import RunCost, StepPart, flops_by_part
from bertsmith.planning.workload import PhaseWork, StepAmounts, find_inputs
from bertsmith.reporting.formatting import counted
from bertsmith.tasks.pretraining.objectives import PretrainedModel
from bertsmith.tasks.pretraining.pretraining import PretrainingModel
from bertsmith.training.machine import Machine, Ranks, set_up_machine
from bertsmith.training.recipe import Recipe, as_recipe
from bertsmith.training.resources import (
    Memory,
    count_checkpoint_bytes,
    count_tokens_at_once,
    estimate_step_memory,
)
from bertsmith.training.run_folder import skip_earlier_phases
from bertsmith.training.settings import HardwareSettings

# The relative error of a prediction. Among published runs from which no share of the peak was taken, the
# largest error is 13 % (docs/plan.md), and a share measured on one model is used for others. On this machine
# the rest is measured now. A share that is only assumed may be anything between a third and two thirds.
ERROR, ERROR_HERE, ERROR_ASSUMED = 0.25, 0.20, 0.50
_FLOAT = 4  # bytes
_LONGEST = {"tokens": 1e18, "steps": 1e15, "hours": 1e9}  # more must be a typing error
_FEW_TOKENS = 8192  # per GPU and step: computing them takes about as long as launching all kernels
_GB = 1e9
# For measurements of this machine.
_CPU_BYTES, _CUDA_BYTES = 2**27, 2**30  # larger than every cache; copied in a few milliseconds
_FEWEST_COPIES = 5
_SEQUENCES, _LONGEST_PAIR, _LAYERS = 32, 128, 4  # of the steps that are timed
_MASKED = 0.15


@dataclass(frozen=True)
class Plan:
    """The prediction for a run.

    `parts` are those of the whole run, and `hours` is their sum, with a relative error of at most `error`;
    for a run of given hours (`in_time`) the error is that of steps and tokens. `cost` is None without a
    price, `epochs` without a token store; epochs count the corpus's own text. `share` is the share of the
    hardware's peak that matrix products reach.
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
        """FLOP of all matrix products, including evaluation."""
        return sum(part.flops for part in self.parts)


@check_arguments(
    recipe=any_of(check_text, instance_of(Recipe)),
    overrides=list_of(check_text),
    hardware=any_of(check_text, instance_of(Accelerator)),
    gpus=integer_from(1),
    price_per_hour=optional(check_number),
    tokens=optional(check_number),
)
def plan(
    recipe: str | Recipe,
    *overrides: str,
    hardware: str | Accelerator = HERE,
    gpus: int = 1,
    price_per_hour: float | None = None,
    tokens: float | None = None,
) -> Plan:
    """Predicts a pre-training run on so many `gpus`. Trains nothing and writes nothing.

    `hardware` is a name in accelerators.toml, or `here`, which measures this machine for a few seconds.
    `price_per_hour` is the price of one GPU. `tokens` replaces the recipe's length by a number of training
    tokens. Raises RecipeError for a recipe that contradicts itself, InputError for unknown hardware.
    """
    recipe = as_recipe(recipe, overrides)
    _check_lengths(recipe, gpus, tokens, price_per_hour)
    recipe = skip_earlier_phases(recipe)
    inputs = find_inputs(recipe)
    accelerator = _choose_accelerator(hardware, gpus, recipe, inputs.config)
    precision = recipe.hardware.precision
    if precision not in ("auto", accelerator.precision):
        raise RecipeError(
            f"hardware.precision = {precision}, but for {accelerator.title} only the speed in "
            f"{accelerator.precision} is known. Leave it at auto, or measure the machine itself: "
            f"--hardware {HERE}."
        )
    machine = _first_process(gpus, accelerator, recipe)
    checkpoint = count_checkpoint_bytes(inputs.model, recipe.optimizer)
    cost = RunCost(recipe, inputs, accelerator, machine, checkpoint)
    phases = cost.phase_work(tokens)
    steps = sum(phase.steps for phase in phases)
    training = cost.steps_bill(phases)
    parts = (*training, *cost.pauses_bill(steps))
    hours = sum(part.seconds for part in parts) / 3600
    trained_tokens = sum(phase.tokens for phase in phases)
    own_text = sum(phase.steps * phase.step.own_text for phase in phases)
    memory = estimate_step_memory(inputs.model, recipe, machine)
    return Plan(
        recipe=recipe,
        hardware=accelerator,
        gpus=gpus,
        hours=hours,
        error=ERROR_ASSUMED if accelerator.is_assumed else ERROR_HERE if accelerator.is_here else ERROR,
        in_time=recipe.hours is not None and tokens is None,
        cost=None if price_per_hour is None else price_per_hour * hours * gpus,
        steps=steps,
        tokens=trained_tokens,
        tokens_per_second=trained_tokens / sum(part.seconds for part in training),
        epochs=None if inputs.store is None else own_text / max(len(inputs.store.tokens), 1),
        share=accelerator.share(inputs.config.hidden_size),
        weights=inputs.weights,
        micro_batch_tokens=count_tokens_at_once(recipe, machine),
        memory=memory,
        checkpoint_bytes=checkpoint,
        disk_bytes=(recipe.checkpoint.keep + 1) * checkpoint + _FLOAT * inputs.weights,
        phases=phases,
        parts=parts,
        notes=(*inputs.notes, *_note_unknown_share(accelerator, inputs.config.hidden_size)),
        warnings=(
            *_warn_of_few_tokens(phases, accelerator, gpus),
            *check_memory(inputs.model, recipe, machine, accelerator),
        ),
    )


def _check_lengths(recipe: Recipe, gpus: int, tokens: float | None, price: float | None) -> None:
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


def _first_process(gpus: int, accelerator: Accelerator, recipe: Recipe) -> Machine:
    """The first of the run's processes, from whose settings shapes and memory are computed."""
    device = "cpu" if accelerator.name == "here-cpu" else "cuda"
    return Machine(
        device=torch.device(device),
        precision=getattr(torch, accelerator.precision),
        peak=accelerator.peak,
        ranks=Ranks(0, gpus),
        micro_batch_tokens=recipe.data.micro_batch_tokens or usual_batch_tokens(device),
        sharded=recipe.hardware.shard == "full" and gpus > 1,
    )


def _choose_accelerator(
    hardware: str | Accelerator, gpus: int, recipe: Recipe, config: BertConfig
) -> Accelerator:
    """The accelerator of that name, or this machine, measured now; an Accelerator is returned unchanged.
    Raises InputError for more GPUs than this machine has.
    """
    if isinstance(hardware, Accelerator):
        return hardware
    if hardware != HERE:
        return find_accelerator(hardware)
    detected = Hardware.detect()
    gpus_here = 0 if recipe.hardware.device == "cpu" else len(detected.gpus)
    if gpus > max(1, gpus_here):
        only = f"only {counted(gpus_here, 'GPU')}"
        what = only if gpus_here else "no GPU to use, and its processor counts as one"
        raise InputError(f"gpus is {gpus}, but this machine has {what}. Name the hardware to plan for.")
    return measure_here(config, recipe.hardware, detected)


def _note_unknown_share(machine: Accelerator, width: int) -> list[str]:
    """Notes on what isn't known about the share of the peak, on which the whole prediction depends."""
    notes = []
    if machine.is_assumed:
        notes.append(
            f"The share of the peak is assumed, not measured, on {machine.title}: a few minutes of the run "
            "itself, whose log has the share, are worth their price before days are paid."
        )
    if not machine.knows(width):
        widths = " and ".join(str(share) for share in sorted(machine.shares))
        notes.append(
            f"The share is known for a width of {widths}, not for {width}: the nearest is taken. Narrow "
            "models reach less, wide ones more."
        )
    return notes


def _warn_of_few_tokens(phases: tuple[PhaseWork, ...], machine: Accelerator, gpus: int) -> list[str]:
    """A warning if kernels are so short that launching them, which isn't in the cost model, takes as long."""
    fewest = min(phase.step.tokens for phase in phases if phase.steps) / gpus
    if machine.name == "here-cpu" or fewest >= _FEW_TOKENS:
        return []
    return [
        f"A GPU gets only {fewest:,.0f} tokens a step. Starting the kernels, which is not counted here, then "
        "takes about as long as computing: expect twice the time. Raise data.batch_size, or take fewer GPUs."
    ]


# -- does it fit? --------------------------------------------------------------------------------------


def check_memory(
    model: PretrainedModel, recipe: Recipe, machine: Machine, hardware: Accelerator
) -> list[str]:
    """Empty if the run fits into memory; else a warning with the memory it needs and a remedy: a smaller
    micro-batch, weights sharded over the GPUs, or a larger GPU.
    """
    needed = estimate_step_memory(model, recipe, machine).total
    if needed <= hardware.memory:
        return []
    sentence = (
        f"This does not fit: about {needed / _GB:.1f} GB are needed with "
        f"{count_tokens_at_once(recipe, machine):,} tokens at a time, and {hardware.title} has "
        f"{hardware.memory / _GB:.1f} GB."
    )
    fitting = find_largest_micro_batch(model, recipe, machine, hardware.memory)
    if fitting is not None:
        return [f"{sentence} data.micro_batch_tokens={fitting} would, with the same result."]
    sentence = f"{sentence} No micro-batch is small enough:"
    has_several_gpus = machine.ranks.count > 1
    sharded_machine = replace(machine, sharded=True)
    if (
        has_several_gpus
        and find_largest_micro_batch(model, recipe, sharded_machine, hardware.memory) is not None
    ):
        return [
            f"{sentence} hardware.shard=full would divide weights, gradients and moments between the GPUs."
        ]
    for entry in sorted(list_accelerators().values(), key=lambda entry: entry.memory):
        if find_largest_micro_batch(model, recipe, machine, entry.memory) is not None:
            return [f"{sentence} --hardware {entry.name} would hold it."]
    return [f"{sentence} choose a smaller model.size."]


def find_largest_micro_batch(
    model: PretrainedModel, recipe: Recipe, machine: Machine, memory: float
) -> int | None:
    """The largest micro-batch that fits, in tokens, a power of two that holds the longest sequence; None if
    none fits.
    """

    def fits(tokens: int) -> bool:
        return (
            estimate_step_memory(model, recipe, replace(machine, micro_batch_tokens=tokens)).total <= memory
        )

    longest = max(recipe.data.sequence_lengths)
    tokens = 1 << (longest - 1).bit_length()
    if not fits(tokens):
        return None
    most = recipe.data.batch_size * longest / machine.ranks.count
    while tokens < most and fits(2 * tokens):
        tokens *= 2
    return tokens


# -- what this machine reaches ---------------------------------------------------------------------------


def measure_here(
    config: BertConfig, settings: HardwareSettings | None = None, hardware: Hardware | None = None
) -> Accelerator:
    """Measures this machine: matrix products and memory bandwidth, half a second each; on a processor also
    some training steps of such a model, because the share of time outside matrix products differs between
    processors.

    Uses the device, precision and threads that training by `settings` would use.
    """
    hardware, threads = hardware or Hardware.detect(), torch.get_num_threads()
    try:
        machine = set_up_machine(settings or HardwareSettings(), None, hardware)
        on_gpu = machine.device.type == "cuda"
        processor = f"{hardware.processor}, threads: {torch.get_num_threads()}"
        shares = {} if on_gpu else {"shares": {config.hidden_size: measure_share_of_peak(config, machine)}}
        return make_entry_for_here(
            "cuda" if on_gpu else "cpu",  # Apple's GPU shares the processor's memory
            **shares,
            title=hardware.gpus[0].name if on_gpu else processor,
            precision=str(machine.precision).removeprefix("torch."),
            peak=machine.peak,
            memory=float(min(gpu.memory for gpu in hardware.gpus) if on_gpu else hardware.memory_available),
            memory_bandwidth=memory_bandwidth(machine.device),
        )
    finally:
        torch.set_num_threads(threads)  # as the caller had them


def measure_share_of_peak(config: BertConfig, machine: Machine, seconds: float = 1.0) -> float:
    """Measures which share of the machine's peak forward and backward passes of a model of this shape reach,
    with up to four layers. Returns the median of several steps, each on its own random sequences, because new
    shapes cost time too.

    The first step doesn't count; the others take about `seconds` together, at least one. Leaves torch's
    random state unchanged.
    """
    config = config.model_copy(update={"num_hidden_layers": min(config.num_hidden_layers, _LAYERS)})
    generator, longest = np.random.default_rng(0), min(_LONGEST_PAIR, config.max_length)
    speeds, spent = list[float](), 0.0
    with torch.random.fork_rng(devices=[]):
        model = PretrainingModel(config, next_sentence=False).train()
        while len(speeds) < 2 or spent < seconds:
            # 32 of up to 128 tokens, none shorter than half of that
            lengths = generator.integers(max(longest // 2, 1), longest + 1, _SEQUENCES)
            tokens = int(lengths.sum())
            ids = generator.integers(0, config.vocab_size, tokens)
            masked = np.sort(generator.permutation(tokens)[: max(round(_MASKED * tokens), 1)])
            batch, rows = PackedBatch.pack(ids, np.zeros_like(ids), lengths), torch.from_numpy(masked)
            squares = float((lengths.astype(float) ** 2).sum())
            amounts = StepAmounts(len(lengths), float(tokens), squares, len(rows))
            flops = sum(flops_by_part(config, amounts, next_sentence=False).values())
            duration = _time_step(model, batch, rows, machine)
            spent += duration if speeds else 0.0
            speeds.append(flops / duration)
    return statistics.median(speeds[1:]) / machine.peak


@fast_matmul()
def _time_step(model: PretrainingModel, batch: PackedBatch, rows: torch.Tensor, machine: Machine) -> float:
    start = time.perf_counter()
    with machine.autocast():
        loss = model.masked_language_loss(model.encoder(batch, rows), batch.token_ids[rows])
    loss.backward()
    seconds = time.perf_counter() - start
    model.zero_grad()
    return seconds


def memory_bandwidth(device: torch.device, seconds: float = 0.5) -> float:
    """Measures memory bandwidth in bytes per second, read plus written, as the median of several large
    copies.
    """
    size = _CUDA_BYTES if device.type == "cuda" else _CPU_BYTES
    source = torch.ones(size // 4, device=device)
    target = torch.empty_like(source)
    _time_copy(source, target)
    durations: list[float] = []
    while len(durations) < _FEWEST_COPIES or sum(durations) < seconds:
        durations.append(_time_copy(source, target))
    return 2 * size / statistics.median(durations)


def _time_copy(source: torch.Tensor, target: torch.Tensor) -> float:
    """The seconds of one copy. A GPU works asynchronously, so it is synchronised before and after."""
    synchronize(source.device)
    start = time.perf_counter()
    target.copy_(source)
    synchronize(source.device)
    return time.perf_counter() - start
