"""What `import bertsmith` promises, and what it must not cost."""

import ast
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import bertsmith
from bertsmith import errors
from golden import public_names

STUB = Path(bertsmith.__file__).with_suffix(".pyi")

# Each of these takes a tenth of a second or more to import, torch more than one second.
HEAVY = {"torch", "numpy", "tokenizers", "pyarrow", "pydantic", "matplotlib", "tensorboardX"}


@pytest.mark.parametrize("name", bertsmith.__all__)
def test_every_public_name_can_be_had(name: str) -> None:
    assert getattr(bertsmith, name).__name__ == name


def test_editors_are_told_every_public_name() -> None:
    assert set(dir(bertsmith)) == set(bertsmith.__all__)
    assert bertsmith.__version__


def test_type_checkers_see_each_name_where_it_lives() -> None:
    """In a stub a name is public when it is imported as itself."""
    seen = {
        alias.asname: f"bertsmith.{node.module}"
        for node in ast.walk(ast.parse(STUB.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert sorted(filter(None, seen)) == bertsmith.__all__
    assert seen == {name: getattr(bertsmith, name).__module__ for name in bertsmith.__all__}


def test_every_system_can_read_the_stub() -> None:
    """lazy_loader reads it in the system's own encoding."""
    assert STUB.read_text(encoding="utf-8").isascii()


@pytest.mark.filterwarnings("ignore:Using extra keyword arguments")  # Ray Serve's, as it is imported
def test_every_name_that_programs_use_is_where_it_was_with_its_parameters() -> None:
    """After a change that is meant: python tests/golden/public_names.py."""
    known = public_names.FILE.read_text(encoding="utf-8").splitlines()
    named = [line.partition("(")[0].partition(":")[0].partition(" ")[0] for line in known]
    assert [public_names.description(name) for name in named] == known


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
    with pytest.raises(AttributeError, match="Brt"):
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


@pytest.mark.slow
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
