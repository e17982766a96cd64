"""A tokenizer with pieces that its model has no rows for is refused when the model is opened."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from test_predictor import saved_model

from bertsmith.cli.main import main
from bertsmith.errors import ModelError
from bertsmith.inference.embedding.embedder import Embedder
from bertsmith.inference.features import Features
from bertsmith.inference.masked_language import MaskedLanguageModel
from bertsmith.inference.predictor import Predictor
from bertsmith.model.checkpoint import load_encoder
from bertsmith.model.manifest import read_verified_manifest, write_manifest
from bertsmith.tasks.pretraining.pretraining import PretrainingModel
from bertsmith.tasks.pretraining.pretraining_checkpoint import save_pretraining_model
from bertsmith.text.tokens.tokenizer import Tokenizer
from served_models import save_encoder


def with_one_piece_more(folder: Path) -> Path:
    manifest, tokenizer = read_verified_manifest(folder), Tokenizer.load(folder)
    assert manifest is not None
    Tokenizer.from_pieces([*tokenizer.pieces, "zuviel"], lowercase=True).save(folder)
    write_manifest(folder, manifest)
    return folder


@pytest.fixture(scope="module")
def spoilt(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("spoilt") / "model"
    return with_one_piece_more(saved_model(folder, "classification", ["no", "yes"]))


@pytest.mark.parametrize("opens", [Embedder, Predictor.load, Features])
def test_a_piece_without_a_row_is_refused_at_loading(
    opens: Callable[[Path], Any], spoilt: Path, tmp_path: Path
) -> None:
    complaint = r"has 1[56] pieces, the model only 1[45] rows\. Remove the pieces from 'zuviel' on"
    folder = with_one_piece_more(save_encoder(tmp_path / "encoder")) if opens is Embedder else spoilt
    with pytest.raises(ModelError, match=complaint):
        opens(folder)


def test_masks_are_not_filled_with_it(tmp_path: Path, tiny_bert: Path, tiny_tokenizer: Tokenizer) -> None:
    model = PretrainingModel(load_encoder(tiny_bert).config)
    save_pretraining_model(tmp_path / "model", model, tiny_tokenizer, {})
    with pytest.raises(ModelError, match="Remove the pieces from 'zuviel' on"):
        MaskedLanguageModel.load(with_one_piece_more(tmp_path / "model"))


def test_fine_tuning_leaves_nothing_behind(
    spoilt: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = "".join(f"bano zuviel {number},{'yes' if number % 2 else 'no'}\n" for number in range(400))
    (tmp_path / "train.csv").write_text("text,label\n" + rows)
    command = ["finetune", "classification", "--model", str(spoilt), "--train", str(tmp_path / "train.csv")]
    assert main([*command, "--out", str(tmp_path / "new" / "run"), "max_length=16"]) == 2
    assert "Remove the pieces from 'zuviel' on" in " ".join(capsys.readouterr().err.split())
    assert [path.name for path in tmp_path.iterdir()] == ["train.csv"]
