r"""Patterns of words in any script: letters, digits and _, with their combining marks.

`\w` alone doesn't match combining marks: the vowel signs of Hindi, Tamil and Thai, the vowel points of Arabic
and Hebrew, and accents that are separate characters would end a word.
"""

import re
import unicodedata

# Combining marks are in this range; above it are only variation selectors.
_SEARCHED = range(0x300, 0x20000)
# They choose how the character before them is drawn, mostly an emoji, and aren't part of a word.
_VARIATION_SELECTORS = range(0xFE00, 0xFE10)

# Kana and Chinese characters: scripts without blanks, in which a character counts as a word.
WITHOUT_BLANKS = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"

# Languages without blanks between words: Chinese and its relatives, Japanese, Thai, Lao, Khmer, Burmese,
# Tibetan and Dzongkha.
_NO_BLANKS = frozenset({"zh", "yue", "wuu", "ja", "th", "lo", "km", "my", "bo", "dz"})


def has_blanks(language: str) -> bool:
    """Whether a language, by its code ("en", "zh-hant"), is written with blanks between words."""
    return language.partition("-")[0] not in _NO_BLANKS


def _combining_marks() -> str:
    """The characters of Unicode's categories Mn and Mc, as ranges for a class of a regular expression."""
    categories = map(unicodedata.category, map(chr, _SEARCHED))
    marks = [
        code
        for code, category in zip(_SEARCHED, categories, strict=True)
        if category in ("Mn", "Mc") and code not in _VARIATION_SELECTORS
    ]
    firsts = [code for code, previous in zip(marks, [0, *marks]) if code != previous + 1]
    lasts = [code for code, following in zip(marks, [*marks[1:], 0]) if code + 1 != following]
    return "".join(f"{chr(first)}-{chr(last)}" for first, last in zip(firsts, lasts, strict=True))


MARKS = _combining_marks()


def word_pattern(letters: str) -> str:
    r"""A regular expression for a run of `letters` (a class such as \w), each with any combining marks."""
    # The look-ahead is for speed: at the end of an ASCII word, no marks are searched.
    return f"{letters}+(?:(?=[^\\x00-\u02ff])[{MARKS}]+{letters}*)*"


WORD_PATTERN = word_pattern(r"\w")
WORD = re.compile(WORD_PATTERN)
_WITHOUT_BLANKS = re.compile(f"[{WITHOUT_BLANKS}]")


def split_at_blanks(text: str) -> list[str]:
    """Splits a text at blanks, and around each Chinese or Japanese character. Punctuation isn't split off."""
    return (text if text.isascii() else _WITHOUT_BLANKS.sub(r" \g<0> ", text)).split()
