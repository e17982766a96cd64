"""Many restarts on few labelled rows: how many give a majority answer?
Last answer (2026-11-27, Zen 4): none of 200.

    python bench/finetuning/restarts.py [--data sst2 rte] [--size 16] [--restarts 100] [--measured-rows 500]

Rows of each class are drawn as in few_rows.py, `bertsmith finetune restarts=…` trains that many seeds on them
with its defaults, and rows of test are their dev. A restart is degenerate where it always gives one answer
there, whose Matthews correlation is 0: by the weights that it kept, which may be those of the linear start,
and by those of its last step. An interrupted run goes on; --again repeats those that are kept.
"""

import argparse
import sys
from pathlib import Path
from statistics import mean
from typing import Any

sys.path.insert(1, str(Path(__file__).parents[1]))  # harness.py, and what else all folders share

from few_rows import DATA, draw_rows
from harness import report, serve
from labelled import finetune_in, mean_and_error, quiet, run_folder, run_once, when_run

CLASSES = [name for name, data in DATA.items() if data.task == "classification"]


def main() -> None:
    """Parses, and is either the parent or a worker."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", nargs="+", choices=CLASSES, default=["sst2", "rte"])
    parser.add_argument("--size", default="16", help="rows a class")
    parser.add_argument("--restarts", type=int, default=100)
    parser.add_argument("--measured-rows", type=int, default=500, help="of test, at most")
    parser.add_argument("--again", action="store_true", help="repeat runs that are kept")
    parser.add_argument("--worker", choices=("ours",))
    options = parser.parse_args()
    if options.worker:
        serve(quiet(train_restarts))
        return
    answers = []
    for name in options.data:
        request = {"name": name, "size": options.size, "draw": 0, "restarts": options.restarts}
        request |= {"measured_rows": options.measured_rows}
        answers.append(run_once(__file__, "ours", f"{name}-{options.size}", request, options.again))
        rows = [_row(answer) for answer in answers]
        report("restarts", "Restarts on few rows", rows, [when_run(answers)])


def _row(answer: dict[str, Any]) -> dict[str, str]:
    kept, last = ([one["accuracy"] for one in answer[each]] for each in ("kept", "last"))
    return {
        "data": answer["request"]["name"],
        "trained on": f"{answer['train_rows']:,}",
        "restarts": f"{len(kept):,}",
        "majority": f"{answer['majority']:.2%}",
        "degenerate": f"{_degenerate(answer['kept'])}",
        "accuracy": mean_and_error(kept),
        "worst": f"{min(kept):.2%}",
        "degenerate at the last step": f"{_degenerate(answer['last'])}",
        "accuracy there": mean_and_error(last),
        "worst there": f"{min(last):.2%}",
        "seconds each": f"{mean(answer['seconds']):.1f}",
    }


def _degenerate(restarts: list[dict[str, float]]) -> int:
    return sum(each["matthews"] == 0 for each in restarts)


def train_restarts(request: dict[str, Any]) -> dict[str, Any]:
    """What each seed has by the weights kept and by the last ones, and the most frequent answer's score."""
    from bertsmith.training.log import RunLog

    data = DATA[request["name"]]
    with run_folder(__file__, "ours", request) as folder:
        files, out = draw_rows(request, folder), folder / "run"
        given = {"train": files["train"], "dev": files["test"]}
        results = finetune_in(out, data.task, {"restarts": request["restarts"]}, **given)
        logs = [RunLog.read(out / "restarts" / str(n + 1)) for n in range(request["restarts"])]
    (dev,) = results["evaluations"].values()
    return {
        "kept": [_measured(log, each["step"]) for log, each in zip(logs, results["restarts"], strict=True)],
        "last": [_measured(log, each["steps"]) for log, each in zip(logs, results["restarts"], strict=True)],
        "majority": next(iter(dev["baselines"].values()))[data.metric],
        "seconds": [each["seconds"] for each in results["restarts"]],
        "train_rows": results["train_rows"],
    }


def _measured(log: list[dict[str, Any]], step: int) -> dict[str, float]:
    (found,) = (each for each in log if each["kind"] == "evaluation" and each["step"] == step)
    return {name: found[name] for name in ("accuracy", "matthews")}


if __name__ == "__main__":
    main()
