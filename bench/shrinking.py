"""How small can it be? `bertsmith shrink` on intents and on names: size and time against the score.

    python bench/shrinking.py [--tasks banking77 conll] [--rows N] [--hours H] [--keep 0.98]

    banking77   77 intents, accuracy      conll   names in sentences, F1

The model is `bertsmith finetune` on MiniLM with its defaults, or with --model-settings. Of banking77's
training rows a tenth is dev. With --rows N the model and the labels are of N rows. The accepted model is that
of at most a quarter of the time for a text alone, within two points of the score. Reports and
chosen models stay under runs/bench/shrinking/, where an interrupted search goes on.
"""

import argparse
import csv
import json
import random
from pathlib import Path
from typing import Any

from harness import report
from labelled import DATA_SETS, fewer, find, finetune_in

KEPT = Path("runs/bench/shrinking")
TASKS = ("banking77", "conll")


def main() -> None:
    """Each search, and the table of all candidates."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--rows", type=int)
    parser.add_argument("--hours", type=float)
    parser.add_argument("--keep", type=float, default=0.98)
    parser.add_argument("--settings", nargs="*", default=[], help="of each distillation, as key=value")
    parser.add_argument("--model-settings", type=json.loads, default={}, help="of the model, as JSON")
    options = parser.parse_args()
    rows: list[dict[str, str]] = []
    for name in options.tasks:
        rows += _rows(name, _search(name, options))
        report("shrinking", "Smaller models of a fine-tuned one", rows, _NOTES)


_NOTES = [
    "Score: the main metric on dev, with its 95 % interval. Time: a text alone, as a share of the whole "
    "model's, measured in turn with it.",
    "accepted: at most a quarter of the time, at most two points below the whole model.",
]


def _search(name: str, options: argparse.Namespace) -> dict[str, Any]:
    from bertsmith.compression.shrinking.shrink import shrink

    folder = KEPT / f"{name}-{options.rows or 'all'}"
    folder.mkdir(parents=True, exist_ok=True)
    task, files = _files(name, options.rows, folder)
    if not (folder / "whole" / "model").exists():
        finetune_in(folder / "whole", task, options.model_settings, **files)
    shrink(
        str(folder / "whole" / "model"),
        *options.settings,
        out=str(folder / "shrunk"),
        hours=options.hours,
        keep=options.keep,
        resume=(folder / "shrunk").exists(),
        **files,
    )
    results: dict[str, Any] = json.loads((folder / "shrunk" / "results.json").read_text())
    return results


def _files(name: str, rows: int | None, folder: Path) -> tuple[str, dict[str, Any]]:
    if name == "conll":
        data = DATA_SETS[name]
        train, dev = fewer(data.train, rows, folder), fewer(data.dev, rows, folder)
        return data.task, {"train": str(train), "dev": str(dev), **data.columns}
    with find("banking77/train.csv").open(encoding="utf-8") as file:
        found = [(row["text"], row["category"]) for row in csv.DictReader(file)]
    random.Random(0).shuffle(found)
    held = len(found) // 10
    parts = {"dev": found[:held], "train": found[held:][:rows]}
    for part, some in parts.items():
        with (folder / f"{part}.csv").open("w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows([("text", "label"), *some])
    return "classification", {part: str(folder / f"{part}.csv") for part in parts}


def _rows(name: str, found: dict[str, Any]) -> list[dict[str, str]]:
    whole = found["whole"]
    return [
        {
            "data": f"{name}, {found['metric']}",
            "model": each["name"] + (" ←" if each["slug"] == found["chosen"] else ""),
            "score": _score(each),
            "of the whole": f"{each['score'] / whole['score']:.1%}",
            "time": f"{each['share_alone']:.2f}",
            "parameters": f"{each['parameters'] / 1e6:.1f} M",
            "seconds": f"{each['seconds']:,.0f}",
            "accepted": "yes" if _accepted(each, whole) else "",
        }
        for each in (*found["tried"], whole)
    ]


def _score(each: dict[str, Any]) -> str:
    error = each["error"]
    return f"{each['score']:.4f}" + ("" if error is None else f" ± {1.96 * error:.4f}")


def _accepted(each: dict[str, Any], whole: dict[str, Any]) -> bool:
    return bool(each["share_alone"] <= 0.25 and each["score"] >= whole["score"] - 0.02)


if __name__ == "__main__":
    main()
