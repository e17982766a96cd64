"""bench/embedding/start_up.py: what it starts, and that it notices what is wrong."""

import sys
from pathlib import Path

import pytest
from bench_runs import RunScript

import start_up


def test_help_and_import_are_timed(run_script: RunScript, capsys: pytest.CaptureFixture[str]) -> None:
    run_script(start_up, "--quick", "--only", "import")
    rows = [line.split(" | ") for line in capsys.readouterr().out.splitlines() if line.startswith("| python")]
    assert [row[0].removeprefix("| ") for row in rows] == ['python -c ""', 'python -c "import bertsmith"']
    assert all(float(row[1]) > 0 for row in rows)


def test_an_import_of_torch_ends_it() -> None:
    with pytest.raises(SystemExit, match="it imports torch"):
        start_up.seconds_of(
            [sys.executable, "-c", f"import sys; sys.modules['torch'] = sys; {start_up._WITHOUT_TORCH}"]
        )


def test_a_command_that_fails_ends_it() -> None:
    with pytest.raises(SystemExit, match="status 3"):
        start_up.seconds_of([sys.executable, "-c", "raise SystemExit(3)"])


def test_the_model_can_fill_masks(tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from bertsmith.inference.masked_language import MaskedLanguageModel
    from bertsmith.model import locate

    monkeypatch.setattr(locate, "locate_model", lambda name: locate.ModelLocation(tiny_model, "path"))
    start_up.make_model(tmp_path / "model")
    monkeypatch.undo()
    assert len(MaskedLanguageModel.load(tmp_path / "model").fill_mask("a [MASK] b", top=3)[0]) == 3
