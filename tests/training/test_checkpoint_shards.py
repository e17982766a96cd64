"""Training state that several processes write together: any number of processes reads it, or none of it."""

import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from torch import Tensor

from bertsmith.errors import ModelError, ResourceError
from bertsmith.training.checkpoint import (
    RunProgress,
    Shard,
    TrainingState,
    load_training_state,
    save_training_state,
)

LENGTHS = (1, 2, 5, 8, 13)
COUNTS = (1, 2, 3, 4)


class Together:
    """What the processes of a run share, for threads: each says a text and hears those of all."""

    def __init__(self, count: int) -> None:
        self.said = [""] * count
        self.barrier = threading.Barrier(count, timeout=30)

    def gather_as(self, number: int) -> Callable[[str], list[str]]:
        def gather(text: str) -> list[str]:
            self.said[number] = text
            self.barrier.wait()
            return list(self.said)

        return gather


def whole_state(step: int) -> TrainingState:
    draw = torch.Generator().manual_seed(step)
    weights = {f"of {length} rows": torch.randn(length, 3, generator=draw) for length in LENGTHS}
    moments = {f"{name}.exp_avg": weight**2 for name, weight in weights.items()}
    return TrainingState(RunProgress(step=step), weights, moments | {"step": torch.tensor(float(step))})


def divided(tensors: dict[str, Tensor], number: int, count: int) -> dict[str, Tensor]:
    """As torch.chunk divides, which may leave the last ones without any."""
    empty = torch.zeros(0, 3)
    return {
        name: [*tensor.chunk(count), *[empty] * count][number] if tensor.ndim else tensor
        for name, tensor in tensors.items()
    }


def save(folder: Path, step: int, count: int) -> list[Path | ResourceError]:
    """What became of it in each process."""
    state, together = whole_state(step), Together(count)

    def save_one(number: int) -> Path | ResourceError:
        parts = (divided(tensors, number, count) for tensors in (state.weights, state.optimizer))
        part = Shard(number, count, together.gather_as(number))
        try:
            return save_training_state(folder, TrainingState(state.progress, *parts), 2, part)
        except ResourceError as error:
            return error

    with ThreadPoolExecutor(count) as threads:
        return list(threads.map(save_one, range(count)))


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def equal(found: dict[str, Tensor], expected: dict[str, Tensor]) -> bool:
    return found.keys() == expected.keys() and all(torch.equal(found[name], expected[name]) for name in found)


@pytest.mark.parametrize("writers", COUNTS)
def test_every_number_of_processes_reads_what_any_number_wrote(writers: int, tmp_path: Path) -> None:
    save(tmp_path, 7, writers)
    for readers in COUNTS:
        for number in range(readers):
            found, complaints = load_training_state(tmp_path, Shard(number, readers))
            assert found is not None and complaints == []
            assert found.progress == RunProgress(step=7)
            assert equal(found.weights, divided(whole_state(7).weights, number, readers))
            assert equal(found.optimizer, divided(whole_state(7).optimizer, number, readers))


def test_nothing_is_left_beside_the_files_of_all(tmp_path: Path) -> None:
    save(tmp_path, 7, 2)
    assert names(tmp_path) == ["step-00000007"]
    assert names(tmp_path / "step-00000007") == [
        "optimizer-00001-of-00002.safetensors",
        "optimizer-00002-of-00002.safetensors",
        "state.json",
        "weights-00001-of-00002.safetensors",
        "weights-00002-of-00002.safetensors",
    ]


def lose(path: Path) -> None:
    path.unlink()


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def exchange_with_another(path: Path) -> None:
    path.write_bytes(path.with_name(path.name.replace("00002-of", "00001-of")).read_bytes())


@pytest.mark.parametrize("damage", [lose, cut, exchange_with_another])
@pytest.mark.parametrize("kind", ["weights", "optimizer"])
def test_a_damaged_part_is_noticed_by_those_who_do_not_need_it(
    kind: str, damage: Callable[[Path], None], tmp_path: Path
) -> None:
    """Or the processes would go on from different steps."""
    save(tmp_path, 4, 2)
    save(tmp_path, 8, 2)
    damage(tmp_path / "step-00000008" / f"{kind}-00002-of-00002.safetensors")
    for number in range(2):
        found, (complaint,) = load_training_state(tmp_path, Shard(number, 2))
        assert found is not None and found.progress.step == 4
        assert complaint.startswith("step-00000008 is damaged and was passed over: ")
        assert f"{kind}-00002-of-00002.safetensors" in complaint


def test_a_full_disk_of_one_process_is_an_error_of_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path, 4, 3)
    monkeypatch.setattr("bertsmith.files.flush", flush_that_fails_for("weights-00002-of-00003.safetensors"))
    outcomes: Sequence[object] = save(tmp_path, 8, 3)
    monkeypatch.undo()
    assert ["The disk is full" in str(outcome) for outcome in outcomes] == [True, True, True]
    assert names(tmp_path) == ["step-00000004"]
    found, _ = load_training_state(tmp_path)
    assert found is not None and equal(found.weights, whole_state(4).weights)


def test_what_killed_processes_left_is_removed(tmp_path: Path) -> None:
    save(tmp_path, 4, 2)
    (tmp_path / ".step-00000008.part-1").mkdir()
    (tmp_path / "..step-00000008.part-0.partial-123").mkdir()
    load_training_state(tmp_path)
    assert names(tmp_path) == ["step-00000004"]


def test_without_a_whole_checkpoint_there_is_a_sentence(tmp_path: Path) -> None:
    save(tmp_path, 4, 2)
    lose(tmp_path / "step-00000004" / "weights-00001-of-00002.safetensors")
    with pytest.raises(ModelError, match=r"No whole checkpoint is left in .*weights-00001-of-00002"):
        load_training_state(tmp_path)


def flush_that_fails_for(name: str):  # type: ignore[no-untyped-def]
    def flush(path: Path) -> None:
        if path.name == name:
            raise OSError(28, "No space left on device", str(path))

    return flush
