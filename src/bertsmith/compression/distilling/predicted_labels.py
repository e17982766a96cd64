"""What a model says of an example as that example's label: to measure agreement, and to have a judge where
nobody has labelled anything.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from bertsmith.tasks.classification import Classification
from bertsmith.tasks.multi_label import MultiLabel
from bertsmith.tasks.question_answering import QuestionAnswering
from bertsmith.tasks.regression import Regression
from bertsmith.tasks.reranking import Reranking
from bertsmith.tasks.similarity import Similarity
from bertsmith.tasks.tagging import Tagging
from bertsmith.tasks.task import Prediction, Task


def as_labelled(
    task: Task[Any], examples: Sequence[Any], predictions: Sequence[Prediction]
) -> list[Any] | None:
    """The examples with those answers for labels; None for a task whose answers can't be labels: rankings of
    documents, and tasks of one's own.
    """
    say = next((_SAID[kind] for kind in type(task).__mro__ if kind in _SAID), None)
    if say is None:
        return None
    return [say(task, *each) for each in zip(examples, predictions, strict=True)]


def _class(task: Task[Any], example: Any, said: Prediction) -> Any:
    return replace(example, label=said["label"])


def _labels(task: Task[Any], example: Any, said: Prediction) -> Any:
    return replace(example, label=tuple(said["labels"]))


def _number(task: Task[Any], example: Any, said: Prediction) -> Any:
    return replace(example, label=said["score"])


def _similar(task: Task[Any], example: Any, said: Prediction) -> Any:
    return replace(example, label=said.get("score", said.get("label")))


def _relevant(task: Task[Any], example: Any, said: Prediction) -> Any:
    """All or nothing: any score above 0 would count as relevant."""
    return replace(example, label=task.highest if said["score"] >= 0.5 else 0.0)  # type: ignore[attr-defined]


def _tags(task: Task[Any], example: Any, said: Prediction) -> Any:
    return replace(example, tags=tuple(said["tags"]))


def _answer(task: Task[Any], example: Any, said: Prediction) -> Any:
    found = said["start"] is not None
    answers = ((said["answer"], said["start"]),) if found else ()
    return replace(example, answers=answers, impossible=not found)


_SAID: dict[type, Callable[[Task[Any], Any, Prediction], Any]] = {
    Classification: _class,
    MultiLabel: _labels,
    Regression: _number,
    Similarity: _similar,
    Reranking: _relevant,
    Tagging: _tags,
    QuestionAnswering: _answer,
}
