"""Tensors written past the system's cache: files like safetensors' own, also where a cache is insisted on."""

import errno
import fcntl
import json
import mmap
import os
import zlib
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from bertsmith.files import crc32_of
from bertsmith.training import tensor_file
from bertsmith.training.tensor_file import allocate_like, write_tensors

BLOCK = 8192  # bytes
IN_FIRST_BLOCK = BLOCK - 4096  # after the header


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


def parts_of(content: bytes) -> tuple[Any, bytes]:
    """The header, and the tensors' bytes."""
    end = 8 + int.from_bytes(content[:8], "little")
    return json.loads(content[8:end]), content[end:]


def assert_same(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert found[name].dtype == tensor.dtype and torch.equal(found[name], tensor), name


def test_safetensors_reads_what_was_written(tmp_path: Path) -> None:
    checksum = write_tensors(tmp_path / "ours", tensors())
    assert_same(load_file(tmp_path / "ours"), tensors())
    assert checksum == crc32_of(tmp_path / "ours")


def test_a_single_value_is_written_whatever_its_stride(tmp_path: Path) -> None:
    given = {"a": torch.arange(2.0)[1::2], "b": torch.arange(4.0).reshape(2, 2)[:1, 1:]}
    write_tensors(tmp_path / "ours", given)
    assert_same(load_file(tmp_path / "ours"), given)


def test_copies_in_room_for_them_are_written_from_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    room = allocate_like(tensors())
    for name, tensor in tensors().items():
        room[name].copy_(tensor)
    assert_same(room, tensors())
    write = tensor_file._UncachedFile.write_in_place
    in_place = list[int]()

    def look(file: Any, content: Any) -> None:
        in_place.append(len(content))
        write(file, content)

    monkeypatch.setattr(tensor_file._UncachedFile, "write_in_place", look)
    checksum = write_tensors(tmp_path / "ours", room)
    assert in_place == [sum(tensor.nbytes for tensor in tensors().values())]
    assert_same(load_file(tmp_path / "ours"), tensors())
    assert checksum == crc32_of(tmp_path / "ours") == f"{zlib.crc32((tmp_path / 'ours').read_bytes()):08x}"


@pytest.mark.parametrize("sectors", [0, 1, 2, 5])
@pytest.mark.parametrize("more", [-1, 0, 1])
def test_room_ends_in_any_place_of_a_sector(tmp_path: Path, sectors: int, more: int) -> None:
    given = {"a": torch.arange(max(0, 4096 * sectors + more)) % 3 == 0}
    room = allocate_like(given)
    room["a"].copy_(given["a"])
    checksum = write_tensors(tmp_path / "ours", room)
    assert_same(load_file(tmp_path / "ours"), given)
    assert checksum == crc32_of(tmp_path / "ours")


@pytest.mark.parametrize("spoil", ["gone", "turned", "another"])
def test_what_no_longer_lies_together_is_copied(tmp_path: Path, spoil: str) -> None:
    given = {name: torch.randn(32, 32) for name in "abc"}
    room = allocate_like(given)
    for name, tensor in given.items():
        room[name].copy_(tensor)
    if spoil == "gone":
        del room["b"]
    else:
        room["b"] = room["b"].T if spoil == "turned" else room["b"].clone()
    write_tensors(tmp_path / "ours", room)
    assert_same(load_file(tmp_path / "ours"), room)


@pytest.mark.parametrize("more", [-1, 0, 1, BLOCK - 1, BLOCK, BLOCK + 1])
def test_a_file_ends_where_its_bytes_do(tmp_path: Path, more: int) -> None:
    written = {"a": torch.arange(IN_FIRST_BLOCK + more) % 2 == 0}
    checksum = write_tensors(tmp_path / "ours", written)
    save_file(written, tmp_path / "theirs")
    assert (tmp_path / "ours").stat().st_size == BLOCK + more
    ours, theirs = (parts_of((tmp_path / name).read_bytes()) for name in ("ours", "theirs"))
    assert ours == theirs
    assert checksum == crc32_of(tmp_path / "ours")


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
    monkeypatch.setattr(tensor_file, "SECTOR", 8)  # with room at any place
    room = allocate_like(tensors())
    for name, tensor in tensors().items():
        room[name].copy_(tensor)
    write_tensors(tmp_path / "again", room)
    assert_same(load_file(tmp_path / "again"), tensors())


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
