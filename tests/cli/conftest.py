"""A tiny model to run commands with."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from bertsmith.model.bert import Bert
from bertsmith.model.checkpoint import load_encoder, save_checkpoint
from bertsmith.model.config import make_config
from bertsmith.tasks.checkpoints.sentence_folder import write_sentence_folder
from bertsmith.text.tokens.tokenizer import Tokenizer

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "red", "blue", "cat", "dog", "runs"]
SHAPE = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with a tiny model and a table."""
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    config = make_config({"vocab_size": len(PIECES), "max_position_embeddings": 32, **SHAPE}, "test")
    tensors = {f"encoder.{name}": tensor for name, tensor in Bert(config).state_dict().items()}
    tokenizer = Tokenizer.from_pieces(PIECES, lowercase=True)
    save_checkpoint(tmp_path / "model", tensors, config, "BertModel", task="test", tokenizer=tokenizer)
    rows = [{"id": f"d{n}", "text": text} for n, text in enumerate(["red cat", "blue dog runs", "", "cat"])]
    (tmp_path / "texts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


@pytest.fixture
def trained_for(tmp_path: Path) -> Callable[[str | Path, str], str]:
    """A copy of an encoder's folder that says it was trained for cosines, for dot products ("dot"), or for
    those of vectors of length 1, which are cosines ("either").
    """

    def copied(model: str | Path, similarity: str) -> str:
        folder = shutil.copytree(model, tmp_path / similarity)
        config = load_encoder(folder).config
        write_sentence_folder(folder, config, "mean", 32, normalise=similarity != "dot", prompts={})
        if similarity == "either":
            said = {"prompts": {}, "similarity_fn_name": "dot"}
            (folder / "config_sentence_transformers.json").write_text(json.dumps(said))
        return str(folder)

    return copied
