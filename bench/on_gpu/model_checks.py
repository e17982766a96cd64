"""Whole models on the device against the same on the processor: losses, gradients, steps, vectors.

E   examples     H   hidden size
"""

import dataclasses
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from bertsmith.data.masking import Masker
from bertsmith.data.stream import Cursor, GlobalBatch
from bertsmith.inference.embedding.embedder import Embedder
from bertsmith.model.bert import Bert
from bertsmith.model.checkpoint import save_checkpoint
from bertsmith.tasks.examples.query_documents import QueryExample
from bertsmith.tasks.finetuning import EncodedExamples, FinetuningObjective, encode_examples
from bertsmith.tasks.objective import Objective
from bertsmith.tasks.pretraining.pretraining import PretrainingTask
from bertsmith.tasks.registry import find_task
from bertsmith.tasks.task import Task
from bertsmith.tasks.task_model import TaskModel
from bertsmith.text.labelled.squad import SquadQuestion
from bertsmith.training.gradients import Gradients
from bertsmith.training.loop import Loop
from bertsmith.training.machine import Machine, Ranks
from bertsmith.training.optimizer import collect_optimizer_tensors, load_optimizer_tensors
from on_gpu import ours
from on_gpu.checks import BFLOAT16, CPU, FLOAT32, Check, apart, small_config, spread_out
from on_gpu.work import made_up_tokenizer, pairs, written_texts

TOKENIZER = made_up_tokenizer(600)
_LABELS: dict[str, list[Any]] = {
    "classification": ["no", "yes", "perhaps"],
    "multi-label": [("a",), ("b", "c"), ()],
    "regression": [1.5, 4.0, 2.25],
    "similarity": [0.0, 5.0, 2.0],
    "reranking": [0.0, 2.0, 1.0],
}
_HEADS = [(name, {}) for name in (*_LABELS, "question-answering", "retrieval")]
_HEADS += [("tagging", {"crf": False}), ("tagging", {"crf": True}), ("reranking", {"loss": "listwise"})]


def gradients(dtype: torch.dtype, device: torch.device) -> float:
    """Of one step of pre-training; the processor's are in float32."""
    sequences = pairs("mixed", 2000, 1, TOKENIZER, longest=128)
    results = []
    for place, precision in ((CPU, torch.float32), (device, dtype)):
        task = _pretraining(place)
        result = Gradients(task, _machine(place, precision), clip=1e9).compute(sequences, seed=0)
        losses = torch.tensor([result.losses["mlm"], result.losses["nsp"]])
        results.append((losses, _flat(task.model, gradients=True)))
    (expected, wanted), (found, given) = results
    return max(apart(found, expected), apart(given, wanted))


def steps(device: torch.device) -> float:
    """The weights after four steps of the real loop in float32, micro-batches among them.

    Counted is how far they went, not where they began: AdamW's first steps have the size of the learning
    rate whatever the gradient, so a weight whose gradient is nearly zero may go either way.
    """
    moved = []
    for place in (CPU, device):
        task = _pretraining(place)
        before = _flat(task.model)
        _advance(_loop(task, place), 0, 4)
        moved.append(_flat(task.model) - before)
    return apart(moved[1], moved[0])


def resumed(device: torch.device) -> float:
    """Two steps, then weights and optimiser through the host into a new loop, two more: against four."""
    straight = _pretraining(device)
    _advance(_loop(straight, device), 0, 4)
    first = _pretraining(device)
    loop = _loop(first, device)
    _advance(loop, 0, 2)
    weights = {name: tensor.cpu() for name, tensor in first.model.state_dict().items()}
    state = {
        name: each.cpu() for name, each in collect_optimizer_tensors(first.model, loop.optimizer).items()
    }
    second = _pretraining(device)
    again = _loop(second, device)
    second.model.load_state_dict(weights)
    load_optimizer_tensors(second.model, again.optimizer, state)
    again.progress = loop.progress
    _advance(again, 2, 4)
    return apart(_flat(second.model), _flat(straight.model))


def repeated(device: torch.device, dtype: torch.dtype) -> float:
    """How many of the weights differ after the same three steps done twice, dropout among them."""
    found = []
    for _ in range(2):
        task = _pretraining(device, dropout=0.1)
        _advance(_loop(task, device, dtype), 0, 3)
        found.append(_flat(task.model))
    return float((found[0] != found[1]).sum())


def head(name: str, settings: dict[str, Any], device: torch.device) -> float:
    """A head's outputs, its loss and all gradients, in float32; some texts are several windows."""
    found = []
    for place in (CPU, device):
        objective = _finetuning(name, settings, place)
        batch = next(objective.batches(Cursor())).sequences
        loss = objective.loss(batch)["task"]
        loss.backward()
        found.append((loss, _flat(objective.model, gradients=True)))
    (expected, wanted), (loss, given) = found
    return max(apart(loss, expected), apart(given, wanted))


