"""Labelled data of ../shared/data for the scripts of fine-tuning, and one run of ours on it, timed.

The data is not part of this repository; a script that doesn't find it says what it needs and ends.
"""

import contextlib
import itertools
import json
import random
import statistics
import sys
import tempfile
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness import Worker

DATA = Path(__file__).parents[2] / "shared" / "data"
KEPT = Path(__file__).parents[1] / "runs" / "bench"
MODEL = "minilm"


@dataclass(frozen=True)
class Labelled:
    """One data set: the task it is for, its files below ../shared/data, its columns, its metrics."""

    task: str
    train: str
    dev: str
    metrics: tuple[str, ...]  # what is compared first, then what is stated beside it
    columns: dict[str, Any] = field(default_factory=dict)


DATA_SETS = {
    "sst2": Labelled(
        "classification",
        "sst2/train.tsv",
        "sst2/dev.tsv",
        ("accuracy",),
        {"text": "sentence", "label": "label"},
    ),
    "stsb": Labelled(
        "regression",
        "stsb/sts-train.csv",
        "stsb/sts-dev.csv",
        ("spearman", "pearson"),
        {"text": 6, "text_pair": 7, "label": 5, "header": False, "format": "tsv"},
    ),
    "mrpc": Labelled(
        "classification",
        "glue_mrpc/msr-para-train.tsv",
        "glue_mrpc/msr-para-val.tsv",
        ("accuracy", "f1"),
        {"text": "#1 String", "text_pair": "#2 String", "label": "Quality"},
    ),
    "conll": Labelled("tagging", "conll2003/iob2_train.txt", "conll2003/iob2_valid.txt", ("f1",)),
}


def find(name: str) -> Path:
    """A file below ../shared/data, or the end of the script with a sentence."""
    path = DATA / name
    if not path.is_file():
        raise SystemExit(f"This needs ../shared/data/{name} beside the repository, which is not there.")
    return path


def fewer(name: str, rows: int | None, folder: Path, seed: int = 0) -> Path:
    """The file itself, or a copy in `folder` with `rows` of its rows, drawn by the seed, in their order.

    A row is a line, a sentence of CoNLL's files, a question of SQuAD's. The header stays.
    """
    path = find(name)
    if rows is None:
        return path
    made = folder / f"{rows}-{path.name}"
    if path.suffix == ".json":
        made.write_text(json.dumps(fewer_questions(json.loads(path.read_text()), rows, seed)))
        return made
    end = "\n\n" if path.suffix == ".txt" else "\n"
    first, *rest = path.read_text(encoding="utf-8-sig").strip("\n").split(end)
    head = [first] if path.suffix in (".tsv", ".csv") else []
    rest = rest if head else [first, *rest]
    chosen = sorted(random.Random(seed).sample(range(len(rest)), min(rows, len(rest))))
    made.write_text(end.join([*head, *(rest[number] for number in chosen)]) + "\n")
    return made


def fewer_questions(squad: dict[str, Any], rows: int, seed: int = 0) -> dict[str, Any]:
    """SQuAD's JSON with `rows` of its questions."""
    ids = [row["id"] for a in squad["data"] for p in a["paragraphs"] for row in p["qas"]]
    kept = set(random.Random(seed).sample(ids, min(rows, len(ids))))
    for article in squad["data"]:
        for paragraph in article["paragraphs"]:
            paragraph["qas"] = [row for row in paragraph["qas"] if row["id"] in kept]
        article["paragraphs"] = [each for each in article["paragraphs"] if each["qas"]]
    return squad | {"data": [article for article in squad["data"] if article["paragraphs"]]}


def run_once(script: str, side: str, name: str, request: dict[str, Any], again: bool) -> dict[str, Any]:
    """A worker's answer to one request, in a process of its own; or what was kept of the same run.

    Tables of many runs take hours, and so go on where they were interrupted.
    """
    kept = KEPT / Path(script).stem / f"{name}.json"
    if kept.exists() and not again:
        found: dict[str, Any] = json.loads(kept.read_text())
        if found["request"] == request:
            return found
    worker = Worker(script, side)
    answer = {"request": request} | worker.ask(**request)
    worker.close()
    kept.parent.mkdir(parents=True, exist_ok=True)
    kept.write_text(json.dumps(answer, indent=1) + "\n")
    return answer


def train_ours(
    task: str,
    train: Path,
    dev: Path,
    settings: dict[str, Any],
    seed: int,
    test: Path | None = None,
    look: Callable[[Path], Any] = lambda run: None,
) -> dict[str, Any]:
    """`bertsmith finetune` by Python. Settings have the command line's dotted names.

    Returns the metrics on dev after every epoch, the seconds of all steps, the median of one, real tokens
    and what share of the weights was trained; results.json; and what `look` finds in the run's folder.
    """
    from bertsmith.training.finetuning.finetune import finetune

    overrides = [f"{name}={json.dumps(value)}" for name, value in settings.items()]
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        finetune(
            task,
            *overrides,
            model=MODEL,
            train=str(train),
            dev=str(dev),
            test=str(test) if test else None,
            out=str(out),
            seed=seed,
        )
        results = json.loads((out / "results.json").read_text())
        recipe = tomllib.loads((out / "recipe.toml").read_text())
        return _timing(out / "restarts" / "1", recipe) | {"results": results, "found": look(out)}


def _timing(run: Path, recipe: dict[str, Any]) -> dict[str, Any]:
    """From the log. Evaluations and checkpoints, which stand between two steps, are left out."""
    from bertsmith.training.log import RunLog, task_metrics

    records = RunLog.read(run)
    seconds, tokens = [], 0
    for before, record in itertools.pairwise(records):
        if record["kind"] == "step":
            of_step = (record["tokens"] - tokens) / record["tokens_per_second"]
            between = before["kind"] != "step"
            seconds.append(of_step if between else record["elapsed"] - before["elapsed"])
            tokens = record["tokens"]
    return {
        "epochs": [task_metrics(record) for record in records if record["kind"] == "evaluation"],
        "seconds": sum(seconds),
        "step_seconds": statistics.median(seconds),
        "tokens": tokens,
        "asked": {
            "epochs": recipe["epochs"],
            "batch_size": recipe["batch_size"],
            "learning_rate": recipe["optimizer"]["learning_rate"],
            **recipe["settings"],
        },
        "trained": records[0]["machine"].get("trained", "100.0% trained").removesuffix(" trained"),
    }


def part(rows: int | None, dev_rows: int | None) -> str:
    """A quick look at a part of the data has another name than the table, and so leaves it alone."""
    return "" if rows is None and dev_rows is None else "-part"


def asked_rows(rows: int | None, dev_rows: int | None) -> str:
    """The same for the command."""
    given = {"--rows": rows, "--dev-rows": dev_rows}
    return "".join(f" {name} {value}" for name, value in given.items() if value is not None)


def mean_and_error(values: Sequence[float], scale: float = 100) -> str:
    """'88.99 ± 0.21': the mean, and its standard error where there are several values."""
    mean = f"{scale * statistics.mean(values):.2f}"
    if len(values) == 1:
        return mean
    return f"{mean} ± {scale * statistics.stdev(values) / len(values) ** 0.5:.2f}"


def quiet(answer: Callable[[dict[str, Any]], dict[str, Any]]) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """A worker's answers alone go to its standard output, where some libraries print."""

    def answered(request: dict[str, Any]) -> dict[str, Any]:
        with contextlib.redirect_stdout(sys.stderr):
            return answer(request)

    return answered
