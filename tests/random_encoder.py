"""An encoder of random weights and its tokenizer, in a folder: small enough to learn something in seconds."""

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import nn

from bertsmith.model.bert import Bert
from bertsmith.model.checkpoint import save_checkpoint
from bertsmith.model.config import BertConfig, make_config
from bertsmith.text.tokens.tokenizer import Tokenizer

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def random_encoder(folder: Path, words: Sequence[str], hidden_size: int = 16) -> Path:
    """Two layers over a vocabulary of these words."""
    tokenizer, config = tokenizer_and_config(words, hidden_size)
    model = Bert(config)
    randomise(model)
    tensors = {f"encoder.{name}": tensor for name, tensor in model.state_dict().items()}
    save_checkpoint(folder, tensors, config, "BertModel", task="encoder", tokenizer=tokenizer)
    return folder


def tokenizer_and_config(words: Sequence[str], hidden_size: int = 16) -> tuple[Tokenizer, BertConfig]:
    """Of such an encoder."""
    tokenizer = Tokenizer.from_pieces([*SPECIAL, *words], lowercase=True)
    shape = {
        "vocab_size": tokenizer.vocab_size,
        "max_position_embeddings": 64,
        "hidden_size": hidden_size,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 2 * hidden_size,
    }
    return tokenizer, make_config(shape, "test")


def randomise(model: nn.Module) -> None:
    """Weights that are large enough: with the usual 0.02, two hundred steps would hardly move it."""
    torch.manual_seed(1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" not in name and name.endswith("weight"):
                parameter.normal_(0.0, 0.2)
