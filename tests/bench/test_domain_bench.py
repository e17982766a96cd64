"""domain.py: sides in turns on a small domain, kept, and measured by what can be compared."""

import json
from pathlib import Path
from typing import Any

import pytest
from bench_runs import RunScript

import domain
from bertsmith.text.corpus.corpus import Corpus
from bertsmith.training import machine

SECONDS = 3


@pytest.fixture
def compare(
    run_script: RunScript,
    small_corpus: Corpus,
    tiny_model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Any:
    """Both texts are the same forty documents, and MiniLM a tiny model without a head."""
    monkeypatch.setattr(machine, "matmul_flops", lambda *_, **__: 1.0)  # takes longer than the steps
    monkeypatch.setattr(domain, "_PLACE", tmp_path / "kept")
    monkeypatch.setattr(domain, "MODEL", str(tiny_model))
    monkeypatch.setattr(domain, "domain_corpus", lambda _: small_corpus.path)
    monkeypatch.setattr(domain, "_ALWAYS", ["data.sequence_lengths=[32]", "hardware.threads=1"])
    minutes = ("--minutes", str(SECONDS / 60), "--head-minutes", "0.02", "--points", "2")

    def run(*options: str) -> Path:
        run_script(domain, "--domains", "cranfield", "--general", str(small_corpus.path), *minutes, *options)
        return tmp_path / "kept"

    return run


@pytest.mark.slow
def test_sides_take_turns_and_are_kept(
    compare: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    kept = compare("--sides", "plain", "extended")
    printed = capsys.readouterr().out
    turns = [line for line in printed.splitlines() if line.startswith("cranfield: plain")]
    assert len(turns) == 2
    rows = {
        line.split(" | ")[1]: line.split(" | ") for line in printed.splitlines() if line.startswith("| cran")
    }
    assert rows.keys() == {"before", "plain", "extended"}
    assert rows["before"][2:4] == rows["plain"][2:4] != rows["extended"][2:4]
    assert float(rows["extended"][2]) < float(rows["plain"][2])  # pieces a word
    assert float(rows["plain"][4]) < float(rows["before"][4])  # nats a character, of text that was learned
    for side in ("plain", "extended"):
        (seconds,) = kept.glob(f"{side}-*/seconds.json")
        assert json.loads(seconds.read_text()) >= SECONDS - 0.5

    def no_more(request: Any) -> Any:
        raise AssertionError("what is kept is not trained again")

    monkeypatch.setattr(domain, "_turn", no_more)
    compare("--sides", "plain", "extended")
    assert "| cranfield | extended |" in capsys.readouterr().out
    (result,) = (tmp_path / "results").glob("domain_*.json")
    assert len(json.loads(result.read_text())["rows"]) == 3
