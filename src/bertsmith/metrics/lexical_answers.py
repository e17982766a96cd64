"""Answers by words alone: what question answering must beat.

The sentence that shares the rarest words with the question is found as by the sliding window of Richardson et
al. (2013, "MCTest"): each shared word counts log(1 + 1 / how often the passage has it). There they choose
among given answers; here the answer is a run of words of that sentence: numbers where the question asks for
one, else names, else whatever lies between the question's own words and function words. English only in its
word lists; elsewhere it falls back to runs between the question's words.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from math import log

from bertsmith.metrics.baselines import Baseline
from bertsmith.text.words import WORD

_FUNCTION_WORDS = """a about after all also an and any are as at be been before being between both but by can
    could did do does during each for from had has have he her him his how if in into is it its many may more
    most much no not of on only or other over s she some such than that the their them then there these they
    this those through to under until up was were what when where which while who whom whose why will with
    would"""
FUNCTION_WORDS = frozenset(_FUNCTION_WORDS.split())
ASKS_FOR_A_NUMBER = re.compile(
    r"\bwhen\b|\bhow (many|much|old|long|far|tall|large|big|often)\b"
    r"|\b(what|which) (\w+ )?(year|date|day|month|percentage|percent|number|century|decade)\b",
    re.IGNORECASE,
)
SENTENCE = re.compile(r"[^\s].*?(?:[.!?](?=\s)|\Z|\n)", re.DOTALL)
NUMBER = re.compile(r"\$?\d[\d.,:/–-]*(?<![.,])%?")
# "the Norman conquest of England" is no name, "University of Notre Dame" is one.
NAME = re.compile(r"[A-Z][\w'’.-]*(?:\s+(?:of|the|and|de|von|&)(?:\s+the)?(?=\s+[A-Z])|\s+[A-Z][\w'’.-]*)*")

Span = tuple[int, int]  # characters of the passage


def lexical_answers(questions: Sequence[tuple[str, str]]) -> Baseline[list[str]]:
    """An answer for each (question, passage), cut from the passage as it stands there: the whole
    sentence where it holds nothing new, "" for an empty passage.
    """
    answers = []
    for question, passage in questions:
        start, end = lexical_answer(question, passage)
        answers.append(passage[start:end])
    return Baseline("sentence with most shared words", answers)


def lexical_answer(question: str, passage: str) -> Span:
    """(start, end) of the answer in characters of the passage."""
    asked = {word for word in _words(question) if word not in FUNCTION_WORDS}
    start, end = _best_sentence(asked, passage)
    kinds: tuple[Callable[[str], Iterable[Span]], ...] = (_names, lambda text: _runs(text, asked))
    if ASKS_FOR_A_NUMBER.search(question):
        kinds = (_numbers, *kinds)
    sentence = passage[start:end]
    for kind in kinds:
        new = [span for span in kind(sentence) if not asked & set(_words(sentence[slice(*span)]))]
        if new:
            first, last = max(new, key=lambda span: (len(_words(sentence[slice(*span)])), -span[0]))
            return start + first, start + last
    return start, end


def _best_sentence(asked: set[str], passage: str) -> Span:
    counts = Counter(_words(passage))
    best, best_score = (0, 0), -1.0
    for match in SENTENCE.finditer(passage):
        shared = asked & set(_words(match[0]))
        score = sum(log(1 + 1 / counts[word]) for word in sorted(shared))
        if score > best_score:
            best, best_score = match.span(), score
    return best


def _words(text: str) -> list[str]:
    return [word.casefold() for word in WORD.findall(text)]


def _numbers(sentence: str) -> Iterable[Span]:
    return (match.span() for match in NUMBER.finditer(sentence))


def _names(sentence: str) -> Iterable[Span]:
    """Runs of capitalised words; a function word that merely opens the sentence is none."""
    for match in NAME.finditer(sentence):
        if match[0].casefold() not in FUNCTION_WORDS:
            yield match.start(), match.start() + len(match[0].rstrip(".'’-"))


def _runs(sentence: str, asked: set[str]) -> Iterable[Span]:
    """Stretches without function words, words of the question, and punctuation."""
    start, end = -1, -1
    for match in WORD.finditer(sentence):
        word = match[0].casefold()
        ends = word in FUNCTION_WORDS or word in asked
        if start >= 0 and (ends or sentence[end : match.start()].strip(" -'’")):
            yield start, end
            start = -1
        if not ends:
            start, end = (match.start() if start < 0 else start), match.end()
    if start >= 0:
        yield start, end
