"""A tiny encoder with random weights, and sentences of its words, for what is made from an encoder."""

from pathlib import Path

import numpy as np
import torch

from bertsmith.model.bert import Bert
from bertsmith.model.checkpoint import save_checkpoint
from bertsmith.model.config import make_config
from bertsmith.model.static_table import StaticTable
from bertsmith.tasks.checkpoints.task_checkpoint import on_table, save_task_model
from bertsmith.tasks.classification import Classification
from bertsmith.text.tokens.tokenizer import Tokenizer

NAMES = ("red", "blue", "green", "small", "large", "old", "new", "cat", "dog", "bird", "runs", "sleeps")
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *NAMES, "##s", "##er", *"abcdefghij"]
PIECES += [f"[unused{number}]" for number in range(99)]


def save_teacher(folder: Path, **changes: object) -> Path:
    """Two layers of 32; weights larger than at birth, so that a word's vector depends on its neighbours."""
    shape = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    values = {"vocab_size": len(PIECES), "max_position_embeddings": 64, **shape, **changes}
    config = make_config(values, "test")
    torch.manual_seed(0)
    encoder = Bert(config)
    with torch.no_grad():
        for parameter in encoder.parameters():
            if parameter.ndim == 2:
                parameter.normal_(0, 0.15)
    tensors = {f"encoder.{name}": tensor for name, tensor in encoder.state_dict().items()}
    tokenizer = Tokenizer.from_pieces(PIECES, lowercase=True)
    architecture = f"{config.family.class_prefix}Model"
    save_checkpoint(folder, tensors, config, architecture, task="encoder", tokenizer=tokenizer)
    return folder


def save_table_of_classes(folder: Path) -> Path:
    """A static table with a linear head for cats and dogs; all of random numbers."""
    tokenizer = Tokenizer.from_pieces(PIECES, lowercase=True)
    task = Classification(Classification.Settings(pooling="mean"), ("cat", "dog"))
    torch.manual_seed(0)
    model = on_table(StaticTable(torch.randn(len(PIECES), 8)), task)
    with torch.no_grad():
        for parameter in model.head.parameters():
            parameter.normal_()
    save_task_model(folder, model, task, tokenizer, {"seed": 0})
    return folder


def sentences(count: int, seed: int = 0) -> list[str]:
    """Of 3 to 9 words, one a paragraph."""
    random = np.random.default_rng(seed)
    return [" ".join(random.choice(NAMES, random.integers(3, 10))) + "." for _ in range(count)]
