"""A text as the words that are compared: no case, no punctuation, compatible characters as one (NFKC).

There are three readings, for punctuation inside a word can go in two ways: "well-known" becomes two words
where a blank takes its place, and one where it is left out, as is usual of apostrophes alone. A copy is
looked for in all of them, so that either change of all its punctuation leaves one of them as it was.

| reading | "It's well-known: 3.5 %" |
| --- | --- |
| separated | its well known 3 5 |
| joined | its wellknown 35 |
| split | it s well known 3 5 |

In the scripts of Chinese and Japanese, which have no blanks, each character is a word.
"""

import re
import unicodedata
from collections.abc import Callable

from bertsmith.text.words import MARKS, WITHOUT_BLANKS, word_pattern

SHORTEST = 3  # words of a text that is looked for
_WORD = re.compile(f"[{WITHOUT_BLANKS}]|" + word_pattern(f"[^\\W_{WITHOUT_BLANKS}]"))
_APOSTROPHES = str.maketrans(dict.fromkeys("\u2018\u2019\u02bc`", "'"))
_NO_LETTERS = re.compile(rf"[^\w\s{MARKS}]+|_+")


def separated_words(text: str) -> list[str]:
    """Words end at blanks and at punctuation but apostrophes, which go without a trace."""
    return _WORD.findall(_plain(text).replace("'", ""))


def joined_words(text: str) -> list[str]:
    """Words end at blanks alone; all punctuation goes without a trace."""
    return _WORD.findall(_NO_LETTERS.sub("", _plain(text)))


def split_words(text: str) -> list[str]:
    """Words end at blanks and at all punctuation."""
    return _WORD.findall(_plain(text))


def readings_of(text: str) -> list[list[str]]:
    """A text that is looked for in each of READINGS; empty where it is no other than in an earlier one, and
    so has nothing more to find. Only `split_words` finds "it 's" where a document has "it's".
    """
    separated, joined, split = (read(text) for read in READINGS)
    return [separated, joined if joined != separated else [], split if "'" in _plain(text) else []]


def is_too_short(text: str) -> bool:
    """Whether a text says nothing of where it is from: one of one or two words, when all are counted."""
    return len(separated_words(text)) < SHORTEST


READINGS: tuple[Callable[[str], list[str]], ...] = (separated_words, joined_words, split_words)


def _plain(text: str) -> str:
    """In one case, with one kind of apostrophe."""
    if not text.isascii():  # NFKC has a blank and a mark for \u00b4, which keyboards give for an apostrophe
        text = unicodedata.normalize("NFKC", text.replace("\u00b4", "'"))
    return text.casefold().translate(_APOSTROPHES)
