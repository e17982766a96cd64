"""A fine-tuned model's answer as one number that has a gradient: how sure it is, or the number that it gives.

S copies of an input, R rows that the head reads, C classes or tags, H width of a vector.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bertsmith.errors import InputError
from bertsmith.tasks.examples.encoding import Encoded
from bertsmith.tasks.task import Outputs, Task

Number = Callable[[Tensor], Tensor]  # (S, ...) outputs of the head -> (S,)
Named = tuple[str, Number]


def number_of(
    task: Task[Any], example: Any, encoded: Encoded, outputs: Outputs, target: str | int | None
) -> Named:
    """What is explained of an input, and its name. `outputs` are the head's for the input as it is: (1, C),
    (1, 2, H) or (R, C).

    classification, multi-label and similarity of classes: the calibrated probability of a class, of the
    likeliest unless `target` names one. tagging: that of a word's tag; `target` is the word's number, that of
    the first word that isn't O where it is None. question-answering: the probability of both ends of the
    answer, or of none. Others: the number itself. Raises InputError for a target that isn't there.
    """
    name = task.name
    if name in ("classification", "multi-label") or (name == "similarity" and task.labels):
        return _of_class(task, outputs[0], target)
    if name == "tagging":
        return _of_word(task, example, encoded, outputs, target)
    if target is not None:
        raise InputError(f"target: a model for {name} answers one thing, found {target!r}. Leave target out.")
    if name == "question-answering":
        return _of_answer(task, example, encoded, outputs)
    if name == "retrieval":
        return "similarity", lambda found: (found[:, 0] * found[:, 1]).sum(1)
    if name == "reranking" or getattr(task, "has_sigmoid", False):
        return "score", lambda found: found[:, 0].sigmoid()
    if name in ("regression", "similarity"):
        return ("similarity" if name == "similarity" else "score"), lambda found: found[:, 0]
    raise InputError(
        f"The answers of a model for {name} can't be explained: Bertsmith's tasks have none of that kind."
    )


def _of_class(task: Task[Any], outputs: Outputs, target: str | int | None) -> Named:
    label = task.labels[int(outputs.argmax())] if target is None else str(target)
    if label not in task.label_ids:
        raise InputError(f"target: there is no class {label!r}. There are: {', '.join(task.labels[:8])}.")
    chosen, temperature = task.label_ids[label], float(getattr(task, "temperature", 1.0))
    if task.name == "multi-label":
        return label, lambda found: (found[:, chosen] / temperature).sigmoid()
    return label, lambda found: (found / temperature).softmax(1)[:, chosen]


def _of_word(
    task: Task[Any], example: Any, encoded: Encoded, outputs: Outputs, target: str | int | None
) -> Named:
    """The tag is the one that the best legal path has, its number the softmax over the word's own scores."""
    (prediction,) = task.decode([outputs], [example], [encoded])
    tags = prediction["tags"]
    if not tags:
        raise InputError("The text has no words, so there is no tag to explain. Give a text with words.")
    word = int(target) if isinstance(target, str) and target.isdecimal() else target
    if word is None:
        word = next((place for place, tag in enumerate(tags) if tag != "O"), 0)
    if type(word) is not int or not 0 <= word < len(tags):
        raise InputError(f"target must be the number of a word, 0 to {len(tags) - 1}, found {target!r}.")
    place = word
    if encoded.decoding is not None:  # several words read one row
        place = int(encoded.decoding[word])
        word = int(np.searchsorted(encoded.decoding, place))
    tag = task.label_ids[tags[word]]
    name = f"{tags[word]} of {example.words[word]!r}"
    return name, lambda found: found[:, place].softmax(1)[:, tag]


def _of_answer(task: Task[Any], example: Any, encoded: Encoded, outputs: Outputs) -> Named:
    """Row 0 is [CLS], which means that there is no answer; the others are the passage's tokens."""
    (prediction,) = task.decode([outputs], [example], [encoded])
    if not prediction["answer"]:
        return "no answer", lambda found: _both_ends(found, 0, 0)
    offsets = encoded.decoding[0].offsets  # (R - 1, 2)
    start = 1 + int(np.flatnonzero(offsets[:, 1] > prediction["start"])[0])
    end = 1 + int(np.flatnonzero(offsets[:, 0] < prediction["end"])[-1])
    return str(prediction["answer"]), lambda found: _both_ends(found, start, end)


def _both_ends(found: Tensor, start: int, end: int) -> Tensor:
    """(S, R, 2) -> (S,)."""
    both = found.softmax(1)
    return torch.mul(both[:, start, 0], both[:, end, 1])
