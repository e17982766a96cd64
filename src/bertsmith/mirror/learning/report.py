"""What a training found: report.html of a student, and the same for the store, without texts.

The page says what is proven, what the student answers at which risk, where it differs from its teacher and
how it learns. It has some calls' texts, is as private as they are, and is not changed when a call is deleted.

What the store keeps has none: an example is named by its call, so that it is gone when the call is. Quotes
are texts, and so is what an answer has beside its fields or beside a field's known values: they are counted,
and left out.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import numpy as np

from bertsmith.mirror.fields import ABSENT, AnswerShape, Field, as_text, is_number, written
from bertsmith.mirror.learning.learned_calls import CallSplit, LearnedCall
from bertsmith.mirror.learning.limits import CallCurve
from bertsmith.mirror.learning.proving import (
    describe_ceiling,
    describe_claims,
    format_agreement_row,
    format_claim_rows,
    format_percent,
)
from bertsmith.mirror.learning.tiers import TeacherComparison
from bertsmith.mirror.student_file import CallsUsed, StudentFile
from bertsmith.reporting.charts import FIRST, MUTED, SECOND, picture
from bertsmith.reporting.page import as_markup, render_page
from bertsmith.reporting.tables import Table

if TYPE_CHECKING:
    from matplotlib.axes import Axes


_CONFUSIONS, _LONGEST = 40, 240  # rows, characters of a text
_FEWEST_SHOWN = 20  # answers, below which a risk is a matter of chance
_MOST_PAIRS = 40
_QUOTED, _TEXT = "quotes", "a text"
_FORECAST = 4  # times the texts learned from, that a curve is drawn on to


@dataclass(frozen=True)
class StudentReport:
    """What the page is made of; `calibration` is None where the calls weren't looked at, `why` says why
    nothing is proven, `strange` calls don't fit the template.
    """

    file: StudentFile
    parts: CallSplit
    shape: AnswerShape
    dev: TeacherComparison
    calibration: TeacherComparison | None
    tiers: Mapping[str, TeacherComparison]
    curve: CallCurve | None
    why: str
    strange: int = 0


def render_report(report: StudentReport) -> str:
    """The page as text; texts and values are escaped."""
    file, judged = report.file, report.calibration or report.dev
    calls = report.parts.calibration if report.calibration is not None else report.parts.dev
    of = "calibration" if report.calibration is not None else "dev"
    fitting = "of the calls that fit the template" if report.strange else "of the calls"
    return render_page(
        "student.html.jinja",
        title=f"Student of {file.teacher} · {file.site}",
        status=f"{file.tier}, {file.created}",
        headline=[
            (
                f"{fitting} it may answer",
                format_percent(file.claims.coverage) if file.claims.coverage else "none",
            ),
            ("of all its answers agree", format_percent(judged.agreement)),
            ("calls learned from", f"{file.trained_on.calls:,}"),
            ("calls to prove with", f"{file.calibration.calls:,}"),
        ],
        warnings=[f"Nothing is proven: {report.why}."] if report.why else [],
        claim=describe_claims(file.claims, report.strange),
        claims=Table(
            "",
            ["of", "from confidence", "answers", "of them differ", "claim"],
            format_claim_rows(file.claims),
        ),
        tiers=Table(
            "On the calls that choose",
            ["tier", "agrees", "calls"],
            [format_agreement_row(name, each) for name, each in report.tiers.items()],
        ),
        pictures=_draw_pictures(report, judged, of),
        curve=report.curve.forecast(1 - file.claims.epsilon) if report.curve is not None else "",
        ceiling=describe_ceiling(file.ceiling),
        confusions=_build_confusion_table(report.shape, judged, calls),
        of=of,
        templates=list(dict.fromkeys(each.shown() for each in file.templates.values())),
        facts=_list_facts(report),
    )


def _list_facts(report: StudentReport) -> list[tuple[str, str]]:
    file = report.file
    found = [
        ("site", file.site),
        ("teacher", file.teacher),
        ("versions", ", ".join(file.templates)),
        ("learned from", _describe_calls(file.trained_on)),
    ]
    return [*found, ("proven with", _describe_calls(file.calibration))] if file.calibration.calls else found


def _describe_calls(used: CallsUsed) -> str:
    began, ended = (
        datetime.fromtimestamp(each, UTC).strftime("%Y-%m-%d") for each in (used.began, used.ended)
    )
    return f"{used.calls:,} calls, {used.texts:,} texts, {began} to {ended}"


def _draw_pictures(report: StudentReport, judged: TeacherComparison, of: str) -> list[tuple[str, Any]]:
    found = [
        (
            f"Answers by how many are answered ({of})",
            as_markup(picture("Share of answers that differ, by share answered", _plot_risk(report, judged))),
        )
    ]
    if report.curve is not None:
        found.append(
            (
                "Agreement by texts learned from (dev)",
                as_markup(picture("Learning curve", _plot_curve(report.curve))),
            )
        )
    return found


def _plot_risk(report: StudentReport, judged: TeacherComparison) -> Any:
    calls, given = len(judged.confidence), int((judged.confidence >= 0).sum())
    order = np.argsort(-judged.confidence, kind="stable")[:given]
    answered = np.arange(1, len(order) + 1)
    risk = np.cumsum(judged.differs[order]) / answered
    first = min(_FEWEST_SHOWN, len(order)) - 1

    def paint(axes: "Axes") -> None:
        from matplotlib.ticker import PercentFormatter

        axes.plot(answered[first:] / calls, risk[first:], color=FIRST, label="differ")
        axes.axhline(report.file.claims.epsilon, color=MUTED, linewidth=1, linestyle="dashed", label="ε")
        if report.file.claims.coverage:
            axes.axvline(report.file.claims.coverage, color=SECOND, linewidth=1, label="answered")
        axes.set_xlabel("share of calls answered, the surest first")
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter(PercentFormatter(1.0, 0, symbol=" %"))
        axes.set_ylim(bottom=0)
        axes.legend(loc="upper left")

    return paint


def _plot_curve(curve: CallCurve) -> Any:
    def paint(axes: "Axes") -> None:
        from matplotlib.ticker import PercentFormatter

        errors = [1.96 * (a * (1 - a) / curve.calls) ** 0.5 for a in curve.agreements]
        axes.errorbar(
            curve.rows, curve.agreements, errors, color=FIRST, marker="o", markersize=3.5, label="tf-idf"
        )
        if curve.tier != "tf-idf":
            axes.plot([curve.rows[-1]], [curve.reached], "o", color=SECOND, label=curve.tier)
        rows = np.geomspace(curve.rows[0], 4 * curve.rows[-1], 50)
        axes.plot(
            rows,
            [1 - curve.law.disagreement(each) for each in rows],
            color=SECOND if curve.tier != "tf-idf" else MUTED,
            linewidth=1,
            linestyle="dashed",
            label="forecast",
        )
        axes.set_xscale("log")
        axes.set_xlabel("texts learned from")
        axes.yaxis.set_major_formatter(PercentFormatter(1.0, 0, symbol=" %"))
        axes.legend(loc="lower right")

    return paint


def _build_confusion_table(
    shape: AnswerShape, judged: TeacherComparison, calls: Sequence[LearnedCall]
) -> Table:
    """The most frequent differences, each with a text, the surest of its kind."""
    found = find_confusions(shape, judged, calls)
    rows = [
        [
            *map(_shorten, (each.path, each.taught, each.ours)),
            f"{each.calls:,}",
            f"{each.confidence:.2f}",
            _shorten(each.example.text),
        ]
        for each in found[:_CONFUSIONS]
    ]
    columns = ["the LLM says", "the student says", "calls", "confidence", "for instance"]
    more = max(len(found) - _CONFUSIONS, 0)
    if len(shape.fields) == 1:
        return Table("", columns, [row[1:] for row in rows], more, frozenset({0, 1, 4}))
    return Table("", ["field", *columns], rows, more, frozenset({0, 1, 2, 5}))


def _shorten(text: str) -> str:
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


@dataclass(frozen=True)
class FieldConfusion:
    """Of the field at `path` the teacher said `taught` and the student `ours` in `calls` calls; `example` is
    the one that the student was surest of, and `values` are the two as they were read there.
    """

    path: str
    taught: str
    ours: str
    calls: int
    confidence: float
    example: LearnedCall
    values: tuple[Any, Any]


def find_confusions(
    shape: AnswerShape, judged: TeacherComparison, calls: Sequence[LearnedCall]
) -> list[FieldConfusion]:
    """The most frequent first."""
    counts: Counter[tuple[str, str, str]] = Counter()
    surest: dict[tuple[str, str, str], tuple[float, LearnedCall, tuple[Any, Any]]] = {}
    for ours, call, confidence in zip(judged.answers, calls, judged.confidence, strict=True):
        for path in shape.differing(ours, call.values):
            values = call.values.get(path, ABSENT), ours.get(path, ABSENT)
            key = path, as_text(values[0]), as_text(values[1])
            counts[key] += 1
            if key not in surest or confidence > surest[key][0]:
                surest[key] = max(float(confidence), 0.0), call, values
    return [FieldConfusion(*key, count, *surest[key]) for key, count in counts.most_common()]


def summarise_findings(report: StudentReport) -> dict[str, Any]:
    """JSON."""
    file, judged = report.file, report.calibration or report.dev
    calls = report.parts.calibration if report.calibration is not None else report.parts.dev
    confusions = summarise_confusions(report.shape, find_confusions(report.shape, judged, calls))
    return {
        "versions": sorted(file.templates),
        "tier": file.tier,
        "created": file.created,
        "claim": describe_claims(file.claims, report.strange),
        "why_not": report.why or None,
        "coverage": file.claims.coverage,
        "agreement": judged.agreement,
        "of": "calibration" if report.calibration is not None else "dev",
        "calls": len(calls),
        "trained_on": file.trained_on.calls,
        "ceiling": describe_ceiling(file.ceiling) or None,
        "curve": None if report.curve is None else summarise_curve(report.curve, 1 - file.claims.epsilon),
        "different_confusions": len(confusions),
        "confusions": confusions[:_MOST_PAIRS],
    }


def summarise_confusions(shape: AnswerShape, confusions: Sequence[FieldConfusion]) -> list[dict[str, Any]]:
    """As JSON, the most frequent first; those that differ in their texts alone are one."""
    fields = {field.path: field for field in shape.fields}
    found: dict[tuple[str, str, str], dict[str, Any]] = {}
    for each in confusions:
        taught, ours = (
            said if _is_known(fields.get(each.path), value) else _TEXT
            for said, value in zip((each.taught, each.ours), each.values, strict=True)
        )
        if each.path in fields and fields[each.path].kind == "spans":
            taught, ours = _QUOTED, f"other {_QUOTED}"
        row = {"confidence": each.confidence, "call": each.example.id}
        same = found.setdefault(
            (each.path, taught, ours),
            {"field": each.path, "taught": taught, "ours": ours, "calls": 0, **row},
        )
        same["calls"] += each.calls
        if each.confidence > same["confidence"]:
            same |= row
    return sorted(found.values(), key=lambda row: -row["calls"])


def _is_known(field: Field | None, value: Any) -> bool:
    """It is no text, or one of the field's own."""
    if value is None or value is ABSENT or isinstance(value, bool) or is_number(value):
        return True
    if field is None:
        return False
    known = {written(each) for each in (field.values if field.kind == "labels" else field.classes)}
    if field.kind == "labels":
        return isinstance(value, tuple) and all(written(each) in known for each in value)
    return written(value) in known


def summarise_curve(curve: CallCurve, target: float) -> dict[str, Any]:
    """Measured points (texts learned from, agreement), and the law drawn on."""
    rows = np.geomspace(curve.rows[0], _FORECAST * curve.rows[-1], 24)
    return {
        "measured": list(zip(curve.rows, curve.agreements, strict=True)),
        "calls": curve.calls,
        "tier": curve.tier,
        "reached": curve.reached,
        "law": [(float(each), float(1 - curve.law.disagreement(each))) for each in rows],
        "target": target,
        "forecast": curve.forecast(target),
    }
