"""The page on guarantees: its example runs as it stands, and prints what stands below it."""

import re
from pathlib import Path
from typing import Any

import pytest

PAGE = Path(__file__).parents[3] / "docs" / "guarantees.md"
SOURCE = Path(__file__).parents[3] / "src" / "bertsmith" / "metrics" / "guarantees"


def test_the_worked_example_prints_what_the_page_says(capsys: pytest.CaptureFixture[str]) -> None:
    page = PAGE.read_text(encoding="utf-8")
    steps = re.findall(r"^```python\n(.*?)^```\n\n```text\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    assert len(steps) == page.count("```python") == 5
    names: dict[str, Any] = {}
    for code, printed in steps:
        exec(compile(code, str(PAGE), "exec"), names)
        assert capsys.readouterr().out == printed


def test_every_function_of_the_table_is_there() -> None:
    named = re.findall(
        r"^\| .+ \| `(\w+)\.(\w+)(?:\.(\w+))?` \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE
    )
    assert len(named) == 10
    for module, name, method in named:
        code = (SOURCE / f"{module}.py").read_text(encoding="utf-8")
        assert re.search(rf"^(?:def|class) {name}\b", code, re.MULTILINE), f"{module}.{name}"
        assert not method or re.search(rf"^    def {method}\b", code, re.MULTILINE), (
            f"{module}.{name}.{method}"
        )
