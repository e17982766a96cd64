"""Documentation → the English prose in it: lines joined to paragraphs, then judged by the sentence."""

import re
from collections.abc import Iterable, Iterator

from bertsmith.text.prose.markup import indent, running_lines, without_inline_markup
from bertsmith.text.prose.sentences import split

# What stands before a description, which begins a paragraph of its own:
_MARKER = re.compile(
    r"\s*[-*•+]\s+(?=\S)"  # a list item
    r"|\s*\(?\d{1,3}[.)]\s+(?=\S)"
    r"|\s*[:@](?:param|parameter|arg|argument|keyword|returns?|raises?|var|ivar|cvar|yields?)\b[^:]*:\s*"
    # Google's `name (type): description`; only where indented, for at the margin `Note: ...` is a sentence
    r"|\s+[`*]*[\w.]+[`*]*\s*(?:\((?:[^()]|\([^()]*\))*\))?\s*:\s+(?=\S)"
)
_PLAIN_WORD = re.compile(r"[(\"'“‘]*[A-Za-z]+(?:['’\-/][A-Za-z]+)*[\"'”’)]*[.,;:!?]*[\"'”’)]*")
_SMALL_WORDS = re.compile(
    r"\b(?:the|an?|of|to|in|is|are|be|for|and|or|that|this|it|with|as|by|on|if|from|not|which|when|can|will|was|at|"
    r"you|has|have|its)\b",
    re.IGNORECASE,
)
FEWEST_WORDS = 4
PLAIN_SHARE = 0.75


def prose(documentation: str) -> Iterator[str]:
    """Paragraphs of English, each on one line."""
    for paragraph in _paragraphs(running_lines(documentation.expandtabs().split("\n"))):
        sentences = split(without_inline_markup(paragraph), "en")
        kept = " ".join(filter(reads_as_english, sentences))
        if kept:
            yield kept


def reads_as_english(sentence: str) -> bool:
    """Four words or more, three in four of them plain letters, at least one a small word such as 'the'."""
    words = sentence.split()
    if len(words) < FEWEST_WORDS or "\\" in sentence:
        return False
    plain = sum(1 for word in words if _PLAIN_WORD.fullmatch(word))
    return plain >= PLAIN_SHARE * len(words) and _SMALL_WORDS.search(sentence) is not None


def _paragraphs(lines: Iterable[str]) -> Iterator[str]:
    """Lines joined until a blank line, a list item or argument, or a change of indentation."""
    paragraph: list[str] = []
    margin: int | None = None  # None: the line after a marker sets it
    for line in lines:
        marker = _MARKER.match(line)
        if paragraph and (marker or not line.strip() or margin not in (None, indent(line))):
            yield " ".join(paragraph)
            paragraph = []
        if line.strip():
            margin = None if marker else indent(line)
            paragraph.append(line[marker.end() :].strip() if marker else line.strip())
    if paragraph:
        yield " ".join(paragraph)
