"""A last product of vectors: the same numbers everywhere, and refused where it would be left out."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from encoder_samples import WORDS, config_of, drawn, tiny_tokenizer
from torch import nn

from bertsmith.errors import ModelError
from bertsmith.inference.embedding.embedder import Embedder
from bertsmith.inference.explaining.attribution import Explainer
from bertsmith.inference.export.source import open_source
from bertsmith.model.bert import Bert
from bertsmith.model.checkpoint import save_checkpoint
from bertsmith.serving.operations.embed import make_text_encoder, make_vector_operations
from bertsmith.serving.operations.operation import Options
from bertsmith.tasks.checkpoints.sentence_folder import read_projection, write_sentence_folder

TEXTS = ["bal ben cir.", " ".join(WORDS[:60]), "kal"]


@pytest.fixture
def projected(tmp_path: Path) -> Path:
    config = config_of()
    tensors = {f"encoder.{name}": each for name, each in drawn(Bert(config)).state_dict().items()}
    linear = nn.Linear(32, 10)
    save_checkpoint(
        tmp_path / "model",
        tensors,
        config,
        "BertModel",
        task="imported",
        tokenizer=tiny_tokenizer(),
        write_extra_files=lambda path: write_sentence_folder(
            path, config, "mean", 24, normalise=True, projection=linear
        ),
    )
    (tmp_path / "model" / "bertsmith.json").unlink()  # so that it may be altered
    return tmp_path / "model"


@pytest.mark.parametrize("dtype", [torch.float32, None])
def test_vectors_are_those_of_sentence_transformers(projected: Path, dtype: torch.dtype | None) -> None:
    sentence_transformers = pytest.importorskip("sentence_transformers")
    ours = Embedder(projected, compute_dtype=dtype)
    assert ours.width == 10
    theirs = sentence_transformers.SentenceTransformer(str(projected), device="cpu").encode(TEXTS)
    np.testing.assert_allclose(ours.documents(TEXTS), theirs, atol=1e-5 if dtype == torch.float32 else 3e-3)


def test_a_vector_is_the_same_alone_and_in_company(projected: Path) -> None:
    embedder = Embedder(projected)
    together = embedder.documents(TEXTS)
    assert all(
        np.array_equal(embedder.documents([text])[0], row) for text, row in zip(TEXTS, together, strict=True)
    )


def test_windows_are_joined_before_the_last_product(projected: Path) -> None:
    whole = Embedder(projected, max_length=64, compute_dtype=torch.float32).documents([TEXTS[0]])
    windows = Embedder(projected, long_texts="windows", compute_dtype=torch.float32).documents(TEXTS)
    np.testing.assert_allclose(windows[0], whole[0], atol=1e-6)
    assert windows.shape == (3, 10)


def test_fewer_dimensions_are_the_first_of_the_projected(projected: Path) -> None:
    full, few = Embedder(projected), Embedder(projected, dimensions=4)
    wanted = full.documents(TEXTS)[:, :4]
    wanted /= np.linalg.norm(wanted, axis=1, keepdims=True)
    np.testing.assert_allclose(few.documents(TEXTS), wanted, atol=1e-6)
    with pytest.raises(Exception, match="dimensions must be 1 to 10"):
        Embedder(projected, dimensions=11)


def test_a_service_gives_the_same_vectors(projected: Path) -> None:
    embedder = Embedder(projected)
    embed = make_vector_operations(make_text_encoder("m", embedder))["embed"]
    prepared = embed.prepare([TEXTS[0]], Options())
    outputs = prepared.forward.compute_outputs(prepared.encoded)
    np.testing.assert_array_equal(prepared.finish(outputs), embedder.documents([TEXTS[0]]))


def test_what_has_no_last_product_refuses_it(projected: Path) -> None:
    with pytest.raises(ModelError, match="which an exported graph doesn't have"):
        open_source(str(projected))
    with pytest.raises(ModelError, match="which an explanation doesn't have"):
        Explainer(projected)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"activation_function": "torch.nn.modules.activation.Tanh"}, "activation_function is Tanh"),
        ({"activation_function": None}, "activation_function is None"),
    ],
)
def test_an_activation_is_refused(projected: Path, changes: dict[str, object], sentence: str) -> None:
    path = projected / "2_Dense" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    with pytest.raises(ModelError, match=sentence):
        Embedder(projected)


def test_a_product_of_another_width_or_with_broken_values_is_refused(projected: Path) -> None:
    from safetensors.torch import save_file

    path = projected / "2_Dense" / "model.safetensors"
    save_file({"linear.weight": torch.zeros(10, 31), "linear.bias": torch.zeros(10)}, path)
    with pytest.raises(ModelError, match=r"expected linear.weight of shape \(dimensions, 32\)"):
        Embedder(projected)
    save_file({"linear.weight": torch.full((10, 32), torch.nan), "linear.bias": torch.zeros(10)}, path)
    with pytest.raises(ModelError, match="a value isn't finite"):
        Embedder(projected)


def test_a_product_behind_the_normalisation_is_refused(projected: Path) -> None:
    path = projected / "modules.json"
    modules = json.loads(path.read_text())
    path.write_text(json.dumps([*modules[:2], modules[3], modules[2]]))
    with pytest.raises(ModelError, match="has a module Dense after its encoder"):
        Embedder(projected)


@pytest.mark.parametrize("bias", [True, False])
def test_a_projection_is_read_as_it_was_written_with_a_bias_or_without(tmp_path: Path, bias: bool) -> None:
    linear = nn.Linear(32, 10, bias=bias)
    write_sentence_folder(tmp_path, config_of(), "mean", 24, projection=linear)
    found = read_projection(tmp_path / "2_Dense", 32).state_dict()
    assert found.keys() == linear.state_dict().keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in linear.state_dict().items())
