"""Texts that train and test share: what is scored there is memory."""

from collections.abc import Iterable, Sequence


def shared_texts(train: Iterable[Sequence[str]], test: Iterable[Sequence[str]]) -> list[int]:
    """Rows of test, from 0, whose texts are those of a row of train, whatever their case and white space.

    Rows without any text don't count: they are nothing that could be remembered.
    """
    known = set(map(_normal, train))
    return [row for row, texts in enumerate(map(_normal, test)) if any(texts) and texts in known]


def _normal(texts: Sequence[str]) -> tuple[str, ...]:
    return tuple(" ".join(text.casefold().split()) for text in texts)
