"""docs/corpus.md: a folder of text becomes a corpus, a vocabulary, and a corpus without test rows."""

import json
from pathlib import Path

import pytest
from law import write_articles, write_clauses
from page import Page

from bertsmith.text.corpus.corpus import open_corpus
from bertsmith.text.tokens.tokenizer import Tokenizer
from test_guides import write_tiny_bert

COPIED = "The judge denied motion 0 of part 1."  # by the first article


def test_a_folder_becomes_a_corpus_and_a_vocabulary(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_articles(tmp_path / "articles")
    write_clauses(tmp_path / "clauses.csv")
    with (tmp_path / "clauses.csv").open("a", encoding="utf-8") as file:
        file.write(f"\n{COPIED},court\n")
    write_tiny_bert(tmp_path / "minilm")
    Page("corpus.md").follow_all()

    assert Tokenizer.load("tokenizers/law").encode("Court motion").tokens == ["court", "motion"]
    report = json.loads((tmp_path / "tokenizers/law/report.json").read_text())
    assert 1 <= report["pieces_per_word"] < 1.3
    printed = capsys.readouterr().out
    assert "1 (1.6 %)" in printed  # of 61 rows the one that was copied
    assert "['the', 'court', 'granted', 'the', 'motion', '.']" in printed
    assert (tmp_path / "corpora/law-clean/decontamination.html").is_file()
    assert COPIED in sentences("corpora/law")
    assert COPIED not in sentences("corpora/law-clean")
    assert (tmp_path / "stores/law").is_dir()


def sentences(corpus: str) -> set[str]:
    opened = open_corpus(corpus)
    return {
        sentence
        for split in ("train", "heldout")
        for document in opened.documents(split)
        for sentence in document.sentences
    }
