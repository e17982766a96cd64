"""decoding.json: what turns a graph's outputs into answers, for programs that don't have Bertsmith."""

from typing import Any

import torch
from torch import Tensor

from bertsmith.inference.export.padded_heads import Vectors
from bertsmith.inference.export.source import Source
from bertsmith.tasks.computing.task_model import TaskModel
from bertsmith.tasks.examples.calibrated_task import CalibratedTask
from bertsmith.tasks.examples.text_task import TextTask
from bertsmith.tasks.heads.crf import TransitionScores, legal_scores
from bertsmith.tasks.multi_label import MultiLabel
from bertsmith.tasks.question_answering import QuestionAnswering
from bertsmith.tasks.regression import Regression
from bertsmith.tasks.retrieval import Retrieval
from bertsmith.tasks.similarity import Similarity
from bertsmith.tasks.tagging import Tagging, TaggingHead
from bertsmith.tasks.task import Task

FORMAT = 1

_PROBABILITIES = {
    "classification": "softmax",
    "multi-label": "sigmoid",
    "reranking": "sigmoid",
    "tagging": "softmax",
    "question-answering": "softmax over the places of a window",
}


def decoding_facts(source: Source, task: Task[Any] | None) -> dict[str, Any]:
    """`task` is the model's, or that with temperature and thresholds refitted."""
    facts: dict[str, Any] = {
        "format": FORMAT,
        "task": "embedding" if task is None and source.kind == "vectors" else source.kind,
        "inputs": list(source.padded.inputs),
        "outputs": list(source.padded.head.names),
        "max_length": source.max_length,
        "pad_token_id": source.tokenizer.pad_id,
        "probabilities": _PROBABILITIES.get(source.kind),
    }
    if isinstance(source.padded.head, Vectors):
        facts |= {"pooling": source.padded.head.pooling, "normalise": source.padded.head.normalise}
        facts |= {"query_prefix": "", "document_prefix": ""}  # unless said below
    if task is not None:
        facts |= {"task": task.name, "labels": list(task.labels)} | _of_task(source, task)
        if isinstance(task, TextTask) and task.prompt:
            facts["prompt"] = task.prompt
    if source.sentences is not None:
        facts |= {
            "query_prefix": source.sentences.query_prefix,
            "document_prefix": source.sentences.document_prefix,
        }
    return {name: value for name, value in facts.items() if value is not None and value != []}


def _of_task(source: Source, task: Task[Any]) -> dict[str, Any]:
    if isinstance(task, Regression) and task.has_sigmoid:
        return {"probabilities": "sigmoid"}
    if isinstance(task, CalibratedTask):
        return {
            "temperature": task.temperature,
            "threshold": task.confidence.threshold if task.confidence else 0.0,
            "label_thresholds": task.thresholds.tolist() if isinstance(task, MultiLabel) else None,
        }
    if isinstance(task, QuestionAnswering):
        return {
            "no_answer_threshold": task.threshold,
            "longest_answer": task.settings.longest_answer,
            "stride": task.settings.stride,
        }
    if isinstance(task, Retrieval):
        settings = task.settings
        return {"query_prefix": settings.query_prefix, "document_prefix": settings.document_prefix}
    if isinstance(task, Similarity):
        return {"range": [task.lowest, task.highest]}
    if isinstance(task, Tagging):
        return {"stride": task.window(source.tokenizer)[1], "transitions": _transitions(source, task)}
    return {}


def _transitions(source: Source, task: Tagging) -> dict[str, Any]:
    """Scores of a sentence's first tag, of each tag behind each, and of its last: what Viterbi adds to the
    logits. null forbids; without constraints nothing is added.
    """
    assert isinstance(source.packed, TaskModel)
    head = source.packed.head
    assert isinstance(head, TaggingHead)
    scores = legal_scores(task.labels) if head.crf is None else head.crf.scores()
    if not task.settings.constrained:
        scores = TransitionScores(*map(torch.zeros_like, scores))
    return {name: _plain(value) for name, value in scores._asdict().items()} | {
        "learnt": head.crf is not None
    }


def _plain(scores: Tensor) -> list[Any]:
    found = scores.detach().double().numpy().astype(object)
    found[~scores.detach().isfinite().numpy()] = None
    plain: list[Any] = found.tolist()
    return plain
