"""`check --against` holds a folder against transformers and sentence-transformers, and names what differs."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from test_check import (
    TOKENIZER,
    roll_positions,
    settings,
    shift_half,
    swap_layers,
    tensors,
    transpose,
)

from bertsmith.cli.main import main
from bertsmith.errors import InputError
from bertsmith.inference.checking import oracles
from bertsmith.inference.checking.check import check_model
from bertsmith.inference.checking.oracles import their_answers
from bertsmith.tasks.golden.comparison import compare
from bertsmith.tasks.golden.records import answers_of
from bertsmith.tasks.golden.subject import open_subject
from bertsmith.tasks.golden.texts import golden_inputs
from served_models import save_encoder, save_fine_tuned, save_pretrained

pytest.importorskip("transformers")

HEADS = ["classification", "multi-label", "regression", "tagging", "question-answering", "reranking"]


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    place = tmp_path_factory.mktemp("models")
    made = {name: save_fine_tuned(place / name, name) for name in HEADS}
    made["masked-language"] = save_pretrained(place / "masked-language")
    made["embedding"] = save_encoder(place / "embedding")
    return made


@pytest.mark.parametrize("kind", [*HEADS, "masked-language", "embedding"])
def test_transformers_makes_the_same_of_every_stage(sound: dict[str, Path], kind: str) -> None:
    found = check_model(sound[kind], against="transformers").comparisons["float32"]
    assert found.agrees, found.differences
    assert found.texts >= 3
    assert 0 < found.largest.size < 1e-4


def test_sentence_transformers_makes_the_same_vectors(sound: dict[str, Path]) -> None:
    pytest.importorskip("sentence_transformers")
    found = check_model(sound["embedding"], against="sentence-transformers").comparisons["float32"]
    assert found.agrees, found.differences
    assert found.texts >= 20


def roll_head(found: dict[str, torch.Tensor]) -> None:
    found["classifier.weight"] = found["classifier.weight"].roll(1, 0)


DAMAGES: dict[str, tuple[Any, str]] = {
    "positions moved by one": (tensors(roll_positions), "embeddings"),
    "layers swapped": (tensors(swap_layers), "layer 1"),
    "a square weight transposed": (tensors(transpose), "layer 2"),
    "the head's rows moved": (tensors(roll_head), "head"),
    "half the vocabulary shifted": (settings(TOKENIZER, shift_half), "token ids"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_the_stage_at_which_another_tool_differs_is_named(
    sound: dict[str, Path], tmp_path: Path, damage: str
) -> None:
    make, stage = DAMAGES[damage]
    subject = open_subject(sound["classification"])
    inputs = golden_inputs(subject.tokenizer, subject.max_length)
    folder = Path(shutil.copytree(sound["classification"], tmp_path / "model"))
    make(folder)
    theirs = their_answers("transformers", folder, subject, inputs)
    found = compare(theirs, answers_of(subject, inputs), 1e-4, told=False)
    assert found.differences[0].stage == stage


def test_a_tool_that_is_missing_is_named_with_its_install_command(
    sound: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(name: str) -> Any:
        raise ModuleNotFoundError(name)

    monkeypatch.setattr(oracles, "import_module", missing)
    with pytest.raises(InputError, match="pip install sentence-transformers"):
        check_model(sound["embedding"], against="sentence-transformers")


def test_the_command_says_with_what_it_compares(
    sound: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", str(sound["tagging"]), "--against", "transformers"]) == 0
    assert "beside transformers 5" in capsys.readouterr().out
