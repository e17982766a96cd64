"""The kernels for 64-bit ARM, by another compiler and an emulator: they give what those for x86-64 give.
Skipped where the two aren't installed (Debian: gcc-aarch64-linux-gnu, qemu-user).
"""

import ctypes
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bertsmith.data.batch import PackedBatch
from bertsmith.model.bert import Bert
from bertsmith.model.config import make_config
from bertsmith.model.cpu import kernels
from bertsmith.model.cpu.attention import as_c_array, middle
from bertsmith.model.cpu.inference import prepare_for_inference
from bertsmith.model.cpu.kernel_layer import KernelLayer, _pack_linear
from bertsmith.model.rotary_json import rotary_tables

COMPILER, EMULATOR = "aarch64-linux-gnu-gcc", "qemu-aarch64"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not (shutil.which(COMPILER) and shutil.which(EMULATOR)), reason="needs an emulator"),
    pytest.mark.skipif(not kernels.has_kernels(), reason="needs the compiled kernels"),
]
ADDRESS, SIZE = 1 << 44, 1 << 26  # of the memory that both processors' processes share
ARGUMENTS = 12
LENGTHS = np.array([5, 67, 33, 3])
FAMILIES: list[tuple[str, dict[str, Any]]] = [
    *((name, {}) for name in ("bert", "mpnet", "modernbert", "nomic_bert", "deberta-v2")),
    *(("bert", {"hidden_act": name}) for name in ("gelu_new", "relu", "silu")),
]


