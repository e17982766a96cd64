"""The kernels in C, faster than torch's operations on a CPU: compiled at installation where there is GCC, for
x86-64 and 64-bit ARM under Linux. Elsewhere torch's operations take their place, or NumPy's: this file needs
neither.
"""

import ctypes
import os
import platform
import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor


class LinearStruct(ctypes.Structure):
    """The struct of a linear module in kernels.h."""

    _fields_ = (
        ("inputs", ctypes.c_int64),
        ("outputs", ctypes.c_int64),
        ("weight", ctypes.c_void_p),
        ("scales", ctypes.c_void_p),
        ("bias", ctypes.c_void_p),
        ("sums", ctypes.c_void_p),
    )


class NormStruct(ctypes.Structure):
    """The struct of a norm in kernels.h."""

    _fields_ = (
        ("gain", ctypes.c_void_p),
        ("shift", ctypes.c_void_p),
        ("epsilon", ctypes.c_double),
        ("centred", ctypes.c_int64),
    )


class LayerStruct(ctypes.Structure):
    """The struct of an encoder's layer in kernels.h."""

    _fields_ = (
        *((name, LinearStruct) for name in ("qkv", "output", "up", "down")),
        *((name, NormStruct) for name in ("attention_norm", "feed_forward_norm")),
        *((name, ctypes.c_void_p) for name in ("distance_keys", "distance_queries")),
        *((name, ctypes.c_int64) for name in ("heads", "window", "activation", "gated", "pre_norm")),
    )


class AttentionStruct(ctypes.Structure):
    """The struct of one call of attention in kernels.h."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("qkv", "given", "mask", "weights", "to")),
        ("lengths", ctypes.POINTER(ctypes.c_int64)),
        *((name, ctypes.c_int64) for name in ("sequences", "heads", "size", "is_bf16", "window")),
        *((name, ctypes.c_void_p) for name in ("bias", "to_bias")),
        ("reach", ctypes.c_int64),
        *((name, ctypes.c_void_p) for name in ("distance_keys", "distance_queries", "rows")),
    )


EVERYWHERE = 2**63 - 1  # a window that hides nothing
LINE, SHARES = 16, 8  # of kernels.h
ACTIVATIONS = ("gelu", "gelu_new", "relu", "silu")  # in the order of kernels.h


# The flags of /proc/cpuinfo for which torch chooses a set, the best first.
_FLAGS = {
    "avx512": {"avx512f", "avx512bw", "avx512vl", "avx512dq", "fma"},
    "avx2": {"avx2", "fma"},
}


def can_read(x: "Tensor") -> bool:
    """Whether kernels can read the tensor's values by their address: a plain float32 or bfloat16 tensor on a
    CPU that has the kernels.
    """
    import torch

    plain = type(x) is torch.Tensor and x.device.type == "cpu" and not x.is_neg()
    return plain and x.dtype in (torch.float32, torch.bfloat16) and has_kernels()


def has_kernels() -> bool:
    """Whether the kernels are compiled for this processor."""
    return load_library(find_instruction_set()) is not None


@cache
def find_instruction_set() -> str:
    """The instruction set that torch uses on this processor, found without it: avx2, avx512, or avx512_vnni
    where it has VNNI, the products of int16, too; neon on 64-bit ARM; "default" for another. torch's variable
    ATEN_CPU_CAPABILITY names one instead.
    """
    if platform.machine() == "aarch64":
        return "default" if os.environ.get("ATEN_CPU_CAPABILITY") == "default" else "neon"
    try:
        first = re.search(r"^flags\s*:(.*)", Path("/proc/cpuinfo").read_text(encoding="utf-8"), re.MULTILINE)
    except OSError:
        first = None
    has = set(first[1].split()) if first else set()
    name = os.environ.get("ATEN_CPU_CAPABILITY", "")
    if name not in ("default", *_FLAGS):
        name = next((name for name, flags in _FLAGS.items() if flags <= has), "default")
    return "avx512_vnni" if name == "avx512" and "avx512_vnni" in has else name


@cache
def load_library(instructions: str) -> Any:
    """The library with the functions of kernels.h for an instruction set; None where it isn't compiled."""
    try:
        kernels = ctypes.CDLL(str(Path(__file__).parent / f"{instructions}.so"))
        is_ours = kernels.arguments_bytes() == ctypes.sizeof(LayerStruct) + ctypes.sizeof(AttentionStruct)
        for name in (
            *("exponentiate", "dropout_mask", "activate_forward", "activate_backward"),
            *("rotate", "layer_norm", "hyperbolic_tangents"),
        ):
            getattr(kernels, name).restype = None
        kernels.attention_cells.restype = ctypes.c_int64
        kernels.self_attend_added.restype = ctypes.c_int
    except (OSError, AttributeError):  # not compiled, old, or for another C library
        return None
    if not is_ours:  # compiled by another version
        return None
    address, size, number = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int
    layer, lengths = ctypes.POINTER(LayerStruct), ctypes.POINTER(size)
    kernels.attend.argtypes = kernels.attention_cells.argtypes = [ctypes.POINTER(AttentionStruct), number]
    tables = address, address, address, size, address
    kernels.self_attend.argtypes = [layer, address, lengths, size, *tables, number, address]
    kernels.self_attend_added.argtypes = [layer, address, address, lengths, size, *tables, number, address]
    kernels.feed_forward.argtypes = [layer, address, address, size, number, address]
    kernels.product.argtypes = [ctypes.POINTER(LinearStruct), address, size, number, address]
    kernels.layer_norm.argtypes = [address, size, size, ctypes.POINTER(NormStruct), address]
    kernels.hyperbolic_tangents.argtypes = [address, size]
    kernels.exponentiate.argtypes = [address, address, size, size, number, number, *[address] * 3]
    shape = size, size, number, size, number, number
    kernels.activate_forward.argtypes = [address, address, *shape, address]
    kernels.activate_backward.argtypes = [address, address, address, *shape, address, address]
    kernels.rotate.argtypes = [*[address] * 4, size, size, size, number, number, number]
    kernels.dropout_mask.argtypes = [address, size, ctypes.c_uint64, number, ctypes.c_float, number, number]
    return kernels
