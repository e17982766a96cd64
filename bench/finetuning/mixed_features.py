"""Columns beside the text: banking77 with a planted one. Does its gain appear, and is it credited with it?
Last answer (2026-11-27, Zen 4): right in 90 % of rows it lifts 84.0 to 91.5; right in none, nothing.

    python bench/finetuning/mixed_features.py [--rows 8] [--shares 0 0.5 0.9] [--method linear] [--seed 0]

Each of banking77's 77 intents belongs to one of eight desks. The column `desk` names it in a share of the
rows, and any desk in the others; `age`, a number, says nothing of the intent. `bertsmith finetune
classification` learns from so many rows an intent, with and without `--features desk,age`, and both are asked
for the official test file, which has the same columns. A share of 0 is the control: nothing is to be gained.

What columns and text add, and what each is worth, is what the run with features reports.
"""

import argparse
import csv
import json
import random
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

sys.path.insert(1, str(Path(__file__).parents[1]))  # harness.py, and what else all folders share

from cutting import draw_a_class
from harness import report
from labelled import find, finetune_in

DESKS = 8
FEATURES = "desk,age"
Row = dict[str, Any]


def planted(name: str, share: float, seed: int, rows: int | None = None) -> list[Row]:
    """banking77's train or test, or `rows` an intent, with both columns."""
    with find(f"banking77/{name}.csv").open(encoding="utf-8", newline="") as file:
        found = [{"text": row["text"], "label": row["category"]} for row in csv.DictReader(file)]
    if rows is not None:
        found = [found[number] for number in draw_a_class([row["label"] for row in found], rows, seed)]
    intents = sorted({row["label"] for row in found})
    drawn = random.Random(f"{seed} {name}")
    for row in found:
        own = intents.index(row["label"]) % DESKS
        row["desk"] = f"desk {own if drawn.random() < share else drawn.randrange(DESKS)}"
        row["age"] = drawn.randint(18, 80)
    return found


def write(path: Path, rows: list[Row]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def compare(share: float, rows: int, method: str, seed: int, folder: Path) -> Row:
    """One line of the table."""
    files = {
        "train": write(folder / "train.jsonl", planted("train", share, seed, rows)),
        "test": write(folder / "test.jsonl", planted("test", share, seed)),
    }
    settings = {"method": method, "seed": seed}
    alone = finetune_in(folder / "alone", "classification", settings, **files)
    both = finetune_in(folder / "both", "classification", settings | {"features": FEATURES}, **files)
    study = both["columns"]
    reached = {each["name"]: each["score"] for each in study["reached"]}
    worths = {each["name"]: each for each in study["worths"]}
    return {
        "desk right": f"{share:.0%}",
        "test, text alone": _score(alone["evaluations"]["test"]),
        "test, with columns": _score(both["evaluations"]["test"]),
        "columns alone": f"{100 * max(reached['columns alone'], _boosted(reached)):.1f}",
        "the columns add": _with_error(study["columns_add"], "gain"),
        "the text adds": _with_error(study["text_adds"], "gain"),
        **{f"{name} is worth": _with_error(worths[name], "loss") for name in ("the text", "desk", "age")},
    }


def _boosted(reached: dict[str, float]) -> float:
    return reached.get("columns alone, gradient boosting", 0.0)


def _score(evaluation: Row) -> str:
    return f"{100 * evaluation['model']['accuracy']:.2f} ± {100 * evaluation['standard_error']:.2f}"


def _with_error(found: Row, name: str) -> str:
    return f"{100 * found[name]:+.1f} ± {100 * found['error']:.1f}"


def main() -> None:
    """The table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=8, help="of each intent")
    parser.add_argument("--shares", type=float, nargs="+", default=[0.0, 0.5, 0.9])
    parser.add_argument("--method", default="linear")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    lines = []
    for share in given.shares:
        with TemporaryDirectory() as folder:
            lines.append(compare(share, given.rows, given.method, given.seed, Path(folder)))
    notes = [
        f"Accuracy in points; banking77, {given.rows} rows of each of 77 intents, method {given.method}, "
        "tested on 3,080. ± is one standard error.",
        "What columns and text add, and what each is worth when shuffled, is by linear models in "
        "cross-validation of the training rows.",
    ]
    report("mixed-features", "A planted column beside banking77's texts", lines, notes)


if __name__ == "__main__":
    main()
