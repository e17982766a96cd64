"""The layers behind the pooling: the same numbers everywhere."""

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from encoder_samples import WORDS, config_of, drawn, tiny_tokenizer
from safetensors.torch import save_file
from torch import nn

from bertsmith.errors import InputError, ModelError
from bertsmith.inference.checking.check import check_model
from bertsmith.inference.embedding.embedder import Embedder
from bertsmith.inference.explaining.attribution import Explainer
from bertsmith.inference.export.source import open_source
from bertsmith.model.bert import Bert
from bertsmith.model.checkpoint import save_checkpoint
from bertsmith.serving.operations.embed import make_text_encoder, make_vector_operations
from bertsmith.serving.operations.operation import Options
from bertsmith.tasks.checkpoints.projection_folders import SentenceModule, read_projection
from bertsmith.tasks.checkpoints.sentence_folder import (
    write_sentence_folder,
)
from bertsmith.tasks.heads.pooling import DENSE_ACTIVATIONS
from bertsmith.tasks.registry import find_task
from bertsmith.training.finetuning.methods import vector_notes

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


def test_a_product_of_another_width_or_with_broken_values_is_refused(projected: Path) -> None:
    path = projected / "2_Dense" / "model.safetensors"
    save_file({"linear.weight": torch.zeros(10, 31), "linear.bias": torch.zeros(10)}, path)
    with pytest.raises(ModelError, match=r"expected linear.bias \(10,\), linear.weight \(10, 32\), .* found"):
        Embedder(projected)
    save_file({"linear.weight": torch.full((10, 32), torch.nan), "linear.bias": torch.zeros(10)}, path)
    with pytest.raises(ModelError, match=r"a value of linear\.weight isn't a finite number"):
        Embedder(projected)


@pytest.mark.parametrize("bias", [True, False])
def test_a_projection_is_read_as_it_was_written_with_a_bias_or_without(tmp_path: Path, bias: bool) -> None:
    linear = nn.Linear(32, 10, bias=bias)
    write_sentence_folder(tmp_path, config_of(), "mean", 24, projection=linear)
    projection = read_projection([SentenceModule("Dense", tmp_path / "2_Dense")], 32)
    assert projection is not None
    found = projection[0].linear.state_dict()  # type: ignore[union-attr]
    assert found.keys() == linear.state_dict().keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in linear.state_dict().items())


# -- chains of modules ---------------------------------------------------------------------------------


def save_chain(folder: Path, layers: list[Any], base: Path) -> Any:
    """A folder that sentence-transformers writes: the encoder of `base`, mean pooling, then `layers`."""
    sentence_transformers = pytest.importorskip("sentence_transformers")
    encoder, pooling, *_ = sentence_transformers.SentenceTransformer(str(base), device="cpu")
    model = sentence_transformers.SentenceTransformer(modules=[encoder, pooling, *layers], device="cpu")
    model.eval().save(str(folder), create_model_card=False)
    return model


def draw_chain(draw: random.Random, width: int) -> list[Any]:
    """Up to four modules of chance behind a pooling of this width, with weights of chance."""
    models = pytest.importorskip("sentence_transformers.models")
    layers = []
    for _ in range(draw.randint(1, 4)):
        kind = draw.choice(("Dense", "Dense", "Dense", "LayerNorm", "Normalize", "Dropout"))
        if kind == "Dense":
            outputs = draw.choice((7, 16, width))
            activation = getattr(nn, draw.choice(list(DENSE_ACTIVATIONS)))()
            options = {"bias": draw.random() < 0.7, "use_residual": draw.random() < 0.3}
            layers.append(models.Dense(width, outputs, activation_function=activation, **options))
            width = outputs
        elif kind == "LayerNorm":
            layers.append(models.LayerNorm(width))
            nn.init.normal_(layers[-1].norm.weight)
            nn.init.normal_(layers[-1].norm.bias)
        else:
            layers.append(getattr(models, kind)())
    return layers


@pytest.mark.filterwarnings("ignore:Implicit dimension choice")
@pytest.mark.parametrize("seed", range(8))
def test_a_chain_of_chance_gives_sentence_transformers_vectors(
    projected: Path, tmp_path: Path, seed: int
) -> None:
    torch.manual_seed(seed)
    layers = draw_chain(random.Random(seed), 32)
    model = save_chain(tmp_path / "chain", layers, projected)
    for folder in (tmp_path / "chain").iterdir():  # Git and the hub keep no empty folder
        if folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()
    wanted = model.encode(TEXTS, normalize_embeddings=True)
    embedder = Embedder(tmp_path / "chain", compute_dtype=torch.float32)
    vectors = embedder.documents(TEXTS)
    np.testing.assert_allclose(vectors, wanted, atol=1e-6)
    assert embedder.width == wanted.shape[1]
    alone = Embedder(tmp_path / "chain", compute_dtype=torch.float32, batch_tokens=1)
    assert np.array_equal(alone.documents(TEXTS[1:2])[0], alone.documents(TEXTS)[1])
    cut = Embedder(tmp_path / "chain", compute_dtype=torch.float32, dimensions=5).documents(TEXTS)
    few = model.encode(TEXTS, truncate_dim=5, normalize_embeddings=True)
    np.testing.assert_allclose(cut, few, atol=2e-6)


