"""Fast float32 matrix products: by oneDNN where MKL, torch's default, is slow.

MKL uses AVX-512 on Intel's processors alone. On a core of AMD's Zen 5 it reaches 100 GFLOP/s, oneDNN 230.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from threading import Lock

import torch

CPUINFO = Path("/proc/cpuinfo")  # Linux's
# oneDNN caches code, and torch scratch memory beside it, for the last 1,024 shapes: about a megabyte a shape,
# and each batch has new shapes. Making the code anew takes a quarter of a millisecond. A step of training has
# three times as many products as a forward pass.
_SCRATCH, _CODE = "LRU_CACHE_CAPACITY", "ONEDNN_PRIMITIVE_CACHE_CAPACITY"
_TRAINING_CACHE_SIZES = {_SCRATCH: "16", _CODE: "64"}
_CACHE_SIZES = {
    _SCRATCH: "4",
    _CODE: "32",
}  # a layer has four products; texts of up to 64 tokens have eight lengths
MIN_TOKENS = 256  # below, making code for new shapes takes longer than it saves


@contextmanager
def fast_matmul(tokens: int = MIN_TOKENS) -> Iterator[None]:
    """A context, or a decorator, in which this process computes float32 matrix products by oneDNN, on AMD's
    processors with AVX-512 and for batches of at least MIN_TOKENS tokens. Elsewhere nothing changes.

    The products stay in float32, as exact as MKL's, but with sums in another order. torch calls oneDNN for
    them only when they may be computed in bfloat16, which oneDNN does with AMX instructions alone; AMD lacks
    these. The setting isn't left on for the whole process, since it makes torch's own attention slow.
    """
    limit_shape_caches()
    if tokens < MIN_TOKENS or not onednn_is_faster():
        yield
        return
    _SWITCH.enter()
    try:
        yield
    finally:
        _SWITCH.leave()


class _PrecisionSwitch:
    """Sets `torch.backends.mkldnn.matmul.fp32_precision`, which holds for the whole process, to "bf16" when
    the first thread enters, and back to the value before when the last one leaves.
    """

    def __init__(self) -> None:
        self.lock, self.users, self.previous = Lock(), 0, "none"

    def enter(self) -> None:
        matmul = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]
        with self.lock:
            if self.users == 0:
                self.previous = matmul.fp32_precision
                matmul.fp32_precision = "bf16"
            self.users += 1

    def leave(self) -> None:
        with self.lock:
            self.users -= 1
            if self.users == 0:
                torch.backends.mkldnn.matmul.fp32_precision = self.previous  # type: ignore[attr-defined]


_SWITCH = _PrecisionSwitch()


@cache
def onednn_is_faster() -> bool:
    """Whether torch uses AVX-512 on one of AMD's processors without AMX. With AMX, oneDNN would compute in
    bfloat16.
    """
    if torch.backends.cpu.get_cpu_capability() != "AVX512" or not CPUINFO.exists():
        return False
    processor = CPUINFO.read_text(encoding="utf-8")
    return "AuthenticAMD" in processor and "amx_bf16" not in processor


def limit_shape_caches() -> None:
    """Limits the number of shapes for which oneDNN and torch cache code and memory, by environment variables
    that aren't set yet. Both read them at the process's first matrix product: later calls change nothing.
    """
    _set_cache_sizes(in_training=torch.is_grad_enabled())


@cache
def _set_cache_sizes(*, in_training: bool) -> None:
    for name, count in (_TRAINING_CACHE_SIZES if in_training else _CACHE_SIZES).items():
        os.environ.setdefault(name, count)
