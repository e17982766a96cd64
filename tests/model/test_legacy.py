"""pytorch_model.bin: tensors come out, nothing else does, and nothing is lost."""

import io
import json
import pickle
import shutil
import tarfile
import warnings
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from model_folders import SPECIAL, tiny_config
from safetensors.torch import load_file

from bertsmith.errors import InputError, ModelError
from bertsmith.inference.embedding.embedder import Embedder
from bertsmith.model.checkpoint import read_checkpoint
from bertsmith.model.config_json import config_to_hugging_face
from bertsmith.model.legacy import convert_legacy, read_legacy_tensors
from bertsmith.model.weights import to_hugging_face
from bertsmith.tasks.checkpoints.infer_task import model_kind
from bertsmith.tasks.checkpoints.sentence_folder import (
    is_matryoshka,
    read_sentence_settings,
    write_sentence_folder,
)
from bertsmith.tasks.checkpoints.task_checkpoint import load_task_model
from bertsmith.tasks.pretraining.pretraining import PretrainingModel
from bertsmith.tasks.pretraining.pretraining_checkpoint import load_pretraining_model
from random_encoder import random_encoder

Save = Callable[[Any, Path], None]


def save_zip(content: Any, path: Path) -> None:
    torch.save(content, path)


def save_old(content: Any, path: Path) -> None:
    """As torch wrote it before 1.6."""
    torch.save(content, path, _use_new_zipfile_serialization=False)


both_formats = pytest.mark.parametrize("save", [save_zip, save_old])


def make_legacy_folder(folder: Path, save: Save = save_zip, **extra: Any) -> PretrainingModel:
    """A pre-trained BERT as transformers of 2019 would have left it; `extra` goes into the file."""
    torch.manual_seed(1)
    model = PretrainingModel(tiny_config())
    folder.mkdir()
    (folder / "config.json").write_text(
        json.dumps(config_to_hugging_face(model.config, "BertForPreTraining"))
    )
    (folder / "vocab.txt").write_text("\n".join([*SPECIAL, "a", "b"]) + "\n")
    tensors = OrderedDict(to_hugging_face(model.state_dict(), model.config, bare=False))
    tensors["cls.predictions.decoder.weight"] = tensors["bert.embeddings.word_embeddings.weight"]
    tensors["bert.embeddings.position_ids"] = torch.arange(8).unsqueeze(0)
    save(tensors | extra, folder / "pytorch_model.bin")
    return model


@both_formats
def test_an_imported_model_is_the_same_to_the_bit(tmp_path: Path, save: Save) -> None:
    original = make_legacy_folder(tmp_path / "old", save)
    imported = convert_legacy(tmp_path / "old", tmp_path / "new")
    assert (imported.with_tokenizer, imported.notes) == (True, ())
    again, _ = load_pretraining_model(tmp_path / "new")
    assert model_kind(tmp_path / "new") == "masked-language"
    assert all(torch.equal(again.state_dict()[name], value) for name, value in original.state_dict().items())
    manifest = read_checkpoint(tmp_path / "new").manifest
    assert manifest is not None
    assert manifest.provenance["imported_from"] == "old/pytorch_model.bin"
    # the tied copy and the table of indices are gone, nothing else is
    assert len(load_file(tmp_path / "new/model.safetensors")) == len(
        to_hugging_face(original.state_dict(), original.config, bare=False)
    )


