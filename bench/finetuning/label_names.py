"""Names instead of labels: what do the names of the classes give, alone, with texts, and with a few rows?
Last answer (2026-11-30, Zen 5), MiniLM: banking77 62.3 by the nearest name, 69.3 with texts, 71.8 with a row
a class (rows alone 53.6); over 15 sets and encoders never below the nearest name.

    python bench/finetuning/label_names.py [--data banking77 ...] [--rows 0 1 2 4 8] [--draws 5]
                                           [--others FOLDER:SET,SET ...] [--whole SET]

    banking77, home_intents     77 and 64 intents
    reuters                     the news with one topic, of topics with 50 rows or more; abbreviations of
                                topics are written out, a text is cut at 128 tokens
    emotion, sentiment, offensive                       tweets
    sst2, movie_polarity, phrase_polarity               opinions
    subjectivity                                        is a sentence an opinion?
    thai_sentiment              for a multilingual encoder, so not among the default ones

On the frozen MiniLM, and with --others on encoders in other folders, each on the sets that are named:

    nearest     the name whose vector is nearest to the text's, without a hint or a wording
    rows        a linear model of the labelled rows alone
    names       the names, in all wordings, and the rows
    texts       the names, the rows, and texts without labels: the default where nothing is judged
    taken       what it takes of the three; from two rows a class on, by cross-validation

A draw takes so many rows of each class by its seed, or all that there are; up to 2,000 other rows, or 5,000
without rows, are the texts. Test is 2,000 rows; other encoders have half as many of both. `way` is the
guard's, `expected` the accuracy that is foretold without labels, with its interval, by the first draw; it is
compared with `texts`. Features are computed once a set, by the library's own classes; `--whole SET` also
calls `bertsmith finetune` on the same texts without rows. Answers are kept under runs/bench/label_names/;
--again repeats them.
"""

import argparse
import csv
import json
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import numpy as np
import torch
from torch import Tensor

sys.path.insert(1, str(Path(__file__).parents[1]))  # harness.py, and what else all folders share

from bertsmith.arrays import Ints
from bertsmith.inference.predictor import Predictor
from bertsmith.inference.suggesting.label_doubts import AnsweringModel
from bertsmith.model.locate import locate_model
from bertsmith.tasks.checkpoints.task_checkpoint import begin_task_model
from bertsmith.tasks.examples.held_out import folds_of
from bertsmith.tasks.examples.text_settings import choose_pooling
from bertsmith.tasks.examples.text_task import TextExample
from bertsmith.tasks.heads.label_names import BOLD, CAUTIOUS, NEAREST, ROWS, ROWS_TEXTS, normalise
from bertsmith.tasks.heads.linear_start import LinearProbe, compute_features
from bertsmith.tasks.heads.name_training import NameTraining, name_examples, phrase_names, suit_phrasings
from bertsmith.tasks.registry import find_task
from bertsmith.training.finetuning.choosing import HeldOutOutputs, MethodWork, race_methods
from bertsmith.training.finetuning.methods import LINEAR, NAMES, NAMES_TEXTS
from harness import report, serve
from labelled import MODEL, find, finetune_in, mean_and_error, quiet, run_once, when_run

SETS = (
    *("banking77", "home_intents", "reuters", "emotion", "sentiment", "offensive", "sst2"),
    *("movie_polarity", "phrase_polarity", "subjectivity"),
)
_THAI = "thai_sentiment"
_REUTERS = {
    "acq": "acquisitions",
    "bop": "balance of payments",
    "cpi": "consumer prices",
    "crude": "crude oil",
    "earn": "earnings",
    "gnp": "gross national product",
    "interest": "interest rates",
    "money-fx": "foreign exchange",
    "nat-gas": "natural gas",
    "veg-oil": "vegetable oil",
}
_FEWEST = 50  # rows of a topic
_TEST, _TEXTS, _TEXTS_BESIDE_ROWS = 2000, 5000, 2000
_MAX_LENGTH, _FOLDS = 128, 5
_SIDES = {LINEAR: "rows", NAMES: "names", NAMES_TEXTS: "texts", "taken": "taken"}
_WAYS = {NEAREST: "nearest", CAUTIOUS: "cautious", BOLD: "bold", ROWS: "rows", ROWS_TEXTS: "rows and texts"}
Rows = list[tuple[str, str]]  # texts and labels


