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
    """One version of SQuAD. Its folder may hold published parts of the official files, under their own
    names.
    """

    head = "question-answering"
    settings: Mapping[str, Any] = {}
    measures = ("f1", "exact_match")
    judged_by = "F1; exact match beside it"

    def __init__(self, version: str) -> None:
        self.version = version
        self.name = f"SQuAD v{version}"

    def is_in(self, folder: Path) -> bool:
        return all(_find_first(folder, names[self.version]) is not None for names in (_TRAIN, _DEV))

    def source(self) -> str:
        files = f"{_TRAIN[self.version][0]} and {_DEV[self.version][0]}"
        return f"Expected {files}. The files are those of {WHERE}."

    def prepare(self, folder: Path, out: Path, rows: int | None) -> TaskFiles:
        """The official files themselves or, with `rows`, samples of that many questions in the same
        format.
        """
        paths = {
            part: _find_first(folder, names[self.version])
            for part, names in (("train", _TRAIN), ("dev", _DEV))
        }
        train, dev = paths["train"], paths["dev"]
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
            train, dev = (_write_sample(path, out / path.name, rows) for path in (train, dev))
        return TaskFiles(train, dev, notes=tuple(notes))

    def figures(self, rows: Path, predictions: Path) -> Figures:
        answers = _read_answers(predictions)
        questions = read_squad(rows)
        if missing := [question.id for question in questions if question.id not in answers]:
            raise InputError(
                f"{predictions} has no answer to {len(missing):,} questions, such as {missing[0]}."
            )
        golds = [[text for text, _ in question.answers] for question in questions]
        predicted = [answers[question.id] for question in questions]
        score_answers = question_scores if self.version == "2.0" else _score_v1
        exact, f1 = score_answers(predicted, golds)
        return {SCORE: float(f1.mean()), "f1": float(f1.mean()), "exact_match": float(exact.mean())}

    def write_submission(self, part: str, rows: Path, predictions: Path, out: Path) -> Path | None:
        """Writes the answers by id: dev's, since SQuAD's server keeps the test's passages to itself."""
        path = out / "predictions.json"
        atomic_write(path, json.dumps(_read_answers(predictions), ensure_ascii=False))
        return path


def _score_v1(predictions: Sequence[str], golds: Golds) -> tuple[Floats, Floats]:
    """Exact match (Q,) and F1 (Q,) as by evaluate-v1.1.py, which counts a gold answer of punctuation alone;
    v2.0 ignores it. Three questions of v1.1's dev have one.
    """
    pairs = list(zip(predictions, golds, strict=True))
    exact = [max((exact_match(text, gold) for gold in right), default=0.0) for text, right in pairs]
    f1 = [max((token_f1(text, gold) for gold in right), default=0.0) for text, right in pairs]
    return np.array(exact), np.array(f1)


def squad_suite(folder: Path, version: str | None = None) -> Suite:
    """SQuAD in this version or, without one, in the version whose files are in the folder; v1.1 where both
    are. Raises InputError without files, and for an unknown version.
    """
    if version is None:
        version = next((known for known in _TRAIN if SquadTask(known).is_in(folder)), None)
        if version is None:
            raise InputError(
                f"{folder} has no SQuAD. {SquadTask('1.1').source()} For v2.0 the names end in -v2.0.json."
            )
    if version not in SQUAD:
        raise InputError(f"There is no SQuAD v{version}. The versions are {' and '.join(SQUAD)}.")
    task = SquadTask(version)
    return Suite(task.name, [task], SQUAD[version])


def _read_answers(predictions: Path) -> dict[str, str]:
    with predictions.open(encoding="utf-8") as file:
        return {row["id"]: row["answer"] for row in map(json.loads, file)}


def _find_first(folder: Path, names: tuple[str, ...]) -> Path | None:
    return next((folder / name for name in names if (folder / name).is_file()), None)


def _write_sample(path: Path, out: Path, rows: int) -> Path:
    """Writes a file of the same format with `rows` of its questions, drawn at random with a fixed seed."""
    ids = [question.id for question in read_squad(path)]
    drawn = set(random.Random(0).sample(ids, min(rows, len(ids))))
    articles = []
    for article in read_json(path)["data"]:
        sampled = [
            {**paragraph, "qas": [question for question in paragraph["qas"] if str(question["id"]) in drawn]}
            for paragraph in article["paragraphs"]
        ]
        if paragraphs := [paragraph for paragraph in sampled if paragraph["qas"]]:
            articles.append({**article, "paragraphs": paragraphs})
    out.parent.mkdir(parents=True, exist_ok=True)
    write_json(out, {"version": read_json(path).get("version", ""), "data": articles})
    return out
