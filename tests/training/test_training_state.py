"""Training state on disk: back to the bit or not at all, and never fewer good ones than were asked for."""

import ctypes
import multiprocessing
import os
import subprocess
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bertsmith.data.stream import Cursor
from bertsmith.errors import ModelError, ResourceError
from bertsmith.training.checkpoint import RunProgress, TrainingState, load_training_state, save_training_state

FILES = ("weights.safetensors", "optimizer.safetensors", "state.json")


def state_at(step: int) -> TrainingState:
    draw = torch.Generator().manual_seed(step)
    weights = {"a.weight": torch.randn(7, 5, generator=draw), "a.bias": torch.randn(5, generator=draw)}
    optimizer = {"a.weight.exp_avg": torch.randn(7, 5, generator=draw), "a.weight.step": torch.tensor(3.0)}
    skipped = (Cursor(0, 0, 1, 2), Cursor(1, 3, 0, 9))
    progress = RunProgress(step, Cursor(1, 2, 3, step), 0.1 + 0.2, 2**40 + 1, 77, 1 / 3, skipped)
    return TrainingState(progress, weights, optimizer)


def assert_same(found: TrainingState | None, expected: TrainingState) -> None:
    assert found is not None and found.progress == expected.progress
    for tensors, others in ((found.weights, expected.weights), (found.optimizer, expected.optimizer)):
        assert tensors.keys() == others.keys()
        assert all(torch.equal(tensors[name], others[name]) for name in tensors)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_what_was_saved_is_loaded_to_the_bit(tmp_path: Path) -> None:
    save_training_state(tmp_path, state_at(5), keep=2)
    found, complaints = load_training_state(tmp_path)
    assert_same(found, state_at(5))
    assert complaints == []


def test_a_new_run_has_no_state(tmp_path: Path) -> None:
    assert load_training_state(tmp_path / "checkpoints") == (None, [])


def test_the_newest_are_kept(tmp_path: Path) -> None:
    for step in (1, 2, 3, 10):
        save_training_state(tmp_path, state_at(step), keep=2)
    assert names(tmp_path) == ["step-00000003", "step-00000010"]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(name=st.sampled_from(FILES), place=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
def test_any_flipped_bit_is_found_or_changes_nothing(
    name: str, place: float, bit: int, tmp_path: Path
) -> None:
    """It changes nothing in the white space of JSON."""
    path = save_training_state(tmp_path, state_at(8), keep=1) / name
    content = bytearray(path.read_bytes())
    content[int(place * len(content))] ^= 1 << bit
    path.write_bytes(content)
    try:
        found, _ = load_training_state(tmp_path)
    except ModelError:
        return
    assert_same(found, state_at(8))


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("share", [0.0, 0.5, 0.99])
def test_a_cut_file_is_passed_over(name: str, share: float, tmp_path: Path) -> None:
    save_training_state(tmp_path, state_at(4), keep=2)
    path = save_training_state(tmp_path, state_at(8), keep=2) / name
    os.truncate(path, int(path.stat().st_size * share))
    found, (complaint,) = load_training_state(tmp_path)
    assert_same(found, state_at(4))
    assert complaint.startswith("step-00000008 is damaged and was passed over: ") and name in complaint


def test_state_of_another_format_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as later:
        later.setattr("bertsmith.training.checkpoint._FORMAT", 3)
        save_training_state(tmp_path, state_at(4), keep=2)
    with pytest.raises(ModelError, match=r"expected format 2, found 3: another version wrote it"):
        load_training_state(tmp_path)


def test_when_all_are_damaged_the_error_names_each(tmp_path: Path) -> None:
    for step in (4, 8):
        (save_training_state(tmp_path, state_at(step), keep=2) / "state.json").unlink()
    with pytest.raises(ModelError, match=r"step-00000008.*step-00000004.*Begin the run anew"):
        load_training_state(tmp_path)


def test_a_damaged_one_does_not_push_out_a_good_one(tmp_path: Path) -> None:
    """After a resume from step 4, step 6 is the newest good one, whatever lies at step 8."""
    save_training_state(tmp_path, state_at(4), keep=2)
    (save_training_state(tmp_path, state_at(8), keep=2) / "weights.safetensors").unlink()
    save_training_state(tmp_path, state_at(6), keep=1)
    found, complaints = load_training_state(tmp_path)
    assert_same(found, state_at(6))
    assert complaints == []


def test_what_a_kill_left_is_removed(tmp_path: Path) -> None:
    save_training_state(tmp_path, state_at(4), keep=2)
    (tmp_path / ".step-00000008.partial-123").mkdir()
    load_training_state(tmp_path)
    assert names(tmp_path) == ["step-00000004"]


@pytest.mark.parametrize("failing", FILES)
def test_a_full_disk_leaves_the_last_good_one(
    failing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The device /dev/full can't be used for this: safetensors would put a file in its place."""
    save_training_state(tmp_path, state_at(4), keep=1)
    monkeypatch.setattr("bertsmith.files.flush", flush_that_fails_for(failing))
    with pytest.raises(ResourceError, match=r"The disk is full: .*step-00000008 was not written"):
        save_training_state(tmp_path, state_at(8), keep=1)
    monkeypatch.undo()
    assert names(tmp_path) == ["step-00000004"]
    assert_same(load_training_state(tmp_path)[0], state_at(4))


def flush_that_fails_for(name: str):  # type: ignore[no-untyped-def]
    def flush(path: Path) -> None:
        if path.name == name:
            raise OSError(28, "No space left on device", str(path))

    return flush


@pytest.mark.slow  # a fresh process has to import torch
def test_a_disk_of_one_megabyte_fills_up(tmp_path: Path) -> None:
    """A real file system, in a mount namespace that ends with the process."""
    context = multiprocessing.get_context("forkserver")
    result, end = context.Pipe(duplex=False)
    process = context.Process(target=fill_a_disk, args=(tmp_path, end))
    process.start()
    end.close()
    found = result.recv()
    process.join()
    if found == "not permitted":
        pytest.skip("this user may not mount a file system to fill")
    message, entries, step = found
    assert message.startswith("The disk is full: ")
    assert (entries, step) == (["step-00000004"], 4)


def fill_a_disk(folder: Path, end) -> None:  # type: ignore[no-untyped-def]
    """Sends what happened when a checkpoint did not fit on the disk."""
    new_namespace = 0x00020000
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    if (
        ctypes.CDLL(None).unshare(new_namespace) != 0
        or subprocess.run(["mount", "--make-rprivate", "/"], capture_output=True).returncode != 0
        or subprocess.run(mount, capture_output=True).returncode != 0
    ):
        end.send("not permitted")
        return
    save_training_state(folder, state_at(4), keep=1)
    large = TrainingState(RunProgress(step=8), {"a": torch.zeros(1_000_000)}, {})
    try:
        save_training_state(folder, large, keep=1)
    except ResourceError as error:
        state, _ = load_training_state(folder)
        end.send((str(error), names(folder), state and state.progress.step))
