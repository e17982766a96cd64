"""Turns the lines of plain text into documents: a file each, a block each, or WikiExtractor's articles.

Most readers yield (id within the file, text). A document of more than about `LONGEST` characters comes in
parts, so that a file of any size is read in bounded memory.
"""

import html
import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

LONGEST = 1_000_000  # characters; a novel has half of that
DOC_OPENING = re.compile(r'<doc\s+id="([^"]*)"(?:[^>]*?\stitle="([^"]*)")?[^>]*>')
_EMPTY_PARENTHESES = re.compile(r" ?\([\s,;:]*\)")
_LEADING_SEPARATOR = re.compile(r"\(\s*[;,]\s*")

Text = tuple[str, str]


class Article(NamedTuple):
    """One article of WikiExtractor's output, under Wikipedia's id."""

    id: str
    title: str
    text: str


def read_one_document(lines: Iterable[str]) -> Iterator[Text]:
    """Yields the whole file as one document, in parts numbered from 0."""
    for part, text in enumerate(_join_in_parts(lines)):
        yield str(part), text


def read_blocks(lines: Iterable[str]) -> Iterator[Text]:
    """Yields the blocks of lines between blank lines, numbered from 0; a long one comes as several."""
    number, block, size = 0, list[str](), 0
    for line in lines:
        blank = not line.strip()
        if block and (blank or size > LONGEST):
            yield str(number), "\n".join(block)
            number, block, size = number + 1, [], 0
        if not blank:
            block.append(line)
            size += len(line) + 1
    if block:
        yield str(number), "\n".join(block)


def read_wikiextractor(lines: Iterable[str]) -> Iterator[Text]:
    """Yields the articles of `read_articles` without their titles, as (id, text).

    An id that occurred before in the file is followed by the article's number: "12 (345)".
    """
    seen_ids = set[str]()
    for number, article in enumerate(read_articles(lines), start=1):
        id = article.id
        while id in seen_ids:
            id = f"{id} ({number})"
        seen_ids.add(id)
        yield id, article.text


def read_articles(lines: Iterable[str]) -> Iterator[Article]:
    """Yields the articles between <doc …> and </doc>, without the line that repeats the title.

    An article without a body is yielded with an empty text, so that it is counted. Lines outside of articles
    are dropped.
    """
    in_article, id, title, body = False, "", "", list[str]()
    for line in lines:
        if line.startswith("<doc ") and (opening := DOC_OPENING.match(line)):
            if in_article:  # the </doc> before it is missing
                yield from _make_article(id, title, body)
            in_article, id, title, body = True, opening[1], html.unescape(opening[2] or ""), []
        elif not in_article:
            continue
        elif line.startswith("</doc>"):
            yield from _make_article(id, title, body)
            in_article = False
        else:
            body.append(line)
    if in_article:  # the file was cut within its last article
        yield from _make_article(id, title, body)


def _make_article(id: str, title: str, body: list[str]) -> Iterator[Article]:
    """The article, in parts if it is long: the first has its id, the others "id.1", "id.2" …"""
    first_line = next((index for index, line in enumerate(body) if line.strip()), None)
    if first_line is not None and body[first_line].strip() == title.strip():
        body = body[first_line + 1 :]
    for part, text in enumerate(_join_in_parts(body)):
        # The extractor drops pronunciations and dates in templates, and leaves "(; born 1942)" and "()".
        text = _LEADING_SEPARATOR.sub("(", _EMPTY_PARENTHESES.sub("", text))
        yield Article(f"{id}.{part}" if part else id, title.strip(), text)


def _join_in_parts(lines: Iterable[str]) -> Iterator[str]:
    """Joins lines to texts of about `LONGEST` characters at most; at least one, though it be empty."""
    part, size = list[str](), 0
    for line in lines:
        if size > LONGEST:
            yield "\n".join(part)
            part, size = [], 0
        part.append(line)
        size += len(line) + 1
    yield "\n".join(part)
