"""Folders of every kind, opened without torch and by the whole package: the same answers, to the bit."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

import bertsmith
import sentence_folders
import served_models
from bertsmith.errors import ModelError
from bertsmith.model.bert import Bert
from bertsmith.model.config import make_config
from bertsmith.model.cpu import kernels
from bertsmith.model.static_table import StaticTable, save_static
from bertsmith.runtime import Embedder, Predictor
from bertsmith.runtime.__main__ import main
from bertsmith.runtime.encoder import ArrayEncoder
from bertsmith.tasks.checkpoints.task_checkpoint import on_table, save_task_model
from bertsmith.tasks.heads.pooling import Dense, Projection
from bertsmith.tasks.registry import find_task
from bertsmith.tasks.task_model import TaskModel
from random_encoder import tokenizer_and_config
from sentence_folders import POOLING, TRANSFORMER, save_foreign, save_sentence_folder
from sentence_folders import TEXTS as SENTENCES
from sentence_folders import WORDS as SENTENCE_WORDS
from served_models import inputs_of, save_encoder, save_fine_tuned

HAS_KERNELS = pytest.mark.skipif(not kernels.has_kernels(), reason="needs the compiled kernels")
WIDTH = 32  # which the kernels compute, with two heads
DENSE = {"in_features": WIDTH, "out_features": 24, "activation_function": "torch.nn.modules.linear.Identity"}
NORM_BETWEEN = ("Normalize", {}), ("Dense", DENSE | {"bias": False})


@HAS_KERNELS
@pytest.mark.parametrize(
    "behind",
    [
        [("Dense", DENSE)],
        [("Dense", DENSE | {"activation_function": "torch.nn.modules.activation.Tanh"}), ("Normalize", {})],
        [("Dense", DENSE | {"activation_function": "torch.nn.ReLU"}), ("Dropout", {"dropout": 0.1})],
        [
            (
                "Dense",
                DENSE | {"out_features": WIDTH, "use_residual": True, "activation_function": "torch.nn.Tanh"},
            )
        ],
        [*NORM_BETWEEN],
    ],
    ids=["identity", "tanh", "relu", "residual", "norm between"],
)
def test_projected_vectors_have_the_same_bits(
    tmp_path: Path, behind: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sentence_folders, "WIDTH", WIDTH)
    folder = save_sentence_folder(tmp_path / "model", [TRANSFORMER, POOLING, *behind])
    texts = [*SENTENCES, *inputs_of("minilm", 60)]
    assert same_bits(Embedder(folder).documents(texts), bertsmith.Embedder(folder).documents(texts))
    short = Embedder(folder, dimensions=5, normalise=False, long_texts="windows", max_length=12)
    whole = bertsmith.Embedder(folder, dimensions=5, normalise=False, long_texts="windows", max_length=12)
    assert same_bits(short.documents(texts), whole.documents(texts))


@HAS_KERNELS
@pytest.mark.parametrize("outlier", [1, 30_000])
def test_vectors_in_int8_have_the_same_bits(
    tmp_path: Path, outlier: float, capsys: pytest.CaptureFixture[str]
) -> None:
    """With all products in int8, and with the worst ones in int16."""
    folder = save_encoder(tmp_path / "model")
    with safe_open(folder / "model.safetensors", "pt") as file:
        tensors, about = {name: file.get_tensor(name) for name in file.keys()}, file.metadata()  # noqa: SIM118
    layer = "encoder.layer.0.{}.dense.weight".format
    (prefix,) = {name.partition("encoder.layer")[0] for name in tensors if layer("output") in name}
    tensors[prefix + layer("intermediate")][5] *= outlier
    tensors[prefix + layer("output")][:, 5] /= outlier
    save_file(tensors, folder / "model.safetensors", about)
    (folder / "bertsmith.json").unlink()  # which says what the weights were
    mine, whole = Embedder(folder, precision="int8"), bertsmith.Embedder(folder, compute_dtype=torch.int8)
    assert isinstance(mine.engine.encoder, ArrayEncoder)
    assert mine.engine.encoder.int8_choice == whole.int8_choice
    assert whole.int8_choice is not None
    assert bool(whole.int8_choice.in_int16) == (outlier > 1)
    texts = inputs_of("minilm", 300)
    assert same_bits(mine.documents(texts), whole.documents(texts))
    (tmp_path / "texts").write_text("bano delo\n")
    main(["embed", str(folder), str(tmp_path / "texts"), "--precision", "int8"])
    printed, told = capsys.readouterr()
    assert told == f"bertsmith-run: {whole.int8_choice}\n"
    assert json.loads(printed) == whole.documents(["bano delo"])[0].tolist()


def test_an_activation_of_torch_alone_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sentence_folders, "WIDTH", WIDTH)
    dense = ("Dense", DENSE | {"activation_function": "torch.nn.Mish"})
    folder = save_sentence_folder(tmp_path / "model", [TRANSFORMER, POOLING, dense])
    with pytest.raises(ModelError, match="a Dense with Mish, which the package bertsmith computes"):
        Embedder(folder)


def same_bits(mine: Any, other: Any) -> bool:
    return bool(mine.shape == other.shape and np.array_equal(mine.view(np.int32), other.view(np.int32)))


@HAS_KERNELS
def test_a_projected_similarity_has_the_same_bits(tmp_path: Path) -> None:
    kind = find_task("similarity")
    task = kind(kind.Settings(max_length=24))
    task.fit([dataclasses.replace(task.example(("bano", "delo")), label=score) for score in (1.0, 0.0)])
    task.projection = Projection([Dense(16, 8, activation_function="Tanh")])
    served_models._save_task(tmp_path / "model", task, 3)
    pairs = inputs_of("similarity", 100)
    assert Predictor(tmp_path / "model").predict(pairs) == bertsmith.Predictor.load(
        tmp_path / "model"
    ).predict(pairs)


@pytest.mark.parametrize("kind", ["ours", "model2vec", "weighted", "sentence-transformers"])
def test_static_tables_have_the_same_bits(tmp_path: Path, kind: str) -> None:
    tokenizer, _ = tokenizer_and_config(SENTENCE_WORDS)
    draw = torch.Generator().manual_seed(0)
    rows = torch.randn(tokenizer.vocab_size, 24, generator=draw)
    folder = tmp_path / "table"
    save_static(folder, rows, tokenizer, provenance={}, max_length=16)
    if kind != "ours":
        (folder / "bertsmith.json").unlink()
    if kind == "sentence-transformers":
        (folder / "config.json").unlink()
        save_file({"embedding.weight": rows.half()}, folder / "model.safetensors")
    if kind == "weighted":
        tensors = {
            "embeddings": (rows[:9] * 9).to(torch.int8),
            "mapping": torch.arange(len(rows)) % 9,
            "weights": torch.rand(len(rows), generator=draw, dtype=torch.float64),
        }
        save_file(tensors, folder / "model.safetensors")
    texts = [*SENTENCES, "", *inputs_of("minilm", 200), "red cat " * 30, "nobody"]
    for settings in ({}, {"long_texts": "windows"}, {"dimensions": 7}):
        mine, whole = Embedder(folder, **settings), bertsmith.Embedder(folder, **settings)  # type: ignore[arg-type]
        assert same_bits(mine.documents(texts), whole.documents(texts))
    with pytest.raises(ModelError, match="without the head of a task"):
        Predictor(folder)


@pytest.mark.parametrize("name", ["classification", "multi-label", "tagging", "similarity"])
def test_heads_on_static_tables_have_the_same_bits(tmp_path: Path, name: str) -> None:
    labels, pair, settings = served_models.TASKS[name]
    kind = find_task(name)
    pooling = {} if name == "tagging" else {"pooling": "mean"}
    task = kind(kind.Settings(max_length=24, **settings, **pooling))
    text: Any = ["bano"] if name == "tagging" else ("bano", "delo") if pair else "bano"
    field = "tags" if name == "tagging" else "label"
    of = [(label,) if name == "tagging" else label for label in labels]
    task.fit([dataclasses.replace(task.example(text), **{field: label}) for label in of])
    tokenizer = served_models._tokenizer()
    table = StaticTable(torch.randn(tokenizer.vocab_size, 16, generator=torch.Generator().manual_seed(1)))
    model = on_table(table, task)
    for weights in model.head.parameters():
        torch.nn.init.normal_(weights)
    save_task_model(tmp_path / "model", model, task, tokenizer, {})
    texts = inputs_of(name, 100)
    whole = bertsmith.Predictor.load(tmp_path / "model").predict(texts)
    assert Predictor(tmp_path / "model").predict(texts) == whole


@pytest.mark.parametrize("file", ["model.safetensors", "tokenizer.json", "config.json"])
def test_altered_files_are_refused_as_by_the_whole_package(tmp_path: Path, file: str) -> None:
    """Hashes weren't verified: a weight with another bit gave other answers."""
    for name in ("classification", "encoder"):
        folder = tmp_path / name
        save_encoder(folder) if name == "encoder" else save_fine_tuned(folder, name)
        content = bytearray((folder / file).read_bytes())
        place = len(content) - 3 if file == "model.safetensors" else content.index(b"0")
        content[place] = content[place] ^ 1 if file == "model.safetensors" else ord("1")
        (folder / file).write_bytes(bytes(content))
        opened = (
            (Predictor, bertsmith.Predictor.load)
            if name == "classification"
            else (Embedder, bertsmith.Embedder)
        )
        messages = []
        for opening in opened:
            with pytest.raises(ModelError, match=rf"{file} has the SHA-256 .* It was altered") as refusal:
                opening(folder)
            messages.append(str(refusal.value))
        assert messages[0] == messages[1]


