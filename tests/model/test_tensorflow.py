"""Google's TensorFlow checkpoints: the same numbers come out, and whatever was damaged is refused by name."""

import json
import shutil
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from model_folders import SPECIAL, tiny_config
from tensorflow_bundles import (
    MAGIC,
    block,
    field,
    header,
    masked,
    plain_crc32c,
    read_plainly,
    read_varint,
    table,
    write_bundle,
)

from bertsmith.cli.main import main
from bertsmith.errors import ModelError
from bertsmith.model.checkpoint import read_checkpoint
from bertsmith.model.legacy import convert_legacy, read_tensorflow_tensors
from bertsmith.model.tensorflow import (
    SnappyError,
    crc32c,
    decompress_snappy,
    hugging_face_name,
    is_weight,
    read_bundle,
    unmask_checksum,
)
from bertsmith.model.weights import to_hugging_face
from bertsmith.tasks.checkpoints.task_checkpoint import load_task_model
from bertsmith.tasks.pretraining.pretraining import PretrainingModel
from bertsmith.tasks.pretraining.pretraining_checkpoint import load_pretraining_model

INDEX = "bert_model.ckpt.index"
DATA = "bert_model.ckpt.data-00000-of-00001"


def google_name(name: str) -> str:
    """By hand, the other way round: bert.encoder.layer.0.output.dense.weight as Google has it."""
    for theirs, google in {
        "cls.predictions.bias": "cls/predictions/output_bias",
        "cls.seq_relationship.weight": "cls/seq_relationship/output_weights",
        "cls.seq_relationship.bias": "cls/seq_relationship/output_bias",
    }.items():
        if name == theirs:
            return google
    name = name.replace(".layer.", ".layer_").replace(".", "/")
    if "LayerNorm" in name:
        return name.replace("/weight", "/gamma").replace("/bias", "/beta")
    return name.removesuffix("/weight") if "embeddings" in name else name.replace("/weight", "/kernel")


def arrays_of(model: PretrainingModel) -> dict[str, np.ndarray]:
    found = {}
    for name, tensor in to_hugging_face(model.state_dict(), model.config, bare=False).items():
        google = google_name(name)
        array = tensor.detach().numpy()
        found[google] = np.ascontiguousarray(array.T if google.endswith("kernel") else array)
    return found


def google_folder(
    folder: Path, shards: int = 1, packed: bool = False, head: dict[str, np.ndarray] | None = None
) -> PretrainingModel:
    """A BERT as Google publishes it, with what an optimiser keeps beside each weight; `head` in place of
    those of pre-training.
    """
    torch.manual_seed(1)
    model = PretrainingModel(tiny_config())
    folder.mkdir()
    arrays = arrays_of(model)
    if head is not None:
        arrays = {name: array for name, array in arrays.items() if name[:4] != "cls/"} | head
    slots = {
        f"{name}/{slot}": np.zeros_like(array)
        for name, array in arrays.items()
        for slot in ("adam_m", "adam_v")
    }
    counters = {"global_step": np.array(7, np.int64), "beta1_power": np.array(0.5, np.float32)}
    write_bundle(folder / "bert_model.ckpt", arrays | slots | counters, shards, packed=packed)
    config = {name: value for name, value in model.config.model_dump().items() if name in GOOGLE_KEYS}
    (folder / "bert_config.json").write_text(json.dumps(config))
    (folder / "vocab.txt").write_text("\n".join([*SPECIAL, "a", "b"]) + "\n")
    return model


GOOGLE_KEYS = {
    *(
        "attention_probs_dropout_prob",
        "hidden_act",
        "hidden_dropout_prob",
        "hidden_size",
        "initializer_range",
    ),
    *("intermediate_size", "max_position_embeddings", "num_attention_heads", "num_hidden_layers"),
    *("type_vocab_size", "vocab_size"),
}


@pytest.mark.parametrize(("shards", "packed"), [(1, False), (3, False), (1, True)])
def test_an_imported_model_is_the_same_to_the_bit(tmp_path: Path, shards: int, packed: bool) -> None:
    original = google_folder(tmp_path / "old", shards, packed)
    imported = convert_legacy(tmp_path / "old", tmp_path / "new")
    assert (imported.with_tokenizer, imported.notes) == (True, ())
    assert imported.checkpoint.architecture == "BertForPreTraining"
    again, _ = load_pretraining_model(tmp_path / "new")
    state = again.state_dict()
    assert state.keys() == original.state_dict().keys()
    assert all(torch.equal(state[name], value) for name, value in original.state_dict().items())


