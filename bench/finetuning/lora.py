"""Full fine-tuning, LoRA, frozen layers: dev score, share of the weights trained, seconds a step.
Last answer (2026-11-22, Zen 3): LoRA has 104 % and 98 % of the gain over the head, in 0.79 and 0.75 of a
step.

    python bench/finetuning/lora.py [--tasks sst2 conll] [--seeds 2] [--rows 5000]

Both are cut to --rows training sentences, so that there is something to gain from training well. Every row
starts from the MiniLM weights with the same seed, batches and epochs; the rates are each one's own, for LoRA
wants a higher one (Hu et al. 2021, appendix D). Runs are kept under runs/bench/lora/; --again repeats them.
"""

import argparse
import itertools
import statistics
import sys
from pathlib import Path
from typing import Any

sys.path.insert(1, str(Path(__file__).parents[1]))  # harness.py, and what else all folders share

from harness import report, serve
from labelled import DATA_SETS, fewer, mean_and_error, quiet, run_folder, run_once, train_ours, when_run

_TASKS: dict[str, dict[str, Any]] = {
    "sst2": {"epochs": 3, "batch_size": 32},
    "conll": {"epochs": 3, "batch_size": 16},
}
_EVERY_MODULE = ["query", "key", "value", "attention_output", "feed_forward_up", "feed_forward_down"]
_ROWS: dict[str, dict[str, Any]] = {
    "everything": {"optimizer.learning_rate": 1e-4},
    "LoRA, rank 8": {"optimizer.learning_rate": 1e-3, "lora.rank": 8, "lora.targets": _EVERY_MODULE},
    "the top 3 layers": {"optimizer.learning_rate": 1e-4, "freeze_layers": 3},
    "pooler and head": {"optimizer.learning_rate": 1e-3, "freeze_layers": 6},
}
_FULL, _LEAST = "everything", "pooler and head"


def main() -> None:
    """Parses, and is either the parent or a worker."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tasks", nargs="+", choices=tuple(_TASKS), default=list(_TASKS))
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--rows", type=int, default=5000, help="training rows at most, of each data set")
    parser.add_argument("--dev-rows", type=int)
    parser.add_argument("--epochs", type=float, help="instead of each task's own")
    parser.add_argument("--again", action="store_true", help="repeat runs that are kept")
    parser.add_argument("--worker", choices=("ours",))
    options = parser.parse_args()
    if options.worker:
        serve(quiet(_train))
    else:
        _table(options)


def _table(options: argparse.Namespace) -> None:
    runs: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for name, seed, row in itertools.product(options.tasks, range(options.seeds), _ROWS):
        request = {
            "name": name,
            "seed": seed,
            "rows": options.rows,
            "dev_rows": options.dev_rows,
            "settings": _settings(name, row, options.epochs),
        }
        place = f"{name}-{row.replace(',', '').replace(' ', '-')}-{seed}"
        answer = run_once(__file__, "ours", place, request, options.again)
        runs.setdefault(name, {}).setdefault(row, []).append(answer)
    rows = [_row(name, row, of_task) for name, of_task in runs.items() for row in of_task]
    notes = [
        "Last epoch, mean over seeds and its standard error, in percent. The gain is what a row has above "
        "the most frequent answer, or above pooler and head alone, in percent of what training all has.",
        "ms a step: the median of all steps of a run, the median over seeds. "
        + when_run(answer for of_task in runs.values() for answers in of_task.values() for answer in answers),
        *(f"{name}, {row}: {_settings(name, row, options.epochs)}" for name in runs for row in runs[name]),
    ]
    report("lora", "LoRA and frozen layers", rows, notes)


def _settings(name: str, row: str, epochs: float | None) -> dict[str, Any]:
    return _TASKS[name] | _ROWS[row] | ({} if epochs is None else {"epochs": epochs})


def _row(name: str, row: str, of_task: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    metric = DATA_SETS[name].metrics[0]
    scores = {each: [a["epochs"][-1][metric] for a in answers] for each, answers in of_task.items()}
    mean = {each: statistics.mean(values) for each, values in scores.items()}
    seconds = {each: _step_seconds(answers) for each, answers in of_task.items()}
    majority = of_task[row][0]["majority"]
    return {
        "data": name,
        "trained": row,
        "seeds": len(scores[row]),
        "share of the weights": of_task[row][0]["trained"],
        "metric": metric,
        "result": mean_and_error(scores[row]),
        "gain over the most frequent": _share(mean[row] - majority, mean[_FULL] - majority),
        "gain over pooler and head": _share(mean[row] - mean[_LEAST], mean[_FULL] - mean[_LEAST]),
        "ms a step": f"{seconds[row] * 1000:.0f}",
        "of a full step": f"{seconds[row] / seconds[_FULL]:.2f}",
    }


def _step_seconds(answers: list[dict[str, Any]]) -> float:
    return statistics.median(answer["step_seconds"] for answer in answers)


def _share(part: float, whole: float) -> str:
    return f"{part / whole:.0%}" if whole > 0 else "–"


def _train(request: dict[str, Any]) -> dict[str, Any]:
    data = DATA_SETS[request["name"]]
    with run_folder(__file__, "ours", request) as folder:
        train = fewer(data.train, request["rows"], folder)
        dev = fewer(data.dev, request["dev_rows"], folder)
        settings = data.columns | request["settings"]
        answer = train_ours(data.task, train, dev, folder / "run", settings, request["seed"])
    baselines = answer.pop("results")["evaluations"]["dev"]["baselines"]
    del answer["found"]
    return answer | {"majority": next(iter(baselines.values()))[data.metrics[0]]}


if __name__ == "__main__":
    main()
