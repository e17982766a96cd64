"""The findings of a training: a student's report.html, and the same for the store, without texts.

The page shows the proven claims, the risk by the share of calls answered, the differences from the teacher
and the learning curve. It contains texts of calls, is as private as they are, and doesn't change when a call
is deleted. Read `render_report` first.

The store's findings contain no texts: an example is named by its call, so that it disappears with the call.
Quotes are texts too, and so are parts beside the fields and values that a field doesn't know: they are
counted and left out. So are the keys of such parts: the object that they stand in is named.
"""

import re
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bertsmith.mirror.fields import (
    ABSENT,
    ANOTHER,
    AnswerShape,
    Field,
    canonical_json,
    format_value,
    is_number,
    json_path,
)
from bertsmith.mirror.learning.forecast import RiskForecast, foreseen_calls, format_forecast_rows
from bertsmith.mirror.learning.learned_calls import CallSplit, LearnedCall
from bertsmith.mirror.learning.limits import CallCurve
from bertsmith.mirror.learning.proving import (
    VOIDS,
    describe_ceiling,
    describe_claims,
    describe_plan,
    explain_claim,
    format_agreement_row,
    format_claim_rows,
    list_next_steps,
)
from bertsmith.mirror.learning.tiers import TeacherComparison, tier_title
from bertsmith.mirror.student_file import CallsUsed, Claims, StudentFile
from bertsmith.reporting.charts import FIRST, MUTED, SECOND, picture, squares
from bertsmith.reporting.formatting import format_percent, format_upper_percent
from bertsmith.reporting.page import as_markup, render_page
from bertsmith.reporting.tables import Table

if TYPE_CHECKING:
    from matplotlib.axes import Axes


_CONFUSIONS, _LONGEST = 40, 240  # rows, characters of a text
_FEWEST_SHOWN = 20  # answers, below which a risk is mostly chance
_MOST_PAIRS = 40
_QUOTED, _TEXT = "quotes", "a text"
_CHOSEN = re.compile(r'<section [^>]*id="chosen">.*?</section>\n', re.DOTALL)  # of `mark_chosen`
_FORECAST = 4  # the curve is extended to so many times the texts learned from


@dataclass(frozen=True)
class StudentReport:
    """The contents of the page. `calibration` is None where those calls weren't used; `why` is the reason why
    the claim that was wanted isn't proven, or empty; `unmatched` counts the calls that don't fit the
    template. `folder` is the student's. `advice` is what else could be proven, or empty. `notes` are
    sentences about the calls, such as how much a changed LLM answers differently.
    """

    file: StudentFile
    parts: CallSplit
    shape: AnswerShape
    dev: TeacherComparison
    calibration: TeacherComparison | None
    tiers: Mapping[str, TeacherComparison]
    curve: CallCurve | None
    why: str
    unmatched: int = 0
    folder: Path = Path()
    forecasts: tuple[RiskForecast, ...] = ()
    advice: str = ""
    notes: tuple[str, ...] = ()


