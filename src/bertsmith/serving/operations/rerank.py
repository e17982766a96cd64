"""How relevant documents are to a query, by a model that reads both together."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from bertsmith.errors import InputError
from bertsmith.inference.ranking.reranker import relevant_label, score_of
from bertsmith.serving.operations.operation import Options, Prepared
from bertsmith.serving.operations.predict import Predict
from bertsmith.serving.refusals import TooLong
from bertsmith.tasks.examples.text_task import TextTask
from bertsmith.tasks.task import Task


class Rerank:
    """`query` against each input. Results are scores, the higher the more relevant."""

    options: frozenset[str] = frozenset({"query"})

    def __init__(self, predict: Predict) -> None:
        self.predict = predict

    def prepare(self, inputs: Sequence[Any], options: Options) -> Prepared:
        query = options.more.get("query")
        if not isinstance(query, str):
            raise InputError(f"query must be a text, found {query!r}.")
        for number, document in enumerate(inputs, 1):
            if not isinstance(document, str):
                raise InputError(f"document {number} must be a text, found {document!r}.")
        self._require_short(query, options)
        prepared = self.predict.prepare([(query, document) for document in inputs], replace(options, more={}))

        def finish(outputs: Sequence[Any]) -> list[float]:
            return [score_of(each, self.predict.name) for each in prepared.finish(list(outputs))]

        return replace(prepared, finish=finish)

    def _require_short(self, query: str, options: Options) -> None:
        """Raises TooLong for a query that would leave no room for a document, where nothing may be cut."""
        settings = self.predict.tasks[options.long_text].settings
        if settings.stride is None and options.long_text != "error":
            return
        (ids,) = self.predict.engine.tokenizer.encode_batch([query], settings.max_length)
        if len(ids) >= settings.max_length:
            raise TooLong(
                f"The query has {settings.max_length:,} tokens or more: the model reads no more at a time, "
                "the document among them. Shorten it, or say long_text = 'truncate'."
            )


def ranks_pairs(task: Task[Any]) -> bool:
    """Whether a task's model can re-rank: it reads pairs, and says of one how much it is."""
    if not isinstance(task, TextTask) or task.name not in ("reranking", "regression", "classification"):
        return False
    if task.name == "classification":
        try:
            relevant_label(tuple(task.labels), task.name)
        except InputError:
            return False
    knows = task.reads_pairs  # None: a model of transformers, whose cross-encoders have one output
    return task.name == "reranking" or bool(knows) or (knows is None and task.name == "regression")
