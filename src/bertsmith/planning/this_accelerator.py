"""This machine as `bertsmith plan` sees one: its matrix product, its memory's speed and, of a processor, what
training makes of them, measured now.
"""

import statistics
import time

import numpy as np
import torch

from bertsmith.data.batch import PackedBatch
from bertsmith.machine import Hardware
from bertsmith.model.config import BertConfig
from bertsmith.model.cpu.onednn_matmul import fast_products
from bertsmith.planning.accelerators import Accelerator, entry_for_here
from bertsmith.planning.step_cost import flops_by_part
from bertsmith.planning.workload import StepAmounts
from bertsmith.tasks.pretraining.pretraining import PretrainingModel
from bertsmith.training.machine import Machine, set_up_machine
from bertsmith.training.settings import HardwareSettings

_CPU_BYTES, _CUDA_BYTES = 2**27, 2**30  # beyond every cache; copied in a few milliseconds
_FEWEST_COPIES = 5
_SEQUENCES, _LONGEST, _LAYERS = 32, 128, 4  # of the steps that are tried
_MASKED = 0.15


def measure_here(
    config: BertConfig, settings: HardwareSettings | None = None, hardware: Hardware | None = None
) -> Accelerator:
    """Measures the matrix product and copies memory, half a second each; on a processor also trains such a
    model for some steps, since what isn't a product takes another share of the time on each.

    On the device, in the precision and with the threads that training by `settings` would take.
    """
    hardware, threads = hardware or Hardware.detect(), torch.get_num_threads()
    machine = set_up_machine(settings or HardwareSettings(), None, hardware)
    on_gpu = machine.device.type == "cuda"
    processor = f"{hardware.processor}, threads: {torch.get_num_threads()}"
    shares = {} if on_gpu else {"shares": {config.hidden_size: share_of_peak(config, machine)}}
    measured = entry_for_here(
        machine.device.type,
        **shares,
        title=hardware.gpus[0].name if on_gpu else processor,
        precision=str(machine.precision).removeprefix("torch."),
        peak=machine.peak,
        memory=float(min(gpu.memory for gpu in hardware.gpus) if on_gpu else hardware.memory_available),
        memory_bandwidth=memory_bandwidth(machine.device),
    )
    torch.set_num_threads(threads)  # as the caller had them
    return measured


def share_of_peak(config: BertConfig, machine: Machine, seconds: float = 1.0) -> float:
    """Of the machine's matrix product, what products reach in forward and backward passes of a model of this
    shape, of up to four layers: the median of several, each on made-up pairs of its own, as new shapes cost
    something too.

    The first step is not counted; the others take about `seconds`, and there is at least one. Leaves torch's
    random state alone.
    """
    config = config.model_copy(update={"num_hidden_layers": min(config.num_hidden_layers, _LAYERS)})
    draw = np.random.default_rng(0)
    speeds, spent = list[float](), 0.0
    with torch.random.fork_rng(devices=[]):
        model = PretrainingModel(config, next_sentence=False).train()
        while len(speeds) < 2 or spent < seconds:
            batch, rows = _made_up_pairs(config, draw)
            lengths = np.array(batch.lengths, float)
            amounts = StepAmounts(len(lengths), lengths.sum(), (lengths**2).sum(), len(rows))
            flops = sum(flops_by_part(config, amounts, next_sentence=False).values())
            duration = _seconds_of_step(model, batch, rows, machine)
            spent += duration if speeds else 0.0
            speeds.append(flops / duration)
    return statistics.median(speeds[1:]) / machine.peak


def _made_up_pairs(config: BertConfig, draw: np.random.Generator) -> tuple[PackedBatch, torch.Tensor]:
    """32 of up to 128 tokens, none shorter than half of that, and the rows that are masked."""
    longest = min(_LONGEST, config.max_length)
    lengths = draw.integers(max(longest // 2, 1), longest + 1, _SEQUENCES)
    tokens = int(lengths.sum())
    ids = draw.integers(0, config.vocab_size, tokens)
    rows = np.sort(draw.permutation(tokens)[: max(round(_MASKED * tokens), 1)])
    return PackedBatch.pack(ids, np.zeros_like(ids), lengths), torch.from_numpy(rows)


@fast_products()
def _seconds_of_step(
    model: PretrainingModel, batch: PackedBatch, rows: torch.Tensor, machine: Machine
) -> float:
    start = time.perf_counter()
    with machine.autocast():
        loss = model.masked_language_loss(model.encoder(batch, rows), batch.token_ids[rows])
    loss.backward()
    seconds = time.perf_counter() - start
    model.zero_grad()
    return seconds


def memory_bandwidth(device: torch.device, seconds: float = 0.5) -> float:
    """Bytes a second, read and written, of a large copy: the median of several."""
    size = _CUDA_BYTES if device.type == "cuda" else _CPU_BYTES
    source = torch.ones(size // 4, device=device)
    target = torch.empty_like(source)
    _seconds_of_copy(source, target)
    durations: list[float] = []
    while len(durations) < _FEWEST_COPIES or sum(durations) < seconds:
        durations.append(_seconds_of_copy(source, target))
    return 2 * size / statistics.median(durations)


def _seconds_of_copy(source: torch.Tensor, target: torch.Tensor) -> float:
    """A GPU works on its own time, so both ends wait for it."""
    on_gpu = source.device.type == "cuda"
    if on_gpu:
        torch.cuda.synchronize(source.device)
    start = time.perf_counter()
    target.copy_(source)
    if on_gpu:
        torch.cuda.synchronize(source.device)
    return time.perf_counter() - start
