"""Cleans a document's text, and splits it into paragraphs and sentences. Read `read_sentences` first.

The document's layout says what line ends mean: they fold a long line, end a paragraph, or end a sentence.
Cleaning repairs what extraction and wrong encodings left behind, and doesn't change what the text says. Each
of its steps is preceded by a cheap check (is there a '<'? is it ASCII?), because nearly all text needs none
of them: cleaning Wikipedia takes a few milliseconds per megabyte.
"""

import html
import re
import unicodedata
from collections.abc import Iterator
from itertools import chain, pairwise
from typing import Literal, NamedTuple

from bertsmith.text.words import WITHOUT_BLANKS

# folded: plain text with folded lines, which are joined; the others: a paragraph, or a sentence, per line.
LineLayout = Literal["folded", "paragraph-lines", "sentence-lines"]

# Columns: wider than the lines of any editor that folds them, narrower than a paragraph on one line.
WIDEST_FOLD = 120
# Two columns wide: Chinese, kana and Hangul, and their punctuation.
_WIDE = re.compile(f"[{WITHOUT_BLANKS}\u3000-\u303f\uac00-\ud7a3\uff00-\uff60]")
_LINE_END_IN_A_RUN = re.compile(
    f"(?<=[{WITHOUT_BLANKS}\u3000-\u303f\uff00-\uff60])\n(?=[{WITHOUT_BLANKS}\u3000-\u303f\uff00-\uff60])"
)
_LIST_ITEM = re.compile(r"\s*(?:[-*•+]|\(?\d{1,3}[.)]|\(?[a-zA-Z][.)])\s+\S")
_LONG, _LONGEST = 1_000, 5_000  # characters: see `_split_long_paragraph`
_OPENING, _CLOSING = "“‘「『（《〈【〔［(", "”’」』）》〉】〕］)"
_ENDS_AND_QUOTES = re.compile(
    f'["{re.escape(_OPENING + _CLOSING)}]|(?<=[{WITHOUT_BLANKS}])[。！？](?=[{WITHOUT_BLANKS}])'
)

# Ends of sentences that sentencex doesn't know: Khmer's and Tibetan's marks, with what may follow them.
_OTHER_ENDS = re.compile(
    f'(?<=[\u17d4\u17d5\u17da\u0f0d\u0f0e])(?=\\s*[^\\s\u17d4-\u17da\u0f0d-\u0f14"»{_CLOSING}])'
)
# Thai and Lao mark no end: a blank between two of their letters ends a sentence or a part of one. Of blanks
# behind 60 characters and more, 55 % end a sentence of the Parallel Universal Dependencies, and they are 61 %
# of the ends; of all blanks 38 %.
_BLANK_IN_THAI = re.compile("(?<=[\u0e01-\u0e4e\u0e81-\u0ece]) (?=[\u0e01-\u0e4e\u0e81-\u0ece])")
_SHORTEST_IN_THAI = 60

# Japanese, which hiragana tell: a sentence ends at 。！？ outside of brackets. A fullwidth full stop may also
# stand in a number or an address.
_HIRAGANA = re.compile("[\u3041-\u3096]")
_BRACKETS = dict(zip(_OPENING + "｢", _CLOSING + "｣", strict=True)) | {'"': '"'}
_DEEPEST = 20  # brackets in brackets
_BRACKET = re.compile(f"[{re.escape(''.join({*_BRACKETS, *_BRACKETS.values()}))}]")
_END_IN_JAPANESE = re.compile(
    "(?:[。｡！？‼⁇⁈⁉]|．(?![0-9A-Za-z０-９Ａ-Ｚａ-ｚ]))+"
    f"[{re.escape(_CLOSING)}｣]*(?![{re.escape(_CLOSING)}｣、，､。｡！？‼⁇⁈⁉．])"
)

# sentencex finds the end of a Chinese sentence before Chinese characters and capitals.
_END_IN_CHINESE = re.compile("(?<=[。！？])(?=[0-9A-Za-z０-９Ａ-Ｚａ-ｚ])")

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
# C0 and C1 controls except tab and newline; soft hyphen, marks of direction and byte order, lone surrogates.
# Zero-width joiners stay: Persian, the languages of India and emoji need them.
_CONTROL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u200b\u200e\u200f\u202a-\u202e\u2060\ufeff\ufff9-\ufffb\ud800-\udfff]"
)
# What UTF-8 looks like if it was decoded as Latin-1 or Windows-1252: a lead byte, then a continuation byte.
_MOJIBAKE = re.compile("[\u00c2-\u00f4][\x80-\xbf€‚ƒ„…†‡ˆ‰Š‹ŒŽ‘’“”•–—˜™š›œžŸ]")


