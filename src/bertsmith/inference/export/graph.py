"""A padded model → an ONNX graph whose batch and sequence have any length; and sequences through a graph, in
any company and padded on either side, in all of which it must answer the same.

The products of an encoder's layers bear the names of the modules that they come from, as
`layers.3.feed_forward.up`: quantisation and the search for layers to leave in float go by these.

B sequences, L tokens of the longest.
"""

import logging
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from bertsmith.errors import ModelError, require
from bertsmith.inference.export.padded import PaddedModel
from bertsmith.inference.export.source import Answer, ExportSource
from bertsmith.tasks.examples.encoding import Window

if TYPE_CHECKING:
    from onnx import ModelProto

Target = Literal["onnx", "openvino"]
GRAPHS: dict[str, tuple[str, ...]] = {"onnx": ("model.onnx",), "openvino": ("model.xml", "model.bin")}
OPSET = 18
PURPOSE = "Exporting a model"
_LARGEST = 2**31 - 2**20  # bytes of a protocol buffer
_SCOPE = re.compile(r"padded\.encoder\.(layers\.\d+\.[\w.]+)")
_TRACED = 2, 7  # batch and sequence, by which nothing of the graph is decided
Feed = Mapping[str, npt.NDArray[np.int64]]
Run = Callable[[Feed], Sequence[npt.NDArray[Any]]]
_SEED = 0
_BESIDE_THE_LONGEST = 64
# What attention takes grows with a batch's sequences times the square of the longest's tokens: as many as 32
# of 512 have, some 400 MB for twelve heads. A single sequence may be longer.
_MOST_PLACES = 32 * 512**2


def require_exporters() -> None:
    """Raises MissingExtra unless the packages are there that make, quantise and run a graph."""
    for module in ("onnx", "onnxscript", "onnxruntime"):
        require(module, "export", PURPOSE)


def make_graph(model: PaddedModel) -> "ModelProto":
    """The graph, checked by onnx. Raises ModelError for more weights than one file can hold."""
    import onnx

    size = sum(tensor.nbytes for tensor in model.state_dict().values())
    if size > _LARGEST:
        raise ModelError(
            f"The model has {size / 1e9:.1f} GB of weights; an ONNX file holds 2.1 GB at most. Export a "
            "smaller one."
        )
    ids, mask = torch.ones(_TRACED, dtype=torch.int64), torch.ones(_TRACED, dtype=torch.int64)
    mask[0, -2:] = 0
    with _quiet_exporter(), torch.no_grad():
        program = torch.onnx.export(
            model.eval(),
            (ids, mask, torch.zeros_like(ids))[: len(model.inputs)],
            input_names=list(model.inputs),
            output_names=list(model.head.names),
            dynamic_shapes=tuple({0: "batch", 1: "sequence"} for _ in model.inputs),
            opset_version=OPSET,
            dynamo=True,
            verbose=False,
        )
    assert program is not None
    graph: ModelProto = program.model_proto
    _name_products(graph)
    # traces name files of the machine at hand
    del graph.metadata_props[:]
    graph.doc_string = graph.graph.doc_string = ""
    del graph.graph.metadata_props[:]
    parts: list[Any] = [*graph.graph.node, *graph.graph.value_info, *graph.graph.initializer]
    for part in (*parts, *graph.graph.input, *graph.graph.output):
        part.doc_string = ""
        del part.metadata_props[:]
    onnx.checker.check_model(graph, full_check=True)
    return graph


def _name_products(graph: "ModelProto") -> None:
    """Nodes and weights: the exporter numbers them."""
    weights = {tensor.name: tensor for tensor in graph.graph.initializer}
    renamed: dict[str, str] = {}
    for node in graph.graph.node:
        scope = next((prop.value for prop in node.metadata_props if prop.key.endswith("name_scopes")), "")
        match = _SCOPE.search(scope)
        if node.op_type == "MatMul" and match and node.input[1] in weights:
            node.name = match[1]
            renamed[node.input[1]] = f"{match[1]}.weight"
    for name, new in renamed.items():
        weights[name].name = new
    for node in graph.graph.node:
        for place, name in enumerate(node.input):
            node.input[place] = renamed.get(name, name)


@contextmanager
def _quiet_exporter() -> Iterator[None]:
    """The exporter warns of its own old code, of names that axes share, and of torchvision."""
    log = logging.getLogger("torch.onnx")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(before)


def products(graph: "ModelProto") -> list[str]:
    """The names of the products with weights of the encoder's layers, in their order."""
    return [node.name for node in graph.graph.node if node.op_type == "MatMul" and "layers." in node.name]


def onnx_run(graph: "ModelProto | Path") -> Run:
    """By ONNX Runtime on the processor, with its usual optimisations."""
    import onnxruntime  # type: ignore[import-untyped]

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.enable_cpu_mem_arena = False  # it would keep what the longest batch took
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # others may want the core
    session = onnxruntime.InferenceSession(
        str(graph) if isinstance(graph, Path) else graph.SerializeToString(),
        options,
        providers=["CPUExecutionProvider"],
    )
    names = [output.name for output in session.get_outputs()]
    return lambda feed: session.run(names, dict(feed))