def test_a_real_checkpoint_has_the_numbers_of_a_plain_reader(shared_data: Path, tmp_path: Path) -> None:
    source = shared_data / "fixtures_ckpt" / "keras_bert_tf_ckpt"
    expected = read_plainly(source / "bert_model.ckpt")
    found = read_bundle(source / INDEX, lambda name: True)
    assert len(expected) == 139
    assert found.keys() == expected.keys()
    assert all(np.array_equal(found[name].numpy(), array) for name, array in expected.items())
    convert_legacy(source, tmp_path / "new")
    model, _ = load_pretraining_model(tmp_path / "new")
    saved = to_hugging_face(model.state_dict(), model.config, bare=False)
    weights = {
        name: array for name, array in expected.items() if "adam" not in name and name != "global_step"
    }
    assert {google_name(name) for name in saved} == weights.keys()
    for name, tensor in saved.items():
        array = weights[google_name(name)]
        assert np.array_equal(tensor.numpy(), array.T if google_name(name).endswith("kernel") else array), (
            name
        )


def test_a_classifier_is_kept_with_its_labels_unnamed(tmp_path: Path) -> None:
    """As run_classifier.py and run_squad.py leave them."""
    rows = np.arange(12, dtype=np.float32).reshape(3, 4)
    google_folder(tmp_path / "old", head={"output_weights": rows, "output_bias": np.ones(3, np.float32)})
    config = json.loads((tmp_path / "old/bert_config.json").read_text())
    names = {"0": "a", "1": "b", "2": "c"}
    (tmp_path / "old/bert_config.json").write_text(json.dumps(config | {"id2label": names}))
    tensors = read_tensorflow_tensors(tmp_path / "old" / INDEX)
    assert torch.equal(tensors["classifier.weight"], torch.from_numpy(rows))
    imported = convert_legacy(tmp_path / "old", tmp_path / "new")
    assert imported.checkpoint.architecture == "BertForSequenceClassification"
    assert read_checkpoint(tmp_path / "new").labels["id2label"] == names
    assert hugging_face_name("cls/squad/output_weights") == "qa_outputs.weight"


def test_a_classifier_whose_config_names_no_labels_has_them_by_number(tmp_path: Path) -> None:
    rows = np.arange(12, dtype=np.float32).reshape(3, 4)
    google_folder(tmp_path / "old", head={"output_weights": rows, "output_bias": np.ones(3, np.float32)})
    imported = convert_legacy(tmp_path / "old", tmp_path / "new")
    assert any("outputs are called LABEL_0 to LABEL_2" in note for note in imported.notes)
    model, task = load_task_model(tmp_path / "new")
    assert (task.name, task.labels) == ("classification", ("LABEL_0", "LABEL_1", "LABEL_2"))
    assert torch.equal(model.head.state_dict()["out.weight"], torch.from_numpy(rows))


def test_one_of_several_checkpoints_is_named(tmp_path: Path) -> None:
    google_folder(tmp_path / "old")
    for name in (INDEX, DATA):
        shutil.copy(
            tmp_path / "old" / name, tmp_path / "old" / name.replace("bert_model.ckpt", "model.ckpt-9")
        )
    with pytest.raises(ModelError, match=r"several checkpoints: bert_model\.ckpt, model\.ckpt-9\. Name one"):
        convert_legacy(tmp_path / "old", tmp_path / "new")
    imported = convert_legacy(tmp_path / "old/model.ckpt-9", tmp_path / "new")
    assert imported.with_tokenizer
    manifest = read_checkpoint(tmp_path / "new").manifest
    assert manifest is not None
    assert manifest.provenance["imported_from"] == "old/model.ckpt-9.index"


