"""Tiny teachers, and recipes that teach what they know in a second."""

from pathlib import Path
from typing import Any

import torch
from torch import nn

from bertsmith.compression.distilling.recipes import EncoderDistilRecipe, make_encoder_recipe
from bertsmith.model.bert import Bert
from bertsmith.model.checkpoint import save_checkpoint
from bertsmith.model.config import BertConfig, make_config
from bertsmith.tasks.checkpoints.sentence_folder import write_sentence_folder
from bertsmith.tasks.heads.pooling import Projection
from bertsmith.tasks.pretraining.pretraining import PretrainingModel
from bertsmith.tasks.pretraining.pretraining_checkpoint import save_pretraining_model
from bertsmith.text.tokens.tokenizer import Tokenizer

WORDS = [first + second for first in "bcdfghklmnprstvw" for second in ("al", "en", "ir", "om", "un", "ate")]
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ".", *WORDS]
SHAPE = {"hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 2, "intermediate_size": 64}


def tiny_tokenizer() -> Tokenizer:
    return Tokenizer.from_pieces(PIECES, lowercase=True)


def config_of(model_type: str = "bert", **more: Any) -> BertConfig:
    values = {"model_type": model_type, "vocab_size": len(PIECES), "max_position_embeddings": 64, **SHAPE}
    return make_config(values | {"pad_token_id": 0} | more, "test")


def drawn(module: nn.Module) -> nn.Module:
    """Weights larger than at birth, so that layers and tokens differ."""
    torch.manual_seed(5)
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.ndim == 2:
                parameter.normal_(0, 0.15)
    return module


def save_encoder(folder: Path, model_type: str = "bert") -> Path:
    config = config_of(model_type)
    tensors = {f"encoder.{name}": each for name, each in drawn(Bert(config)).state_dict().items()}
    name = f"{config.family.class_prefix}Model"
    save_checkpoint(folder, tensors, config, name, task="encoder", tokenizer=tiny_tokenizer())
    return folder


def save_embedder(
    folder: Path,
    pooling: str = "mean",
    prompts: dict[str, str] | None = None,
    projection: Projection | None = None,
) -> Path:
    config = config_of()
    tensors = {f"encoder.{name}": each for name, each in drawn(Bert(config)).state_dict().items()}
    save_checkpoint(
        folder,
        tensors,
        config,
        "BertModel",
        task="encoder",
        tokenizer=tiny_tokenizer(),
        write_extra_files=lambda path: write_sentence_folder(
            path, config, pooling, 32, normalise=True, prompts=prompts, projection=projection
        ),
    )
    return folder


def save_word_model(folder: Path, model_type: str = "bert", **more: Any) -> Path:
    model = drawn(PretrainingModel(config_of(model_type, **more), next_sentence=False))
    assert isinstance(model, PretrainingModel)
    save_pretraining_model(folder, model, tiny_tokenizer(), {})
    return folder


def recipe_of(teacher: Path, corpus: Path, out: Path, *changes: str, **values: Any) -> EncoderDistilRecipe:
    """Twelve steps of several micro-batches; `changes` are as on the command line."""
    usual: dict[str, Any] = {
        "teacher": str(teacher),
        "corpus": str(corpus),
        "out": str(out),
        "layers": 2,
        "steps": 12,
        "micro_batch_tokens": 128,
        "data": {"sequence_length": 24, "batch_size": 12},
        "optimizer": {"learning_rate": 3e-3},
        "checkpoint": {"every": 4},
        "evaluation": {"every": 6, "tokens": 2000},
        "hardware": {"device": "cpu", "precision": "float32", "threads": 1},
    }
    return make_encoder_recipe(usual | values, list(changes))
