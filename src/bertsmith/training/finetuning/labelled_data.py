"""The labelled files of a fine-tuning run, read and checked against each other before anything is trained."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from bertsmith.errors import InputError, RecipeError
from bertsmith.tasks.examples.held_out import (
    divided_sources,
    group_of,
    hold_out,
    shared_sources,
    shared_with_train,
)
from bertsmith.tasks.task import Task
from bertsmith.text.files.values import is_blank
from bertsmith.text.labelled.label_names import (
    counted,
    is_number,
    look_alikes,
    no_values,
)
from bertsmith.training.finetune_recipe import FinetuneRecipe

FEWEST_TEXTS = 10  # to be divided into folds
_MOST_ALIKE = 3  # that are named in full
FEW_ROWS = 30  # of dev: below, one row more or less that is right moves accuracy by over 3 points


@dataclass(frozen=True)
class LabelledData:
    """Examples to train on, to choose by, and to report on, and others without a label; warnings are
    sentences for the user.
    """

    train: list[Any]
    dev: list[Any]
    test: list[Any] | None
    warnings: tuple[str, ...]
    unlabelled: Sequence[Any] = ()


def read_labelled_data(task: Task[Any], recipe: FinetuneRecipe, *, folds: bool = False) -> LabelledData:
    """Reads the files and teaches the task its labels.

    Without a dev file a share of the training rows is held out; dev is empty where the recipe has all rows
    train and judge in turn, and `folds` allows it. Raises InputError naming file and line.
    """
    train = task.read_files(recipe.train_files)
    require_enough_texts(task, recipe, train)
    if folds and recipe.folds_of(len(train)) and can_be_folded(task, train):
        _require_labels_twice(task, recipe, train)
        dev: list[Any] = []
    elif recipe.dev is None:
        train, dev = _held_out(task, recipe, train)
    else:
        dev = task.read(Path(recipe.dev))
    test = task.read(Path(recipe.test)) if recipe.test else None
    # a few empty texts are learned from as they are; nothing else than these is a slip
    if all(is_blank(text) for example in train for text in task.texts(example)):
        raise InputError(f"Every text is empty, from {train[0].where} on. Is --text the right column?")
    task.fit(train)
    for examples in (train, dev, test or []):
        task.check(examples)
    warnings = _warnings(task, recipe, train, dev, test)
    unlabelled = _unlabelled(task, recipe, (train, dev, test or []))
    return LabelledData(train, dev, test, tuple(warnings), unlabelled)


def _held_out(task: Task[Any], recipe: FinetuneRecipe, rows: list[Any]) -> tuple[list[Any], list[Any]]:
    """Rows to train on, and the share that is dev. Raises InputError where there are too few."""
    train, dev = hold_out(task, rows, recipe.dev_share)
    if train and dev:
        return train, dev
    if 2 * len(_labels(task, rows)) > max(len(rows), FEWEST_TEXTS):
        raise _strange_labels(task, recipe, rows)
    texts = {group_of(task, example) for example in rows}
    needed = next(texts for texts in count(2) if round(recipe.dev_share * texts))
    raise InputError(
        f"{recipe.train_name} has {len(rows):,} rows with {len(texts):,} different texts: too few to hold "
        f"out {recipe.dev_share:.0%} of them. Give at least {needed} different texts, or rows to choose by "
        "with --dev."
    )


def _require_labels_twice(task: Task[Any], recipe: FinetuneRecipe, rows: Sequence[Any]) -> None:
    """In cross-validation a label's only text is judged by models that haven't seen the label."""
    having: dict[str, set[tuple[str, ...]]] = {}
    for example in rows:
        for label in task.labels_of(example):
            having.setdefault(label, set()).add(group_of(task, example))
    if 2 * len(having) > len(rows) and all(len(texts) == 1 for texts in having.values()):
        raise _strange_labels(task, recipe, rows)


def _strange_labels(task: Task[Any], recipe: FinetuneRecipe, rows: Sequence[Any]) -> InputError:
    labels = _labels(task, rows)
    other = " Numbers are for regression." if all(map(is_number, labels)) else ""
    return InputError(
        f"{recipe.train_name} has {len(labels):,} labels in {len(rows):,} rows: hardly any comes "
        f"twice. Is --label the right column? If it is, give rows to choose by with --dev.{other}"
    )


def _labels(task: Task[Any], rows: Sequence[Any]) -> set[str]:
    return {label for example in rows for label in task.labels_of(example)}


def _unlabelled(task: Task[Any], recipe: FinetuneRecipe, labelled: Sequence[Sequence[Any]]) -> list[Any]:
    """Texts that have no label in the other files, each once. Raises InputError where there are none, and
    RecipeError for a task that can't learn from them.
    """
    if recipe.unlabelled is None:
        return []
    if not task.learns_unlabelled:
        raise RecipeError(
            f"only classification learns from unlabelled texts, not {task.name}. Leave --unlabelled out."
        )
    texts = task.read(Path(recipe.unlabelled), labelled=False)
    known = {tuple(task.texts(example)) for examples in labelled for example in examples}
    fresh = {tuple(task.texts(example)): example for example in texts}
    found = [example for text, example in fresh.items() if text not in known and task.has_text(example)]
    if not found:
        raise InputError(
            f"{recipe.unlabelled} has no text that isn't among the labelled ones: there is nothing to learn."
        )
    return found


def can_be_folded(task: Task[Any], train: Sequence[Any]) -> bool:
    """Whether there are enough texts, those of one fold counted once: too few are refused as ever."""
    return _texts_apart(task, train) >= FEWEST_TEXTS


def require_enough_texts(task: Task[Any], recipe: FinetuneRecipe, train: Sequence[Any]) -> None:
    """Raises RecipeError where the recipe asks for folds, and there are too few texts to be divided so."""
    needed = max(FEWEST_TEXTS, recipe.folds or 0)
    if recipe.folds is None or (texts := _texts_apart(task, train)) >= needed:
        return
    fewer = f"Give folds={texts} or fewer" if texts >= FEWEST_TEXTS else "Give more rows, or leave folds out"
    raise RecipeError(
        f"folds = {recipe.folds} takes {needed:,} different texts or more, and {recipe.train_name} has "
        f"{texts:,}. {fewer}."
    )


def require_negatives(task: Task[Any], recipe: FinetuneRecipe, train: Sequence[Any]) -> None:
    """Raises RecipeError where a row alone in its batch teaches nothing."""
    if recipe.batch_size == 1:
        task.check_alone(train)


def _texts_apart(task: Task[Any], train: Sequence[Any]) -> int:
    return len({group_of(task, example) for example in train})


def _warnings(
    task: Task[Any], recipe: FinetuneRecipe, train: list[Any], dev: list[Any], test: list[Any] | None
) -> list[str]:
    sentences = [
        f"{name}: {found}"
        for name, examples in (("train", train), ("dev", dev), ("test", test or []))
        for found in task.warnings(examples)
    ]
    sentences += [*task.left_out, *_of_labels(task, train)]
    if dev:
        sentences += _of_dev(task, dev)
    else:
        sentences += [*_of_folds(task, train, recipe.folds_of(len(train))), *divided_sources(task, train)]
    for name, path, examples in (("dev", recipe.dev, dev), ("test", recipe.test, test)):
        equal = shared_with_train(task, train, examples, name, recipe.train_name) if path and examples else []
        sentences += equal or shared_sources(task, train, examples or [], name)
    return sentences


def _of_labels(task: Task[Any], train: Sequence[Any]) -> list[str]:
    """Names that are probably slips: each becomes a class of its own."""
    counts = Counter(label for example in train for label in task.labels_of(example))

    alike = look_alikes(counts)
    sentences = [
        f"the labels {counted(counts, labels)} differ in case, blanks or Unicode's form alone, and are "
        "learned as different ones: are they?"
        for labels in alike[:_MOST_ALIKE]
    ]
    if len(alike) > _MOST_ALIKE:
        sentences.append(f"{len(alike) - _MOST_ALIKE:,} more labels are spelled in several ways")
    unknown = {"-1", "-100"} & set(counts)
    others = set(counts) - unknown
    if others - {"1"} and all(label.isdigit() for label in others):
        sentences += [
            f"the label {label!r} ({counts[label]:,} rows) is learned as a class. In data of Hugging Face "
            "it says that there is no label: remove such rows if it does"
            for label in sorted(unknown)
        ]
    for label in no_values(counts):
        sentences.append(
            f"the label {label!r} ({counts[label]:,} rows) is learned as a class. Where tables have no value "
            "they have it, too: if so, remove such rows"
        )
    return sentences + task.label_warnings(counts)


def _of_folds(task: Task[Any], train: Sequence[Any], folds: int) -> list[str]:
    """Every row judges in turn. Where a label's only row does, no model has seen that label."""
    rows = Counter(label for example in train for label in task.labels_of(example))
    rare = [label for label, count in rows.items() if count < folds]
    if not rare or not folds:
        return []
    return [
        f"{len(rare):,} of {len(rows):,} labels have fewer than {folds} rows, such as {rare[0]!r}: "
        "cross-validation trains on too few of them, and the model will do better than its score says"
    ]


def _of_dev(task: Task[Any], dev: Sequence[Any]) -> list[str]:
    """What chooses the weights has to tell good from bad."""
    sentences: list[str] = []
    if len(dev) < FEW_ROWS:
        sentences.append(
            f"dev has {len(dev)} rows: too few to choose weights by, and its figures say little. Give more "
            "with --dev, or a larger dev_share"
        )
    labels = {label for example in dev for label in task.labels_of(example)}
    if len(labels) == 1:
        sentences.append(f"dev has one label only, {labels.pop()!r}: whoever always gives it is right there")
    return sentences
