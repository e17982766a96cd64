"""Fair timings: both sides in worker processes of one run, asked in turn, medians and their spread reported.

A script makes a `Worker` a side, calls `interleave` to time them, and `report` to write the result as JSON
and as a Markdown table under bench/results/.
"""

import json
import os
import platform
import re
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NoReturn

NO_DATA = 3  # the status of a script that can't run without ../shared/data: `make bench` goes by it
RESULTS = Path(__file__).parent / "results"
_LONGEST = 100  # characters of a file's name that say what was asked for


# Before Bertsmith is imported, which sets how long threads wait: peers have their own defaults.
STARTED_WITH = dict(os.environ)


class Worker:
    """A side of a comparison in its own process, which answers each line of JSON with one."""

    def __init__(self, script: str, *arguments: str, python: str = sys.executable) -> None:
        """`python` is the interpreter, for a peer that needs an environment of its own."""
        command = [python, script, "--worker", *arguments]
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self._process = subprocess.Popen(command, env=STARTED_WITH, **pipes)

    def ask(self, **request: Any) -> dict[str, Any]:
        """Sends a request and waits for the answer."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            status = self._process.wait()
            if status == NO_DATA:
                raise SystemExit(NO_DATA)
            raise RuntimeError(f"the worker ended with status {status}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        """Ends the process."""
        with self._process:  # closes its pipes and waits
            pass


def serve(answer: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """The worker's end: answers requests until there are no more."""
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line))), flush=True)


def end_without(name: str) -> NoReturn:
    """Ends a script that needs this file or folder of ../shared/data, which is not part of the repository."""
    print(f"This needs ../shared/data/{name} beside the repository, which is not there.", file=sys.stderr)
    raise SystemExit(NO_DATA)


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

    from bertsmith.machine import Hardware

    hardware = Hardware.detect()
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "processor": f"{hardware.processor}, {'-'.join(_generation())}, {' '.join(hardware.instructions)}",
        "cores": len(os.sched_getaffinity(0)),
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": _version("transformers"),
        "load": os.getloadavg()[0],
    }


def _generation() -> tuple[str, str]:
    """Family and model: what tells AMD's Zen 4 (25, 17) from Zen 5 where a virtual machine hides the name."""
    lines = [line.partition(":") for line in Path("/proc/cpuinfo").read_text().splitlines()]
    facts = {name.strip(): value.strip() for name, _, value in lines}
    return facts.get("cpu family", "unknown"), facts.get("model", "unknown")


def hardware_name() -> str:
    """For file names: 'cpu-2-cores-25-17', with the processor's family and model."""
    return "-".join(["cpu", str(len(os.sched_getaffinity(0))), "cores", *_generation()])


def precisions() -> list[str]:
    """What products on this processor are measured in: where it computes in bfloat16, in that too, and
    in each side's default, which elsewhere is the same.
    """
    from bertsmith.machine import Hardware

    has_bfloat16 = any("bf16" in name for name in Hardware.detect().instructions)
    return ["float32", "bfloat16", "default"] if has_bfloat16 else ["float32"]


def described(precision: str) -> str:
    """For a table: "default" is each side's own, the peers' being float32."""
    from bertsmith.machine import Hardware

    ours = str(Hardware.detect().precision).removeprefix("torch.")
    return f"each its default: ours {ours}, theirs float32" if precision == "default" else precision


def report(
    name: str,
    title: str,
    rows: Iterable[Mapping[str, Any]],
    notes: Sequence[str] = (),
    *,
    write: bool = True,
) -> None:
    """Prints a Markdown table and writes it, and its JSON, under bench/results/; a quick look only prints.

    The command beside the table is the one that this process was started by.
    """
    rows = list(rows)
    columns = list(rows[0])
    facts = environment()
    stated = ", ".join(f"{key} {value}" for key, value in facts.items() if key != "load")
    lines = [f"# {title}", "", f"`{_command()}` · {stated}", ""]
    lines += ["| " + " | ".join(columns) + " |", "|" + " --- |" * len(columns)]
    lines += ["| " + " | ".join(str(row[column]) for column in columns) + " |" for row in rows]
    lines += ["", *(f"- {note}" for note in notes)]
    text = "\n".join(lines).rstrip() + "\n"
    print(text)
    if not write:
        return
    result_path(name, ".md").write_text(text)
    result_path(name, ".json").write_text(
        json.dumps({"environment": facts, "rows": rows, "notes": notes}, indent=1) + "\n"
    )


def result_path(name: str, ending: str) -> Path:
    """Where a script's results of this month and machine go.

    What was asked for is part of the name, so that a narrower run leaves the whole table alone.
    """
    RESULTS.mkdir(exist_ok=True)
    asked = re.sub(r"[^\w.]+", "-", " ".join(each for each in _arguments() if each != "--again")).strip("-")
    parts = [name, asked[:_LONGEST], hardware_name(), time.strftime("%Y-%m")]
    return RESULTS / ("_".join(part for part in parts if part) + ending)


def _command() -> str:
    return shlex.join(["python", f"bench/{Path(sys.argv[0]).name}", *_arguments()])


def _arguments() -> list[str]:
    """The command line's; of an absolute path, which means nothing elsewhere, the last part."""
    return [Path(each).name if Path(each).is_absolute() else each for each in sys.argv[1:]]


def _version(package: str) -> str | None:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(package)
    except PackageNotFoundError:
        return None
