"""Exports a padded model as an ONNX graph with dynamic batch size and length, and runs sequences through a
graph in various batches, in all of which it must answer the same.

The matrix products of an encoder's layers are named after their modules, as `layers.3.feed_forward.up`, by
which int8.py chooses what to quantise.

B sequences, L tokens of the longest.
"""

import logging
import re
import warnings
from collections import Counter
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
_TRACED = 2, 7  # batch size and length of the traced example; both stay dynamic
Feed = Mapping[str, npt.NDArray[np.int64]]
Run = Callable[[Feed], Sequence[npt.NDArray[Any]]]
_SEED = 0
_BESIDE_THE_LONGEST = 64
# Attention's memory grows with a batch's sequences times the square of the longest length. At most that of 32
# sequences of 512 tokens, some 400 MB for twelve heads; a single sequence may be longer.
_MOST_PLACES = 32 * 512**2


def require_exporters() -> None:
    """Raises MissingExtra unless the packages that make, quantise and run a graph are installed."""
    for module in ("onnx", "onnxscript", "onnxruntime"):
        require(module, "export", PURPOSE)


def make_graph(model: PaddedModel) -> "ModelProto":
    """Exports the model as a graph, checked by onnx. Raises ModelError for more weights than a file
    can hold.
    """
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
    # traces name files of this machine
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
    """Names the layers' products and their weights after their modules; the exporter only numbers them. Of a
    layer that is computed several times it has a copy of each weight each time: all but the first go.
    """
    weights = {tensor.name: tensor for tensor in graph.graph.initializer}
    new_names: dict[str, str] = {}
    uses: Counter[str] = Counter()
    for node in graph.graph.node:
        scope = next((prop.value for prop in node.metadata_props if prop.key.endswith("name_scopes")), "")
        match = _SCOPE.search(scope)
        if node.op_type == "MatMul" and match and node.input[1] in weights:
            uses[match[1]] += 1
            node.name = match[1] if uses[match[1]] == 1 else f"{match[1]}.use_{uses[match[1]]}"
            new_names[node.input[1]] = f"{match[1]}.weight"
    named: set[str] = set()
    for name, new in new_names.items():
        if new in named:
            graph.graph.initializer.remove(weights[name])
        else:
            weights[name].name = new
            named.add(new)
    for node in graph.graph.node:
        for index, name in enumerate(node.input):
            node.input[index] = new_names.get(name, name)


@contextmanager
def _quiet_exporter() -> Iterator[None]:
    """Silences the exporter, which warns about its own old code, names shared by axes, and torchvision."""
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
    """The names of the matrix products of the encoder's layers, in order."""
    return [node.name for node in graph.graph.node if node.op_type == "MatMul" and "layers." in node.name]


def onnx_run(graph: "ModelProto | Path") -> Run:
    """A function that runs the graph by ONNX Runtime on the processor, with its default optimisations."""
    import onnxruntime  # type: ignore[import-untyped]

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.enable_cpu_mem_arena = False  # the arena would keep the memory of the longest batch
    options.add_session_config_entry(
        "session.intra_op.allow_spinning", "0"
    )  # spinning threads would keep cores busy
    session = onnxruntime.InferenceSession(
        str(graph) if isinstance(graph, Path) else graph.SerializeToString(),
        options,
        providers=["CPUExecutionProvider"],
    )
    names = [output.name for output in session.get_outputs()]
    return lambda feed: session.run(names, dict(feed))


def openvino_files(graph: "ModelProto", folder: Path) -> list[Path]:
    """Writes model.xml and model.bin in float32; OpenVINO's own default is float16 weights."""
    import onnx
    import openvino  # type: ignore[import-untyped]

    path = folder / "graph.onnx"
    onnx.save(graph, path)
    files = [folder / name for name in GRAPHS["openvino"]]
    openvino.save_model(openvino.convert_model(path), str(files[0]), compress_to_fp16=False)
    return files


def openvino_run(path: Path, names: Sequence[str]) -> Run:
    """A function that runs the graph by OpenVINO on the processor, in float32; its default is bfloat16 where
    the processor has it.
    """
    import openvino

    compiled = openvino.Core().compile_model(str(path), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})

    def run(feed: Feed) -> list[npt.NDArray[Any]]:
        results = compiled(dict(feed))
        return [np.array(results[name]) for name in names]

    return run


