"""`bertsmith suggest` on banking77: planted wrong labels found, and rows it chooses beside random ones.
Last answers (2026-11-27, Zen 4; 2026-11-26, Xeon): 500 rows 83.0, by chance 78.5; 90.2 % of wrong labels
found.

    python bench/finetuning/suggesting.py [--share 0.05] [--pool 3000] [--rounds 4] [--count 100] [--draws 3]

Wrong labels: that share of the 10,003 training rows gets another label by chance; how many of them are among
as many rows at the head of labels.csv? Choice: from --pool rows, 100 of which have a label, --rounds times
--count are labelled, as `suggest` chooses or by chance; after each a linear model of MiniLM's frozen features
learns from all that are labelled, and is measured on the whole test file.
"""

import argparse
import csv
import random
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(1, str(Path(__file__).parents[1]))  # harness.py, and what else all folders share

from harness import report
from labelled import MODEL, find, mean_and_error

_BEGIN_WITH = 100

Row = tuple[str, str]  # text and label


def main() -> None:
    """Parses, and measures both."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--share", type=float, default=0.05)
    parser.add_argument("--pool", type=int, default=3000)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--draws", type=int, default=3)
    parser.add_argument("--rows", type=int, help="of train at most, for a quick look")
    parser.add_argument("--measured-rows", type=int, help="of test at most")
    parser.add_argument("--only", choices=("labels", "rows"))
    options = parser.parse_args()
    train, test = _read("banking77/train.csv"), _read("banking77/test.csv")[: options.measured_rows]
    random.Random(0).shuffle(train)
    train = train[: options.rows]
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        if options.only != "rows":
            rows.append(_planted(train, options.share, Path(folder)))
            report("suggesting", "What to label next", rows)
        if options.only != "labels":
            rows += _active(train, test, options, Path(folder))
    report(
        "suggesting",
        "What to label next",
        rows,
        ["Accuracy on test in percent: the mean over draws, ± its error."],
    )


def _planted(train: Sequence[Row], share: float, folder: Path) -> dict[str, Any]:
    from bertsmith.inference.suggesting.suggest import suggest

    draw, labels = random.Random(0), sorted({label for _, label in train})
    wrong = set(draw.sample(range(len(train)), round(share * len(train))))
    rows = [
        (text, draw.choice([each for each in labels if each != label]) if number in wrong else label)
        for number, (text, label) in enumerate(train)
    ]
    found = suggest(MODEL, _write(folder / "planted.csv", rows))
    place = {f"{folder / 'planted.csv'}, line {number + 2}": number for number in range(len(rows))}
    first = [place[doubt.example.where] for doubt in found.doubts[: len(wrong)]]
    said = [place[doubt.example.where] for doubt in found.wrong]
    return {
        "what": f"{len(wrong):,} wrong labels among {len(rows):,}",
        "rows": f"the first {len(first):,}",
        "suggest": f"{len(wrong & set(first)) / len(wrong):.1%} of them there",
        "by chance": f"{share:.1%}",
        "doubted": f"{len(said):,}, of which {len(wrong & set(said)):,} planted",
    }


def _active(
    train: Sequence[Row], test: Sequence[Row], options: argparse.Namespace, folder: Path
) -> list[dict[str, Any]]:
    from bertsmith.inference.suggesting.suggest import suggest

    scores: dict[int, dict[str, list[float]]] = {}
    for number in range(options.draws):
        draw = random.Random(number)
        pool = draw.sample(list(train), min(options.pool, len(train)))
        for side in ("suggest", "by chance"):
            known = set(range(_BEGIN_WITH))
            for _ in range(options.rounds):
                if side == "suggest":
                    rows = [(text, label if row in known else "") for row, (text, label) in enumerate(pool)]
                    path = _write(folder / "mixed.csv", rows)
                    found = suggest(MODEL, path, count=options.count, seed=number)
                    place = {f"{path}, line {row + 2}": row for row in range(len(pool))}
                    known |= {place[each.example.where] for each in found.rows}
                else:
                    left = sorted(set(range(len(pool))) - known)
                    known |= set(draw.sample(left, options.count))
                score = _linear([pool[row] for row in sorted(known)], test)
                of_side = scores.setdefault(len(known), {}).setdefault(side, [])
                of_side.append(score)
    return [
        {"what": "banking77", "rows": f"{count:,} labelled", "doubted": ""}
        | {side: mean_and_error(found) for side, found in sides.items()}
        for count, sides in sorted(scores.items())
    ]


def _linear(train: Sequence[Row], test: Sequence[Row]) -> float:
    """What a linear model of the frozen features has on test: rows of unknown labels are missed."""
    import numpy as np

    from bertsmith.model.locate import locate_model
    from bertsmith.model.own_tokenizer import load_own_tokenizer
    from bertsmith.tasks.checkpoints.task_checkpoint import begin_task_model
    from bertsmith.tasks.classification import Classification, ClassificationSettings
    from bertsmith.tasks.examples.text_task import TextExample
    from bertsmith.tasks.finetuning import encode_examples
    from bertsmith.tasks.heads.linear_start import fit_linear_start
    from bertsmith.tasks.task_model import outputs_of

    folder = locate_model(MODEL).folder
    task = Classification(ClassificationSettings(pooling="mean"))
    learned = [TextExample(text, None, label, "") for text, label in train]
    task.fit(learned)
    model = begin_task_model(folder, task).model.eval()
    tokenizer = load_own_tokenizer(folder, model.config)
    start = fit_linear_start(task, model, encode_examples(task, learned, tokenizer))
    assert start is not None
    start.apply(model)
    asked = [TextExample(text, None, None, "") for text, _ in test]
    outputs = outputs_of(model, encode_examples(task, asked, tokenizer).encoded)
    guessed = np.array(task.labels)[np.stack(outputs).argmax(1)]
    return float((guessed == np.array([label for _, label in test])).mean())


def _read(name: str) -> list[Row]:
    with find(name).open(newline="", encoding="utf-8") as file:
        return [(row["text"], row["category"]) for row in csv.DictReader(file)]


def _write(path: Path, rows: Sequence[Row]) -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        # one line a row, so that a row is known again by its line
        csv.writer(file).writerows([("text", "label"), *((" ".join(t.split()), label) for t, label in rows)])
    return path


if __name__ == "__main__":
    main()
