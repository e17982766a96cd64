"""Float32 products at the speed of the processor: by oneDNN where MKL, which torch asks by default, is slow.

MKL keeps AVX-512 for Intel's processors. On a core of AMD's Zen 5 it reaches 100 GFLOP/s, oneDNN 230.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from threading import Lock

import torch

CPUINFO = Path("/proc/cpuinfo")  # Linux's
# oneDNN keeps code, and torch scratch memory beside it, for each of the last 1,024 shapes it has met: about a
# megabyte a shape, where each batch has new ones. To make them anew takes a quarter of a millisecond. A step
# of training has three times as many as a forward pass.
_SCRATCH, _CODE = "LRU_CACHE_CAPACITY", "ONEDNN_PRIMITIVE_CACHE_CAPACITY"
_KEPT_IN_TRAINING = {_SCRATCH: "16", _CODE: "64"}
_KEPT = {_SCRATCH: "4", _CODE: "32"}  # a layer has four products; texts of up to 64 tokens have eight lengths
FEWEST_TOKENS = 256  # below, making code for new shapes takes longer than it saves


@contextmanager
def fast_products(tokens: int = FEWEST_TOKENS) -> Iterator[None]:
    """Within it, float32 products of this process are oneDNN's on AMD's processors with AVX-512, unless they
    are of few tokens.

    torch asks oneDNN for them when it may compute in bfloat16. oneDNN does that with AMX instructions alone,
    and those AMD lacks: sums are in another order, and as exact. Not for all of a process, because torch's
    own attention gets slow by it. Elsewhere nothing changes. Also a decorator.
    """
    keep_few_shapes()
    if tokens < FEWEST_TOKENS or not onednn_is_faster():
        yield
        return
    _SWITCH.enter()
    try:
        yield
    finally:
        _SWITCH.leave()


class _Switch:
    """The process's setting: on from the first thread that needs it to the last one."""

    def __init__(self) -> None:
        self.lock, self.users, self.before = Lock(), 0, "none"

    def enter(self) -> None:
        matmul = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]
        with self.lock:
            if self.users == 0:
                self.before = matmul.fp32_precision
                matmul.fp32_precision = "bf16"
            self.users += 1

    def leave(self) -> None:
        with self.lock:
            self.users -= 1
            if self.users == 0:
                torch.backends.mkldnn.matmul.fp32_precision = self.before  # type: ignore[attr-defined]


_SWITCH = _Switch()


@cache
def onednn_is_faster() -> bool:
    """Whether this is a processor of AMD's with AVX-512, which torch uses too."""
    if torch.backends.cpu.get_cpu_capability() != "AVX512" or not CPUINFO.exists():
        return False
    found = CPUINFO.read_text(encoding="utf-8")
    return "AuthenticAMD" in found and "amx_bf16" not in found


def keep_few_shapes() -> None:
    """Unless the environment says how many. It is read at the first product, and then never again."""
    _keep(in_training=torch.is_grad_enabled())


@cache
def _keep(*, in_training: bool) -> None:
    for name, count in (_KEPT_IN_TRAINING if in_training else _KEPT).items():
        os.environ.setdefault(name, count)
