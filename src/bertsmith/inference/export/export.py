"""export_model: exports a model as a graph for ONNX Runtime or OpenVINO.

The steps: padded model (padded.py), graph (graph.py), int8 if asked for (int8.py), gate (gate.py), folder
(artefact.py).
"""

import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertsmith.argument_checks import (
    check_arguments,
    check_flag,
    check_function,
    check_path,
    instance_of,
    one_of,
    optional,
)
from bertsmith.errors import ExportRefused, InputError, require
from bertsmith.files import sha256
from bertsmith.inference.export.artefact import made_with, require_place, write_artefact
from bertsmith.inference.export.comparison import fewest_examples
from bertsmith.inference.export.gate import ERROR, EXACT, ExportLimits, Gate, GateVerdict
from bertsmith.inference.export.gate_file import GateFile, read_gate_file, require_same_ids
from bertsmith.inference.export.graph import (
    PURPOSE,
    Target,
    make_graph,
    onnx_run,
    openvino_files,
    openvino_run,
    require_exporters,
)
from bertsmith.inference.export.int8 import Int8Search, quantise_until_it_passes
from bertsmith.inference.export.source import ExportSource, open_source
from bertsmith.progress import Progress
from bertsmith.tasks.task import Task

if TYPE_CHECKING:
    pass


_PROVABLE = 0.99  # of the neighbours: no number of rows proves that all of them stay


@dataclass(frozen=True)
class ExportResult:
    """The folder `path` that was written, and `parity`, the content of its parity.json."""

    path: Path
    parity: dict[str, Any] = field(repr=False)

    @property
    def in_float(self) -> tuple[str, ...]:
        """The products of an int8 graph that stayed in float32, because the gate refused them in int8."""
        return tuple(self.parity["in_float"])


@check_arguments(
    model=check_path,
    gate=check_path,
    out=check_path,
    to=one_of("onnx", "openvino"),
    int8=check_flag,
    limits=optional(instance_of(ExportLimits)),
    overwrite=check_flag,
    task=optional(instance_of(type)),
    progress=optional(check_function),
)
def export_model(
    model: str | Path,
    gate: str | Path,
    out: str | Path,
    *,
    to: Target = "onnx",
    int8: bool = False,
    limits: ExportLimits | None = None,
    overwrite: bool = False,
    task: type[Task[Any]] | None = None,
    progress: Progress | None = None,
    **columns: Any,
) -> ExportResult:
    """Exports a model to the folder `out`, which ONNX Runtime or OpenVINO opens, if the graph answers as the
    model does on the rows of the file `gate`. Otherwise writes nothing and raises ExportRefused with the
    reason.

    `gate` is read as the model's task reads files, with labels or without; for an encoder, each row is a
    text. `columns` say where the texts stand, as for `Predictor.predict_file`. Of more than 2,000 rows a
    sample is compared. `task` is the task's class if you wrote it yourself.

    A float32 graph must give the same answers, probabilities to 1e-4 and cosines to 1e-5. `int8` quantises
    the layers' matrix products, must stay within `limits`, and leaves in float the products that don't.
    Raises MissingExtra if packages are missing, ModelError for a model that can't be exported, InputError for
    an unusable file or `out`.
    """
    require_exporters()
    if to == "openvino":
        require("openvino", "openvino", f"{PURPOSE} to OpenVINO")
        if int8:
            raise InputError(
                "--int8 needs --to onnx: OpenVINO runs ONNX's dynamic int8 no faster than float32, and "
                "rounds it differently. Leave one of the two out."
            )
    source = open_source(model, task)
    out = Path(out)
    require_place(out, overwrite, source.folder, Path(gate))
    if limits is not None and not int8:
        raise InputError(
            "limits are for int8: float32 must give the same answers. Leave them out, or ask for int8."
        )
    file = read_gate_file(source, gate, columns)
    limits = limits or ExportLimits()
    _require_its_limits(source, limits)
    if int8:
        _require_enough(source, file, limits)
    require_same_ids(source, file)
    graph, export_gate = make_graph(source.padded), Gate(source, file, progress)
    with tempfile.TemporaryDirectory(prefix="bertsmith-") as folder:
        files = openvino_files(graph, Path(folder)) if to == "openvino" else []
        run = openvino_run(files[0], source.padded.head.names) if files else onnx_run(graph)
        verdict = export_gate.judge(run, EXACT, ERROR)
        parity = _parity_facts(source, file, to, verdict)
        if verdict.problems:
            problems = "; ".join(verdict.problems)
            sentence = f"The graph does not answer as the model does: {problems}. Nothing was written."
            raise ExportRefused(sentence, parity)
        if int8:
            search = quantise_until_it_passes(graph, export_gate, limits)
            assert search.verdict is not None
            parity = _parity_facts(source, file, to, search.verdict, search, limits)
            parity["float32"] = verdict.figures
            if search.graph is None:
                raise ExportRefused(search.refusal(), parity)
            graph, verdict = search.graph, search.verdict
        write_artefact(out, source, graph, to, verdict.task, parity, overwrite, files)
    return ExportResult(out, parity)


def _require_its_limits(source: ExportSource, limits: ExportLimits) -> None:
    """Raises InputError for a limit that the answers of this model have no figure for."""
    unused = ["change"] if source.by_angle else ["cosine", "neighbours"]
    unused += [] if source.decided else ["agreement"]
    for name in unused:
        if getattr(limits, name) != getattr(ExportLimits, name):
            used = " and ".join(f"--{limit}" for limit in vars(limits) if limit not in unused)
            raise InputError(f"--{name} has no effect on {source.name}. Leave it out; its limits: {used}.")


def _require_enough(source: ExportSource, file: GateFile, limits: ExportLimits) -> None:
    """Raises InputError, before any work, for a file of so few rows that they couldn't prove the limits even
    if all answers agreed.
    """
    fewest_rows = fewest_examples(limits.agreement, ERROR / 2)
    if source.decided and len(file.encoded) < fewest_rows:
        raise InputError(
            f"{file.path} has {len(file.encoded):,} rows to compare, but proving an agreement of "
            f"{limits.agreement:.0%} takes at least {fewest_rows:,}, even if all agree. Give more rows, or a "
            "lower --agreement."
        )
    fewest_rows = fewest_examples(min(limits.neighbours, _PROVABLE), ERROR / 2)
    if source.by_angle and len(file.encoded) < fewest_rows:
        raise InputError(
            f"{file.path} has {len(file.encoded):,} rows, too few to tell whether {limits.neighbours:.0%} of "
            "the nearest neighbours stay so: among a handful of texts they stay by chance. Give at least "
            f"{fewest_rows:,}, or a lower --neighbours."
        )


def _parity_facts(
    source: ExportSource,
    file: GateFile,
    to: Target,
    verdict: GateVerdict,
    search: Int8Search | None = None,
    limits: ExportLimits | None = None,
) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "model": source.name,
        "to": to,
        "precision": "float32" if search is None else "int8",
        "passed": not verdict.problems,
        "file": {"name": file.path.name, "sha256": sha256(file.path), "rows": file.rows},
        "labelled": file.labelled,
        "limits": vars(EXACT if limits is None else limits),
        "gate": verdict.figures,
        "problems": list(verdict.problems),
        "in_float": list(search.in_float) if search is not None else [],
        "notes": [*source.notes, *file.notes],
        "versions": made_with(to),
    }
    if search is not None:
        facts |= {"tried": search.tried, "damages": search.damages}
        facts["passed"] = search.graph is not None
    return facts
