"""Flax' weights: the same numbers as were saved, and nothing but arrays in maps."""

import json
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from model_folders import SPECIAL, tiny_config

from bertsmith.errors import ModelError
from bertsmith.model.config_json import config_to_hugging_face
from bertsmith.model.flax_msgpack import read_flax_tensors
from bertsmith.model.legacy import convert_legacy
from bertsmith.model.weights import to_hugging_face
from bertsmith.tasks.pretraining.pretraining import PretrainingModel
from bertsmith.tasks.pretraining.pretraining_checkpoint import load_pretraining_model

NAME = "flax_model.msgpack"


def packed(value: Any) -> bytes:
    """MessagePack by its specification, of what Flax' files hold."""
    if isinstance(value, dict):
        parts = b"".join(packed(name) + packed(each) for name, each in value.items())
        return (bytes([0x80 | len(value)]) if len(value) < 16 else b"\xde" + sized(value, 2)) + parts
    if isinstance(value, list | tuple):
        return (bytes([0x90 | len(value)]) if len(value) < 16 else b"\xdc" + sized(value, 2)) + b"".join(
            map(packed, value)
        )
    if isinstance(value, str):
        content = value.encode()
        return (bytes([0xA0 | len(content)]) if len(content) < 32 else b"\xd9" + sized(content, 1)) + content
    if isinstance(value, bytes):
        return b"\xc6" + sized(value, 4) + value
    if isinstance(value, int):
        return bytes([value]) if value < 128 else b"\xcd" + value.to_bytes(2, "big")
    content = packed([list(value.shape), value.dtype.name, value.tobytes()])
    return b"\xc8" + sized(content, 2) + b"\x01" + content


def sized(value: Any, size: int) -> bytes:
    return len(value).to_bytes(size, "big")


ONE = np.ones(1, np.float32)


def within_arrays(count: int) -> bytes:
    """An extension that holds an extension that holds one, and so on."""
    content = packed("x")
    for _ in range(count):
        content = b"\xc9" + sized(content, 4) + b"\x01" + content
    return content


def flax_folder(folder: Path) -> PretrainingModel:
    torch.manual_seed(2)
    model = PretrainingModel(tiny_config())
    tree: dict[str, Any] = {}
    for name, tensor in to_hugging_face(model.state_dict(), model.config, bare=False).items():
        *modules, leaf = name.split(".")
        array = tensor.detach().numpy()
        if leaf == "weight":
            is_norm, is_table = "LayerNorm" in name, name.endswith("embeddings.weight")
            leaf = "scale" if is_norm else "embedding" if is_table else "kernel"
            array = array.T.copy() if leaf == "kernel" else array
        place = tree
        for module in modules:
            place = place.setdefault(module, {})
        place[leaf] = array
    folder.mkdir()
    (folder / NAME).write_bytes(packed(tree))
    settings = config_to_hugging_face(model.config, "BertForPreTraining")
    (folder / "config.json").write_text(json.dumps(settings))
    (folder / "vocab.txt").write_text("\n".join([*SPECIAL, "a", "b"]) + "\n")
    return model


def test_an_imported_model_is_the_same_to_the_bit(tmp_path: Path) -> None:
    original = flax_folder(tmp_path / "old")
    imported = convert_legacy(tmp_path / "old", tmp_path / "new")
    assert (imported.with_tokenizer, imported.notes) == (True, ())
    state = load_pretraining_model(tmp_path / "new")[0].state_dict()
    assert all(torch.equal(state[name], value) for name, value in original.state_dict().items())


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "ends within a value"),
        (packed({}) + b"\0", "not one map"),
        (packed([]), "not one map"),
        (packed({"a": 3}), "a is no array"),
        (packed({"a": {"b": "c"}}), r"a\.b is no array"),
        (packed({"a": np.ones(2, np.float32)}), "none of kernel"),
        (packed({"bias": np.ones(2, np.complex64)}), "type 'complex64'"),
        (b"\x81\xa1a\xc0", "kind 0xc0"),
        (b"\x81" * 100, "deep|key"),
        (b"\xdf\xff\xff\xff\xff", "ends within a value"),
        (b"\x82\xa1a\x01\xa1a\x01", "twice"),
        (b"\x81\xa1\xff\x01", "not UTF-8"),
        (packed({"bias": np.ones(2, np.float32)}).replace(b"\x91\x02", b"\x91\x03"), "don't fit its shape"),
        (b"\x81\xa1a" + within_arrays(600), "more than 32 deep"),
        (packed({"a": {"kernel": ONE, "embedding": ONE}}), r"a\.weight is given twice"),
        (packed({"bias": np.ones((1,) * 20, np.float32)}), "type 'float32'"),
        (packed({"a": {"__msgpack_chunked_array__": 1}}), "in chunks"),
    ],
)
def test_anything_else_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / NAME).write_bytes(content)
    with pytest.raises(ModelError, match=message):
        read_flax_tensors(tmp_path / NAME)


def test_no_damage_gives_anything_but_a_sentence_or_tensors(tmp_path: Path) -> None:
    flax_folder(tmp_path / "old")
    path = tmp_path / "old" / NAME
    whole, random, refused = path.read_bytes(), Random(3), 0
    for _ in range(300):
        altered = bytearray(whole)
        altered[random.randrange(len(whole))] = random.randrange(256)
        path.write_bytes(altered[: random.choice((len(whole), random.randrange(len(whole))))])
        try:
            read_flax_tensors(path)
        except ModelError:
            refused += 1
    assert refused > 100
