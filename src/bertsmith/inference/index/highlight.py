"""Which words of a passage are words of the query: equal but for case and accents, and in English endings.

Of Chinese and Japanese, which have no blanks between words, two characters in a row that the query has too.
"""

import re
import unicodedata

from bertsmith.text.words import WITHOUT_BLANKS, WORD, has_blanks, word_pattern

_ENDINGS = re.compile(r"(?:ing|edly|ed|ies|es|ly|s|y|e)$")
# English ones. They stand in nearly every passage, and full-text search leaves them out as well.
_STOP_WORDS = frozenset(
    """
    a an and are as at be but by can did do does for from had has have how i if in into is it its my no not of
    on or our so such that the their then there these they this to was we were what when where which who why
    will with would you your
    """.split()  # noqa: SIM905
)
# Of a language without blanks: Chinese or Japanese up to the next sign, or a word of another script.
_RUN = re.compile(f"([{WITHOUT_BLANKS}]+)|" + word_pattern(f"[^\\W{WITHOUT_BLANKS}]"))


def matching_spans(passage: str, query: str, language: str = "en") -> list[tuple[int, int]]:
    """(start, end) in characters of `passage`, in order, of every word that the query has too.

    A query of stop words alone is looked for as it is. Stop words and endings are known of English only.
    """
    if not has_blanks(language):
        return _solid_spans(passage, query)
    is_english = language.partition("-")[0] == "en"
    form = _english if is_english else _folded
    ignored = _STOP_WORDS if is_english else frozenset()
    words = WORD.findall(query)
    wanted = {form(word) for word in words if _folded(word) not in ignored} or set(map(form, words))
    return [found.span() for found in WORD.finditer(passage) if form(found.group()) in wanted]


def _solid_spans(passage: str, query: str) -> list[tuple[int, int]]:
    """Words as elsewhere; of a run, all that lies in pairs of characters of the query's runs. A character
    that stands alone in the query is looked for alone.
    """
    words, pieces = set[str](), set[str]()
    for found in _RUN.finditer(query):
        run = found.group()
        if found[1] is None:
            words.add(_folded(run))
        else:
            pieces.update(run[place : place + 2] for place in range(max(1, len(run) - 1)))
    spans = list[tuple[int, int]]()
    for found in _RUN.finditer(passage):
        if found[1] is None:
            spans += [found.span()] if _folded(found.group()) in words else []
            continue
        for place in range(*found.span()):
            ends = (min(place + 2, found.end()), place + 1)
            end = next((end for end in ends if passage[place:end] in pieces), 0)
            if end and spans and place < spans[-1][1]:
                spans[-1] = spans[-1][0], max(end, spans[-1][1])
            elif end:
                spans.append((place, end))
    return spans


def _folded(word: str) -> str:
    decomposed = unicodedata.normalize("NFKD", word)
    return "".join(letter for letter in decomposed if not unicodedata.combining(letter)).casefold()


def _english(word: str) -> str:
    """Good enough to mark words with, cheaper than a stemmer: 'indexes', 'indexed' and 'index' are one."""
    word = _folded(word)
    stem = _ENDINGS.sub("", word)
    return stem if len(stem) >= 3 else word
