"""Tasks by name: ours, and those of others as `package.module:Class`."""

from importlib import import_module
from typing import Any

from bertsmith.argument_checks import import_class
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
    """The class of a task. Raises InputError if there is none of that name.

    A name with a colon imports code, also from the current folder, so it may come from the user but never
    from a file.
    """
    task_class: type[Task[Any]]
    if name in TASKS:
        task_class = getattr(import_module(f"bertsmith.tasks.{name.replace('-', '_')}"), TASKS[name])
        return task_class
    if ":" in name:
        task_class = import_class(name, Task, "task")
        return task_class
    raise InputError(
        f"There is no task {name!r}.{did_you_mean(name, TASKS)} There are: {', '.join(TASKS)}, or your own "
        "as package.module:Class."
    )


def is_ours(task_class: type[Task[Any]]) -> bool:
    """Whether a model of this task is opened without being told its class."""
    return task_class.name in TASKS
