"""Labelled data of ../shared/data for the scripts of fine-tuning, and one run of ours on it, timed.

The data is not part of this repository; a script that doesn't find it says what it needs and ends.
"""

import contextlib
import hashlib
import itertools
import json
import random
import shutil
import statistics
import sys
import tomllib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from harness import Worker, end_without

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
        end_without(name)
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

    Tables of many runs take hours, and so go on where they were interrupted. What is kept counts where
    threads and torch are those that a run would have now.
    """
    import torch

    from bertsmith.files import write_json

    kept = _kept_file(script, name, request)
    conditions = {"request": request, "threads": torch.get_num_threads(), "torch": torch.__version__}
    if again:
        shutil.rmtree(_folder_of(script, side, request), ignore_errors=True)
    elif kept.exists():
        found: dict[str, Any] = json.loads(kept.read_text())
        if conditions.items() <= found.items():
            return found
    worker = Worker(script, side)
    answer = worker.ask(**request)
    worker.close()
    answer = conditions | {"date": datetime.now(UTC).strftime("%Y-%m-%d")} | answer
    kept.parent.mkdir(parents=True, exist_ok=True)
    write_json(kept, answer)
    return answer


def _kept_file(script: str, name: str, request: dict[str, Any]) -> Path:
    """Under its name, or beside a run of that name that was asked for otherwise, which stays."""
    usual = KEPT / Path(script).stem / f"{name}.json"
    if not usual.exists() or json.loads(usual.read_text())["request"] == request:
        return usual
    return usual.with_stem(f"{name}-{_digest(request)}")


@contextlib.contextmanager
def run_folder(script: str, side: str, request: dict[str, Any]) -> Iterator[Path]:
    """For a run and its files, the same for the same request: a run of hours goes on where it was
    interrupted. It goes away when the run is through.
    """
    folder = _folder_of(script, side, request)
    folder.mkdir(parents=True, exist_ok=True)
    yield folder
    shutil.rmtree(folder)


def _folder_of(script: str, side: str, request: dict[str, Any]) -> Path:
    return KEPT / Path(script).stem / f"{side}-{_digest(request)}"


def _digest(request: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(request, sort_keys=True).encode()).hexdigest()[:8]


def when_run(answers: Iterable[dict[str, Any]]) -> str:
    """A note for a table: 'Runs of 2026-11-21 to 2026-11-22, 1 thread each.'"""
    found = list(answers)
    dates, threads = sorted({answer["date"] for answer in found}), found[0]["threads"]
    days = dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}"
    return f"Runs of {days}, {threads} thread{'' if threads == 1 else 's'} each."


def finetune_in(
    out: Path, task: str, settings: dict[str, Any], model: str | None = None, **given: Any
) -> dict[str, Any]:
    """`bertsmith finetune` by Python, or the rest of it where it was interrupted in `out`; on MiniLM where no
    model is given. Settings have the command line's dotted names. Returns results.json.
    """
    from bertsmith.training.finetuning.finetune import finetune

    overrides = [f"{name}={json.dumps(value)}" for name, value in settings.items()]
    resume = (out / "recipe.toml").exists()
    finetune(task, *overrides, model=model or MODEL, out=str(out), resume=resume, **given)
    results: dict[str, Any] = json.loads((out / "results.json").read_text())
    return results


def train_ours(
    task: str,
    train: Path,
    dev: Path,
    out: Path,
    settings: dict[str, Any],
    seed: int,
    test: Path | None = None,
    look: Callable[[Path], Any] = lambda run: None,
) -> dict[str, Any]:
    """A run of ours in `out`.

    Returns the metrics on dev after every epoch, the seconds of all steps, the median of one, real tokens,
    the precision of products and what share of the weights was trained; results.json; and what `look` finds
    in the run's folder.
    """
    files = {"train": str(train), "dev": str(dev), "test": str(test) if test else None}
    results = finetune_in(out, task, settings, seed=seed, **files)
    recipe = tomllib.loads((out / "recipe.toml").read_text())
    return _timing(out / "restarts" / "1", recipe) | {"results": results, "found": look(out)}


def _timing(run: Path, recipe: dict[str, Any]) -> dict[str, Any]:
    """From the log. What stands between two steps is left out: evaluations, checkpoints, and the start of a
    process that went on with the run.
    """
    from bertsmith.training.log import RunLog, task_metrics

    records = RunLog.read(run)
    epochs = [record for record in records if record["kind"] == "evaluation" and record["step"] > 0]
    seconds, tokens = [], 0
    for before, record in itertools.pairwise(records):
        if record["kind"] == "step":
            of_step = (record["tokens"] - tokens) / record["tokens_per_second"]
            between = before["kind"] != "step"
            seconds.append(of_step if between else record["elapsed"] - before["elapsed"])
            tokens = record["tokens"]
    return {
        "epochs": [task_metrics(record) for record in epochs],
        "seconds": sum(seconds),
        "step_seconds": statistics.median(seconds),
        "tokens": tokens,
        "asked": {
            "epochs": recipe["epochs"],
            "batch_size": recipe["batch_size"],
            "learning_rate": recipe["optimizer"]["learning_rate"],
            **recipe["settings"],
        },
        "precision": records[0]["machine"]["precision"],
        "trained": records[0]["machine"].get("trained", "100.0% trained").removesuffix(" trained"),
    }


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
