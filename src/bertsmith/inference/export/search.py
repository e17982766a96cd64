"""Which products to leave in float where all in int8 don't pass the gate: each one's own damage is measured,
then the worst are left out, more of them until the gate holds or half are gone.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from bertsmith.inference.export.gate import Gate, Verdict
from bertsmith.inference.export.graph import products
from bertsmith.inference.export.limits import ERROR, ExportLimits
from bertsmith.inference.export.quantise import quantise
from bertsmith.inference.export.running import onnx_run

if TYPE_CHECKING:
    from onnx import ModelProto


@dataclass
class Search:
    """What was found: the graph, or None. `verdict` is on the last graph that was judged whole, which has the
    products of `in_float` in float. `damages` is empty where nothing had to be sought; `tried` says what each
    try came to, as JSON.
    """

    graph: "ModelProto | None" = None
    verdict: Verdict | None = None
    in_float: tuple[str, ...] = ()
    damages: dict[str, float] = field(default_factory=dict)
    tried: list[dict[str, Any]] = field(default_factory=list)


def quantise_until_it_passes(graph: "ModelProto", gate: Gate, limits: ExportLimits) -> Search:
    """Each try may prove less: the k-th has half of the (k-1)-th's chance of error, so that all tries
    together have no more than `ERROR`.
    """
    found, names = Search(), products(graph)
    if _passes(found, graph, gate, limits, (), ERROR / 2):
        return found
    found.damages = {name: gate.damage(onnx_run(quantise(graph, [name]))) for name in names}
    worst = sorted(names, key=lambda name: -found.damages[name])
    for number, count in enumerate(_counts(len(names)), 2):
        if _passes(found, graph, gate, limits, tuple(worst[:count]), ERROR / 2**number):
            break
    return found


def _passes(
    found: Search,
    graph: "ModelProto",
    gate: Gate,
    limits: ExportLimits,
    in_float: Sequence[str],
    error: float,
) -> bool:
    quantised = quantise(graph, [name for name in products(graph) if name not in in_float])
    run = onnx_run(quantised)
    problems = gate.glance(run, limits, error)
    if not problems or not in_float:
        verdict = gate.judge(run, limits, error)
        problems = verdict.problems
        found.verdict, found.in_float = verdict, tuple(in_float)
    found.tried.append({"in_float": list(in_float), "error": error, "problems": list(problems)})
    found.graph = quantised if not problems else None
    return not problems


def _counts(products: int) -> list[int]:
    """1, 2, 3, 4, 6, 8, 12, …, and half of them as the last."""
    steps = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)
    half = products // 2
    return sorted({*(step for step in steps if step < half), half} - {0})
