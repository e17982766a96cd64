"""A layer for inference on a CPU by kernels in C; kernels/layer.c and kernels/product.c explain it.

N tokens in the packed batch, H hidden size, I feed-forward width, R rows that a head reads.
"""

import math
from collections.abc import Callable, Collection, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bertsmith.data.batch import PackedBatch
from bertsmith.errors import ModelError
from bertsmith.model.cpu import kernels
from bertsmith.model.cpu.attention import as_c_array, middle
from bertsmith.model.layers.attention import select_rows
from bertsmith.model.layers.disentangled import DistanceRows
from bertsmith.model.layers.elementwise import Activation
from bertsmith.model.layers.layer import Layer
from bertsmith.model.rotary_json import rotary_tables

PRECISIONS = torch.float32, torch.int16, torch.int8
_GROUP = 128  # inputs of an output that share a scale in int16
_LARGEST_CODE = 2**15 - 1  # of a weight
_LARGEST_INT8 = 127
# The largest sum of a group's codes: times the largest code of a hidden state it must fit an int32, though
# each code is rounded by up to 1/2, and the sum by up to 2.
_LARGEST_SUM = (2**31 - 1) // 11585 - _GROUP / 2 - 2
PackedLinear = tuple[int, int, Tensor, Tensor | None, Tensor | None, Tensor | None]
PANEL = 16  # outputs whose weights are stored together; D and I must be multiples


