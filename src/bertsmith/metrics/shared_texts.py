"""Texts that train and test share: what is scored there is memory."""

from collections.abc import Sequence
from dataclasses import dataclass

Text = str | tuple[str, str]  # a text, or a pair of them


@dataclass(frozen=True)
class SharedText:
    """A text of test, its row there, and the first row of train with the same text; rows count from 0."""

    text: Text
    test_row: int
    train_row: int


@dataclass(frozen=True)
class SharedTexts:
    """`count` of the `total` texts of test occur in train, among them `examples`."""

    count: int
    total: int
    examples: tuple[SharedText, ...]


def shared_texts(train: Sequence[Text], test: Sequence[Text], examples: int = 5) -> SharedTexts:
    """How many of test's texts occur in train, whatever their case and white space; pairs as wholes. Empty
    texts don't count: they are nothing that could be remembered.

    Keeps a hash a row of train, not its text.
    """
    rows: dict[int, int] = {}
    for row, text in enumerate(train):
        rows.setdefault(hash(_normal(text)), row)
    shared = [
        SharedText(text, row, rows[key])
        for row, text in enumerate(test)
        if any(normal := _normal(text))
        and (key := hash(normal)) in rows
        and _normal(train[rows[key]]) == normal
    ]
    return SharedTexts(len(shared), len(test), tuple(shared[:examples]))


def _normal(text: Text) -> Text:
    if isinstance(text, tuple):
        return (" ".join(text[0].casefold().split()), " ".join(text[1].casefold().split()))
    return " ".join(text.casefold().split())
