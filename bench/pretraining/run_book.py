"""The long run of docs/pretraining.md: what its log says, and whether another run has the same losses.
Last answer (2026-11-28, Zen 5): 53.1 % of held-out masks after eight hours.

    python bench/pretraining/run_book.py runs/book/run --decays RUN...
        table, curve, and the losses of its first hour
    python bench/pretraining/run_book.py runs/again --beside FILE
        how far another run's losses are from these

The run keeps its learning rate; each of the decays began with decay_from at one of its checkpoints:

    bertsmith pretrain budget steps=24000 model.size=small model.initializer_range=0.02 \\
        optimizer.learning_rate=1e-3 data.batch_size=64 optimizer.schedule=wsd optimizer.decay=0 \\
        optimizer.warmup=0.02 evaluation.every=0.01 corpus=... tokenizer=... out=runs/book/run

FILE is the .losses.json under bench/results that the first command wrote. The other run has the same
settings, steps= included, and may be stopped long before its end.
"""

import argparse
import json
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(1, str(Path(__file__).parents[1]))  # harness.py, and what else all folders share

import accuracy_plot
from bertsmith.training.log import RunLog
from harness import report, result_path

HOURS = (0.25, 0.5, 1, 2, 4, 6, 8, 12, 16)
SHOWN_STEPS = (1, 10, 100, 200, 500, 1000, 2000)
Record = dict[str, Any]


def main() -> None:
    """Parses, and describes a run or compares it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("run", type=Path, help="the folder of a run of `bertsmith pretrain`")
    parser.add_argument("--decays", type=Path, nargs="*", default=[], help="runs that began with decay_from")
    parser.add_argument("--beside", type=Path, help="losses to compare the run's with")
    parser.add_argument("--hours", type=float, default=1.0, help="whose losses are kept, at full length")
    options = parser.parse_args()
    log = RunLog.read(options.run)
    if options.beside is None:
        _describe(log, [(_begun_at(each), RunLog.read(each)) for each in options.decays], options.hours)
    else:
        _compare(_losses(log), json.loads(options.beside.read_text()))


def _describe(log: Sequence[Record], decays: Sequence[tuple[int, Sequence[Record]]], hours: float) -> None:
    """Writes the table of evaluations, their curve, and beside them the losses of the first hours."""
    evaluations = _evaluations(log)
    rows = [{"learning rate": "at its peak"} | _row(each) for each in _spaced(evaluations)]
    curves = {("learning rate at its peak", _hours(evaluations[-1])): evaluations}
    for step, decay in decays:
        begun = next(each for each in log if each["kind"] == "step" and each["step"] == step)
        fallen = [_later(each, begun) for each in _evaluations(decay)]
        rows.append({"learning rate": f"fallen from step {step:,} on"} | _row(fallen[-1]))
        nearest = min(evaluations, key=lambda each: abs(each["step"] - step))
        curves["fallen", _hours(fallen[-1])] = [nearest, *fallen]
    starts = sum(each["kind"] == "start" for each in log)
    report("run-book", "A long run", rows, [_pieces(starts)])
    points = {
        name: [(each["elapsed"] / 3600, each["mlm_accuracy"]) for each in curve]
        for name, curve in curves.items()
    }
    result_path("run-book", ".svg").write_text(accuracy_plot.draw(points, unit="hours"))
    first = _losses([each for each in log if each.get("elapsed", 0) <= 3600 * hours])
    result_path("run-book", ".losses.json").write_text(json.dumps(first) + "\n")


def _begun_at(decay: Path) -> int:
    """The step of the long run's checkpoint from which a decay began."""
    recipe = tomllib.loads((decay / "recipe.toml").read_text())
    return int(Path(recipe["decay_from"]).name.removeprefix("step-"))


def _evaluations(log: Sequence[Record]) -> list[Record]:
    return [each for each in log if each["kind"] == "evaluation"]


def _hours(evaluation: Record) -> float:
    return round(evaluation["elapsed"] / 3600, 1)


def _later(evaluation: Record, begun: Record) -> Record:
    """One of a decay, counted from the beginning of the long run."""
    return evaluation | {each: evaluation[each] + begun[each] for each in ("elapsed", "tokens", "step")}


def _pieces(starts: int) -> str:
    return "In one piece." if starts == 1 else f"In {starts} pieces; each but the last was interrupted."


def _spaced(evaluations: Sequence[Record]) -> list[Record]:
    """The first one at or after each of HOURS, and the last."""
    found = [
        next((each for each in evaluations if each["elapsed"] >= 3600 * hour), evaluations[-1])
        for hour in HOURS
    ]
    steps = {each["step"]: each for each in [*found, evaluations[-1]]}
    return list(steps.values())


def _row(evaluation: Record) -> dict[str, str]:
    return {
        "hours": f"{evaluation['elapsed'] / 3600:.2f}",
        "step": f"{evaluation['step']:,}",
        "million tokens": f"{evaluation['tokens'] / 1e6:.1f}",
        "held-out masks guessed right": f"{evaluation['mlm_accuracy']:.2%}",
        "perplexity": f"{evaluation['mlm_perplexity']:.1f}",
    }


def _losses(log: Sequence[Record]) -> dict[str, float]:
    """By step, as text: JSON has no other keys."""
    return {str(each["step"]): each["loss"] for each in log if each["kind"] == "step"}


def _compare(found: dict[str, float], published: dict[str, float]) -> None:
    """Prints some of the losses that both have, and the greatest difference."""
    common = [step for step in published if step in found]
    if not common:
        raise SystemExit("The two runs have no step in common.")
    away = {step: abs(found[step] - published[step]) for step in common}
    for step in [*(each for each in map(str, SHOWN_STEPS) if each in away), common[-1]]:
        print(f"step {int(step):>6,}: {found[step]:.6f}, published {published[step]:.6f}")
    other = next((step for step in common if away[step]), None)
    if other is None:
        print(f"All {len(common):,} losses are the same to the last bit.")
    else:
        farthest = max(common, key=away.__getitem__)
        print(f"{len(common):,} losses; the first other one is step {int(other):,}'s.")
        print(f"The farthest is step {int(farthest):,}'s, {away[farthest]:.6f} off.")


if __name__ == "__main__":
    main()
