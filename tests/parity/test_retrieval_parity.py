"""Retrieval and re-ranking against sentence-transformers: losses, a whole step, and the saved folders."""

from pathlib import Path
from typing import Any

import pytest
import torch
from head_parity import (
    FAMILIES,
    make_task,
    new_model,
    open_in_transformers,
    our_gradients,
    our_outputs,
    random_texts,
    saved,
    small_config,
    small_tokenizer,
    their_inputs,
)
from model_parity import assert_same
from torch import Tensor
from torch.nn import functional as F
from transformers import AutoModelForSequenceClassification

from bertsmith.data.batch import split
from bertsmith.data.stream import Cursor
from bertsmith.tasks.examples.query_documents import QueryExample
from bertsmith.tasks.finetuning import FinetuningObjective, encode_examples
from bertsmith.tasks.losses import contrastive

sentence_transformers = pytest.importorskip("sentence_transformers")
losses = pytest.importorskip("sentence_transformers.sentence_transformer.losses")
list_net = pytest.importorskip("sentence_transformers.cross_encoder.losses")


# -- losses on vectors -------------------------------------------------------------------------------------


def vectors(count: int, seed: int = 0) -> list[Tensor]:
    """Six of each, of any length, in double precision."""
    torch.manual_seed(seed)
    return [torch.randn(6, 8, dtype=torch.float64, requires_grad=True) for _ in range(count)]


def assert_equal_with_gradients(ours: Tensor, theirs: Tensor, inputs: list[Tensor]) -> None:
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-12)
    for mine, other in zip(*(torch.autograd.grad(each, inputs) for each in (ours, theirs)), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize("symmetric", [False, True])
def test_in_batch_softmax(symmetric: bool) -> None:
    """With a hard negative each; the symmetric loss is that of pairs."""
    columns = vectors(2 if symmetric else 3)
    both = {"directions": ("query_to_doc", "doc_to_query"), "partition_mode": "per_direction"}
    loss = losses.MultipleNegativesRankingLoss(None, **(both if symmetric else {}))
    theirs = loss.compute_loss_from_embeddings(columns, torch.zeros(6))
    queries, documents = F.normalize(columns[0], dim=1), F.normalize(torch.cat(columns[1:]), dim=1)
    nobody = torch.zeros(6, len(documents), dtype=torch.bool)
    ours = contrastive.in_batch_softmax(
        queries, documents, torch.arange(6), nobody, 20.0, symmetric=symmetric
    )
    assert_equal_with_gradients(ours.mean(), theirs, columns)


@pytest.mark.parametrize("name", ["MarginMSELoss", "DistillKLDivLoss", "TripletLoss"])
def test_losses_over_a_rows_own_documents(name: str) -> None:
    columns = vectors(3 if name == "TripletLoss" else 4)
    queries, documents = columns[0][:, None], torch.stack(columns[1:], 1)
    if name == "TripletLoss":  # theirs takes the cosine here, and dot products elsewhere
        queries, documents = F.normalize(queries, dim=2), F.normalize(documents, dim=2)
    scores = (queries * documents).sum(2)
    present = torch.ones_like(scores, dtype=torch.bool)
    teacher = torch.randn(scores.shape, dtype=torch.float64).softmax(1)
    options: dict[str, Any] = {}
    if name == "TripletLoss":
        options = {"distance_metric": losses.TripletDistanceMetric.COSINE, "triplet_margin": 0.4}
        ours = contrastive.triplet_margin(scores, present, 0.4)
    elif name == "MarginMSELoss":
        ours = contrastive.margin_mse(scores, teacher, present)
    else:
        ours = contrastive.kl_divergence(scores, teacher, present)
    theirs = getattr(losses, name)(None, **options).compute_loss_from_embeddings(columns, teacher)
    assert_equal_with_gradients(ours.mean(), theirs, columns)


# -- a whole step ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cached", [False, True])
def test_a_step_with_negatives_from_the_batch(cached: bool, tmp_path: Path) -> None:
    """Loss and gradients, each weight's to 1e-6 of its largest; both sides in one piece, or both with cached
    gradients. In double precision, where rounding hides nothing.
    """
    tokenizer = small_tokenizer("bert", tmp_path / "tokenizer")
    task = make_task("retrieval", query_prefix="bano ")
    texts = random_texts(5, 24)
    rows = [QueryExample(texts[n], (texts[n + 8], texts[n + 16]), f"row {n}") for n in range(8)]
    task.fit(rows)
    model = new_model(task, small_config("bert", tokenizer))
    folder = saved(tmp_path / "model", model, task, tokenizer)
    objective = FinetuningObjective(
        task, model.double(), encode_examples(task, rows, tokenizer), None, 8, 0, torch.device("cpu")
    )
    value = our_step(objective, 30 if cached else 10**6)
    theirs = sentence_transformers.SentenceTransformer(str(folder), device="cpu").train().double()
    loss: Any = losses.MultipleNegativesRankingLoss(theirs)
    if cached:
        loss = losses.CachedMultipleNegativesRankingLoss(theirs, mini_batch_size=3)
    columns = [[f"bano {row.query}" for row in rows], *([row.documents[n] for row in rows] for n in (0, 1))]
    features = [theirs.preprocess(column) for column in columns]
    wanted = loss(features, None)
    wanted.backward()
    assert value == pytest.approx(float(wanted.detach()), rel=1e-9)
    gradients = {
        name.partition("model.")[2]: each.grad
        for name, each in theirs.named_parameters()
        if each.grad is not None
    }
    ours = {name.removeprefix("bert."): each for name, each in our_gradients(model).items()}
    assert ours.keys() <= gradients.keys()
    zero = {name for name, each in gradients.items() if float(each.abs().max()) < 1e-12}
    assert all(name.endswith("attention.self.key.bias") for name in zero), "what a softmax cancels, no more"
    for name, gradient in ours.items():
        largest = float(gradients[name].abs().max())
        assert float((gradient - gradients[name]).abs().max()) <= max(1e-6 * largest, 1e-14), name


def our_step(objective: FinetuningObjective, micro_batch_tokens: int) -> float:
    sequences = next(objective.batches(Cursor())).sequences
    count = objective.counts(sequences)["task"]
    parts = split(sequences, 1, micro_batch_tokens)
    objective.begin_step(parts, 0, lambda outputs: [outputs])
    total = 0.0
    for part in parts[0]:
        loss = objective.loss(part)["task"] / count
        loss.backward()
        total += float(loss.detach())
    return total


# -- saved folders -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("family", "settings"),
    [
        *((family, {}) for family in FAMILIES),
        ("bert", {"pooling": "cls", "query_prefix": "delo: "}),
        ("bert", {"pooling": "max", "normalise": False, "document_prefix": "firu "}),
    ],
)
def test_vectors_of_queries_and_documents(family: str, settings: dict[str, Any], tmp_path: Path) -> None:
    """Opened by sentence-transformers, with its prompts; some texts are cut."""
    tokenizer = small_tokenizer(family, tmp_path / "tokenizer")
    task = make_task("retrieval", max_length=12, **settings)
    model = new_model(task, small_config(family, tokenizer))
    folder = saved(tmp_path / "model", model, task, tokenizer)
    pairs = [*random_texts(11, 5, pairs=True), ("bano delo firu " * 9, "bano"), ("", "delo")]
    found = torch.stack(our_outputs(model, task, tokenizer, pairs))  # (E, 2, H)
    theirs = sentence_transformers.SentenceTransformer(str(folder), device="cpu")
    for side, name in enumerate(("query", "document")):
        texts = [pair[side] for pair in pairs]
        wanted = theirs.encode(texts, prompt_name=name, convert_to_tensor=True)
        assert_same(found[:, side], wanted, name)