def labse(folder: Path, base: Path) -> Any:
    """The modules of LaBSE."""
    models = pytest.importorskip("sentence_transformers.models")
    torch.manual_seed(4)
    dense = models.Dense(32, 12, activation_function=nn.Tanh())
    nn.init.normal_(dense.linear.weight, std=0.5)
    return save_chain(folder, [dense, models.LayerNorm(12), models.Normalize()], base)


def test_a_graph_an_explanation_and_check_have_the_layers(projected: Path, tmp_path: Path) -> None:
    wanted = labse(tmp_path / "labse", projected).encode(TEXTS)
    windows = Embedder(tmp_path / "labse").windows
    encoded = [windows.sequence(windows.tokenizer.encode(text).ids[: windows.room]) for text in TEXTS]
    answers = open_source(tmp_path / "labse").answers([example.windows[0] for example in encoded])
    np.testing.assert_allclose(answers, wanted, atol=1e-6)
    cosine = Explainer(tmp_path / "labse").attributions((TEXTS[2], TEXTS[0])).value
    assert cosine == pytest.approx(float(wanted[2] @ wanted[0]), abs=1e-3)
    assert check_model(tmp_path / "labse", against="transformers").agrees


@pytest.mark.parametrize("dtype", [torch.int16, torch.bfloat16])
def test_lower_precision_is_that_of_the_encoder_alone(
    projected: Path, tmp_path: Path, dtype: torch.dtype
) -> None:
    wanted = labse(tmp_path / "labse", projected).encode(TEXTS)
    try:
        vectors = Embedder(tmp_path / "labse", compute_dtype=dtype).documents(TEXTS)
    except InputError as error:
        pytest.skip(str(error))
    assert ((vectors * wanted).sum(1) > 0.999).all()


def test_an_activation_changes_the_hash_of_the_model(projected: Path, tmp_path: Path) -> None:
    """The same weights make other vectors: an index of the one can't be searched with the other."""
    labse(tmp_path / "labse", projected)
    before = Embedder(tmp_path / "labse").model_sha256
    path = tmp_path / "labse" / "2_Dense" / "config.json"
    path.write_text(path.read_text().replace("activation.Tanh", "activation.GELU"))
    assert Embedder(tmp_path / "labse").model_sha256 != before


# -- weights of layers, and prompts that aren't pooled --------------------------------------------------


def weigh_layers(
    folder: Path, weights: list[float], start: int, *, layers: int = 4, shown: bool = True
) -> Path:
    """Puts a WeightedLayerPooling behind the encoder of a folder; `shown` is output_hidden_states."""
    module = folder / "1_WeightedLayerPooling"
    module.mkdir()
    keys = {"word_embedding_dimension": 32, "layer_start": start, "num_hidden_layers": layers}
    (module / "config.json").write_text(json.dumps(keys))
    save_file({"layer_weights": torch.tensor(weights)}, module / "model.safetensors")
    modules = json.loads((folder / "modules.json").read_text())
    entry = {"path": module.name, "type": f"sentence_transformers.models.{module.name[2:]}"}
    modules.insert(1, entry)
    named = [entry | {"idx": number, "name": str(number)} for number, entry in enumerate(modules)]
    (folder / "modules.json").write_text(json.dumps(named))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"output_hidden_states": shown}))
    return folder


