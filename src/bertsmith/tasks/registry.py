"""Tasks by name: ours, and those of others as `package.module:Class`."""

import sys
from importlib import import_module
from typing import Any

from bertsmith.errors import InputError, did_you_mean
from bertsmith.tasks.task import Task

TASKS = {
    "classification": "Classification",
    "multi-label": "MultiLabel",
    "regression": "Regression",
    "tagging": "Tagging",
    "question-answering": "QuestionAnswering",
    "similarity": "Similarity",
    "retrieval": "Retrieval",
    "reranking": "Reranking",
}  # each in the file of its name


def find_task(name: str) -> type[Task[Any]]:
    """The class of a task. Raises InputError when there is none of that name.

    A name with a colon imports code, also from the current folder: it may come from the user, never from a
    file.
    """
    if name in TASKS:
        return _load(f"bertsmith.tasks.{name.replace('-', '_')}", TASKS[name], name)
    module, colon, attribute = name.partition(":")
    if colon:
        if "" not in sys.path:  # the current folder; last, so that it hides nothing that is installed
            sys.path.append("")
        return _load(module, attribute, name)
    raise InputError(
        f"There is no task {name!r}.{did_you_mean(name, TASKS)} There are: {', '.join(TASKS)}, or your own "
        "as package.module:Class."
    )


def is_ours(kind: type[Task[Any]]) -> bool:
    """Whether a model of this kind is opened without being told its class."""
    return kind.name in TASKS


def _load(module: str, attribute: str, name: str) -> type[Task[Any]]:
    try:
        found = getattr(import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise InputError(f"The task {name!r} can't be imported: {error}.") from error
    if not (isinstance(found, type) and issubclass(found, Task)):
        raise InputError(f"{name!r} is not a subclass of bertsmith.tasks.task.Task.")
    return found
