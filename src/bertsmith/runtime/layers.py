"""A layer without torch: by the kernels, as the package with torch computes it, to the bit; or by NumPy,
within 1e-5 of it, where there are no kernels.

    N   tokens in the packed batch    H   hidden size    A   heads    D   head size    L   length    R   rows
"""

import ctypes
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from bertsmith.arrays import Float32s, Ints
from bertsmith.errors import ModelError
from bertsmith.inference.embedding.vectors import normalised
from bertsmith.model.config import BertConfig
from bertsmith.model.cpu import kernels
from bertsmith.model.rotary_json import rotary_tables
from bertsmith.tasks.examples.encoding import Pooling

_GROUP = 128  # inputs of an output that share a scale in int16
_LARGEST_CODE = 2**15 - 1  # of a weight
_LARGEST_INT8 = 127
_LARGEST_SUM = (2**31 - 1) // 11585 - _GROUP / 2 - 2  # of a group's codes, as in model/cpu/kernel_layer.py
PANEL = 16  # outputs whose weights are stored together
_LANES = 8  # of a register in which torch sums
_EPSILON = 1e-5  # of a LayerNorm behind the pooling
_AFFINE = ("weight", "bias")


def find_library() -> Any:
    """The kernels for this processor; None where there are none."""
    return kernels.load_library(kernels.find_instruction_set())


def _address(array: npt.NDArray[Any] | None) -> int | None:
    return None if array is None else array.ctypes.data


