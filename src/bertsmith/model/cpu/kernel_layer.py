"""A layer for inference on a processor, in C: kernels/layer.c and kernels/product.c say how and why.

N tokens in the packed batch, H hidden size, I feed-forward width, R rows that a head reads.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bertsmith.data.batch import PackedBatch
from bertsmith.errors import ModelError
from bertsmith.model.cpu import kernels
from bertsmith.model.cpu.attention import as_c
from bertsmith.model.layers.attention import select_rows
from bertsmith.model.layers.layer import Layer

PRECISIONS = torch.float32, torch.int16
_GROUP = 128  # inputs of a weight's column that share a scale in int16
_LARGEST = 2**15 - 1  # code of a weight
# What a group's codes may sum up to: times the largest code of a state it is an int32, though each is rounded
# by up to 1/2, and the sum by up to 2.
_ROOM = (2**31 - 1) // 11585 - _GROUP / 2 - 2
PANEL = 16  # columns of a weight that lie together; D and I are multiples


class KernelLinear(nn.Module):
    """A linear module for inference by the kernels: the same outputs in float32. It can't be trained or
    moved.

    A row's values depend neither on the other rows nor on the number of threads, to the bit. Those of torch's
    product do: another number of rows is summed in another order.
    """

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.inputs, self.outputs = linear.in_features, linear.out_features
        missing = -self.outputs % PANEL
        weight = F.pad(linear.weight.detach().float(), (0, 0, 0, missing))
        bias = weight.new_zeros(self.outputs) if linear.bias is None else linear.bias.detach().float()
        self.panels, self.padded_bias = panels(weight), F.pad(bias, (0, missing)).contiguous()

    def forward(self, x: Tensor) -> Tensor:
        """The outputs (N, outputs), in float32, of x (N, inputs)."""
        if x.ndim != 2 or x.shape[1] != self.inputs:
            raise ValueError(f"expected (N, {self.inputs}), found {tuple(x.shape)}")
        x, padded = x.float().contiguous(), len(self.padded_bias)
        found = x.new_empty(len(x), padded)
        # addresses of now: torch's pickler moves tensors into shared memory
        memory = self.panels.data_ptr(), None, self.padded_bias.data_ptr()
        linear = kernels.LinearStruct(self.inputs, padded, *memory)
        threads = min(torch.get_num_threads(), padded // PANEL)
        library = kernels.library(kernels.instructions())
        library.product(linear, x.data_ptr(), len(x), threads, found.data_ptr())
        return found[:, : self.outputs].contiguous()


def by_kernels(model: nn.Module) -> None:
    """Replaces the linear modules of a model by `KernelLinear`, where its encoder's layers are
    `KernelLayer`s.
    """
    if not _has_kernel_layers(model):
        return
    for parent in list(model.modules()):
        for name, child in parent.named_children():
            if type(child) is nn.Linear:
                setattr(parent, name, KernelLinear(child))


def as_kernel(linear: nn.Linear, model: nn.Module) -> nn.Module:
    """A `KernelLinear` for a linear module that is used beside a model; the module itself where the model's
    layers aren't the kernels'.
    """
    return KernelLinear(linear) if _has_kernel_layers(model) else linear


def _has_kernel_layers(model: nn.Module) -> bool:
    layers = model.get_submodule("encoder.layers")
    return all(isinstance(layer, KernelLayer) for layer in layers.children())


class KernelLayer(nn.Module):
    """A layer for inference by the kernels, with the same outputs. It can't be trained or moved.

    Products are in `precision`, float32 or int16, all else in float32. Rounding to int16 changes states by
    some 1e-4 of their size, and cosines of vectors by less than 1e-5. A sequence's values depend neither on
    the other sequences of a batch nor on the number of threads, to the bit. A pickled copy works on another
    processor that has the kernels.
    """

    def __init__(self, layer: Layer, precision: torch.dtype) -> None:
        super().__init__()
        self.precision = precision
        attention, feed_forward = layer.attention, layer.feed_forward
        self.width = attention.output.in_features
        self.rotary = attention.rotary
        self.how = {
            "heads": attention.heads,
            "window": kernels.EVERYWHERE if attention.window is None else attention.window,
            "activation": kernels.ACTIVATIONS.index(feed_forward.activation.name),
            "gated": feed_forward.gated,
            "pre_norm": layer.pre_norm,
        }
        self.linears = {
            "qkv": _prepared(attention.qkv, precision),
            "output": _prepared(attention.output, precision),
            "up": _prepared(feed_forward.up, precision),
            "down": _prepared(feed_forward.down, precision),
        }
        self.norms = {
            "attention_norm": _norm(layer.attention_norm),
            "feed_forward_norm": _norm(layer.feed_forward_norm),
        }
        self.as_c = self._as_c()

    def forward(self, hidden_states: Tensor, batch: PackedBatch, rows: Tensor | None = None) -> Tensor:
        """As `Layer`: (N, H) -> (N, H), with anything for padding tokens, or (R, H) for the given rows."""
        library = kernels.library(kernels.instructions())
        threads, count = torch.get_num_threads(), len(batch.lengths)
        states = hidden_states.float().contiguous()
        if states.shape != (batch.padding + sum(batch.lengths), self.width):
            raise ValueError(f"expected (N, {self.width}) as in the batch, found {tuple(states.shape)}")
        mixed = torch.empty_like(states)
        tables: tuple[Tensor | None, Tensor | None] = None, None
        if self.rotary is not None:
            tables = self.rotary.tables(max(batch.lengths, default=1), states.device)
        given = states.data_ptr(), as_c(batch.lengths), count, *map(_address, tables)
        failed = library.self_attend(self.as_c, *given, threads, mixed.data_ptr())
        mixed, states = select_rows(mixed, rows), select_rows(states, rows)
        found = torch.empty_like(states)
        real = len(states) - (batch.padding if rows is None else 0)
        given = mixed.data_ptr(), states.data_ptr(), real, threads, found.data_ptr()
        if failed or library.feed_forward(self.as_c, *given):
            raise MemoryError(f"no memory for a layer of {len(hidden_states):,} tokens")
        return found

    def __getstate__(self) -> dict[str, Any]:
        """With arrays in the place of tensors: torch's pickler, which multiprocessing takes, would move those
        into shared memory, away from the addresses that `as_c` has.
        """
        state = {name: value for name, value in vars(self).items() if name != "as_c"}
        return state | {kind: _each(Tensor, Tensor.numpy, state[kind]) for kind in ("linears", "norms")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        if not kernels.has_kernels():
            raise ModelError(
                "This copy of a model is for Bertsmith's compiled kernels, which are missing here: install "
                "Bertsmith where GCC is, as where the copy was made."
            )
        vars(self).update(state)
        self.linears = _each(np.ndarray, torch.tensor, self.linears)
        self.norms = _each(np.ndarray, torch.tensor, self.norms)
        self.as_c = self._as_c()

    def _as_c(self) -> Any:
        """Addresses: of this object's tensors in this process, which nobody else has."""
        linears = {
            name: kernels.LinearStruct(inputs, outputs, weight.data_ptr(), _address(scales), _address(bias))
            for name, (inputs, outputs, weight, scales, bias) in self.linears.items()
        }
        norms = {
            name: kernels.NormStruct(_address(gain), _address(shift), epsilon, centred)
            for name, (gain, shift, epsilon, centred) in self.norms.items()
        }
        return kernels.LayerStruct(**linears, **norms, **self.how)


