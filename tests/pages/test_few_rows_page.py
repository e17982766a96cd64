"""The page on few rows: fifty labelled rows become a hundred, and then predictions."""

import csv
from pathlib import Path

import pytest

from bertsmith.training import finetune_recipe
from pages.page import Page
from test_guides import QUEUES, lines_of, sentences, write_tiny_bert


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What the page starts from. No work is there to compare methods by, where by default it grows with the
    rows.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(finetune_recipe, "_MINUTES", 0.0)
    monkeypatch.setattr(finetune_recipe, "_MINUTES_A_ROW", 0.0)
    write_tiny_bert(tmp_path / "minilm")
    for name, rows in (("tickets", 50), ("test", 40), ("unlabelled", 160)):
        write_messages(tmp_path / f"{name}.csv", rows, labelled=name != "unlabelled")
    return tmp_path


def write_messages(path: Path, rows: int, labelled: bool) -> None:
    words = tuple(word for words in QUEUES.values() for word in words)
    texts = [text for _, text in sentences(rows, rows, words)]
    lines = [f"{text},{queue_of(text)}" if labelled else text for text in texts]
    path.write_text("\n".join(["text,label" if labelled else "text", *lines]) + "\n", encoding="utf-8")


def queue_of(text: str) -> str:
    return next(queue for queue, words in QUEUES.items() if set(words) & set(text.split()))


def fill_in(path: Path) -> None:
    """What a person does with the rows that are suggested."""
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(row | {"label": queue_of(row["text"])} for row in rows)


def test_fifty_rows_become_a_hundred_and_then_predictions(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    suggested, filled_in = folder / "runs/next/rows.csv", False
    with Page("few-rows.md") as page:
        for _ in page.follow():
            if suggested.exists() and not filled_in:
                fill_in(suggested)
                filled_in = True
    printed = capsys.readouterr().out
    assert "Expected of other texts" in printed
    assert "Twice the rows would bring" in printed
    judged = lines_of(folder / "runs/hundred/predictions/cross-validation.jsonl")
    assert len(judged) == 50 + len(suggested.read_text().splitlines()) - 1
    assert len(judged) > 80
    predicted = lines_of(folder / "sorted.jsonl")
    assert len(predicted) == 160
    assert sum(line["label"] == queue_of(line["text"]) for line in predicted) > 90
    with (folder / "runs/next/labels.csv").open(newline="") as file:
        assert {row["doubtful"] for row in csv.DictReader(file)} <= {"", "yes", "no", "true", "false"}
    assert (folder / "runs/next/report.html").is_file()
    assert (folder / "runs/both/choice.json").is_file()
