"""Question answering beside the usual script of transformers: exact match and F1, and the time of training.
Last answer (2026-11-22, Zen 3): F1 70.7 in 64 minutes, transformers 69.8 in 205.

    python bench/finetuning/question_answering.py [--parts v1.1 v2.0] [--epochs 1] [--rows N] [--dev-rows N]

v1.1: trained on SQuAD's training pieces and SQuADShifts' Wikipedia (400 questions held out to choose an epoch
by), measured on SQuAD's dev set of v1.1. v2.0: the same and half the articles of the v2.0 part, which has
questions without an answer; the threshold for "no answer" is chosen on a quarter of its articles, and the
figures are those of the last quarter. Both sides start from the MiniLM weights, train on the same questions
with the same settings and windows (384 pieces, overlapping by 128, answers of at most 30), and are measured
by the official rules:

    ours           bertsmith finetune question-answering
    transformers   run_qa.py's way: AutoModelForQuestionAnswering and Trainer, padded to a batch's longest,
                   every window's best answers compared by their scores (trainer_answers.py)

One epoch is the usual, for with more the sides differ: ours is then the best epoch by the held-out questions,
the other side's the last one. An interrupted run of either side goes on from its last checkpoint.
"""

import argparse
import itertools
import json
import random
import statistics
import sys
from pathlib import Path
from typing import Any

sys.path.insert(1, str(Path(__file__).parents[1]))  # harness.py, and what else all folders share

from harness import report, serve
from labelled import (
    fewer_questions,
    find,
    mean_and_error,
    quiet,
    run_folder,
    run_once,
    train_ours,
    when_run,
)

_TRAIN = ("squad/train-pieces-assembled.json", "squadshifts/new_wiki_v1.0.json")
_DEV_V1, _V2 = "squad/dev-v1.1.json", "squad/cs224n-dev-v2.0.json"
_TO_CHOOSE_BY = 400
_SIDES = ("ours", "transformers")
_PARTS = ("v1.1", "v2.0")
Paragraphs = list[dict[str, Any]]


