"""Which words of a passage are words of the query: equal but for case, accents and English endings."""

import re
import unicodedata
from collections.abc import Iterator

_WORD = re.compile(r"(?:\w[\u0300-\u036f]*)+")  # combining marks are no letters of their own
_ENDINGS = re.compile(r"(?:ing|edly|ed|ies|es|ly|s|y|e)$")
# They stand in nearly every passage, and full-text search leaves them out as well.
_STOP_WORDS = frozenset(
    """
    a an and are as at be but by can did do does for from had has have how i if in into is it its my no not of
    on or our so such that the their then there these they this to was we were what when where which who why
    will with would you your
    """.split()  # noqa: SIM905
)


def matching_spans(passage: str, query: str) -> list[tuple[int, int]]:
    """(start, end) in characters of `passage`, in order, of every word that the query has too.

    A query of stop words alone is looked for as it is.
    """
    words = [_folded(word) for word in _WORD.findall(query)]
    wanted = {_stem(word) for word in words if word not in _STOP_WORDS} or {_stem(word) for word in words}
    return list(_spans(passage, wanted))


def _spans(passage: str, wanted: set[str]) -> Iterator[tuple[int, int]]:
    for found in _WORD.finditer(passage):
        if _stem(_folded(found.group())) in wanted:
            yield found.span()


def _folded(word: str) -> str:
    decomposed = unicodedata.normalize("NFKD", word)
    return "".join(letter for letter in decomposed if not unicodedata.combining(letter)).casefold()


def _stem(word: str) -> str:
    """Good enough to mark words with, cheaper than a stemmer: 'indexes', 'indexed' and 'index' are one."""
    stem = _ENDINGS.sub("", word)
    return stem if len(stem) >= 3 else word
