"""A padded model → an ONNX graph whose batch and sequence have any length.

The products of an encoder's layers bear the names of the modules that they come from, as
`layers.3.feed_forward.up`: quantisation and the search for layers to leave in float go by these.
"""

import logging
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from bertsmith.errors import ModelError, require
from bertsmith.inference.export.padded_heads import PaddedModel

if TYPE_CHECKING:
    from onnx import ModelProto

OPSET = 18
PURPOSE = "Exporting a model"
_LARGEST = 2**31 - 2**20  # bytes of a protocol buffer
_SCOPE = re.compile(r"padded\.encoder\.(layers\.\d+\.[\w.]+)")
_TRACED = 2, 7  # batch and sequence, by which nothing of the graph is decided


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
    with _without_noise(), torch.no_grad():
        program = torch.onnx.export(
            model.eval(),
            _example_inputs(model),
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
    _forget_where_it_was_made(graph)
    onnx.checker.check_model(graph, full_check=True)
    return graph


def products(graph: "ModelProto") -> list[str]:
    """The names of the products with weights of the encoder's layers, in their order."""
    return [node.name for node in graph.graph.node if node.op_type == "MatMul" and "layers." in node.name]


def _example_inputs(model: PaddedModel) -> tuple[torch.Tensor, ...]:
    ids = torch.ones(_TRACED, dtype=torch.int64)
    mask = torch.ones(_TRACED, dtype=torch.int64)
    mask[0, -2:] = 0
    return (ids, mask, torch.zeros_like(ids))[: len(model.inputs)]


def _name_products(graph: "ModelProto") -> None:
    """Nodes and weights: the exporter numbers them."""
    weights = {tensor.name: tensor for tensor in graph.graph.initializer}
    renamed: dict[str, str] = {}
    for node in graph.graph.node:
        scope = next((each.value for each in node.metadata_props if each.key.endswith("name_scopes")), "")
        match = _SCOPE.search(scope)
        if node.op_type == "MatMul" and match and node.input[1] in weights:
            node.name = match[1]
            renamed[node.input[1]] = f"{match[1]}.weight"
    for name, new in renamed.items():
        weights[name].name = new
    for node in graph.graph.node:
        for place, name in enumerate(node.input):
            node.input[place] = renamed.get(name, name)


def _forget_where_it_was_made(graph: "ModelProto") -> None:
    """Traces name files of the machine at hand."""
    del graph.metadata_props[:]
    graph.doc_string = graph.graph.doc_string = ""
    del graph.graph.metadata_props[:]
    parts: list[Any] = [*graph.graph.node, *graph.graph.value_info, *graph.graph.initializer]
    for part in (*parts, *graph.graph.input, *graph.graph.output):
        part.doc_string = ""
        del part.metadata_props[:]


@contextmanager
def _without_noise() -> Iterator[None]:
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
