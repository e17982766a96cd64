"""Lines → documents: the three conventions of plain text, and WikiExtractor's.

Every reader yields (id within the file, text). A document longer than about `LONGEST` characters comes in
parts, so that a file of any size, of one document or many, takes bounded memory.
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
    """Yields the documents that blank lines separate, numbered from 0."""
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
    """The articles of `read_articles` without their titles, as (id, text).

    An id that stood in the file before gets the article's number behind it: "12 (345)".
    """
    seen_ids = set[str]()
    for number, (article, _, text) in enumerate(read_articles(lines), start=1):
        id = article
        while id in seen_ids:
            id = f"{id} ({number})"
        seen_ids.add(id)
        yield id, text


def read_articles(lines: Iterable[str]) -> Iterator[Article]:
    """Yields the articles between <doc …> and </doc>, without the line that repeats the title.

    An article that is a title alone is yielded with an empty text, so that it is counted. Lines outside of
    articles are dropped.
    """
    inside, article, title, body = False, "", "", list[str]()
    for line in lines:
        if line.startswith("<doc ") and (opening := DOC_OPENING.match(line)):
            if inside:  # the </doc> before it is missing
                yield from _make_article(article, title, body)
            inside, article, title, body = True, opening[1], html.unescape(opening[2] or ""), []
        elif not inside:
            continue
        elif line.startswith("</doc>"):
            yield from _make_article(article, title, body)
            inside = False
        else:
            body.append(line)
    if inside:  # the file was cut within its last article
        yield from _make_article(article, title, body)


def _make_article(article: str, title: str, body: list[str]) -> Iterator[Article]:
    first_line = next((index for index, line in enumerate(body) if line.strip()), None)
    if first_line is not None and body[first_line].strip() == title.strip():
        body = body[first_line + 1 :]
    for part, text in enumerate(_join_in_parts(body)):
        # The extractor drops pronunciations and dates in templates, and leaves "(; born 1942)" and "()".
        text = _LEADING_SEPARATOR.sub("(", _EMPTY_PARENTHESES.sub("", text))
        yield Article(f"{article}.{part}" if part else article, title.strip(), text)


def _join_in_parts(lines: Iterable[str]) -> Iterator[str]:
    """Joins lines to at least one text, each of about `LONGEST` characters at most."""
    part, size = list[str](), 0
    for line in lines:
        if size > LONGEST:
            yield "\n".join(part)
            part, size = [], 0
        part.append(line)
        size += len(line) + 1
    yield "\n".join(part)
