"""Quantises the matrix products of an encoder's layers to int8, leaving in float those that the gate refuses.

If the graph with all products in int8 fails the gate, the damage of each product alone is measured. Then more
and more of the worst stay in float, until the gate passes or half of the products are in float.

This is ONNX Runtime's dynamic quantisation: weights are quantised once, with a scale for each output channel;
activations at every call, by the range of the whole batch. Weights have 7 bits. With 8, processors without
VNNI add pairs of products in 16 bits, which overflow, and a graph that passes the gate on one machine would
be wrong on another (onnxruntime issues 5644, 9599).
"""

import tempfile
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertsmith.inference.export.gate import ERROR, ExportLimits, Gate, GateVerdict
from bertsmith.inference.export.graph import onnx_run, products

if TYPE_CHECKING:
    from onnx import ModelProto

_PREPARED = "onnx.quant.pre_process"
_LEFT_OUT = (
    1,
    2,
    3,
    4,
    6,
    8,
    12,
    16,
    24,
    32,
    48,
    64,
    96,
    128,
)  # how many products stay in float, in each try


@dataclass
class Int8Search:
    """The state and result of the search for an int8 graph.

    `graph` is the graph that passed, or None. `verdict` is that of the last graph that was judged in full,
    whose products `in_float` are in float. `damages` by product is empty if the first try passed. `tried` has
    the outcome of each try, as JSON.
    """

    graph: "ModelProto | None" = None
    verdict: GateVerdict | None = None
    in_float: tuple[str, ...] = ()
    damages: dict[str, float] = field(default_factory=dict)
    tried: list[dict[str, Any]] = field(default_factory=list)

    def refusal(self) -> str:
        """A sentence for the user that says why no graph passed."""
        first, last = self.tried[0], self.tried[-1]
        worst = sorted(self.damages, key=lambda name: -self.damages[name])[:4]
        return (
            f"The graph in int8 does not answer as the model does: {'; '.join(first['problems'])}. "
            f"{len(self.tried) - 1} more were tried with the worst products left in float, the last with "
            f"{len(last['in_float'])} of {len(self.damages)}: {'; '.join(last['problems'])}. Most damage is "
            f"done by {', '.join(worst)}. Nothing was written. Export without --int8, or ask for less with "
            "--agreement, --change, --cosine or --neighbours."
        )


def quantise_until_it_passes(graph: "ModelProto", gate: Gate, limits: ExportLimits) -> Int8Search:
    """Quantises the graph, leaving more products in float with each try, until the gate passes or half are in
    float. Each try has half the error probability of the one before, so that all of them together stay within
    `ERROR`.
    """
    search, names = Int8Search(), products(graph)
    if _try_quantised(search, graph, gate, limits, (), ERROR / 2):
        return search
    damages = gate.damages((onnx_run(quantise(graph, [name])) for name in names), len(names))
    search.damages = dict(zip(names, damages, strict=True))
    worst = sorted(names, key=lambda name: -search.damages[name])
    half = len(names) // 2
    counts = sorted({*(count for count in _LEFT_OUT if count < half), half} - {0})
    for number, count in enumerate(counts, 2):
        if _try_quantised(search, graph, gate, limits, tuple(worst[:count]), ERROR / 2**number):
            break
    return search


def _try_quantised(
    search: Int8Search,
    graph: "ModelProto",
    gate: Gate,
    limits: ExportLimits,
    in_float: Sequence[str],
    error: float,
) -> bool:
    quantised = quantise(graph, [name for name in products(graph) if name not in in_float])
    run = onnx_run(quantised)
    gate.graph_name = (
        f"the int8 graph with {len(in_float)} products in float" if in_float else "the int8 graph"
    )
    problems = gate.glance(run, limits, error)
    if not problems or not in_float:
        verdict = gate.judge(run, limits, error)
        problems = verdict.problems
        search.verdict, search.in_float = verdict, tuple(in_float)
    search.tried.append({"in_float": list(in_float), "error": error, "problems": list(problems)})
    search.graph = quantised if not problems else None
    return not problems


def quantise(graph: "ModelProto", names: Collection[str]) -> "ModelProto":
    """Quantises the named products of a graph to int8. Returns a copy, or the graph itself for no names."""
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
