"""What a training found, as the store keeps it for the page: what is proven, the learning curve, confusions.

No text is in it. An example is named by its call, so that it is gone when the call is; values of quotes are
texts, and are left out.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from bertsmith.mirroring.call_curve import CallCurve
from bertsmith.mirroring.claims_in_words import ceiling_sentence, claim_sentence
from bertsmith.mirroring.confusions import Confusion, confusions_of
from bertsmith.mirroring.report import ReportParts
from bertsmith.serving.mirror.fields import AnswerShape

_CONFUSIONS = 40
_QUOTED = "quotes"
_FORECAST = 4  # times the texts learned from, that a curve is drawn on to


def findings(report: ReportParts) -> dict[str, Any]:
    """JSON."""
    file, judged = report.file, report.calibration or report.dev
    calls = report.parts.calibration if report.calibration is not None else report.parts.dev
    confusions = confusions_of(report.shape, judged, calls)
    return {
        "tier": file.tier,
        "created": file.created,
        "claim": claim_sentence(file.claims),
        "why_not": report.why or None,
        "coverage": file.claims.coverage,
        "agreement": judged.agreement,
        "of": "calibration" if report.calibration is not None else "dev",
        "calls": len(calls),
        "trained_on": file.trained_on.calls,
        "ceiling": ceiling_sentence(file.ceiling) or None,
        "curve": None if report.curve is None else curve_found(report.curve, 1 - file.claims.epsilon),
        "different_confusions": len(confusions),
        "confusions": without_texts(report.shape, confusions[:_CONFUSIONS]),
    }


def without_texts(shape: AnswerShape, confusions: Sequence[Confusion]) -> list[dict[str, Any]]:
    """As JSON."""
    quoting = {field.path for field in shape.fields if field.kind == "spans"}
    return [
        {
            "field": each.path,
            "taught": _QUOTED if each.path in quoting else each.taught,
            "ours": f"other {_QUOTED}" if each.path in quoting else each.ours,
            "calls": each.calls,
            "confidence": each.confidence,
            "call": each.example.id,
        }
        for each in confusions
    ]


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
