"""decoding.json: what turns a graph's outputs into answers, for programs that don't have Bertsmith."""

from typing import Any

from bertsmith.inference.export.padded_heads import Vectors
from bertsmith.inference.export.source import Source
from bertsmith.tasks.task import Task

FORMAT = 1


def decoding_facts(source: Source, task: Task[Any] | None) -> dict[str, Any]:
    """`task` is the model's, or that with temperature and thresholds refitted."""
    facts: dict[str, Any] = {
        "format": FORMAT,
        "task": "embedding" if task is None and source.kind == "vectors" else source.kind,
        "inputs": list(source.padded.inputs),
        "outputs": list(source.padded.head.names),
        "max_length": source.max_length,
        "pad_token_id": source.tokenizer.pad_id,
        "probabilities": None if task is None else task.activation,
    }
    if isinstance(source.padded.head, Vectors):
        facts |= {"pooling": source.padded.head.pooling, "normalise": source.padded.head.normalise}
        facts |= {"query_prefix": "", "document_prefix": ""}  # unless said below
    if task is not None:
        facts |= {"task": task.name, "labels": list(task.labels)} | task.decoding(source.tokenizer)
    if source.sentences is not None:
        facts |= {
            "query_prefix": source.sentences.query_prefix,
            "document_prefix": source.sentences.document_prefix,
        }
    return {name: value for name, value in facts.items() if value is not None and value != []}
