"""The Python in the documentation runs, on a made-up corpus and for two steps where the page says hours."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from bertsmith import __all__ as public_names
from bertsmith import preset
from bertsmith.tasks.pretraining.pretraining import PretrainingModel
from bertsmith.tasks.pretraining.pretraining_checkpoint import save_pretraining_model

REPOSITORY = Path(__file__).parent.parent
PAGE = REPOSITORY / "docs" / "python.md"
SUBJECTS = ("court", "judge", "witness", "clerk", "lawyer", "jury", "tenant", "bank")
ACTIONS = ("granted", "denied", "signed", "read", "filed", "heard", "sold", "kept")


def blocks(page: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with what the page starts from: articles, labelled rows, a legacy checkpoint."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "articles").mkdir()
    for number in range(100):
        sentences = (
            f"The {subject} {ACTIONS[(number + place) % 8]} motion {number} of part {place}."
            for place, subject in enumerate(SUBJECTS)
        )
        (tmp_path / "articles" / f"{number}.txt").write_text("\n\n".join(sentences))
    rows = [
        f"The {SUBJECTS[n % 8]} {ACTIONS[n % 7]} paper {n}.,{'court' if n % 8 < 6 else 'party'}"
        for n in range(60)
    ]
    (tmp_path / "clauses.csv").write_text("\n".join(["text,label", *rows]))
    write_legacy_checkpoint(tmp_path / "downloads" / "legal-bert")
    return tmp_path


def in_two_steps(block: str) -> str:
    return block.replace('"hours=4"', '"steps=2", "optimizer.warmup=0.5"').replace("hours=1", "steps=2")


def write_legacy_checkpoint(folder: Path) -> None:
    model = PretrainingModel(preset("tiny", vocab_size=40))
    save_pretraining_model(folder.parent / "safe", model, None, {})
    folder.mkdir()
    torch.save(load_file(folder.parent / "safe" / "model.safetensors"), folder / "pytorch_model.bin")
    config = json.loads((folder.parent / "safe" / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config))


@pytest.mark.slow
def test_the_page_runs_from_top_to_bottom(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, Any] = {}
    for block in blocks(PAGE):
        exec(compile(in_two_steps(block), str(PAGE), "exec"), names)
    printed = capsys.readouterr().out
    assert "unknown key 'optimizer.learning_rat'. Did you mean 'optimizer.learning_rate'?" in printed
    assert "beside" in printed
    assert len(names["run"].results.restarts) == 2
    assert set(names["prediction"]["probabilities"]) == {"court", "party"}
    assert names["evaluation"].rows == 60
    assert names["hidden_states"].shape == (names["lengths"].sum(), 384)
    assert names["first_tokens"].shape == (2, 384)
    assert names["imported"].checkpoint.architecture == "BertForPreTraining"


def test_the_readme_s_python_runs(desk: Path) -> None:
    names: dict[str, Any] = {}
    for block in blocks(REPOSITORY / "README.md"):
        exec(in_two_steps(block), names)
    assert (desk / "runs" / "law" / "report.html").is_file()


def test_the_page_shows_every_public_name() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert [name for name in public_names if not re.search(rf"\b{name}\b", text)] == []
