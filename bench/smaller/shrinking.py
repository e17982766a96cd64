"""How small can it be? `bertsmith shrink` on intents and on names: size and time against the score.
Last answer (2026-11-27): banking77 91.9 of 93.5 in 0.18 of the time, CoNLL-2003 90.2 of 91.4 in 0.23.

    python bench/smaller/shrinking.py [--tasks banking77 conll] [--rows N] [--hours H] [--keep 0.98]

    banking77   77 intents, accuracy      conll   names in sentences, F1

The model is `bertsmith finetune` on MiniLM with its defaults, or with --model-settings. Of banking77's
training rows a tenth is dev. With --rows N the model and the labels are of N rows. Students of names learn
from --texts sentences of Wikipedia beside the rows; those of intents from the rows alone, as there are no
other texts. A model is accepted that takes at most a quarter of the time within two points of the score.
Reports and chosen models stay under runs/bench/shrinking/, where an interrupted search goes on.
"""

import argparse
import csv
import json
import random
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(1, str(Path(__file__).parents[1]))  # harness.py, and what else all folders share

from harness import report
from labelled import DATA_SETS, fewer, find, finetune_in

KEPT = Path("runs/bench/shrinking")
TASKS = ("banking77", "conll")


def main() -> None:
    """Each search, and the table of all candidates."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--rows", type=int)
    parser.add_argument("--texts", type=int, default=20_000, help="beside conll's rows; 0 for none")
    parser.add_argument("--hours", type=float)
    parser.add_argument("--keep", type=float, default=0.98)
    parser.add_argument("--settings", nargs="*", default=[], help="of each distillation, as key=value")
    parser.add_argument("--model-settings", type=json.loads, default={}, help="of the model, as JSON")
    options = parser.parse_args()
    rows: list[dict[str, str]] = []
    notes: list[str] = []
    for name in options.tasks:
        found = _search(name, options)
        rows += _rows(name, found)
        notes.append(_on_test(name, found))
        report("shrinking", "Smaller models of a fine-tuned one", rows, [*_NOTES, *notes])


_NOTES = [
    "Score: the main metric on dev, with its 95 % interval. Times are shares of the whole model's, measured "
    "in turn with it: of a text alone, and of one among many.",
    "accepted: at most a quarter of a time, at most two points below the whole model. Alone, some half a "
    "millisecond of a text is spent beside the layers, which no student saves.",
]


def _search(name: str, options: argparse.Namespace) -> dict[str, Any]:
    from bertsmith.compression.shrinking.shrink import shrink

    count = options.texts if name == "conll" else 0
    folder = KEPT / f"{name}-{options.rows or 'all'}-{count}"
    folder.mkdir(parents=True, exist_ok=True)
    task, files = _files(name, options.rows, folder)
    test = find("conll2003/iob2_test.txt") if name == "conll" else find("banking77/test.csv")
    if not (folder / "whole" / "model").exists():
        finetune_in(folder / "whole", task, options.model_settings, **files)
    shrink(
        str(folder / "whole" / "model"),
        *options.settings,
        test=_in_columns(name, test, folder),
        texts=_sentences(count, folder),
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
        _write(folder / f"{part}.csv", some)
    return "classification", {part: str(folder / f"{part}.csv") for part in parts}


def _write(path: Path, rows: Sequence[tuple[str, str]]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([("text", "label"), *rows])


def _in_columns(name: str, test: Path, folder: Path) -> Path:
    """banking77's columns have other names than those of the parts made here."""
    if name == "conll":
        return test
    made = folder / "test.csv"
    with test.open(encoding="utf-8") as file:
        _write(made, [(row["text"], row["category"]) for row in csv.DictReader(file)])
    return made


def _sentences(count: int, folder: Path) -> list[Path]:
    """A file of so many sentences of Wikipedia, or none."""
    from bertsmith.compression.static_learning import sample_sentences

    if not count:
        return []
    made = folder / "wikipedia.txt"
    if not made.exists():
        articles = find("wikipedia_2014/PROVENANCE.txt").parent / "AA"
        sentences = "\n".join(sample_sentences([str(articles)], count)) + "\n"
        made.write_text(sentences, encoding="utf-8")
    return [made]


def _on_test(name: str, found: dict[str, Any]) -> str:
    test = found["test"]
    return (
        f"{name}, test of {test['rows']:,} rows: the model itself {test['whole']:.4f}, the chosen "
        f"{test['chosen']:.4f}."
    )


def _rows(name: str, found: dict[str, Any]) -> list[dict[str, str]]:
    whole = found["whole"]
    return [
        {
            "data": f"{name}, {found['metric']}",
            "model": each["name"] + (" ←" if each["slug"] == found["chosen"] else ""),
            "score": _score(each),
            "of the whole": f"{each['score'] / whole['score']:.1%}",
            "time alone": f"{each['share_alone']:.2f}",
            "among many": f"{each['share']:.2f}",
            "parameters": f"{each['parameters'] / 1e6:.1f} M",
            "seconds": f"{each['seconds']:,.0f}",
            "accepted": _accepted(each, whole),
        }
        for each in (*found["tried"], whole)
    ]


def _score(each: dict[str, Any]) -> str:
    error = each["error"]
    return f"{each['score']:.4f}" + ("" if error is None else f" ± {1.96 * error:.4f}")


def _accepted(each: dict[str, Any], whole: dict[str, Any]) -> str:
    """By which of both times."""
    if each["score"] < whole["score"] - 0.02:
        return ""
    times = {"alone": each["share_alone"], "among many": each["share"]}
    return ", ".join(name for name, share in times.items() if share <= 0.25)


if __name__ == "__main__":
    main()
