"""A raw document's text → its sentences, by the layout the text was found in."""

import re
from collections.abc import Callable, Iterator
from typing import Literal, NamedTuple

from bertsmith.text.prose.cleaning import clean
from bertsmith.text.prose.paragraphs import each_line, paragraphs
from bertsmith.text.words import WITHOUT_BLANKS

# folded: plain text, lines joined where they were folded; the others: a paragraph, a sentence on each line
LineLayout = Literal["folded", "paragraph-lines", "sentence-lines"]


class RawDocument(NamedTuple):
    """A document as read: the index of its source, its id, its text, how the lines of the text are meant."""

    source: int
    id: str
    text: str
    layout: LineLayout


_LONG, _LONGEST = 1_000, 5_000  # characters
_OPENING, _CLOSING = "“‘「『（《〈【〔［(", "”’」』）》〉】〕］)"
_ENDS_AND_QUOTES = re.compile(
    f'["{re.escape(_OPENING + _CLOSING)}]|(?<=[{WITHOUT_BLANKS}])[。！？](?=[{WITHOUT_BLANKS}])'
)
_PARAGRAPHS: dict[LineLayout, Callable[[str], Iterator[str]]] = {
    "folded": paragraphs,
    "paragraph-lines": each_line,
    "sentence-lines": each_line,
}


def sentences(document: RawDocument, language: str) -> list[str]:
    """Clean sentences, white space folded to single spaces, none empty. A paragraph's end ends a sentence."""
    return [
        sentence
        for paragraph in clean_paragraphs(document)
        for sentence in sentences_of(paragraph, document.layout, language)
    ]


def clean_paragraphs(document: RawDocument) -> Iterator[str]:
    """Its paragraphs, without line ends; where a sentence is on each line, these."""
    return _PARAGRAPHS[document.layout](clean(document.text))


def sentences_of(paragraph: str, layout: LineLayout, language: str) -> list[str]:
    """The sentences of one of a document's paragraphs."""
    return [_single_spaced(paragraph)] if layout == "sentence-lines" else split(paragraph, language)


def split(paragraph: str, language: str) -> list[str]:
    """The sentences of one paragraph, by sentencex's rules for the language, which know its abbreviations."""
    from sentencex import segment  # here, for labelled rows are read where it isn't installed

    # White space goes first: to sentencex two line ends in a row are a break, and every space costs time.
    pieces = (piece for part in _parts(_single_spaced(paragraph)) for piece in segment(language, part))
    found: list[str] = []
    inside = False
    for piece in pieces:
        if inside:
            found[-1] += piece
        else:
            found.append(piece)
        # It also breaks `torch.Tensor` and `Node.JS`, where no space follows the full stop.
        inside = piece.endswith(".")
    return [stripped for sentence in found if (stripped := sentence.strip())]


def _parts(paragraph: str) -> Iterator[str]:
    """The paragraph, or where it is a long one of Chinese or Japanese, for which sentencex takes quadratic
    time, parts that end as sentences do: between two characters, and outside of quotes and brackets.
    """
    begins, depth, quoted = 0, 0, False  # a quote that goes on for too long has lost its end
    for found in _ENDS_AND_QUOTES.finditer(paragraph) if len(paragraph) > _LONG else ():
        if found[0] == '"':
            quoted = not quoted
        elif found[0] in _OPENING:
            depth += 1
        elif found[0] in _CLOSING:
            depth = max(0, depth - 1)
        elif found.end() - begins >= (_LONGEST if depth or quoted else _LONG):
            yield paragraph[begins : found.end()]
            begins, depth, quoted = found.end(), 0, False
    yield paragraph[begins:]


def _single_spaced(text: str) -> str:
    return " ".join(text.split())
