"""Without what only Linux has, or only POSIX, everything runs on torch alone, as on macOS and Windows.

A `sitecustomize` on the path takes it away, in worker processes too. What this can't show are files that
Windows refuses to rename while they are open.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

import bertsmith
from bertsmith import files
from bertsmith import files as locks
from bertsmith.cli.failures import terminate_cleanly
from bertsmith.model.cpu.process import compute_alone_after_fork
from bertsmith.text import workers
from bertsmith.training.loop import Interruption

NOT_LINUX = """
import os, pathlib, sys

def take(owner, *names):
    for name in names:
        if hasattr(owner, name):
            delattr(owner, name)

take(os, "O_DIRECT", "O_TMPFILE", "sched_getaffinity", "sched_setaffinity", "posix_fadvise", "memfd_create")
opened, looked_at = pathlib.Path.open, pathlib.Path.stat

def missing(path):
    if path.parts[:2] in (("/", "proc"), ("/", "sys")):
        raise FileNotFoundError(2, "No such file or directory", str(path))
    return path

pathlib.Path.open = lambda self, *given, **named: opened(missing(self), *given, **named)
pathlib.Path.stat = lambda self, *given, **named: looked_at(missing(self), *given, **named)
"""
WINDOWS = (
    NOT_LINUX
    + """
import fcntl, signal

open_any, flush_any, flags_of = os.open, os.fsync, lambda number: fcntl.fcntl(number, fcntl.F_GETFL)

def open_file(path, *arguments, **named):
    if os.path.isdir(path):
        raise PermissionError(13, "Permission denied", str(path))
    return open_any(path, *arguments, **named)

def flush_writable(file):
    number = file if isinstance(file, int) else file.fileno()
    if flags_of(number) & 3 == os.O_RDONLY:
        raise OSError(9, "Bad file descriptor")
    flush_any(number)

os.open, os.fsync = open_file, flush_writable
take(os, "O_DIRECTORY", "O_NOFOLLOW", "fork", "getloadavg", "fchmod")
take(signal, "SIGHUP")
for module in ("fcntl", "termios", "grp"):
    sys.modules[module] = None
"""
)
EVERY_MODULE = """
import importlib, pathlib
import bertsmith
root = pathlib.Path(bertsmith.__file__).parent
for file in sorted(root.rglob("*.py")):
    if file.stem not in ("__init__", "__main__"):
        importlib.import_module(".".join(file.relative_to(root.parent).with_suffix("").parts))
"""
# Every command that writes something, on forty made-up documents; the kernels are not there.
FLOW = """
import sys
from bertsmith.cli.main import main
from bertsmith.model.cpu import kernels

if __name__ == "__main__":
    kernels.load_library = lambda _: None
    for command in sys.argv[1:]:
        status = main(command.split())
        assert status == 0, f"bertsmith {command}: {status}"
"""
COMMANDS = (
    "doctor",
    "corpus build text --out corpus --heldout 0.2 --workers 2",
    "tokenizer train corpus --out tokenizer --vocab-size 120",
    "pretrain quickstart corpus=corpus tokenizer=tokenizer out=run steps=2 checkpoint.every=1",
    "finetune classification --model run/model --train rows.csv --dev rows.csv --out head epochs=1",
    "predict head/model rows.csv --out predicted.jsonl",
    "embed run/model text/0.txt --out vectors.parquet",
)
SEARCH = ("index build text --model run/model --out index", "search index parts")


def python(folder: Path, system: str, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Python in `folder`, on such a system."""
    (folder / "system").mkdir()
    (folder / "system" / "sitecustomize.py").write_text(system)
    path = os.pathsep.join((str(folder / "system"), str(Path(bertsmith.__file__).parent.parent)))
    given = {**os.environ, "PYTHONPATH": os.pathsep.join((path, os.environ.get("PYTHONPATH", "")))}
    return subprocess.run(
        [sys.executable, *words], cwd=folder, env=given | environment, capture_output=True, text=True
    )


each_system = pytest.mark.parametrize(
    "system",
    [pytest.param(NOT_LINUX, marks=pytest.mark.slow, id="macOS"), pytest.param(WINDOWS, id="Windows")],
)


@pytest.mark.slow
@each_system
def test_every_module_is_imported(tmp_path: Path, system: str) -> None:
    done = python(tmp_path, system, "-W", "ignore", "-c", EVERY_MODULE)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.slow
@each_system
def test_from_text_to_predictions_and_an_index(tmp_path: Path, system: str) -> None:
    (tmp_path / "text").mkdir()
    (tmp_path / "flow.py").write_text(FLOW)
    for number in range(40):
        lines = (f"Item {number} has {part} parts and weighs {number * part} grams." for part in range(2, 12))
        (tmp_path / "text" / f"{number}.txt").write_text("\n".join(lines))
    rows = (f"Item {number} has parts.,{'even' if number % 2 else 'odd'}" for number in range(40))
    (tmp_path / "rows.csv").write_text("text,label\n" + "\n".join(rows))
    commands = [*COMMANDS, *(SEARCH if find_spec("lancedb") else ())]
    done = python(tmp_path, system, "flow.py", *commands)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "predicted.jsonl").read_text().count("\n") == 40


def test_a_file_is_flushed_where_folders_are_not_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    modes = list[int]()
    opened = os.open
    monkeypatch.delattr(os, "O_DIRECTORY")
    monkeypatch.setattr(os, "open", lambda path, mode: modes.append(mode) or opened(path, mode))
    with files.atomic_folder(tmp_path / "whole") as folder:
        (folder / "file").write_text("content")
    assert modes == [os.O_RDWR], "a file for writing, and no folder"
    assert (tmp_path / "whole" / "file").read_text() == "content"


def test_where_nothing_forks_nothing_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    before = torch.get_num_threads()
    monkeypatch.delattr(os, "register_at_fork")
    compute_alone_after_fork.__wrapped__()  # which would raise AttributeError
    assert torch.get_num_threads() == before


@pytest.fixture
def _signals_of_windows(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    before = [(number, signal.getsignal(number)) for number in (signal.SIGINT, signal.SIGTERM)]
    monkeypatch.delattr(signal, "SIGHUP")
    yield
    for number, handler in before:
        signal.signal(number, handler)


@pytest.mark.usefixtures("_signals_of_windows")
def test_commands_trainings_and_workers_need_no_signal_of_a_closed_terminal() -> None:
    terminate_cleanly()
    with Interruption() as interruption:
        signal.raise_signal(signal.SIGTERM)
        assert interruption.requested
    workers._follow_parent()
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


def test_without_flock_nobody_is_kept_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with locks.locked_folder(tmp_path) as first, locks.locked_folder(tmp_path) as second:
        assert (first, second) == (True, False)
    monkeypatch.setattr(locks, "fcntl", None)
    with locks.locked_folder(tmp_path) as first, locks.locked_folder(tmp_path) as second:
        assert (first, second) == (True, True)


@pytest.mark.parametrize("command", [["--help"], pytest.param(["doctor"], marks=pytest.mark.slow)])
def test_a_file_gets_utf8_whatever_the_system_has(tmp_path: Path, command: list[str]) -> None:
    """cp1252 is what Windows has for files and pipes, without the lines of tables and without arrows."""
    done = python(tmp_path, "", "-m", "bertsmith", *command, PYTHONIOENCODING="cp1252", PYTHONUTF8="0")
    assert (done.returncode, done.stderr) == (0, "")
