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
from bertsmith.tasks.similarity import Similarity
from bertsmith.tasks.tagging import Tagging
from bertsmith.tasks.task import Prediction, Task


def as_labelled(
    task: Task[Any], examples: Sequence[Any], predictions: Sequence[Prediction]
) -> list[Any] | None:
    """The examples with those answers for labels; None where `can_be_labels` says no."""
    say = _saying(task)
    if say is None:
        return None
    return [say(task, *each) for each in zip(examples, predictions, strict=True)]


def can_be_labels(task: Task[Any]) -> bool:
    """Whether what a model says of an example can count as its label: not rankings of documents, nor what
    tasks of one's own say. A re-ranker's scores put candidates in an order, and don't say from where on one
    is relevant: by a teacher whose scores are all low there would be nothing to find.
    """
    return _saying(task) is not None


def _saying(task: Task[Any]) -> "Callable[[Task[Any], Any, Prediction], Any] | None":
    return next((_SAID[kind] for kind in type(task).__mro__ if kind in _SAID), None)


def _class(task: Task[Any], example: Any, said: Prediction) -> Any:
    return replace(example, label=said["label"])


def _labels(task: Task[Any], example: Any, said: Prediction) -> Any:
    return replace(example, label=tuple(said["labels"]))


def _number(task: Task[Any], example: Any, said: Prediction) -> Any:
    return replace(example, label=said["score"])


def _similar(task: Task[Any], example: Any, said: Prediction) -> Any:
    return replace(example, label=said.get("score", said.get("label")))


def _tags(task: Task[Any], example: Any, said: Prediction) -> Any:
    tags = task.in_iob2(said["tags"]) if isinstance(task, Tagging) else said["tags"]
    return replace(example, tags=tuple(tags))


def _answer(task: Task[Any], example: Any, said: Prediction) -> Any:
    found = said["start"] is not None
    answers = ((said["answer"], said["start"]),) if found else ()
    return replace(example, answers=answers, impossible=not found)


_SAID: dict[type, Callable[[Task[Any], Any, Prediction], Any]] = {
    Classification: _class,
    MultiLabel: _labels,
    Regression: _number,
    Similarity: _similar,
    Tagging: _tags,
    QuestionAnswering: _answer,
}