def openvino_files(graph: "ModelProto", folder: Path) -> list[Path]:
    """model.xml and model.bin in float32: OpenVINO's own default halves the weights' precision."""
    import onnx
    import openvino  # type: ignore[import-untyped]

    path = folder / "graph.onnx"
    onnx.save(graph, path)
    files = [folder / name for name in GRAPHS["openvino"]]
    openvino.save_model(openvino.convert_model(path), str(files[0]), compress_to_fp16=False)
    return files


def openvino_run(path: Path, names: Sequence[str]) -> Run:
    """By OpenVINO on the processor, in float32: left alone it takes bfloat16 where the processor has it."""
    import openvino

    compiled = openvino.Core().compile_model(str(path), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})

    def run(feed: Feed) -> list[npt.NDArray[Any]]:
        found = compiled(dict(feed))
        return [np.array(found[name]) for name in names]

    return run


class Arrangement(NamedTuple):
    """Batches of sequences by their numbers; `left`: padding stands before a sequence."""

    name: str
    batches: list[list[int]]
    left: bool = False


def arrangements(lengths: Sequence[int]) -> list[Arrangement]:
    """All in which a graph is tried, the usual one first; the same for the same lengths."""
    draw = np.random.Generator(np.random.PCG64DXSM(_SEED))
    eight, many = (draw.permutation(len(lengths)).tolist() for _ in range(2))
    return [
        like_lengths(lengths),
        alone(len(lengths)),
        Arrangement("8 of any length, padded on the right", _split_batches(eight, lengths, 8)),
        Arrangement("32 of any length, padded on the left", _split_batches(many, lengths, 32), left=True),
        Arrangement("beside the longest, padded on the left", _pair_with_longest(lengths), left=True),
    ]


def like_lengths(lengths: Sequence[int]) -> Arrangement:
    """32 at a time, as a service would batch them."""
    return Arrangement(
        "32 of like length, padded on the right", _split_batches(_order_by_length(lengths), lengths, 32)
    )


def alone(count: int) -> Arrangement:
    """Each by itself, nothing padded."""
    return Arrangement("alone", [[number] for number in range(count)])


def all_together(lengths: Sequence[int], *, left: bool = False) -> Arrangement:
    """In one batch, or in as few as there is memory for."""
    side = "left" if left else "right"
    return Arrangement(
        f"all together, padded on the {side}",
        _split_batches(_order_by_length(lengths), lengths, len(lengths)),
        left,
    )


def _pair_with_longest(lengths: Sequence[int]) -> list[list[int]]:
    """The shortest, each in a pair with the longest of those that fit twice into memory; then the others."""
    order = _order_by_length(lengths)
    fitting = [number for number in order if 2 * lengths[number] ** 2 <= _MOST_PLACES]
    longest = fitting[-1] if fitting else None
    short = [number for number in fitting[:_BESIDE_THE_LONGEST] if number != longest]
    pairs = [[number, longest] for number in short if longest is not None]
    rest = sorted({*order}.difference(number for pair in pairs for number in pair))
    return [*pairs, *_split_batches(rest, lengths, 32)]


def _order_by_length(lengths: Sequence[int]) -> list[int]:
    order: list[int] = np.argsort(np.asarray(lengths), kind="stable").tolist()
    return order


def _split_batches(order: Sequence[int], lengths: Sequence[int], size: int) -> list[list[int]]:
    """Batches of at most `size`, in order."""
    parts: list[list[int]] = []
    longest = 0
    for number in order:
        longest = max(longest, lengths[number])
        fits = bool(parts) and len(parts[-1]) < size and (len(parts[-1]) + 1) * longest**2 <= _MOST_PLACES
        if fits:
            parts[-1].append(number)
        else:
            parts.append([number])
            longest = lengths[number]
    return parts


def run_sequences(
    run: Run, source: ExportSource, windows: Sequence[Window], arrangement: Arrangement
) -> list[Answer]:
    """What the graph says of each, in their order, in batches of that arrangement. Raises ModelError for
    values that are not finite.
    """
    found: list[Answer | None] = [None] * len(windows)
    for numbers in arrangement.batches:
        some = [windows[number] for number in numbers]
        feed, starts = padded_feed(some, source, left=arrangement.left)
        outputs = run(feed)
        for row, (number, window, start) in enumerate(zip(numbers, some, starts, strict=True)):
            answer = source.padded.head.of_sequence(outputs, row, start + window.rows)
            found[number] = answer
            if not np.isfinite(answer).all():
                raise ModelError(
                    f"The graph gives values that are not finite for a sequence of {len(window.token_ids)} "
                    f"tokens ({arrangement.name}): its model can't be exported."
                )
    return [each for each in found if each is not None]


def padded_feed(
    windows: Sequence[Window], source: ExportSource, *, left: bool
) -> tuple[dict[str, npt.NDArray[np.int64]], list[int]]:
    """(B, L) of each input, and where each sequence begins."""
    longest = max(len(window.token_ids) for window in windows)
    ids = np.full((len(windows), longest), source.tokenizer.pad_id, np.int64)
    mask, segments = np.zeros_like(ids), np.zeros_like(ids)
    starts = []
    for row, window in enumerate(windows):
        length = len(window.token_ids)
        start = longest - length if left else 0
        place = slice(start, start + length)
        ids[row, place], mask[row, place], segments[row, place] = window.token_ids, 1, window.segment_ids
        starts.append(start)
    inputs = {"input_ids": ids, "attention_mask": mask, "token_type_ids": segments}
    return {name: inputs[name] for name in source.padded.inputs}, starts