class RawDocument(NamedTuple):
    """A document as it was read; `source` is the index of its source, `layout` what the text's lines are."""

    source: int
    id: str
    text: str
    layout: LineLayout


def read_sentences(document: RawDocument, language: str) -> list[str]:
    """The document's sentences, cleaned, with single spaces, none empty. The end of a paragraph ends a
    sentence.
    """
    return [
        sentence
        for paragraph in clean_paragraphs(document)
        for sentence in split_paragraph(paragraph, document.layout, language)
    ]


def clean_paragraphs(document: RawDocument) -> Iterator[str]:
    """Yields the document's paragraphs, cleaned, without line ends; or its sentences, if each has a line."""
    text = clean_text(document.text)
    if document.layout == "folded":
        return split_paragraphs(text)
    return (line.strip() for line in text.split("\n") if line.strip())


def split_paragraph(paragraph: str, layout: LineLayout, language: str) -> list[str]:
    """The sentences of a paragraph that `clean_paragraphs` yielded."""
    return [_fold_blanks(paragraph)] if layout == "sentence-lines" else split_sentences(paragraph, language)


def split_sentences(paragraph: str, language: str) -> list[str]:
    """The sentences of a paragraph, by sentencex's rules for the language, which know its abbreviations, and
    by those of scripts that sentencex doesn't know.
    """
    # White space is folded first: sentencex breaks at two line ends in a row, and every space costs time.
    text = _fold_blanks(paragraph)
    sentences = (_split_japanese if _HIRAGANA.search(text) else _segment)(text, language)
    divided = sentences if text.isascii() else chain.from_iterable(map(_split_by_other_rules, sentences))
    return [stripped for sentence in divided if (stripped := sentence.strip())]


def _segment(text: str, language: str) -> list[str]:
    """The sentences by sentencex's rules. Joined, they are the text."""
    from sentencex import segment  # here, because labelled rows are read where it isn't installed

    pieces = (piece for part in _split_long_paragraph(text) for piece in segment(language, part))
    sentences: list[str] = []
    continues = False
    for piece in pieces:
        if continues:
            sentences[-1] += piece
        else:
            sentences.append(piece)
        # sentencex also breaks `torch.Tensor` and `Node.JS`, where no space follows the full stop.
        continues = piece.endswith(".")
    return sentences


def _split_japanese(text: str, language: str) -> list[str]:
    """The sentences of a text with Japanese. sentencex finds those that end in ".", "!" or "?" between them,
    but it cuts behind 「Hello, world!」 in mid-sentence and takes backticks for quotes.
    """
    inside = _find_bracketed(text)
    sentences, start = list[str](), 0
    ends = (match.end() for match in _END_IN_JAPANESE.finditer(text) if not inside[match.start()])
    for end in (*ends, len(text)):
        if start < end:
            sentence, begin = text[start:end], start
            for piece in _segment(sentence, language) if re.search("[.!?].", sentence) else ():
                cut = begin + len(piece)
                behind_bracket = text[begin:cut].rstrip()[-1:] in _BRACKETS.values()
                goes_on = behind_bracket and _WIDE.match(text[cut:end].lstrip())
                if cut < end and not inside[cut - 1] and not goes_on:
                    sentences.append(text[start:cut])
                    start = cut
                begin = cut
            sentences.append(text[start:end])
            start = end
    return sentences


def _find_bracketed(text: str) -> bytearray:
    """For each character, whether a bracket or quote is open behind it. What is not closed within `_LONGEST`
    characters isn't one.
    """
    inside, opened = bytearray(len(text) + 1), list[tuple[str, int]]()
    for bracket in _BRACKET.finditer(text):
        mark, place = bracket[0], bracket.start()
        depth = next((depth for depth in range(len(opened) - 1, -1, -1) if opened[depth][0] == mark), None)
        if depth is not None:
            first = opened[depth][1]
            if place - first <= _LONGEST:
                inside[first:place] = b"\1" * (place - first)
            del opened[depth:]
        elif mark in _BRACKETS:
            opened.append((_BRACKETS[mark], place))
            del opened[:-_DEEPEST]
    return inside


