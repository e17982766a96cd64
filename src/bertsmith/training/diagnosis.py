"""What `bertsmith doctor` reports: hardware, installed packages, expected training speed, and warnings."""

import importlib.metadata
import os
import platform
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from bertsmith.machine import Hardware, matmul_flops
from bertsmith.model.config import PRESETS, BertConfig, preset
from bertsmith.model.cpu.kernels import has_kernels
from bertsmith.model.flops import encoder_flops, vocabulary_flops
from bertsmith.reporting.formatting import counted
from bertsmith.training.machine import default_threads

# The optional dependencies in pyproject.toml that are meant for users.
EXTRAS = (
    *("minilm", "hub", "tune", "retrieval", "ray", "serving", "mirror", "export", "openvino", "mteb"),
    "japanese",
)

_GB = 10**9
# The demo holds about 2 GB at its peak and writes about 1 GB, environment not counted.
_LEAST_MEMORY, _LEAST_DISK = 3 * _GB, 3 * _GB
# Set the threads of other libraries. Bertsmith ignores them: it follows OMP_NUM_THREADS alone.
_THREAD_VARIABLES = ("MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
_BUSY = 0.5  # cores kept busy by other programs

_LENGTH, _MASKED_SHARE = 128, 0.15
# The share of the matrix-product speed that pre-training reaches: measured in bench/ for the CPU, a guess
# for GPUs.
_EXPECTED_SHARE = {"cpu": 0.6, "cuda": 0.4}


@dataclass(frozen=True)
class StepSpeed:
    """Pre-training speed to expect for one published size, at length 128 and with its usual vocabulary."""

    size: str
    parameters: int
    tokens_per_second: float

    @property
    def hours_per_billion_tokens(self) -> float:
        return 1e9 / self.tokens_per_second / 3600


@dataclass(frozen=True)
class Diagnosis:
    """The doctor's findings.

    threads: how many torch would train with. disk_free: bytes in the folder of the runs.
    packages, extras: installed version by package name (of `extras` by extra), None where it is missing.
    matmul_flops: measured FLOP/s of a matrix product. kernels: whether our CPU kernels can be used.
    speeds: the expected speed of each published size. warnings: sentences, each with the way out.
    """

    hardware: Hardware
    threads: int
    disk_free: int
    python: str
    system: str
    packages: dict[str, str | None]
    extras: dict[str, dict[str, str | None]]
    matmul_flops: float
    kernels: bool
    speeds: tuple[StepSpeed, ...]
    warnings: tuple[str, ...]


def diagnose(folder: Path = Path(), seconds: float = 0.5) -> Diagnosis:
    """Examines the machine and times its matrix product for about `seconds` (at least three products).

    `folder` is where runs would be written: its free disk space is reported. Sets torch's number of threads
    to the number that training would use.
    """
    hardware = Hardware.detect()
    # before the measurement, which would count as load itself
    busy = _measure_load()
    threads = default_threads(hardware)
    torch.set_num_threads(threads)
    flops = matmul_flops(hardware.precision, seconds, hardware.device)
    disk_free = shutil.disk_usage(folder).free
    return Diagnosis(
        hardware=hardware,
        threads=threads,
        disk_free=disk_free,
        python=platform.python_version(),
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
        packages=read_package_versions(None),
        extras={extra: read_package_versions(extra) for extra in EXTRAS},
        matmul_flops=flops,
        kernels=has_kernels(),
        speeds=estimate_speeds(flops * _EXPECTED_SHARE[hardware.device.type]),
        warnings=tuple(find_warnings(hardware, disk_free, busy, dict(os.environ))),
    )


def estimate_speeds(flops: float) -> tuple[StepSpeed, ...]:
    """Tokens per second of each published size when `flops` FLOP/s go into useful products."""
    configs = {size: preset(size) for size in PRESETS}
    return tuple(
        StepSpeed(size, _count_parameters(config), flops / pretraining_flops_per_token(config))
        for size, config in configs.items()
    )


def pretraining_flops_per_token(
    config: BertConfig, length: int = _LENGTH, masked_share: float = _MASKED_SHARE
) -> float:
    """FLOPs of one training step, per token: those of the forward pass, and twice as many backward.

    Counts the products of linear layers, of attention over `length` tokens, and of the MLM head at masked
    positions only.
    """
    encoder = encoder_flops(config, np.array([length]), rows=length)
    return 3 * (encoder + vocabulary_flops(config, masked_share * length)) / length


def find_warnings(hardware: Hardware, disk_free: int, busy: float, environment: dict[str, str]) -> list[str]:
    """Sentences on what would make training slow or stop it, each with the way out.

    disk_free: bytes. busy: how many cores other programs use or wait for, on average. environment: the
    process's environment variables.
    """
    warnings = [
        f"{name}={environment[name]} is set, which training does not follow: of such variables it heeds "
        "OMP_NUM_THREADS alone, and the recipe's hardware.threads."
        for name in _THREAD_VARIABLES
        if name in environment and environment[name] != str(hardware.threads)
    ]
    if busy > _BUSY:
        warnings.append(
            f"Other programs keep about {min(busy, hardware.cores):.1f} of {hardware.cores} cores busy. "
            "Speeds measured now are too low, and training will share the cores with them."
        )
    if hardware.cpu_limit is not None and hardware.cpu_limit < hardware.cores:
        warnings.append(
            f"This container shows {hardware.cores} cores but grants the time of {hardware.cpu_limit:g}. "
            f"Bertsmith keeps to {counted(hardware.threads, 'thread')}; grant more to go faster."
        )
    if hardware.memory_available < _LEAST_MEMORY:
        warnings.append(
            f"{hardware.memory_available / _GB:.1f} GB of memory are free; the demo wants "
            f"{_LEAST_MEMORY / _GB:.0f}. Close other programs or grant the container more."
        )
    if disk_free < _LEAST_DISK:
        warnings.append(
            f"{disk_free / _GB:.1f} GB of disk are free here; the demo wants {_LEAST_DISK / _GB:.0f}. "
            "Free some space or work in another folder."
        )
    if not hardware.gpus and _has_nvidia_driver():
        warnings.append(
            f"There is an NVIDIA driver, but torch {torch.__version__} sees no GPU. "
            "Install a CUDA build of torch that fits the driver."
        )
    return warnings


def read_package_versions(extra: str | None) -> dict[str, str | None]:
    """The packages that Bertsmith requires, or those of one `extra`, with their installed versions; None for
    one that isn't installed.
    """
    versions: dict[str, str | None] = {}
    for requirement in importlib.metadata.requires("bertsmith") or ():
        marker = re.search(r"extra == ['\"]([\w-]+)['\"]", requirement)
        if (marker and marker[1]) == extra:
            name = re.match(r"[\w.-]+", requirement)
            assert name is not None, requirement
            versions[name[0]] = _read_version(name[0])
    return versions


def _read_version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _count_parameters(config: BertConfig) -> int:
    """Weights of the embeddings and the encoder, biases and LayerNorm left out (under one per cent)."""
    width = config.hidden_size
    rows = config.vocab_size + config.max_position_embeddings + config.type_vocab_size
    return width * rows + config.num_hidden_layers * (4 * width**2 + 2 * width * config.intermediate_size)


def _measure_load() -> float:
    """How many processes ran or waited for a core over the last minute, on average."""
    try:
        return os.getloadavg()[0]
    except (AttributeError, OSError):
        return 0.0


def _has_nvidia_driver() -> bool:
    return Path("/proc/driver/nvidia/version").exists()
