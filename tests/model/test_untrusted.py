"""Files of other people: cut, altered, hostile. Each ends in a sentence, before it costs anything."""

import json
import os
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from bertsmith.errors import ModelError
from bertsmith.model import untrusted
from bertsmith.model.bert import Bert
from bertsmith.model.checkpoint import load_encoder, read_checkpoint
from bertsmith.model.untrusted import plain_file
from bertsmith.tasks.pretraining.pretraining_checkpoint import load_pretraining_model


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json", "vocab.txt"])
def test_one_altered_bit_in_any_file_is_detected(model_folder: Path, name: str) -> None:
    content = bytearray((model_folder / name).read_bytes())
    content[len(content) // 2] ^= 1
    (model_folder / name).write_bytes(content)
    with pytest.raises(ModelError, match=rf"{name} has the SHA-256 .* It was altered"):
        read_checkpoint(model_folder)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json", "vocab.txt"])
def test_a_file_shorter_by_one_byte_is_detected(model_folder: Path, name: str) -> None:
    os.truncate(model_folder / name, (model_folder / name).stat().st_size - 1)
    with pytest.raises(ModelError, match=rf"{name} has [\d,]+ bytes; bertsmith.json says"):
        read_checkpoint(model_folder)


def test_a_file_that_went_missing_is_named(model_folder: Path) -> None:
    (model_folder / "vocab.txt").unlink()
    with pytest.raises(ModelError, match=r"has no vocab\.txt"):
        read_checkpoint(model_folder)


@pytest.mark.parametrize("name", ["../outside", "/etc/passwd", "a/../../b", ""])
def test_a_manifest_may_not_point_out_of_the_folder(model_folder: Path, name: str) -> None:
    manifest = json.loads((model_folder / "bertsmith.json").read_text())
    manifest["files"][name] = {"bytes": 1, "sha256": "0" * 64}
    (model_folder / "bertsmith.json").write_text(json.dumps(manifest))
    with pytest.raises(ModelError, match="leads out of the model folder"):
        read_checkpoint(model_folder)


def test_a_manifest_may_not_leave_the_weights_out(model_folder: Path) -> None:
    manifest = json.loads((model_folder / "bertsmith.json").read_text())
    del manifest["files"]["model.safetensors"]
    (model_folder / "bertsmith.json").write_text(json.dumps(manifest))
    with pytest.raises(ModelError, match=r"no hash of config\.json or model\.safetensors"):
        read_checkpoint(model_folder)


def test_an_unknown_key_in_the_manifest_is_refused(model_folder: Path) -> None:
    manifest = json.loads((model_folder / "bertsmith.json").read_text())
    (model_folder / "bertsmith.json").write_text(json.dumps(manifest | {"run_after_load": "x.py"}))
    with pytest.raises(ModelError, match="run_after_load"):
        read_checkpoint(model_folder)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_no_damage_to_the_weights_gives_anything_but_a_sentence(
    foreign_folder: Path, data: st.DataObject
) -> None:
    """Cut, or with bytes replaced: a ModelError, or (a changed value) a model; never another exception."""
    path = foreign_folder / "model.safetensors"
    original = path.read_bytes()
    damaged = bytearray(original)
    # most of the file is values; the header is where damage is interesting
    place = data.draw(st.integers(0, 600) | st.integers(0, len(original) - 1))
    if data.draw(st.booleans()):
        damaged = damaged[:place]
    else:
        damaged[place : place + 4] = data.draw(st.binary(min_size=1, max_size=8))
    path.write_bytes(damaged)
    try:
        load_pretraining_model(foreign_folder)
    except ModelError as error:
        assert str(foreign_folder) in str(error)  # of a changed name of a tensor too
    finally:
        path.write_bytes(original)


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_no_damage_to_the_settings_gives_anything_but_a_sentence(
    foreign_folder: Path, data: st.DataObject
) -> None:
    path = foreign_folder / "config.json"
    original = path.read_text()
    values = json.loads(original)
    anything = st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
        max_leaves=6,
    )
    values[data.draw(st.sampled_from(sorted(values)) | st.text(max_size=8))] = data.draw(anything)
    path.write_text(json.dumps(values))
    try:
        assert isinstance(load_encoder(foreign_folder), Bert)
    except ModelError as error:
        assert str(foreign_folder) in str(error)
    finally:
        path.write_text(original)


@pytest.mark.parametrize(
    ("header", "message"),
    [
        (struct.pack("<Q", 2**62), "not a whole safetensors file"),
        (struct.pack("<Q", 17 << 20) + b" " * (18 << 20), "a header of 17,825,792 bytes; at most 16,777,216"),
        (b"\x01\x00", "not a whole safetensors file"),
        (b"", "not a whole safetensors file"),
        (b"\x80\x02}q\x00.\x00\x00\x00\x00", "not a whole safetensors file"),
    ],
)  # fmt: skip
def test_a_header_that_can_not_be_is_refused_before_it_is_parsed(
    foreign_folder: Path, header: bytes, message: str
) -> None:
    (foreign_folder / "model.safetensors").write_bytes(header)
    with pytest.raises(ModelError, match=message):
        read_checkpoint(foreign_folder)


