"""What is no list of texts, refused before it is read: what iterates over something else than its texts would
get vectors and predictions of that.
"""

from collections.abc import Iterable, Mapping, Set, Sized
from typing import Any

from bertsmith.errors import InputError


def require_texts(texts: Any) -> None:
    """Anything that gives text after text. Raises InputError for one text, a table, or what has no order."""
    if isinstance(texts, str):
        raise InputError(f"Expected a list of texts, found one text: {texts[:60]!r}. Put it in a list.")
    kind = type(texts).__name__
    if getattr(texts, "ndim", 1) != 1:  # a DataFrame gives the names of its columns
        raise InputError(
            f"Expected a list of texts, found a table ({kind}). Give the texts alone, such as "
            "list(table['text'])."
        )
    if isinstance(texts, bytes | Mapping | Set) or not isinstance(texts, Iterable):
        raise InputError(f"Expected a list of texts, found {kind}. Give the texts as a list.")


def require_list(texts: Any) -> None:
    """The same, of a known number."""
    require_texts(texts)
    if not isinstance(texts, Sized):
        raise InputError(
            f"Expected a list of texts, found {type(texts).__name__}, whose length is not known. "
            "Give them as a list."
        )


def require_count(found: int, expected: int) -> None:
    """Raises InputError where a list gave more or fewer than its length says."""
    if found != expected:
        raise InputError(
            f"Expected {expected:,} texts, as the list's length says, but it gave "
            f"{'more' if found > expected else f'{found:,}'}. Give them as a list."
        )
