"""Tasks by name."""

import subprocess
import sys
from pathlib import Path

import pytest

from bertsmith.errors import InputError
from bertsmith.tasks.registry import TASKS, find_task


@pytest.mark.parametrize("name", TASKS)
def test_every_task_goes_by_its_name(name: str) -> None:
    assert find_task(name).name == name


def test_a_misspelt_name_hears_of_the_nearest() -> None:
    with pytest.raises(InputError, match="Did you mean 'tagging'"):
        find_task("taging")


def test_a_task_of_the_current_folder_is_found_by_the_installed_command(tmp_path: Path) -> None:
    (tmp_path / "my_task.py").write_text(
        "from bertsmith.tasks.regression import Regression\n\nclass Mine(Regression):\n    name = 'mine'\n"
    )
    # As an installed command starts: sys.path holds its own folder, not the current one.
    script = tmp_path / "elsewhere" / "command.py"
    script.parent.mkdir()
    script.write_text(
        "from bertsmith.tasks.registry import find_task\nprint(find_task('my_task:Mine').name)\n"
    )
    found = subprocess.run([sys.executable, script], cwd=tmp_path, capture_output=True, text=True)
    assert (found.stdout, found.stderr) == ("mine\n", "")


@pytest.mark.parametrize("name", ["no_such_module:Mine", "bertsmith.tasks.tagging:Mine", "pathlib:Path"])
def test_what_is_no_task_is_refused_with_a_sentence(name: str) -> None:
    with pytest.raises(InputError, match=name.split(":")[0]):
        find_task(name)