@pytest.mark.parametrize("shown", [True, False])
@pytest.mark.parametrize(("weights", "start"), [([0.5, 2.0, -0.25], 2), ([1.0, 0.3, 0.2, 0.1, 3.0], 0)])
def test_layers_are_mixed_as_by_sentence_transformers(
    projected: Path, tmp_path: Path, weights: list[float], start: int, shown: bool
) -> None:
    """It leaves the weights unused unless config.json says output_hidden_states."""
    sentence_transformers = pytest.importorskip("sentence_transformers")
    plain = Embedder(projected, compute_dtype=torch.float32).documents(TEXTS)
    weigh_layers(projected, weights, start, shown=shown)
    wanted = sentence_transformers.SentenceTransformer(str(projected), device="cpu").encode(TEXTS)
    embedder = Embedder(projected, compute_dtype=torch.float32)
    vectors = embedder.documents(TEXTS)
    np.testing.assert_allclose(vectors, wanted, atol=1e-6)
    assert np.allclose(vectors, plain, atol=1e-4) is not shown
    encoded = [embedder.windows.sequence(embedder.tokenizer.encode(text).ids[:22]) for text in TEXTS]
    answers = open_source(projected).answers([example.windows[0] for example in encoded])
    np.testing.assert_allclose(answers, wanted, atol=1e-6)
    assert check_model(projected, against="transformers").agrees
    alone = Embedder(projected)
    assert np.array_equal(alone.documents(TEXTS[:1])[0], alone.documents(TEXTS)[0])


@pytest.mark.parametrize(
    ("weights", "start", "layers", "sentence"),
    [
        ([1.0, 1.0], 2, 4, r"found 2, 4 and layer_weights \(2,\)"),
        ([1.0, 1.0], 2, 3, "num_hidden_layers is 3, but the encoder has 4 layers"),
        ([1.0, 1.0, -2.0], 2, 4, "the weights of the layers have no finite mean"),
    ],
)
def test_weights_that_fit_no_layers_are_refused(
    projected: Path, weights: list[float], start: int, layers: int, sentence: str
) -> None:
    weigh_layers(projected, weights, start, layers=layers)
    with pytest.raises(ModelError, match=sentence):
        Embedder(projected)


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("pooling", ["mean", "cls", "max"])
def test_a_prompt_is_left_out_of_the_pooling_as_by_sentence_transformers(
    projected: Path, pooling: str, side: str
) -> None:
    sentence_transformers = pytest.importorskip("sentence_transformers")
    (projected / "1_Pooling" / "config.json").write_text(
        json.dumps({"word_embedding_dimension": 32, "pooling_mode": pooling, "include_prompt": False})
    )
    prompts = {"query": "bal ben ", "document": "", "task": "cir dom: "}
    (projected / "config_sentence_transformers.json").write_text(json.dumps({"prompts": prompts}))
    settings = json.loads((projected / "tokenizer_config.json").read_text())
    (projected / "tokenizer_config.json").write_text(json.dumps(settings | {"truncation_side": side}))
    texts = [*TEXTS, ""]
    theirs = sentence_transformers.SentenceTransformer(str(projected), device="cpu")
    ours = Embedder(projected, compute_dtype=torch.float32)
    np.testing.assert_allclose(ours.queries(texts), theirs.encode_query(texts), atol=1e-6)
    np.testing.assert_allclose(ours.documents(texts), theirs.encode_document(texts), atol=1e-6)
    by_task = Embedder(projected, compute_dtype=torch.float32, prompt_name="task").documents(texts)
    np.testing.assert_allclose(by_task, theirs.encode(texts, prompt_name="task"), atol=1e-6)
    embed = make_vector_operations(make_text_encoder("m", ours))["embed"]
    prepared = embed.prepare(texts, Options(more={"prompt_name": "task"}, long_text="truncate"))
    served = prepared.finish(prepared.forward.compute_outputs(prepared.encoded))
    np.testing.assert_allclose(served, by_task, atol=1e-6)
    pair = TEXTS[0], TEXTS[2]
    cosine = float(ours.queries(pair[:1])[0] @ ours.documents(pair[1:])[0])
    assert Explainer(projected).attributions(pair).value == pytest.approx(cosine, abs=1e-3)
    assert check_model(projected, against="transformers").agrees
    with pytest.raises(ModelError, match=r"leaves its prompts out of the pooling .* an exported graph can't"):
        open_source(projected)
    task = find_task("similarity")
    notes = vector_notes(task(task.Settings()), projected)
    assert any("leaves its prompts out of the pooling (include_prompt is false)" in note for note in notes)


def test_windows_behind_the_first_have_no_prompt_to_leave_out(projected: Path) -> None:
    pooling = {"word_embedding_dimension": 32, "pooling_mode": "mean", "include_prompt": False}
    (projected / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    prompts = {"prompts": {"document": "bal ben "}}
    (projected / "config_sentence_transformers.json").write_text(json.dumps(prompts))
    embedder = Embedder(projected, long_texts="windows")
    (chunk,) = embedder.windows.chunks([TEXTS[1]], "bal ben ", 8)
    assert (chunk.lengths - chunk.row_counts).tolist() == [3, *([0] * (len(chunk.sequences) - 1))]
    assert len(chunk.sequences) > 2
