"""What a processor computes without gradients, in C: compiled at installation where there is GCC, for x86-64
under Linux. Elsewhere torch's operations do it.
"""

import ctypes
from functools import cache
from pathlib import Path
from typing import Any

import torch


class Linear(ctypes.Structure):
    """As in kernels.h."""

    _fields_ = (
        ("inputs", ctypes.c_int64),
        ("outputs", ctypes.c_int64),
        ("weight", ctypes.c_void_p),
        ("scales", ctypes.c_void_p),
        ("bias", ctypes.c_void_p),
    )


class Norm(ctypes.Structure):
    """As in kernels.h."""

    _fields_ = (("gain", ctypes.c_void_p), ("shift", ctypes.c_void_p), ("epsilon", ctypes.c_double))


class Layer(ctypes.Structure):
    """As in kernels.h."""

    _fields_ = (
        *((name, Linear) for name in ("qkv", "output", "up", "down")),
        *((name, Norm) for name in ("attention_norm", "feed_forward_norm")),
        ("heads", ctypes.c_int64),
        ("activation", ctypes.c_int64),
    )


def has_kernels() -> bool:
    """Whether they are compiled, and for this processor."""
    return library(instructions()) is not None


@cache
def instructions() -> str:
    """What of this processor torch uses: avx2, avx512, or with VNNI, the products of int16, avx512_vnni."""
    found = torch.backends.cpu.get_cpu_capability().lower()
    return "avx512_vnni" if found == "avx512" and torch.cpu._is_vnni_supported() else found


@cache
def library(instructions: str) -> Any:
    """The functions of kernels.h for a processor that has these; None where there are none."""
    try:
        found = ctypes.CDLL(str(Path(__file__).parent / f"{instructions}.so"))
        is_ours = found.layer_bytes() == ctypes.sizeof(Layer)
    except (OSError, AttributeError):  # not compiled, for another C library, or torch without GNU's OpenMP
        return None
    if not is_ours:  # compiled by another version
        return None
    values, whole, lengths = ctypes.c_void_p, ctypes.c_int64, ctypes.POINTER(ctypes.c_int64)
    layer = ctypes.POINTER(Layer)
    found.attend.argtypes = [values, lengths, whole, whole, whole, ctypes.c_int, values]
    found.self_attend.argtypes = [layer, values, lengths, whole, ctypes.c_int, values]
    found.feed_forward.argtypes = [layer, values, values, whole, ctypes.c_int, values]
    return found
