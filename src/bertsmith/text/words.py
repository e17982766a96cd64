r"""What a word is in any script: letters, digits and _, with the marks that stand on them.

`\w` alone knows no combining marks: vowel signs of Hindi, Tamil and Thai, vowel points of Arabic and Hebrew,
and accents that are characters of their own would end a word.
"""

import re
import unicodedata

# Below U+0300 there are none, above U+1FFFF only variation selectors.
_SEARCHED = range(0x300, 0x20000)
# They choose how a sign is drawn, mostly behind emoji, and are part of no word.
_VARIATION_SELECTORS = range(0xFE00, 0xFE10)

# Kana, and Chinese characters: scripts without blanks, where a character stands for a word.
WITHOUT_BLANKS = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"

# Chinese and its kin, Japanese, Thai, Lao, Khmer, Burmese, Tibetan and Dzongkha.
_NO_BLANKS = frozenset({"zh", "yue", "wuu", "ja", "th", "lo", "km", "my", "bo", "dz"})


def has_blanks(language: str) -> bool:
    """Whether words of a language, by its code ("zh", "zh-hant"), stand between blanks."""
    return language.partition("-")[0] not in _NO_BLANKS


def _combining_marks() -> str:
    """All of Unicode's categories Mn and Mc, as what stands in the brackets of a regular expression."""
    categories = map(unicodedata.category, map(chr, _SEARCHED))
    found = [
        code
        for code, category in zip(_SEARCHED, categories, strict=True)
        if category in ("Mn", "Mc") and code not in _VARIATION_SELECTORS
    ]
    firsts = [code for code, before in zip(found, [0, *found]) if code != before + 1]
    lasts = [code for code, behind in zip(found, [*found[1:], 0]) if code + 1 != behind]
    return "".join(f"{chr(first)}-{chr(last)}" for first, last in zip(firsts, lasts, strict=True))


MARKS = _combining_marks()


def word_pattern(letters: str) -> str:
    r"""A run of `letters`, of which each may carry marks; it begins with one of them."""
    # What is looked at first spares English the way through all marks at the end of every word.
    return f"{letters}+(?:(?=[^\\x00-\u02ff])[{MARKS}]+{letters}*)*"


WORD_PATTERN = word_pattern(r"\w")
WORD = re.compile(WORD_PATTERN)
_WITHOUT_BLANKS = re.compile(f"[{WITHOUT_BLANKS}]")


def split_at_blanks(text: str) -> list[str]:
    """What stands between blanks, punctuation included; each character of Chinese or Japanese by itself."""
    return (text if text.isascii() else _WITHOUT_BLANKS.sub(r" \g<0> ", text)).split()
