"""docs/guarantees.md from top to bottom: its Python prints what the page shows below it."""

import re
from pathlib import Path

import pytest
from page import DOCS, Page

SOURCE = Path(__file__).parents[2] / "src" / "bertsmith" / "metrics" / "guarantees"


def test_the_examples_print_what_the_page_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    shown, printed = [], []
    with Page("guarantees.md") as page:
        for block in page.follow():
            if block.language == "python":
                printed.append(capsys.readouterr().out)
            elif block.language == "text":
                shown.append(block.text)
    assert len(shown) == 5
    assert printed == shown


def test_every_function_of_the_table_is_there() -> None:
    page = (DOCS / "guarantees.md").read_text(encoding="utf-8")
    named = re.findall(r"^\| .+ \| `(\w+)\.(\w+)(?:\.(\w+))?` \|", page, re.MULTILINE)
    assert len(named) == 12
    for module, name, method in named:
        code = (SOURCE / f"{module}.py").read_text(encoding="utf-8")
        assert re.search(rf"^(?:def|class) {name}\b", code, re.MULTILINE), f"{module}.{name}"
        assert not method or re.search(rf"^    def {method}\b", code, re.MULTILINE), (
            f"{module}.{name}.{method}"
        )