def vectors(dtype: torch.dtype, device: torch.device) -> float:
    """The embedder's, of texts of mixed length; the processor's are in float32."""
    texts = written_texts("texts", 40, TOKENIZER, 120)
    with tempfile.TemporaryDirectory() as folder:
        model = encoder_folder(Path(folder) / "model")
        expected = Embedder(model, compute_dtype=torch.float32).documents(texts)
        found = Embedder(model, device=device, compute_dtype=dtype).documents(texts)
    return apart(torch.from_numpy(found), torch.from_numpy(expected))


def encoder_folder(folder: Path) -> Path:
    """A small encoder with random weights as a checkpoint."""
    encoder = Bert(small_config())
    spread_out(encoder)
    tensors = {f"encoder.{name}": tensor for name, tensor in encoder.state_dict().items()}
    save_checkpoint(
        folder, tensors, encoder.config, "BertModel", task="bench", tokenizer=TOKENIZER, provenance={}
    )
    return folder


def _pretraining(device: torch.device, dropout: float = 0.0) -> PretrainingTask:
    config = small_config().model_copy(update={"hidden_dropout_prob": dropout})
    task = ours.pretraining_task(config, TOKENIZER, CPU)
    spread_out(task.model)
    task.model.to(device).train()
    return dataclasses.replace(task, masker=Masker(TOKENIZER, task.masker.rates, device), device=device)


def _machine(device: torch.device, dtype: torch.dtype = torch.float32) -> Machine:
    return Machine(device, dtype, 1.0, Ranks(), 1024)


def _loop(task: Objective, device: torch.device, dtype: torch.dtype = torch.float32) -> Loop:
    loop = ours.make_loop(task, _machine(device, dtype))
    loop.schedule = dataclasses.replace(loop.schedule, peak=1e-3, warmup=0.0)
    return loop


def _advance(loop: Loop, start: int, end: int) -> None:
    for number in range(start, end):
        sequences = pairs("mixed", 2000, number, TOKENIZER, longest=128)
        loop.advance(GlobalBatch(sequences, Cursor(offset=number), Cursor(offset=number + 1)))


def _flat(model: nn.Module, *, gradients: bool = False) -> torch.Tensor:
    """All weights, or all gradients, end to end on the host in float64."""
    values = [each.grad if gradients else each for each in model.parameters()]
    return torch.cat([each.detach().flatten().double().cpu() for each in values if each is not None])


def _finetuning(name: str, settings: dict[str, Any], device: torch.device) -> FinetuningObjective:
    kind = find_task(name)
    task = kind(kind.Settings(max_length=48, stride=8, **settings))
    examples = _examples(task)
    task.fit(examples)
    config = small_config()
    model = TaskModel(Bert(config), task.head(config))
    spread_out(model)
    task.bind(model.head)
    split = EncodedExamples(examples, encode_examples(task, examples, TOKENIZER).encoded)
    return FinetuningObjective(task, model.to(device).train(), split, None, 9, 0, device)


def _examples(task: Task[Any]) -> list[Any]:
    texts, others = written_texts("texts", 9, TOKENIZER, 90), written_texts("texts", 10, TOKENIZER, 40)
    return [_example(task, text, other, number) for number, (text, other) in enumerate(zip(texts, others))]


def _example(task: Task[Any], text: str, other: str, number: int) -> Any:
    words = text.split()
    if task.name == "tagging":
        draw = np.random.default_rng(number)
        return dataclasses.replace(
            task.example(words), tags=tuple(str(each) for each in draw.choice(["O", "B-X"], len(words)))
        )
    if task.name == "question-answering":
        answer, question = words[number % len(words)], " ".join(other.split()[:5])
        return SquadQuestion(str(number), question, text, ((answer, text.index(answer)),), impossible=False)
    if task.name == "retrieval":
        return QueryExample(other, (text, other + " " + words[0]), f"row {number}")
    pair = task.name in ("similarity", "reranking")
    first = f"{other.split()[0]}" if task.name == "reranking" else other
    labels = _LABELS[task.name]
    return dataclasses.replace(
        task.example((first, text) if pair else text), label=labels[number % len(labels)]
    )


def whole() -> Iterator[Check]:
    """Of whole models. A repeated step need not be the same to the bit on a GPU: `repeated` is a finding."""
    single, half = torch.float32, torch.bfloat16
    yield Check("pre-training, losses and gradients, float32", FLOAT32, partial(gradients, single))
    yield Check("pre-training, losses and gradients, bfloat16", BFLOAT16, partial(gradients, half))
    yield Check("four steps of the loop, float32", 1e-2, steps)
    yield Check("resumed after two steps", FLOAT32, resumed)
    for name, settings in _HEADS:
        said = "".join(f", {key} {value}" for key, value in settings.items())
        yield Check(f"{name}{said}: loss and gradients", FLOAT32, partial(head, name, settings))
    yield Check("embedder, float32", FLOAT32, partial(vectors, single))
    yield Check("embedder, bfloat16", BFLOAT16, partial(vectors, half))