class RunsCode:
    """What a hostile checkpoint holds: unpickling it writes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


@both_formats
def test_code_in_the_file_is_refused_and_not_run(tmp_path: Path, save: Save) -> None:
    make_legacy_folder(tmp_path / "old", save, payload=RunsCode(tmp_path / "ran"))
    with pytest.raises(ModelError, match="could run code, so it was refused"):
        convert_legacy(tmp_path / "old", tmp_path / "new")
    assert not (tmp_path / "ran").exists()
    assert not (tmp_path / "new").exists()


def test_a_plain_pickle_is_not_even_opened(tmp_path: Path) -> None:
    (tmp_path / "x.bin").write_bytes(pickle.dumps(RunsCode(tmp_path / "ran")))
    with pytest.raises(ModelError, match=r"not a file that torch\.save wrote"):
        read_legacy_tensors(tmp_path / "x.bin")
    assert not (tmp_path / "ran").exists()


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")  # of torch 2.11
@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("epoch", 3, "'epoch' is int"),
        ("optimizer", {"state": {}}, "'optimizer' is dict"),
        ("sparse", torch.eye(3).to_sparse(), "'sparse' is a tensor of an unusual kind"),
    ],
)
def test_anything_but_dense_tensors_by_name_is_refused(
    tmp_path: Path, name: str, value: Any, message: str
) -> None:
    make_legacy_folder(tmp_path / "old", **{name: value})
    with pytest.raises(ModelError, match=message):
        convert_legacy(tmp_path / "old", tmp_path / "new")


def test_a_list_of_tensors_is_not_a_checkpoint(tmp_path: Path) -> None:
    torch.save([torch.ones(2)], tmp_path / "x.bin")
    with pytest.raises(ModelError, match="holds a list; expected a dictionary"):
        read_legacy_tensors(tmp_path / "x.bin")


def test_one_stored_value_repeated_a_billion_times_costs_no_memory(tmp_path: Path) -> None:
    torch.save({"bomb": torch.ones(1).expand(1 << 40)}, tmp_path / "x.bin")
    with pytest.raises(ModelError, match="claims tensors that are larger than the file"):
        read_legacy_tensors(tmp_path / "x.bin")


def test_a_compressed_archive_is_refused(tmp_path: Path) -> None:
    torch.save({"zeros": torch.zeros(1 << 20)}, tmp_path / "plain.bin")
    with (
        zipfile.ZipFile(tmp_path / "plain.bin") as plain,
        zipfile.ZipFile(tmp_path / "x.bin", "w", zipfile.ZIP_DEFLATED) as packed,
    ):
        for entry in plain.infolist():
            packed.writestr(entry.filename, plain.read(entry))
    assert (tmp_path / "x.bin").stat().st_size < 100_000
    with pytest.raises(ModelError, match="compressed archive"):
        read_legacy_tensors(tmp_path / "x.bin")


def test_the_tar_format_of_the_first_torch_is_refused(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "x.bin", "w") as archive:
        content = pickle.dumps(RunsCode(tmp_path / "ran"))
        member = tarfile.TarInfo("pickle")
        member.size = len(content)
        archive.addfile(member, io.BytesIO(content))
    with pytest.raises(ModelError, match=r"not a file that torch\.save wrote"):
        read_legacy_tensors(tmp_path / "x.bin")
    assert not (tmp_path / "ran").exists()


@both_formats
@pytest.mark.parametrize("share", [0.0, 0.01, 0.3, 0.7, 0.99])
def test_a_file_cut_anywhere_is_said_to_be_cut(tmp_path: Path, save: Save, share: float) -> None:
    make_legacy_folder(tmp_path / "old", save)
    path = tmp_path / "old/pytorch_model.bin"
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * share)])
    with pytest.raises(ModelError, match=r"cut or altered|was refused"):
        convert_legacy(tmp_path / "old", tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_the_head_of_a_fine_tuned_model_is_kept_and_named(tmp_path: Path) -> None:
    make_legacy_folder(tmp_path / "old")
    tensors = torch.load(tmp_path / "old/pytorch_model.bin", weights_only=True)
    kept = OrderedDict((name, value) for name, value in tensors.items() if not name.startswith("cls."))
    kept["classifier.weight"], kept["classifier.bias"] = torch.ones(3, 4), torch.ones(3)
    torch.save(kept, tmp_path / "old/pytorch_model.bin")
    settings = json.loads((tmp_path / "old/config.json").read_text())
    labels = {"id2label": {"0": "O", "1": "PER", "2": "LOC"}, "label2id": {"O": 0, "PER": 1, "LOC": 2}}
    settings |= labels | {"architectures": ["BertForTokenClassification"]}
    (tmp_path / "old/config.json").write_text(json.dumps(settings))
    imported = convert_legacy(tmp_path / "old", tmp_path / "new")
    assert imported.notes == (
        "the head classifier (BertForTokenClassification) was kept under its own names",
    )
    saved = load_file(tmp_path / "new/model.safetensors")
    assert torch.equal(saved["classifier.weight"], torch.ones(3, 4))
    assert labels.items() <= json.loads((tmp_path / "new/config.json").read_text()).items()
    again = read_checkpoint(tmp_path / "new")
    assert again.parts == {"encoder", "pooler", "classifier"}
    assert (again.architecture, again.labels) == ("BertForTokenClassification", labels)
    assert model_kind(tmp_path / "new") == "task"
    _, task = load_task_model(tmp_path / "new")
    assert (task.name, task.labels) == ("tagging", ("O", "PER", "LOC"))


@pytest.mark.parametrize(
    "said",
    [
        {"sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity"},
        {"sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity", "version": "5.0.0"}},
    ],
)
def test_a_cross_encoder_keeps_what_becomes_of_its_scores(tmp_path: Path, said: dict[str, Any]) -> None:
    """Without it sentence-transformers puts the scores through a sigmoid."""
    make_legacy_folder(tmp_path / "old")
    tensors = torch.load(tmp_path / "old/pytorch_model.bin", weights_only=True)
    kept = OrderedDict((name, value) for name, value in tensors.items() if not name.startswith("cls."))
    kept["classifier.weight"], kept["classifier.bias"] = torch.ones(1, 4), torch.ones(1)
    torch.save(kept, tmp_path / "old/pytorch_model.bin")
    settings = json.loads((tmp_path / "old/config.json").read_text()) | said
    settings |= {"architectures": ["BertForSequenceClassification"], "id2label": {"0": "LABEL_0"}}
    (tmp_path / "old/config.json").write_text(json.dumps(settings))
    convert_legacy(tmp_path / "old", tmp_path / "new")
    written = json.loads((tmp_path / "new/config.json").read_text())
    assert written == written | said
    assert load_task_model(tmp_path / "new")[1].name == "regression"


def test_a_vocabulary_larger_than_the_model_is_left_out_and_it_is_said(tmp_path: Path) -> None:
    make_legacy_folder(tmp_path / "old")
    with (tmp_path / "old/vocab.txt").open("a") as file:
        file.writelines(f"piece{number}\n" for number in range(5))
    imported = convert_legacy(tmp_path / "old", tmp_path / "new")
    assert not imported.with_tokenizer
    assert "12 pieces, the model 11 rows. Remove the pieces from 'piece4' on" in imported.notes[0]
    assert not (tmp_path / "new/vocab.txt").exists()


def test_a_folder_without_a_vocabulary_is_imported_without_one(tmp_path: Path) -> None:
    make_legacy_folder(tmp_path / "old")
    (tmp_path / "old/vocab.txt").unlink()
    imported = convert_legacy(tmp_path / "old", tmp_path / "new")
    assert not imported.with_tokenizer
    assert imported.notes[0].startswith("no tokenizer was imported: ")


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (["bert_model.ckpt"], "TensorFlow's checkpoints without an .index.*transformers 4"),
        (["tf_model.h5", "config.json"], "Keras' format"),
        (["model.safetensors"], "Use the folder as it is"),
        ([], "nothing to import"),
    ],
)  # fmt: skip
def test_other_formats_are_refused_with_the_way_on(tmp_path: Path, files: list[str], message: str) -> None:
    (tmp_path / "old").mkdir()
    for name in files:
        (tmp_path / "old" / name).write_bytes(b"")
    with pytest.raises(ModelError, match=message):
        convert_legacy(tmp_path / "old", tmp_path / "new")


def test_an_existing_folder_is_not_overwritten(tmp_path: Path) -> None:
    make_legacy_folder(tmp_path / "old")
    shutil.copytree(tmp_path / "old", tmp_path / "new")
    with pytest.raises(InputError, match="already exists"):
        convert_legacy(tmp_path / "old", tmp_path / "new")
    assert (tmp_path / "new/pytorch_model.bin").exists()


@both_formats
def test_no_damage_gives_anything_but_a_sentence(tmp_path: Path, save: Save) -> None:
    """At the places where torch's reader met what it had no word for: the pickle, and the archive's list."""
    make_legacy_folder(tmp_path / "old", save)
    path = tmp_path / "old/pytorch_model.bin"
    whole = path.read_bytes()
    random = Random(7)
    start = whole.index(b"cls.") if save is save_old else max(len(whole) - 3000, 0)
    refused = 0
    for _ in range(60):
        altered = bytearray(whole)
        altered[random.randrange(start, min(start + 3000, len(whole)))] = random.randrange(256)
        path.write_bytes(altered)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # torch's, on a protocol it doesn't know
                read_legacy_tensors(path)
        except ModelError:
            refused += 1
    assert refused > 0, "no byte that was altered mattered"


def make_embedding_folders(folder: Path, *, dense: bool, deeper: bool) -> tuple[Path, Path]:
    """The same embedding model with safetensors, and as sentence-transformers left it in 2020."""
    new, old = folder / "new", folder / "old"
    encoder = random_encoder(folder / "encoder", list("abcdef"))
    shutil.copytree(encoder, new)
    (new / "bertsmith.json").unlink()
    torch.manual_seed(2)
    projection = torch.nn.Linear(16, 4) if dense else None
    config, prompts = read_checkpoint(encoder).config, {"query": "a b "}
    write_sentence_folder(new, config, "cls", 8, normalise=True, prompts=prompts, projection=projection)
    settings = new / "sentence_bert_config.json"
    settings.write_text(json.dumps({"max_seq_length": 8, "do_lower_case": True}))
    shutil.copytree(new, old)
    for path in old.rglob("model.safetensors"):
        torch.save(load_file(path), path.with_name("pytorch_model.bin"))
        path.unlink()
    (old / f"{3 if dense else 2}_Normalize").rmdir()  # as after git
    if deeper:
        (old / "0_Transformer").mkdir()
        for path in [each for each in old.iterdir() if each.is_file()]:
            if path.name not in ("modules.json", "config_sentence_transformers.json"):
                path.rename(old / "0_Transformer" / path.name)
        modules = json.loads((old / "modules.json").read_text())
        modules[0]["path"] = "0_Transformer"
        (old / "modules.json").write_text(json.dumps(modules))
    return new, old


def test_layers_in_the_old_format_beside_an_encoder_in_the_new_are_refused_and_imported(
    tmp_path: Path,
) -> None:
    """The hub's converter writes one safetensors file, in the folder itself."""
    new, old = make_embedding_folders(tmp_path, dense=True, deeper=False)
    shutil.copyfile(new / "model.safetensors", old / "model.safetensors")
    (old / "pytorch_model.bin").unlink()
    with pytest.raises(ModelError, match=r"2_Dense holds a pytorch_model.bin.*bertsmith import .*old --out"):
        Embedder(old)
    convert_legacy(old, tmp_path / "imported")
    texts = ["a b c", "d e"]
    np.testing.assert_array_equal(
        Embedder(tmp_path / "imported").documents(texts), Embedder(new).documents(texts)
    )
    torch.save({"linear.weight": torch.nn.Linear(2, 2)}, old / "2_Dense" / "pytorch_model.bin")  # code
    with pytest.raises(ModelError, match="holds Python objects beside its tensors"):
        convert_legacy(old, tmp_path / "again")
    with pytest.raises(ModelError, match="there is nothing to import"):
        convert_legacy(new, tmp_path / "again")


