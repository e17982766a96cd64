"""Models that were fine-tuned on pairs as re-rankers."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bertsmith.compression.vocabulary_pruning import prune_vocabulary
from bertsmith.errors import InputError, ModelError
from bertsmith.inference.explaining.attribution import Explainer
from bertsmith.inference.export.artefact import decoding_facts
from bertsmith.inference.export.source import open_source
from bertsmith.inference.predictor import Predictor
from bertsmith.inference.ranking.reranker import open_reranker
from bertsmith.model.bert import Bert
from bertsmith.model.config import make_config
from bertsmith.model.cpu import kernels
from bertsmith.serving.served_model import open_model
from bertsmith.serving.settings import ModelSettings
from bertsmith.tasks.checkpoints.infer_task import model_kind
from bertsmith.tasks.checkpoints.sentence_folder import find_encoder_folder, read_pooling
from bertsmith.tasks.checkpoints.task_checkpoint import save_task_model
from bertsmith.tasks.registry import find_task
from bertsmith.tasks.task_model import TaskModel
from bertsmith.text.tokens.tokenizer import Tokenizer

WORDS = ["cat", "dog", "bird", "runs", "sings"]
PASSAGES = ["cat runs", "dog", "bird sings", "dog dog"]


def trained_on_pairs(folder: Path, name: str, labels: list[Any], **settings: Any) -> str:
    """A random model of a task."""
    tokenizer = Tokenizer.from_pieces(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS], lowercase=True)
    kind = find_task(name)
    task = kind(kind.Settings(max_length=16, **settings))
    example = task.example(("cat", "dog"))
    task.fit([dataclasses.replace(example, label=label) for label in labels])
    shape = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 16}
    config = make_config({"vocab_size": tokenizer.vocab_size, "max_position_embeddings": 32} | shape, "test")
    torch.manual_seed(3)
    model = TaskModel(Bert(config), task.head(config))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0.0, 0.3)
    save_task_model(folder, model, task, tokenizer, {})
    return str(folder)


def test_a_regression_ranks_by_its_number(tmp_path: Path) -> None:
    name = trained_on_pairs(tmp_path / "model", "regression", [0.0, 1.0, 5.0])
    pairs = [("cat", text) for text in PASSAGES]
    expected = [each["score"] for each in Predictor.load(name).predict(pairs)]
    assert open_reranker(name)("cat", PASSAGES) == expected
    assert len(set(expected)) == len(expected)
    by_float32 = Predictor.load(name, compute_dtype=torch.float32)
    exact = [each["score"] for each in by_float32.predict(pairs)]
    assert expected == pytest.approx(exact, abs=5e-3)
    assert (expected != exact) == kernels.has_kernels()  # int16


@pytest.mark.parametrize(
    ("labels", "relevant"),
    [
        (["0", "1"], "1"),
        (["0", "1", "10", "2"], "10"),
        (["match", "no match"], "match"),
        (["Duplicate", "not_duplicate"], "Duplicate"),
        (["relevant", "unrelated"], "relevant"),
        (["related", "unrelated"], "related"),
        (["contradiction", "entailment", "neutral"], "entailment"),
    ],
)
def test_a_classification_ranks_by_the_probability_that_says_yes(
    tmp_path: Path, labels: list[str], relevant: str
) -> None:
    """Which is not always the last one by the alphabet."""
    name = trained_on_pairs(tmp_path / "model", "classification", labels)
    pairs = [("cat", text) for text in PASSAGES]
    predictions = Predictor.load(name).predict(pairs)
    assert open_reranker(name)("cat", PASSAGES) == [each["probabilities"][relevant] for each in predictions]


def test_a_classification_without_a_yes_is_refused_before_anything_is_ranked(tmp_path: Path) -> None:
    name = trained_on_pairs(tmp_path / "model", "classification", ["apples", "pears"])
    with pytest.raises(InputError, match=r"none of its labels \(apples, pears\) says by its name"):
        open_reranker(name)


def test_a_model_without_a_score_is_refused(tmp_path: Path) -> None:
    name = trained_on_pairs(tmp_path / "model", "similarity", ["0", "1"], target="class")
    with pytest.raises(
        InputError, match=r"can't re-rank: its predictions hold no score \(label, confidence\)"
    ):
        open_reranker(name)("cat", PASSAGES)


def as_cross_encoder(folder: str, **said: Any) -> None:
    """Without what we wrote beside it, and with what CrossEncoder adds to config.json."""
    path = Path(folder) / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | said))
    (Path(folder) / "bertsmith.json").unlink()


@pytest.mark.parametrize(
    "said",
    [
        {"sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity", "version": "4.1.0"}},
        {"sentence_transformers": {"version": "5.0.0"}},
        {"sbert_ce_default_activation_function": "torch.nn.modules.activation.Sigmoid"},
    ],
)
def test_cross_encoders_rank_as_sentence_transformers_ranks(tmp_path: Path, said: dict[str, Any]) -> None:
    from sentence_transformers import CrossEncoder

    name = trained_on_pairs(tmp_path / "model", "reranking", [0.0, 1.0, 0.0, 1.0])
    as_cross_encoder(name, **said)
    theirs = CrossEncoder(name, device="cpu").predict([("cat", text) for text in PASSAGES])
    ours = open_reranker(name)("cat", PASSAGES)
    assert np.argsort(ours).tolist() == np.argsort(theirs).tolist()
    assert len(set(ours)) == len(PASSAGES)


@pytest.mark.parametrize(
    "said",
    [
        {"sentence_transformers": {"activation_fn": "torch.nn.modules.activation.Tanh"}},
        {"sbert_ce_default_activation_function": "own.Identity"},
        {
            "sbert_ce_default_activation_function": "torch.nn.modules.activation.Tanh",
            "problem_type": "multi_label_classification",
        },
    ],
)
def test_another_activation_of_a_cross_encoder_is_refused(tmp_path: Path, said: dict[str, Any]) -> None:
    name = trained_on_pairs(tmp_path / "model", "reranking", [0.0, 1.0, 0.0, 1.0])
    as_cross_encoder(name, **said)
    with pytest.raises(ModelError, match=r"cross-encoder puts its . outputs? through"):
        open_reranker(name)


def test_a_cross_encoder_with_modules_is_a_head_for_all(tmp_path: Path) -> None:
    """As version 6 saves it: with a modules.json that says nothing of vectors."""
    from sentence_transformers import CrossEncoder

    name = trained_on_pairs(tmp_path / "ours", "reranking", [0.0, 1.0, 0.0, 1.0])
    folder = tmp_path / "theirs"
    CrossEncoder(name, device="cpu").save(str(folder))
    assert (folder / "modules.json").exists()
    pairs = [("cat", text) for text in PASSAGES]
    assert open_reranker(str(folder))("cat", PASSAGES) == pytest.approx(
        [each["score"] for each in Predictor.load(folder).predict(pairs)]
    )
    assert model_kind(folder) == "task"
    assert open_source(folder).kind == "regression"
    assert Explainer(folder).attributions(("cat", "dog")).target == "score"
    opened = open_model(ModelSettings(name="x", path=str(folder)), 1)
    assert opened.task == "regression" and "rerank" in opened.operations
    assert (read_pooling(folder), find_encoder_folder(folder)) == (None, folder)
    said = folder / "config_sentence_transformers.json"
    tanh = {"activation_fn": "torch.nn.modules.activation.Tanh"}
    said.write_text(json.dumps(json.loads(said.read_text()) | tanh))
    with pytest.raises(ModelError, match=r"theirs: .* puts its 1 output through"):
        open_reranker(str(folder))


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("strategy", ["LongestFirst", "OnlySecond"])
def test_a_cross_encoder_cuts_pairs_as_sentence_transformers_does(
    tmp_path: Path, strategy: str, side: str
) -> None:
    """It cuts the longer text first, by odd and even numbers of tokens, whatever tokenizer.json states."""
    from sentence_transformers import CrossEncoder

    name = trained_on_pairs(tmp_path / "model", "reranking", [0.0, 1.0, 0.0, 1.0])
    identity = "torch.nn.modules.linear.Identity"
    as_cross_encoder(name, sentence_transformers={"activation_fn": identity, "version": "5.0.0"})
    stated = {"direction": "Right", "max_length": 512, "strategy": strategy, "stride": 0}
    for file, more in (
        ("tokenizer.json", {"truncation": stated}),
        ("tokenizer_config.json", {"truncation_side": side, "model_max_length": 32}),
    ):
        path = Path(name) / file
        path.write_text(json.dumps(json.loads(path.read_text()) | more))
    draw = np.random.default_rng(0)
    texts = [" ".join(draw.choice(WORDS, length)) for length in (13, 14, 15, 16, 17, 30, 31)]
    pairs = [(query, text) for query in texts for text in texts]
    ours = Predictor.load(name, compute_dtype=torch.float32).predict(pairs)
    theirs = CrossEncoder(name, device="cpu").predict(pairs)
    assert [each["score"] for each in ours] == pytest.approx(theirs.tolist(), abs=1e-5)


@pytest.mark.parametrize(
    ("prompts", "default"), [({"query": "bird "}, None), ({"query": "bird "}, "query"), ({"x": "dog "}, "x")]
)
def test_the_default_prompt_of_a_cross_encoder_stands_before_its_queries(
    tmp_path: Path, prompts: dict[str, str], default: str | None
) -> None:
    from sentence_transformers import CrossEncoder

    name = trained_on_pairs(tmp_path / "ours", "reranking", [0.0, 1.0, 0.0, 1.0])
    folder = tmp_path / "theirs"
    CrossEncoder(name, device="cpu", prompts=prompts, default_prompt_name=default).save(str(folder))
    pairs = [("cat", text) for text in PASSAGES]
    wanted = CrossEncoder(str(folder), device="cpu").predict(pairs)
    found = Predictor.load(folder, compute_dtype=torch.float32).predict(pairs)
    np.testing.assert_allclose([each["score"] for each in found], wanted, atol=1e-5)
    reranked = open_reranker(str(folder))("cat", PASSAGES)
    np.testing.assert_allclose(reranked, wanted, atol=5e-3)
    source = open_source(folder)
    facts = decoding_facts(source, source.task)
    assert facts.get("prompt", "") == (prompts[default] if default else "")
    assert facts["probabilities"] == "sigmoid"
    prune_vocabulary(folder, ["cat", *PASSAGES], tmp_path / "small")
    np.testing.assert_allclose(CrossEncoder(str(tmp_path / "small")).predict(pairs), wanted, atol=1e-5)
    again = Predictor.load(tmp_path / "small", compute_dtype=torch.float32).predict(pairs)
    np.testing.assert_allclose([each["score"] for each in again], wanted, atol=1e-5)


@pytest.mark.parametrize(
    "said",
    [
        {"sbert_ce_default_activation_function": "torch.nn.modules.activation.Sigmoid"},
        {"sentence_transformers": {"version": "5.0.0"}},
        {"sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity", "version": "4.1.0"}},
        {},
    ],
)
def test_a_cross_encoder_is_evaluated_by_its_own_outputs(tmp_path: Path, said: dict[str, Any]) -> None:
    from sentence_transformers import CrossEncoder

    name = trained_on_pairs(tmp_path / "model", "reranking", [0.0, 1.0, 0.0, 1.0])
    as_cross_encoder(name, **said)
    gold = [1.0, 0.0, 0.5, 0.25]
    rows = [
        {"text": "cat", "text_pair": text, "label": score} for text, score in zip(PASSAGES, gold, strict=True)
    ]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    theirs = CrossEncoder(name, device="cpu").predict([("cat", text) for text in PASSAGES])
    found = Predictor.load(name, compute_dtype=torch.float32).evaluate(tmp_path / "rows.jsonl")
    assert found.model["mean_absolute_error"] == pytest.approx(np.abs(theirs - gold).mean(), abs=1e-5)


def test_rows_of_one_answer_tell_nothing_of_a_regression(tmp_path: Path) -> None:
    name = trained_on_pairs(tmp_path / "model", "regression", [0.0, 1.0, 5.0])
    rows = [{"text": "cat", "text_pair": text, "label": 1.0} for text in PASSAGES]
    for file in ("rows", "train"):
        (tmp_path / f"{file}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "train.jsonl").write_text(
        "".join(json.dumps(row | {"label": number}) + "\n" for number, row in enumerate(rows))
    )
    found = Predictor.load(name).evaluate(tmp_path / "rows.jsonl", tmp_path / "train.jsonl")
    told = " ".join(found.warnings("rows.jsonl", "spearman"))
    assert "the rows have one answer only" in told
    assert "learned nothing" not in told
