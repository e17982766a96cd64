r"""Patterns of words in any script: letters, digits and _, with their combining marks.

`\w` alone doesn't match combining marks: the vowel signs of Hindi, Tamil and Thai, the vowel points of Arabic
and Hebrew, and accents that are separate characters would end a word.
"""

import re
import unicodedata

# Combining marks are in these ranges; between them are Chinese characters, Hangul syllables and private use,
# above them only variation selectors.
_SEARCHED = (*range(0x300, 0x3400), *range(0xA000, 0xAC00), *range(0xF900, 0x17000), *range(0x18D80, 0x20000))
# They choose how the character before them is drawn, mostly an emoji, and aren't part of a word.
_VARIATION_SELECTORS = range(0xFE00, 0xFE10)

# Kana and Chinese characters, with those that repeat one (人々): scripts without blanks, in which a character
# counts as a word.
WITHOUT_BLANKS = (
    "\u3005-\u3007\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uff66-\uff9f"
    "\U00020000-\U0003ffff"
)

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


#: What `script_of` says of digits, of symbols and of what joins the script before it, such as accents.
DIGITS, SYMBOLS, ANY_SCRIPT = "digits", "symbols", "any"
_OF_NO_SCRIPT = {"COMBINING", "MODIFIER", "ZERO", "VARIATION"}
_SCRIPTS = {
    **dict.fromkeys(("HIRAGANA", "KATAKANA", "KATAKANA-HIRAGANA", "IDEOGRAPHIC", "CJK"), "Chinese and kana"),
    "MYANMAR": "Burmese",
}
#: Scripts, as `script_of` names them, that write no blanks between words.
SCRIPTS_WITHOUT_BLANKS = frozenset({"Chinese and kana", "Thai", "Lao", "Burmese", "Khmer"})


def script_of(character: str) -> str:
    """The script of a letter by the first word of its name in Unicode ("Latin"), or one of the three above.
    Chinese characters and kana are one script.
    """
    if (category := unicodedata.category(character)) == "Nd":
        return DIGITS
    first_word = unicodedata.name(character, "").partition(" ")[0]
    if first_word in _OF_NO_SCRIPT:
        return ANY_SCRIPT
    return _SCRIPTS.get(first_word, first_word.capitalize()) if category[0] in "LM" else SYMBOLS


WORD_PATTERN = word_pattern(r"\w")
WORD = re.compile(WORD_PATTERN)

# Thai, Lao, Burmese and Khmer: vowels that stand before their consonant, other letters, and vowels and marks
# behind or around them. Burmese and Khmer write the letter behind a joiner below the one before.
_BEFORE = "\u0e40-\u0e44\u0ec0-\u0ec4"
_LETTERS = (
    "\u0e01-\u0e2f\u0e81-\u0eaf\u0edc-\u0edf\u1000-\u102a\u103f\u1050-\u1055\u105a-\u105d\u1061\u1065\u1066"
    "\u106e-\u1070\u1075-\u1081\u108e\u1780-\u17b3\ua9e0-\ua9e4\ua9e7-\ua9ef\uaa60-\uaa7a\uaa7e\uaa7f"
)
_BEHIND = (
    "\u0e30-\u0e3a\u0e45-\u0e4e\u0eb0-\u0ebd\u0ec6-\u0ece\u102b-\u103e\u1056-\u1059\u105e-\u1060\u1062-\u1064"
    "\u1067-\u106d\u1071-\u1074\u1082-\u108d\u108f\u109a-\u109d\u17b4-\u17d3\u17d7\u17dd\ua9e5\ua9e6\uaa7b-\uaa7d"
)
_JOINERS = "\u1039\u17d2"
#: Characters of Thai, Lao, Burmese and Khmer, for a class of a regular expression.
SYLLABIC = f"{_BEFORE}{_LETTERS}{_BEHIND}"
#: Characters of scripts without blanks, likewise.
IN_ONE_RUN = f"{WITHOUT_BLANKS}{SYLLABIC}"
_LETTER_WITH_VOWELS = f"[{_BEFORE}]*[{_LETTERS}](?:[{_BEHIND}]|(?<=[{_JOINERS}])[{_LETTERS}])*"
#: A character of Chinese or kana, or a letter of the others with its vowels and marks.
LETTER_WITHOUT_BLANKS = f"[{WITHOUT_BLANKS}]|{_LETTER_WITH_VOWELS}|[{_BEFORE}{_BEHIND}]+"
#: What counts as a word where no blanks divide words: a character of Chinese or kana, elsewhere about a
#: syllable: a letter with its vowels and marks, and the letters behind it that have none.
WORD_WITHOUT_BLANKS = (
    f"[{WITHOUT_BLANKS}]|{_LETTER_WITH_VOWELS}(?:[{_LETTERS}](?![{_BEHIND}]))*|[{_BEFORE}{_BEHIND}]+"
)
_WORD_WITHOUT_BLANKS = re.compile(WORD_WITHOUT_BLANKS)


def split_at_blanks(text: str) -> list[str]:
    """Splits a text at blanks, and around what counts as a word where there are none: each character of
    Chinese or Japanese, each syllable of Thai. Punctuation isn't split off.
    """
    return (text if text.isascii() else _WORD_WITHOUT_BLANKS.sub(r" \g<0> ", text)).split()
