"""Rows held out of a training file, and rows that are measured although they were trained on."""

import hashlib
from collections.abc import Sequence
from typing import Any

from bertsmith.metrics.shared_texts import shared_texts
from bertsmith.tasks.task import Task


def hold_out(task: Task[Any], examples: Sequence[Any], share: float) -> tuple[list[Any], list[Any]]:
    """Training examples and those held out as dev: by a hash of their texts, so that equal texts fall on one
    side and the split stays when rows are added.

    Chance must not decide about the few texts of a small class: each label, and the whole, has a text in dev
    where its share is one, and keeps one in train.
    """
    texts = [tuple(task.group_key(example)) for example in examples]
    place = {text: _place(text) for text in texts}
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


def shared_with_train(
    task: Task[Any], train: Sequence[Any], examples: Sequence[Any], name: str, trained_on: str
) -> list[str]:
    """Texts that are in the training file too make a score look better than it is."""
    shared = shared_texts(map(task.texts, train), map(task.texts, examples))
    if not shared:
        return []
    first = " ".join(task.texts(examples[shared[0]]))
    return [
        f"{len(shared):,} of the {len(examples):,} {name} texts occur in {trained_on} too, such as "
        f"{first[:80]!r}: the score on {name} is flattered by them"
    ]


def _place(texts: Sequence[str]) -> float:
    """In 0 … 1, by hash."""
    digest = hashlib.blake2b("\x1f".join(texts).encode("utf-8", "replace"), digest_size=8).digest()
    return int.from_bytes(digest, "big") / 2**64