def main() -> None:
    """Parses, and is either the parent or a worker."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", nargs="*", choices=(*SETS, _THAI), default=list(SETS))
    parser.add_argument("--rows", nargs="+", type=int, default=[0, 1, 2, 4, 8], help="of each class")
    parser.add_argument("--draws", type=int, default=5)
    parser.add_argument("--texts", type=int, default=_TEXTS, help="texts without labels, at most")
    parser.add_argument("--test", type=int, default=_TEST, help="rows to measure on, at most")
    parser.add_argument("--others", nargs="*", default=[], help="FOLDER:SET,SET: other encoders")
    parser.add_argument("--whole", choices=SETS, help="a set for a whole run of finetune")
    parser.add_argument("--again", action="store_true", help="repeat answers that are kept")
    parser.add_argument("--worker", choices=("ours",))
    options = parser.parse_args()
    if options.worker:
        serve(quiet(_answer))
        return
    pairs = [(MODEL, name) for name in options.data]
    for given in options.others:
        folder, _, names = given.rpartition(":")
        pairs += [(folder, name) for name in names.split(",")]
    rows, answers = [], []
    for model, name in pairs:
        request = {
            "model": model,
            "name": name,
            "rows": options.rows,
            "draws": options.draws,
            "texts": options.texts // (1 if model == MODEL else 2),
            "test": options.test // (1 if model == MODEL else 2),
            "whole": name == options.whole and model == MODEL,
        }
        kept = f"{name}-{Path(model).name}"
        answers.append(run_once(__file__, "ours", kept, request, options.again))
        rows += _table(name, Path(model).name, answers[-1])
    variant = "" if options.others else None
    report("label-names", "Names instead of labels", rows, _notes(answers), variant=variant)


def _table(name: str, encoder: str, answer: dict[str, Any]) -> list[dict[str, Any]]:
    """A row for each number of labelled rows."""
    lines = []
    for size, draws in answer["draws"].items():
        scores = {
            side: mean_and_error([draw[key] for draw in draws]) if key in draws[0] else "–"
            for key, side in _SIDES.items()
        }
        first = draws[0]
        expected = "–"
        if first["expected"] is not None:
            score, low, high = (f"{100 * value:.0f}" for value in first["expected"])
            expected = f"{score} ({low} to {high}), held in {sum(map(_held, draws))} of {len(draws)}"
        lines.append(
            {
                "set, classes, texts": f"{name}, {answer['classes']}, {first['unlabelled']:,}",
                "encoder": encoder,
                "rows a class": size,
                "nearest": f"{100 * answer['nearest']:.2f}",
                **scores,
                "way": _count([_WAYS[draw["way"]] for draw in draws]),
                "taken is": _count([_SIDES[draw["method"]] for draw in draws]),
                "expected": expected,
            }
        )
    return lines


def _count(words: Sequence[str]) -> str:
    """'names 2, linear 1'; a word alone if all are the same."""
    counts = Counter(words).most_common()
    return counts[0][0] if len(counts) == 1 else ", ".join(f"{word} {count}" for word, count in counts)


def _held(draw: dict[str, Any]) -> bool:
    """Whether what names and texts give lies in the interval that was expected of them."""
    return bool(draw["expected"][1] <= draw[NAMES_TEXTS] <= draw["expected"][2])


def _notes(answers: Sequence[dict[str, Any]]) -> list[str]:
    """What the guard did over all sets without rows, and the whole runs."""
    notes = []
    without = [(answer["draws"]["0"][0], answer["nearest"]) for answer in answers if "0" in answer["draws"]]
    if without:
        gains = [100 * (draw[NAMES_TEXTS] - nearest) for draw, nearest in without]
        went = [gain for gain, (draw, _) in zip(gains, without, strict=True) if draw["way"] != NEAREST]
        held = sum(_held(draw) for draw, _ in without)
        widths = [100 * (draw["expected"][2] - draw["expected"][1]) for draw, _ in without]
        notes.append(
            f"Without rows, {len(without)} sets and encoders: the worst is {min(gains):+.1f} points beside "
            f"the nearest name; the guard says go in {len(went)}, {np.mean(went):+.1f} on average. "
            f"The expected interval, {sum(widths) / len(widths):.0f} points wide, held in {held}."
        )
    for answer in answers:
        if answer["whole"]:
            notes.append(
                f"`bertsmith finetune` on the texts of {answer['request']['name']}, without rows: "
                f"{100 * answer['whole']['accuracy']:.2f}, by {answer['whole']['way']}."
            )
    return [*notes, when_run(answers)]


# -- the sets ------------------------------------------------------------------------------------------------


def _read(name: str) -> tuple[Rows, Rows]:
    """The rows to learn from and those of test, each text once, and none in both."""
    if name in ("banking77", "home_intents"):
        label = {"banking77": "category", "home_intents": "intent"}[name]
        train, test = (_read_table(f"{name}/{part}.csv", "text", label) for part in ("train", "test"))
    elif name == "reuters":
        train, test = (_read_topics(f"reuters/{part}.jsonl") for part in ("train", "test"))
        counts = Counter(label for _, label in train)
        train, test = (
            [(text, _REUTERS.get(label, label)) for text, label in part if counts[label] >= _FEWEST]
            for part in (train, test)
        )
    elif name in ("emotion", "offensive"):
        train, test = (_read_table(f"tweeteval/{name}_{part}.csv") for part in ("train", "test"))
    elif name == "sentiment":  # its train is not at hand: dev and half of test stand for it
        test = _read_table("tweeteval/sentiment_test.csv")
        train, test = _read_table("tweeteval/sentiment_val.csv") + test[::2], test[1::2]
    elif name == "sst2":
        train, test = (
            [
                (text, ("negative", "positive")[int(label)])
                for text, label in _read_table(f"sst2/{part}.tsv", "sentence", "label", delimiter="\t")
            ]
            for part in ("train", "test-labeled")
        )
    elif name == _THAI:
        lines = [find(f"{name}/{part}.jsonl").read_text("utf-8").splitlines() for part in ("train", "test")]
        train, test = ([(row["text"], row["label"]) for row in map(json.loads, part)] for part in lines)
    else:
        rows = _read_table(f"opinions/{name}.csv")
        random.Random(0).shuffle(rows)
        train, test = rows[len(rows) // 4 :], rows[: len(rows) // 4]
    measured = dict(test)
    return [row for row in dict(train).items() if row[0] not in measured], list(measured.items())


def _read_table(name: str, text: str = "text", label: str = "label", delimiter: str = ",") -> Rows:
    quoting = csv.QUOTE_NONE if delimiter == "\t" else csv.QUOTE_MINIMAL
    with find(name).open(encoding="utf-8-sig", newline="") as file:
        return [
            (row[text].strip(), row[label])
            for row in csv.DictReader(file, delimiter=delimiter, quoting=quoting)
        ]


def _read_topics(name: str) -> Rows:
    rows = [json.loads(line) for line in find(name).read_text("utf-8").splitlines()]
    return [
        (f"{row['title']}\n{row['text']}", row["topics"][0])
        for row in rows
        if len(row["topics"]) == 1 and row["text"]
    ]


# -- the worker ----------------------------------------------------------------------------------------------


class _Features(NamedTuple):
    """A set by an encoder: rows that labelled ones and texts are drawn from, with features (E, F),
    and those
    of the names (P, C, F) and of test (T, F), whose classes are `test_classes` (T,).
    """

    task: Any
    model: Any
    train: Any  # EncodedExamples
    rows: Tensor
    names: Tensor
    test: Tensor
    test_classes: Ints

    @classmethod
    def of(cls, model: str, train: Rows, test: Rows) -> "_Features":
        folder, task_class = locate_model(model).folder, find_task("classification")
        task: Any = task_class(task_class.Settings(max_length=_MAX_LENGTH))
        choose_pooling(task, folder)
        phrasings = phrase_names(dict.fromkeys(sorted({label for _, label in train}), ""))
        examples = [
            [TextExample(text, None, label, str(row)) for row, (text, label) in enumerate(part)]
            for part in (train, test)
        ]
        named = name_examples(suit_phrasings(phrasings, examples[0]), list(phrasings))
        task.fit(named)
        answering = AnsweringModel(begin_task_model(folder, task).model, task, folder)
        encoded = [answering.encode(part) for part in examples]
        vectors = [
            torch.stack(compute_features(answering.model, part.encoded)).float()
            for part in (*encoded, answering.encode(named))
        ]
        classes = np.array([example.target for example in encoded[1].encoded])
        names = vectors[2].view(-1, len(phrasings), vectors[2].shape[1])
        return cls(task, answering.model, encoded[0], vectors[0], names, vectors[1], classes)

    def measure(self, weight: Tensor, bias: Tensor | float = 0.0) -> float:
        """The accuracy on test of a linear model."""
        return float(((self.test @ weight.T + bias).argmax(1).numpy() == self.test_classes).mean())

    def nearest(self) -> float:
        """The accuracy of the nearest name."""
        return self.measure(torch.from_numpy(normalise(self.names[0].numpy())))

    def learn(self, size: int, draw: int) -> dict[str, Any]:
        """What each side gives by `size` rows of each class."""
        order = np.random.default_rng(draw).permutation(len(self.rows))
        targets = np.array([self.train.encoded[row].target for row in order])
        labelled = np.concatenate([order[targets == number][:size] for number in range(self.names.shape[1])])
        others = order[~np.isin(order, labelled)]
        texts = others[:_TEXTS_BESIDE_ROWS] if size else others
        rows = self.train.some(labelled)
        classes = np.array([example.target for example in rows.encoded], np.int64)
        training = NameTraining(self.rows[labelled], classes, self.names, self.rows[texts])
        sides = {NAMES: training.fit(texts=False), NAMES_TEXTS: training.fit(texts=True)}
        method = NAMES_TEXTS
        if size:
            features = list(self.rows[labelled])
            probe = LinearProbe(self.task, self.model.head, rows.examples, features, classes.tolist(), 0.0)
            sides[LINEAR] = probe.fit_best()
        if size > 1:
            folds = folds_of(self.task, rows.examples, _FOLDS)
            known = {LINEAR: HeldOutOutputs(probe.predict_held_out(folds, sides[LINEAR].strength), 0.0)}
            for name in (NAMES, NAMES_TEXTS):
                judged, usual = (
                    training.judge(folds, texts=name == NAMES_TEXTS),
                    training.usual_gain(texts=name == NAMES_TEXTS),
                )
                known[name] = HeldOutOutputs(judged, 0.0, usual)
            work = MethodWork(dict.fromkeys(known, [0.0] * _FOLDS), dict.fromkeys(known, 0.0), 0.0, 0.0)
            method = race_methods(self.task, work, rows, folds, _refuse, known=known).method
        scores = {name: self.measure(side.weight, side.bias) for name, side in sides.items()}
        start = training.start
        assert start is not None
        return {
            **scores,
            "taken": scores[method],
            "method": method,
            "way": start.way,
            "expected": start.expected,
            "unlabelled": len(texts),
        }


def _refuse(method: str, rows: Any) -> NoReturn:
    raise AssertionError(f"the outputs of {method} are known")


def _answer(request: dict[str, Any]) -> dict[str, Any]:
    """What each side gives on one set by one encoder."""
    train, test = (
        random.Random(0).sample(part, min(most, len(part)))
        for part, most in zip(_read(request["name"]), (request["texts"], request["test"]), strict=True)
    )
    started = time.monotonic()
    features = _Features.of(request["model"], train, test)
    seconds = time.monotonic() - started
    draws: dict[str, list[dict[str, Any]]] = {}
    for size in request["rows"]:
        for draw in range(request["draws"] if size else 1):
            draws.setdefault(str(size), []).append(features.learn(size, draw))
            done = f"{request['name']}, {Path(request['model']).name}: {size} rows a class, draw {draw + 1}"
            print(f"{done}, {time.monotonic() - started:.0f} s", file=sys.stderr, flush=True)
    whole = _run_whole(request["model"], train, test) if request["whole"] else None
    answer = {"classes": features.names.shape[1], "nearest": features.nearest(), "draws": draws}
    return answer | {"whole": whole, "seconds": seconds}


def _run_whole(model: str, train: Rows, test: Rows) -> dict[str, Any]:
    """`bertsmith finetune` from the names and the same texts, measured on the same test."""
    with tempfile.TemporaryDirectory() as folder:
        texts, run = Path(folder) / "texts.jsonl", Path(folder) / "run"
        texts.write_text("".join(json.dumps({"text": text}) + "\n" for text, _ in train), "utf-8")
        names = sorted({label for _, label in train})
        settings = {"max_length": _MAX_LENGTH}
        results = finetune_in(run, "classification", settings, model, unlabelled=str(texts), names=names)
        predictions = Predictor.load(run / "model").predict([text for text, _ in test])
    right = sum(found["label"] == label for found, (_, label) in zip(predictions, test, strict=True))
    return {"accuracy": right / len(test), "way": results["names"]["way"]}


if __name__ == "__main__":
    main()
