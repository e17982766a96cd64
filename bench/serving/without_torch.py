"""`bertsmith-run` beside the whole package, each installed in an environment of its own: sizes, times, bits.
Last answer (2026-11-30, Zen 5): 28 MB to download for 365, 84 MB resident for 440, 10,000 equal answers.

    python bench/serving/without_torch.py [--texts 1000] [--rounds 7] [--only sizes times bits]

Both wheels are made of this checkout, and installed with all they need (MiniLM's weights excepted, which are
in neither). Download: the wheels' bytes. Installed: files but Python's compiled ones. Import, and the first
vector of MiniLM: processes from start to end, and the seconds that they keep a core busy, in turn, medians.
Memory: a process's resident bytes after that vector, the mapped weights with them. Bits: predictions and
vectors of random texts by a model of every head; of the whole package's, how many are the same to the last
bit. The environment of `bertsmith-run` has no torch to import.
"""

import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(1, str(Path(__file__).parents[1]))  # harness.py, and what else all folders share
sys.path.insert(2, str(Path(__file__).parents[2] / "tests"))  # served_models.py

from harness import report

ROOT = Path(__file__).parents[2]
WHOLE, ALONE = "bertsmith", "bertsmith-run"
# The name to import, and a class that imports what a first answer needs.
IMPORTS = {WHOLE: "from bertsmith import Embedder", ALONE: "from bertsmith_run import Embedder"}
FIRST_VECTOR = """
import sys
{imports}
Embedder(sys.argv[1]).documents(["The court granted the motion."])
print(next(line for line in open("/proc/self/status") if line.startswith("VmRSS")).split()[1])
"""
# Of every folder on standard input: its answers as texts; vectors by their bits.
ANSWERS = """
import importlib, json, sys
package = importlib.import_module(sys.argv[1])
answers = {}
for folder, (texts, makes_vectors) in json.load(sys.stdin).items():
    if makes_vectors:
        answers[folder] = [vector.tobytes().hex() for vector in package.Embedder(folder).documents(texts)]
    else:
        opened = getattr(package.Predictor, "load", package.Predictor)(folder)
        answers[folder] = [json.dumps(answer) for answer in opened.predict(texts)]
if sys.argv[1] == "bertsmith_run":
    assert importlib.util.find_spec("torch") is None
json.dump(answers, sys.stdout)
"""


