"""Tensors written past the system's cache: files like safetensors' own, also where a cache is insisted on."""

import errno
import fcntl
import mmap
import os
from pathlib import Path

import psutil
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from bertsmith.files import crc32
from bertsmith.training import tensor_file
from bertsmith.training.tensor_file import write_tensors

BLOCK = 8192  # bytes
IN_FIRST_BLOCK = BLOCK - 8 - 64  # where a header is 64 bytes long, as "a" alone has it


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensor_file, "_BLOCK", BLOCK)


def tensors() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {
        "embeddings": torch.randn(300, 64, generator=generator),
        "half": torch.randn(7, 5, generator=generator).bfloat16(),
        "halves": torch.randn(3, generator=generator).half(),
        "steps": torch.tensor(12),
        "nothing": torch.empty(0, 4),
        "exact": torch.randn(2, 2, generator=generator).double(),
        "kept": torch.tensor([True, False, True]),
        "turned": torch.randn(20, 30, generator=generator).T,
    }


def assert_same(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert found[name].dtype == tensor.dtype and torch.equal(found[name], tensor), name


def test_safetensors_reads_what_was_written(tmp_path: Path) -> None:
    checksum = write_tensors(tmp_path / "ours", tensors())
    assert_same(load_file(tmp_path / "ours"), tensors())
    assert checksum == crc32(tmp_path / "ours")


@pytest.mark.parametrize("more", [-1, 0, 1, BLOCK - 1, BLOCK, BLOCK + 1])
def test_a_file_ends_where_its_bytes_do(tmp_path: Path, more: int) -> None:
    written = {"a": torch.arange(IN_FIRST_BLOCK + more) % 2 == 0}
    checksum = write_tensors(tmp_path / "ours", written)
    save_file(written, tmp_path / "theirs")
    assert (tmp_path / "ours").stat().st_size == BLOCK + more
    assert (tmp_path / "ours").read_bytes() == (tmp_path / "theirs").read_bytes()
    assert checksum == crc32(tmp_path / "ours")


def test_the_cache_is_passed_by_where_it_can_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not hasattr(os, "O_DIRECT"):
        pytest.skip("this system has no O_DIRECT")
    try:
        os.close(os.open(tmp_path / "file", os.O_CREAT | os.O_WRONLY | os.O_DIRECT))
    except OSError:
        pytest.skip("the file system of temporary files wants a cache")
    flags = list[int]()
    flush = os.fsync

    def look(descriptor: int) -> None:
        flags.append(fcntl.fcntl(descriptor, fcntl.F_GETFL))
        flush(descriptor)

    monkeypatch.setattr(os, "fsync", look)
    write_tensors(tmp_path / "ours", tensors())
    assert [bool(each & os.O_DIRECT) for each in flags] == [True]


def test_a_file_system_may_want_its_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    control = fcntl.fcntl

    def refuse(descriptor: int, command: int, argument: int = 0) -> int:
        if command == fcntl.F_SETFL:
            raise OSError(errno.EINVAL, "Invalid argument")
        return control(descriptor, command, argument)

    monkeypatch.setattr(fcntl, "fcntl", refuse)
    write_tensors(tmp_path / "ours", tensors())
    assert_same(load_file(tmp_path / "ours"), tensors())


def test_a_file_system_may_want_other_places_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mmap, "mmap", lambda _, size: memoryview(bytearray(size + 8))[8:])
    write_tensors(tmp_path / "ours", tensors())
    assert_same(load_file(tmp_path / "ours"), tensors())


def test_another_error_is_raised_and_the_file_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    before = psutil.Process().num_fds()
    with pytest.raises(OSError, match="No space left"):
        write_tensors(tmp_path / "ours", tensors())
    assert psutil.Process().num_fds() == before


def test_a_type_that_no_training_state_has(tmp_path: Path) -> None:
    with pytest.raises(KeyError):
        write_tensors(tmp_path / "ours", {"a": torch.zeros(2, dtype=torch.complex64)})
