"""How long a new process takes to answer: help, import, and a masked sentence filled, beside `import torch`.
Last answer (2026-11-23, Zen 4): help 0.17 s, a filled mask 0.96 times torch and the weights.

    python bench/embedding/start_up.py [--rounds 7] [--only help import fill-mask] [--quick]

Every figure is a process from its start to its end, the files in the page cache (a round that isn't counted
puts them there), the processes of a round one after the other; medians. The targets: `bertsmith --help`
within 0.3 s, `import bertsmith` within 0.2 s and without torch, and `bertsmith fill-mask` at most 1.3 times
the time of `import torch` and of reading the same weights. The model has the weights of MiniLM (6 layers of
384) and a masked-language head drawn at random, which it lacks; it is made in a folder that goes away.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(1, str(Path(__file__).parents[1]))  # harness.py, and what else all folders share

from harness import ratio, report, spread

_WITHOUT_TORCH = "import sys, bertsmith; assert 'torch' not in sys.modules, 'it imports torch'"
_TORCH_AND_WEIGHTS = "import sys, torch; content = open(sys.argv[1], 'rb').read()"
_ONLY = {"help": ("help",), "import": ("nothing", "import"), "fill-mask": ("torch", "fill-mask")}
_NAMES = {
    "help": "bertsmith --help",
    "nothing": 'python -c ""',
    "import": 'python -c "import bertsmith"',
    "torch": "import torch, and the weights read",
    "fill-mask": "bertsmith fill-mask",
}
_LIMITS = {"help": 0.3, "import": 0.2}  # seconds
_TIMES_TORCH = 1.3


def main() -> None:
    """Makes the model, starts each process in turn, and reports."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", nargs="+", choices=tuple(_ONLY), default=list(_ONLY))
    parser.add_argument("--quick", action="store_true", help="one round; nothing is written")
    options = parser.parse_args()
    rounds = 1 if options.quick else options.rounds
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "model"
        if "fill-mask" in options.only:
            make_model(model)
        found = commands(model, [name for only in options.only for name in _ONLY[only]])
        seconds = {name: [] for name in found}
        for number in range(rounds + 1):
            for name, command in found.items():
                took = seconds_of(command)
                seconds[name] += [took] if number else []
    rows = [_row(name, seconds) for name in seconds]
    notes = [" ".join((__doc__ or "").split("\n\n")[2].split())]
    report("start-up", "Start-up", rows, notes, write=not options.quick)


def commands(model: Path, names: Sequence[str]) -> dict[str, list[str]]:
    """By name; the order is that of a round."""
    # What pip installs beside the interpreter; from a checkout that isn't installed, the same by module.
    installed = Path(sys.executable).with_name("bertsmith")
    bertsmith = [str(installed)] if installed.exists() else [sys.executable, "-m", "bertsmith"]
    known = {
        "help": [*bertsmith, "--help"],
        "nothing": [sys.executable, "-c", ""],
        "import": [sys.executable, "-c", _WITHOUT_TORCH],
        "torch": [sys.executable, "-c", _TORCH_AND_WEIGHTS, str(model / "model.safetensors")],
        "fill-mask": [*bertsmith, "fill-mask", str(model), "The court [MASK] the appeal."],
    }
    return {name: known[name] for name in names}


def seconds_of(command: Sequence[str]) -> float:
    """From start to end. Ends with what it printed when it failed."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    started = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, env=kept)
    seconds = time.perf_counter() - started
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed with status {done.returncode}:\n{done.stderr}")
    return seconds


def make_model(folder: Path) -> None:
    """MiniLM with a masked-language head, as `bertsmith pretrain init=minilm` would begin."""
    from bertsmith.model.locate import locate_model
    from bertsmith.tasks.pretraining.pretraining_checkpoint import (
        load_pretraining_model,
        save_pretraining_model,
    )
    from bertsmith.text.tokens.tokenizer import Tokenizer

    minilm = locate_model("minilm").folder
    model, _ = load_pretraining_model(minilm, next_sentence=False, allow_new_heads=True)
    save_pretraining_model(folder, model, Tokenizer.load(minilm), {"made for": "bench/embedding/start_up.py"})


def _row(name: str, seconds: dict[str, list[float]]) -> dict[str, Any]:
    times = spread(ratio(seconds[name], seconds["torch"])) if name == "fill-mask" else ""
    limit = f"{_TIMES_TORCH} times torch" if name == "fill-mask" else f"{_LIMITS.get(name, '')}"
    return {
        "process": _NAMES[name],
        "seconds": f"{statistics.median(seconds[name]):.3f}",
        "lowest": f"{min(seconds[name]):.3f}",
        "highest": f"{max(seconds[name]):.3f}",
        "times torch and weights": times,
        "target": limit,
    }


if __name__ == "__main__":
    main()
