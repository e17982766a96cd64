"""An index knows its model again: by all that its vectors come from, and opens and reads it once."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from index_samples import write_files
from safetensors.torch import load_file, save_file

pytest.importorskip("lancedb")

from bertsmith.cli.embed import _read_ranges
from bertsmith.errors import InputError, ModelError
from bertsmith.files import sha256
from bertsmith.inference.embedding.embedder import Embedder
from bertsmith.inference.embedding.job import embed_file
from bertsmith.inference.index import index as index_module
from bertsmith.inference.index import text_embedder as index_embedder
from bertsmith.inference.index.index import Index
from bertsmith.inference.index.text_embedder import lasting_name
from bertsmith.tasks.checkpoints import sentence_folder as sentence_files
from bertsmith.text.retrieval.passages import PassageSettings
from bertsmith.text.tokens.tokenizer import Tokenizer

SETTINGS = PassageSettings(tokens=12, overlap=4)


@pytest.fixture
def docs(tmp_path: Path) -> Path:
    return write_files(tmp_path / "docs", {"a.txt": "a red cat runs", "b.txt": "the old dog sleeps"})


def sentence_folder(tiny_bert: Path, folder: Path, pooling: str = "mean") -> Path:
    """As sentence-transformers saves it, the encoder one folder deeper."""
    shutil.copytree(tiny_bert, folder / "0_Transformer")
    (folder / "1_Pooling").mkdir()
    modes = {f"pooling_mode_{name}": name == pooling for name in ("cls_token", "mean_tokens", "max_tokens")}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(modes))
    modules = [
        {"type": "sentence_transformers.models.Transformer", "path": "0_Transformer"},
        {"type": "sentence_transformers.models.Pooling", "path": "1_Pooling"},
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    return folder


def add_dense(folder: Path, weight: float) -> None:
    """A last product, of 32 dimensions to 4."""
    (folder / "2_Dense").mkdir(exist_ok=True)
    said = {"in_features": 32, "out_features": 4, "bias": False, "activation_function": "torch.nn.Identity"}
    (folder / "2_Dense" / "config.json").write_text(json.dumps(said))
    save_file({"linear.weight": torch.full((4, 32), weight)}, folder / "2_Dense" / "model.safetensors")
    modules = json.loads((folder / "modules.json").read_text())[:2]
    modules.append({"type": "sentence_transformers.models.Dense", "path": "2_Dense"})
    (folder / "modules.json").write_text(json.dumps(modules))


def build(docs: Path, embedder: Embedder) -> Index:
    return Index.build([docs], docs.parent / "index", embedder=embedder, passages=SETTINGS)


def alter_weights(folder: Path) -> None:
    (path,) = folder.rglob("model.safetensors")
    tensors = {name: tensor + 0.01 for name, tensor in load_file(path).items()}
    save_file(tensors, path)
    (path.parent / "bertsmith.json").unlink()  # which says what the weights were


@pytest.mark.parametrize("nested", [False, True])
def test_other_weights_are_noticed_wherever_they_lie(
    nested: bool, tiny_bert: Path, docs: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "model"
    if nested:
        sentence_folder(tiny_bert, folder, "mean_tokens")
    else:
        shutil.copytree(tiny_bert, folder)
    index = Index.build([docs], tmp_path / "index", model=str(folder), passages=SETTINGS)
    assert len(index.info.model.sha256) == 64
    alter_weights(folder)
    with pytest.raises(InputError, match="with another set of weights than"):
        Index.open(index.path).search("cat")
    with pytest.raises(InputError, match="with another set of weights than"):
        build(docs, Embedder(folder))


def test_another_last_product_is_noticed(tiny_bert: Path, docs: Path, tmp_path: Path) -> None:
    """By an index, by vectors that are to be gone on with, and where a file's ranges are taken."""
    folder, vectors = sentence_folder(tiny_bert, tmp_path / "model", "mean_tokens"), tmp_path / "v.parquet"
    before = Embedder(folder).model_sha256
    assert before == sha256(folder / "0_Transformer" / "model.safetensors")  # as indexes have noted it
    add_dense(folder, 0.1)
    index = build(docs, Embedder(folder))
    embed_file(Embedder(folder), docs / "a.txt", vectors)
    older = tmp_path / "int8.parquet"
    embed_file(Embedder(folder), docs / "a.txt", older, store_dtype="int8")
    add_dense(folder, 0.2)
    with pytest.raises(InputError, match="with another set of weights than"):
        build(docs, Embedder(folder))
    with pytest.raises(InputError, match="with another set of weights than"):
        Index.open(index.path, embedder=Embedder(folder)).search("cat")
    with pytest.raises(InputError, match="was made with model_sha256 "):
        embed_file(Embedder(folder), docs / "a.txt", vectors, resume=True)
    with pytest.raises(InputError, match="holds vectors of another model"):
        _read_ranges(older, Embedder(folder))


