"""Fine-tuning beside transformers' Trainer: dev results over seeds, and the time they took.
Last answer (2026-11-22, Zen 3): its settings give its scores; the defaults are above on three of four.

    python bench/finetuning/finetuning.py [--seeds 3] [--tasks sst2 stsb mrpc conll]
                               [--side ours crf recommended transformers]
    python bench/finetuning/finetuning.py --speed

Every side starts from the MiniLM weights and trains on the same files of ../shared/data, one process a run,
one run after the other:

    transformers   AutoModelFor… and Trainer as they come: padded to the longest of a batch, AdamW, weight
                   decay 0.01, warm-up over a tenth of the steps, then linear decay, at most 128 tokens
    ours           the same settings
    crf            the same settings with a CRF, for tags
    recommended    the defaults; for tags with a CRF

A finished run is kept under runs/bench/finetuning/, so that an interrupted table goes on, as a run of ours
does from its last checkpoint; --again repeats them. --rows and --dev-rows take a part of the data, to have a
quick look. --speed is finetuning_step.py.
"""

import argparse
import contextlib
import itertools
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(1, str(Path(__file__).parents[1]))  # harness.py, and what else all folders share

import finetuning_step
from harness import report, serve
from labelled import (
    DATA_SETS,
    Labelled,
    fewer,
    mean_and_error,
    quiet,
    run_folder,
    run_once,
    train_ours,
    when_run,
)

_MANY = 8  # seeds make a distribution
_SIDES = ("ours", "crf", "recommended", "transformers")

_ALWAYS = {"max_length": 128, "optimizer.weight_decay": 0.01, "optimizer.warmup": 0.1}
_REFERENCE: dict[str, dict[str, Any]] = {
    "sst2": {"epochs": 1, "optimizer.learning_rate": 5e-5, "batch_size": 32},
    "stsb": {"epochs": 4, "optimizer.learning_rate": 5e-5, "batch_size": 16},
    "mrpc": {"epochs": 3, "optimizer.learning_rate": 5e-5, "batch_size": 16},
    "conll": {"epochs": 2, "optimizer.learning_rate": 1e-4, "batch_size": 16},
}
# What `bertsmith finetune` does when nothing is asked for, but for what the documentation recommends: a CRF
# for names.
_RECOMMENDED: dict[str, dict[str, Any]] = {
    "sst2": {},
    "stsb": {},
    "mrpc": {},
    "conll": {"crf": True},
}


def main() -> None:
    """Parses, and is either the parent or a worker."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tasks", nargs="+", choices=tuple(DATA_SETS), default=list(DATA_SETS))
    parser.add_argument("--side", nargs="+", choices=_SIDES, default=list(_SIDES))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rows", type=int, help="training rows at most; CoNLL needs some 300 for every tag")
    parser.add_argument("--dev-rows", type=int)
    parser.add_argument("--again", action="store_true", help="repeat runs that are kept")
    parser.add_argument("--speed", action="store_true")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--worker", choices=tuple(_WORKERS))
    options = parser.parse_args()
    if options.worker:
        serve(quiet(_WORKERS[options.worker]()))
    elif options.speed:
        finetuning_step.compare(options.rounds, options.steps)
    else:
        _table(options)


# -- the table -------------------------------------------------------------------------------------------


def settings_of(side: str, name: str) -> dict[str, Any]:
    """What a side trains a data set by, under the command line's names."""
    if side == "recommended":
        return _RECOMMENDED[name]
    return _ALWAYS | _REFERENCE[name] | ({"crf": True} if side == "crf" else {})


def _table(options: argparse.Namespace) -> None:
    runs: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for name, seed in itertools.product(options.tasks, range(options.seeds)):
        for side in options.side:
            if side == "crf" and DATA_SETS[name].task != "tagging":
                continue
            runs.setdefault((name, side), []).append(_run(name, side, seed, options))
            _write(runs)


def _run(name: str, side: str, seed: int, options: argparse.Namespace) -> dict[str, Any]:
    """One run in a process of its own, or what is kept of it."""
    request = {
        "name": name,
        "seed": seed,
        "rows": options.rows,
        "dev_rows": options.dev_rows,
        "settings": settings_of(side, name),
    }
    worker = "transformers" if side == "transformers" else "ours"
    return run_once(__file__, worker, f"{name}-{side}-{seed}", request, options.again)


