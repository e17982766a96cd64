"""One training at a time in a folder: a second one is refused, and the lock dies with its process."""

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from finetune_toys import run, tiny_encoder, write_rows

from bertsmith.errors import RecipeError
from bertsmith.training.finetuning import finetune, tune
from bertsmith.training.machine import Machine, Ranks
from bertsmith.training.pretrain import pretrain
from bertsmith.training.recipe import check_recipe
from bertsmith.training.run import lock_run

IN_USE = r"run is in use: another process is training there\. Wait until it has ended"
MACHINE = Machine(torch.device("cpu"), torch.float32, 1e9, Ranks(), 512)
HOLDS_IT = """
import sys, time, torch
from pathlib import Path
from bertsmith.training.machine import Ranks
from bertsmith.training.machine import Machine
from bertsmith.training.pretrain import pretrain
from bertsmith.training.recipe import check_recipe
from bertsmith.training.run import lock_run
with lock_run(Path(sys.argv[1]), Machine(torch.device("cpu"), torch.float32, 1e9, Ranks(), 512)):
    print("locked", flush=True)
    time.sleep(600)
"""


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_encoder(tmp_path_factory.mktemp("toy") / "encoder")


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine whose speed needs no measuring, and no pictures."""
    monkeypatch.setattr("bertsmith.training.machine.matmul_flops", lambda *_, **__: 1e9)
    monkeypatch.setattr(finetune, "write_finetune_report", lambda *_: None)


def once(happens: Callable[[], None], before: Callable[..., Any]) -> Callable[..., Any]:
    """`before`, at whose first call something happens first."""
    left = [happens]

    def call(*given: Any, **named: Any) -> Any:
        while left:
            left.pop()()
        return before(*given, **named)

    return call


def test_two_runs_that_begin_together_are_not_mixed(
    encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second begins while the first still reads its data, before there is anything in the folder."""

    def second() -> None:
        with pytest.raises(RecipeError, match=IN_USE):
            run("classification", encoder, tmp_path, "epochs=1", "seed=7")

    monkeypatch.setattr(finetune.FinetuneSession, "open", once(second, finetune.FinetuneSession.open))
    result = run("classification", encoder, tmp_path, "epochs=1")
    assert [restart.seed for restart in result.results.restarts] == [0]
    assert "seed = 0" in (tmp_path / "run" / "recipe.toml").read_text()


def test_a_run_is_not_resumed_while_it_is_at_work(
    encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def again() -> None:
        with pytest.raises(RecipeError, match=IN_USE):
            run("classification", encoder, tmp_path, "epochs=1", resume=True)

    monkeypatch.setattr(finetune, "train_restart", once(again, finetune.train_restart))
    run("classification", encoder, tmp_path, "epochs=1")
    run("classification", encoder, tmp_path, "epochs=1", resume=True)


def test_a_search_is_alone_in_its_folder_too(encoder: Path, tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    train = write_rows(tmp_path / "train.jsonl", "classification", 40)
    with lock_run(tmp_path / "run", MACHINE), pytest.raises(RecipeError, match=IN_USE):
        tune.tune("classification", model=str(encoder), train=str(train), out=str(tmp_path / "run"))


def test_pre_training_is_alone_in_its_folder_too(tmp_path: Path) -> None:
    """Before it looks for its tokenizer, which this one lacks."""
    values = {"steps": 10, "optimizer": {"warmup": 1}, "out": str(tmp_path / "run")}
    recipe = check_recipe(values, "test")
    with lock_run(tmp_path / "run", MACHINE), pytest.raises(RecipeError, match=IN_USE):
        pretrain(recipe)
    with pytest.raises(RecipeError, match="needs a tokenizer"):
        pretrain(recipe)
    assert not (tmp_path / "run").exists()


def test_the_lock_dies_with_its_process(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLDS_IT, str(tmp_path / "run")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "locked\n"
        with pytest.raises(RecipeError, match=IN_USE), lock_run(tmp_path / "run", MACHINE):
            pass
        other.send_signal(signal.SIGKILL)
    with lock_run(tmp_path / "run", MACHINE):
        pass


def test_nothing_is_left_of_a_run_that_began_nothing(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    for out in (tmp_path / "new" / "run", tmp_path / "kept" / "run"):
        with lock_run(out, MACHINE):
            assert not list(out.iterdir())
    assert [path.name for path in tmp_path.rglob("*")] == ["kept"]
    with lock_run(tmp_path / "kept" / "run", MACHINE):
        (tmp_path / "kept" / "run" / "recipe.toml").touch()
    assert (tmp_path / "kept" / "run" / "recipe.toml").exists()


def test_other_ranks_leave_the_lock_to_the_first(tmp_path: Path) -> None:
    second = Machine(torch.device("cpu"), torch.float32, 1e9, Ranks(1, 2), 512)
    with lock_run(tmp_path / "run", MACHINE):
        with lock_run(tmp_path / "run", second):
            assert (tmp_path / "run").is_dir()
        # the second one's end has not let go of it
        with pytest.raises(RecipeError, match="is in use"), lock_run(tmp_path / "run", MACHINE):
            pass
