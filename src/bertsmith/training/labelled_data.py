"""The labelled files of a fine-tuning run, read and checked against each other before anything is trained."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertsmith.errors import InputError
from bertsmith.tasks.shared_texts import shared_texts
from bertsmith.tasks.task import Task
from bertsmith.training.finetune_recipe import FinetuneRecipe


@dataclass(frozen=True)
class LabelledData:
    """Examples to train on, to choose by, and to report on; warnings are sentences for the user."""

    train: list[Any]
    dev: list[Any]
    test: list[Any] | None
    warnings: tuple[str, ...]


def read_labelled_data(task: Task[Any], recipe: FinetuneRecipe) -> LabelledData:
    """Reads the files and teaches the task its labels.

    Without a dev file a share of the training rows is held out: by a hash of their texts, so that equal texts
    fall on one side and the split stays when rows are added. Raises InputError naming file and line.
    """
    train = task.read(Path(recipe.train))
    if recipe.dev is None:
        train, dev = _held_out(task, train, recipe)
    else:
        dev = task.read(Path(recipe.dev))
    test = task.read(Path(recipe.test)) if recipe.test else None
    _require_text(task, train)
    task.learn_labels(train)
    for examples in (train, dev, test or []):
        task.check(examples)
    return LabelledData(train, dev, test, tuple(_warnings(task, recipe, train, dev, test)))


def _held_out(task: Task[Any], examples: list[Any], recipe: FinetuneRecipe) -> tuple[list[Any], list[Any]]:
    held = [_is_held_out(task.kept_together(example), recipe.dev_share) for example in examples]
    train = [example for example, out in zip(examples, held, strict=True) if not out]
    dev = [example for example, out in zip(examples, held, strict=True) if out]
    if not train or not dev:
        raise InputError(
            f"{recipe.train} has {len(examples):,} rows: too few to hold out {recipe.dev_share:.0%} of them. "
            "Give a file of its own with --dev."
        )
    return train, dev


def _require_text(task: Task[Any], train: Sequence[Any]) -> None:
    """A few empty texts are learned from as they are; nothing else than these is a slip."""
    if not any(text.strip() for example in train for text in task.texts(example)):
        raise InputError(f"Every text is empty, from {train[0].where} on. Is --text the right column?")


def _is_held_out(texts: Sequence[str], share: float) -> bool:
    digest = hashlib.blake2b("\x1f".join(texts).encode("utf-8", "replace"), digest_size=8).digest()
    return int.from_bytes(digest, "big") < share * 2**64


def _warnings(
    task: Task[Any], recipe: FinetuneRecipe, train: list[Any], dev: list[Any], test: list[Any] | None
) -> list[str]:
    """Texts that are in the training file too make a score look better than it is."""
    sentences = []
    known = [" ".join(task.texts(example)) for example in train]
    for name, path, examples in (("dev", recipe.dev, dev), ("test", recipe.test, test)):
        if path is None or not examples:
            continue
        shared = shared_texts(known, [" ".join(task.texts(example)) for example in examples])
        if shared.count:
            sentences.append(
                f"{shared.count:,} of the {len(examples):,} {name} texts occur in {recipe.train} too, such "
                f"as {str(shared.examples[0].text)[:80]!r}: the score on {name} is flattered by them"
            )
    return sentences
