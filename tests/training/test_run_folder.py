"""Who looks whether a folder holds a run, and when the first file of a new one may be written."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from bertsmith.errors import RecipeError
from bertsmith.training import pretrain, run
from bertsmith.training.finetune_recipe import FinetuneRecipe, make_finetune_recipe
from bertsmith.training.finetuning.methods import apply_method
from bertsmith.training.machine import Machine, Ranks
from bertsmith.training.recipe import check_recipe
from bertsmith.training.run_folder import (
    find_run_folder,
    open_finetuning,
    open_run,
    require_unused,
    write_recipe,
)


class Stopped(Exception):
    """The first file would be written now."""


def test_all_ranks_have_looked_twice_before_a_run_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Set up only after the first look, and alone in the folder before the second."""
    happened: list[str] = []
    machine = Machine(torch.device("cpu"), torch.float32, 1e9, Ranks(1, 2), 512)
    recipe = FinetuneRecipe(task="classification", model="m", train="t", out=str(tmp_path / "run"))

    @contextmanager
    def alone(out: Path, on: Machine) -> Iterator[None]:
        assert (out, on) == (tmp_path / "run", machine)
        happened.append("alone")
        yield
        happened.append("others may begin")

    def look() -> FinetuneRecipe:
        happened.append("look")
        return recipe

    def set_up(*_: object) -> Machine:
        happened.append("set up")
        return machine

    monkeypatch.setattr(run, "set_up_machine", set_up)
    monkeypatch.setattr(run, "lock_run", alone)
    monkeypatch.setattr(run, "wait_for_ranks", lambda: happened.append("wait"))
    monkeypatch.setattr(run, "leave_ranks", lambda: happened.append("leave"))
    with run.Run.open(look, resume=True, console=Console(quiet=True)) as opened:
        happened.append("begin")
    before = ["look", "set up", "alone", "look", "wait", "begin"]
    assert happened == [*before, "others may begin", "leave"]
    assert (opened.recipe, opened.out, opened.resume) == (recipe, tmp_path / "run", True)
    assert not opened.is_first
    assert opened.console is None


def test_ranks_part_where_a_run_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left: list[bool] = []
    monkeypatch.setattr("bertsmith.training.machine.matmul_flops", lambda *_, **__: 1e9)
    monkeypatch.setattr(run, "leave_ranks", lambda: left.append(True))
    recipe = FinetuneRecipe(task="classification", model="m", train="t", out=str(tmp_path / "run"))
    with pytest.raises(Stopped), run.Run.open(lambda: recipe, resume=False):
        raise Stopped
    assert left == [True]
    assert not (tmp_path / "run").exists()


def test_a_run_goes_on_with_other_micro_batches_but_not_with_other_batches(tmp_path: Path) -> None:
    """Smaller ones are what a run that ran out of memory is told to take."""

    def recipe(**data: int) -> Any:
        return check_recipe(
            {"steps": 10, "optimizer": {"warmup": 1}, "out": str(tmp_path), "data": data}, "test"
        )

    write_recipe(recipe(batch_size=64), tmp_path)
    assert open_run(recipe(batch_size=64, micro_batch_tokens=512), resume=True) == tmp_path
    with pytest.raises(RecipeError, match=r"other settings: data\.batch_size\."):
        open_run(recipe(batch_size=32, micro_batch_tokens=512), resume=True)


def test_a_run_goes_on_where_a_list_is_given_as_a_tuple(tmp_path: Path) -> None:
    """From Python either is as good; the stored recipe has lists."""
    values = {"task": "classification", "model": "m", "train": "t", "out": str(tmp_path)}
    given = make_finetune_recipe(values | {"features": ("age", "plan")}, [])
    write_recipe(given, tmp_path)
    open_finetuning(given, resume=True)
    other = make_finetune_recipe(values | {"features": ("age",)}, [])
    with pytest.raises(RecipeError, match=r"other settings: settings\.features\."):
        open_finetuning(other, resume=True)


def test_frozen_layers_that_are_given_are_those_that_the_run_began_with(tmp_path: Path) -> None:
    """The method upper chooses them only where they aren't given."""
    values = {"task": "classification", "model": "m", "train": "t", "out": str(tmp_path), "method": "upper"}
    write_recipe(make_finetune_recipe(values | {"freeze_layers": 2}, []), tmp_path)
    assert open_finetuning(make_finetune_recipe(values, []), resume=True).freeze_layers == 2
    with pytest.raises(RecipeError, match=r"other settings: freeze_layers\."):
        open_finetuning(make_finetune_recipe(values | {"freeze_layers": 3}, []), resume=True)


@pytest.mark.parametrize(
    ("given", "is_same"), [({}, True), ({"freeze_layers": 0}, True), ({"freeze_embeddings": True}, False)]
)
def test_frozen_layers_that_upper_chose_are_kept_where_none_are_given(
    tmp_path: Path, given: dict[str, Any], is_same: bool
) -> None:
    """Neither are they with 0 layers, with which upper chooses; with embeddings alone it doesn't."""
    values = {"task": "classification", "model": "m", "train": "t", "out": str(tmp_path), "method": "upper"}
    write_recipe(apply_method("upper", make_finetune_recipe(values, []), 12), tmp_path)
    with nullcontext() if is_same else pytest.raises(RecipeError, match=r"other settings: freeze_layers\."):
        assert open_finetuning(make_finetune_recipe(values | given, []), resume=True).freeze_layers == 6


def test_a_run_that_was_moved_does_not_begin_anew_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def not_reached(*_: object) -> None:
        raise Stopped

    monkeypatch.setattr(pretrain, "restore_decay_start", not_reached)
    monkeypatch.chdir(tmp_path)
    recipe = check_recipe({"steps": 10, "optimizer": {"warmup": 1}, "out": "runs/law"}, "test")
    write_recipe(recipe, Path("runs/law"))
    Path("runs/law/checkpoints").mkdir()
    with pytest.raises(Stopped):
        pretrain.pretrain("runs/law/recipe.toml", resume=True)
    Path("runs/law").rename("moved")
    moved = "lies beside the checkpoints of a run, but names runs/law as its folder. Give out=moved to go on"
    with pytest.raises(RecipeError, match=moved):
        pretrain.pretrain("moved/recipe.toml", resume=True)
    for overrides, resume in ((["out=moved"], True), ([], False)):
        with pytest.raises(Stopped):
            pretrain.pretrain("moved/recipe.toml", *overrides, resume=resume)
    Path("moved/checkpoints").rmdir()  # a recipe alone
    with pytest.raises(Stopped):
        pretrain.pretrain("moved/recipe.toml", resume=True)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("config.json", "is the folder of a model: the run would write among its files"),
        ("manifest.json", "is the folder of a corpus or of tokens"),
        ("index.json", "is the folder of an index"),
        ("vocab.txt", "is the folder of a tokenizer"),
        *((name, f"{name} exists, but .* holds no run") for name in ("model", "results.json", "report.html")),
    ],
)
def test_a_run_neither_begins_among_other_files_nor_replaces_any(
    name: str, reason: str, tmp_path: Path
) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    require_unused(tmp_path)
    (tmp_path / name).write_text("{}")
    with pytest.raises(RecipeError, match=reason):
        require_unused(tmp_path)


@pytest.mark.parametrize("name", ["long", "step-lr"])
def test_the_run_of_a_checkpoint_may_have_any_name(name: str) -> None:
    folder = Path("runs") / name
    assert find_run_folder(folder) == folder
    assert find_run_folder(folder / "checkpoints" / "step-00001000") == folder
