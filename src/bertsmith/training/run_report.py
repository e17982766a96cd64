"""`report.html` of a run of the loop: one page that needs nothing else, neither files beside it nor the
network. What is shown is gathered from the run's folder.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy
import tokenizers
import torch

from bertsmith import __version__
from bertsmith.files import atomic_write
from bertsmith.machine import Hardware
from bertsmith.reporting import charts, formatting, tables
from bertsmith.reporting.page import REPORT_FILE, as_markup, render_page
from bertsmith.training.log import Record

TEMPLATE = "report.html.jinja"


@dataclass(frozen=True)
class RunReport:
    """What is known of a run, as plain values; the page leaves out the sections of which nothing is known.

    records: the lines of the log (`RunLog.read`).
    recipe, defaults: the resolved recipe, and what each setting would be if nobody had said anything.
    corpus: the corpus manifest. vocabulary: the vocabulary report.
    model: whatever describes it; `parameters`, a dictionary of part and number, becomes bars.
    fills: examples: {"text", "answer" (or None), "before": [(token, probability), ...], "after": [...]}.
    comparison: rows of a table, for instance of this model and its baselines.
    environment: versions, machine, seed, hashes of the data. command: what to type to get this run again.
    """

    title: str | None = None
    records: Sequence[Record] = field(default_factory=list)
    recipe: Mapping[str, Any] | None = None
    defaults: Mapping[str, Any] | None = None
    corpus: Mapping[str, Any] | None = None
    vocabulary: Mapping[str, Any] | None = None
    model: Mapping[str, Any] | None = None
    fills: Sequence[Mapping[str, Any]] | None = None
    comparison: Sequence[Mapping[str, Any]] | None = None
    environment: Mapping[str, Any] | None = None
    command: str | None = None


def write_report(run_folder: Path, content: RunReport) -> Path:
    """Writes the page into the run's folder and returns its path; the same content gives the same bytes.

    Raises ResourceError when the disk is full or the folder can't be written.
    """
    path = Path(run_folder) / REPORT_FILE
    atomic_write(path, render(content, fallback_title=Path(run_folder).resolve().name))
    return path


def render(content: RunReport, fallback_title: str = "Run") -> str:
    """The page as text. Everything but our own pictures is escaped: texts and tokens may hold any markup."""
    curves = charts.charts(content.records)
    return render_page(
        TEMPLATE,
        title=content.title or fallback_title,
        status=_status(content.records),
        headline=_headline(content),
        warnings=_warnings(content.records),
        pictures=[(chart.title, as_markup(charts.draw(chart))) for chart in curves],
        fills=content.fills or [],
        content=content,
        tables=tables,
        parameters=_parameter_shares(content.model),
        model={name: value for name, value in (content.model or {}).items() if name != "parameters"},
    )


def _headline(content: RunReport) -> list[tuple[str, str]]:
    """The figures to remember, the most telling first; those not known are left out."""
    step, evaluation = _last(content.records, "step"), _last(content.records, "evaluation")
    end = _last(content.records, "end") or step
    parameters = sum(number for _, number, _ in _parameter_shares(content.model)) or None
    figures = [
        ("held-out MLM accuracy", formatting.percent(evaluation.get("mlm_accuracy"))),
        ("held-out MLM perplexity", formatting.perplexity(evaluation.get("mlm_perplexity"))),
        ("MLM accuracy on general text", formatting.percent(evaluation.get("general_mlm_accuracy"))),
        ("held-out NSP accuracy", formatting.percent(evaluation.get("nsp_accuracy"))),
        ("held-out SOP accuracy", formatting.percent(evaluation.get("sop_accuracy"))),
        ("held-out replaced tokens found", formatting.percent(evaluation.get("rtd_recall"))),
        ("parameters", formatting.large(parameters)),
        ("steps", formatting.count(step.get("step"))),
        ("real tokens seen", formatting.large(step.get("tokens"))),
        ("of training", formatting.duration(end.get("elapsed"))),
        ("real tokens per second", formatting.count(_mean(content.records, "tokens_per_second"))),
        ("of the matmul peak", formatting.percent(_mean(content.records, "mfu"))),
    ]
    return [(name, value) for name, value in figures if value != formatting.UNKNOWN]


def _status(records: Sequence[Record]) -> str:
    """When the run began, and how it ended."""
    start, end = _last(records, "start"), _last(records, "end")
    began = start.get("time")
    if isinstance(began, int | float):
        began = datetime.fromtimestamp(began, UTC).strftime("%Y-%m-%d %H:%M UTC")
    parts = [f"begun {began}" if began else "", f"ended: {end['reason']}" if end.get("reason") else ""]
    if records and not end:
        parts.append("not ended yet, or interrupted")
    return " · ".join(part for part in parts if part)


def _warnings(records: Sequence[Record]) -> list[str]:
    """The log's warnings, and one more when losses were not finite (the log has null for them)."""
    found = [
        f"Step {record['step']:,}: {record['message']}" for record in records if record["kind"] == "warning"
    ]
    losses = [record["loss"] for record in records if record["kind"] == "step" and "loss" in record]
    unusable = sum(not _is_finite(loss) for loss in losses)
    if unusable:
        found.append(
            f"{unusable:,} of {len(losses):,} logged losses are not finite and are missing in the curves."
        )
    return found


def _parameter_shares(model: Mapping[str, Any] | None) -> list[tuple[str, int, float]]:
    """Each part of the model with its number of parameters and its share of the largest part."""
    parts = (model or {}).get("parameters")
    if not isinstance(parts, Mapping) or not parts:
        return []
    largest = max(parts.values()) or 1
    return [(str(part), int(number), number / largest) for part, number in parts.items()]


def _last(records: Sequence[Record], kind: str) -> Record:
    return next((record for record in reversed(records) if record["kind"] == kind), {})


def _mean(records: Sequence[Record], name: str) -> float | None:
    values = [record[name] for record in records if record["kind"] == "step" and _is_finite(record.get(name))]
    return sum(values) / len(values) if values else None


def _is_finite(value: Any) -> bool:
    return isinstance(value, int | float) and abs(value) < float("inf")


def environment(seed: int, hardware: Hardware) -> dict[str, Any]:
    """What a run's figures depend on beside its recipe, as plain values: versions, machine and seed."""
    return {
        "bertsmith": __version__,
        "torch": torch.__version__,
        "tokenizers": tokenizers.__version__,
        "numpy": numpy.__version__,
        "processor": hardware.processor,
        "cores": hardware.cores,
        "GPUs": ", ".join(gpu.name for gpu in hardware.gpus) or "none",
        "seed": seed,
    }


def first_evaluation(records: Sequence[Record]) -> Record | None:
    """The evaluation before the first step, where there was one."""
    return next((r for r in records if r["kind"] == "evaluation" and r["step"] == 0), None)
