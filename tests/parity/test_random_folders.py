"""Folders of chance: modules of an embedding model, and labels of a head, against sentence-transformers and
transformers. What we answer must be what they answer; what we refuse, we refuse with a sentence.
"""

import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, event, example, given, settings
from hypothesis import strategies as st

from bertsmith.errors import BertsmithError
from bertsmith.inference.embedding.embedder import Embedder
from bertsmith.tasks.checkpoints.task_checkpoint import load_task_model
from sentence_folders import TEXTS, WIDTH, rewrite, save_foreign, save_sentence_folder

sentence_transformers = pytest.importorskip("sentence_transformers")
transformers = pytest.importorskip("transformers")

MODES = ("cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken")
FLAGS = {
    "cls": "pooling_mode_cls_token",
    "max": "pooling_mode_max_tokens",
    "mean": "pooling_mode_mean_tokens",
    "mean_sqrt_len_tokens": "pooling_mode_mean_sqrt_len_tokens",
    "weightedmean": "pooling_mode_weightedmean_tokens",
    "lasttoken": "pooling_mode_lasttoken",
}
ACTIVATIONS = (
    *("torch.nn.modules.linear.Identity", "torch.nn.modules.activation.Tanh", "torch.nn.GELU"),
    *("torch.nn.modules.activation.SiLU", "torch.nn.modules.activation.LeakyReLU", "torch.nn.Sigmoid"),
    *("torch.tanh", "transformers.activations.GELUActivation"),
)
PROMPTS = ("", "red ", "query: the ", "Old")
mode = st.sampled_from((*MODES[:3], "mean", *MODES))


