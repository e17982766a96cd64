"""Runs of retrieval and re-ranking from file to folder: they learn, resume to the bit, and can be used."""

import json
import shutil
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from finetune_toys import FILLERS, SHORT_RUN, tiny_encoder
from safetensors.torch import load_file
from torch import nn

from bertsmith.errors import RecipeError
from bertsmith.files import read_json
from bertsmith.inference.embedding.embedder import Embedder
from bertsmith.inference.predictor import Predictor
from bertsmith.model.checkpoint import read_checkpoint
from bertsmith.tasks.checkpoints.sentence_folder import load_sentence_model, write_sentence_folder
from bertsmith.tasks.heads.pooling import Dense, Projection, VectorNorm
from bertsmith.training.finetuning.finetune import FinetuneResult, finetune
from bertsmith.training.finetuning.task_run import BestWeights

MEANING = dict(
    zip(FILLERS, [*FILLERS[5:], *FILLERS[:5]], strict=True)
)  # a word of documents for each of queries


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_encoder(tmp_path_factory.mktemp("encoder") / "model")


def pairs(folder: Path, rows: int = 80) -> Path:
    """Queries of three words, answered by the documents of their meanings."""
    draw = np.random.default_rng(0)
    path = folder / "pairs.jsonl"
    lines = []
    for _ in range(rows):
        words = draw.choice(FILLERS, 3, replace=False).tolist()
        lines.append({"query": " ".join(words), "positive": " ".join(MEANING[word] for word in words)})
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def candidates(folder: Path, queries: int = 40) -> Path:
    """Three candidates a query, one of which holds a happy word."""
    draw = np.random.default_rng(1)
    path = folder / "candidates.tsv"
    lines = []
    for number in range(queries):
        documents = [" ".join(draw.choice(FILLERS, 3)) + word for word in (" happy", " rainy", "")]
        for document in draw.permutation(documents).tolist():
            lines.append(f"{FILLERS[number % 12]} {number}\t{document}\t{int('happy' in document)}\n")
    path.write_text("".join(lines))
    return path


def run(
    task: str, encoder: Path, folder: Path, train: Path, *settings: str, **options: Any
) -> FinetuneResult:
    places = {"model": str(encoder), "train": str(train), "out": str(folder / "run"), "dev_share": 0.25}
    return finetune(task, *SHORT_RUN, *settings, **(places | options))


@pytest.mark.parametrize("task", ["retrieval", "similarity"])
def test_vectors_begin_as_the_models_folder_makes_them(encoder: Path, tmp_path: Path, task: str) -> None:
    """A last product is trained too, and said. It is said too that they are of no windows."""
    by_cls = shutil.copytree(encoder, tmp_path / "cls")
    config = read_checkpoint(by_cls).config
    write_sentence_folder(by_cls, config, "cls", 32, projection=nn.Linear(config.hidden_size, 4))
    train = pairs(tmp_path)
    if task == "similarity":
        rows = [json.loads(line) for line in train.read_text().splitlines()]
        scored = [
            {"text1": row["query"], "text2": row["positive"], "score": number % 5}
            for number, row in enumerate(rows)
        ]
        train.write_text("".join(json.dumps(row) + "\n" for row in scored))
    for name, given, expected in (("own", (), "cls"), ("given", ("pooling=mean",), "mean")):
        result = run(task, by_cls, tmp_path / name, train, "epochs=1", *given)
        assert read_json(result.model / "bertsmith.json")["settings"]["settings"]["pooling"] == expected
        assert any("has layers behind its pooling (Dense)" in each for each in result.results.warnings)
        assert Embedder(result.model).width == 4
        assert not any("read longer texts in windows" in each for each in result.results.warnings)
    plain = run(task, encoder, tmp_path / "plain", train, "epochs=1", "max_length=8", "stride=2")
    assert any("read longer texts in windows" in each for each in plain.results.warnings)
    assert read_json(plain.model / "bertsmith.json")["settings"]["settings"]["pooling"] == "mean"
    assert not any("layers behind its pooling" in each for each in plain.results.warnings)


@pytest.mark.parametrize("loss", ["softmax", "margin"])
def test_layers_behind_the_pooling_are_trained_and_saved(encoder: Path, tmp_path: Path, loss: str) -> None:
    """As by sentence-transformers, which opens the result with the same answers."""
    start = shutil.copytree(encoder, tmp_path / "start")
    config = read_checkpoint(start).config
    torch.manual_seed(1)
    layers = Projection([Dense(config.hidden_size, 24, True, "Tanh"), VectorNorm(24), Dense(24, 8, False)])
    write_sentence_folder(start, config, "mean", 32, normalise=True, projection=layers)
    train = pairs(tmp_path)
    if loss == "margin":
        rows = [json.loads(line) for line in train.read_text().splitlines()]
        for row, other in zip(rows, rows[1:] + rows[:1], strict=True):
            row["negative"] = other["positive"]
        train.write_text("".join(json.dumps(row) + "\n" for row in rows))
    model = run("retrieval", start, tmp_path, train, "epochs=2", f"loss={loss}").model
    trained = load_sentence_model(model)[1]
    assert trained is not None
    assert trained.state() == layers.state()
    before, after = layers.state_dict(), trained.state_dict()
    assert all(not torch.equal(after[name], before[name]) for name in before)
    documents = ["bano belo biru", "fala fole"]
    vectors = Embedder(model, compute_dtype=torch.float32).documents(documents)
    sentence_transformers = pytest.importorskip("sentence_transformers")
    theirs = sentence_transformers.SentenceTransformer(str(model), device="cpu").encode(documents)
    np.testing.assert_allclose(vectors, theirs, atol=1e-6)
    (prediction,) = Predictor.load(model).predict([(documents[0], documents[1])])
    assert prediction["similarity"] == pytest.approx(float(vectors[0] @ vectors[1]), abs=1e-5)
    again = run("retrieval", model, tmp_path / "again", train, "epochs=1", f"loss={loss}").model
    assert Embedder(again).width == 8


