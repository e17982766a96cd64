"""Fair timings: both sides in worker processes of one run, asked in turn, medians and their spread reported.

A script makes a `Worker` a side, calls `interleave` to time them, and `report` to write the result as JSON
and as a Markdown table under bench/results/.
"""

import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"


class Worker:
    """A side of a comparison in its own process, which answers each line of JSON with one."""

    def __init__(self, script: str, *arguments: str, python: str = sys.executable) -> None:
        """`python` is the interpreter, for a peer that needs an environment of its own."""
        command = [python, script, "--worker", *arguments]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, **request: Any) -> dict[str, Any]:
        """Sends a request and waits for the answer."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the worker ended with status {self._process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        """Ends the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def serve(answer: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """The worker's end: answers requests until there are no more."""
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line))), flush=True)


def interleave(sides: Mapping[str, Worker], rounds: int, **request: Any) -> dict[str, list[dict[str, Any]]]:
    """Asks every side once a round, after one round that isn't counted."""
    for worker in sides.values():
        worker.ask(**request)
    answers: dict[str, list[dict[str, Any]]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name, worker in sides.items():
            answers[name].append(worker.ask(**request))
    return answers


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> dict[str, float]:
    """Pair by pair: the median ratio and its lowest and highest value."""
    ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
    return {"median": statistics.median(ratios), "lowest": min(ratios), "highest": max(ratios)}


def spread(ratios: Mapping[str, float]) -> str:
    """'2.99 (2.77 – 3.22)'."""
    return f"{ratios['median']:.2f} ({ratios['lowest']:.2f} – {ratios['highest']:.2f})"


def resident(entry: str) -> int:
    """Bytes of this process by Linux's own account: VmRSS now, VmHWM at most so far."""
    return 1024 * int(Path("/proc/self/status").read_text().split(f"{entry}:")[1].split()[0])


def environment() -> dict[str, Any]:
    """What a figure needs beside it."""
    import torch

    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": _version("transformers"),
        "load": os.getloadavg()[0],
    }


def hardware_name() -> str:
    """For file names: 'cpu-2-cores'."""
    return f"cpu-{len(os.sched_getaffinity(0))}-cores"


def report(
    name: str,
    title: str,
    command: str,
    rows: Iterable[Mapping[str, Any]],
    notes: Sequence[str] = (),
    *,
    write: bool = True,
) -> None:
    """Prints a Markdown table and writes it, and its JSON, under bench/results/; a quick look only prints."""
    rows = list(rows)
    columns = list(rows[0])
    facts = environment()
    stated = ", ".join(f"{key} {value}" for key, value in facts.items() if key != "load")
    lines = [f"# {title}", "", f"`{command}` · {stated}", ""]
    lines += ["| " + " | ".join(columns) + " |", "|" + " --- |" * len(columns)]
    lines += ["| " + " | ".join(str(row[column]) for column in columns) + " |" for row in rows]
    lines += ["", *(f"- {note}" for note in notes)]
    text = "\n".join(lines).rstrip() + "\n"
    print(text)
    if not write:
        return
    path = result_path(name)
    path.with_suffix(".md").write_text(text)
    path.with_suffix(".json").write_text(
        json.dumps({"environment": facts, "rows": rows, "notes": notes}, indent=1) + "\n"
    )


def result_path(name: str) -> Path:
    """Where a script's results of this month and machine go, without the ending."""
    RESULTS.mkdir(exist_ok=True)
    return RESULTS / f"{name}_{hardware_name()}_{time.strftime('%Y-%m')}"


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor()


def _version(package: str) -> str | None:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(package)
    except PackageNotFoundError:
        return None
