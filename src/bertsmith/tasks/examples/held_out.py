"""Rows held out of a training file, rows divided into folds (stratified, equal texts together), and rows
that are measured although they were trained on.
"""

import hashlib
import re
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from typing import Any

import numpy as np

from bertsmith.arrays import Ints
from bertsmith.tasks.task import Task

_FEW_SHARED = 0.05  # of the rows: less flatters no score that anybody would notice
_GROUPS = "Name a column that says which rows belong together (group=COLUMN), or give"
CROSS_VALIDATION = "cross-validation"  # the name of an evaluation in which the rows judge in turn


def hold_out(task: Task[Any], examples: Sequence[Any], share: float) -> tuple[list[Any], list[Any]]:
    """Training examples and those held out as dev: by a hash of their texts, so that the split stays when
    rows are added. Texts that are equal but for case, white space and punctuation fall on one side.

    Chance must not decide about the few texts of a small class: each label, and the whole, has a text in dev
    where its share is one, and keeps one in train.
    """
    texts = [group_of(task, example) for example in examples]
    spelled: dict[tuple[str, ...], tuple[str, ...]] = {}
    for example, text in zip(examples, texts, strict=True):
        spelling = tuple(task.group_key(example))
        spelled[text] = min(spelling, spelled.get(text, spelling))
    place = {text: _place(spelling) for text, spelling in spelled.items()}
    dev = {text for text in place if place[text] < share}
    having: dict[Any, set[tuple[str, ...]]] = {}
    for example, text in zip(examples, texts, strict=True):
        for label in (None, *task.labels_of(example)):  # None: the whole
            having.setdefault(label, set()).add(text)
    ordered = [sorted(own, key=place.__getitem__) for own in having.values()]
    dev |= {own[0] for own in ordered if dev.isdisjoint(own) and round(share * len(own))}
    dev -= {own[-1] for own in ordered if dev.issuperset(own)}
    return (
        [example for example, text in zip(examples, texts, strict=True) if text not in dev],
        [example for example, text in zip(examples, texts, strict=True) if text in dev],
    )


def shared_sources(task: Task[Any], train: Sequence[Any], examples: Sequence[Any], name: str) -> list[str]:
    """Parts of one source on both sides: examples whose group is in train; where the file names no groups,
    pairs that have one of their texts in common with pairs of train, else equal texts of another group.
    """
    groups = {group_of(task, example) for example in train}
    texts = {text for example in train for text in _texts_apart(task, example)}
    shared = [
        example
        for example in examples
        if group_of(task, example) in groups or not texts.isdisjoint(_texts_apart(task, example))
    ]
    if len(shared) < _FEW_SHARED * len(examples) or not shared:
        return []
    return [
        f"{len(shared):,} of the {len(examples):,} rows of {name} have a text or a source in common with "
        f"train, the first in {shared[0].where}: the score on {name} is flattered by them. {_way_out(task)}"
    ]


def divided_sources(task: Task[Any], rows: Sequence[Any]) -> list[str]:
    """The same of rows that judge in turn."""
    having: dict[str, set[tuple[str, ...]]] = {}
    for row in rows:
        for text in _texts_apart(task, row):
            having.setdefault(text, set()).add(group_of(task, row))
    shared = [row for row in rows if any(len(having[text]) > 1 for text in _texts_apart(task, row))]
    if len(shared) < _FEW_SHARED * len(rows) or not shared:
        return []
    return [
        f"{len(shared):,} of the {len(rows):,} rows have a text in common with others that judge them, the "
        f"first in {shared[0].where}: cross-validation is flattered by them. {_way_out(task)}"
    ]


def _texts_apart(task: Task[Any], example: Any) -> Sequence[str]:
    """What may stand on both sides though it shouldn't: of pairs each text, where nobody says what belongs
    together; of a group's rows the whole, which another group may have. A single text falls on one side
    anyway; documents of a search are the same for all queries.
    """
    if task.is_pretokenized:
        return ()
    texts = task.texts(example)
    if names_groups(task):
        return (" ".join(texts),)
    return texts if len(texts) > 1 and type(task).group_key is Task.group_key else ()


def names_groups(task: Task[Any]) -> bool:
    """Whether the settings say which column tells what rows of one source have in common."""
    return getattr(task.settings, "group", None) is not None


def _way_out(task: Task[Any]) -> str:
    return f"{'Give' if names_groups(task) else _GROUPS} --dev of other sources"


def shared_with_train(
    task: Task[Any], train: Sequence[Any], examples: Sequence[Any], name: str, trained_on: str
) -> list[str]:
    """Texts that are in the training file too make a score look better than it is."""
    train_texts, texts = ([task.texts(example) for example in rows] for rows in (train, examples))
    shared = shared_texts(train_texts, texts)
    if not shared:
        return []
    first = " ".join(texts[shared[0]])
    return [
        f"{len(shared):,} of the {len(examples):,} {name} texts occur in {trained_on} too, such as "
        f"{first[:80]!r}: the score on {name} is flattered by them"
    ]


def _place(texts: Sequence[str]) -> float:
    """In 0 … 1, by hash."""
    digest = hashlib.blake2b("\x1f".join(texts).encode("utf-8", "replace"), digest_size=8).digest()
    return int.from_bytes(digest, "big") / 2**64


def shared_texts(train: Iterable[Sequence[str]], test: Iterable[Sequence[str]]) -> list[int]:
    """Rows of test, from 0, whose texts are those of a row of train, whatever their case and white space.

    Rows without any text don't count: they are nothing that could be remembered.
    """
    known = set(map(_normal, train))
    return [row for row, texts in enumerate(map(_normal, test)) if any(texts) and texts in known]


def _normal(texts: Sequence[str]) -> tuple[str, ...]:
    return tuple(" ".join(text.casefold().split()) for text in texts)


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
    """The same for examples that belong in one fold: their words; of a text of signs alone, such as an emoji,
    all.
    """
    return tuple(" ".join(re.findall(r"\w+", text.casefold())) or text for text in task.group_key(example))
