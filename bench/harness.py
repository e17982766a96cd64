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
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NoReturn

NO_DATA = 3  # the status of a script that can't run without ../shared/data: `make bench` goes by it
RESULTS = Path(__file__).parent / "results"
# Family and model, by which virtual machines that hide their processor's name can be told apart.
_GENERATIONS = {("25", "1"): "zen3", ("25", "17"): "zen4", ("26", "2"): "zen5"}


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
    """For file names: 'zen4', or 'xeon-6-167' with the processor's family and model where we know no name."""
    generation = _generation()
    maker = re.search("model name.*?(xeon|epyc|ryzen)", Path("/proc/cpuinfo").read_text().lower())
    return _GENERATIONS.get(generation) or "-".join([maker[1] if maker else "cpu", *generation])


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
    variant: str | None = None,
    write: bool = True,
) -> None:
    """Prints a Markdown table and writes it, and its JSON, under bench/results/; a quick look only prints.

    The command beside the table is the one that this process was started by. `variant` is for `result_path`.
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
    result_path(name, ".md", variant).write_text(text)
    result_path(name, ".json", variant).write_text(
        json.dumps({"environment": facts, "rows": rows, "notes": notes}, indent=1) + "\n"
    )


def result_path(name: str, ending: str, variant: str | None = None) -> Path:
    """Where a script's results on this machine go: 'growth-corpus_zen4.md'.

    `variant` says in words what of the whole table was asked for. Without it a run that was given options is
    called 'part', so that it leaves the whole table alone: rename what is worth keeping.
    """
    RESULTS.mkdir(exist_ok=True)
    asked = any(each != "--again" for each in _arguments())
    what = "-".join(filter(None, [name, "part" if asked and variant is None else variant]))
    return RESULTS / f"{what}_{hardware_name()}{ending}"


def _command() -> str:
    script, folder = Path(sys.argv[0]).resolve(), Path(__file__).resolve().parent
    place = script.relative_to(folder) if script.is_relative_to(folder) else script.name
    return shlex.join(["python", f"bench/{place}", *_arguments()])


def _arguments() -> list[str]:
    """The command line's; of an absolute path, which means nothing elsewhere, the last part."""
    return [Path(each).name if Path(each).is_absolute() else each for each in sys.argv[1:]]


def _version(package: str) -> str | None:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(package)
    except PackageNotFoundError:
        return None
