"""docs/languages.md: several languages are indexed and searched, tagged, pruned, and get a vocabulary."""

import json
import random
from pathlib import Path

import pytest

from bertsmith.inference.index.index import Index
from bertsmith.text.tokens.tokenizer import Tokenizer
from pages.page import Page
from test_guides import FILLERS, QUEUES, write_tiny_bert

THAI = ("ฉัน", "มี", "วัน", "หยุด", "บ้าน", "ร้าน", "เมือง", "ใหม่")

MODULES = ("Transformer", ""), ("Pooling", "1_Pooling")
AS_ON_THE_HUB = {
    "modules.json": [
        {"idx": number, "name": str(number), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for number, (kind, path) in enumerate(MODULES)
    ],
    "1_Pooling/config.json": {"word_embedding_dimension": 16, "pooling_mode_mean_tokens": True},
    "sentence_bert_config.json": {"max_seq_length": 128},
}


def write_tagged(path: Path, seed: int) -> None:
    draw = random.Random(seed)
    names = [word for words in QUEUES.values() for word in words]
    sentences = [
        "\n".join(
            f"{word}\t{'NOUN' if word in names else 'X'}" for word in draw.choices([*FILLERS, *names], k=6)
        )
        for _ in range(40)
    ]
    path.write_text("\n\n".join(sentences) + "\n", encoding="utf-8")


def test_the_page_searches_tags_prunes_and_learns_a_vocabulary(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With random weights: the marks and the words found by text hang on none."""
    pytest.importorskip("lancedb", reason="needs the extra retrieval")
    monkeypatch.chdir(tmp_path)
    write_tiny_bert(tmp_path / "models/e5")
    for file, content in AS_ON_THE_HUB.items():
        (tmp_path / "models/e5" / file).parent.mkdir(exist_ok=True)
        (tmp_path / "models/e5" / file).write_text(json.dumps(content))
    for name, seed in (("english", 0), ("german", 1)):
        write_tagged(tmp_path / f"{name}.txt", seed)
    (tmp_path / "mine.txt").write_text("\n".join(FILLERS), encoding="utf-8")
    draw = random.Random(0)
    for name, blank, words in (("thai", "", THAI), ("english", " ", FILLERS)):
        rows = [json.dumps({"text": blank.join(draw.choices(words, k=12))}) for _ in range(60)]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(rows), encoding="utf-8")
    with Page("languages.md") as page:
        names = page.follow_all()
    printed = capsys.readouterr().out
    assert "By source" in printed
    index = Index.open("indexes/notices")
    assert index.embedder.prefixes == {"query": "query: ", "document": "passage: "}
    (hit,) = index.search("วันหยุด", k=1, mode="text")
    assert (hit.document_id, [hit.text[a:b] for a, b in hit.matches]) == ("leave", ["วันหยุด"])
    assert index.search("紛失", k=1, mode="text")[0].document_id == "laptops"
    results = json.loads((tmp_path / "runs/tags/results.json").read_text())
    assert results["evaluations"]["test"]["rows"] == 40
    assert names["pruned"].pieces < names["pruned"].pieces_before
    assert Tokenizer.load(Path("models/e5-mine")).encode(FILLERS[0]).tokens == [FILLERS[0]]
    report = json.loads((tmp_path / "tokenizers/two/report.json").read_text())
    assert {Path(fit["source"]).name for fit in report["sources"]} == {"thai.jsonl", "english.jsonl"}


def test_the_page_s_table_has_a_row_for_each_language_of_the_bench() -> None:
    text = (Path(__file__).parents[2] / "docs" / "languages.md").read_text(encoding="utf-8")
    rows = [line.split("|")[1].strip() for line in text.splitlines() if line.count("|") == 8]
    languages = "German, Spanish, Russian, Turkish, Finnish, Arabic, Hindi, Chinese, Korean, Thai"
    assert rows[2:] == languages.split(", ")
