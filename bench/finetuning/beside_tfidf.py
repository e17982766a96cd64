"""Intents and topics beside TF-IDF and logistic regression, which need no BERT.
Last answer (2026-11-22, Zen 3): banking77 92.8 against 88.6, Reuters 82.3 against 78.8.

    python bench/finetuning/beside_tfidf.py [--data banking77 reuters] [--rows N] [--test-rows N]

    banking77   77 intents of bank customers, one a sentence
    reuters     114 topics of news, several a text or none; the title and the text's beginning

Each run is `bertsmith finetune` on the MiniLM weights. A tenth of the training rows is held out to choose the
epoch, the temperature and the thresholds by; test is looked at once. Runs are kept under
runs/bench/beside_tfidf/; --again repeats them.
"""

import argparse
import sys
from pathlib import Path
from typing import Any

sys.path.insert(1, str(Path(__file__).parents[1]))  # harness.py, and what else all folders share

from harness import report, serve
from labelled import fewer, finetune_in, quiet, run_folder, run_once, when_run

_ALWAYS = {"optimizer.weight_decay": 0.01, "optimizer.warmup": 0.1}
_RUNS: dict[str, dict[str, Any]] = {
    "banking77": {
        "task": "classification",
        "files": {"train": "banking77/train.csv", "test": "banking77/test.csv"},
        "settings": {"label": "category", "epochs": 8, "batch_size": 32, "optimizer.learning_rate": 3e-4},
    },
    "reuters": {
        "task": "multi-label",
        "files": {"train": "reuters/train.jsonl", "test": "reuters/test.jsonl"},
        "settings": {
            "text": "title",
            "text_pair": "text",
            "label": "topics",
            "max_length": 128,
            "epochs": 4,
            "batch_size": 32,
            "optimizer.learning_rate": 3e-4,
        },
    },
}


def main() -> None:
    """Parses, and is either the parent or a worker."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", nargs="+", choices=tuple(_RUNS), default=list(_RUNS))
    parser.add_argument("--rows", type=int, help="training rows at most, for a quick look")
    parser.add_argument("--test-rows", type=int)
    parser.add_argument("--again", action="store_true", help="repeat runs that are kept")
    parser.add_argument("--worker", choices=("ours",))
    options = parser.parse_args()
    if options.worker:
        serve(quiet(_train))
        return
    rows, notes, answers = [], [], []
    for name in options.data:
        request = {"name": name, "rows": options.rows, "test_rows": options.test_rows}
        request["settings"] = _ALWAYS | _RUNS[name]["settings"]
        results = run_once(__file__, "ours", name, request, options.again)
        answers.append(results)
        rows += _rows(name, results)
        notes.append(_note(name, results))
    report("beside-tfidf", "Beside TF-IDF and logistic regression", rows, [*notes, when_run(answers)])


def _rows(name: str, results: dict[str, Any]) -> list[dict[str, Any]]:
    """The model and each baseline, on test."""
    side = results["evaluations"]["test"]
    return [
        {
            "data": name,
            "trained on": f"{results['train_rows']:,}",
            "measured on": f"{side['rows']:,}",
            "by": by,
            "results": ", ".join(f"{metric} {value:.2%}" for metric, value in metrics.items()),
        }
        for by, metrics in [("bertsmith", side["model"]), *side["baselines"].items()]
    ]


def _note(name: str, results: dict[str, Any]) -> str:
    seconds = results["restarts"][0]["seconds"]
    settings = ", ".join(
        f"{key.removeprefix('optimizer.')} {value}" for key, value in results["asked"].items()
    )
    return f"{name}: {settings}; {seconds:,.0f} s of training."


def _train(request: dict[str, Any]) -> dict[str, Any]:
    """results.json of one run, and the settings it was asked for."""
    run, settings = _RUNS[request["name"]], request["settings"]
    limits = {"train": request["rows"], "test": request["test_rows"]}
    with run_folder(__file__, "ours", request) as folder:
        files = {which: str(fewer(name, limits[which], folder)) for which, name in run["files"].items()}
        return finetune_in(folder / "run", run["task"], settings, **files) | {"asked": settings}


if __name__ == "__main__":
    main()