class Emulator:
    """A process of the other processor, with memory that it shares with this one: values are placed there,
    and calls get their addresses.
    """

    def __init__(self, program: Path, file: Path) -> None:
        file.write_bytes(b"")
        with file.open("r+b") as shared:
            shared.truncate(SIZE)
            map_at = ctypes.CDLL(None, use_errno=True).mmap
            map_at.argtypes, map_at.restype = (
                [ctypes.c_size_t, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long],
                ctypes.c_size_t,
            )
            readable_writable, shared_at = 3, 0x100001  # MAP_SHARED, MAP_FIXED_NOREPLACE
            assert map_at(ADDRESS, SIZE, readable_writable, shared_at, shared.fileno(), 0) == ADDRESS
        self.memory = np.frombuffer((ctypes.c_char * SIZE).from_address(ADDRESS), np.uint8)
        self.end = 0
        words = [EMULATOR, str(program), str(file), str(ADDRESS), str(SIZE)]
        self.process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def place(self, values: Any) -> int | None:
        """Copies a tensor, an array or a struct, and returns its address; None for None."""
        if values is None:
            return None
        values = values.view(torch.int16).numpy() if getattr(values, "dtype", 0) == torch.bfloat16 else values
        content = np.frombuffer(
            bytes(values)
            if isinstance(values, ctypes.Structure | ctypes.Array)
            else np.ascontiguousarray(values).tobytes(),
            np.uint8,
        )
        start, self.end = self.end, self.end + -(-len(content) // 64) * 64 + 64
        assert self.end <= SIZE
        self.memory[start : start + len(content)] = content
        return ADDRESS + start

    def call(self, name: str, *arguments: int | None) -> int:
        """Calls a kernel there."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        numbers = [argument or 0 for argument in arguments] + [0] * (ARGUMENTS - len(arguments))
        numbers = [number - (1 << 64) if number >= 1 << 63 else number for number in numbers]
        self.process.stdin.write(f"{name} {' '.join(map(str, numbers))}\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline())

    def both(self, name: str, arguments: list[int | None], outputs: list[tuple[int, int]]) -> list[Any]:
        """The float32 values at each of the outputs, (address, values), by this processor and by the other
        one.
        """
        before, results = self.memory.copy(), []
        library = ctypes.CDLL(str(Path(kernels.__file__).parent / f"{kernels.find_instruction_set()}.so"))
        function = getattr(library, "dropout_mask" if name == "mask" else name)
        words = [
            ctypes.c_int64(argument or 0) if abs(argument or 0) < 1 << 63 else ctypes.c_uint64(argument or 0)
            for argument in arguments
        ]
        if name == "mask":
            words = [*words[:4], ctypes.c_float(1 << words[4].value), words[5], ctypes.c_int64(1)]
        for compute in (lambda: function(*words), lambda: self.call(name, *arguments)):
            self.memory[:] = before
            compute()
            results.append(
                [self.memory[a - ADDRESS : a - ADDRESS + 4 * n].view(np.float32).copy() for a, n in outputs]
            )
        return list(zip(*results, strict=True))


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, made = Path(kernels.__file__).parent, tmp_path_factory.mktemp("neon") / "calls"
    sources = [Path(__file__).parent / "emulated_calls.c", *sorted(folder.glob("*.c"))]
    words = [COMPILER, "-O3", "-static", "-I", str(folder), "-o", str(made), *map(str, sources), "-lm"]
    subprocess.run(words, check=True)
    return made


@pytest.fixture
def emulator(program: Path, tmp_path: Path) -> Iterator[Emulator]:
    made = Emulator(program, tmp_path / "memory")
    with made.process:  # which ends with its input
        yield made
    ctypes.CDLL(None).munmap(ctypes.c_size_t(ADDRESS), ctypes.c_size_t(SIZE))


def distance(pairs: list[Any]) -> float:
    """The largest difference, beside the largest value."""
    return max(float(np.abs(a - b).max() / np.abs(a).max()) for a, b in pairs)


def same(pairs: list[Any]) -> bool:
    return all(np.array_equal(a.view(np.int32), b.view(np.int32)) for a, b in pairs)


@pytest.mark.parametrize("precision", [torch.float32, torch.int16, torch.int8], ids=str)
@pytest.mark.parametrize(("family", "more"), FAMILIES)
@torch.inference_mode()
def test_a_layer_of_every_kind(
    emulator: Emulator, family: str, more: dict[str, Any], precision: torch.dtype
) -> None:
    torch.manual_seed(0)
    shape = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 144}
    bert = Bert(make_config({"model_type": family, "vocab_size": 300, **shape, **more}, "a test"))
    for weights in bert.parameters():
        weights.data.normal_(0, 0.2) if weights.ndim > 1 else weights.data.add_(0.05)
    ids = np.random.default_rng(0).integers(5, 300, LENGTHS.sum())
    batch = PackedBatch.pack(ids, np.zeros_like(ids), LENGTHS)
    states = bert.all_hidden_states(batch)[1]
    layer = prepare_for_inference(bert, precision).layers[-1]
    assert isinstance(layer, KernelLayer)
    place = emulator.place
    structs = {
        name: kernels.LinearStruct(*values[:2], *map(place, values[2:]))
        for name, values in layer.linears.items()
    }
    structs |= {
        name: kernels.NormStruct(place(gain), place(shift), epsilon, centred)
        for name, (gain, shift, epsilon, centred) in layer.norms.items()
    }
    keys, queries = map(place, layer.distances.get("products", (None, None)))
    struct = place(
        kernels.LayerStruct(**structs, distance_keys=keys, distance_queries=queries, **layer.options)
    )
    tables: tuple[Any, Any] = (None, None)
    if layer.rotary is not None:
        tables = rotary_tables(layer.rotary.theta, layer.rotary.factor, layer.rotary.head_size, max(LENGTHS))
    rows = None
    if layer.distance_rows is not None:
        distances = layer.distance_rows.within(batch.lengths)
        rows = (place(distances) or 0) + middle(distances) - distances.data_ptr()
    bias, reach = layer.position_bias, 0 if layer.position_bias is None else layer.position_bias.shape[1] // 2
    given, mixed, to = place(states), place(torch.zeros_like(states)), place(torch.zeros_like(states))
    lengths = place(as_c_array(batch.lengths))
    attended = [
        struct,
        given,
        None,
        lengths,
        len(LENGTHS),
        *map(place, tables),
        place(bias),
        reach,
        rows,
        1,
        mixed,
    ]
    outputs = emulator.both("self_attend_added", attended, [(mixed or 0, states.numel())])
    outputs += emulator.both(
        "feed_forward", [struct, mixed, given, len(states), 1, to], [(to or 0, states.numel())]
    )
    assert distance(outputs) < {torch.float32: 1e-6, torch.int16: 1e-4, torch.int8: 5e-3}[precision]


@pytest.mark.parametrize(
    ("rows", "inputs", "outputs"), [(1, 16, 16), (7, 48, 32), (13, 384, 96), (29, 1536, 80)]
)
def test_a_product_in_int8_has_the_same_bits(
    emulator: Emulator, rows: int, inputs: int, outputs: int
) -> None:
    """And one in int16 nearly."""
    generator, place = torch.Generator().manual_seed(rows), emulator.place
    linear = torch.nn.Linear(inputs, outputs)
    torch.nn.init.normal_(linear.weight, generator=generator)
    x = place(
        torch.randn(rows, inputs, generator=generator)
        * 10.0 ** torch.arange(-3, rows - 3)[:, None].clamp(max=5)
    )
    for precision, limit in ((torch.int8, 0.0), (torch.int16, 1e-6), (torch.float32, 1e-6)):
        sizes, values = _pack_linear(linear, precision)[:2], _pack_linear(linear, precision)[2:]
        struct, to = (
            place(kernels.LinearStruct(*sizes, *map(place, values))),
            place(np.zeros(rows * outputs, np.float32)),
        )
        assert distance(emulator.both("product", [struct, x, rows, 1, to], [(to, rows * outputs)])) <= limit


def test_what_surrounds_the_products(emulator: Emulator) -> None:
    """Norms, tanh, activations and their gradients, rotary positions, exponentials, dropout."""
    generator, place, count = np.random.default_rng(0), emulator.place, 40 * 48

    def draw(*shape: int) -> int:
        address = place(generator.standard_normal(shape).astype(np.float32) * 3)
        assert address is not None
        return address

    x, to, bias, large = draw(40, 48), draw(40, 48), draw(96), draw(40, 96)
    norm = place(kernels.NormStruct(draw(48), draw(48), 1e-5, 1))
    assert same(emulator.both("layer_norm", [x, 40, 48, norm, to], [(to, count)]))
    assert distance(emulator.both("hyperbolic_tangents", [x, count], [(x, count)])) < 1e-6
    for activation in range(len(kernels.ACTIVATIONS)):
        shape = 40, 48, 0, activation, 0, 1
        assert distance(emulator.both("activate_forward", [x, bias, *shape, to], [(to, count)])) < 1e-6
    for gated, activation in ((0, 0), (1, 0), (1, 3)):
        shape = 40, 48, gated, activation, 0, 1
        assert distance(emulator.both("activate_forward", [large, bias, *shape, to], [(to, count)])) < 1e-6
        given, back, sums = draw(40, 48), draw(40, 96), place(np.zeros((1, 2, 96), np.float32)) or 0
        outputs = [(back, count * (1 + gated)), (sums, 48 * (1 + gated))]
        assert (
            distance(emulator.both("activate_backward", [given, large, bias, *shape, back, sums], outputs))
            < 1e-5
        )
    cosines, sines = (place(table) for table in rotary_tables(10_000.0, 1.0, 16, 40))
    positions = place(np.arange(40))
    for backward in (0, 1):
        turned = [large, positions, cosines, sines, 40, 2, 16, 0, backward, 1]
        assert distance(emulator.both("rotate", turned, [(large, 40 * 96)])) < 1e-6
    columns = [draw(48), draw(48), draw(48)]
    exponentials = emulator.both(
        "exponentiate", [x, bias, 40, 48, 0, 1, *columns], [(x, count), *((c, 48) for c in columns)]
    )
    assert distance(exponentials) < 1e-6
    for is_bf16 in (0, 1):
        assert same(
            emulator.both(
                "mask", [to, count, 0x9E3779B97F4A7C15, 25, 1, is_bf16], [(to, count // (1 + is_bf16))]
            )
        )


@pytest.mark.parametrize("is_bf16", [False, True])
@pytest.mark.parametrize("window", [None, 9])
def test_attention_and_its_gradient(emulator: Emulator, is_bf16: bool, window: int | None) -> None:
    generator, place = torch.Generator().manual_seed(0), emulator.place
    lengths, (tokens, heads, size) = as_c_array(tuple(LENGTHS.tolist())), (int(LENGTHS.sum()), 2, 32)
    dtype = torch.bfloat16 if is_bf16 else torch.float32
    qkv, given = (torch.randn(tokens, n, heads, size, generator=generator).to(dtype) for n in (3, 1))
    seen = kernels.EVERYWHERE if window is None else window
    shape = {"sequences": len(LENGTHS), "heads": heads, "size": size, "is_bf16": is_bf16, "window": seen}
    to, gradient = place(torch.zeros_like(given)), place(torch.zeros_like(qkv))
    placed_lengths = ctypes.cast(ctypes.c_void_p(place(lengths)), ctypes.POINTER(ctypes.c_int64))
    known = {"qkv": place(qkv), "lengths": placed_lengths} | shape
    cells = emulator.call("attention_cells", place(kernels.AttentionStruct(**known)), 0)
    library = kernels.load_library(kernels.find_instruction_set())
    assert cells == library.attention_cells(kernels.AttentionStruct(**known), 0)
    mask = place((torch.rand(cells, generator=generator) > 0.1).to(dtype) / 0.9)
    weights, scale = place(torch.zeros(cells, dtype=dtype)), 2 if is_bf16 else 1
    forward = place(kernels.AttentionStruct(mask=mask, weights=weights, to=to, **known))
    backward = place(kernels.AttentionStruct(given=place(given), mask=mask, to=gradient, **known))
    for struct, address, values in ((forward, to, given.numel()), (backward, gradient, qkv.numel())):
        ((mine, theirs),) = emulator.both("attend", [struct, 1], [(address or 0, values // scale)])
        pair = (
            v.view(np.int16).astype(np.int32) << 16 if is_bf16 else v.view(np.int32) for v in (mine, theirs)
        )
        assert distance([tuple(v.view(np.float32) for v in pair)]) < (1e-2 if is_bf16 else 2e-6)
