"""bench/labelled.py: a run that was interrupted goes on, and is timed as one."""

from pathlib import Path
from typing import Any

import pytest

import labelled
from bertsmith.training.log import RunLog

SETTINGS = {
    "text": "text",
    "label": "label",
    "epochs": 3,
    "evaluations": 1,
    "batch_size": 8,
    "max_length": 16,
}


def write_rows(path: Path, count: int) -> Path:
    rows = [f"{'good cat' if number % 2 else 'bad dog'}\t{number % 2}" for number in range(count)]
    path.write_text("\n".join(["text\tlabel", *rows]) + "\n")
    return path


@pytest.mark.slow
def test_a_run_goes_on_from_its_checkpoint(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(labelled, "MODEL", str(tiny_model))
    files = write_rows(tmp_path / "train.tsv", 32), write_rows(tmp_path / "dev.tsv", 16)
    logged, write = tmp_path / "run" / "restarts" / "1", RunLog.write

    def train() -> dict[str, Any]:
        return labelled.train_ours("classification", *files, tmp_path / "run", SETTINGS, 0)

    def write_until_the_second_epoch(log: RunLog, kind: str, step: int, **values: Any) -> Any:
        if kind == "step" and step == 6:
            raise RuntimeError("interrupted")
        return write(log, kind, step, **values)

    with monkeypatch.context() as patched:
        patched.setattr(RunLog, "write", write_until_the_second_epoch)
        with pytest.raises(RuntimeError, match="interrupted"):
            train()
    assert max(record["step"] for record in RunLog.read(logged)) == 5
    found = train()
    records = RunLog.read(logged)
    starts = [record["step"] for record in records if record["kind"] == "start"]
    assert starts == [0, 4]
    assert [record["step"] for record in records if record["kind"] == "step"] == list(range(1, 13))
    assert len(found["epochs"]) == 3
    last = [record for record in records if record["kind"] == "step"][-1]
    assert found["tokens"] == last["tokens"]
    assert 0 < found["seconds"] <= 1.2 * last["elapsed"]
