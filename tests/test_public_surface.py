"""What `import bertsmith` promises, and what it must not cost."""

import subprocess
import sys

import pytest

import bertsmith

# Each of these takes a tenth of a second or more to import, torch more than one second.
HEAVY = {"torch", "numpy", "tokenizers", "pyarrow", "pydantic", "matplotlib", "tensorboardX"}


@pytest.mark.parametrize("name", bertsmith.__all__)
def test_every_public_name_can_be_had(name: str) -> None:
    assert getattr(bertsmith, name).__name__ == name


def test_the_list_of_public_names_is_complete_and_sorted() -> None:
    assert sorted(bertsmith._HOME_OF) == sorted(bertsmith.__all__)
    assert set(dir(bertsmith)) == {*bertsmith.__all__, "__version__"}
    assert len(set(bertsmith.__all__)) == len(bertsmith.__all__)


def test_every_public_name_is_documented_where_it_lives() -> None:
    undocumented = [name for name in bertsmith.__all__ if not getattr(bertsmith, name).__doc__]
    assert undocumented == []


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
    report = f"{code}; import sys; print('\\nIMPORTED', *(m for m in sys.modules if '.' not in m))"
    done = subprocess.run([sys.executable, "-c", report], capture_output=True, text=True, check=True)
    imported = done.stdout.rpartition("IMPORTED")[2].split()
    assert "bertsmith" in imported
    assert HEAVY.intersection(imported) == set()
