"""Teachers of a moment: tiny models of random weights, saved as fine-tuned ones are, and rows for them."""

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

for folder in ("tasks", "training"):
    sys.path.append(str(Path(__file__).parents[1] / folder))

from small_tasks import WORDS, make_task, random_model

from bertsmith.tasks.checkpoints.task_checkpoint import save_task_model
from bertsmith.tasks.task import Task
from bertsmith.text.tokens.tokenizer import Tokenizer

Draw = np.random.Generator
SETTINGS: dict[str, dict[str, Any]] = {"tagging": {"crf": True}, "classification": {"pooling": "mean"}}


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_pieces(
        ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS, ".", "##s"], lowercase=True
    )


def words(draw: Draw) -> str:
    return " ".join(str(word) for word in draw.choice(WORDS, draw.integers(3, 9)))


def _text(draw: Draw) -> dict[str, Any]:
    return {"text": words(draw)}


def _words(draw: Draw) -> dict[str, Any]:
    return {"words": words(draw).split()}


def _pair(draw: Draw) -> dict[str, Any]:
    return {"text1": words(draw), "text2": words(draw)}


def _asked(draw: Draw) -> dict[str, Any]:
    return {"question": "bano?", "passage": words(draw)}


def _candidate(draw: Draw) -> dict[str, Any]:
    return {"query": str(draw.choice(WORDS[:12])), "document": words(draw)}


def _sought(draw: Draw) -> dict[str, Any]:
    return {"query": words(draw), "positive": words(draw)}


# A row without its label, and what the task's labels may be.
ROWS: dict[str, tuple[Callable[[Draw], dict[str, Any]], str, list[Any]]] = {
    "classification": (_text, "label", ["no", "yes", "perhaps"]),
    "multi-label": (_text, "labels", [["a"], ["b", "c"], []]),
    "regression": (_text, "score", [1.5, 4.0, 2.25, 3.0]),
    "similarity": (_pair, "score", [0.0, 5.0, 2.0]),
    "reranking": (_candidate, "label", [0, 1, 0]),
    "retrieval": (_sought, "", []),
    "tagging": (_words, "tags", []),
    "question-answering": (_asked, "answer", []),
}


def write_rows(path: Path, task: str, count: int, seed: int = 0, *, labelled: bool = True) -> Path:
    """Rows of random words and labels, as JSON lines."""
    draw = np.random.Generator(np.random.PCG64DXSM(seed))
    row_of, name, values = ROWS[task]
    lines = []
    for number in range(count):
        row = row_of(draw)
        if labelled and task == "tagging":
            row["tags"] = [str(tag) for tag in draw.choice(["O", "B-PER", "B-LOC"], len(row["words"]))]
        elif labelled and task == "question-answering":
            row["answer"] = row["passage"].split()[number % 3]
        elif labelled and values:
            row[name] = values[number % len(values)]
        lines.append(json.dumps(row) + "\n")
    path.write_text("".join(lines))
    return path


@pytest.fixture(scope="session")
def make_teacher(tmp_path_factory: pytest.TempPathFactory, tokenizer: Tokenizer) -> Callable[..., Path]:
    """make_teacher(task, seed): the folder of one, made once."""
    made: dict[tuple[str, int], Path] = {}

    def make(name: str, seed: int = 5) -> Path:
        if (name, seed) not in made:
            folder = tmp_path_factory.mktemp(name)
            task: Task[Any] = make_task(name, max_length=32, stride=None, **SETTINGS.get(name, {}))
            task.fit(task.read(write_rows(folder / "train.jsonl", name, 60)))
            model = random_model(task, tokenizer, seed=seed)
            model.head.finish()
            save_task_model(folder / "model", model, task, tokenizer, {})
            made[name, seed] = folder / "model"
        return made[name, seed]

    return make
