"""SQuAD v1.1 and v2.0 as a benchmark, judged by the official scripts' rules.

OUT/submission/predictions.json maps each question's id to its answer, as evaluate-v1.1.py and
evaluate-v2.0.py take it.
"""

import json
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bertsmith.arrays import Floats
from bertsmith.benchmarks.benchmark import SCORE, BenchmarkTask, Figures, Suite, TaskFiles
from bertsmith.benchmarks.published import SQUAD
from bertsmith.errors import InputError
from bertsmith.files import atomic_write, read_json, write_json
from bertsmith.metrics.scores import Golds, exact_match, question_scores, token_f1
from bertsmith.text.labelled.squad import read_squad

WHERE = "https://rajpurkar.github.io/SQuAD-explorer"
_TRAIN = {"1.1": ("train-v1.1.json", "train-pieces-assembled.json"), "2.0": ("train-v2.0.json",)}
_DEV = {"1.1": ("dev-v1.1.json",), "2.0": ("dev-v2.0.json", "cs224n-dev-v2.0.json")}


class SquadTask(BenchmarkTask):
    """One version. Its folder may hold pieces of the official files under the names they are passed on by."""

    head = "question-answering"
    settings: Mapping[str, Any] = {}
    measures = ("f1", "exact_match")
    judged_by = "F1; exact match beside it"

    def __init__(self, version: str) -> None:
        self.version = version
        self.name = f"SQuAD v{version}"

    def is_in(self, folder: Path) -> bool:
        return all(_first(folder, names[self.version]) is not None for names in (_TRAIN, _DEV))

    def source(self) -> str:
        wanted = f"{_TRAIN[self.version][0]} and {_DEV[self.version][0]}"
        return f"Expected {wanted}. The files are those of {WHERE}."

    def prepare(self, folder: Path, out: Path, rows: int | None) -> TaskFiles:
        """The official files themselves, or files like them of so many questions."""
        found = {
            part: _first(folder, names[self.version]) for part, names in (("train", _TRAIN), ("dev", _DEV))
        }
        train, dev = found["train"], found["dev"]
        if train is None or dev is None:
            raise InputError(f"{folder} has no {self.name}. {self.source()}")
        others = [
            path for path, names in ((train, _TRAIN), (dev, _DEV)) if path.name != names[self.version][0]
        ]
        notes = [
            f"{path.name} is a part of the official file: figures are not those of the whole"
            for path in others
        ]
        if rows is not None:
            train, dev = (_with_fewer(path, out / path.name, rows) for path in (train, dev))
        return TaskFiles(train, dev, notes=tuple(notes))

    def figures(self, rows: Path, predictions: Path) -> Figures:
        answers = _answers(predictions)
        questions = read_squad(rows)
        if missing := [question.id for question in questions if question.id not in answers]:
            raise InputError(
                f"{predictions} has no answer to {len(missing):,} questions, such as {missing[0]}."
            )
        golds = [[text for text, _ in question.answers] for question in questions]
        said = [answers[question.id] for question in questions]
        exact, f1 = question_scores(said, golds) if self.version == "2.0" else _scores_of_v1(said, golds)
        return {SCORE: float(f1.mean()), "f1": float(f1.mean()), "exact_match": float(exact.mean())}

    def hand_in(self, part: str, rows: Path, predictions: Path, out: Path) -> Path | None:
        """id → answer; dev's, for the labels of SQuAD's test are on its server, as are its passages."""
        path = out / "predictions.json"
        atomic_write(path, json.dumps(_answers(predictions), ensure_ascii=False))
        return path


def _scores_of_v1(predictions: Sequence[str], golds: Golds) -> tuple[Floats, Floats]:
    """Exact match (Q,) and F1 (Q,) as evaluate-v1.1.py has them: an answer that is punctuation alone counts,
    where v2.0 passes over it. Of v1.1's dev three questions have such a one.
    """
    pairs = list(zip(predictions, golds, strict=True))
    exact = [max((exact_match(said, gold) for gold in right), default=0.0) for said, right in pairs]
    f1 = [max((token_f1(said, gold) for gold in right), default=0.0) for said, right in pairs]
    return np.array(exact), np.array(f1)


def squad_suite(folder: Path, version: str | None = None) -> Suite:
    """SQuAD in the version asked for, or in the one whose files are there; v1.1 where both are. Raises
    InputError for none.
    """
    if version is None:
        version = next((each for each in _TRAIN if SquadTask(each).is_in(folder)), None)
        if version is None:
            raise InputError(
                f"{folder} has no SQuAD. {SquadTask('1.1').source()} For v2.0 the names end in -v2.0.json."
            )
    if version not in SQUAD:
        raise InputError(f"There is no SQuAD v{version}. The versions are {' and '.join(SQUAD)}.")
    task = SquadTask(version)
    return Suite(task.name, [task], SQUAD[version])


def _answers(predictions: Path) -> dict[str, str]:
    with predictions.open(encoding="utf-8") as file:
        return {row["id"]: row["answer"] for row in map(json.loads, file)}


def _first(folder: Path, names: tuple[str, ...]) -> Path | None:
    return next((folder / name for name in names if (folder / name).is_file()), None)


def _with_fewer(path: Path, out: Path, rows: int) -> Path:
    """A file of the same shape with so many of its questions, drawn at random, always the same."""
    ids = [question.id for question in read_squad(path)]
    drawn = set(random.Random(0).sample(ids, min(rows, len(ids))))
    articles = []
    for article in read_json(path)["data"]:
        kept = [
            {**paragraph, "qas": [each for each in paragraph["qas"] if str(each["id"]) in drawn]}
            for paragraph in article["paragraphs"]
        ]
        if kept := [paragraph for paragraph in kept if paragraph["qas"]]:
            articles.append({**article, "paragraphs": kept})
    out.parent.mkdir(parents=True, exist_ok=True)
    write_json(out, {"version": read_json(path).get("version", ""), "data": articles})
    return out
