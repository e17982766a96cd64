"""What `import bertsmith` promises, and what it must not cost."""

import ast
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import bertsmith
from bertsmith import errors

SOURCE = Path(bertsmith.__file__)

# Each of these takes a tenth of a second or more to import, torch more than one second.
HEAVY = {"torch", "numpy", "tokenizers", "pyarrow", "pydantic", "matplotlib", "tensorboardX"}


@pytest.mark.parametrize("name", bertsmith.__all__)
def test_every_public_name_can_be_had(name: str) -> None:
    assert getattr(bertsmith, name).__name__ == name


def test_the_list_of_public_names_is_complete() -> None:
    assert sorted(bertsmith._HOME_OF) == sorted(bertsmith.__all__)
    assert set(dir(bertsmith)) == {*bertsmith.__all__, "__version__"}
    assert len(set(bertsmith.__all__)) == len(bertsmith.__all__)


def test_type_checkers_see_each_name_where_it_lives() -> None:
    """They read the imports under TYPE_CHECKING and never run the table."""
    seen = {
        alias.name: node.module
        for node in ast.walk(ast.parse(SOURCE.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("bertsmith.")
        for alias in node.names
    }
    assert seen == bertsmith._HOME_OF


def test_every_public_name_is_documented_where_it_lives() -> None:
    undocumented = [name for name in bertsmith.__all__ if not getattr(bertsmith, name).__doc__]
    assert undocumented == []


def test_every_error_is_public() -> None:
    """Whoever calls the library can catch each kind by its public name."""
    classes = inspect.getmembers(errors, inspect.isclass)
    kinds = {name for name, kind in classes if kind.__module__ == errors.__name__}
    assert kinds <= set(bertsmith.__all__)
    assert all(issubclass(getattr(bertsmith, name), bertsmith.BertsmithError) for name in kinds)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'Brt'"):
        _ = bertsmith.Brt


@pytest.mark.parametrize(
    "code",
    [
        "import bertsmith",
        "from bertsmith import BertsmithError",
        "from bertsmith.cli.main import main; main(['--help'])",
        "from bertsmith.cli.main import main; main(['--version'])",
    ],
)
def test_a_first_look_imports_nothing_heavy(code: str) -> None:
    assert HEAVY.intersection(imported_by(code)) == set()


def test_what_reads_texts_is_not_imported_to_fill_a_mask() -> None:
    imported = imported_by("from bertsmith import MaskedLanguageModel")
    assert {"ftfy", "fsspec", "matplotlib", "pyarrow", "sklearn", "transformers"}.intersection(
        imported
    ) == set()


def imported_by(code: str) -> list[str]:
    """Packages that are there after `code` in a new process."""
    report = f"{code}; import sys; print('\\nIMPORTED', *(m for m in sys.modules if '.' not in m))"
    done = subprocess.run([sys.executable, "-c", report], capture_output=True, text=True, check=True)
    imported = done.stdout.rpartition("IMPORTED")[2].split()
    assert "bertsmith" in imported
    return imported


def test_the_import_takes_less_than_a_fifth_of_a_second() -> None:
    """In processor time, so that a busy machine doesn't count; the best of three: nor does a cold disk."""
    code = "import time; start = time.process_time(); import bertsmith; print(time.process_time() - start)"
    times = [float(subprocess.check_output([sys.executable, "-c", code])) for _ in range(3)]
    assert min(times) < 0.2
