"""Products of an encoder's layers in int8, by ONNX Runtime's dynamic quantisation: weights once, a scale for
each output channel; what they are multiplied with in every call, by the range of the whole batch.

Weights have 7 bits. With 8, processors without VNNI add pairs of products in 16 bits, which overflow, and a
graph that passes its gate on one machine would be wrong on another (onnxruntime issues 5644, 9599).
"""

import tempfile
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from onnx import ModelProto

_PREPARED = "onnx.quant.pre_process"


def quantise(graph: "ModelProto", names: Collection[str]) -> "ModelProto":
    """A copy of the graph with the products of these names in int8; the graph itself for none."""
    import onnx
    from onnxruntime.quantization import (  # type: ignore[import-untyped]
        QuantType,
        quantize_dynamic,
    )

    if not names:
        return graph
    prepared = onnx.ModelProto()
    prepared.CopyFrom(graph)  # its shapes are known: without the mark there is a warning to prepare it
    prepared.metadata_props.add(key=_PREPARED, value="onnxruntime.quant")
    with tempfile.TemporaryDirectory(prefix="bertsmith-") as folder:
        path = Path(folder) / "int8.onnx"
        quantize_dynamic(
            prepared,
            path,
            op_types_to_quantize=["MatMul"],
            per_channel=True,
            reduce_range=True,
            weight_type=QuantType.QInt8,
            nodes_to_quantize=list(names),
            extra_options={"MatMulConstBOnly": True},
        )
        quantised = onnx.load(path)
    del quantised.metadata_props[:]
    onnx.checker.check_model(quantised)
    return quantised
