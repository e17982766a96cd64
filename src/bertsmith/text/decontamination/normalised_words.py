"""A text as the words that are compared: no case, no punctuation, compatible characters as one (NFKC).

There are two readings, for punctuation inside a word can go in two ways: "well-known" becomes two words where
a blank takes its place, and one where it is left out. A copy is looked for in both, so that either change of
all its punctuation leaves one of them as it was.

| reading | "It's well-known: 3.5 %" |
| --- | --- |
| separated | its well known 3 5 |
| joined | its wellknown 35 |

In the scripts of Chinese and Japanese, which have no blanks, each character is a word.
"""

import re
import unicodedata
from collections.abc import Callable

from bertsmith.text.words import MARKS, WITHOUT_BLANKS, word_pattern

SHORTEST = 3  # words of a text that is looked for
_WORD = re.compile(f"[{WITHOUT_BLANKS}]|" + word_pattern(f"[^\\W_{WITHOUT_BLANKS}]"))
_APOSTROPHES = str.maketrans("", "", "'\u2018\u2019\u02bc\u00b4`")
_NO_LETTERS = re.compile(rf"[^\w\s{MARKS}]+|_+")


def separated_words(text: str) -> list[str]:
    """Words end at blanks and at punctuation but apostrophes, which go without a trace."""
    return _WORD.findall(_plain(text).translate(_APOSTROPHES))


def joined_words(text: str) -> list[str]:
    """Words end at blanks alone; all punctuation goes without a trace."""
    return _WORD.findall(_NO_LETTERS.sub("", _plain(text)))


def is_too_short(text: str) -> bool:
    """Whether a text says nothing of where it is from: one of one or two words, when all are counted."""
    return len(separated_words(text)) < SHORTEST


READINGS: tuple[Callable[[str], list[str]], ...] = (separated_words, joined_words)


def _plain(text: str) -> str:
    return text.lower() if text.isascii() else unicodedata.normalize("NFKC", text).casefold()