class KernelLinear(nn.Module):
    """A linear module for inference by the kernels, with the same outputs in float32. It can't be trained or
    moved to another device.

    A row's outputs depend neither on the other rows nor on the number of threads, to the bit. Those of
    torch's product do: with another number of rows it sums in another order.
    """

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.inputs, self.outputs = linear.in_features, linear.out_features
        missing = -self.outputs % PANEL
        weight = F.pad(linear.weight.detach().float(), (0, 0, 0, missing))
        bias = weight.new_zeros(self.outputs) if linear.bias is None else linear.bias.detach().float()
        self.panels, self.padded_bias = as_panels(weight), F.pad(bias, (0, missing)).contiguous()

    def forward(self, x: Tensor) -> Tensor:
        """The outputs (N, outputs), in float32, of x (N, inputs)."""
        if x.ndim != 2 or x.shape[1] != self.inputs:
            raise ValueError(f"expected (N, {self.inputs}), found {tuple(x.shape)}")
        x, padded = x.float().contiguous(), len(self.padded_bias)
        outputs = x.new_empty(len(x), padded)
        # read at each call, since torch's pickler moves tensors into shared memory
        memory = self.panels.data_ptr(), None, self.padded_bias.data_ptr()
        linear = kernels.LinearStruct(self.inputs, padded, *memory)
        threads = min(torch.get_num_threads(), padded // PANEL)
        library = kernels.load_library(kernels.find_instruction_set())
        if library.product(linear, x.data_ptr(), len(x), threads, outputs.data_ptr()):
            raise MemoryError(f"no memory for a product of {len(x):,} rows")
        return outputs[:, : self.outputs].contiguous()


class KernelConvolution(nn.Module):
    """A convolution over the rows of one long sequence, (1, H, T) -> (1, H, T), as a `KernelLinear` of each
    row's window, and as independent of the other rows.
    """

    def __init__(self, convolution: nn.Conv1d) -> None:
        super().__init__()
        width, _, self.kernel = convolution.weight.shape
        linear = nn.Linear(width * self.kernel, width, bias=convolution.bias is not None)
        with torch.no_grad():
            linear.weight.copy_(convolution.weight.permute(0, 2, 1).flatten(1))
            if convolution.bias is not None:
                linear.bias.copy_(convolution.bias)
        self.linear = KernelLinear(linear)

    def forward(self, x: Tensor) -> Tensor:
        (rows,) = F.pad(x.mT, (0, 0, self.kernel // 2, self.kernel // 2))
        windows = torch.cat([rows[start : start + x.shape[2]] for start in range(self.kernel)], 1)
        convolved: Tensor = self.linear(windows)
        return convolved.T[None]


class KernelTanh(nn.Module):
    """tanh of float32, each value rounded once: the same whatever library torch has for it, and without
    torch.
    """

    name = "tanh"

    def forward(self, x: Tensor) -> Tensor:
        """The values of x, in x's shape."""
        values = x.float().clone(memory_format=torch.contiguous_format)
        library = kernels.load_library(kernels.find_instruction_set())
        library.hyperbolic_tangents(values.data_ptr(), values.numel())
        return values


class KernelGelu(nn.Module):
    """GELU of float32 as the layers compute it: the same with and without torch."""

    name = "gelu"

    def forward(self, x: Tensor) -> Tensor:
        """The values of x, in x's shape."""
        width = x.shape[-1]
        values = F.pad(x.float(), (0, -width % PANEL)).contiguous()
        shape = values.numel() // values.shape[-1], values.shape[-1], False, 0, False, 1
        library = kernels.load_library(kernels.find_instruction_set())
        result = torch.empty_like(values)
        library.activate_forward(values.data_ptr(), None, *shape, result.data_ptr())
        return result[..., :width].contiguous()


_ACTIVATIONS = {"tanh": KernelTanh, "gelu": KernelGelu}  # of heads


def use_kernels(model: nn.Module) -> None:
    """Replaces the linear modules of a model by `KernelLinear`, where its encoder's layers are
    `KernelLayer`s, its convolution, and the activations of its head.
    """
    if _has_kernel_layers(model):
        replace_modules(model)


def use_kernels_beside(module: nn.Module, model: nn.Module) -> None:
    """Replaces the linear modules of a module that is used beside a model, as `use_kernels` does the
    model's.
    """
    if _has_kernel_layers(model):
        replace_modules(module)


def replace_modules(model: nn.Module) -> None:
    """Replaces what the kernels compute of a module's parts."""
    for parent in list(model.modules()):
        for name, child in parent.named_children():
            if type(child) is nn.Linear:
                setattr(parent, name, KernelLinear(child))
            elif type(child) is nn.Tanh:
                setattr(parent, name, KernelTanh())
            elif isinstance(child, Activation) and child.name in _ACTIVATIONS:
                setattr(parent, name, _ACTIVATIONS[child.name]())
            elif type(child) is nn.Conv1d and child.groups == 1:
                setattr(parent, name, KernelConvolution(child))


def as_kernel_linear(linear: nn.Linear, model: nn.Module) -> nn.Module:
    """A `KernelLinear` for a linear module that is used beside a model; the module itself where the model's
    layers aren't the kernels'.
    """
    return KernelLinear(linear) if _has_kernel_layers(model) else linear


def _has_kernel_layers(model: nn.Module) -> bool:
    layers = model.get_submodule("encoder.layers")
    return all(isinstance(layer, KernelLayer) for layer in layers.children())


class KernelLayer(nn.Module):
    """A layer for inference by the kernels, with the same outputs. It can't be trained or moved to another
    device.

    Products are in `precision`, float32, int16 or int8, all else in float32. Rounding to int16 changes hidden
    states by about 1e-4 of their size, and cosines of vectors by less than 1e-5; to int8 both by up to 1e-2.
    A sequence's values depend neither on the other sequences of a batch nor on the number of threads, to the
    bit. A pickled copy works on another machine that has the kernels.
    """

    def __init__(
        self,
        layer: Layer,
        precision: torch.dtype,
        relative: Tensor | None = None,
        in_int16: Collection[str] = (),
    ) -> None:
        """`relative` is what the encoder's `relative_table` returns, None for a family without one;
        `in_int16` are the names of products that are in int16 whatever `precision` is, such as
        "feed_forward.down".
        """
        super().__init__()
        self.precision = precision
        attention, feed_forward = layer.attention, layer.feed_forward
        self.width = attention.output.in_features
        self.rotary = attention.rotary
        self.position_bias: Tensor | None = None
        if relative is not None and attention.distances is None:
            self.position_bias = (relative.detach() * math.sqrt(attention.head_size)).contiguous()
        self.distance_rows: DistanceRows | None = None
        self.distances: dict[str, tuple[Tensor | None, ...]] = {}
        if attention.distances is not None and relative is not None:
            with torch.no_grad():
                replace_modules(attention.distances)
                qkv = KernelLinear(attention.qkv) if attention.distances.shares_weights else attention.qkv
                *products, self.distance_rows = attention.distances(relative, qkv)
            self.distances = {"products": tuple(map(_copy_values, products))}  # keys, then queries
        self.options = {
            "heads": attention.heads,
            "window": kernels.EVERYWHERE if attention.window is None else attention.window,
            "activation": kernels.ACTIVATIONS.index(feed_forward.activation.name),
            "gated": feed_forward.gated,
            "pre_norm": layer.pre_norm,
        }
        names = "attention.qkv", "attention.output", "feed_forward.up", "feed_forward.down"
        self.linears = {
            name.partition(".")[2]: _pack_linear(
                layer.get_submodule(name), torch.int16 if name in in_int16 else precision
            )
            for name in names
        }
        self.norms = {
            "attention_norm": _norm_arguments(layer.attention_norm),
            "feed_forward_norm": _norm_arguments(layer.feed_forward_norm),
        }
        self.struct = self._make_struct()

    def forward(
        self,
        hidden_states: Tensor,
        batch: PackedBatch,
        rows: Tensor | None = None,
        relative: Tensor | None = None,
        added: Tensor | None = None,
    ) -> Tensor:
        """The outputs (N, H) of hidden states (N, H), or (R, H) of the given rows, as `Layer` has them. The
        rows of padding tokens are undefined. `relative` isn't read: it was given before. `added` (N, 3 H) is
        added to queries, keys and values, before positions rotate them.
        """
        library = kernels.load_library(kernels.find_instruction_set())
        threads, count = torch.get_num_threads(), len(batch.lengths)
        states = hidden_states.float().contiguous()
        if states.shape != (batch.padding + sum(batch.lengths), self.width):
            raise ValueError(f"expected (N, {self.width}) as in the batch, found {tuple(states.shape)}")
        mixed = torch.empty_like(states)
        tables: tuple[Tensor | None, Tensor | None] = None, None
        if self.rotary is not None:
            shape = self.rotary.theta, self.rotary.factor, self.rotary.head_size
            cosines, sines = rotary_tables(*shape, max(batch.lengths, default=1))
            tables = torch.from_numpy(cosines), torch.from_numpy(sines)
        distances = None if self.distance_rows is None else self.distance_rows.within(batch.lengths)
        inputs = _address(added), as_c_array(batch.lengths), count, *map(_address, tables)
        bias, reach = self.position_bias, 0
        if bias is not None:
            reach = bias.shape[1] // 2
            if max(batch.lengths, default=0) + kernels.LINE > reach:
                raise ValueError(f"expected sequences of up to {reach - kernels.LINE} tokens")
        middle_row = None if distances is None else middle(distances)
        more = _address(bias), reach, middle_row, threads, mixed.data_ptr()
        failed = library.self_attend_added(self.struct, states.data_ptr(), *inputs, *more)
        mixed, states = select_rows(mixed, rows), select_rows(states, rows)
        outputs = torch.empty_like(states)
        row_count = len(states) - (batch.padding if rows is None else 0)
        addresses = mixed.data_ptr(), states.data_ptr(), row_count, threads, outputs.data_ptr()
        if failed or library.feed_forward(self.struct, *addresses):
            raise MemoryError(f"no memory for a layer of {len(hidden_states):,} tokens")
        return outputs

    def take_linears(self, linears: dict[str, PackedLinear]) -> None:
        """Multiplies by these from now on, a weight by each name in `linears`."""
        self.linears = linears
        self.struct = self._make_struct()

    def packed_weights(self) -> Iterator[Tensor]:
        """All weights, as the kernels read them."""
        for part in (self.linears, self.norms, self.distances):
            yield from (value for values in part.values() for value in values if isinstance(value, Tensor))

    def __getstate__(self) -> dict[str, Any]:
        """The attributes with arrays in place of tensors: torch's pickler, which multiprocessing uses, would
        move tensors into shared memory, away from the addresses in `struct`.
        """
        state = {name: value for name, value in vars(self).items() if name != "struct"}
        parts = "linears", "norms", "distances"
        return state | {part: _map_values(Tensor, Tensor.numpy, state[part]) for part in parts}

    def __setstate__(self, state: dict[str, Any]) -> None:
        if not kernels.has_kernels():
            raise ModelError(
                "This copy of a model is for Bertsmith's compiled kernels, which are missing here: install "
                "Bertsmith where GCC is, as where the copy was made."
            )
        vars(self).update(state)
        self.linears = _map_values(np.ndarray, torch.tensor, self.linears)
        self.norms = _map_values(np.ndarray, torch.tensor, self.norms)
        self.distances = _map_values(np.ndarray, torch.tensor, self.distances)
        self.struct = self._make_struct()

    def _make_struct(self) -> Any:
        """The C struct of this layer, with the addresses of its tensors in this process."""
        linears = {
            name: kernels.LinearStruct(inputs, outputs, *map(_address, (weight, scales, bias, sums)))
            for name, (inputs, outputs, weight, scales, bias, sums) in self.linears.items()
        }
        norms = {
            name: kernels.NormStruct(_address(gain), _address(shift), epsilon, centred)
            for name, (gain, shift, epsilon, centred) in self.norms.items()
        }
        keys, queries = map(_address, self.distances.get("products", (None, None)))
        distances = {"distance_keys": keys, "distance_queries": queries}
        return kernels.LayerStruct(**linears, **norms, **distances, **self.options)


def supports_layer(layer: Layer, precision: torch.dtype) -> bool:
    """Whether the kernels can compute this layer in this precision on this machine."""
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


def _norm_arguments(norm: nn.Module) -> tuple[Tensor | None, Tensor | None, float, bool]:
    """The fields of a norm's C struct: gain, shift, epsilon, and whether the mean is subtracted."""
    if isinstance(norm, nn.LayerNorm):
        return _copy_values(norm.weight), _copy_values(norm.bias), norm.eps, True
    if isinstance(norm, nn.RMSNorm):
        epsilon = torch.finfo(torch.float32).eps if norm.eps is None else norm.eps
        return _copy_values(norm.weight), None, epsilon, False
    return None, None, 0.0, False


def as_panels(weight: Tensor) -> Tensor:
    """A weight (O, I) as panels (O / 16, I, 16), which the kernels read from start to end."""
    return weight.view(-1, PANEL, weight.shape[1]).transpose(1, 2).contiguous()


def _pack_linear(linear: nn.Module, precision: torch.dtype) -> PackedLinear:
    """The fields of a linear module's C struct: inputs, outputs, weight, its scales, bias, and in int8 the
    sums of its codes.
    """
    assert isinstance(linear, nn.Linear)
    sizes, weight = (linear.in_features, linear.out_features), linear.weight.detach()
    bias = _copy_values(linear.bias)
    if precision == torch.float32:
        return *sizes, as_panels(weight), None, bias, None
    codes, scales = _quantise(weight) if precision == torch.int16 else quantise_outputs(weight)
    panels = as_panels(codes.view(torch.int32))  # int32: pairs of codes, or four, stay together
    sums = codes.sum(1, dtype=torch.int32) if precision == torch.int8 else None
    return *sizes, panels, scales, bias, sums


def quantise_outputs(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Rounds a weight (O, I) to int8 codes (O, I) and scales (O,), whose product is the weight."""
    scales = weight.abs().amax(1) / _LARGEST_INT8
    codes = (weight / scales.where(scales != 0, 1)[:, None]).round_()
    return codes.to(torch.int8), scales


def _quantise(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Rounds a weight (O, I) to int16 codes (O, I) and scales (I / 128, O), whose product is the weight. The
    number of scales of an output is rounded up.
    """
    codes, scales = torch.empty(weight.shape, dtype=torch.int16), []
    for group, group_codes in zip(weight.split(_GROUP, dim=1), codes.split(_GROUP, dim=1), strict=True):
        size = group.abs()
        sums, largest = size.sum(1), size.amax(1)
        finest = torch.minimum(_LARGEST_SUM / sums, _LARGEST_CODE / largest).where(largest != 0, 1)
        group_codes.copy_((group * finest[:, None]).round_())
        scales.append(1 / finest)
    return codes, torch.stack(scales)


def _copy_values(values: Tensor | None) -> Tensor | None:
    return None if values is None else values.detach().clone(memory_format=torch.contiguous_format)


def _map_values(value_type: type, change: Callable[[Any], Any], parts: dict[str, Any]) -> dict[str, Any]:
    """The tuples by name, with `change` applied to their values of this type."""
    return {
        name: tuple(change(value) if isinstance(value, value_type) else value for value in values)
        for name, values in parts.items()
    }


def _address(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()
