"""A tiny encoder with random weights in a folder, for whatever needs a model quickly."""

from pathlib import Path

import pytest
import torch

from bertsmith.model.bert import Bert
from bertsmith.model.checkpoint import save_checkpoint
from bertsmith.model.config import BertConfig, make_config
from bertsmith.text.tokens.tokenizer import Tokenizer

WORDS = ("red", "blue", "green", "small", "large", "old", "new", "cat", "dog", "bird", "runs", "sleeps")
PIECES = [
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "[MASK]",
    *WORDS,
    "##s",
    "##er",
    *"abcdefghij",
    *"0123456789",
    "-",
]


@pytest.fixture(scope="session")
def tiny_tokenizer() -> Tokenizer:
    return Tokenizer.from_pieces(PIECES, lowercase=True)


@pytest.fixture(scope="session")
def tiny_bert(tmp_path_factory: pytest.TempPathFactory, tiny_tokenizer: Tokenizer) -> Path:
    """Two layers of 32, which reads 64 tokens; weights larger than at birth, so that layers differ."""
    folder = tmp_path_factory.mktemp("models") / "tiny"
    torch.manual_seed(0)
    config = tiny_config()
    encoder = Bert(config)
    with torch.no_grad():
        for parameter in encoder.parameters():
            if parameter.ndim == 2:
                parameter.normal_(0, 0.15)
    save_checkpoint(
        folder,
        {f"encoder.{name}": tensor for name, tensor in encoder.state_dict().items()},
        config,
        "BertModel",
        task="test",
        tokenizer=tiny_tokenizer,
        provenance={},
    )
    return folder


def tiny_config() -> BertConfig:
    shape = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    return make_config({"vocab_size": len(PIECES), "max_position_embeddings": 64, **shape}, "test")
