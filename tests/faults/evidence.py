"""What two runs are compared by: everything that training computed, to the bit."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertsmith.files import sha256
from bertsmith.training.log import RunLog

# What depends on the clock.
_TIMES = {"elapsed", "tokens_per_second", "mfu", "time"}


@dataclass(frozen=True)
class Evidence:
    """Numbers in the log are compared as read from JSON, which keeps every bit of a float."""

    steps: list[dict[str, Any]]
    evaluations: dict[int, dict[str, Any]]
    phases: dict[int, int]
    progress: dict[str, Any]
    weights: list[str]
    optimizer: list[str]
    model: str
    fills: Any


def evidence(out: Path) -> Evidence:
    """Of a finished run. A killed one may have evaluated the last step twice: the same numbers, then."""
    records = RunLog.read(out)
    evaluations: dict[int, dict[str, Any]] = {}
    for record in _of(records, "evaluation"):
        assert evaluations.setdefault(record["step"], record) == record
    last = max((out / "checkpoints").iterdir())
    state = json.loads((last / "state.json").read_text())
    return Evidence(
        steps=_of(records, "step"),
        evaluations=evaluations,
        phases={record["step"]: record["sequence_length"] for record in _of(records, "phase")},
        progress={key: value for key, value in state.items() if key not in {"elapsed", "crc32"}},
        weights=[sha256(path) for path in sorted(last.glob("weights*"))],
        optimizer=[sha256(path) for path in sorted(last.glob("optimizer*"))],
        model=sha256(out / "model" / "model.safetensors"),
        fills=json.loads((out / "fills.json").read_text()),
    )


def _of(records: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [
        {key: value for key, value in record.items() if key not in _TIMES}
        for record in records
        if record["kind"] == kind
    ]