def render_report(report: StudentReport) -> str:
    """The HTML page; texts and values are escaped."""
    file, comparison = report.file, report.calibration or report.dev
    calls = report.parts.calibration if report.calibration is not None else report.parts.dev
    is_proven, kept = report.calibration is not None, foreseen_calls(len(report.parts.calibration))
    part = "the calls kept for the proof" if is_proven else "the calls to choose the model by"
    fitting = "of the calls with this prompt" if report.unmatched else "of the calls"
    return render_page(
        "student.html.jinja",
        title=f"Student of {file.teacher} · {file.site}",
        status=f"{tier_title(file.tier)}, {file.created}",
        headline=[
            (
                f"{fitting} it may answer",
                format_percent(file.claims.coverage) if file.claims.coverage else "none",
            ),
            ("of all its answers agree", format_percent(comparison.agreement)),
            ("calls learned from", f"{file.trained_on.calls:,}"),
            (
                "calls kept for the proof" + ("" if is_proven else ", unused"),
                f"{len(report.parts.calibration):,}",
            ),
        ],
        warnings=[*([f"Not proven: {report.why}."] if report.why else []), *report.notes],
        meaning=explain_claim(file.claims),
        voids=VOIDS,
        squares=_draw_squares(file.claims),
        steps=[
            *([f"{describe_plan(file.plan)}."] if file.plan is not None else []),
            *list_next_steps(file.claims, shlex.quote(str(report.folder))),
            *([report.advice] if report.advice else []),
        ],
        forecast=Table(
            f"Forecast with {kept:,} calls kept for the proof, before any was used",
            ["allowed difference", "calls answered", "calls that the proof needs"],
            format_forecast_rows(report.forecasts, kept),
        ),
        claim=describe_claims(file.claims, report.unmatched),
        is_measured=is_proven,
        claims=Table(
            "",
            ["part", "confidence from", "answers", "of them differ", "guaranteed"],
            format_claim_rows(file.claims),
        ),
        tiers=Table(
            "On the calls to choose the model by",
            ["student", "agrees with the LLM", "calls"],
            [format_agreement_row(name, comparison) for name, comparison in report.tiers.items()],
        ),
        pictures=_draw_pictures(report, comparison, part),
        curve=report.curve.forecast(1 - file.claims.epsilon) if report.curve is not None else "",
        ceiling=describe_ceiling(file.ceiling),
        confusions=_build_confusion_table(report.shape, comparison, calls),
        of=part,
        templates=list(dict.fromkeys(template.describe() for template in file.templates.values())),
        facts=_list_facts(report),
    )


def mark_chosen(page: str, claim: str) -> str:
    """The page with the claim that was chosen since (bertsmith mirror set), in words, before all others. None
    is added where it is the claim that the page was written for.
    """
    from markupsafe import escape

    page = _CHOSEN.sub("", page)
    if str(escape(claim.partition(". ")[0])) in page:
        return page
    note = (
        '<section class="card warnings" id="chosen">\n<h2>Another allowed difference is chosen</h2>\n'
        f"<p>{escape(claim)}</p>\n<p>What follows is about the one before.</p>\n</section>\n"
    )
    return page.replace("</header>\n", f"</header>\n{note}", 1)


def _draw_squares(claims: Claims) -> Any:
    """The claim on the whole answer as a hundred calls; None without one."""
    if claims.whole is None:
        return None
    return as_markup(squares(claims.whole.coverage, claims.epsilon))


def _list_facts(report: StudentReport) -> list[tuple[str, str]]:
    file = report.file
    facts = [
        ("place in your application", file.site),
        ("LLM (the teacher)", file.teacher),
        ("versions", ", ".join(file.templates)),
        ("learned from", _describe_calls(file.trained_on)),
    ]
    if file.calibration.calls:
        facts.append(("proven with", _describe_calls(file.calibration)))
    return facts


def _describe_calls(used: CallsUsed) -> str:
    began, ended = (
        datetime.fromtimestamp(time, UTC).strftime("%Y-%m-%d") for time in (used.began, used.ended)
    )
    again = f", {used.replayed:,} of them recorded inputs asked again" if used.replayed else ""
    return f"{used.calls:,} calls, {used.texts:,} different texts, {began} to {ended}{again}"


def _draw_pictures(report: StudentReport, comparison: TeacherComparison, part: str) -> list[tuple[str, Any]]:
    pictures = [
        (
            f"Answers by how many are answered ({part})",
            as_markup(
                picture("Share of answers that differ, by share answered", _plot_risk(report, comparison))
            ),
        )
    ]
    if report.curve is not None:
        pictures.append(
            (
                "Agreement by texts learned from (on the calls to choose the model by)",
                as_markup(picture("Learning curve", _plot_curve(report.curve))),
            )
        )
    return pictures