def _split_by_other_rules(sentence: str) -> Iterator[str]:
    """Yields the parts of what sentencex took for a sentence of Chinese, Khmer, Tibetan, Thai or Lao."""
    ends = [end.start() for end in _END_IN_CHINESE.finditer(sentence)]
    inside = _find_bracketed(sentence) if ends else b""
    cuts = [0, *(end for end in ends if not inside[end]), len(sentence)]
    chinese = [sentence[start:end] for start, end in pairwise(cuts)]
    for part in chain.from_iterable(map(_OTHER_ENDS.split, chinese)):
        start = 0
        for blank in _BLANK_IN_THAI.finditer(part):
            if blank.start() - start >= _SHORTEST_IN_THAI:
                yield part[start : blank.start()]
                start = blank.end()
        yield part[start:]


def _split_long_paragraph(paragraph: str) -> Iterator[str]:
    """Yields the paragraph, or parts of a long one in Chinese or Japanese, for which sentencex takes
    quadratic time.

    A part ends where a sentence does, and outside of quotes and brackets if these close within `_LONGEST`
    characters: later, their end is missing.
    """
    start, depth, quoted = 0, 0, False
    for mark in _ENDS_AND_QUOTES.finditer(paragraph) if len(paragraph) > _LONG else ():
        if mark[0] == '"':
            quoted = not quoted
        elif mark[0] in _OPENING:
            depth += 1
        elif mark[0] in _CLOSING:
            depth = max(0, depth - 1)
        elif mark.end() - start >= (_LONGEST if depth or quoted else _LONG):
            yield paragraph[start : mark.end()]
            start, depth, quoted = mark.end(), 0, False
    yield paragraph[start:]


def _fold_blanks(text: str) -> str:
    return " ".join(text.split())


def split_paragraphs(text: str) -> Iterator[str]:
    """Yields the paragraphs of plain text, without line ends.

    A blank line always ends a paragraph. If no line is longer than 120 characters, or 60 Chinese ones, the
    lines are taken as folded: a line end is a space, between Chinese or Japanese characters nothing, unless
    the line is shorter than half the widest (a heading, a list item, the last line of a paragraph) or the
    next line begins a list item. In wider text, each line is a paragraph.
    """
    lines = text.split("\n")
    widths = [len(line) if line.isascii() else len(line) + len(_WIDE.findall(line)) for line in lines]
    widest = max(widths)
    if widest > WIDEST_FOLD:
        yield from (line.strip() for line in lines if line.strip())
        return
    folded: list[str] = []
    last_width = 0
    for line, width in zip(lines, widths, strict=True):
        if folded and (not line.strip() or last_width < widest / 2 or _LIST_ITEM.match(line)):
            yield _join_lines(folded)
            folded = []
        if line.strip():
            folded.append(line.strip())
            last_width = width
    if folded:
        yield _join_lines(folded)


def _join_lines(lines: list[str]) -> str:
    return _LINE_END_IN_A_RUN.sub("", "\n".join(lines)).replace("\n", " ")


def clean_text(text: str) -> str:
    """Repairs mojibake, removes leftovers of markup and control characters, and composes to NFC. Newlines
    stay.
    """
    if "<" in text:
        text = _TAG.sub(" ", _COMMENT.sub(" ", text))
    if "&" in text:
        text = _ENTITY.sub(lambda entity: html.unescape(entity.group()), text)
    if "__" in text:
        text = _MAGIC_WORD.sub(" ", text)
    if not text.isascii() and _MOJIBAKE.search(text):
        text = "\n".join(map(_repair_mojibake, text.split("\n")))
    if not text.isprintable():
        # Characters that separate words become a space; invisible ones are removed.
        text = _CONTROL.sub(lambda match: " " if match[0] in "\x0b\x0c\r\x1c\x1d\x1e\x1f\x85" else "", text)
    if not text.isascii():
        text = unicodedata.normalize("NFC", text)
    return text


def _repair_mojibake(line: str) -> str:
    # Line by line, because ftfy judges its whole input: one bad line must not change the others.
    if not _MOJIBAKE.search(line):
        return line
    import ftfy  # here, because labelled rows are read where it isn't installed

    return ftfy.fix_encoding(line)
