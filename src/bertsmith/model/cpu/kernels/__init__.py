"""What a processor computes faster in C than by torch's operations: compiled at installation where there is
GCC, for x86-64 under Linux. Elsewhere torch's operations do it.
"""

import ctypes
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor


class LinearStruct(ctypes.Structure):
    """The struct of a linear module in kernels.h."""

    _fields_ = (
        ("inputs", ctypes.c_int64),
        ("outputs", ctypes.c_int64),
        ("weight", ctypes.c_void_p),
        ("scales", ctypes.c_void_p),
        ("bias", ctypes.c_void_p),
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
        *((name, ctypes.c_int64) for name in ("heads", "window", "activation", "gated", "pre_norm")),
    )


class AttentionStruct(ctypes.Structure):
    """The struct of one call of attention in kernels.h."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("qkv", "given", "mask", "weights", "to")),
        ("lengths", ctypes.POINTER(ctypes.c_int64)),
        *((name, ctypes.c_int64) for name in ("sequences", "heads", "size", "is_bf16", "window")),
    )


EVERYWHERE = 2**63 - 1  # the window that hides nothing
PRECISIONS = torch.float32, torch.bfloat16
ACTIVATIONS = ("gelu", "gelu_new", "relu", "silu")  # in the order of kernels.h


def can_read(x: Tensor) -> bool:
    """Whether kernels may be given the address of its values: a plain tensor of a processor that has them."""
    plain = type(x) is Tensor and x.device.type == "cpu" and not x.is_neg()
    return plain and x.dtype in PRECISIONS and has_kernels()


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
        is_ours = found.arguments_bytes() == ctypes.sizeof(LayerStruct) + ctypes.sizeof(AttentionStruct)
        for name in (
            *("exponentiate", "dropout_mask", "activate_forward", "activate_backward"),
            *("rotate", "product"),
        ):
            getattr(found, name).restype = None
        found.attention_cells.restype = ctypes.c_int64
    except (
        OSError,
        AttributeError,
    ):  # not compiled, old, for another C library, or torch without GNU's OpenMP
        return None
    if not is_ours:  # compiled by another version
        return None
    values, whole, number = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int
    layer, lengths = ctypes.POINTER(LayerStruct), ctypes.POINTER(whole)
    found.attend.argtypes = found.attention_cells.argtypes = [ctypes.POINTER(AttentionStruct), number]
    found.self_attend.argtypes = [layer, values, lengths, whole, values, values, number, values]
    found.feed_forward.argtypes = [layer, values, values, whole, number, values]
    found.product.argtypes = [ctypes.POINTER(LinearStruct), values, whole, number, values]
    found.exponentiate.argtypes = [values, values, whole, whole, number, number, *[values] * 3]
    shape = whole, whole, number, whole, number, number
    found.activate_forward.argtypes = [values, values, *shape, values]
    found.activate_backward.argtypes = [values, values, values, *shape, values, values]
    found.rotate.argtypes = [*[values] * 4, whole, whole, whole, number, number, number]
    found.dropout_mask.argtypes = [values, whole, ctypes.c_uint64, number, ctypes.c_float, number, number]
    return found
