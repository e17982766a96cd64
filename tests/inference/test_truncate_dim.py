"""`truncate_dim` of config_sentence_transformers.json: the first dimensions, then length 1, everywhere.

The right values are sentence-transformers'.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bertsmith.compression.static_learning import compute_token_vectors
from bertsmith.errors import ModelError
from bertsmith.inference.embedding.embedder import Embedder
from bertsmith.inference.explaining.attribution import Explainer
from bertsmith.inference.export.source import open_source
from bertsmith.inference.index.index import Index
from bertsmith.model.static_table import save_static
from bertsmith.serving.operations.operation import Options
from bertsmith.serving.served_model import open_model
from bertsmith.serving.settings import ModelSettings
from bertsmith.tasks.checkpoints.sentence_folder import is_matryoshka
from bertsmith.text.tokens.tokenizer import Tokenizer
from sentence_folders import POOLING, TEXTS, TRANSFORMER, WIDTH, save_sentence_folder

DENSE = ("Dense", {"in_features": WIDTH, "out_features": 12, "activation_function": "torch.nn.Identity"})
NORMALIZE = ("Normalize", {})
MODULES = {
    "normalised": (TRANSFORMER, POOLING, NORMALIZE),
    "of any length": (TRANSFORMER, POOLING),
    "behind a product": (TRANSFORMER, POOLING, DENSE, NORMALIZE),
}


def theirs(folder: Path) -> Any:
    sentence_transformers = pytest.importorskip("sentence_transformers")
    model = sentence_transformers.SentenceTransformer(str(folder), device="cpu")
    return model.encode(list(TEXTS), normalize_embeddings=True)


def ours(folder: Path, **settings: Any) -> Any:
    return Embedder(folder, compute_dtype=torch.float32, **settings).documents(TEXTS)


@pytest.mark.parametrize("modules", MODULES.values(), ids=MODULES)
@pytest.mark.parametrize("kept", [1, 5, 12, 16, 400, None])
def test_vectors_are_those_of_sentence_transformers(tmp_path: Path, modules: Any, kept: int | None) -> None:
    folder = save_sentence_folder(tmp_path / "model", modules, {"truncate_dim": kept})
    np.testing.assert_allclose(ours(folder), theirs(folder), atol=1e-5)


def test_more_are_given_to_who_asks_for_them(tmp_path: Path) -> None:
    folder = save_sentence_folder(tmp_path / "model", said={"truncate_dim": 5})
    whole = ours(save_sentence_folder(tmp_path / "whole"))
    np.testing.assert_allclose(ours(folder, dimensions=WIDTH), whole, atol=1e-6)
    assert ours(folder, dimensions=3).shape == (len(TEXTS), 3)
    assert is_matryoshka(folder)


@pytest.mark.parametrize("kept", [0, -3, 5.0, True, "5"])
def test_what_is_no_number_of_dimensions_is_refused(tmp_path: Path, kept: object) -> None:
    folder = save_sentence_folder(tmp_path / "model", said={"truncate_dim": kept})
    with pytest.raises(
        ModelError, match=r"config_sentence_transformers.json: truncate_dim must be a whole n"
    ):
        Embedder(folder)


def test_a_static_table_keeps_them_too(tmp_path: Path) -> None:
    pytest.importorskip("sentence_transformers")
    tokenizer = Tokenizer.load(save_sentence_folder(tmp_path / "encoder"))
    table = torch.randn(tokenizer.vocab_size, 8, generator=torch.Generator().manual_seed(3))
    table[list(tokenizer.special_ids)] = 0
    save_static(tmp_path / "table", table, tokenizer, provenance={})
    (tmp_path / "table" / "bertsmith.json").unlink()
    (tmp_path / "table" / "config_sentence_transformers.json").write_text('{"truncate_dim": 3}')
    np.testing.assert_allclose(ours(tmp_path / "table"), theirs(tmp_path / "table"), atol=1e-6)


def test_a_service_a_graph_an_index_and_an_explanation_keep_them(tmp_path: Path) -> None:
    folder = save_sentence_folder(tmp_path / "model", said={"truncate_dim": 5})
    wanted = theirs(folder)
    opened = open_model(ModelSettings(name="m", path=str(folder), compute_dtype="float32"), 1)
    embed = opened.operations["embed"]
    for asked, width in (({}, 5), ({"dimensions": 9}, 9)):
        prepared = embed.prepare(list(TEXTS), Options(more=asked, long_text="truncate"))
        found = prepared.finish(prepared.forward.compute_outputs(prepared.encoded))
        assert np.shape(found) == (len(TEXTS), width)
        if width == 5:
            np.testing.assert_allclose(found, wanted, atol=1e-5)
    source = open_source(folder)
    windows = Embedder(folder).windows
    encoded = [windows.sequence(windows.tokenizer.encode(text).ids[: windows.room]) for text in TEXTS]
    np.testing.assert_allclose(source.answers([each.windows[0] for each in encoded]), wanted, atol=1e-5)
    cosine = Explainer(folder).attributions((TEXTS[0], TEXTS[1])).value
    assert cosine == pytest.approx(float(wanted[0] @ wanted[1]), abs=1e-3)
    (tmp_path / "documents").mkdir()
    (tmp_path / "documents" / "a.txt").write_text("red cat\n")
    Index.build([tmp_path / "documents"], tmp_path / "index", model=str(folder))
    assert Index.open(tmp_path / "index").info.model.dimension == 5


def test_a_table_is_made_of_the_dimensions_that_the_teacher_keeps(tmp_path: Path) -> None:
    folder = save_sentence_folder(tmp_path / "model", said={"truncate_dim": 5})
    pieces = compute_token_vectors(Embedder(folder, compute_dtype=torch.float32))
    whole = compute_token_vectors(
        Embedder(save_sentence_folder(tmp_path / "whole"), compute_dtype=torch.float32)
    )
    np.testing.assert_allclose(pieces, whole[:, :5], atol=1e-6)