class Arrangement(NamedTuple):
    """Batches of sequences, by their indices. `left`: padding is on the left."""

    name: str
    batches: list[list[int]]
    left: bool = False


def arrangements(lengths: Sequence[int]) -> list[Arrangement]:
    """All arrangements in which a graph is compared, the usual one first; the same for the same lengths."""
    generator = np.random.Generator(np.random.PCG64DXSM(_SEED))
    order_of_eights, order_of_32s = (generator.permutation(len(lengths)).tolist() for _ in range(2))
    return [
        like_lengths(lengths),
        alone(len(lengths)),
        Arrangement("8 of any length, padded on the right", _split_batches(order_of_eights, lengths, 8)),
        Arrangement(
            "32 of any length, padded on the left", _split_batches(order_of_32s, lengths, 32), left=True
        ),
        Arrangement("beside the longest, padded on the left", _pair_with_longest(lengths), left=True),
    ]


def like_lengths(lengths: Sequence[int]) -> Arrangement:
    """Batches of 32 sequences of like length, as a service would batch them."""
    return Arrangement(
        "32 of like length, padded on the right", _split_batches(_order_by_length(lengths), lengths, 32)
    )


def alone(count: int) -> Arrangement:
    """Batches of one sequence each, so that nothing is padded."""
    return Arrangement("alone", [[number] for number in range(count)])


def all_together(lengths: Sequence[int], *, left: bool = False) -> Arrangement:
    """All sequences in one batch, or in as few batches as there is memory for."""
    side = "left" if left else "right"
    return Arrangement(
        f"all together, padded on the {side}",
        _split_batches(_order_by_length(lengths), lengths, len(lengths)),
        left,
    )


def _pair_with_longest(lengths: Sequence[int]) -> list[list[int]]:
    """Pairs each of the shortest sequences with the longest that fits into memory twice; then batches the
    others.
    """
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
    """Divides an order of sequences into batches of at most `size` that fit into memory."""
    batches: list[list[int]] = []
    longest = 0
    for number in order:
        longest = max(longest, lengths[number])
        fits = (
            bool(batches) and len(batches[-1]) < size and (len(batches[-1]) + 1) * longest**2 <= _MOST_PLACES
        )
        if fits:
            batches[-1].append(number)
        else:
            batches.append([number])
            longest = lengths[number]
    return batches


def run_sequences(
    run: Run, source: ExportSource, windows: Sequence[Window], arrangement: Arrangement
) -> list[Answer]:
    """Runs windows through the graph in the arrangement's batches, and returns the answers in the order of
    the windows. Raises ModelError for values that are not finite.
    """
    answers: list[Answer | None] = [None] * len(windows)
    for indices in arrangement.batches:
        batch = [windows[number] for number in indices]
        feed, starts = padded_feed(batch, source, left=arrangement.left)
        outputs = run(feed)
        for row, (number, window, start) in enumerate(zip(indices, batch, starts, strict=True)):
            answer = source.padded.head.of_sequence(outputs, row, start + window.rows)
            answers[number] = answer
            if not np.isfinite(answer).all():
                raise ModelError(
                    f"The graph gives values that are not finite for a sequence of {len(window.token_ids)} "
                    f"tokens ({arrangement.name}): its model can't be exported."
                )
    return [answered for answered in answers if answered is not None]


def padded_feed(
    windows: Sequence[Window], source: ExportSource, *, left: bool
) -> tuple[dict[str, npt.NDArray[np.int64]], list[int]]:
    """The graph's inputs, (B, L) each, and the column in which each sequence begins."""
    longest = max(len(window.token_ids) for window in windows)
    ids = np.full((len(windows), longest), source.tokenizer.pad_id, np.int64)
    mask, segments = np.zeros_like(ids), np.zeros_like(ids)
    starts = []
    for row, window in enumerate(windows):
        length = len(window.token_ids)
        start = longest - length if left else 0
        columns = slice(start, start + length)
        ids[row, columns], mask[row, columns], segments[row, columns] = (
            window.token_ids,
            1,
            window.segment_ids,
        )
        starts.append(start)
    inputs = {"input_ids": ids, "attention_mask": mask, "token_type_ids": segments}
    return {name: inputs[name] for name in source.padded.inputs}, starts