def takes_layer_kernel(layer: Layer, precision: torch.dtype) -> bool:
    """Whether the kernel computes this layer in this precision here."""
    attention, feed_forward = layer.attention, layer.feed_forward
    linears = attention.qkv, attention.output, feed_forward.up, feed_forward.down
    norms = [n for n in (layer.attention_norm, layer.feed_forward_norm) if not isinstance(n, nn.Identity)]
    return (
        precision in PRECISIONS
        and kernels.has_kernels()
        and all(type(linear) is nn.Linear and linear.weight.dtype == torch.float32 for linear in linears)
        and not attention.head_size % PANEL
        and not feed_forward.down.in_features % PANEL
        and all(isinstance(n, nn.LayerNorm | nn.RMSNorm) and isinstance(n.weight, Tensor) for n in norms)
        and (attention.rotary is None or attention.rotary.pairs == "halves")
        and feed_forward.activation.name in kernels.ACTIVATIONS
    )


def _norm(norm: nn.Module) -> tuple[Tensor | None, Tensor | None, float, bool]:
    """Gain, shift, epsilon, and whether the mean is subtracted: as in kernels.h."""
    if isinstance(norm, nn.LayerNorm):
        return _own(norm.weight), _own(norm.bias), norm.eps, True
    if isinstance(norm, nn.RMSNorm):
        epsilon = torch.finfo(torch.float32).eps if norm.eps is None else norm.eps
        return _own(norm.weight), None, epsilon, False
    return None, None, 0.0, False


def panels(weight: Tensor) -> Tensor:
    """(O, I) -> (O / 16, I, 16): of 16 columns of the product, row by row."""
    return weight.view(-1, PANEL, weight.shape[1]).transpose(1, 2).contiguous()


def _prepared(
    linear: nn.Linear, precision: torch.dtype
) -> tuple[int, int, Tensor, Tensor | None, Tensor | None]:
    """Inputs and outputs; weight, its scales and bias as in kernels.h."""
    sizes, weight, bias = (linear.in_features, linear.out_features), linear.weight.detach(), _own(linear.bias)
    if precision == torch.float32:
        return *sizes, panels(weight), None, bias
    codes, scales = _rounded(weight)
    return *sizes, panels(codes.view(torch.int32)), scales, bias  # two codes at a time


def _rounded(weight: Tensor) -> tuple[Tensor, Tensor]:
    """(O, I) -> int16 codes (O, I) and scales (I / 128, O), rounded up, whose product is the weight."""
    codes, scales = torch.empty(weight.shape, dtype=torch.int16), []
    for group, to in zip(weight.split(_GROUP, dim=1), codes.split(_GROUP, dim=1), strict=True):
        size = group.abs()
        sums, most = size.sum(1), size.amax(1)
        finest = torch.minimum(_ROOM / sums, _LARGEST / most).where(most != 0, 1)  # no number stays none
        to.copy_((group * finest[:, None]).round_())
        scales.append(1 / finest)
    return codes, torch.stack(scales)


def _own(values: Tensor | None) -> Tensor | None:
    return None if values is None else values.detach().clone(memory_format=torch.contiguous_format)


def _each(kind: type, change: Callable[[Any], Any], parts: dict[str, Any]) -> dict[str, Any]:
    """The same tuples by name, with what is of the kind changed."""
    return {
        name: tuple(change(value) if isinstance(value, kind) else value for value in values)
        for name, values in parts.items()
    }


def _address(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()
