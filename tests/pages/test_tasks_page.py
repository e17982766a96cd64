"""The page on tasks: its data are read and trained on, its predictions are what the code makes of them."""

import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bertsmith.tasks.finetuning import encode_examples
from bertsmith.tasks.registry import TASKS, find_task
from bertsmith.tasks.task import Outputs, Task
from bertsmith.text.tokens.tokenizer import Tokenizer
from pages.page import Page
from test_guides import write_tiny_bert

DOCS = Path(__file__).parents[2] / "docs"
SHORTER = {
    "--out": "minutes=0 epochs=1 --out",
    "--out runs/answers": "max_length=64 stride=16 --out runs/answers",  # as many positions as there are
}
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "oslo", "the", "court"]


def section(page: str, heading: str) -> str:
    """With the sections below it."""
    text = (DOCS / page).read_text(encoding="utf-8")
    found = re.search(rf"^## {heading}\n(.*?)(?=^## |\Z)", text, re.DOTALL | re.MULTILINE)
    assert found, f"{page} has no section {heading!r}"
    return found[1]


def files_of(task: str) -> dict[str, str]:
    """The examples of data in a task's section, by file name; `prediction` is that of a prediction."""
    heading = task.replace("-", " ").capitalize() if task != "multi-label" else "Multi-label"
    shown = section("tasks.md", heading)
    files = dict(re.findall(r"^```\w+ (\S+)\n(.*?)^```", shown, re.DOTALL | re.MULTILINE))
    return files_of("regression") | files if task == "similarity" else files


def read_example(task: Task[Any], name: str, folder: Path) -> list[Any]:
    (folder / name).write_text(files_of(task.name)[name], encoding="utf-8")
    return task.read(folder / name)


def test_the_table_of_tasks_has_each() -> None:
    assert re.findall(r"^\| `([\w-]+)` \|", section("tasks.md", "Tasks"), re.MULTILINE) == list(TASKS)


@pytest.mark.slow
def test_each_task_is_trained_as_the_page_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_tiny_bert(tmp_path / "minilm")
    with Page("tasks.md", instead=SHORTER) as page:
        page.follow_all()
    trained = [json.loads(path.read_text())["task"] for path in tmp_path.glob("runs/*/model/bertsmith.json")]
    assert sorted(trained) == sorted(TASKS)
    for name in [name for name in TASKS if name != "tagging"]:  # whose only row of dev is a text with spans
        shown = json.loads(files_of(name)["prediction"])
        folder = tmp_path / "runs" / {"question-answering": "answers"}.get(name, name) / "predictions"
        (line, *_) = next(iter(folder.iterdir())).read_text().splitlines()
        assert list(json.loads(line)) == list(shown)


def test_the_first_task_is_trained_as_the_page_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_tiny_bert(tmp_path / "minilm")
    with Page("tasks.md", instead={"--out": "minutes=0 --out"}) as page:
        next(block for block in page.follow() if "finetune" in block.text)
    assert (tmp_path / "runs/classification/model").is_dir()


def logits(record: dict[str, Any], task: Task[Any], rows: int) -> Outputs:
    return np.log(np.array([list(record["probabilities"].values())], np.float32))[0]


def odds(record: dict[str, Any], task: Task[Any], rows: int) -> Outputs:
    return np.array([math.log(p / (1 - p)) for p in record["probabilities"].values()], np.float32)


def one_number(key: str) -> Callable[[dict[str, Any], Task[Any], int], Outputs]:
    return lambda record, task, rows: np.array([record[key]], np.float32)


def tag_scores(record: dict[str, Any], task: Task[Any], rows: int) -> Outputs:
    """Scores under which the record's tags are as probable as it says."""
    rest = len(task.labels) - 1
    scores = np.zeros((rows, len(task.labels)), np.float32)
    for row, (tag, sure) in enumerate(zip(record["tags"], record["confidence"], strict=True)):
        scores[row, task.labels.index(tag)] = math.log(sure / (1 - sure) * rest)
    return scores


def span_scores(record: dict[str, Any], task: Task[Any], rows: int) -> Outputs:
    """Of [CLS] and "the court sits in oslo …": 'oslo' is the fifth word."""
    scores = np.zeros((rows, 2), np.float32)
    scores[5] = 3.0
    return scores


def query_and_document(record: dict[str, Any], task: Task[Any], rows: int) -> Outputs:
    """Vectors of a query, its document and one more: the first two at the angle that the record says."""
    similarity = record["similarity"]
    return np.array([[1, 0], [similarity, math.sqrt(1 - similarity**2)], [0, 1]], np.float32)


def logit(record: dict[str, Any], task: Task[Any], rows: int) -> Outputs:
    return np.array([math.log(record["score"] / (1 - record["score"]))], np.float32)


# What a head would have to say for the prediction that the page shows.
OUTPUTS_BEHIND = {
    "classification": logits,
    "multi-label": odds,
    "regression": one_number("score"),
    "tagging": tag_scores,
    "question-answering": span_scores,
    "similarity": one_number("similarity"),
    "retrieval": query_and_document,
    "reranking": logit,
}


@pytest.mark.parametrize("name", TASKS)
def test_the_predictions_shown_are_what_the_task_makes_of_the_data_shown(name: str, tmp_path: Path) -> None:
    kind = find_task(name)
    task = kind(kind.Settings())
    file = next(iter(files_of(name)))
    examples = read_example(task, file, tmp_path)
    task.fit(examples)
    task.check(examples)
    shown = json.loads(files_of(name)["prediction"])
    split = encode_examples(task, examples, Tokenizer.from_pieces(PIECES, lowercase=True))
    for example, encoded in zip(split.examples, split.encoded, strict=True):
        rows = sum(len(window.rows) for window in encoded.windows)
        if as_json(task.line(example, {})).items() <= shown.items():
            outputs = OUTPUTS_BEHIND[name](shown, task, rows)
            (prediction,) = task.decode([outputs], [example], [encoded])
            line = as_json(task.line(example, prediction))
            break
    else:
        pytest.fail(f"the prediction shown for {name} is of no row of {file}")
    assert list(line) == list(shown)
    assert [key for key in shown if not close(line[key], shown[key])] == [], line


def as_json(line: dict[str, Any]) -> dict[str, Any]:
    read: dict[str, Any] = json.loads(json.dumps(line))
    return read


def close(value: Any, other: Any) -> bool:
    """Equal but for rounding."""
    if isinstance(value, dict):
        return value.keys() == other.keys() and all(close(value[key], other[key]) for key in value)
    if isinstance(value, list):
        return len(value) == len(other) and all(map(close, value, other))
    return bool(value == pytest.approx(other, abs=1e-4)) if isinstance(value, float) else value == other


def test_entities_by_characters_are_tags_of_words(tmp_path: Path) -> None:
    kind = find_task("tagging")
    task = kind(kind.Settings())
    columns, lines, spans = (read_example(task, name, tmp_path) for name in list(files_of("tagging"))[:3])
    assert columns[0].tags == ("B-PER", "I-PER", "O", "B-LOC")
    assert (lines[0].words, lines[0].tags) == (("Ben", "lives", "in", "Rome"), ("B-PER", "O", "O", "B-LOC"))
    assert spans[0].words == ("Paris", "welcomes", "Clara", "Hill", ".")
    assert spans[0].tags == ("B-LOC", "O", "B-PER", "I-PER", "O")