def test_an_encoder_that_is_named_by_its_family_is_found(tmp_path: Path) -> None:
    new, old = make_embedding_folders(tmp_path, dense=True, deeper=True)
    modules = json.loads((old / "modules.json").read_text())
    modules[0] |= {"type": "sentence_transformers.models.BERT", "path": "0_BERT"}
    (old / "modules.json").write_text(json.dumps(modules))
    (old / "0_Transformer").rename(old / "0_BERT")
    convert_legacy(old, tmp_path / "imported")
    texts = ["a b c", "d e"]
    np.testing.assert_array_equal(
        Embedder(tmp_path / "imported").documents(texts), Embedder(new).documents(texts)
    )


@pytest.mark.parametrize(("dense", "deeper"), [(False, False), (True, False), (True, True)])
def test_an_imported_embedding_model_gives_the_same_vectors(
    tmp_path: Path, dense: bool, deeper: bool
) -> None:
    new, old = make_embedding_folders(tmp_path, dense=dense, deeper=deeper)
    imported = convert_legacy(old, tmp_path / "imported")
    assert imported.with_tokenizer
    assert not [*(tmp_path / "imported").rglob("*.bin")]
    texts = ["A b c", "d e f a b c d e f a b c", "f"]
    before, after = Embedder(new), Embedder(tmp_path / "imported")
    assert before.documents(texts).shape == (3, 4 if dense else 16)
    np.testing.assert_array_equal(after.documents(texts), before.documents(texts))
    np.testing.assert_array_equal(after.queries(texts), before.queries(texts))
    found = read_sentence_settings(tmp_path / "imported")
    assert (found.pooling, found.max_length, found.query_prefix) == ("cls", 8, "a b ")


