"""bench/'s scripts import names that are there, within functions too, which no other test calls."""

import ast
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[2] / "bench"
SCRIPTS = sorted(BENCH.rglob("*.py"))


def imported(script: Path) -> Iterator[tuple[str, str]]:
    """Module and name of every `from bertsmith… import …`."""
    for node in ast.walk(ast.parse(script.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "bertsmith":
            yield from ((str(node.module), alias.name) for alias in node.names)


def is_there(module: str, name: str) -> bool:
    found = import_module(module)
    return hasattr(found, name) or (hasattr(found, "__path__") and find_spec(f"{module}.{name}") is not None)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: str(script.relative_to(BENCH)))
def test_what_a_script_imports_of_bertsmith_is_there(script: Path) -> None:
    missing = [f"{module}: {name}" for module, name in imported(script) if not is_there(module, name)]
    assert not missing


def test_imports_within_functions_are_found(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("def work():\n    from bertsmith.tasks.tagging import Tags\n")
    assert list(imported(script)) == [("bertsmith.tasks.tagging", "Tags")]
    assert not is_there("bertsmith.tasks.tagging", "Tags")
