"""A disk that fills up in the middle of an update: a sentence, and what was committed stays."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("lancedb")

from index_documents import write_documents

SCRIPT = Path(__file__).with_name("index_on_small_disk.py")


@pytest.mark.slow  # a fresh process has to import lancedb
def test_a_disk_of_one_megabyte_fills_up(tmp_path: Path) -> None:
    """A real file system, in a mount namespace that ends with the process."""
    docs = write_documents(tmp_path / "docs", 1, [f"{letter}.txt" for letter in "abc"])
    (tmp_path / "disk").mkdir()
    command = [sys.executable, str(SCRIPT), str(tmp_path / "disk"), str(docs)]
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    found = json.loads(output)
    if not found["permitted"]:
        pytest.skip("this user may not mount a file system to fill")
    assert found["message"].startswith("The disk is full: ")
    assert found["kept"], "readers see what was committed"
