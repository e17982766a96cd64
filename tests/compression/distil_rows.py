"""Rows of random words for every task, and teachers of random weights for them."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bertsmith.model.bert import Bert
from bertsmith.model.config import make_config
from bertsmith.tasks.checkpoints.task_checkpoint import save_task_model
from bertsmith.tasks.heads.pooling import Projection
from bertsmith.tasks.registry import find_task
from bertsmith.tasks.task import Task
from bertsmith.tasks.task_model import TaskModel
from bertsmith.text.tokens.tokenizer import Tokenizer

Draw = np.random.Generator
WORDS = [f"{first}{last}" for first in "bdfgklmnprst" for last in ("ano", "elo", "iru", "uma")]
SETTINGS: dict[str, dict[str, Any]] = {
    "tagging": {"crf": True},
    "classification": {"pooling": "mean"},
    "question-answering": {"stride": 4},
}


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


def tokenizer_of_words() -> Tokenizer:
    """Each word is a piece."""
    return Tokenizer.from_pieces(
        ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS, ".", "##s"], lowercase=True
    )


def save_teacher(
    folder: Path,
    name: str,
    seed: int,
    train: Path | None = None,
    projection: Projection | None = None,
    **settings: Any,
) -> Path:
    """A model of the task of this name in folder/model, fitted to the rows of `train`; two layers of 16."""
    kind, tokenizer = find_task(name), tokenizer_of_words()
    task: Task[Any] = kind(kind.Settings(max_length=32, **SETTINGS.get(name, {}), **settings))
    task.fit(task.read(train or write_rows(folder / "train.jsonl", name, 60)))
    task.projection = projection
    shape = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    config = make_config({"vocab_size": tokenizer.vocab_size, "max_position_embeddings": 64} | shape, "test")
    torch.manual_seed(seed)
    model = TaskModel(Bert(config), task.head(config)).eval()
    with torch.no_grad():  # with the usual 0.02, all texts would look alike
        for tensor in (p for n, p in model.named_parameters() if "norm" not in n and p.dim() == 2):
            tensor.normal_(0.0, 0.3)
    model.head.finish()
    task.bind(model.head)
    save_task_model(folder / "model", model, task, tokenizer, {})
    return folder / "model"
