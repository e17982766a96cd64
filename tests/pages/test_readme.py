"""The Python of the README runs, for two steps where it says hours."""

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