@pytest.mark.parametrize("family", FAMILIES)
def test_scores_of_a_cross_encoder(family: str, tmp_path: Path) -> None:
    """CrossEncoder's scores in [0, 1], also of pairs that are cut; transformers' logits."""
    tokenizer = small_tokenizer(family, tmp_path / "tokenizer")
    task = make_task("reranking", max_length=20)
    model = new_model(task, small_config(family, tokenizer))
    folder = saved(tmp_path / "model", model, task, tokenizer)
    pairs = [*random_texts(3, 9, pairs=True), ("bano delo", "firu bano " * 15)]
    outputs = torch.cat(our_outputs(model, task, tokenizer, pairs))
    predictions = task.decode([each[None].numpy() for each in outputs], [], [])
    scores = torch.tensor([each["score"] for each in predictions])
    theirs = sentence_transformers.CrossEncoder(str(folder), device="cpu")
    assert_same(scores, torch.from_numpy(theirs.predict(pairs)), "scores")
    plain = open_in_transformers(AutoModelForSequenceClassification, folder)
    with torch.inference_mode():
        sides = (list(side) for side in zip(*pairs, strict=True))
        logits = plain(**their_inputs(folder, plain, *sides, truncation=True)).logits.squeeze(1)
    assert_same(outputs, logits, "logits")


def test_listwise_is_list_net(tmp_path: Path) -> None:
    """Under ListNet's own targets, the softmax of the grades; lists of several lengths."""
    tokenizer = small_tokenizer("bert", tmp_path / "tokenizer")
    task = make_task("reranking")
    model = new_model(task, small_config("bert", tokenizer))
    folder = saved(tmp_path / "model", model, task, tokenizer)
    theirs = sentence_transformers.CrossEncoder(str(folder), device="cpu")
    lists = [random_texts(7, 3), random_texts(8, 5), random_texts(9, 2)]
    grades = [torch.rand(len(each)) for each in lists]
    queries = random_texts(10, 3)
    with torch.no_grad():
        wanted = list_net.ListNetLoss(theirs, activation_fn=torch.nn.Identity())([queries, lists], grades)
    pairs = [(query, document) for query, each in zip(queries, lists, strict=True) for document in each]
    scores = torch.cat(our_outputs(model, task, tokenizer, pairs))
    numbers = torch.repeat_interleave(torch.arange(3), torch.tensor([3, 5, 2]))
    found = contrastive.listwise(scores, torch.cat([each.softmax(0) for each in grades]), numbers)
    torch.testing.assert_close(found.sum() / 3, wanted, rtol=1e-5, atol=1e-6)