def maybe(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | values


@st.composite
def poolings(draw: st.DrawFn) -> dict[str, Any]:
    """In the spelling of today, or as flags."""
    chosen = draw(
        st.lists(mode, min_size=1, max_size=2, unique=True)
        if draw(st.booleans())
        else st.lists(mode, min_size=1, max_size=1)
    )
    keys: dict[str, Any] = {}
    if draw(st.booleans()):
        keys["pooling_mode"] = chosen if len(chosen) > 1 or draw(st.booleans()) else chosen[0]
    else:
        keys = {FLAGS[name]: name in chosen for name in MODES if draw(st.booleans()) or name in chosen}
    if draw(st.booleans()):
        keys["include_prompt"] = draw(st.booleans())
    return keys


@st.composite
def folders(draw: st.DrawFn) -> tuple[list[tuple[str, Mapping[str, Any]]], dict[str, Any]]:
    """Modules with their keys, and config_sentence_transformers.json."""
    transformer: dict[str, Any] = {}
    if draw(st.booleans()):
        transformer["max_seq_length"] = draw(maybe(st.sampled_from((8, 9, 12, 40, 64))))
    if draw(st.booleans()):
        transformer["do_lower_case"] = draw(st.booleans())
    pooling = draw(poolings())
    modules: list[tuple[str, Mapping[str, Any]]] = [("Transformer", transformer), ("Pooling", pooling)]
    normalises = draw(st.sampled_from(("no", "behind", "before")))
    if normalises == "before":
        modules.append(("Normalize", {}))
    width = WIDTH
    for kind in draw(st.lists(st.sampled_from(("Dense", "Dense", "Dropout", "Normalize")), max_size=3)):
        if kind != "Dense":
            modules.append((kind, {}))
            continue
        dense = {"in_features": width, "out_features": draw(st.sampled_from((6, WIDTH, 24)))}
        dense["bias"] = draw(st.booleans())
        activations = st.sampled_from((*ACTIVATIONS[:6], *ACTIVATIONS))
        dense |= draw(maybe(activations.map(lambda name: {"activation_function": name}))) or {}
        modules.append(("Dense", dense))
        width = dense["out_features"]
    if normalises == "behind":
        modules.append(("Normalize", {}))
    prompts = draw(st.dictionaries(st.sampled_from(("query", "document", "other")), st.sampled_from(PROMPTS)))
    said = {
        "prompts": prompts,
        "default_prompt_name": draw(maybe(st.sampled_from(("query", "document", "other")))),
        "similarity_fn_name": draw(maybe(st.sampled_from(("cosine", "dot", "euclidean")))),
        "truncate_dim": draw(maybe(st.sampled_from((1, 5, WIDTH, 100)))),
    }
    return modules, {key: value for key, value in said.items() if value is not None or draw(st.booleans())}


def compare(modules: list[tuple[str, Mapping[str, Any]]], said: dict[str, Any], *, is_cased: bool) -> None:
    """Refused, or the same vectors of queries and of documents."""
    folder = Path(tempfile.mkdtemp())
    try:
        save_sentence_folder(folder / "model", modules, said)
        rewrite(folder / "model" / "tokenizer_config.json", do_lower_case=not is_cased)
        try:
            ours = Embedder(folder / "model", compute_dtype=torch.float32)
        except BertsmithError as error:
            event("refused")
            assert str(folder) in str(error)
            return
        event("answered")
        theirs = sentence_transformers.SentenceTransformer(str(folder / "model"), device="cpu")
        texts = list(TEXTS)
        wanted = theirs.encode_document(texts, normalize_embeddings=True)
        np.testing.assert_allclose(ours.documents(texts), wanted, atol=1e-5)
        wanted = theirs.encode_query(texts, normalize_embeddings=True)
        np.testing.assert_allclose(ours.queries(texts), wanted, atol=1e-5)
    finally:
        shutil.rmtree(folder)


of_ci = settings(
    max_examples=20,
    derandomize=True,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    database=None,
)
of_nights = settings(of_ci, max_examples=600)


@of_ci
@given(folders(), st.booleans())
@example(([("Transformer", {"do_lower_case": True}), ("Pooling", {})], {}), True)  # a sigma ends a word
def test_an_embedding_model_of_chance_gives_sentence_transformers_vectors_or_is_refused(
    folder: Any, is_cased: bool
) -> None:
    compare(*folder, is_cased=is_cased)


@pytest.mark.slow
@of_nights
@given(folders(), st.booleans())
def test_so_do_many(folder: Any, is_cased: bool) -> None:
    compare(*folder, is_cased=is_cased)


@st.composite
def labels(draw: st.DrawFn) -> tuple[int, dict[str, Any]]:
    """How many outputs a head has, and what is said of them."""
    outputs = draw(st.integers(1, 4))
    near = st.integers(max(outputs - 1, 1), outputs + 1)
    said: dict[str, Any] = {}
    if draw(st.booleans()):
        said["num_labels"] = outputs if draw(st.booleans()) else draw(near)
    names = draw(st.permutations(["no", "yes", "maybe", "never", "always"]))
    if draw(st.booleans()):
        count = outputs if draw(st.integers(0, 3)) else draw(near)
        start = draw(st.sampled_from((0, 0, 0, 1)))
        said["id2label"] = {str(number + start): names[number] for number in range(count)}
    if draw(st.booleans()):
        count = outputs if draw(st.integers(0, 3)) else draw(near)
        again = names if draw(st.integers(0, 2)) else draw(st.permutations(names))
        said["label2id"] = {again[number]: number for number in range(count)}
    problems = ("regression", "single_label_classification", "multi_label_classification")
    if draw(st.integers(0, 2)) == 0:
        said["problem_type"] = draw(st.sampled_from(problems))
    return outputs, said


def compare_labels(outputs: int, said: dict[str, Any]) -> None:
    """Refused, or transformers opens the folder with the same names in the same order."""
    folder = Path(tempfile.mkdtemp())
    try:
        save_foreign(folder / "model", outputs, **said)
        try:
            _, task = load_task_model(folder / "model")
        except BertsmithError as error:
            event("refused")
            assert str(folder) in str(error)
            return
        event("answered")
        theirs = transformers.AutoModelForSequenceClassification.from_pretrained(folder / "model")
        assert theirs.config.num_labels == outputs
        if task.name != "regression":
            assert list(task.labels) == [theirs.config.id2label[number] for number in range(outputs)]
    finally:
        shutil.rmtree(folder)


@of_ci
@given(labels())
def test_labels_of_chance_are_read_as_by_transformers_or_refused(said: Any) -> None:
    compare_labels(*said)


@pytest.mark.slow
@of_nights
@given(labels())
def test_so_are_many(said: Any) -> None:
    compare_labels(*said)
