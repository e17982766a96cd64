"""What int16 and int8 products change of a fine-tuned model's predictions, beside float32's.
Last answer (2026-11-26, Xeon): by int16, the default, no label of 8,186, 4 of 46,435 tags.

    python bench/finetuning/inference_precision.py [--rows 2000] [--data sst2 ...]

MiniLM is fine-tuned for an epoch on so many rows of five data sets, and predicts all of test in each.
A row of the table: how many labels (tags of words, for conll) differ, the largest and the mean change of a
probability (of the number, for stsb), the main metric of both, and for int8 the products that stay in int16.
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
            rows += [{"data": name} | row for row in _compare(name, options.rows, Path(folder))]
        report("inference-precision", "int16 and int8 products beside float32's", rows)


def _compare(name: str, rows: int, folder: Path) -> Iterator[dict[str, Any]]:
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
    kinds = torch.float32, torch.int16, torch.int8
    predictors = [Predictor.load(run.model, compute_dtype=precision) for precision in kinds]
    exact, *rounded = (
        predictor.predict(
            [_input(example) for example in reading_columns(predictor.task, columns).read(test)]
        )
        for predictor in predictors
    )
    scores = [predictor.evaluate(test).model[data.metric] for predictor in predictors]
    for predictor, answers, score in zip(predictors[1:], rounded, scores[1:], strict=True):
        choice = predictor.model.encoder.int8_choice
        yield {
            "products": "int16" if choice is None else "int8",
            **_changes(exact, answers),
            "metric": data.metric,
            "float32": f"{scores[0]:.4f}",
            "rounded": f"{score:.4f}",
            "in int16": "all" if choice is None else f"{len(choice.in_int16)} of {choice.products}",
            "cosine": "" if choice is None else f"{choice.cosine:.4f}",
        }


def _changes(exact: list[Any], answers: list[Any]) -> dict[str, Any]:
    labels = [(a, b) for one, other in zip(exact, answers, strict=True) for a, b in _labels(one, other)]
    numbers = np.array(
        [pair for one, other in zip(exact, answers, strict=True) for pair in _numbers(one, other)]
    )
    change = np.abs(numbers[:, 0] - numbers[:, 1])
    return {
        "answers": f"{len(labels):,}" if labels else f"{len(exact):,}",
        "differ": sum(a != b for a, b in labels) if labels else "–",
        "largest change": f"{change.max():.1e}",
        "mean change": f"{change.mean():.1e}",
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