def _write(runs: dict[tuple[str, str], list[dict[str, Any]]]) -> None:
    rows = [_row(name, side, answers) for (name, side), answers in sorted(runs.items(), key=_in_order)]
    notes = [
        "Mean over seeds and its standard error, in percent. 'best epoch' is chosen by dev itself, and so "
        "flattered; 'last epoch' is what the settings give.",
        "Seconds: the median over seeds, from the first step to the last, evaluations left out. "
        + when_run(itertools.chain.from_iterable(runs.values())),
        *(f"{name}, {side}: {_plain(_asked(name, side, answers))}" for (name, side), answers in runs.items()),
        *(_spread(name, side, answers) for (name, side), answers in runs.items() if len(answers) >= _MANY),
    ]
    report("finetuning", "Fine-tuning beside transformers' Trainer", rows, notes)


def _spread(name: str, side: str, answers: list[dict[str, Any]]) -> str:
    """The distribution over seeds."""
    metric = DATA_SETS[name].metrics[0]
    scores = sorted(answer["epochs"][-1][metric] for answer in answers)
    majority = answers[0].get("majority", 0.0)
    return (
        f"{name}, {side}, {metric} of the last epoch over {len(scores)} seeds: "
        f"mean {statistics.mean(scores):.2%}, spread {statistics.stdev(scores):.2%}, "
        f"{sum(score <= majority + 1e-6 for score in scores)} no better than the most frequent answer "
        f"({majority:.2%}); sorted: {' '.join(f'{score:.2%}' for score in scores)}"
    )


def _asked(name: str, side: str, answers: list[dict[str, Any]]) -> dict[str, Any]:
    """The settings, those that a run of ours chose among them."""
    return answers[0].get("asked") or settings_of(side, name)


def _in_order(item: tuple[tuple[str, str], Any]) -> tuple[int, int]:
    name, side = item[0]
    return list(DATA_SETS).index(name), _SIDES.index(side)


def _row(name: str, side: str, answers: list[dict[str, Any]]) -> dict[str, Any]:
    first, *others = DATA_SETS[name].metrics
    seconds = statistics.median(answer["seconds"] for answer in answers)

    def last(metric: str) -> str:
        return mean_and_error([answer["epochs"][-1][metric] for answer in answers])

    best = [max(epoch[first] for epoch in answer["epochs"]) for answer in answers]
    return {
        "data": name,
        "side": side,
        "seeds": len(answers),
        "metric": first,
        "last epoch": last(first),
        "best epoch": mean_and_error(best),
        "also": ", ".join(f"{metric} {last(metric)}" for metric in others),
        "precision": answers[0]["precision"],
        "train seconds": f"{seconds:,.0f}",
        "real tokens/s": f"{statistics.median(a['tokens'] / a['seconds'] for a in answers):,.0f}",
    }


def _plain(settings: dict[str, Any]) -> str:
    return ", ".join(f"{name.removeprefix('optimizer.')} {value}" for name, value in settings.items())


# -- a run -----------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _files(side: str, request: dict[str, Any]) -> Iterator[tuple[Labelled, Path, Path, Path]]:
    """The data set, its files, and the folder of the run."""
    data = DATA_SETS[request["name"]]
    with run_folder(__file__, side, request) as folder:
        train = fewer(data.train, request["rows"], folder)
        yield data, train, fewer(data.dev, request["dev_rows"], folder), folder


class _Ours:
    """`bertsmith finetune`."""

    def __call__(self, request: dict[str, Any]) -> dict[str, Any]:
        with _files("ours", request) as (data, train, dev, folder):
            settings = data.columns | request["settings"]
            answer = train_ours(data.task, train, dev, folder / "run", settings, request["seed"])
        results = answer.pop("results")
        majority = next(iter(results["evaluations"]["dev"]["baselines"].values()))
        del answer["found"]
        return answer | {"majority": majority[data.metrics[0]]}


class _Transformers:
    """The Trainer, and the metrics of scikit-learn, scipy and seqeval."""

    def __call__(self, request: dict[str, Any]) -> dict[str, Any]:
        from bertsmith.tasks.registry import find_task
        from trainer import fit, load_model, load_tokenizer
        from trainer_tasks import USUAL

        with _files("transformers", request) as (data, train_file, dev_file, _):
            kind = find_task(data.task)
            task = kind(kind.Settings(**data.columns))  # it reads the files, and does no more than that
            train, dev = task.read(train_file), task.read(dev_file)
        task.fit(train)
        usual = USUAL[data.task](load_tokenizer(), list(task.labels), request["settings"]["max_length"])
        rows, dev_rows = usual.encode(train), usual.encode(dev)
        model = load_model(data.task, task.labels, request["seed"])
        epochs: list[dict[str, float]] = []

        def judge() -> None:
            epochs.append(usual.metrics(model, dev_rows, dev))

        return fit(model, usual.collate, rows, request["settings"], request["seed"], judge) | {
            "epochs": epochs
        }


_WORKERS: dict[str, Any] = {"ours": _Ours, "transformers": _Transformers}


if __name__ == "__main__":
    main()
