"""This machine as `bertsmith plan` sees one: its matrix product and its memory's speed, measured now."""

import statistics
import time

import torch

from bertsmith.planning.accelerators import Accelerator, entry_for_here
from bertsmith.training.hardware import Hardware
from bertsmith.training.machine import set_up_machine
from bertsmith.training.settings import HardwareSettings

_CPU_BYTES, _CUDA_BYTES = 2**27, 2**30  # beyond every cache; copied in a few milliseconds
_FEWEST_COPIES = 5


def measure_here(settings: HardwareSettings | None = None, hardware: Hardware | None = None) -> Accelerator:
    """Measures the matrix product and copies memory, half a second each.

    On the device, in the precision and with the threads that training by `settings` would take.
    """
    hardware, threads = hardware or Hardware.detect(), torch.get_num_threads()
    machine = set_up_machine(settings or HardwareSettings(), None, hardware)
    on_gpu = machine.device.type == "cuda"
    processor = f"{hardware.processor}, threads: {torch.get_num_threads()}"
    measured = entry_for_here(
        machine.device.type,
        title=hardware.gpus[0].name if on_gpu else processor,
        precision=str(machine.precision).removeprefix("torch."),
        peak=machine.peak,
        memory=float(min(gpu.memory for gpu in hardware.gpus) if on_gpu else hardware.memory_available),
        memory_bandwidth=memory_bandwidth(machine.device),
    )
    torch.set_num_threads(threads)  # as the caller had them
    return measured


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
