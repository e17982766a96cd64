"""What a training found, as the store keeps it for the page: what is proven, the learning curve, confusions.

No text is in it. An example is named by its call, so that it is gone when the call is. Quotes are texts, and
so is what an answer has beside its fields or beside a field's known values: they are counted, and left out.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from bertsmith.mirror.call_curve import CallCurve
from bertsmith.mirror.claims_in_words import ceiling_sentence, claim_sentence
from bertsmith.mirror.confusions import Confusion, confusions_of
from bertsmith.mirror.fields import ABSENT, AnswerShape, Field, is_number, written
from bertsmith.mirror.report import ReportParts

_CONFUSIONS = 40
_QUOTED, _TEXT = "quotes", "a text"
_FORECAST = 4  # times the texts learned from, that a curve is drawn on to


def findings(report: ReportParts) -> dict[str, Any]:
    """JSON."""
    file, judged = report.file, report.calibration or report.dev
    calls = report.parts.calibration if report.calibration is not None else report.parts.dev
    confusions = without_texts(report.shape, confusions_of(report.shape, judged, calls))
    return {
        "versions": sorted(file.templates),
        "tier": file.tier,
        "created": file.created,
        "claim": claim_sentence(file.claims, report.strange),
        "why_not": report.why or None,
        "coverage": file.claims.coverage,
        "agreement": judged.agreement,
        "of": "calibration" if report.calibration is not None else "dev",
        "calls": len(calls),
        "trained_on": file.trained_on.calls,
        "ceiling": ceiling_sentence(file.ceiling) or None,
        "curve": None if report.curve is None else curve_found(report.curve, 1 - file.claims.epsilon),
        "different_confusions": len(confusions),
        "confusions": confusions[:_CONFUSIONS],
    }


def without_texts(shape: AnswerShape, confusions: Sequence[Confusion]) -> list[dict[str, Any]]:
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


def curve_found(curve: CallCurve, target: float) -> dict[str, Any]:
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