def test_texts_put_into_small_letters_first_are_noticed(tiny_bert: Path, docs: Path, tmp_path: Path) -> None:
    """For a vocabulary that has capitals: for another one it changes nothing."""
    folder = sentence_folder(tiny_bert, tmp_path / "model", "mean_tokens")
    settings = folder / "0_Transformer" / "sentence_bert_config.json"
    (folder / "0_Transformer" / "bertsmith.json").unlink()  # which says what the files were
    uncased = Embedder(folder).tokenizer.sha256
    settings.write_text('{"do_lower_case": true}')
    assert Embedder(folder).tokenizer.sha256 == uncased
    pieces = Embedder(folder).tokenizer.pieces
    Tokenizer.from_pieces(pieces, lowercase=False).save(folder / "0_Transformer")
    index = build(docs, Embedder(folder))
    settings.write_text('{"do_lower_case": false}')
    with pytest.raises(InputError, match="with another vocabulary than"):
        Index.open(index.path, embedder=Embedder(folder)).search("cat")


@pytest.mark.parametrize(
    ("settings", "what"),
    [
        ({"max_length": 32}, "max_length"),
        ({"long_texts": "windows"}, "treatment of long texts"),
        ({"query_prefix": "query: "}, "query prefix"),
        ({"query_prefix": "q", "document_prefix": "d"}, "query prefix and document prefix"),
    ],
)
def test_another_way_to_vectors_is_noticed(
    settings: dict[str, object], what: str, tiny_bert: Path, docs: Path
) -> None:
    index = build(docs, Embedder(tiny_bert))
    with pytest.raises(InputError, match=f"with another {what} than"):
        Index.open(index.path, embedder=Embedder(tiny_bert, **settings)).search("cat")  # type: ignore[arg-type]


def test_another_pooling_and_another_vocabulary_are_noticed(
    tiny_bert: Path, docs: Path, tmp_path: Path
) -> None:
    index = build(docs, Embedder(sentence_folder(tiny_bert, tmp_path / "mean", "mean_tokens")))
    other = Embedder(sentence_folder(tiny_bert, tmp_path / "cls", "cls_token"))
    with pytest.raises(InputError, match="with another pooling than"):
        Index.open(index.path, embedder=other).search("cat")
    other = Embedder(tmp_path / "mean")
    other.tokenizer = type(other.tokenizer).from_pieces(other.tokenizer.pieces[::-1], lowercase=True)
    with pytest.raises(InputError, match="with another vocabulary than"):
        Index.open(index.path, embedder=other).search("cat")


def test_nothing_is_added_by_another_model_where_an_index_was_built_anew_meanwhile(
    tiny_bert: Path, docs: Path, tmp_path: Path
) -> None:
    mean, cls = (sentence_folder(tiny_bert, tmp_path / name, name) for name in ("mean_tokens", "cls_token"))
    held, unused = build(docs, Embedder(mean)), Index.open(docs.parent / "index")
    shutil.rmtree(held.path)
    new = Index.build([docs], held.path, model=str(cls), passages=SETTINGS)
    more = write_files(tmp_path / "more", {"c.txt": "a green bird sings"})
    with pytest.raises(InputError, match="with another pooling than"):
        held.add([more])
    assert new.info.documents == 2
    assert unused.add([more]).new == 1  # by the model of the new one
    assert new.info.documents == 3


def test_a_first_build_opens_and_reads_its_model_once(
    tiny_bert: Path, docs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    opened = index_embedder.open_embedder

    def counted_opening(name: str) -> object:
        done.append("opened")
        return opened(name)

    def counted_reading(path: Path) -> str:
        done.append("read")
        return sha256(path)

    monkeypatch.setattr(index_module, "open_embedder", counted_opening)
    monkeypatch.setattr(sentence_files, "sha256", counted_reading)
    index = Index.build([docs], docs.parent / "index", model=str(tiny_bert), passages=SETTINGS)
    index.search("cat")
    assert done == ["opened", "read"]


def test_an_index_is_searched_from_anywhere_and_told_where_its_model_went(
    tiny_bert: Path, docs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(tiny_bert, "old")
    index = Index.build(["docs"], "index", model="old", passages=SETTINGS)
    assert index.info.model.name == str(tmp_path / "old")
    monkeypatch.chdir(docs)
    assert Index.open(tmp_path / "index").search("cat")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "old").rename("new")
    with pytest.raises(ModelError, match="There is no model"):
        Index.open("index").search("cat")
    index = Index.build(["docs"], "index", model="new")
    assert index.changes is not None and index.changes.passages == 0
    assert Index.open("index").info.model.name == str(tmp_path / "new")
    assert Index.open("index").search("cat")
    assert lasting_name("minilm") == "minilm"
