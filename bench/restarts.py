"""Many restarts on few labelled rows: how many give a majority answer?

    python bench/restarts.py [--data sst2 rte] [--size 16] [--restarts 100] [--measured-rows 500]

Rows of each class are drawn as in few_rows.py, `bertsmith finetune restarts=…` trains that many seeds on them
with its defaults, and rows of test are their dev. A restart is degenerate where it does no better there than
always giving the most frequent answer: by the weights that it kept, which may be those of the linear start,
and by those of its last step. An interrupted run goes on; --again repeats those that are kept.
"""

import argparse
import json
from pathlib import Path
from statistics import mean
from typing import Any

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
    majority, kept, last = (answer[each] for each in ("majority", "kept", "last"))
    return {
        "data": answer["request"]["name"],
        "trained on": f"{answer['train_rows']:,}",
        "restarts": f"{len(kept):,}",
        "majority": f"{majority:.2%}",
        "degenerate": f"{_degenerate(kept, majority)}",
        "accuracy": mean_and_error(kept),
        "worst": f"{min(kept):.2%}",
        "degenerate at the last step": f"{_degenerate(last, majority)}",
        "accuracy there": mean_and_error(last),
        "worst there": f"{min(last):.2%}",
        "seconds each": f"{mean(answer['seconds']):.1f}",
    }


def _degenerate(scores: list[float], majority: float) -> int:
    return sum(score <= majority + 1e-6 for score in scores)


def train_restarts(request: dict[str, Any]) -> dict[str, Any]:
    """The score of each seed by the weights kept and by the last ones, and the most frequent answer's."""
    data = DATA[request["name"]]
    with run_folder(__file__, "ours", request) as folder:
        files, out = draw_rows(request, folder), folder / "run"
        given = {"train": files["train"], "dev": files["test"]}
        results = finetune_in(out, data.task, {"restarts": request["restarts"]}, **given)
        last = [_last_score(out / "restarts" / str(n + 1)) for n in range(request["restarts"])]
    (dev,) = results["evaluations"].values()
    return {
        "kept": [each["score"] for each in results["restarts"]],
        "last": last,
        "majority": next(iter(dev["baselines"].values()))[data.metric],
        "seconds": [each["seconds"] for each in results["restarts"]],
        "train_rows": results["train_rows"],
    }


def _last_score(restart: Path) -> float:
    history = json.loads((restart / "best" / "history.json").read_text())["history"]
    return float(history[-1][1])


if __name__ == "__main__":
    main()
