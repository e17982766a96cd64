"""Labelled examples divided into folds, for cross-validation: stratified, and texts that are equal but for
case, white space and punctuation in one fold.
"""

import re
from collections import Counter
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np

from bertsmith.arrays import Ints
from bertsmith.tasks.task import Task

CROSS_VALIDATION = "cross-validation"  # the name of an evaluation in which the rows judge in turn


def folds_of(task: Task[Any], examples: Sequence[Any], count: int, seed: int = 0) -> Ints:
    """(E,) each example's fold, below `count`; the same for the same examples and seed.

    Iterative stratification (Sechidis et al. 2011, algorithm 1): the examples of the rarest label are given
    out first, each to the fold that lacks that label most, then to the smallest. Examples that the task keeps
    together stay so, and those whose texts most models read alike: one would answer for the other.
    """
    draw = np.random.default_rng([seed, count])
    groups: dict[tuple[str, ...], list[int]] = {}
    for number, example in enumerate(examples):
        groups.setdefault(group_of(task, example), []).append(number)
    members = list(groups.values())
    labels = [
        Counter(label for row in rows for label in set(task.labels_of(examples[row]))) for rows in members
    ]
    having: dict[Hashable, list[int]] = {}
    for group in draw.permutation(len(members)).tolist():
        for label in labels[group]:
            having.setdefault(label, []).append(group)
    rarest_first = sorted(having, key=lambda label: (len(having[label]), str(label)))
    fold_of_group = np.full(len(members), -1)
    sizes, held = np.zeros(count), {label: np.zeros(count) for label in having}
    in_order = [group for label in rarest_first for group in having[label]]
    by_rarest = {group: label for label in reversed(rarest_first) for group in having[label]}
    for group in [*dict.fromkeys(in_order), *draw.permutation(len(members)).tolist()]:
        if fold_of_group[group] >= 0:
            continue
        of_label = held[by_rarest[group]] if group in by_rarest else sizes
        fold = int(np.lexsort((draw.random(count), sizes, of_label))[0])
        fold_of_group[group] = fold
        sizes[fold] += len(members[group])
        for label, times in labels[group].items():
            held[label][fold] += times
    folds = np.zeros(len(examples), np.int64)
    for rows, fold in zip(members, fold_of_group.tolist(), strict=True):
        folds[rows] = fold
    return folds


def group_of(task: Task[Any], example: Any) -> tuple[str, ...]:
    """The same for examples that belong in one fold."""
    return tuple(map(_words, task.group_key(example)))


def _words(text: str) -> str:
    """Of a text of signs alone, such as an emoji, all."""
    return " ".join(re.findall(r"\w+", text.casefold())) or text
