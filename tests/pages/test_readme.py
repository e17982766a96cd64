"""The Python of the README runs, two steps where it says hours; its figures are those of bench/results."""

import re
from pathlib import Path

import pytest
from law import write_articles
from page import DOCS

README = DOCS.parent / "README.md"


def test_the_readme_s_python_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_articles(tmp_path / "articles")
    (block,) = re.findall(
        r"^```python\n(.*?)^```", README.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE
    )
    exec(block.replace('"hours=4"', '"steps=2", "optimizer.warmup=0.5"'), {})
    assert (tmp_path / "runs/law/report.html").is_file()


def test_every_script_of_the_readme_s_figures_is_there_and_the_figures_are_in_bench_results() -> None:
    rows = re.findall(
        r"^\| (.*) \| (.*) \| (.*) \| .* \| `([\w/]+\.py)` \|$",
        README.read_text(encoding="utf-8"),
        re.MULTILINE,
    )
    assert len(rows) > 7
    bench = DOCS.parent / "bench"
    assert [script for *_, script in rows if not (bench / script).is_file()] == []
    results = " ".join(path.read_text(encoding="utf-8") for path in bench.glob("results/*.md"))
    known = set(re.findall(r"\d[\d.,]*\d|\d", results))
    shown = [
        number for _, ours, theirs, _ in rows for number in re.findall(r"\d[\d.,]*\d|\d", f"{ours} {theirs}")
    ]
    assert [number for number in shown if number not in known] == []