def test_a_classifier_makes_no_vectors(tmp_path: Path) -> None:
    folder = save_fine_tuned(tmp_path / "model", "classification")
    with pytest.raises(ModelError, match="fine-tuned for classification: it predicts"):
        Embedder(folder)


@pytest.mark.parametrize(
    ("architecture", "outputs", "settings", "task"),
    [
        ("BertForSequenceClassification", 3, {}, "classification"),
        ("BertForSequenceClassification", 3, {"problem_type": "multi_label_classification"}, "multi-label"),
        ("BertForSequenceClassification", 1, {}, "reranking"),
        ("BertForSequenceClassification", 1, {"problem_type": "regression"}, "regression"),
        ("BertForTokenClassification", 5, {}, "tagging"),
        ("BertForQuestionAnswering", 2, {}, "question-answering"),
    ],
)
def test_folders_of_transformers_have_the_same_answers(
    tmp_path: Path,
    architecture: str,
    outputs: int,
    settings: dict[str, Any],
    task: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tokenizer, config = tokenizer_and_config(SENTENCE_WORDS)
    fitting = tokenizer, config.model_copy(update={"num_attention_heads": 1})  # for the kernels
    monkeypatch.setattr(sentence_folders, "tokenizer_and_config", lambda words: fitting)
    names = ["O", "B-PER", "I-PER", "I-LOC", "B-LOC"][:outputs]
    labels = (
        {} if task == "question-answering" else {"id2label": {str(n): name for n, name in enumerate(names)}}
    )
    folder = save_foreign(tmp_path / "model", outputs, architecture, **settings, **labels)
    texts = [*SENTENCES, *inputs_of("minilm", 60)]
    pairs = [
        (first, " ".join([second, *SENTENCES])) for first, second in zip(texts, texts[::-1], strict=True)
    ]
    given = pairs if task in ("reranking", "question-answering") else texts
    whole = bertsmith.Predictor.load(folder).predict(given)
    assert Predictor(folder).predict(given) == whole


def test_contradicting_labels_are_refused_with_the_same_sentence(tmp_path: Path) -> None:
    folder = save_foreign(tmp_path / "model", 3, id2label={"0": "a", "1": "b"})
    with pytest.raises(ModelError) as whole:
        bertsmith.Predictor.load(folder)
    with pytest.raises(ModelError) as mine:
        Predictor(folder)
    assert str(mine.value) == str(whole.value)


@HAS_KERNELS
@pytest.mark.parametrize("family", ["bert", "electra", "deberta-v2", "modernbert", "distilbert"])
@pytest.mark.parametrize("name", ["classification", "regression", "tagging"])
def test_heads_of_every_family_have_the_same_bits(tmp_path: Path, family: str, name: str) -> None:
    """Some have a pooler, or a dense layer with GELU or tanh, and a norm."""
    kind, tokenizer = find_task(name), served_models._tokenizer()
    task = kind(kind.Settings(max_length=24))
    field, labels = ("tags", [("O",), ("B-PER",)]) if name == "tagging" else ("label", [0.0, 1.0])
    if name == "classification":
        labels = ["no", "yes"]
    text: Any = ["bano"] if name == "tagging" else "bano"
    task.fit([dataclasses.replace(task.example(text), **{field: label}) for label in labels])
    shape = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    known = {"vocab_size": tokenizer.vocab_size, "pad_token_id": tokenizer.pad_id}
    config = make_config({"model_type": family, **known, **shape}, "a test")
    model = TaskModel(Bert(config), task.head(config))
    served_models._randomise(model, 3)
    save_task_model(tmp_path / "model", model, task, tokenizer, {})
    texts = inputs_of(name, 200)
    whole = bertsmith.Predictor.load(tmp_path / "model").predict(texts)
    assert Predictor(tmp_path / "model").predict(texts) == whole