@pytest.mark.parametrize("said", [{"is_matryoshka": True}, {"matryoshka_dimensions": [16, 8]}])
def test_an_imported_embedding_model_says_that_its_vectors_may_be_cut(
    tmp_path: Path, said: dict[str, Any]
) -> None:
    _, old = make_embedding_folders(tmp_path, dense=False, deeper=True)
    config = old / "0_Transformer" / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | said))
    convert_legacy(old, tmp_path / "imported")
    assert is_matryoshka(tmp_path / "imported")
    written = json.loads((tmp_path / "imported" / "config.json").read_text())
    assert written == written | said


def test_a_part_that_cannot_be_carried_is_refused_by_name(tmp_path: Path) -> None:
    _, old = make_embedding_folders(tmp_path, dense=True, deeper=False)
    (old / "2_Dense" / "weights.npz").write_bytes(b"x")
    with pytest.raises(ModelError, match=r"weights\.npz belongs to a part of an embedding model"):
        convert_legacy(old, tmp_path / "imported")
    (old / "2_Dense" / "weights.npz").unlink()
    save_zip({"linear.weight": RunsCode(tmp_path / "ran")}, old / "2_Dense" / "pytorch_model.bin")
    with pytest.raises(ModelError, match="could run code, so it was refused"):
        convert_legacy(old, tmp_path / "imported")
    assert not (tmp_path / "ran").exists()
    assert not (tmp_path / "imported").exists()


@pytest.mark.parametrize("name", ["model_max_length", "max_len"])
def test_an_imported_tokenizer_cuts_texts_where_the_old_one_did(tmp_path: Path, name: str) -> None:
    """By the key of today, and that before transformers 3."""
    old = random_encoder(tmp_path / "old", ["a", "b"])  # with 64 positions
    torch.save(load_file(old / "model.safetensors"), old / "pytorch_model.bin")
    for file in ("model.safetensors", "bertsmith.json"):
        (old / file).unlink()
    (old / "tokenizer_config.json").write_text(json.dumps({name: 16, "do_lower_case": True}))
    convert_legacy(old, tmp_path / "new")
    assert read_sentence_settings(tmp_path / "new").max_length == 16