def test_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    google_folder(tmp_path / "old")
    assert main(["import", str(tmp_path / "old"), "--out", str(tmp_path / "new")]) == 0
    assert "BertForPreTraining, layers 1, width 4" in capsys.readouterr().out
    (tmp_path / "old" / DATA).write_bytes(b"")
    assert main(["import", str(tmp_path / "old"), "--out", str(tmp_path / "other")]) == 2
    printed = capsys.readouterr()
    assert (printed.out, printed.err.count("\n")) == ("", 1)
    assert "which has 0. It may have been cut" in printed.err
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize(
    ("lie", "message"),
    [
        ({"size": 4}, "expected 16 bytes for the shape .* of float32, found 4"),
        ({"shape": (1 << 39, 0, 1 << 39), "size": 0}, "a shape that no tensor has"),
        ({"shape": (1 << 41,)}, "a shape that no tensor has"),
        ({"shape": (1,) * 20}, "a shape that no tensor has"),
        ({"shape": (1 << 30,), "size": 1 << 32}, "It may have been cut"),
        ({"offset": 1 << 50}, "It may have been cut"),
        ({"shard": 3}, "data file 3, but there are 1"),
        ({"type": 7}, "of the type 7 of TensorFlow"),
        ({"crc": 5}, "don't have their checksum"),
        ({"more": field(7, b"\x0a\x00")}, "saved in slices"),
        ({"more": b"\x0b"}, "its entry can't be read"),
        ({"more": b"\x3a\x7f"}, "a field was cut"),
    ],
)
def test_an_entry_that_lies_is_refused_by_name(tmp_path: Path, lie: dict[str, Any], message: str) -> None:
    arrays = {"bert/pooler/dense/bias": np.ones(4, np.float32)}
    write_bundle(tmp_path / "bert_model.ckpt", arrays, lies={"bert/pooler/dense/bias": lie})
    with pytest.raises(ModelError, match=message) as error:
        read_bundle(tmp_path / INDEX, is_weight)
    assert "bert/pooler/dense/bias" in str(error.value)


def test_tensors_that_share_bytes_cannot_outgrow_the_file(tmp_path: Path) -> None:
    """Ten thousand names for one large piece would be ten thousand copies of it."""
    arrays = {f"bert/{number}/bias": np.ones(64, np.float32) for number in range(3)}
    write_bundle(tmp_path / "bert_model.ckpt", arrays, lies={name: {"offset": 0} for name in arrays})
    whole = (tmp_path / DATA).read_bytes()
    (tmp_path / DATA).write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ModelError, match="larger than its files"):
        read_bundle(tmp_path / INDEX, is_weight)


def one_entry() -> tuple[bytes, bytes]:
    return b"bert/x/bias", b""


def test_tables_that_are_none_are_refused(tmp_path: Path) -> None:
    honest = table([(b"", header(1)), one_entry()])
    twice = table([(b"", header(1)), one_entry(), one_entry()])
    again = table([(b"b", b""), (b"a", b"")], of_a_block=1)
    far = bytearray(honest)
    far[-48:-8] = bytes([0, 0]).ljust(2, b"\0") + b"\xff\xff\x7f\x05".ljust(38, b"\0")
    for content, message in (
        (b"", "doesn't end as one does"),
        (honest[:-1], "doesn't end as one does"),
        (b"x" + honest[1:], "checksum of the block at byte 0"),
        (bytes(far), "lies outside"),
        (twice, "don't ascend"),
        (again, "don't ascend"),
        (table([one_entry()]), "has no header"),
        (table([(b"", header(0))]), "expected 1 to 10,000 data files"),
        (table([(b"", header(1 << 40))]), "expected 1 to 10,000 data files"),
        (table([(b"", header(1, order=1))]), "found 1 in order 1"),
        (table([(b"", b"\xff")]), "header can't be read"),
    ):
        (tmp_path / INDEX).write_bytes(content)
        with pytest.raises(ModelError, match=message):
            read_bundle(tmp_path / INDEX, is_weight)


