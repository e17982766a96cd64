"""Writes `report.html` of a training run: one page that needs no files beside it and no network. What it
shows is passed as a `RunReport`.
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
    """The content of a run's page, as plain values; sections without content are left out.

    records: the lines of the log (`RunLog.read`).
    recipe, defaults: the resolved recipe, and the default of each setting.
    corpus: the corpus manifest. vocabulary: the vocabulary report.
    model: facts about it by name; `parameters`, the number of weights by part, is drawn as bars.
    fills: examples: {"text", "answer" (or None), "before": [(token, probability), ...], "after": [...]}.
    comparison: rows of a table, for instance of this model and its baselines.
    environment: versions, machine, seed, hashes of the data. command: the command that repeats this run.
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
    """Returns the page as HTML. `fallback_title` is used when `content` has no title. Everything but our own
    pictures is escaped, since texts and tokens may hold any markup.
    """
    curves = charts.charts(content.records)
    return render_page(
        TEMPLATE,
        title=content.title or fallback_title,
        status=_describe_status(content.records),
        headline=_collect_headline(content),
        warnings=_collect_warnings(content.records),
        pictures=[(chart.title, as_markup(charts.draw(chart))) for chart in curves],
        fills=content.fills or [],
        content=content,
        tables=tables,
        parameters=_compute_parameter_shares(content.model),
        model={name: value for name, value in (content.model or {}).items() if name != "parameters"},
    )


def _collect_headline(content: RunReport) -> list[tuple[str, str]]:
    """The main figures as names and formatted values, the most telling first; unknown ones are left out."""
    step, evaluation = _find_last(content.records, "step"), _find_last(content.records, "evaluation")
    end = _find_last(content.records, "end") or step
    parameters = sum(number for _, number, _ in _compute_parameter_shares(content.model)) or None
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
        ("real tokens per second", formatting.count(_average(content.records, "tokens_per_second"))),
        ("of the matmul peak", formatting.percent(_average(content.records, "mfu"))),
    ]
    return [(name, value) for name, value in figures if value != formatting.UNKNOWN]


def _describe_status(records: Sequence[Record]) -> str:
    """When the run began and how it ended, in one line."""
    starts, end = [record for record in records if record["kind"] == "start"], _find_last(records, "end")
    began = starts[0].get("time") if starts else None  # a resumed run has a start for each process
    if isinstance(began, int | float):
        began = datetime.fromtimestamp(began, UTC).strftime("%Y-%m-%d %H:%M UTC")
    parts = [f"begun {began}" if began else "", f"ended: {end['reason']}" if end.get("reason") else ""]
    if records and not end:
        parts.append("not ended yet, or interrupted")
    return " · ".join(part for part in parts if part)


def _collect_warnings(records: Sequence[Record]) -> list[str]:
    """The log's warnings, and one more when losses were not finite (the log has null for them)."""
    warnings = [
        f"Step {record['step']:,}: {record['message']}" for record in records if record["kind"] == "warning"
    ]
    losses = [record["loss"] for record in records if record["kind"] == "step" and "loss" in record]
    unusable = sum(not _is_finite(loss) for loss in losses)
    if unusable:
        warnings.append(
            f"{unusable:,} of {len(losses):,} logged losses are not finite and are missing in the curves."
        )
    return warnings


def _compute_parameter_shares(model: Mapping[str, Any] | None) -> list[tuple[str, int, float]]:
    """Each part of the model with its number of parameters and its share of the largest part."""
    parts = (model or {}).get("parameters")
    if not isinstance(parts, Mapping) or not parts:
        return []
    largest = max(parts.values()) or 1
    return [(str(part), int(number), number / largest) for part, number in parts.items()]


def _find_last(records: Sequence[Record], kind: str) -> Record:
    return next((record for record in reversed(records) if record["kind"] == kind), {})


def _average(records: Sequence[Record], name: str) -> float | None:
    values = [record[name] for record in records if record["kind"] == "step" and _is_finite(record.get(name))]
    return sum(values) / len(values) if values else None


def _is_finite(value: Any) -> bool:
    return isinstance(value, int | float) and abs(value) < float("inf")


def environment(seed: int, hardware: Hardware) -> dict[str, Any]:
    """Versions, machine and seed, as plain values: what a run's figures depend on besides its recipe."""
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


def find_first_evaluation(records: Sequence[Record]) -> Record | None:
    """The record of the evaluation before the first step; None when there was none."""
    return next((r for r in records if r["kind"] == "evaluation" and r["step"] == 0), None)
