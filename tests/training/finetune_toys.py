"""Fine-tuning runs of a second: a tiny random BERT, and labels that one word of a text decides."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from bertsmith.tasks.pretraining.pretraining import PretrainingModel
from bertsmith.tasks.pretraining.pretraining_checkpoint import save_pretraining_model
from bertsmith.training.finetuning.finetune import FinetuneResult, finetune
from random_encoder import random_encoder, randomise, tokenizer_and_config

FILLERS = [first + last for first in "bdfg" for last in ("ano", "elo", "iru")]
SIGNS = {"happy": "good", "sunny": "good", "awful": "bad", "rainy": "bad"}  # word → label
SMALL_RUN = (
    "max_length=32",
    "optimizer.learning_rate=0.01",
    "batch_size=8",
    "dropout=0",
    "hardware.threads=1",
)
SHORT_RUN = (*SMALL_RUN, "epochs=5")  # of the usual 10
Draw = np.random.Generator


def tiny_encoder(folder: Path, *, masked_language: bool = False) -> Path:
    """A BERT of random weights and its tokenizer; with a masked-language head as pre-training leaves it, and
    the labels among the vocabulary.
    """
    words = [*FILLERS, *SIGNS, "##s", ".", "where", "?"]
    if not masked_language:
        return random_encoder(folder, words)
    tokenizer, config = tokenizer_and_config([*words, "good", "bad"])
    model = PretrainingModel(config, next_sentence=False)
    randomise(model)
    save_pretraining_model(folder, model, tokenizer, {})
    return folder


def sentence(draw: Draw) -> tuple[list[str], int, str]:
    """Words, the place of the sign among them, and the sign."""
    words = [str(word) for word in draw.choice(FILLERS, draw.integers(2, 7))]
    sign, place = str(draw.choice(list(SIGNS))), int(draw.integers(0, len(words)))
    words[place] = sign
    return words, place, sign


def _text(draw: Draw, label: Callable[[str], Any]) -> dict[str, Any]:
    words, _, sign = sentence(draw)
    return {"text": " ".join(words), "label": label(sign)}


def _tagged(draw: Draw) -> dict[str, Any]:
    words, place, sign = sentence(draw)
    tags = ["B-" + SIGNS[sign].upper() if number == place else "O" for number in range(len(words))]
    return {"words": words, "tags": tags}


def _asked(draw: Draw) -> dict[str, Any]:
    words, _, sign = sentence(draw)
    return {"question": "where?", "passage": " ".join(words), "answer": sign}


def _compared(draw: Draw) -> dict[str, Any]:
    (first, _, sign), (second, _, other) = sentence(draw), sentence(draw)
    same = SIGNS[sign] == SIGNS[other]
    return {"text1": " ".join(first), "text2": " ".join(second), "score": 5.0 if same else 0.0}


ROWS: dict[str, Callable[[Draw], dict[str, Any]]] = {
    "classification": lambda draw: _text(draw, lambda sign: SIGNS[sign]),
    "multi-label": lambda draw: _text(draw, lambda sign: [SIGNS[sign], sign]),
    "regression": lambda draw: _text(draw, lambda sign: 100.0 + 10.0 * list(SIGNS).index(sign)),
    "tagging": _tagged,
    "question-answering": _asked,
    "similarity": _compared,
}


def write_rows(path: Path, task: str, count: int, seed: int = 0) -> Path:
    """Rows of a task as JSON lines."""
    draw = np.random.Generator(np.random.PCG64DXSM(seed))
    path.write_text("".join(json.dumps(ROWS[task](draw)) + "\n" for _ in range(count)))
    return path


def run(task: str, model: Path, folder: Path, *overrides: str, **files: Any) -> FinetuneResult:
    """A run over 96 rows, dev of 40 unless told otherwise."""
    train = files.pop("train", None) or write_rows(folder / "train.jsonl", task, 96)
    dev = files.pop("dev", None) or write_rows(folder / "dev.jsonl", task, 40, seed=1)
    places = {"model": str(model), "train": str(train), "dev": str(dev), "out": str(folder / "run")}
    return finetune(task, *SHORT_RUN, *overrides, **(places | files))
