"""A static table as an embedder: its numbers against plain sums and against the tools whose format it has."""

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from bertsmith.compression.vocabulary_pruning import prune_vocabulary
from bertsmith.errors import InputError, ModelError
from bertsmith.files import write_json
from bertsmith.inference.embedding.embedder import Embedder
from bertsmith.inference.embedding.job import embed_file
from bertsmith.inference.embedding.vector_file import read_vectors
from bertsmith.inference.embedding.vectors import Vectors
from bertsmith.inference.export.source import open_source
from bertsmith.inference.index.index import Index
from bertsmith.inference.predictor import Predictor
from bertsmith.model.checkpoint import load_encoder
from bertsmith.model.static_table import is_static, load_static, save_static
from bertsmith.serving.operations.operation import Options
from bertsmith.serving.served_model import open_model
from bertsmith.serving.settings import ModelSettings
from bertsmith.tasks.checkpoints.infer_task import model_kind
from bertsmith.text.tokens.tokenizer import Tokenizer

TEXTS = [
    "red cats",
    "",
    "The old dog runs!",
    "☃ ☃",
    "bird " * 40,
    "[CLS] is text",
    "Small\tsmaller\nsmallers",
]


@pytest.fixture
def table(tmp_path: Path, tiny_tokenizer: Tokenizer) -> Path:
    rows = torch.randn(tiny_tokenizer.vocab_size, 8, generator=torch.Generator().manual_seed(0))
    rows[list(tiny_tokenizer.special_ids)] = 0
    save_static(tmp_path / "static", rows, tiny_tokenizer, provenance={"made": "here"})
    return tmp_path / "static"


def test_a_vector_is_the_mean_of_the_rows_of_length_one(table: Path, tiny_tokenizer: Tokenizer) -> None:
    rows = load_file(table / "model.safetensors")["embeddings"].numpy()
    vectors = Embedder(table).documents(TEXTS)
    for text, vector in zip(TEXTS, vectors, strict=True):
        total = rows[list(tiny_tokenizer.encode(text).ids)].sum(0)
        np.testing.assert_allclose(vector, total / max(float(np.linalg.norm(total)), 1e-12), atol=1e-6)


def test_model2vec_and_sentence_transformers_give_the_same_vectors(table: Path) -> None:
    ours = Embedder(table).documents(TEXTS)
    from sentence_transformers import SentenceTransformer

    theirs = SentenceTransformer(str(table), device="cpu").encode(TEXTS)
    np.testing.assert_allclose(ours, theirs, atol=1e-6)
    model2vec = pytest.importorskip("model2vec", reason="model2vec isn't installed")
    np.testing.assert_allclose(ours, model2vec.StaticModel.from_pretrained(table).encode(TEXTS), atol=1e-6)


def test_a_folder_that_model2vec_wrote_opens(table: Path, tmp_path: Path, tiny_tokenizer: Tokenizer) -> None:
    """Fewer rows than pieces, a mapping and weights: its quantised vocabularies."""
    model2vec = pytest.importorskip("model2vec", reason="model2vec isn't installed")
    random = np.random.default_rng(0)
    pieces = tiny_tokenizer.vocab_size
    weights = random.random(pieces).astype(np.float32)
    weights[tiny_tokenizer.cls_id] = 0  # they take "[CLS]" in a text for the piece, we for words
    theirs = model2vec.StaticModel(
        random.normal(size=(9, 8)).astype(np.float32),
        tiny_tokenizer.backend,
        normalize=True,
        weights=weights,
        token_mapping=random.integers(0, 9, pieces),
    )
    theirs.save_pretrained(tmp_path / "theirs")
    wanted = theirs.encode(TEXTS)
    np.testing.assert_allclose(Embedder(tmp_path / "theirs").documents(TEXTS), wanted, atol=1e-6)
    every_piece = [*TEXTS, " ".join(tiny_tokenizer.pieces)]
    pruned = prune_vocabulary(tmp_path / "theirs", every_piece, tmp_path / "pruned").folder
    np.testing.assert_allclose(Embedder(pruned).documents(TEXTS), wanted, atol=1e-6)


def test_of_a_table_of_sentence_transformers_unknown_pieces_count(
    table: Path, tmp_path: Path, tiny_tokenizer: Tokenizer
) -> None:
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import StaticEmbedding

    torch.manual_seed(0)
    theirs = SentenceTransformer(
        modules=[StaticEmbedding(tiny_tokenizer.backend, embedding_dim=8)], device="cpu"
    )
    theirs.save(str(tmp_path / "theirs"))
    texts = ["☃ ☃", "red ☃ cats"]
    wanted = theirs.encode(texts, normalize_embeddings=True)
    assert np.abs(wanted[0]).max() > 0
    np.testing.assert_allclose(Embedder(tmp_path / "theirs").documents(texts), wanted, atol=1e-6)