def _plot_risk(report: StudentReport, comparison: TeacherComparison) -> Any:
    calls, given_count = len(comparison.confidence), int((comparison.confidence >= 0).sum())
    order = np.argsort(-comparison.confidence, kind="stable")[:given_count]
    answered = np.arange(1, len(order) + 1)
    risk = np.cumsum(comparison.differs[order]) / answered
    first = min(_FEWEST_SHOWN, len(order)) - 1
    allowed = f"{format_upper_percent(report.file.claims.epsilon)} may differ (ε)"

    def paint(axes: "Axes") -> None:
        from matplotlib.ticker import PercentFormatter

        axes.plot(answered[first:] / calls, risk[first:], color=FIRST, label="differ")
        axes.axhline(report.file.claims.epsilon, color=MUTED, linewidth=1, linestyle="dashed", label=allowed)
        if report.file.claims.coverage:
            axes.axvline(report.file.claims.coverage, color=SECOND, linewidth=1, label="answered")
        axes.set_xlabel("share of calls answered, the surest first")
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter(PercentFormatter(1.0, 0, symbol=" %"))
        axes.set_ylim(bottom=0)
        axes.legend(loc="best")

    return paint


def _plot_curve(curve: CallCurve) -> Any:
    def paint(axes: "Axes") -> None:
        from matplotlib.ticker import PercentFormatter

        errors = [1.96 * (a * (1 - a) / curve.calls) ** 0.5 for a in curve.agreements]
        axes.errorbar(
            curve.rows,
            curve.agreements,
            errors,
            color=FIRST,
            marker="o",
            markersize=3.5,
            label=tier_title("tf-idf"),
        )
        if curve.tier != "tf-idf":
            axes.plot([curve.rows[-1]], [curve.reached], "o", color=SECOND, label=tier_title(curve.tier))
        rows = np.geomspace(curve.rows[0], 4 * curve.rows[-1], 50)
        axes.plot(
            rows,
            [1 - curve.law.disagreement(count) for count in rows],
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
    shape: AnswerShape, comparison: TeacherComparison, calls: Sequence[LearnedCall]
) -> Table:
    """The most frequent differences, each with the text where the student was most confident."""
    confusions = find_confusions(shape, comparison, calls)
    rows = [
        [
            *map(_shorten, (confusion.path, confusion.teacher_value, confusion.student_value)),
            f"{confusion.calls:,}",
            f"{confusion.confidence:.2f}",
            _shorten(confusion.example.text),
        ]
        for confusion in confusions[:_CONFUSIONS]
    ]
    columns = ["the LLM says", "the student says", "calls", "confidence", "for instance"]
    more = max(len(confusions) - _CONFUSIONS, 0)
    if len(shape.fields) == 1:
        return Table("", columns, [row[1:] for row in rows], more, frozenset({0, 1, 4}))
    return Table("", ["field", *columns], rows, more, frozenset({0, 1, 2, 5}))


def _shorten(text: str) -> str:
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


@dataclass(frozen=True)
class FieldConfusion:
    """In `calls` calls the teacher gave the field at `path` the value `teacher_value`, and the student gave
    it `student_value`, both in words. `example` is the call with the student's highest `confidence`, and
    `values` are the teacher's and the student's value there.
    """

    path: str
    teacher_value: str
    student_value: str
    calls: int
    confidence: float
    example: LearnedCall
    values: tuple[Any, Any]


def find_confusions(
    shape: AnswerShape, comparison: TeacherComparison, calls: Sequence[LearnedCall]
) -> list[FieldConfusion]:
    """All pairs of differing values with their number of calls, the most frequent first."""
    counts: Counter[tuple[str, str, str]] = Counter()
    surest: dict[tuple[str, str, str], tuple[float, LearnedCall, tuple[Any, Any]]] = {}
    for answer, call, confidence in zip(comparison.answers, calls, comparison.confidence, strict=True):
        for path in shape.differing_paths(answer, call.values):
            values = call.values.get(path, ABSENT), answer.get(path, ABSENT)
            key = path, format_value(values[0]), format_value(values[1])
            counts[key] += 1
            if key not in surest or confidence > surest[key][0]:
                surest[key] = max(float(confidence), 0.0), call, values
    return [FieldConfusion(*key, count, *surest[key]) for key, count in counts.most_common()]


