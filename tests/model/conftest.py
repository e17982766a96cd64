"""A saved model, as we leave it and as another tool would."""

from pathlib import Path

import pytest
import torch
from model_folders import SPECIAL, tiny_config

from bertsmith.tasks.pretraining.pretraining import PretrainingModel
from bertsmith.tasks.pretraining.pretraining_checkpoint import save_pretraining_model
from bertsmith.text.tokens.tokenizer import Tokenizer


@pytest.fixture
def model_folder(tmp_path: Path) -> Path:
    torch.manual_seed(1)
    tokenizer = Tokenizer.from_pieces([*SPECIAL, "a", "b"], lowercase=True)
    save_pretraining_model(tmp_path / "model", PretrainingModel(tiny_config()), tokenizer, {"steps": 3})
    return tmp_path / "model"


@pytest.fixture
def foreign_folder(model_folder: Path) -> Path:
    """The same model as another tool would leave it: without our hashes."""
    (model_folder / "bertsmith.json").unlink()
    return model_folder