def test_a_small_index_of_giant_keys_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each key is the one before with a letter more: a few bytes an entry, a kilobyte a key."""
    monkeypatch.setattr("bertsmith.model.tensorflow.MAX_TABLE_BYTES", 1 << 15)
    keys = [b"k" * (1000 + number) for number in range(60)]
    restarts = [key[:1000] if not number else b"" for number, key in enumerate(keys)]
    content = b"".join(
        read_varint(0 if restart else len(keys[number]) - 1)
        + read_varint(len(restart) or 1)
        + read_varint(0)
        + (restart or b"k")
        for number, restart in enumerate(restarts)
    )
    content += bytes(4) + b"\1\0\0\0" + b"\0"
    data = content + masked(content).to_bytes(4, "little")
    index = block([(keys[-1], read_varint(0) + read_varint(len(content) - 1))])
    footer = (read_varint(0) + read_varint(0) + read_varint(len(data)) + read_varint(len(index) - 5)).ljust(
        40, b"\0"
    )
    (tmp_path / INDEX).write_bytes(data + index + footer + MAGIC)
    assert (tmp_path / INDEX).stat().st_size < 1 << 12
    with pytest.raises(ModelError, match="its keys and values have more than 32,768 bytes"):
        read_bundle(tmp_path / INDEX, is_weight)


def test_a_block_without_entries_cannot_be_given_again_and_again(tmp_path: Path) -> None:
    """Each time it would be checked anew, and no key would tell."""
    empty = block([])
    handle = read_varint(0) + read_varint(len(empty) - 5)
    index = block([(bytes([letter]), handle) for letter in range(1, 9)])
    footer = (read_varint(0) + read_varint(0) + read_varint(len(empty)) + read_varint(len(index) - 5)).ljust(
        40, b"\0"
    )
    (tmp_path / INDEX).write_bytes(empty + index + footer + MAGIC)
    with pytest.raises(ModelError, match="its blocks don't ascend"):
        read_bundle(tmp_path / INDEX, is_weight)


def test_an_index_that_leads_back_to_itself_ends(tmp_path: Path) -> None:
    """A block whose handle is that of the index block: it is read as data once, and its keys don't ascend."""
    handle_size = 40
    for _ in range(3):  # until the handle's own size is right
        index = block([(b"a", bytes([0, handle_size])), (b"b", bytes([0, handle_size]))])
        handle_size = len(index) - 5
    content = index + bytes([0, 0, 0, handle_size]).ljust(40, b"\0") + table([])[-8:]
    (tmp_path / INDEX).write_bytes(content)
    with pytest.raises(ModelError, match="don't ascend"):
        read_bundle(tmp_path / INDEX, is_weight)


def test_no_damage_gives_anything_but_a_sentence_or_the_same_numbers(tmp_path: Path) -> None:
    """Every byte of a small bundle, one after the other. What bears no meaning may be any."""
    random = Random(5)
    names = ("bert/embeddings/word_embeddings", "bert/pooler/dense/bias", "bert/pooler/dense/kernel")
    arrays = {name: np.arange(6, dtype=np.float32).reshape(2, 3) for name in names}
    write_bundle(tmp_path / "bert_model.ckpt", arrays)
    refused = total = 0
    for name in (INDEX, DATA):
        path = tmp_path / name
        whole = path.read_bytes()
        for place in range(len(whole)):
            altered = bytearray(whole)
            altered[place] ^= 1 << random.randrange(8)
            path.write_bytes(altered)
            total += 1
            try:
                found = read_bundle(tmp_path / INDEX, is_weight)
                assert all(np.array_equal(found[each], arrays[each]) for each in arrays), place
            except ModelError:
                refused += 1
        path.write_bytes(whole)
    assert refused > 0.8 * total


