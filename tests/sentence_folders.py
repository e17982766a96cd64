"""Folders of sentence-transformers and of transformers around a tiny encoder, to be altered key by key."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from bertsmith.model.bert import Bert
from bertsmith.model.checkpoint import save_checkpoint
from random_encoder import random_encoder, tokenizer_and_config

WORDS = (
    "red",
    "blue",
    "green",
    "small",
    "large",
    "old",
    "new",
    "cat",
    "dog",
    "bird",
    "runs",
    "sleeps",
    "query",
    "οδοσ",
)
TEXTS = (
    "red cat",
    "the old dog sleeps",
    "a small blue bird runs and runs",
    "new",
    "OLD Cat ΟΔΟΣ",
    "green large dog cat " * 9,
)
WIDTH = 16
CLASSIFIER, READER = "BertForSequenceClassification", "BertForQuestionAnswering"
TRANSFORMER, POOLING = ("Transformer", {}), ("Pooling", {"pooling_mode_mean_tokens": True})


def save_sentence_folder(
    folder: Path,
    modules: Sequence[tuple[str, Mapping[str, Any]]] = (TRANSFORMER, POOLING, ("Normalize", {})),
    said: Mapping[str, Any] | None = None,
) -> Path:
    """Kinds of modules with the keys of each; `said` is config_sentence_transformers.json. A Dense has
    weights of chance, of the shape that its keys name.
    """
    random_encoder(folder, WORDS, WIDTH)
    (folder / "bertsmith.json").unlink()  # so that it may be altered
    listed = []
    for number, (kind, keys) in enumerate(modules):
        path = "" if kind == "Transformer" else f"{number}_{kind}"
        name = f"sentence_transformers.models.{kind}"
        listed.append({"idx": number, "name": str(number), "path": path, "type": name})
        (folder / path).mkdir(exist_ok=True)
        if kind == "Pooling":
            keys = {"word_embedding_dimension": WIDTH, **keys}
        if kind == "Dense":
            save_dense(folder / path, **keys)
        if keys:
            file = "sentence_bert_config.json" if kind == "Transformer" else "config.json"
            write(folder / path / file, keys)
    write(folder / "modules.json", listed)
    if said is not None:
        write(folder / "config_sentence_transformers.json", said)
    return folder


def save_foreign(folder: Path, outputs: int, architecture: str = CLASSIFIER, **said: Any) -> Path:
    """A tiny BERT with a head of random weights, as transformers leaves it."""
    tokenizer, config = tokenizer_and_config(WORDS)
    torch.manual_seed(2)
    encoder = Bert(config)
    if architecture != CLASSIFIER:
        encoder.pooler = None
    tensors = {f"encoder.{name}": torch.randn_like(each) / 4 for name, each in encoder.state_dict().items()}
    head = "qa_outputs" if architecture == READER else "classifier"
    carried = {f"{head}.weight": torch.randn(outputs, 16), f"{head}.bias": torch.randn(outputs)}
    save_checkpoint(
        folder, tensors, config, architecture, task="imported", tokenizer=tokenizer, carried=carried
    )
    (folder / "bertsmith.json").unlink()
    rewrite(folder / "config.json", **said)
    return folder


def save_dense(folder: Path, **keys: Any) -> None:
    draw = torch.Generator().manual_seed(7)
    shape = keys["out_features"], keys["in_features"]
    tensors = {"linear.weight": torch.randn(shape, generator=draw)}
    if keys.get("bias", True):
        tensors["linear.bias"] = torch.randn(shape[0], generator=draw)
    save_file(tensors, folder / "model.safetensors")


def write(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content))


def rewrite(path: Path, **changes: Any) -> None:
    """Some keys of a JSON file."""
    write(path, json.loads(path.read_text()) | changes)
