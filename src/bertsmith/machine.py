"""What this machine has, and what training will use of it and why. Bytes are bytes, speeds are FLOP/s.

Inside a container the machine's own figures mislead: eight cores are visible where one and a half are
granted, and a process that goes by the memory of the host is killed without a word. So the limits of its
Linux cgroup, version 1 or 2, are read too.
"""

import os
import platform
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import psutil
import torch

from bertsmith.argument_checks import describe_value
from bertsmith.errors import InputError
from bertsmith.model.cpu.onednn_matmul import fast_matmul

# The Linux kernel's names of what matters to matrix products -> the names people use.
_INSTRUCTIONS = {
    "avx2": "avx2",
    "avx512f": "avx512",
    "avx512_vnni": "avx512_vnni",
    "avx512_bf16": "avx512_bf16",
    "amx_bf16": "amx_bf16",
    "amx_int8": "amx_int8",
    "asimd": "neon",
    "sve": "sve",
    "bf16": "bf16",
}
_NATIVE_BFLOAT16 = frozenset({"avx512_bf16", "amx_bf16"})
_FIRST_GPU_WITH_BFLOAT16 = (8, 0)
# Large enough to leave every cache, small enough for half a second of measuring.
_CPU_SIZE, _CUDA_SIZE = 2048, 8192
_FEWEST_PRODUCTS = 3
# Without a limit, version 1 reports a page count near 2**63; no machine has that much.
_NO_LIMIT = 1 << 60


@dataclass(frozen=True)
class Gpu:
    """One CUDA device. `capability` is NVIDIA's (major, minor)."""

    name: str
    memory: int
    capability: tuple[int, int]

    @property
    def has_bfloat16(self) -> bool:
        return self.capability >= _FIRST_GPU_WITH_BFLOAT16


@dataclass(frozen=True)
class Hardware:
    """The machine as this process may use it.

    `visible_cores` are those this process may run on, `cores` how many of them do arithmetic of their own
    (two hyper-threads share one), `cpu_limit` the cores' worth of time a container grants, if it sets one.
    """

    processor: str
    visible_cores: int
    cores: int
    cpu_limit: float | None
    instructions: tuple[str, ...]
    memory: int
    memory_available: int
    gpus: tuple[Gpu, ...]

    @classmethod
    def detect(cls) -> "Hardware":
        """Looks at the machine; takes milliseconds, or the start of the CUDA driver where there is a GPU."""
        # The logical cores that this process may run on; all of them if the system can't tell.
        usable = (
            os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))
        )
        limit = memory_limit()
        memory = psutil.virtual_memory()
        return cls(
            processor=_read_cpuinfo("model name") or platform.processor() or platform.machine(),
            visible_cores=len(usable),
            cores=_count_physical_cores(usable),
            cpu_limit=cpu_limit(),
            instructions=_list_instructions(),
            memory=min(memory.total, limit.total) if limit else memory.total,
            memory_available=min(memory.available, limit.available) if limit else memory.available,
            gpus=_list_gpus(),
        )

    @property
    def device(self) -> torch.device:
        return torch.device("cuda" if self.gpus else "cpu")

    @property
    def has_mps(self) -> bool:
        """Whether torch can use Apple's GPU, which is taken only where `mps` is asked for."""
        return torch.backends.mps.is_available()

    @property
    def threads(self) -> int:
        """How many threads one process should compute with: one a core, never more than is granted.

        A thread beyond that does not add speed; it makes all others wait at the end of every product.
        """
        granted = self.cores if self.cpu_limit is None else int(self.cpu_limit)
        return max(1, min(self.cores, granted))

    @property
    def precision(self) -> torch.dtype:
        """bfloat16 if the hardware has instructions for it, else float32."""
        if self.gpus:
            native = all(gpu.has_bfloat16 for gpu in self.gpus)
        else:
            native = not _NATIVE_BFLOAT16.isdisjoint(self.instructions)
        return torch.bfloat16 if native else torch.float32

    @property
    def precision_reason(self) -> str:
        """A sentence for people on why `precision` was chosen."""
        if self.gpus:
            major, minor = min(gpu.capability for gpu in self.gpus)
            verb = "has" if self.precision == torch.bfloat16 else "has no"
            return f"compute capability {major}.{minor} {verb} bfloat16 (8.0 and later do)"
        native = sorted(_NATIVE_BFLOAT16.intersection(self.instructions))
        if native:
            return f"the processor has {' and '.join(native)}"
        # Measured: 1 against 105 GFLOP/s on two Zen 3 cores.
        return "the processor has no bfloat16 instructions; without them it is 100 times slower"


def device_of(name: torch.device | str) -> torch.device:
    """The device of this name. "auto" is a CUDA GPU where there is one, else the processor; Apple's GPU is
    taken by its name, mps, alone. Raises InputError where there is none.
    """
    if isinstance(name, str) and name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name) if isinstance(name, str | torch.device) else None
    except RuntimeError:
        device = None
    if device is None or device.type not in ("cpu", "cuda", "mps"):
        raise InputError(f"device must be auto, cpu, cuda or mps, found {describe_value(name)}.")
    if device.type == "mps" and not torch.backends.mps.is_available():
        raise InputError("device is mps, but this machine has no Apple GPU that torch can use. Use auto.")
    if device.type == "cuda" and (device.index or 0) >= (count := len(_list_gpus())):
        there = f"{count} that torch can use, counted from 0" if count else "no GPU that torch can use"
        raise InputError(f"device is {describe_value(str(name))}, but this machine has {there}.")
    return device


