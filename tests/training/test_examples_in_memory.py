"""Training on examples in memory is the same training as that of a run with files."""

from pathlib import Path

import pytest
import torch

from bertsmith.errors import RecipeError
from bertsmith.model.bert import Bert
from bertsmith.model.checkpoint import load_encoder, save_checkpoint
from bertsmith.model.config import make_config
from bertsmith.tasks.checkpoints.task_checkpoint import load_task_model
from bertsmith.tasks.classification import Classification
from bertsmith.text.tokens.tokenizer import Tokenizer
from bertsmith.training.finetune_recipe import check_task_settings, make_finetune_recipe
from bertsmith.training.finetuning.finetune import finetune
from bertsmith.training.finetuning.in_memory import finetune_examples

COLOURS, ANIMALS = ("red", "blue", "green"), ("cat", "dog", "bird", "horse")
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", *COLOURS, *ANIMALS]
OVERRIDES = ["hardware.threads=1", "hardware.device=cpu", "hardware.precision=float32"]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    torch.manual_seed(1)
    shape = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    config = make_config({"vocab_size": len(PIECES), "max_position_embeddings": 16, **shape}, "test")
    save_checkpoint(
        tmp_path / "tiny",
        {f"encoder.{name}": tensor for name, tensor in Bert(config).state_dict().items()},
        config,
        "BertModel",
        task="test",
        tokenizer=Tokenizer.from_pieces(PIECES, lowercase=True),
        provenance={},
    )
    return tmp_path / "tiny"


def write_rows(path: Path, article: str) -> str:
    rows = [f"{article}{colour} {animal},{colour}" for animal in ANIMALS for colour in COLOURS]
    path.write_text("\n".join(["text,label", *rows]))
    return str(path)


def test_it_gives_the_weights_and_the_calibration_of_the_same_run_with_files(
    model: Path, tmp_path: Path
) -> None:
    train, dev = write_rows(tmp_path / "train.csv", ""), write_rows(tmp_path / "dev.csv", "the ")
    values = {"epochs": 3, "batch_size": 5, "seed": 7, "max_length": 12}
    run = finetune(
        "classification",
        *OVERRIDES,
        model=str(model),
        train=train,
        dev=dev,
        out=str(tmp_path / "run"),
        **values,
    )
    theirs, their_task = load_task_model(run.model)
    given = {"task": "classification", "model": str(model), "train": train, "out": "", **values}
    recipe = make_finetune_recipe(given, OVERRIDES)
    task = Classification(check_task_settings(recipe, Classification))
    ours = finetune_examples(task, recipe, task.read(train), task.read(dev)).model
    expected = theirs.state_dict()
    assert ours.state_dict().keys() == expected.keys()
    for name, tensor in ours.state_dict().items():
        assert torch.equal(tensor, expected[name]), name
    assert task.state()["confidence"] == their_task.state()["confidence"]


def test_few_rows_choose_the_method_calibrate_and_all_train(model: Path, tmp_path: Path) -> None:
    train = write_rows(tmp_path / "train.csv", "")
    given = {"task": "classification", "model": str(model), "train": train, "out": "", "max_length": 12}
    recipe = make_finetune_recipe({**given, "epochs": 2, "minutes": 5}, OVERRIDES)
    task = Classification(check_task_settings(recipe, Classification))
    before = torch.get_rng_state()
    trained = finetune_examples(task, recipe, task.read(train))
    assert trained.choice is not None
    methods = ["linear", "names", "contrastive", "full", "lora"]
    assert [each.method for each in trained.choice.tried] == methods
    assert trained.choice.tried[0].rows == 12
    assert all(each.score is not None for each in trained.choice.tried)
    assert trained.recipe.method == trained.choice.method
    assert "temperature" in task.state()["confidence"]
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("method", ["linear", "contrastive", "full"])
def test_a_named_method_is_trained_once_and_compared_with_nothing(
    model: Path, tmp_path: Path, method: str
) -> None:
    train = write_rows(tmp_path / "train.csv", "")
    given = {"task": "classification", "model": str(model), "train": train, "out": "", "max_length": 12}
    recipe = make_finetune_recipe({**given, "epochs": 2, "method": method}, OVERRIDES)
    task = Classification(check_task_settings(recipe, Classification))
    trained = finetune_examples(task, recipe, task.read(train))
    tried = [] if trained.choice is None else [each.method for each in trained.choice.tried]
    assert tried == (["linear"] if method == "linear" else [])  # whose folds cost no training
    assert trained.recipe.method == method
    before = load_encoder(model).state_dict()
    after = trained.model.encoder.state_dict()
    same = all(torch.equal(before[name], tensor) for name, tensor in after.items())
    assert same == (method == "linear")


def test_restarts_are_refused(model: Path, tmp_path: Path) -> None:
    train = write_rows(tmp_path / "train.csv", "")
    given = {"task": "classification", "model": str(model), "train": train, "out": "", "restarts": 2}
    recipe = make_finetune_recipe(given, [])
    task = Classification(check_task_settings(recipe, Classification))
    with pytest.raises(RecipeError, match="restarts are for runs with files"):
        finetune_examples(task, recipe, task.read(train))


def test_folds_beside_a_dev_set_are_refused(model: Path, tmp_path: Path) -> None:
    """One of them judges."""
    train = write_rows(tmp_path / "train.csv", "")
    given = {"task": "classification", "model": str(model), "train": train, "out": "", "max_length": 12}
    recipe = make_finetune_recipe(given | {"folds": 3}, [])
    task = Classification(check_task_settings(recipe, Classification))
    rows = task.read(train)
    with pytest.raises(RecipeError, match="folds = 3 would judge where a dev set does"):
        finetune_examples(task, recipe, rows, rows)