def main() -> None:
    """Installs both, measures what is asked for, and reports."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--texts", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", nargs="+", choices=("sizes", "times", "bits"), default=None)
    options = parser.parse_args()
    parts = options.only or ("sizes", "times", "bits")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        source = folder / "source"  # building compiles in it
        shutil.copytree(ROOT / "src", source / "src", ignore=shutil.ignore_patterns("__pycache__", "*.so"))
        for name in ("pyproject.toml", "hatch_build.py", "run_wheel.py", "README.md", "LICENSE"):
            shutil.copy(ROOT / name, source)
        wheels = {name: folder / f"{name}-wheels" for name in (WHOLE, ALONE)}
        pythons = {name: install(name, source, wheels[name], folder / name) for name in wheels}
        rows = list[dict[str, Any]]()
        if "sizes" in parts:
            rows.append(_row("download, MB", {name: _bytes_of(wheels[name]) / 1e6 for name in wheels}))
            sites = {name: next((folder / name / "lib").glob("python*")) for name in wheels}
            rows.append(_row("installed, MB", {name: _bytes_of(sites[name]) / 1e6 for name in sites}))
        if "times" in parts:
            rows += measure_times(pythons, options.rounds)
        if "bits" in parts:
            rows += compare_bits(pythons, folder / "models", options.texts)
    notes = [" ".join((__doc__ or "").split("\n\n")[2].split())]
    report("without-torch", "Without torch", rows, notes)


def install(name: str, source: Path, wheels: Path, environment: Path) -> str:
    """Makes an environment with the package and all that it needs, whose wheels are then in `wheels`. Returns
    its interpreter.
    """
    package = str(source)
    if name == ALONE:  # after the whole package, whose libraries it takes
        code = (
            "import pathlib, sys, run_wheel\n"
            "print(run_wheel.build(pathlib.Path(sys.argv[1]), compile_first=False))"
        )
        made = [sys.executable, "-c", code, str(wheels)]
        package = subprocess.run(made, cwd=source, check=True, capture_output=True, text=True).stdout.strip()
    constraints = ["--constraint", str(ROOT / "constraints.txt")]
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    subprocess.run([*pip, "wheel", "--wheel-dir", str(wheels), *constraints, package], check=True)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(environment)], check=True)
    python = str(environment / "bin" / "python")
    local = ["--no-index", "--find-links", str(wheels), "--no-compile", name]
    subprocess.run([*pip, "--python", python, "install", *local], check=True)
    return python


def _bytes_of(folder: Path) -> int:
    """Bytes of the files below a folder but Python's compiled ones."""
    files = (path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    return sum(path.stat().st_size for path in files if path.suffix != ".pyc")


def measure_times(pythons: dict[str, str], rounds: int) -> list[dict[str, Any]]:
    """Seconds of an import and of a first vector, and the megabytes resident after it."""
    from bertsmith.model.locate import locate_model

    minilm = str(locate_model("minilm").folder)
    codes = {
        "import": IMPORTS,
        "first vector": {name: FIRST_VECTOR.format(imports=IMPORTS[name]) for name in pythons},
    }
    measured = defaultdict[str, dict[str, list[float]]](lambda: {name: [] for name in pythons})
    for number in range(rounds + 1):  # the first compiles modules and fills the page cache
        for what, by_name in codes.items():
            for name, python in pythons.items():
                took = _run([python, "-c", by_name[name], minilm])
                if number == 0:
                    continue
                measured[f"{what}, s"][name].append(took.seconds)
                measured[f"{what}, s of a core"][name].append(took.core_seconds)
                if took.printed:
                    measured["resident, MB"][name].append(int(took.printed) / 1000)
    return [
        _row(what, {name: statistics.median(values) for name, values in by_name.items()})
        for what, by_name in measured.items()
    ]


def compare_bits(pythons: dict[str, str], folder: Path, texts: int) -> list[dict[str, Any]]:
    """How many answers of a model of every head are the same."""
    import pytest

    import served_models
    from bertsmith.model.locate import locate_model
    from served_models import inputs_of, save_encoder, save_fine_tuned

    heads = {name: save_fine_tuned(folder / name, name) for name in served_models.TASKS}
    heads["tagging with a CRF"] = heads.pop("tagging")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(served_models.TASKS, "tagging", (["O", "B-PER", "I-PER", "B-LOC"], False, {}))
        heads["tagging"] = save_fine_tuned(folder / "tagging-words", "tagging")
    encoders = {"vectors": save_encoder(folder / "encoder"), "MiniLM": locate_model("minilm").folder}
    inputs = {
        str(model): (inputs_of(name.split()[0], texts), name in encoders)
        for name, model in (heads | encoders).items()
    }
    answers = {
        name: json.loads(_run([python, "-c", ANSWERS, name.replace("-", "_")], json.dumps(inputs)).printed)
        for name, python in pythons.items()
    }
    rows = []
    for name, model in (heads | encoders).items():
        pairs = list(zip(*(answers[package][str(model)] for package in pythons), strict=True))
        same = sum(mine == other for mine, other in pairs)
        rows.append({"": f"same bits, {name}", WHOLE: len(pairs), ALONE: f"{same} of {len(pairs)}"})
    return rows


class Run(NamedTuple):
    """Seconds of a process from start to end, seconds that it kept a core busy, and what it printed."""

    seconds: float
    core_seconds: float
    printed: str


def _run(command: Sequence[str], given: str = "") -> Run:
    """Runs a command. Ends with its errors where it fails."""
    unset = ("PYTHONPATH", "PYTHONDONTWRITEBYTECODE")
    kept = {name: value for name, value in os.environ.items() if name not in unset}
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(command, input=given, capture_output=True, text=True, env=kept, cwd="/")
    seconds, after = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        raise SystemExit(f"{command[0]} failed with status {done.returncode}:\n{done.stderr}")
    core_seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Run(seconds, core_seconds, done.stdout)


def _row(what: str, values: dict[str, float]) -> dict[str, Any]:
    shown = {name: f"{value:.3g}" if value < 1 else f"{value:,.1f}" for name, value in values.items()}
    return {"": what} | shown


if __name__ == "__main__":
    main()
