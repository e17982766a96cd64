"""bench/pretraining/run_book.py: what it says of a run's log, and of another run beside it."""

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest
from bench_runs import RunScript

import harness
import run_book

pytestmark = pytest.mark.thorough


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Two hours in two pieces, an evaluation every half of an hour."""
    lines = [{"kind": "start", "step": 0}]
    for step in range(1, 5):
        seconds = 1800.0 * step
        counted = {"elapsed": seconds, "tokens": 1_000_000 * step}
        lines.append({"kind": "step", "step": step, "loss": 9.0 - step} | counted)
        lines.append(
            {"kind": "evaluation", "step": step, "elapsed": seconds, "tokens": 1_000_000 * step}
            | {"mlm_accuracy": 0.1 * step, "mlm_perplexity": 100.0 / step}
        )  # fmt: skip
        if step == 2:
            lines.append({"kind": "start", "step": 2})
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return tmp_path / "run"


def losses() -> Path:
    (found,) = harness.RESULTS.glob("*.losses.json")
    return found


def test_the_log_becomes_a_table_a_curve_and_losses(
    run: Path, run_script: RunScript, capsys: pytest.CaptureFixture[str]
) -> None:
    run_script(run_book, str(run))
    printed = capsys.readouterr().out
    assert (
        "| 0.50 | 1 | 1.0 | 10.00% | 100.0 |" in printed and "| 2.00 | 4 | 4.0 | 40.00% | 25.0 |" in printed
    )
    assert "In 2 pieces" in printed
    (picture,) = harness.RESULTS.glob("*.svg")
    assert ElementTree.fromstring(picture.read_text()).tag.endswith("svg")
    assert json.loads(losses().read_text()) == {"1": 8.0, "2": 7.0}


def test_another_run_is_compared_step_by_step(
    run: Path, run_script: RunScript, capsys: pytest.CaptureFixture[str]
) -> None:
    run_script(run_book, str(run))
    run_script(run_book, str(run), "--beside", str(losses()))
    assert "All 2 losses are the same to the last bit." in capsys.readouterr().out
    log = run / "log.jsonl"
    log.write_text(log.read_text().replace('"loss": 7.0', '"loss": 7.25'))
    run_script(run_book, str(run), "--beside", str(losses()))
    printed = capsys.readouterr().out
    assert "first other one is step 2's" in printed and "step 2's, 0.250000 off" in printed


def test_a_decay_is_counted_from_the_beginning_of_the_long_run(
    run: Path, run_script: RunScript, capsys: pytest.CaptureFixture[str]
) -> None:
    decay = run.parent / "decay"
    decay.mkdir()
    (decay / "recipe.toml").write_text(f'decay_from = "{run}/checkpoints/step-00000003"\n')
    line = {"kind": "evaluation", "step": 2, "elapsed": 900.0, "tokens": 500_000}
    (decay / "log.jsonl").write_text(json.dumps(line | {"mlm_accuracy": 0.5, "mlm_perplexity": 20.0}) + "\n")
    run_script(run_book, str(run), "--decays", str(decay))
    printed = capsys.readouterr().out
    assert "| fallen from step 3 on | 1.75 | 5 | 3.5 | 50.00% | 20.0 |" in printed
    assert "| at its peak | 2.00 | 4 | 4.0 | 40.00% | 25.0 |" in printed