def main() -> None:
    """Parses, and is either the parent or a worker."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--parts", nargs="+", choices=_PARTS, default=list(_PARTS))
    parser.add_argument("--side", nargs="+", choices=_SIDES, default=list(_SIDES))
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--epochs", type=float, default=1)
    parser.add_argument("--rate", type=float, default=1e-4)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--rows", type=int, help="how many training questions at most")
    parser.add_argument("--dev-rows", type=int)
    parser.add_argument("--again", action="store_true", help="repeat runs that are kept")
    parser.add_argument("--worker", choices=_SIDES)
    options = parser.parse_args()
    if options.worker:
        serve(quiet({"ours": _ours, "transformers": _transformers}[options.worker]))
    else:
        _table(options)


def _table(options: argparse.Namespace) -> None:
    settings = {
        "epochs": options.epochs,
        "batch_size": options.batch,
        "optimizer.learning_rate": options.rate,
        "optimizer.weight_decay": 0.01,
        "optimizer.warmup": 0.1,
        "max_length": 384,
        "stride": 128,
        "longest_answer": 30,
    }
    request = {"rows": options.rows, "dev_rows": options.dev_rows, "settings": settings}
    runs: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for part, seed, side in itertools.product(options.parts, range(options.seeds), options.side):
        name, asked = f"{part}-{side}-{seed}", request | {"part": part, "seed": seed}
        runs.setdefault((part, side), []).append(run_once(__file__, side, name, asked, options.again))
        rows = [_row(*key, answers) for key, answers in runs.items()]
        notes = [
            "v1.1 is measured on its dev set, v2.0 on a quarter of the articles of the part at hand.",
            "v2.0 'as one answer': the same model without its threshold. 'no answer' is the F1 of never "
            "answering. Seconds: from the first step to the last, evaluations left out.",
            when_run(itertools.chain.from_iterable(runs.values())),
        ]
        report("question-answering", "Question answering beside transformers", rows, notes)


def _row(part: str, side: str, answers: list[dict[str, Any]]) -> dict[str, Any]:
    def mean(name: str) -> str:
        values = [answer["test"].get(name) for answer in answers]
        return "" if None in values else mean_and_error(values)

    return {
        "part": part,
        "side": side,
        "seeds": len(answers),
        "exact match": mean("exact_match"),
        "F1": mean("f1"),
        "F1 as one answer": mean("f1_always"),
        "F1 answerable": mean("f1_answerable"),
        "F1 unanswerable": mean("f1_unanswerable"),
        "no answer": mean("f1_never"),
        "precision": answers[0]["precision"],
        "train seconds": f"{statistics.median(answer['seconds'] for answer in answers):,.0f}",
        "real tokens/s": f"{statistics.median(a['tokens'] / a['seconds'] for a in answers):,.0f}",
    }


# -- the questions ---------------------------------------------------------------------------------------


def _files(request: dict[str, Any], folder: Path) -> tuple[Path, Path, Path]:
    """Files to train on, to choose by, and to measure on."""
    paragraphs = [paragraph for name in _TRAIN for paragraph in _paragraphs(name)]
    random.Random(0).shuffle(paragraphs)
    ends = itertools.accumulate(len(paragraph["qas"]) for paragraph in paragraphs)
    cut = next(number for number, end in enumerate(ends, 1) if end >= _TO_CHOOSE_BY)
    dev, train, test = paragraphs[:cut], paragraphs[cut:], _paragraphs(_DEV_V1)
    if request["part"] == "v2.0":
        articles = [article["paragraphs"] for article in _read(_V2)["data"]]
        quarters = [list(itertools.chain.from_iterable(articles[number::4])) for number in range(4)]
        train, dev, test = train + quarters[0] + quarters[1], quarters[2], quarters[3]
    return (
        _write(folder / "train.json", train, request["rows"]),
        _write(folder / "dev.json", dev, request["dev_rows"]),
        _write(folder / "test.json", test, request["dev_rows"]),
    )


def _read(name: str) -> dict[str, Any]:
    squad: dict[str, Any] = json.loads(find(name).read_text(encoding="utf-8"))
    return squad


def _paragraphs(name: str) -> Paragraphs:
    return [paragraph for article in _read(name)["data"] for paragraph in article["paragraphs"]]


def _write(path: Path, paragraphs: Paragraphs, rows: int | None) -> Path:
    squad: dict[str, Any] = {"version": "", "data": [{"title": "", "paragraphs": paragraphs}]}
    path.write_text(json.dumps(squad if rows is None else fewer_questions(squad, rows)))
    return path


# -- a run -----------------------------------------------------------------------------------------------


def _ours(request: dict[str, Any]) -> dict[str, Any]:
    """`bertsmith finetune`: the best epoch by dev, and dev's threshold."""
    with run_folder(__file__, "ours", request) as folder:
        train, dev, test = _files(request, folder)
        has_unanswerable = request["part"] == "v2.0"
        answer = train_ours(
            "question-answering",
            train,
            dev,
            folder / "run",
            request["settings"],
            request["seed"],
            test,
            lambda run: _without_threshold(run, test) if has_unanswerable else None,
        )
    side = answer.pop("results")["evaluations"]["test"]
    figures = dict(side["model"])
    always = answer.pop("found")
    if always is not None:
        figures |= {"f1_always": always, "f1_never": side["baselines"]["no answer"]["f1"]}
    return answer | {"test": figures}


def _without_threshold(run: Path, test: Path) -> float:
    """The finished model's F1 on test when it always answers."""
    from bertsmith.inference.predictor import Predictor

    predictor = Predictor.load(run / "model")
    predictor.task.threshold = None  # type: ignore[attr-defined]
    return predictor.evaluate(test).model["f1"]


def _transformers(request: dict[str, Any]) -> dict[str, Any]:
    """The usual script: the last epoch, and dev's threshold."""
    from bertsmith.text.labelled.squad import read_squad
    from trainer import fit, load_model, load_tokenizer
    from trainer_answers import Answers

    settings = request["settings"]
    usual = Answers(load_tokenizer(), settings["max_length"], settings["stride"], settings["longest_answer"])
    model = load_model("question-answering", (), request["seed"])
    with run_folder(__file__, "transformers", request) as folder:
        train, dev, test = (read_squad(path) for path in _files(request, folder))
        timing = fit(model, usual.collate, usual.encode(train), settings, request["seed"], folder=folder)
        threshold = usual.threshold(model, dev) if request["part"] == "v2.0" else None
        return timing | {"test": usual.metrics(model, test, threshold)}


if __name__ == "__main__":
    main()