@fast_matmul()
def matmul_flops(dtype: torch.dtype, seconds: float = 0.5, device: torch.device | None = None) -> float:
    """The machine's matrix-product speed in FLOP/s: the "peak" that speeds are a share of.

    The median of several square products (2048 wide on a CPU, 8192 on a GPU) over about `seconds`, and at
    least three. Uses torch's current number of threads and leaves its random state alone.
    """
    device = device or torch.device("cuda" if torch.cuda.is_available() else "cpu")
    size = _CUDA_SIZE if device.type == "cuda" else _CPU_SIZE
    # Random numbers, since a GPU runs faster on zeros than on real work.
    random = torch.Generator(device).manual_seed(0)
    left, right = (torch.randn(size, size, device=device, generator=random).to(dtype) for _ in range(2))
    product = torch.empty_like(left)
    _time_product(left, right, product)
    durations: list[float] = []
    while len(durations) < _FEWEST_PRODUCTS or sum(durations) < seconds:
        durations.append(_time_product(left, right, product))
    return float(2 * size**3 / statistics.median(durations))


def _time_product(left: torch.Tensor, right: torch.Tensor, product: torch.Tensor) -> float:
    """A GPU works on its own time, so both ends wait for it."""
    synchronize(left.device)
    start = time.perf_counter()
    torch.mm(left, right, out=product)
    synchronize(left.device)
    return time.perf_counter() - start


def synchronize(device: torch.device) -> None:
    """Waits until a GPU has computed all that it was asked for."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


def _count_physical_cores(cpus: set[int], root: Path = Path("/sys/devices/system/cpu")) -> int:
    """How many different cores the logical processors belong to."""
    cores = set()
    try:
        for cpu in cpus:
            topology = root / f"cpu{cpu}" / "topology"
            cores.add(((topology / "physical_package_id").read_text(), (topology / "core_id").read_text()))
    except OSError:
        return min(len(cpus), psutil.cpu_count(logical=False) or len(cpus))
    return len(cores)


def _list_instructions() -> tuple[str, ...]:
    """Linux says what the processor has; elsewhere torch's own level is all there is to know."""
    flags = set((_read_cpuinfo("flags") or _read_cpuinfo("Features")).split())
    if not flags:
        return (torch.backends.cpu.get_cpu_capability().lower(),)
    return tuple(name for flag, name in _INSTRUCTIONS.items() if flag in flags)


def _read_cpuinfo(key: str) -> str:
    """The first value of a key in /proc/cpuinfo, or nothing."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.split(":")[0].strip() == key), "")


def _list_gpus() -> tuple[Gpu, ...]:
    if not torch.cuda.is_available():
        return ()
    found = [torch.cuda.get_device_properties(number) for number in range(torch.cuda.device_count())]
    return tuple(Gpu(gpu.name, gpu.total_memory, (gpu.major, gpu.minor)) for gpu in found)


class MemoryLimit(NamedTuple):
    """Bytes granted, and bytes still free among them (the file cache counts as free: it gives way)."""

    total: int
    available: int


def cpu_limit(root: Path = Path("/")) -> float | None:
    """Cores' worth of time granted (1.5 means 150 ms in every 100 ms); None without a limit.

    `root` is where proc/ and sys/ are found; tests give their own.
    """
    shares = [
        share for folder in _list_cgroups("cpu", root) if (share := _read_cpu_share(folder)) is not None
    ]
    return min(shares, default=None)


def memory_limit(root: Path = Path("/")) -> MemoryLimit | None:
    """The tightest memory limit of the cgroup and of those it lies in; None without one."""
    limits = [
        limit for folder in _list_cgroups("memory", root) if (limit := _read_memory_limit(folder)) is not None
    ]
    return min(limits, key=lambda limit: limit.available, default=None)


def _list_cgroups(controller: str, root: Path) -> Iterator[Path]:
    """The folders that govern this process, innermost first. Limits of outer ones hold as well."""
    mount = root / "sys/fs/cgroup"
    for line in _read_lines(root / "proc/self/cgroup"):
        number, controllers, path = line.split(":", 2)
        if number != "0" and controller not in controllers.split(","):
            continue
        base = mount if number == "0" else mount / controller
        innermost = base / path.lstrip("/")
        yield from (folder for folder in (innermost, *innermost.parents) if folder.is_relative_to(base))


def _read_cpu_share(folder: Path) -> float | None:
    """Version 2: "150000 100000" or "max 100000" in one file; version 1: two files, -1 for no limit."""
    if words := _read_words(folder / "cpu.max"):
        quota, period = words
    else:
        quota = "".join(_read_words(folder / "cpu.cfs_quota_us"))
        period = "".join(_read_words(folder / "cpu.cfs_period_us"))
    if not quota or not period or quota in ("max", "-1"):
        return None
    return int(quota) / int(period)


def _read_memory_limit(folder: Path) -> MemoryLimit | None:
    total = _read_number(folder / "memory.max") or _read_number(folder / "memory.limit_in_bytes")
    used = _read_number(folder / "memory.current") or _read_number(folder / "memory.usage_in_bytes") or 0
    if total is None or total > _NO_LIMIT:
        return None
    statistics = dict(line.split() for line in _read_lines(folder / "memory.stat"))
    # bytes of file cache that have not been touched lately
    reclaimable = int(statistics.get("total_inactive_file", statistics.get("inactive_file", "0")))
    return MemoryLimit(total, max(0, min(total, total - used + reclaimable)))


def _read_number(path: Path) -> int | None:
    words = _read_words(path)
    return int(words[0]) if words and words[0].isdigit() else None


def _read_words(path: Path) -> list[str]:
    return [word for line in _read_lines(path) for word in line.split()]


def _read_lines(path: Path) -> list[str]:
    """A file that isn't there (another system, another version) sets no limit."""
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
