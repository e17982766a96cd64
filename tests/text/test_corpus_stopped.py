"""A build that is stopped or killed leaves no corpus, no process, and nothing that stays for good."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from bertsmith.text.corpus.building import build_corpus

DOCUMENT = (
    "One of the sentences that this document is made of.\nAnd another one of them, a little longer.\n" * 5
)

SLOW_BUILD = """
import sys
from pathlib import Path
from bertsmith.text.corpus.building import build_corpus

def progress(done, total, unit):
    print("reading", flush=True)

if __name__ == "__main__":
    build_corpus([sys.argv[1]], Path(sys.argv[2]), workers=2, progress=progress)
"""


def start_slow_build(tmp_path: Path) -> subprocess.Popen[str]:
    """A build of 12 MB over two workers, seen to be under way."""
    (tmp_path / "texts.txt").write_text("\n\n".join([DOCUMENT] * 30_000))
    (tmp_path / "build.py").write_text(SLOW_BUILD)
    command = [sys.executable, "build.py", "texts.txt", "corpus"]
    build = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert build.stdout is not None and build.stdout.readline() == "reading\n"
    return build


def children_of(process: int) -> list[int]:
    return [child.pid for child in psutil.Process(process).children(recursive=True)]


def wait_until_gone(processes: list[int]) -> None:
    deadline = time.monotonic() + 20
    while any(psutil.pid_exists(process) for process in processes):
        assert time.monotonic() < deadline, "worker processes outlive the build"
        time.sleep(0.05)


@pytest.mark.parametrize("stop", [signal.SIGINT, pytest.param(signal.SIGKILL, marks=pytest.mark.slow)])
def test_a_stopped_build_leaves_no_corpus_and_no_process(tmp_path: Path, stop: signal.Signals) -> None:
    with start_slow_build(tmp_path) as build:
        workers = children_of(build.pid)
        build.send_signal(stop)
        _, complaint = build.communicate(timeout=30)
    wait_until_gone(workers)
    assert build.returncode != 0 and workers
    left = sorted(path.name for path in tmp_path.iterdir() if path.name not in ("build.py", "texts.txt"))
    if stop == signal.SIGINT:
        assert left == []
        assert complaint.count("Traceback") <= 1  # its own, none of the workers
    else:
        assert left == [f".corpus.partial-{build.pid}"]
        build_corpus([str(tmp_path / "build.py")], tmp_path / "corpus")
        assert not (tmp_path / left[0]).exists()
