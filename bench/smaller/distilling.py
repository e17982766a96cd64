"""Distillation of fine-tuned tasks: a student of half its teacher's layers beside that teacher, and beside
itself without one.
Last answer (2026-11-27, Xeon): 98.8, 98.1 and 98.2 % kept of STS-B, CoNLL-2003 and SST-2.

    python bench/smaller/distilling.py [--tasks sst2 stsb conll] [--seeds 3] [--rows N] [--layers 3]

    sst2    sentiment, accuracy         stsb    cosines of vectors, Spearman
    conll   names in sentences, F1

A seed has one teacher, `bertsmith finetune` on MiniLM with its defaults, and one `bertsmith distil` of it
with its defaults; scores are those of dev. `without` is the same student, the encoder's own layers, trained
on the labels alone. Times of a text are measured in turn with the teacher's, in the same process.

With --rows N the teacher and the labels are of N rows, and the others are learned from as texts without
labels, up to --texts. Runs are kept under runs/bench/distilling/, and an interrupted table goes on, as its
runs do; --again repeats them.
"""

import argparse
import itertools
import json
import math
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(1, str(Path(__file__).parents[1]))  # harness.py, and what else all folders share

from harness import report, serve
from labelled import (
    DATA_SETS,
    fewer,
    find,
    finetune_in,
    mean_and_error,
    quiet,
    run_folder,
    run_once,
    when_run,
)

TASKS = {"sst2": "classification", "stsb": "similarity", "conll": "tagging"}
_T95 = {2: 12.71, 3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571, 7: 2.447, 8: 2.365}  # by seeds, two-sided


def main() -> None:
    """Parses, and is either the parent or a worker."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tasks", nargs="+", choices=tuple(TASKS), default=list(TASKS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rows", type=int, help="labelled rows at most; CoNLL needs some 300 for every tag")
    parser.add_argument("--texts", type=int, default=20_000, help="other rows, read as texts, at most")
    parser.add_argument("--dev-rows", type=int)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--settings", nargs="*", default=[], help="of distil, as key=value")
    parser.add_argument("--again", action="store_true", help="repeat runs that are kept")
    parser.add_argument("--worker", choices=("distil",))
    options = parser.parse_args()
    if options.worker:
        serve(quiet(run_one))
        return
    answers: dict[str, list[dict[str, Any]]] = {}
    for seed, name in itertools.product(range(options.seeds), options.tasks):
        request = {"name": name, "seed": seed} | {
            each: getattr(options, each) for each in ("rows", "texts", "dev_rows", "layers", "settings")
        }
        answer = run_once(__file__, "distil", f"{name}-{options.layers}-{seed}", request, options.again)
        answers.setdefault(name, []).append(answer)
        _write(answers)


# -- the table -----------------------------------------------------------------------------------------------


def _write(answers: dict[str, list[dict[str, Any]]]) -> None:
    """What is known so far."""
    notes = [
        "Dev, the mean over seeds and its standard error; `gained` is the student's score less that of the "
        "same student without a teacher, seed by seed, with its 95 % interval by Student's t.",
        "Share of time: a text among many, and one that comes alone.",
        when_run(itertools.chain.from_iterable(answers.values())),
    ]
    report("distilling", "Students of fine-tuned tasks", [_row(*each) for each in answers.items()], notes)


def _row(name: str, found: Sequence[dict[str, Any]]) -> dict[str, str]:
    def mean(key: str) -> float:
        return statistics.mean(answer[key] for answer in found)

    gains = [answer["student"] - answer["without"] for answer in found]
    return {
        "data": f"{name}, {DATA_SETS[name].metrics[0]}",
        "rows and texts": f"{found[0]['train_rows']:,} + {found[0]['texts']:,}",
        "seeds": str(len(found)),
        **{
            who: mean_and_error([answer[who] for answer in found])
            for who in ("teacher", "student", "without")
        },
        "kept": f"{mean('student') / mean('teacher'):.1%}",
        "gained": f"{100 * statistics.mean(gains):+.2f} {_interval(gains)}",
        "agreement": f"{mean('agreement'):.4f}",
        "share of time": f"{mean('share'):.2f}, {mean('share_alone'):.2f}",
        "parameters": f"{found[0]['parameters'][1] / 1e6:.1f} M of {found[0]['parameters'][0] / 1e6:.1f} M",
        "seconds": f"{mean('seconds'):,.0f}",
    }


def _interval(gains: Sequence[float]) -> str:
    if len(gains) not in _T95:
        return ""
    half = _T95[len(gains)] * statistics.stdev(gains) / math.sqrt(len(gains))
    middle = statistics.mean(gains)
    return f"({100 * (middle - half):+.2f} to {100 * (middle + half):+.2f})"


# -- a run ---------------------------------------------------------------------------------------------------


def run_one(request: dict[str, Any]) -> dict[str, Any]:
    """A teacher and its student."""
    from bertsmith.compression.distilling.distil import distil_task

    name, seed, data = request["name"], request["seed"], DATA_SETS[request["name"]]
    with run_folder(__file__, "distil", request) as folder:
        train = fewer(data.train, request["rows"], folder, seed)
        dev = fewer(data.dev, request["dev_rows"], folder, seed)
        files = {"train": str(train), "dev": str(dev), **data.columns}
        finetune_in(folder / "teacher", TASKS[name], {}, seed=seed, **files)
        texts = [] if request["rows"] is None else [str(_others(data.train, train, request["texts"], folder))]
        out = folder / "student"
        distil_task(
            [str(folder / "teacher" / "model")],
            *request["settings"],
            out=str(out),
            texts=texts,
            layers=request["layers"],
            seed=seed,
            resume=(out / "recipe.toml").exists(),
            **files,
        )
        found = json.loads((out / "results.json").read_text())
    metric, saving = data.metrics[0], found["saving"]
    return {
        "name": name,
        "teacher": found["teacher"]["dev"][metric],
        "student": found["evaluations"]["dev"]["model"][metric],
        "without": found["without_teacher"]["dev"][metric],
        "agreement": found["agreement"]["dev"],
        "share": saving["share_of_time"],
        "share_alone": saving["share_of_time_alone"],
        "parameters": [saving[who]["parameters"] for who in ("teacher", "student")],
        "seconds": found["restarts"][0]["seconds"],
        "train_rows": found["train_rows"],
        "texts": found["texts"],
    }


def _others(name: str, train: Path, most: int, folder: Path) -> Path:
    """The rows of the file that are not in `train`, at most so many, in its own format: what is known of them
    is not looked at. A text of the labelled rows is left out by the distillation itself.
    """
    whole = find(name)
    end = "\n\n" if whole.suffix == ".txt" else "\n"
    rows = whole.read_text(encoding="utf-8-sig").strip("\n").split(end)
    known = set(train.read_text(encoding="utf-8-sig").strip("\n").split(end))
    head = rows[:1] if whole.suffix in (".tsv", ".csv") else []
    others = [row for row in rows[len(head) :] if row not in known][:most]
    made = folder / f"texts-{whole.name}"
    made.write_text(end.join([*head, *others]) + "\n")
    return made


if __name__ == "__main__":
    main()
