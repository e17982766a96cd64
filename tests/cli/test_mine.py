"""`bertsmith mine` as a user runs it."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from bertsmith.cli.main import main
from bertsmith.inference.embedding.embedder import Embedder

PAIRS = "frage;antwort\nred cat;cat runs\nblue dog;dog runs\nred dog;blue runs\n"


@pytest.fixture
def pairs(desk: Path) -> str:
    (desk / "pairs.tsv").write_text(PAIRS.replace(";", "\t"), encoding="utf-16")
    return "pairs.tsv"


def test_pairs_in_any_layout_get_their_negatives(
    desk: Path, pairs: str, capsys: pytest.CaptureFixture[str]
) -> None:
    columns = ["--text", "frage", "--text-pair", "antwort", "--encoding", "utf-16"]
    assert (
        main(["mine", "model", pairs, *columns, "--negatives", "2", "--ratio", "1", "--out", "m.jsonl"]) == 0
    )
    rows = [json.loads(line) for line in (desk / "m.jsonl").read_text().splitlines()]
    found = sum(name.startswith("negative") for row in rows for name in row)
    assert found > 0
    assert f"{found} negatives for 3 pairs" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("name", ["more", "more.dat", "more.txt"])
def test_documents_whose_ending_tells_no_format_are_read_by_the_one_that_is_named(
    desk: Path, name: str
) -> None:
    (desk / "pairs").write_text("query\tpositive\nred cat\tcat runs\nblue dog\tdog runs\n")
    (desk / name).write_text(
        "red dog\nblue runs\n" if name == "more.txt" else "text\tn\nred dog\t1\nblue runs\t2\n"
    )
    words = ["mine", "model", "pairs", "--format", "tsv", "--documents", name, "--ratio", "1"]
    assert main([*words, "--out", "m.jsonl"]) == 0
    rows = [json.loads(line) for line in (desk / "m.jsonl").read_text().splitlines()]
    found = {negative for row in rows for negative in row["negatives"]}
    assert found
    assert found <= {"red dog", "blue runs"}


@pytest.mark.parametrize(
    ("out", "why"),
    [
        ("pairs.tsv/m.jsonl", "cannot be written"),
        (".", "is a folder"),
        ("pairs.tsv", "would overwrite it"),
    ],
)
def test_an_output_that_cannot_be_made_is_refused_before_any_work(
    pairs: str, out: str, why: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Embedder, "__init__", lambda *_: pytest.fail("a model was opened"))
    assert main(["mine", "model", pairs, "--out", out]) == 2
    assert why in capsys.readouterr().err


@pytest.mark.parametrize(("similarity", "is_said"), [("dot", True), ("cosine", False), ("either", False)])
def test_it_is_said_that_a_model_of_dot_products_is_compared_by_cosine(
    desk: Path,
    trained_for: Callable[[str | Path, str], str],
    similarity: str,
    is_said: bool,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (desk / "pairs.tsv").write_text("query\tpositive\nred cat\tcat runs\nblue dog\tdog runs\n")
    model = trained_for("model", similarity)
    assert main(["mine", model, "pairs.tsv", "--out", "m.jsonl"]) == 0
    assert ("trained for dot products" in capsys.readouterr().err) is is_said


def test_a_pair_without_a_text_is_refused_or_dropped(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (desk / "pairs.csv").write_text("query,positive\nred cat,cat runs\nblue dog,\nred dog,blue runs\n")
    words = ["mine", "model", "pairs.csv", "--ratio", "1", "--out", "m.jsonl"]
    assert main(words) == 2
    assert "of 3 rows 1 has no text (the first: line 3)" in capsys.readouterr().err
    assert not (desk / "m.jsonl").exists()
    assert main([*words, "--missing", "drop"]) == 0
    assert len((desk / "m.jsonl").read_text().splitlines()) == 2
    assert "they were left out" in " ".join(capsys.readouterr().err.split())


def test_the_column_of_documents_that_are_not_there_is_refused(
    desk: Path, pairs: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["mine", "model", pairs, "--document-text", "body", "--out", "m.jsonl"]) == 2
    assert "--document-text is the column of --documents" in capsys.readouterr().err
