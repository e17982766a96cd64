"""Which words of a passage are words of the query: equal but for case and accents, and in English endings."""

import re
import unicodedata

from bertsmith.text.words import WORD

_ENDINGS = re.compile(r"(?:ing|edly|ed|ies|es|ly|s|y|e)$")
# English ones. They stand in nearly every passage, and full-text search leaves them out as well.
_STOP_WORDS = frozenset(
    """
    a an and are as at be but by can did do does for from had has have how i if in into is it its my no not of
    on or our so such that the their then there these they this to was we were what when where which who why
    will with would you your
    """.split()  # noqa: SIM905
)


def matching_spans(passage: str, query: str, language: str = "en") -> list[tuple[int, int]]:
    """(start, end) in characters of `passage`, in order, of every word that the query has too.

    A query of stop words alone is looked for as it is. Stop words and endings are known of English only.
    """
    form = _english if language == "en" else _folded
    ignored = _STOP_WORDS if language == "en" else frozenset()
    words = WORD.findall(query)
    wanted = {form(word) for word in words if _folded(word) not in ignored} or set(map(form, words))
    return [found.span() for found in WORD.finditer(passage) if form(found.group()) in wanted]


def _folded(word: str) -> str:
    decomposed = unicodedata.normalize("NFKD", word)
    return "".join(letter for letter in decomposed if not unicodedata.combining(letter)).casefold()


def _english(word: str) -> str:
    """Good enough to mark words with, cheaper than a stemmer: 'indexes', 'indexed' and 'index' are one."""
    word = _folded(word)
    stem = _ENDINGS.sub("", word)
    return stem if len(stem) >= 3 else word
