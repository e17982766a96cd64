"""report.html of a student: what is proven, what it answers at which risk, where it differs, how it learns.

The page has some calls' texts. It is as private as they are, and is not changed when a call is deleted.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import numpy as np

from bertsmith.mirror.call_curve import CallCurve
from bertsmith.mirror.candidate import Judged
from bertsmith.mirror.claims_in_words import (
    agreement_row,
    ceiling_sentence,
    claim_rows,
    claim_sentence,
    percent,
)
from bertsmith.mirror.confusions import confusions_of
from bertsmith.mirror.fields import AnswerShape
from bertsmith.mirror.learned_calls import LearnedCall
from bertsmith.mirror.parts import Parts
from bertsmith.mirror.student_file import CallsUsed, StudentFile
from bertsmith.reporting.charts import FIRST, MUTED, SECOND, picture
from bertsmith.reporting.page import as_markup, render_page
from bertsmith.reporting.tables import Table

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_CONFUSIONS, _LONGEST = 40, 240  # rows, characters of a text
_FEWEST_SHOWN = 20  # answers, below which a risk is a matter of chance


@dataclass(frozen=True)
class ReportParts:
    """What the page is made of; `calibration` is None where the calls weren't looked at, `why` says why
    nothing is proven, `strange` calls don't fit the template.
    """

    file: StudentFile
    parts: Parts
    shape: AnswerShape
    dev: Judged
    calibration: Judged | None
    tiers: Mapping[str, Judged]
    curve: CallCurve | None
    why: str
    strange: int = 0


def render_report(report: ReportParts) -> str:
    """The page as text; texts and values are escaped."""
    file, judged = report.file, report.calibration or report.dev
    calls = report.parts.calibration if report.calibration is not None else report.parts.dev
    of = "calibration" if report.calibration is not None else "dev"
    return render_page(
        "student.html.jinja",
        title=f"Student of {file.teacher} · {file.site}",
        status=f"{file.tier}, {file.created}",
        headline=_headline(report),
        warnings=[f"Nothing is proven: {report.why}."] if report.why else [],
        claim=claim_sentence(file.claims, report.strange),
        claims=Table(
            "", ["of", "from confidence", "answers", "of them differ", "claim"], claim_rows(file.claims)
        ),
        tiers=Table(
            "On the calls that choose",
            ["tier", "agrees", "calls"],
            [agreement_row(name, each) for name, each in report.tiers.items()],
        ),
        pictures=_pictures(report, judged, of),
        curve=report.curve.forecast(1 - file.claims.epsilon) if report.curve is not None else "",
        ceiling=ceiling_sentence(file.ceiling),
        confusions=_confusions(report.shape, judged, calls),
        of=of,
        templates=list(dict.fromkeys(each.shown() for each in file.templates.values())),
        facts=_facts(report),
    )


def _headline(report: ReportParts) -> list[tuple[str, str]]:
    claims = report.file.claims
    judged = report.calibration or report.dev
    calls = "of the calls that fit the template" if report.strange else "of the calls"
    return [
        (f"{calls} it may answer", percent(claims.coverage) if claims.coverage else "none"),
        ("of all its answers agree", percent(judged.agreement)),
        ("calls learned from", f"{report.file.trained_on.calls:,}"),
        ("calls to prove with", f"{report.file.calibration.calls:,}"),
    ]


def _facts(report: ReportParts) -> list[tuple[str, str]]:
    file = report.file
    found = [
        ("site", file.site),
        ("teacher", file.teacher),
        ("versions", ", ".join(file.templates)),
        ("learned from", _span(file.trained_on)),
    ]
    return [*found, ("proven with", _span(file.calibration))] if file.calibration.calls else found


def _span(used: CallsUsed) -> str:
    began, ended = (
        datetime.fromtimestamp(each, UTC).strftime("%Y-%m-%d") for each in (used.began, used.ended)
    )
    return f"{used.calls:,} calls, {used.texts:,} texts, {began} to {ended}"


def _pictures(report: ReportParts, judged: Judged, of: str) -> list[tuple[str, Any]]:
    found = [
        (
            f"Answers by how many are answered ({of})",
            as_markup(picture("Share of answers that differ, by share answered", _risk(report, judged))),
        )
    ]
    if report.curve is not None:
        found.append(
            (
                "Agreement by texts learned from (dev)",
                as_markup(picture("Learning curve", _curve(report.curve))),
            )
        )
    return found


def _risk(report: ReportParts, judged: Judged) -> Any:
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


def _curve(curve: CallCurve) -> Any:
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


def _confusions(shape: AnswerShape, judged: Judged, calls: Sequence[LearnedCall]) -> Table:
    """The most frequent differences, each with a text, the surest of its kind."""
    found = confusions_of(shape, judged, calls)
    rows = [
        [
            *map(_short, (each.path, each.taught, each.ours)),
            f"{each.calls:,}",
            f"{each.confidence:.2f}",
            _short(each.example.text),
        ]
        for each in found[:_CONFUSIONS]
    ]
    columns = ["the LLM says", "the student says", "calls", "confidence", "for instance"]
    more = max(len(found) - _CONFUSIONS, 0)
    if len(shape.fields) == 1:
        return Table("", columns, [row[1:] for row in rows], more, frozenset({0, 1, 4}))
    return Table("", ["field", *columns], rows, more, frozenset({0, 1, 2, 5}))


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"