def test_settings_too_large_to_be_settings_are_not_parsed(foreign_folder: Path) -> None:
    (foreign_folder / "config.json").write_text('{"id2label": {"0": "' + "x" * (5 << 20) + '"}}')
    with pytest.raises(
        ModelError, match=r"config\.json has 5,[\d,]+ bytes; settings of a model have at most"
    ):
        read_checkpoint(foreign_folder)


def test_settings_nested_without_end_are_refused(foreign_folder: Path) -> None:
    (foreign_folder / "config.json").write_text("[" * 100_000)
    with pytest.raises(ModelError, match="not valid JSON"):
        read_checkpoint(foreign_folder)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_link_is_not_followed(foreign_folder: Path, tmp_path: Path, name: str) -> None:
    (foreign_folder / name).rename(tmp_path / name)
    (foreign_folder / name).symlink_to(tmp_path / name)
    with pytest.raises(ModelError, match=rf"{name} is a symbolic link"):
        read_checkpoint(foreign_folder)


def test_a_linked_folder_inside_is_not_followed(foreign_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "config.json").write_text("{}")
    (foreign_folder / "1_Pooling").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ModelError, match="symbolic link"):
        plain_file(foreign_folder, "1_Pooling/config.json")


def test_links_of_the_hub_s_cache_are_followed_to_its_blobs_only(
    foreign_folder: Path, tmp_path: Path
) -> None:
    repository = tmp_path / "models--org--name"
    (repository / "blobs").mkdir(parents=True)
    snapshot = repository / "snapshots" / "abc"
    snapshot.parent.mkdir()
    foreign_folder.rename(snapshot)
    weights = snapshot / "model.safetensors"
    weights.rename(repository / "blobs" / "123")
    weights.symlink_to("../../blobs/123")
    assert read_checkpoint(snapshot).architecture == "BertForPreTraining"
    (snapshot / "1_Pooling").mkdir()
    (snapshot / "1_Pooling" / "config.json").symlink_to("../../../blobs/123")
    assert plain_file(snapshot, "1_Pooling/config.json").is_file()
    (snapshot / "a" / "b").mkdir(parents=True)
    (snapshot / "a" / "b" / "config.json").symlink_to("../../../../blobs/123")
    with pytest.raises(ModelError, match="symbolic link"):
        plain_file(snapshot, "a/b/config.json")
    (repository / "blobs" / "123").rename(tmp_path / "elsewhere")
    weights.unlink()
    weights.symlink_to("../../../elsewhere")
    with pytest.raises(ModelError, match="symbolic link"):
        read_checkpoint(snapshot)


PEAK = """
import sys
from pathlib import Path
import torch  # its own memory is no tensor's
from bertsmith.model.untrusted import read_tensors

def peak():
    return 1024 * int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0])

before = peak()
tensors = read_tensors(Path(sys.argv[1]))
print(sum(tensor.nbytes for tensor in tensors.values()), peak() - before)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads the peak from Linux's /proc")
def test_reading_tensors_takes_little_more_memory_than_the_tensors(tmp_path: Path) -> None:
    save_file({f"t{n}": torch.ones(1 << 20) for n in range(16)}, tmp_path / "t.safetensors")
    command = [sys.executable, "-c", PEAK, str(tmp_path / "t.safetensors")]
    read, taken = map(int, subprocess.check_output(command, text=True).split())
    assert read == 64 << 20
    assert taken < 1.4 * read  # mapped and copied at once it was twice that


def test_many_small_tensors_are_not_many_readings_of_the_header(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A header of 16 MB may hold 100,000 names: parsed once for each it would take hours."""
    written = {f"t{n}": torch.full((2,), float(n)) for n in range(50)} | {
        "large": torch.ones(untrusted.LARGE)
    }
    save_file(written, tmp_path / "t.safetensors")
    opened, really_open = [], safetensors.safe_open

    def counted(*arguments: Any, **options: Any) -> Any:
        opened.append(arguments)
        return really_open(*arguments, **options)

    monkeypatch.setattr(safetensors, "safe_open", counted)
    read = untrusted.read_tensors(tmp_path / "t.safetensors")
    assert all(torch.equal(read[name], tensor) for name, tensor in written.items())
    assert read.keys() == written.keys()
    assert len(opened) == 3  # for the sizes, the large one, the others


def test_a_pickle_is_not_opened_but_pointed_to_import(foreign_folder: Path) -> None:
    (foreign_folder / "model.safetensors").rename(foreign_folder / "pytorch_model.bin")
    with pytest.raises(ModelError, match="bertsmith import"):
        read_checkpoint(foreign_folder)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda p: p.mkdir(), "has no config.json"),
        (lambda p: None, "is not a folder"),
        (lambda p: p.write_text("x"), "is not a folder"),
    ],
)
def test_what_is_no_model_is_said(tmp_path: Path, make: Callable[[Path], None], message: str) -> None:
    make(tmp_path / "nothing")
    with pytest.raises(ModelError, match=message):
        read_checkpoint(tmp_path / "nothing")