def summarise_findings(report: StudentReport) -> dict[str, Any]:
    """The findings without texts, as the JSON object that the store keeps for the mirror's page."""
    file, comparison = report.file, report.calibration or report.dev
    calls = report.parts.calibration if report.calibration is not None else report.parts.dev
    confusions = summarise_confusions(report.shape, find_confusions(report.shape, comparison, calls))
    return {
        "versions": sorted(file.templates),
        "tier": file.tier,
        "created": file.created,
        "claim": describe_claims(file.claims, report.unmatched),
        "why_not": report.why or None,
        "coverage": file.claims.coverage,
        "agreement": comparison.agreement,
        "of": "calibration" if report.calibration is not None else "dev",
        "calls": len(calls),
        "trained_on": file.trained_on.calls,
        "ceiling": describe_ceiling(file.ceiling) or None,
        "curve": None if report.curve is None else summarise_curve(report.curve, 1 - file.claims.epsilon),
        "different_confusions": len(confusions),
        "confusions": confusions[:_MOST_PAIRS],
    }


def summarise_confusions(shape: AnswerShape, confusions: Sequence[FieldConfusion]) -> list[dict[str, Any]]:
    """Confusions as JSON without texts, the most frequent first; those that differ only in texts are one."""
    fields, known = {field.path: field for field in shape.fields}, _known_paths(shape)
    rows: dict[tuple[str, str, str], dict[str, Any]] = {}
    for confusion in confusions:
        teacher_label, student_label = (
            label if _is_known(fields.get(confusion.path), value) else _TEXT
            for label, value in zip(
                (confusion.teacher_value, confusion.student_value), confusion.values, strict=True
            )
        )
        if confusion.path in fields and fields[confusion.path].kind == "spans":
            teacher_label, student_label = _QUOTED, f"other {_QUOTED}"
        example = {"confidence": confusion.confidence, "call": confusion.example.id}
        path = _nearest_path(confusion.path, known)
        row = rows.setdefault(
            (path, teacher_label, student_label),
            {
                "field": path,
                "taught": teacher_label,
                "ours": student_label,
                "calls": 0,
                **example,
            },
        )
        row["calls"] += confusion.calls
        if confusion.confidence > row["confidence"]:
            row |= example
    return sorted(rows.values(), key=lambda row: -row["calls"])


def _known_paths(shape: AnswerShape) -> set[str]:
    """The paths of the shape's parts and of the objects that these stand in."""
    groups = (shape.fields, shape.refused, shape.constants)
    parts = [part.keys for group in groups for part in group]
    return {json_path(keys[:length]) for keys in parts for length in range(len(keys) + 1)}


def _nearest_path(path: str, known: set[str]) -> str:
    """The path, or the known one nearest above it: any other key in an answer may be a person's name, and
    goes with the last call that has it.
    """
    if path.removesuffix(ANOTHER) in known:
        return path
    return max((above for above in known if path.startswith(f"{above}.")), key=len, default="$")


def _is_known(field: Field | None, value: Any) -> bool:
    """Whether a value is no text, or one of the field's known values."""
    if value is None or value is ABSENT or isinstance(value, bool) or is_number(value):
        return True
    if field is None:
        return False
    known = {canonical_json(own) for own in (field.values if field.kind == "labels" else field.classes)}
    if field.kind == "labels":
        return isinstance(value, tuple) and all(canonical_json(label) in known for label in value)
    return canonical_json(value) in known


def summarise_curve(curve: CallCurve, target: float) -> dict[str, Any]:
    """The learning curve as JSON: measured points (texts learned from, agreement), and the power law."""
    rows = np.geomspace(curve.rows[0], _FORECAST * curve.rows[-1], 24)
    return {
        "measured": list(zip(curve.rows, curve.agreements, strict=True)),
        "calls": curve.calls,
        "tier": curve.tier,
        "reached": curve.reached,
        "law": [(float(count), float(1 - curve.law.disagreement(count))) for count in rows],
        "target": target,
        "forecast": curve.forecast(target),
    }
