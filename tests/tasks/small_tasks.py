"""Tiny models of tasks over made-up words, and examples whose targets come from a generator."""

import dataclasses
import pickle
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from bertsmith.data.stream import Cursor
from bertsmith.model.bert import Bert
from bertsmith.model.config import BertConfig, make_config
from bertsmith.tasks.examples.query_documents import QueryExample
from bertsmith.tasks.finetuning import EncodedExamples, FinetuningObjective, encode_examples
from bertsmith.tasks.registry import find_task
from bertsmith.tasks.task import Task
from bertsmith.tasks.task_model import TaskModel
from bertsmith.text.labelled.squad import SquadQuestion
from bertsmith.text.tokens.sequence_rules import SequenceTemplate
from bertsmith.text.tokens.tokenizer import Tokenizer

POSITIONS = 64
# those that the fixture `tokenizer` knows, each a piece
WORDS = [f"{first}{last}" for first in "bdfgklmnprst" for last in ("ano", "elo", "iru", "uma")]
LONG = {"max_length": 16, "stride": 3}  # most of the texts are several windows
VALUES: dict[str, list[Any]] = {
    "classification": ["no", "yes", "perhaps"],
    "multi-label": [("a",), ("b", "c"), ()],
    "regression": [1.5, 4.0, 2.25],
    "similarity": [0.0, 5.0, 2.0],
    "reranking": [0.0, 2.0, 1.0],
}
NAMES = [*VALUES, "tagging", "question-answering", "retrieval"]


def tiny_config(tokenizer: Tokenizer, *, dropout: float = 0.0) -> BertConfig:
    values = {
        "vocab_size": tokenizer.vocab_size,
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 32,
        "max_position_embeddings": POSITIONS,
        "hidden_dropout_prob": dropout,
        "attention_probs_dropout_prob": dropout,
    }
    return make_config(values, "test")


def make_task(name: str, **settings: Any) -> Task[Any]:
    kind = find_task(name)
    return kind(kind.Settings(**settings))


def words(draw: np.random.Generator, vocabulary: Sequence[str], longest: int) -> list[str]:
    return [str(word) for word in draw.choice(vocabulary, draw.integers(1, longest + 1))]


def examples_of(task: Task[Any], vocabulary: Sequence[str], count: int = 9, longest: int = 40) -> list[Any]:
    """Labelled examples of random words, which the task has learnt its labels of."""
    draw = np.random.Generator(np.random.PCG64DXSM(len(task.name)))
    made = [_example(task, draw, vocabulary, longest, number) for number in range(count)]
    task.fit(made)
    return made


def _example(
    task: Task[Any], draw: np.random.Generator, vocabulary: Sequence[str], longest: int, number: int
) -> Any:
    text = words(draw, vocabulary, longest)
    if task.name == "tagging":
        tags = tuple(str(tag) for tag in draw.choice(["O", "B-PER", "B-LOC"], len(text)))
        return dataclasses.replace(task.example(text), tags=tags)
    if task.name == "question-answering":
        passage, answer = " ".join(text), text[number % len(text)]
        answers = ((answer, passage.index(answer)),) if number % 3 else ()
        return SquadQuestion(str(number), "bano delo", passage, answers, impossible=not answers)
    if task.name == "retrieval":
        documents = [" ".join(words(draw, vocabulary, longest)) for _ in range(1 + number % 3)]
        return QueryExample(" ".join(text), tuple(documents), f"row {number}")
    pair = words(draw, vocabulary, longest) if task.name in ("similarity", "reranking") else None
    text = [f"query{number // 3}"] if task.name == "reranking" else text
    unlabelled = task.example(" ".join(text) if pair is None else (" ".join(text), " ".join(pair)))
    values = VALUES[task.name]
    return dataclasses.replace(unlabelled, label=values[number % len(values)])


def random_model(task: Task[Any], tokenizer: Tokenizer, *, dropout: float = 0.0, seed: int = 5) -> TaskModel:
    """Weights far from zero, so that no error hides in near-uniform outputs."""
    torch.manual_seed(seed)
    config = tiny_config(tokenizer, dropout=dropout)
    model = TaskModel(Bert(config), task.head(config))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.normal_(0.0, 0.3)
            if "norm" in name and name.endswith("weight"):
                parameter.add_(1.0)
    task.bind(model.head)
    return model.eval()


def joined_by(tokenizer: Tokenizer, before: str, between: str, behind: str) -> Tokenizer:
    """The same with other special tokens around texts: "[CLS]", "[SEP]", "[SEP]" are the usual ones."""
    copy: Tokenizer = pickle.loads(pickle.dumps(tokenizer))
    ids = (tuple(map(copy.token_to_id, tokens.split())) for tokens in (before, between, behind))
    copy.template = SequenceTemplate(*ids)
    return copy


def split_of(task: Task[Any], examples: Sequence[Any], tokenizer: Tokenizer) -> EncodedExamples:
    return encode_examples(task, examples, tokenizer)


def objective_of(
    task: Task[Any], model: TaskModel, split: EncodedExamples, batch_size: int = 64
) -> FinetuningObjective:
    return FinetuningObjective(task, model, split, split, batch_size, 0, torch.device("cpu"))


def first_batch(objective: FinetuningObjective) -> Any:
    return next(objective.batches(Cursor())).sequences
