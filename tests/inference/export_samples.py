"""Tiny models of every head, in folders of their own, and rows to hold their graphs against them."""

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from bertsmith.inference.export.graph import Feed, Run
from bertsmith.inference.export.padded import PaddedModel
from bertsmith.model.bert import Bert
from bertsmith.model.config import make_config
from bertsmith.tasks.checkpoints.task_checkpoint import save_task_model
from bertsmith.tasks.finetuning import encode_examples
from bertsmith.tasks.registry import find_task
from bertsmith.tasks.task import Task
from bertsmith.tasks.task_model import TaskModel, outputs_of
from bertsmith.text.tokens.tokenizer import Tokenizer

WORDS = [f"{first}{last}" for first in "bdfgklmn" for last in ("ano", "elo", "iru", "uma")]
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS, "."]
FAMILIES: dict[str, dict[str, Any]] = {
    "bert": {},
    "jina_bert": {},
    "roberta": {"type_vocab_size": 1, "pad_token_id": 0},
    "distilbert": {},
    "electra": {"embedding_size": 24},
    "albert": {"embedding_size": 24},
    "gte": {"pad_token_id": 0, "type_vocab_size": 0},
    "modernbert": {"local_attention": 8, "global_attn_every_n_layers": 2, "pad_token_id": 0},
    "deberta-v2": {"position_buckets": 8, "conv_kernel_size": 3, "embedding_size": 24},
    "mpnet": {"pad_token_id": 1},
}
LABELS: dict[str, list[Any]] = {
    "classification": ["no", "yes", "perhaps"],
    "multi-label": [("a",), ("b", "c"), ()],
    "regression": [1.5, 4.0, 2.25],
    "similarity": [0.0, 5.0, 2.0],
    "reranking": [0.0, 2.0, 1.0],
}
PAIRS = ("similarity", "reranking", "retrieval", "question-answering")
NAMES = [*LABELS, "tagging", "question-answering", "retrieval"]


def tiny_tokenizer(family: str = "bert") -> Tokenizer:
    first = [PIECES[1], PIECES[0]] if family == "mpnet" else PIECES[:2]  # its padding is 1
    return Tokenizer.from_pieces([*first, *PIECES[2:]], lowercase=True)


def random_texts(count: int, longest: int = 30, seed: int = 0) -> list[str]:
    draw = np.random.Generator(np.random.PCG64DXSM(seed))
    return [" ".join(draw.choice(WORDS, draw.integers(1, longest))) for _ in range(count)]


def task_of(name: str, **settings: Any) -> Task[Any]:
    """A task that has learnt its labels."""
    kind = find_task(name)
    usual = {"max_length": 40, "text": "text", **({"text_pair": "text_pair"} if name in PAIRS else {})}
    if name in ("tagging", "question-answering", "retrieval"):
        usual = {"max_length": 40}
    task = kind(kind.Settings(**usual | settings))
    if name == "tagging":
        task.fit([dataclasses.replace(task.example(["bano"] * 3), tags=("B-PER", "I-PER", "O"))])
    elif name in LABELS:
        text: Any = ("bano", "delo") if name in PAIRS else "bano"
        task.fit([dataclasses.replace(task.example(text), label=label) for label in LABELS[name]])
    return task


def saved_model(
    folder: Path, name: str, family: str = "bert", layers: int = 2, scale: float = 0.2, **settings: Any
) -> Path:
    """A random model of the task; weights large enough that no error hides in near-uniform outputs."""
    tokenizer, task = tiny_tokenizer(family), task_of(name, **settings)
    shape = {
        "model_type": family,
        "vocab_size": tokenizer.vocab_size,
        "hidden_size": 16,
        "num_hidden_layers": layers,
        "num_attention_heads": 1,
        "intermediate_size": 32,
        "max_position_embeddings": 64,
    }
    config = make_config(shape | FAMILIES[family], "test")
    torch.manual_seed(3)
    model = TaskModel(Bert(config), task.head(config))
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            parameter.normal_(0.0, scale)
            if "norm" in key and key.endswith("weight"):
                parameter.add_(1.0)
    model.head.finish()
    if name in ("classification", "multi-label", "tagging"):
        _say_everything(model, task, tokenizer)
    save_task_model(folder, model, task, tokenizer, {})
    return folder


@torch.no_grad()
def _say_everything(model: TaskModel, task: Task[Any], tokenizer: Tokenizer) -> None:
    """Each output as often large as small, so that not every text has the same answer."""
    texts: list[Any] = random_texts(60, seed=5)
    examples = [task.example(text.split() if task.name == "tagging" else text) for text in texts]
    outputs = outputs_of(model.eval(), encode_examples(task, examples, tokenizer).encoded)
    found = torch.from_numpy(np.concatenate([np.atleast_2d(output) for output in outputs]))
    out = model.head.out
    assert isinstance(out, torch.nn.Linear)
    factor = 2 / found.std(0)
    out.bias.sub_(found.mean(0)).mul_(factor)
    out.weight.mul_(factor[:, None])


def gate_file(folder: Path, name: str, count: int = 30) -> Path:
    """Rows without labels, which the task reads."""
    texts, others = random_texts(count), random_texts(count, seed=1)
    path = folder / ("rows.txt" if name == "tagging" else "rows.jsonl")
    if name == "tagging":
        path.write_text("".join(f"{text}\n" for text in texts))
        return path
    second = {"question-answering": ("question", "passage"), "retrieval": ("query", "document")}
    keys = second.get(name, ("text", "text_pair"))
    rows = [
        dict(zip(keys, (text[:30], other) if name in PAIRS else (text,), strict=False))
        for text, other in zip(texts, others, strict=True)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def labelled_file(path: Path, count: int, labels: Sequence[str]) -> Path:
    rows = [
        {"text": text, "label": labels[number % len(labels)]}
        for number, text in enumerate(random_texts(count))
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def torch_run(model: PaddedModel) -> Run:
    """The padded twin by torch, in place of a graph: made in no time."""

    def run(feed: Feed) -> list[npt.NDArray[Any]]:
        with torch.no_grad():
            outputs = model(**{name: torch.from_numpy(value) for name, value in feed.items()})
        return [output.numpy() for output in outputs]

    return run