def test_a_classifier_s_last_layer_is_no_part_of_a_vector(encoder: Path, tmp_path: Path) -> None:
    rows = [{"text": f"bano {number}", "label": "ab"[number % 2]} for number in range(40)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    classifier = run("classification", encoder, tmp_path / "c", tmp_path / "rows.jsonl", "epochs=1").model
    model = run("retrieval", classifier, tmp_path / "r", pairs(tmp_path), "epochs=1").model
    assert Embedder(model).width == read_checkpoint(model).config.hidden_size


def test_a_dual_encoder_learns_what_answers_and_is_an_embedder(encoder: Path, tmp_path: Path) -> None:
    """Micro-batches of a few rows: with cached gradients."""
    train = pairs(tmp_path)
    settings = ("epochs=12", "batch_size=20", "micro_batch_tokens=64", "optimizer.learning_rate=0.005")
    done = run("retrieval", encoder, tmp_path, train, *settings)
    evaluation = done.results.evaluations["dev"]
    assert evaluation.model["mrr@10"] > max(each["mrr@10"] for each in evaluation.baselines.values()) + 0.05
    assert done.report.stat().st_size > 1000
    query, document = "bano belo biru", " ".join(MEANING[word] for word in ("bano", "belo", "biru"))
    (prediction,) = Predictor.load(done.model).predict([(query, document)])
    embedder = Embedder(done.model)
    cosine = float((embedder.queries([query]) @ embedder.documents([document]).T)[0, 0])
    assert prediction["similarity"] == pytest.approx(cosine, abs=1e-5)


@pytest.mark.parametrize("loss", [pytest.param("pointwise", marks=pytest.mark.slow), "listwise"])
def test_a_cross_encoder_learns_which_candidate_answers(loss: str, encoder: Path, tmp_path: Path) -> None:
    train = candidates(tmp_path)
    columns = {"text": "1", "text_pair": "2", "label": "3", "header": False}
    settings = (f"loss={loss}", "epochs=6", "batch_size=12", "micro_batch_tokens=48")
    done = run("reranking", encoder, tmp_path, train, *settings, **columns)
    evaluation = done.results.evaluations["dev"]
    assert evaluation.baselines["random order"]["map"] == pytest.approx(11 / 18)
    assert evaluation.model["map"] > 0.9


def test_a_cross_encoder_learns_from_mined_rows(encoder: Path, tmp_path: Path) -> None:
    """The same candidates as a query, its document and its negatives; measured on labelled rows."""
    found: dict[str, list[list[str]]] = {}
    for line in candidates(tmp_path).read_text().splitlines():
        query, document, label = line.split("\t")
        found.setdefault(query, [[], []])[label == "0"].append(document)
    mined, dev = tmp_path / "mined.jsonl", tmp_path / "dev.jsonl"
    rows = [{"query": query, "positive": good, "negatives": bad} for query, ((good,), bad) in found.items()]
    mined.write_text("".join(json.dumps(row) + "\n" for row in rows[:30]))
    labelled = [(row["query"], each) for row in rows[30:] for each in (row["positive"], *row["negatives"])]
    lines = [{"query": q, "document": d, "label": int("happy" in d)} for q, d in labelled]
    dev.write_text("".join(json.dumps(line) + "\n" for line in lines))
    settings = ("loss=listwise", "epochs=6", "batch_size=12", "micro_batch_tokens=48")
    done = run("reranking", encoder, tmp_path, mined, *settings, dev=str(dev))
    assert done.results.evaluations["dev"].model["map"] > 0.9


def test_rows_alone_in_their_batch_without_negatives_are_refused_before_anything_is_written(
    encoder: Path, tmp_path: Path
) -> None:
    """Their loss is 0: nothing is learned, and no figure says so."""
    train = pairs(tmp_path, rows=20)
    with pytest.raises(
        RecipeError, match=r"^batch_size = 1 leaves .*pairs\.jsonl, line \d+ without a negative"
    ):
        run("retrieval", encoder, tmp_path, train, "batch_size=1")
    assert not (tmp_path / "run").exists()
    rows = [json.loads(line) | {"negatives": ["bano"]} for line in train.read_text().splitlines()]
    train.write_text("".join(json.dumps(row) + "\n" for row in rows))
    run("retrieval", encoder, tmp_path, train, "batch_size=1", "epochs=1")


def test_an_interrupted_run_of_retrieval_goes_on_to_the_same_model(
    encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To the bit, with dropout, cached gradients, and batches that keep equal texts apart."""
    train = pairs(tmp_path, rows=40)
    settings = ("epochs=3", "batch_size=8", "micro_batch_tokens=40", "dropout=0.1")
    for name in ("whole", "parts"):
        (tmp_path / name).mkdir()
    whole = run("retrieval", encoder, tmp_path / "whole", train, *settings)
    considered, consider = count(), BestWeights.consider

    def interrupted(best: BestWeights, *arguments: Any) -> None:
        if next(considered) == 1:
            raise KeyboardInterrupt
        consider(best, *arguments)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(BestWeights, "consider", interrupted)
        run("retrieval", encoder, tmp_path / "parts", train, *settings)
    parts = run("retrieval", encoder, tmp_path / "parts", train, *settings, resume=True)
    first, second = (load_file(done.model / "model.safetensors") for done in (whole, parts))
    assert all(bool((first[name] == second[name]).all()) for name in first)
    assert whole.results.evaluations["dev"].model == parts.results.evaluations["dev"].model