def served(folder: Path, texts: list[str], long_text: str | None = None) -> Vectors:
    model = open_model(ModelSettings(name="table", path=str(folder)), 1)
    return model.operation("embed").prepare(texts, Options(long_text)).compute_answer()


def test_a_service_makes_the_same_vectors_of_a_table_of_sentence_transformers(
    tmp_path: Path, tiny_tokenizer: Tokenizer
) -> None:
    """Whose rows of the special tokens around a text are as they were drawn."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import StaticEmbedding

    torch.manual_seed(0)
    theirs = SentenceTransformer(
        modules=[StaticEmbedding(tiny_tokenizer.backend, embedding_dim=8)], device="cpu"
    )
    theirs.save(str(tmp_path / "theirs"))
    wanted = theirs.encode(TEXTS, normalize_embeddings=True)
    np.testing.assert_allclose(served(tmp_path / "theirs", TEXTS), wanted, atol=1e-6)


def test_a_service_reads_long_texts_of_a_table_whole(
    table: Path, tmp_path: Path, tiny_tokenizer: Tokenizer
) -> None:
    rows = load_static(table).table.detach()
    table = tmp_path / "short"
    save_static(table, rows, tiny_tokenizer, provenance={}, max_length=12)
    text = " ".join([*TEXTS * 4, "red cats"])
    for way in ("truncate", "windows"):
        expected = Embedder(table, long_texts=way).documents([text])
        np.testing.assert_allclose(served(table, [text], way), expected, atol=1e-7)


def moved_one_deeper(table: Path) -> Path:
    """As sentence-transformers 3 and 4 left it."""
    (table / "bertsmith.json").unlink()
    (table / "config.json").unlink()
    (table / "0_StaticEmbedding").mkdir()
    for name in ("model.safetensors", "tokenizer.json"):
        (table / name).rename(table / "0_StaticEmbedding" / name)
    for name in ("tokenizer_config.json", "vocab.txt"):
        (table / name).unlink()
    modules = json.loads((table / "modules.json").read_text())
    modules[0]["path"] = "0_StaticEmbedding"
    write_json(table / "modules.json", modules)
    return table


def test_a_service_cuts_a_long_text_of_a_table_where_an_embedder_does(table: Path) -> None:
    """Behind its beginning, whatever side a tokenizer names that a table has from its teacher."""
    (table / "bertsmith.json").unlink()
    for name, said in (("config", {"max_length": 10}), ("tokenizer_config", {"truncation_side": "left"})):
        path = table / f"{name}.json"
        write_json(path, json.loads(path.read_text()) | said)
    embed = open_model(ModelSettings(name="table", path=str(table)), 1, "cpu").operation("embed")
    text = "red " * 9 + "bird cats old " * 6
    (served,) = embed.prepare([text], Options(long_text="truncate")).compute_answer()
    np.testing.assert_allclose(served, Embedder(table).documents([text])[0], atol=1e-6)
    first = "red " * 9 + "bird"
    np.testing.assert_allclose(served, Embedder(table).documents([first])[0], atol=1e-6)
    model2vec = pytest.importorskip("model2vec", reason="model2vec isn't installed")
    (theirs,) = model2vec.StaticModel.from_pretrained(table).tokenize([text])
    assert theirs == list(Embedder(table).tokenizer.encode(first).ids)


def test_a_table_one_folder_deeper_opens(table: Path, tmp_path: Path) -> None:
    before = Embedder(table).documents(TEXTS)
    ours = Embedder(moved_one_deeper(table)).documents(TEXTS)
    np.testing.assert_array_equal(ours, before)
    from sentence_transformers import SentenceTransformer

    theirs = SentenceTransformer(str(table), device="cpu").encode(TEXTS)
    np.testing.assert_allclose(ours, theirs, atol=1e-6)
    pruned = prune_vocabulary(table, ["red cats"], tmp_path / "pruned").folder
    np.testing.assert_array_equal(Embedder(pruned).documents(["red cats"]), ours[:1])
    for needs_layers in (load_encoder, open_source):
        with pytest.raises(ModelError, match="static table of vectors, which has no layers"):
            needs_layers(table)


@pytest.mark.parametrize(
    ("changed", "complaint"),
    [
        ({"type": "sentence_transformers.models.Dense"}, "a module Dense after its table of vectors"),
        ({"type": 5}, "after its table of vectors"),
    ],
)
def test_a_table_with_another_module_behind_it_is_refused(
    table: Path, tmp_path: Path, changed: dict[str, Any], complaint: str
) -> None:
    """Its vectors would be others."""
    modules = json.loads((table / "modules.json").read_text())
    (table / "bertsmith.json").unlink()
    write_json(table / "modules.json", [modules[0], modules[1] | changed])
    with pytest.raises(ModelError, match=complaint):
        Embedder(table)
    with pytest.raises(ModelError, match=complaint):
        prune_vocabulary(table, ["red cats"], tmp_path / "pruned")


def test_a_table_s_folder_cannot_lead_elsewhere(table: Path) -> None:
    modules = json.loads((moved_one_deeper(table) / "modules.json").read_text())
    write_json(table / "modules.json", [modules[0] | {"path": "../static/0_StaticEmbedding"}])
    with pytest.raises(ModelError, match="names no folder beside it for the module StaticEmbedding"):
        Embedder(table)


def test_a_table_for_dot_products_says_so(table: Path) -> None:
    (table / "bertsmith.json").unlink()
    write_json(table / "config_sentence_transformers.json", {"similarity_fn_name": "dot"})
    assert Embedder(table).caveat == ""  # it has nothing but cosines, for it normalises
    write_json(table / "modules.json", json.loads((table / "modules.json").read_text())[:1])
    assert "was trained for dot products" in Embedder(table).caveat
    assert Embedder(table, normalise=False).caveat == ""


def test_long_texts_are_cut_or_read_whole(table: Path) -> None:
    first = "red " * 8
    long = first + "dog " * 50_000
    cut = Embedder(table, max_length=8).documents([long, first])
    np.testing.assert_allclose(cut[0], cut[1], atol=1e-6)
    whole = Embedder(table, max_length=8, long_texts="windows").documents([long, "dog"])
    assert whole[0] @ whole[1] > 0.999
    assert cut[0] @ whole[1] < 0.99


def test_chunks_prefixes_dimensions_and_copies_don_t_change_a_vector(table: Path) -> None:
    embedder = Embedder(table)
    texts = [f"red {letter} cats" for letter in "abcdefghij"] * 30
    vectors = embedder.documents(texts)
    chunks = list(embedder.embed_batches(iter(texts), size=64))
    np.testing.assert_array_equal(np.concatenate([chunk.vectors for chunk in chunks]), vectors)
    assert [len(chunk.vectors) for chunk in chunks] == [64, 64, 64, 64, 44]
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(embedder)).documents(texts), vectors)
    prefixed = Embedder(table, query_prefix="dog ").queries(["cat"])
    np.testing.assert_allclose(prefixed, embedder.documents(["dog cat"]), atol=1e-7)
    first = Embedder(table, dimensions=3).documents(texts)
    wanted = vectors[:, :3] / np.linalg.norm(vectors[:, :3], axis=1, keepdims=True)
    np.testing.assert_allclose(first, wanted, atol=1e-6)


def test_what_is_no_text_is_refused(table: Path) -> None:
    with pytest.raises(InputError, match="text 2: expected a string, found int"):
        Embedder(table).documents(["red", 3])  # type: ignore[list-item]


def test_a_file_is_embedded_and_an_index_is_built_and_searched(table: Path, tmp_path: Path) -> None:
    rows = tmp_path / "rows.csv"
    rows.write_text("id,text\na,red cat\nb,old dog\nc,a bird sleeps\n")
    embed_file(Embedder(table), rows, tmp_path / "vectors.parquet")
    np.testing.assert_allclose(
        read_vectors(tmp_path / "vectors.parquet").vectors[1],
        Embedder(table).documents(["old dog"])[0],
        atol=1e-7,
    )
    index = Index.build([str(rows)], tmp_path / "index", str(table))
    assert index.search("dog", k=1)[0].text == "old dog"


def test_what_needs_layers_says_that_there_are_none(table: Path) -> None:
    assert is_static(table) and model_kind(table) == "embedding"
    with pytest.raises(ModelError, match="static table of vectors, which has no layers"):
        load_encoder(table)
    with pytest.raises(ModelError, match="static table of vectors, without the head of a task"):
        Predictor.load(table)


@pytest.mark.parametrize(
    ("tensors", "complaint"),
    [
        ({"other": torch.zeros(3, 4)}, "holds no static table.*found other"),
        ({"embeddings": torch.zeros(3)}, "holds no static table"),
        ({"embeddings": torch.full((40, 4), float("nan"))}, "not finite"),
        ({"embeddings": torch.zeros(3, 4), "mapping": torch.tensor([0, 3])}, "below 3"),
        ({"embeddings": torch.zeros(3, 4), "weights": torch.zeros(2)}, "expected 3 weights"),
    ],
)
def test_a_broken_table_is_one_sentence(
    tmp_path: Path, tensors: dict[str, torch.Tensor], complaint: str
) -> None:
    write_json(tmp_path / "config.json", {"model_type": "model2vec"})
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(ModelError, match=complaint):
        load_static(tmp_path)


def test_an_altered_table_is_found(table: Path) -> None:
    save_file({"embeddings": torch.zeros(42, 8)}, table / "model.safetensors")
    with pytest.raises(ModelError, match="altered"):
        Embedder(table)


def test_a_table_for_another_vocabulary_is_not_saved(tmp_path: Path, tiny_tokenizer: Tokenizer) -> None:
    with pytest.raises(ModelError, match="the table 3 rows"):
        save_static(tmp_path / "out", torch.zeros(3, 4), tiny_tokenizer, provenance={})
    assert not (tmp_path / "out").exists()
