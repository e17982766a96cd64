"""A document's text → clean paragraphs → sentences.

How line ends are meant depends on the layout that the text was found in: they fold a long line, or end a
paragraph, or a sentence. Cleaning repairs what extraction and wrong encodings leave, without touching what
the text says. Each of its steps first asks a question that costs next to nothing (is there a '<'? is it
ASCII?), because nearly all text needs none of them: on Wikipedia all of it costs a few milliseconds a
megabyte.
"""

import html
import re
import unicodedata
from collections.abc import Iterator
from typing import Literal, NamedTuple

from bertsmith.text.words import WITHOUT_BLANKS

# folded: plain text, lines joined where they were folded; the others: a paragraph, a sentence on each line
LineLayout = Literal["folded", "paragraph-lines", "sentence-lines"]

# Wider than any editor folds at, narrower than a paragraph written on one line.
WIDEST_FOLD = 120
_LIST_ITEM = re.compile(r"\s*(?:[-*•+]|\(?\d{1,3}[.)]|\(?[a-zA-Z][.)])\s+\S")
_LONG, _LONGEST = 1_000, 5_000  # characters
_OPENING, _CLOSING = "“‘「『（《〈【〔［(", "”’」』）》〉】〕］)"
_ENDS_AND_QUOTES = re.compile(
    f'["{re.escape(_OPENING + _CLOSING)}]|(?<=[{WITHOUT_BLANKS}])[。！？](?=[{WITHOUT_BLANKS}])'
)

# Tags that stray into extracted text. Others stay: "a < b and c > d" and List<int> are text.
_TAG = re.compile(
    r"</?(?:br|p|div|span|ref|references|nowiki|sup|sub|small|big|center|blockquote|font|tt|code|pre|gallery|"
    r"table|tr|td|th|ul|ol|li|dl|dt|dd|hr|i|b|u|s|em|strong|poem|math|onlyinclude|noinclude|includeonly)"
    r"(?:\s[^<>]{0,500})?/?>",
    re.IGNORECASE,
)
_COMMENT = re.compile(r"<!--.{0,10000}?-->", re.DOTALL)
_ENTITY = re.compile(r"&(?:#\d{2,7}|#x[0-9a-fA-F]{2,6}|[A-Za-z]{2,31});")
_MAGIC_WORD = re.compile(
    r"__(?:NO|FORCE)?(?:TOC|EDITSECTION|NEWSECTIONLINK|GALLERY|CONTENTCONVERT|TITLECONVERT|INDEX|HIDDENCAT|"
    r"STATICREDIRECT|DISAMBIG|EXPECTUNUSEDCATEGORY|START|END|CC|TC)__"
)
# C0 and C1 controls but tab and newline; soft hyphen, marks of direction and byte order, lone surrogates.
# Zero-width joiners stay: Persian, the languages of India and emoji need them.
_CONTROL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u200b\u200e\u200f\u202a-\u202e\u2060\ufeff\ufff9-\ufffb\ud800-\udfff]"
)
# What UTF-8 looks like when it was read as Latin-1 or Windows-1252: a lead byte, then a continuation byte.
_MOJIBAKE = re.compile("[\u00c2-\u00f4][\x80-\xbf€‚ƒ„…†‡ˆ‰Š‹ŒŽ‘’“”•–—˜™š›œžŸ]")


class RawDocument(NamedTuple):
    """A document as read: the index of its source, its id, its text, how the lines of the text are meant."""

    source: int
    id: str
    text: str
    layout: LineLayout


def read_sentences(document: RawDocument, language: str) -> list[str]:
    """Clean sentences, white space folded to single spaces, none empty. A paragraph's end ends a sentence."""
    return [
        sentence
        for paragraph in clean_paragraphs(document)
        for sentence in split_paragraph(paragraph, document.layout, language)
    ]


def clean_paragraphs(document: RawDocument) -> Iterator[str]:
    """Its paragraphs, without line ends; where a sentence is on each line, these."""
    text = clean_text(document.text)
    if document.layout == "folded":
        return split_paragraphs(text)
    return (line.strip() for line in text.split("\n") if line.strip())


def split_paragraph(paragraph: str, layout: LineLayout, language: str) -> list[str]:
    """The sentences of one of a document's paragraphs."""
    return [_fold_blanks(paragraph)] if layout == "sentence-lines" else split_sentences(paragraph, language)


def split_sentences(paragraph: str, language: str) -> list[str]:
    """The sentences of one paragraph, by sentencex's rules for the language, which know its abbreviations."""
    from sentencex import segment  # here, for labelled rows are read where it isn't installed

    # White space goes first: to sentencex two line ends in a row are a break, and every space costs time.
    pieces = (
        piece for part in _split_long_paragraph(_fold_blanks(paragraph)) for piece in segment(language, part)
    )
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


def _split_long_paragraph(paragraph: str) -> Iterator[str]:
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


def _fold_blanks(text: str) -> str:
    return " ".join(text.split())


def split_paragraphs(text: str) -> Iterator[str]:
    """Paragraphs of plain text, each without line ends.

    A blank line always ends a paragraph. Where no line is longer than 120 characters the text was folded by
    hand, and a line end is a space unless the line is shorter than half the widest (a heading, a list item,
    the last line of a paragraph) or the next one begins a list item. In wider text each line is a paragraph.
    """
    lines = text.split("\n")
    widest = max(map(len, lines))
    if widest > WIDEST_FOLD:
        yield from (line.strip() for line in lines if line.strip())
        return
    folded: list[str] = []
    for line in lines:
        if folded and (not line.strip() or len(folded[-1]) < widest / 2 or _LIST_ITEM.match(line)):
            yield " ".join(map(str.strip, folded))
            folded = []
        if line.strip():
            folded.append(line)
    if folded:
        yield " ".join(map(str.strip, folded))


def clean_text(text: str) -> str:
    """Undoes mojibake, drops markup leftovers and control characters, composes to NFC. Newlines stay."""
    if "<" in text:
        text = _TAG.sub(" ", _COMMENT.sub(" ", text))
    if "&" in text:
        text = _ENTITY.sub(lambda entity: html.unescape(entity.group()), text)
    if "__" in text:
        text = _MAGIC_WORD.sub(" ", text)
    if not text.isascii() and _MOJIBAKE.search(text):
        text = "\n".join(map(_repair_mojibake, text.split("\n")))
    if not text.isprintable():
        # Those that stand for a break between words become a space; the invisible ones vanish.
        text = _CONTROL.sub(lambda found: " " if found[0] in "\x0b\x0c\r\x1c\x1d\x1e\x1f\x85" else "", text)
    if not text.isascii():
        text = unicodedata.normalize("NFC", text)
    return text


def _repair_mojibake(line: str) -> str:
    # By line, because ftfy weighs its evidence over all it is given: one bad line must not condemn the rest.
    if not _MOJIBAKE.search(line):
        return line
    import ftfy  # here, for labelled rows are read where it isn't installed

    return ftfy.fix_encoding(line)