def _as_panels(weight: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """A weight (O, I) as panels (O / 16, I, 16), which the kernels read from start to end."""
    return np.ascontiguousarray(weight.reshape(-1, PANEL, weight.shape[1]).transpose(0, 2, 1))


def quantise(weight: Float32s) -> tuple[npt.NDArray[np.int16], Float32s]:
    """Rounds a weight (O, I) to int16 codes (O, I) and scales (I / 128, O), whose product is the weight; to
    the bit as the package with torch does.
    """
    codes, scales = np.empty(weight.shape, np.int16), []
    for start in range(0, weight.shape[1], _GROUP):
        group = weight[:, start : start + _GROUP]
        size = np.abs(group)
        sums, largest = sum_rows(size), size.max(1)
        with np.errstate(divide="ignore", over="ignore"):
            by_sum = np.float32(1) / sums * np.float32(_LARGEST_SUM)
            by_code = np.float32(1) / largest * np.float32(_LARGEST_CODE)
        finest = np.where(largest != 0, np.minimum(by_sum, by_code), np.float32(1))
        codes[:, start : start + _GROUP] = np.rint(group * finest[:, None])
        scales.append(np.float32(1) / finest)
    return codes, np.stack(scales)


def quantise_outputs(weight: Float32s) -> tuple[npt.NDArray[np.int8], Float32s]:
    """Rounds a weight (O, I) to int8 codes (O, I) and scales (O,), whose product is the weight; to the bit as
    the package with torch does.
    """
    scales = np.abs(weight).max(1) / np.float32(_LARGEST_INT8)
    return np.rint(weight / np.where(scales != 0, scales, 1)[:, None]).astype(np.int8), scales


def sum_rows(values: Float32s) -> Float32s:
    """The sums (O,) of rows (O, I), in the order in which torch sums: in eight lanes of four registers, of
    which every sixteen sums begin anew. I is a multiple of 8, below 8,192.
    """
    registers = values.reshape(len(values), -1, _LANES)
    steps, parts = registers.shape[1] // 4, list[Float32s]()
    for place in range(4):
        blocks = np.zeros((len(values), _LANES), np.float32)
        part = np.zeros_like(blocks)
        for step in range(steps):
            part += registers[:, 4 * step + place]
            if (step + 1) % 16 == 0:
                blocks, part = blocks + part, np.zeros_like(blocks)
        parts.append(part + blocks)
    for number in range(4 * steps, registers.shape[1]):
        parts[0] += registers[:, number]
    lanes = parts[0] + parts[1] + parts[2] + parts[3]
    total = np.zeros(len(values), np.float32)
    for lane in range(_LANES):
        total += lanes[:, lane]
    return total


class ArrayLinear:
    """A linear layer (…, inputs) -> (…, outputs), by the kernels where there are any."""

    def __init__(self, weight: Float32s, bias: Float32s | None) -> None:
        self.outputs, self.inputs = weight.shape
        self.weight, self.bias = weight, np.zeros(self.outputs, np.float32) if bias is None else bias
        missing = -self.outputs % PANEL
        self.padded_bias = np.pad(self.bias, (0, missing))
        self.library = find_library()
        if self.library is not None:
            self.panels = _as_panels(np.pad(weight, ((0, missing), (0, 0))))

    def __call__(self, x: Float32s) -> Float32s:
        if self.library is None:
            return np.asarray(x @ self.weight.T + self.bias, np.float32)
        rows = np.ascontiguousarray(x.reshape(-1, self.inputs), np.float32)
        outputs = np.empty((len(rows), len(self.padded_bias)), np.float32)
        linear = kernels.LinearStruct(
            self.inputs, len(self.padded_bias), _address(self.panels), None, _address(self.padded_bias)
        )
        self.library.product(linear, _address(rows), len(rows), 1, _address(outputs))
        return np.ascontiguousarray(outputs[:, : self.outputs]).reshape(*x.shape[:-1], self.outputs)


class ArrayNorm:
    """LayerNorm, to the bit as torch's where there are kernels, or RMSNorm."""

    def __init__(self, gain: Float32s, shift: Float32s | None, epsilon: float, centred: bool) -> None:
        self.gain = np.ascontiguousarray(gain)
        self.shift = None if shift is None else np.ascontiguousarray(shift)
        self.epsilon, self.centred = epsilon, centred
        self.library = find_library() if centred and len(gain) % _LANES == 0 else None

    @property
    def struct(self) -> Any:
        return kernels.NormStruct(_address(self.gain), _address(self.shift), self.epsilon, self.centred)

    def __call__(self, x: Float32s) -> Float32s:
        if self.library is not None:
            rows = np.ascontiguousarray(x, np.float32)
            normed = np.empty_like(rows)
            self.library.layer_norm(
                _address(rows), len(rows), len(self.gain), ctypes.byref(self.struct), _address(normed)
            )
            return normed
        centred = x - x.mean(-1, keepdims=True) if self.centred else x
        variance = np.square(centred).mean(-1, keepdims=True)
        scaled = centred / np.sqrt(variance + np.float32(self.epsilon)) * self.gain
        return np.asarray(scaled if self.shift is None else scaled + self.shift, np.float32)


class ArrayProjection:
    """The layers between a text's pooled vector and its vector, (T, H) -> (T, D), of which each text's are
    computed by themselves: sentence-transformers' modules Dense, LayerNorm and Normalize.
    """

    def __init__(
        self,
        layers: Iterable[tuple[str, Mapping[str, Any], Mapping[str, Float32s]]],
        width: int,
        where: str,
    ) -> None:
        """`layers` have the kind, the settings and the tensors of each, `width` is H. Raises ModelError for
        an activation that is computed with torch alone, and for tensors that don't fit.
        """
        self.steps, self.width = list[Callable[[Float32s], Float32s]](), width
        for kind, settings, tensors in layers:
            if kind == "Dense":
                self.steps.append(_make_dense(settings, tensors, self.width, where))
                self.width = len(tensors["linear.weight"])
            elif kind == "LayerNorm":
                gain, shift = (_take_fitting(tensors, f"norm.{n}", (self.width,), where) for n in _AFFINE)
                self.steps.append(ArrayNorm(gain, shift, _EPSILON, True))
            elif kind == "Normalize":
                self.steps.append(unit_vectors)

    def __call__(self, vectors: Float32s) -> Float32s:
        for step in self.steps:
            vectors = step(vectors)
        return vectors


def _make_dense(
    settings: Mapping[str, Any], tensors: Mapping[str, Float32s], inputs: int, where: str
) -> Callable[[Float32s], Float32s]:
    name = settings.get("activation_function", "Identity")
    if name not in _DENSE:
        raise ModelError(
            f"{where} has a Dense with {name}, which the package bertsmith computes with torch. Install that "
            "one for it."
        )
    outputs = settings.get("out_features")
    weight = _take_fitting(tensors, "linear.weight", (outputs, inputs), where)
    bias = _take_fitting(tensors, "linear.bias", (outputs,), where) if settings.get("bias", True) else None
    linear, activation, residual = ArrayLinear(weight, bias), _DENSE[name], None
    if settings.get("use_residual") and inputs != outputs:
        residual = ArrayLinear(_take_fitting(tensors, "residual.weight", (outputs, inputs), where), None)

    def dense(vectors: Float32s) -> Float32s:
        made = activation(linear(vectors))
        if not settings.get("use_residual"):
            return made
        return made + (vectors if residual is None else residual(vectors))

    return dense


def _take_fitting(tensors: Mapping[str, Float32s], name: str, shape: tuple[Any, ...], where: str) -> Float32s:
    tensor = tensors.get(name)
    if tensor is None or tensor.shape != shape or not np.isfinite(tensor).all():
        raise ModelError(
            f"{where}: expected {name} of the shape {shape} with finite values, found "
            f"{'none' if tensor is None else tensor.shape}. Use a folder whose files belong together."
        )
    return tensor


class LayerSource(Protocol):
    """What a layer takes from its encoder."""

    config: BertConfig
    packed: dict[tuple[str, str], "StructLinear"]
    bias: Float32s | None
    distances: Float32s | None

    def get(self, name: str) -> Float32s | None: ...
    def take(self, name: str) -> Float32s: ...
    def precision_of(self, name: str) -> str: ...
    def make_linear(self, name: str) -> ArrayLinear: ...
    def make_norm(self, name: str) -> ArrayNorm: ...


@lru_cache(maxsize=64)  # the layers of a model ask for the same ones
def distance_rows(half: int, most: int, buckets: bool, longest: int) -> Ints:
    """The rows of the table of distances for those from 1 - longest to longest - 1, as
    model/layers/disentangled.py has it: (2 longest - 1,).
    """
    distances = np.arange(1 - longest, longest)
    if buckets:
        near = half // 2
        size = np.maximum(np.abs(distances), near).astype(np.float32)
        share = np.log(size / np.float32(near)) / np.log(np.float32((most - 1) / near))
        far = np.ceil(share * np.float32(near - 1)) + np.float32(near)
        distances = np.where(size <= near, distances, (far * np.sign(distances)).astype(np.int64))
    return np.clip(distances + half, 0, 2 * half - 1)


def multiply_distances(
    encoder: LayerSource, name: str, qkv: ArrayLinear
) -> tuple[Float32s | None, Float32s | None]:
    """A layer's keys and queries (2 S, H) of the distances; None for a kind that there isn't."""
    config, table = encoder.config, encoder.distances
    products = dict[str, Float32s]()
    if table is not None and config.share_att_key:
        products["p2c"], products["c2p"], _ = np.split(qkv(table), 3, axis=1)
    elif table is not None:
        for kind, part in (("c2p", "key"), ("p2c", "query")):
            if kind in config.pos_att_type:
                products[kind] = encoder.make_linear(f"{name}.distances.{part}")(table)
    kinds = (products[kind] if kind in config.pos_att_type else None for kind in ("c2p", "p2c"))
    keys, queries = (None if part is None else np.ascontiguousarray(part) for part in kinds)
    return keys, queries


class StructLinear:
    """The struct of a linear layer that the C functions read, and the arrays that it points to."""

    def __init__(self, weight: Float32s, bias: Float32s | None, precision: str) -> None:
        outputs, inputs = weight.shape
        scales = sums = None
        if precision == "float32":
            panels = _as_panels(weight)
        else:
            codes, scales = quantise(weight) if precision == "int16" else quantise_outputs(weight)
            panels = _as_panels(codes.view(np.int32))  # pairs of codes, or four, stay together
            sums = codes.sum(1, dtype=np.int32) if precision == "int8" else None
        self.arrays = panels, scales, None if bias is None else np.ascontiguousarray(bias), sums
        self.struct = kernels.LinearStruct(inputs, outputs, *map(_address, self.arrays))


class StructLayer:
    """The struct that the C functions read, and the arrays that it points to."""

    def __init__(self, encoder: LayerSource, number: int) -> None:
        config, name = encoder.config, f"layers.{number}"
        self.library, self.config = find_library(), config
        self.bias = None
        if encoder.bias is not None:
            self.bias = np.ascontiguousarray(encoder.bias * np.float32(math.sqrt(config.head_size)))
        self.theta = config.local_rope_theta if config.is_local(number) else config.rope_theta
        window = config.window(number)
        self.arrays = list[Any]()
        keys = queries = None
        if encoder.distances is not None:
            qkv = encoder.make_linear(f"{name}.attention.qkv")
            keys, queries = multiply_distances(encoder, f"{name}.attention", qkv)
            self.arrays += [keys, queries]
        linears = {
            "qkv": self._linear(encoder, f"{name}.attention.qkv"),
            "output": self._linear(encoder, f"{name}.attention.output"),
            "up": self._linear(encoder, f"{name}.feed_forward.up"),
            "down": self._linear(encoder, f"{name}.feed_forward.down"),
        }
        norms = {}
        for part in ("attention_norm", "feed_forward_norm"):
            if encoder.get(f"{name}.{part}.weight") is not None:
                norm = encoder.make_norm(f"{name}.{part}")
                self.arrays.append(norm)
                norms[part] = norm.struct
        self.struct = kernels.LayerStruct(
            **linears,
            **norms,
            distance_keys=_address(keys),
            distance_queries=_address(queries),
            heads=config.num_attention_heads,
            window=kernels.EVERYWHERE if window is None else window,
            activation=kernels.ACTIVATIONS.index(config.hidden_act),
            gated=config.feed_forward == "gated",
            pre_norm=config.pre_norm,
        )

    def _linear(self, encoder: LayerSource, name: str) -> Any:
        key = name, encoder.precision_of(name)
        if key not in encoder.packed:
            encoder.packed[key] = StructLinear(
                encoder.take(f"{name}.weight"), encoder.get(f"{name}.bias"), key[1]
            )
        self.arrays.append(encoder.packed[key])
        return encoder.packed[key].struct

    def __call__(self, states: Float32s, lengths: Sequence[int], rows: Ints | None = None) -> Float32s:
        """The outputs (N, H) of hidden states (N, H), or (R, H) of the given rows."""
        mixed, states = np.empty_like(states), np.ascontiguousarray(states)
        cosines, sines = None, None
        if self.config.position_embedding == "rotary":
            cosines, sines = rotary_tables(
                self.theta, self.config.rope_factor, self.config.head_size, max(lengths)
            )
        array = (ctypes.c_int64 * len(lengths))(*lengths)
        reach = 0 if self.bias is None else self.bias.shape[1] // 2
        middle = None
        if self.config.relative_attention:
            rows_of_distances = distance_rows(
                *self.config.relative_span, self.config.position_buckets > 0, max(lengths)
            )
            middle = rows_of_distances[max(lengths) - 1 :].ctypes.data
        tables = _address(cosines), _address(sines), _address(self.bias), reach, middle
        failed = self.library.self_attend(
            self.struct, _address(states), array, len(lengths), *tables, 1, _address(mixed)
        )
        if rows is not None:
            mixed, states = mixed[rows], states[rows]
        outputs = np.empty_like(states)
        addresses = _address(mixed), _address(states), len(states), 1, _address(outputs)
        if failed or self.library.feed_forward(self.struct, *addresses):
            raise MemoryError(f"no memory for a layer of {len(states):,} tokens")
        return outputs


class ArrayLayer:
    """NumPy's operations, for any processor and any shape."""

    def __init__(self, encoder: LayerSource, number: int) -> None:
        name, self.config = f"layers.{number}", encoder.config
        self.bias, self.window = encoder.bias, encoder.config.window(number)
        self.theta = self.config.local_rope_theta if self.config.is_local(number) else self.config.rope_theta
        self.qkv, self.output = (
            encoder.make_linear(f"{name}.attention.{part}") for part in ("qkv", "output")
        )
        self.keys, self.queries = multiply_distances(encoder, f"{name}.attention", self.qkv)
        self.up, self.down = (encoder.make_linear(f"{name}.feed_forward.{part}") for part in ("up", "down"))
        has_norm = encoder.get(f"{name}.attention_norm.weight") is not None
        self.attention_norm = encoder.make_norm(f"{name}.attention_norm") if has_norm else None
        self.feed_forward_norm = encoder.make_norm(f"{name}.feed_forward_norm")

    def __call__(self, states: Float32s, lengths: Sequence[int], rows: Ints | None = None) -> Float32s:
        """As the whole package's `StructLayer` computes it."""
        pre = self.config.pre_norm
        x = self.attention_norm(states) if pre and self.attention_norm is not None else states
        attended = self.output(self._attend(self.qkv(x), lengths))
        states = states + attended
        if rows is not None:
            states = states[rows]
        if not pre and self.attention_norm is not None:
            states = self.attention_norm(states)
        inside = self.up(self.feed_forward_norm(states) if pre else states)
        if self.config.feed_forward == "gated":
            first, second = np.split(inside, 2, axis=-1)
            inside = activate(first, self.config.hidden_act) * second
        else:
            inside = activate(inside, self.config.hidden_act)
        states = states + self.down(inside)
        return states if pre else self.feed_forward_norm(states)

    def _attend(self, qkv: Float32s, lengths: Sequence[int]) -> Float32s:
        heads, size = self.config.num_attention_heads, self.config.head_size
        mixed, start = np.empty((len(qkv), heads * size), np.float32), 0
        for length in lengths:
            part = qkv[start : start + length].reshape(length, 3, heads, size)
            query, key, value = part.transpose(1, 2, 0, 3)  # each (A, L, D)
            if self.config.position_embedding == "rotary":
                query, key = self._rotate(query, length), self._rotate(key, length)
            scores = query @ key.transpose(0, 2, 1)  # (A, L, L)
            apart = np.arange(length) - np.arange(length)[:, None]
            if self.config.relative_attention:
                scores = self._add_distances(scores, query, key, -apart)
            scores = scores / np.float32(math.sqrt(size))
            if self.bias is not None:
                scores = scores + self.bias[:, apart + self.bias.shape[1] // 2]
            if self.window is not None:
                scores = np.where(np.abs(apart) > self.window, -np.inf, scores)
            weights = np.exp(scores - scores.max(-1, keepdims=True))
            weights /= weights.sum(-1, keepdims=True)
            mixed[start : start + length] = (weights @ value).transpose(1, 0, 2).reshape(length, -1)
            start += length
        return mixed

    def _add_distances(self, scores: Float32s, query: Float32s, key: Float32s, apart: Ints) -> Float32s:
        """The scores (A, L, L) with those of the distances of each query from each key, (L, L)."""
        heads, length, size = query.shape
        rows = distance_rows(*self.config.relative_span, self.config.position_buckets > 0, length)
        rows = rows[apart + length - 1]  # (L, L)
        parts = 1
        for products, others, chosen in ((self.keys, query, rows), (self.queries, key, rows.T)):
            if products is None:
                continue
            met = others @ products.reshape(-1, heads, size).transpose(1, 2, 0)  # (A, L, 2 S)
            picked = np.take_along_axis(met, np.broadcast_to(chosen, (heads, length, length)), axis=2)
            scores = scores + (picked if products is self.keys else picked.transpose(0, 2, 1))
            parts += 1
        return np.asarray(scores / np.float32(math.sqrt(parts)), np.float32)

    def _rotate(self, vectors: Float32s, length: int) -> Float32s:
        size = vectors.shape[-1]
        cosines, sines = rotary_tables(self.theta, self.config.rope_factor, size, length)
        halves = self.config.rotary_pairs == "halves"
        first = vectors[..., : size // 2] if halves else vectors[..., ::2]
        second = vectors[..., size // 2 :] if halves else vectors[..., 1::2]
        cosines, sines = cosines[:length], sines[:length]
        turned = first * cosines - second * sines, second * cosines + first * sines
        return np.concatenate(turned, -1) if halves else np.stack(turned, -1).reshape(vectors.shape)


def pool(states: Float32s, sizes: Sequence[int], pooling: Pooling) -> Float32s:
    """Runs of so many rows (R, H) -> a vector each, in torch's order of sums."""
    vectors = np.empty((len(sizes), states.shape[1]), np.float32)
    start = 0
    for number, size in enumerate(sizes):
        part = states[start : start + size]
        if pooling == "max":
            vectors[number] = part.max(0)
        elif pooling == "cls":
            vectors[number] = part[0] + np.float32(0)
        else:
            vectors[number] = np.add.reduce(part, axis=0, initial=np.float32(0)) / np.float32(size)
        start += size
    return vectors


def unit_vectors(vectors: Float32s) -> Float32s:
    """Vectors (E, H) of length 1, as torch's `normalize` makes them: it sums squares in eight lanes."""
    if vectors.shape[1] % 8:
        return normalised(vectors)
    lanes = np.zeros((len(vectors), 8), np.float32)
    for start in range(0, vectors.shape[1], 8):
        part = vectors[:, start : start + 8]
        lanes += part * part
    total = np.zeros(len(vectors), np.float32)
    for lane in range(8):
        total += lanes[:, lane]
    return np.asarray(vectors / np.maximum(np.sqrt(total), np.float32(1e-12))[:, None], np.float32)


def tanh(x: Float32s) -> Float32s:
    """tanh of each value, rounded once."""
    library = find_library()
    if library is None:
        return np.asarray(np.tanh(x.astype(np.float64)), np.float32)
    values = np.array(x, np.float32, order="C")
    library.hyperbolic_tangents(values.ctypes.data, values.size)
    return values


def activate(x: Float32s, name: str) -> Float32s:
    """The activations of layers and heads by their names in config.json; tanh and gelu by the kernels."""
    if name == "tanh":
        return tanh(x)
    library = find_library()
    if name == "gelu" and library is not None:
        width = x.shape[-1]
        values = np.ascontiguousarray(np.pad(x.reshape(-1, width), ((0, 0), (0, -width % PANEL))), np.float32)
        result = np.empty_like(values)
        library.activate_forward(_address(values), None, *values.shape, False, 0, False, 1, _address(result))
        return np.ascontiguousarray(result[:, :width]).reshape(x.shape)
    wide = x.astype(np.float64)
    if name == "gelu":
        wide = wide * 0.5 * _erfc(-wide / math.sqrt(2))
    elif name == "gelu_new":
        wide = 0.5 * wide * (1 + np.tanh(math.sqrt(2 / math.pi) * (wide + 0.044715 * wide**3)))
    elif name == "silu":
        wide = wide * (0.5 + 0.5 * np.tanh(0.5 * wide))
    else:
        wide = np.maximum(wide, 0)
    return wide.astype(np.float32)


_ERFC = (  # Press et al. 1992, Numerical Recipes, section 6.2: off by 1.2e-7 of the value at most
    *(-1.26551223, 1.00002368, 0.37409196, 0.09678418, -0.18628806),
    *(0.27886807, -1.13520398, 1.48851587, -0.82215223, 0.17087277),
)


def _erfc(x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """1 - erf(x), the complementary error function."""
    size = np.abs(x)
    t = 1 / (1 + 0.5 * size)
    power = np.zeros_like(t)
    for coefficient in reversed(_ERFC):
        power = power * t + coefficient
    tail = t * np.exp(power - size * size)
    return np.asarray(np.where(x >= 0, tail, 2 - tail))


_DENSE: Mapping[str, Callable[[Float32s], Float32s]] = {  # those with torch's bits
    "Identity": lambda x: x,
    "Tanh": tanh,
    "ReLU": lambda x: np.maximum(x, np.float32(0)),
}
