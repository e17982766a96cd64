"""Raw text to token store: seconds and peak memory of each step, process trees counted whole.
Last answer (2026-11-24, Zen 4): 101 MB take 28 s and 494 MB.

    python bench/text/corpus.py [SOURCE]

SOURCE is anything `bertsmith corpus build` reads; without it, ../shared/data/wikipedia_2014 (101 MB), or the
documentation of this machine's Python packages. Memory is the largest sum of the resident sets of a command
and its workers, looked at every 50 ms: pages they share are counted more than once, so the truth is below.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

sys.path.insert(1, str(Path(__file__).parents[1]))  # harness.py, and what else all folders share

from harness import report

_WIKIPEDIA = Path(__file__).parents[3] / "shared" / "data" / "wikipedia_2014"

_LAST = 20  # lines of what a command that failed said


def main() -> None:
    """Parses and runs the three commands."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("source", nargs="?", default=str(_WIKIPEDIA) if _WIKIPEDIA.is_dir() else "pydocs:")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        corpus, tokenizer, store = (f"{folder}/{name}" for name in ("corpus", "tokenizer", "store"))
        rows = [
            ("corpus build", *measure("corpus build", options.source, "--out", corpus)),
            ("tokenizer train", *measure("tokenizer train", corpus, "--out", tokenizer)),
            ("corpus tokenize", *measure("corpus tokenize", corpus, tokenizer, "--out", store)),
        ]
    rows.append(("all", sum(seconds for _, seconds, _ in rows), max(peak for *_, peak in rows)))
    report(
        "corpus",
        "Raw text to token store",
        [
            {"command": command, "seconds": f"{seconds:.1f}", "peak MB": peak // 10**6}
            for command, seconds, peak in rows
        ],
        [f"source: {_name(options.source)}"],
    )


def measure(command: str, *arguments: str) -> tuple[float, int]:
    """Seconds and peak bytes of a `bertsmith` command. Ends when it fails, with what it said last."""
    started, peak = time.monotonic(), 0
    full = [sys.executable, "-m", "bertsmith", *command.split(), *arguments]
    with tempfile.TemporaryFile() as said:
        process = psutil.Popen(full, stdout=subprocess.DEVNULL, stderr=said)
        while process.poll() is None:
            peak = max(peak, _resident(process))
            time.sleep(0.05)
        seconds = time.monotonic() - started
        if process.returncode:
            said.seek(0)
            last = "\n".join(said.read().decode(errors="replace").splitlines()[-_LAST:])
            raise SystemExit(f"bertsmith {command} failed with status {process.returncode}:\n{last}")
    return seconds, peak


def _resident(process: psutil.Process) -> int:
    total = 0
    try:
        for member in (process, *process.children(recursive=True)):
            total += member.memory_info().rss
    except psutil.NoSuchProcess:  # one has just ended
        pass
    return total


def _name(source: str) -> str:
    return Path(source).name if Path(source).exists() else source


if __name__ == "__main__":
    main()
