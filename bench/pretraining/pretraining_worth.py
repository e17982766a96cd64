"""What an hour of pre-training is worth: the same fine-tuning from three starts, beside what needs none.
Last answer (2026-11-26, Xeon): CoNLL whole 82.0, random weights 73.2; SST-2 whole no gain.

    python bench/pretraining/pretraining_worth.py [--hours 1]                   pre-trains, then compares
    python bench/pretraining/pretraining_worth.py --model runs/mine/model [--seeds 3] [--data sst2]
                                                  [--sizes few]

    sst2        sentiment of a sentence: 1,000 rows, and all 67,349
    banking77   77 intents of bank customers: 10 rows a class, and all but those of dev
    conll       entities of CoNLL-2003: 1,000 sentences, and all 14,041

Each is learned by `bertsmith finetune` from the model's weights, from random weights of the same shape, and
from MiniLM's, a larger model of far more training than an hour. The two of our shape have two settings tried,
as finetune comes and as `quickstart` trains a small model; MiniLM, and all of SST-2, have the first. Dev
chooses them, and the epoch: SST-2's and CoNLL's own, and 5 rows a class that are taken out of banking77. Test
is looked at once. Beside them TF-IDF with a logistic regression, or for tags the most frequent one of each
word in training.

A seed draws the rows, their order and the new head. Runs are kept under runs/bench/pretraining_worth/, and an
interrupted table goes on; --again repeats them.
"""

import argparse
import itertools
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(1, str(Path(__file__).parents[1]))  # harness.py, and what else all folders share

import corpora
from bertsmith.tasks.heads.linear_start import FROZEN  # a baseline that does need the model
from cutting import cut, divide_classes
from harness import report, serve
from labelled import KEPT, MODEL, find, finetune_in, mean_and_error, quiet, run_folder, run_once, when_run

_PLACE = KEPT / "pretraining_worth"
_DEV_A_CLASS = 5
_AS_IT_COMES: dict[str, Any] = {}
_QUICKSTART = {"epochs": 10, "batch_size": 16, "optimizer.learning_rate": 1e-3}
_SIDES: dict[str, tuple[dict[str, Any], ...]] = {
    "random weights": (_AS_IT_COMES, _QUICKSTART),
    "pre-trained": (_AS_IT_COMES, _QUICKSTART),
    "MiniLM": (_AS_IT_COMES,),
}


@dataclass(frozen=True)
class _Data:
    """`few` are the rows of the smaller size, or of a class where there is no `dev`: train gives it."""

    task: str
    metric: str
    train: str
    dev: str | None
    test: str
    few: int
    columns: dict[str, Any] = field(default_factory=dict)


DATA = {
    "sst2": _Data(
        *("classification", "accuracy", "sst2/train.tsv", "sst2/dev.tsv", "sst2/test-labeled.tsv", 1000),
        {"text": "sentence", "label": "label"},
    ),
    "banking77": _Data(
        *("classification", "accuracy", "banking77/train.csv", None, "banking77/test.csv", 10),
        {"text": "text", "label": "category"},
    ),
    "conll": _Data(
        *("tagging", "f1", "conll2003/iob2_train.txt", "conll2003/iob2_valid.txt"),
        *("conll2003/iob2_test.txt", 1000),
    ),
}


