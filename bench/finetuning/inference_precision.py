"""What int16 products change of a fine-tuned model's predictions, beside float32's: the default's gate.
Last answer (2026-11-26, Xeon): no label of 8,186, 4 of 46,435 tags.

    python bench/finetuning/inference_precision.py [--rows 2000] [--data sst2 ...]

MiniLM is fine-tuned for an epoch on so many rows of five data sets, and predicts all of test twice.
A row of the table: how many labels (tags of words, for conll) differ, the largest and the mean change of a
probability (of the number, for stsb), and the main metric of both.
"""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

sys.path.insert(1, str(Path(__file__).parents[1]))  # harness.py, and what else all folders share

from cutting import cut
from few_rows import DATA
from harness import report
from labelled import MODEL, find

_SETS = ("sst2", "banking77", "conll", "stsb", "reuters")


def main() -> None:
    """Parses, trains and compares one data set after the other."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", type=int, default=2000, help="of train")
    parser.add_argument("--data", nargs="+", choices=_SETS, default=list(_SETS))
    options = parser.parse_args()
    rows = []
    for name in options.data:
        with TemporaryDirectory() as folder:
            rows.append({"data": name} | _compare(name, options.rows, Path(folder)))
        report("inference-precision", "int16 products beside float32's", rows)


def _compare(name: str, rows: int, folder: Path) -> dict[str, Any]:
    from bertsmith.inference.predictor import Predictor
    from bertsmith.tasks.task import reading_columns
    from bertsmith.training.finetuning.finetune import finetune

    data = DATA[name]
    whole, test = find(data.train), find(data.test)
    train = cut(whole, folder / f"train{whole.suffix}", rows, seed=0)
    columns = {key: value for key, value in data.columns.items() if key != "label"}
    given = data.columns | {"epochs": 1, "method": "full"}
    changes = [f"{key}={value}" for key, value in given.items()]
    run = finetune(data.task, *changes, model=MODEL, train=str(train), out=str(folder / "run"))
    kinds = {"float32": torch.float32, "default": None}
    loaded = {kind: Predictor.load(run.model, compute_dtype=precision) for kind, precision in kinds.items()}
    exact, usual = (
        each.predict([_input(example) for example in reading_columns(each.task, columns).read(test)])
        for each in loaded.values()
    )
    labels = [(a, b) for one, other in zip(exact, usual, strict=True) for a, b in _labels(one, other)]
    numbers = np.array(
        [pair for one, other in zip(exact, usual, strict=True) for pair in _numbers(one, other)]
    )
    change = np.abs(numbers[:, 0] - numbers[:, 1])
    scores = {kind: each.evaluate(test).model[data.metric] for kind, each in loaded.items()}
    return {
        "answers": f"{len(labels):,}" if labels else f"{len(exact):,}",
        "differ": sum(a != b for a, b in labels) if labels else "–",
        "largest change": f"{change.max():.1e}",
        "mean change": f"{change.mean():.1e}",
        "metric": data.metric,
        **{kind: f"{score:.4f}" for kind, score in scores.items()},
    }


def _input(example: Any) -> Any:
    if hasattr(example, "words"):
        return list(example.words)
    return example.text if example.text_pair is None else (example.text, example.text_pair)


def _labels(one: Any, other: Any) -> Iterator[tuple[Any, Any]]:
    if "tags" in one:
        yield from zip(one["tags"], other["tags"], strict=True)
    elif "labels" in one:
        yield one["labels"], other["labels"]
    elif "label" in one:
        yield one["label"], other["label"]


def _numbers(one: Any, other: Any) -> Iterator[tuple[float, float]]:
    """Probabilities, or the number itself."""
    if "probabilities" not in one:
        found = one.get("score", one.get("confidence"))
        also = other.get("score", other.get("confidence"))
        yield from zip(np.atleast_1d(found), np.atleast_1d(also), strict=True)
        return
    found = one["probabilities"]
    if isinstance(found, dict):
        yield from ((found[label], other["probabilities"][label]) for label in found)


if __name__ == "__main__":
    main()