@pytest.mark.parametrize("share", [0.0, 0.3, 0.9])
@pytest.mark.parametrize("name", [INDEX, DATA])
def test_files_cut_anywhere_are_refused(tmp_path: Path, name: str, share: float) -> None:
    google_folder(tmp_path / "old")
    path = tmp_path / "old" / name
    whole = path.read_bytes()
    path.write_bytes(whole[: int(len(whole) * share)])
    with pytest.raises(ModelError, match="cut"):
        convert_legacy(tmp_path / "old", tmp_path / "new")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_hidden_layers": 0}, "num_hidden_layers"),
        ({"num_hidden_layers": 3}, r"missing bert\.encoder\.layer\.1"),
        ({"hidden_size": 8}, r"must have the shape \(8,\), found \(4,\)"),
    ],
)
def test_a_config_of_another_model_is_refused(tmp_path: Path, change: dict[str, int], message: str) -> None:
    google_folder(tmp_path / "old")
    path = tmp_path / "old/bert_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(ModelError, match=message):
        convert_legacy(tmp_path / "old", tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    google_folder(tmp_path / "old")
    (tmp_path / "old/bert_config.json").rename(tmp_path / "config")
    with pytest.raises(ModelError, match=r"no bert_config\.json, which says the model's shape"):
        convert_legacy(tmp_path / "old", tmp_path / "new")
    (tmp_path / "config").rename(tmp_path / "old/bert_config.json")
    (tmp_path / "old" / DATA).unlink()
    with pytest.raises(ModelError, match=DATA):
        convert_legacy(tmp_path / "old", tmp_path / "new")


def test_a_checkpoint_of_tensorflow_2_is_told_apart(tmp_path: Path) -> None:
    arrays = {
        "_CHECKPOINTABLE_OBJECT_GRAPH": np.ones(1, np.float32),
        "model/layer-1/.ATTRIBUTES/VARIABLE_VALUE": np.ones(4, np.float32),
    }
    write_bundle(tmp_path / "bert_model.ckpt", arrays)
    with pytest.raises(ModelError, match=r"a checkpoint of TensorFlow 2's objects.*original checkpoint"):
        read_bundle(tmp_path / INDEX, is_weight)


def test_a_tensor_of_another_architecture_is_named(tmp_path: Path) -> None:
    google_folder(tmp_path / "old", head={"electra/encoder/x": np.ones(2, np.float32)})
    with pytest.raises(ModelError, match="'electra/encoder/x', which is none of a BERT of Google's"):
        convert_legacy(tmp_path / "old", tmp_path / "new")


@pytest.mark.parametrize(
    "name",
    ["global_step", "bert/pooler/dense/kernel/adam_m", "x/Adam_1", "training/beta1_power", "beta2_power"],
)
def test_what_an_optimiser_keeps_is_no_weight(name: str) -> None:
    assert not is_weight(name)
    assert is_weight("bert/pooler/dense/kernel")


def test_the_checksum_is_that_of_the_standard() -> None:
    """RFC 3720, B.4, and a definition bit by bit."""
    assert crc32c(b"123456789") == 0xE3069283
    assert crc32c(bytes(32)) == 0x8A9136AA
    assert crc32c(b"\xff" * 32) == 0x62A8AB43
    assert crc32c(b"") == 0
    data = np.random.default_rng(2).integers(0, 256, 70_000, np.uint8).tobytes()
    for length in (*range(1, 40), 63, 64, 65, 127, 128, 129, 1000, 4095, 4097, 70_000):
        assert crc32c(data[:length]) == plain_crc32c(data[:length]), length
    assert unmask_checksum(masked(data[:9])) == plain_crc32c(data[:9])


def test_snappy_by_its_description() -> None:
    literal = bytes([5, 4 << 2]) + b"wordy"
    assert decompress_snappy(literal, 100) == b"wordy"
    # "ab", then 8 bytes from 2 back: abababab; a copy may reach into itself
    assert decompress_snappy(bytes([10, 1 << 2]) + b"ab" + bytes([4 << 2 | 1, 2]), 100) == b"ab" * 5
    assert decompress_snappy(bytes([6, 1 << 2]) + b"ab" + bytes([3 << 2 | 2, 1, 0]), 100) == b"abbbbb"
    long = bytes(range(200))
    assert decompress_snappy(bytes([200, 1, 60 << 2, 199]) + long, 200) == long
    for packed, message in (
        (b"", "length"),
        (b"\xff" * 5, "length"),
        (b"\xff\xff\xff\x7f", "claims to hold"),
        (literal[:-1], "was cut"),
        (bytes([4]) + literal[1:], "more than it claims"),
        (bytes([9]) + literal[1:], "was cut"),
        (bytes([8, 1 << 2]) + b"ab" + bytes([4 << 2 | 1, 3]), "repeats what isn't there"),
        (bytes([8, 1 << 2]) + b"ab" + bytes([4 << 2 | 1, 0]), "repeats what isn't there"),
        (bytes([8, 1 << 2]) + b"ab" + bytes([4 << 2 | 2, 1]), "repeats what isn't there"),
    ):
        with pytest.raises(SnappyError, match=message):
            decompress_snappy(packed, 1000)