def main() -> None:
    """Parses, and is either the parent or a worker."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    corpora.add_options(parser)
    parser.add_argument("--model", type=Path, help="a pre-trained model; else budget makes one first")
    parser.add_argument("--hours", type=float, default=1.0, help="of pre-training, without --model")
    parser.add_argument("--data", nargs="+", choices=tuple(DATA), default=list(DATA))
    parser.add_argument("--sizes", nargs="+", choices=("few", "all"), default=["few", "all"])
    parser.add_argument("--sides", nargs="+", choices=tuple(_SIDES), default=list(_SIDES))
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument(
        "--few-rows", type=int, help="of each data set, or of each class, instead of the above"
    )
    parser.add_argument("--measured-rows", type=int, help="of dev and test at most, for a quick look")
    parser.add_argument("--again", action="store_true", help="repeat runs that are kept")
    parser.add_argument("--worker", choices=("finetune",))
    options = parser.parse_args()
    if options.worker:
        serve(quiet(fine_tune))
        return
    _compare(options.model or _make(options), options)


def _make(options: argparse.Namespace) -> Path:
    """`bertsmith pretrain budget` for so many hours, or the rest of it."""
    from bertsmith.training.pretrain import pretrain

    run = _PLACE / f"budget-{options.hours:g}-hours"
    if not (run / "model").exists():
        store, tokenizer = corpora.find(options)
        given = [f"hours={options.hours}", f"corpus={store}", f"tokenizer={tokenizer}", f"out={run}"]
        pretrain("budget", *given, resume=(run / "recipe.toml").exists())
    return run / "model"


# -- the table -----------------------------------------------------------------------------------------------


def _compare(model: Path, options: argparse.Namespace) -> None:
    from bertsmith.files import sha256

    starts = {
        "random weights": {"random": str(model.absolute())},
        "pre-trained": {"model": str(model.absolute())},
        "MiniLM": {"model": MODEL},
    }
    weights = sha256(model / "model.safetensors")
    answers: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for size, name, seed in itertools.product(options.sizes, options.data, range(options.seeds)):
        for side in options.sides:
            few = (options.few_rows or DATA[name].few) if size == "few" else None
            request = {"name": name, "rows": few, "seed": seed, "measured_rows": options.measured_rows}
            request |= {"start": starts[side], "settings": _settings(side, name, size)}
            request |= {"weights": weights} if side != "MiniLM" else {}
            request = json.loads(json.dumps(request))  # as it is when it is read back
            kept = f"{name}-{size}-{side.replace(' ', '-')}-{seed}"
            answer = run_once(__file__, "finetune", kept, request, options.again)
            answers.setdefault((name, size, side), []).append(answer)
            _write(answers, model, options)


def _settings(side: str, name: str, size: str) -> tuple[dict[str, Any], ...]:
    """Ten epochs of SST-2's 67,349 rows in batches of 16 take an hour: there finetune's own alone."""
    return _SIDES[side][:1] if (name, size) == ("sst2", "all") else _SIDES[side]


def _write(
    answers: dict[tuple[str, str, str], list[dict[str, Any]]], model: Path, options: argparse.Namespace
) -> None:
    """What is known so far."""
    begun = list(dict.fromkeys((name, size) for name, size, _ in answers))
    rows = [
        row_of(name, DATA[name].metric, {side: answers.get((name, size, side), []) for side in options.sides})
        for name, size in begun
    ]
    notes = [
        "Test, in percent; seconds of training, evaluations included, of the settings that dev chose. With "
        "several seeds the mean and its standard error, and the mean of the seconds.",
        f"The pre-trained model: {_history(model)}",
        *(_choices(*key, found) for key, found in answers.items()),
        *(" ".join(part.split()) for part in (__doc__ or "").split("\n\n")[3:4]),
        when_run(itertools.chain.from_iterable(answers.values())),
    ]
    report("pretraining-worth", "What an hour of pre-training is worth", rows, notes)


def row_of(name: str, metric: str, sides: dict[str, list[dict[str, Any]]]) -> dict[str, str]:
    """One data set at one size: what needs no model, and each side over its seeds."""
    found = [answer for answers in sides.values() for answer in answers]
    without = {answer["seed"]: answer["without"] for answer in found}  # the same for all sides
    rows = sorted({answer["train_rows"] for answer in found})
    cells = {
        side: _cell([each["score"] for each in answers], [each["seconds"] for each in answers])
        for side, answers in sides.items()
    }
    return {
        "data": name,
        "trained on": " – ".join(f"{each:,}" for each in rows),
        "tested on": f"{found[0]['test_rows']:,}",
        "metric": metric,
        "without a model": f"{mean_and_error(list(without.values()))} ({found[0]['baseline']})",
        **cells,
    }


def _cell(scores: Sequence[float], seconds: Sequence[float]) -> str:
    if not scores:
        return "not yet"
    return f"{mean_and_error(scores)} ({sum(seconds) / len(seconds):,.0f} s)"


def _choices(name: str, size: str, side: str, answers: Sequence[dict[str, Any]]) -> str:
    """What dev said of each setting, seed by seed."""
    said = [
        ", ".join(f"{each['dev']:.2%} {each['settings']}" for each in answer["tried"]) for answer in answers
    ]
    return f"{name}, {size}, {side}, on dev: {'; '.join(said)}"


def _history(model: Path) -> str:
    """How it came to be, by its own account."""
    from bertsmith.model.manifest import read_verified_manifest

    manifest = read_verified_manifest(model)
    if manifest is None:
        return f"{model}, which doesn't say."
    facts = manifest.provenance
    recipe, metrics = facts.get("recipe", {}), facts.get("metrics", {})
    length = (
        f"{60 * recipe['hours']:g} minutes" if recipe.get("hours") else f"{facts.get('steps', '?')} steps"
    )
    accuracy = metrics.get("mlm_accuracy")
    return f"{length}, held-out MLM accuracy {accuracy:.2%}." if accuracy is not None else f"{length}."


# -- a run ---------------------------------------------------------------------------------------------------


def fine_tune(request: dict[str, Any]) -> dict[str, Any]:
    """Every setting in turn; of the one that dev chooses what test says."""
    data = DATA[request["name"]]
    with run_folder(__file__, "finetune", request) as folder:
        files = _files(data, request, folder)
        model = _start(request["start"], folder)
        found = []
        for number, settings in enumerate(request["settings"], start=1):
            given = data.columns | settings
            out = folder / f"run-{number}"
            found.append(finetune_in(out, data.task, given, model, seed=request["seed"], **files))
    return chosen_by_dev(found, request["settings"], data.metric) | {"seed": request["seed"]}


def chosen_by_dev(
    results: Sequence[dict[str, Any]], settings: Sequence[dict[str, Any]], metric: str
) -> dict[str, Any]:
    """What is kept of several results.json."""
    names = [" ".join(f"{key.split('.')[-1]}={value}" for key, value in each.items()) for each in settings]
    names = [name or "as it comes" for name in names]
    dev = [each["evaluations"]["dev"]["model"][metric] for each in results]
    best = dev.index(max(dev))
    test = results[best]["evaluations"]["test"]
    needs_none = {name: of for name, of in test["baselines"].items() if name != FROZEN}
    baseline, scores = list(needs_none.items())[-1]
    return {
        "tried": [{"settings": name, "dev": score} for name, score in zip(names, dev, strict=True)],
        "score": test["model"][metric],
        "seconds": results[best]["restarts"][0]["seconds"],
        "baseline": baseline,
        "without": scores[metric],
        "train_rows": results[best]["train_rows"],
        "test_rows": test["rows"],
    }


def _start(start: dict[str, str], folder: Path) -> str:
    """The model to begin with: as given, or of the same shape with random weights."""
    from bertsmith.training.finetuning.source_demo import write_random_model

    if "model" in start:
        return start["model"]
    write_random_model(Path(start["random"]), folder / "random-weights")
    return str(folder / "random-weights")


def _files(data: _Data, request: dict[str, Any], folder: Path) -> dict[str, str]:
    """Train, with so many rows (of a class, where dev is taken out of it) or all; dev; and test."""
    train, test, rows, seed = find(data.train), find(data.test), request["rows"], request["seed"]
    part = folder / f"train{train.suffix}"
    if data.dev is None:
        dev = folder / f"dev{train.suffix}"
        divide_classes(train, part, dev, data.columns["label"], _DEV_A_CLASS, rows, seed)
        train = part
    else:
        dev = find(data.dev)
        train = train if rows is None else cut(train, part, rows, seed)
    if (most := request["measured_rows"]) is not None:
        dev = cut(dev, folder / f"part-of-dev{dev.suffix}", most, seed=0)
        test = cut(test, folder / f"part-of-test{test.suffix}", most, seed=0)
    return {"train": str(train), "dev": str(dev), "test": str(test)}


if __name__ == "__main__":
    main()
