"""Plain text → paragraphs: which line ends are breaks, and which only fold a long line."""

import re
from collections.abc import Iterator

# Wider than any editor folds at, narrower than a paragraph written on one line.
WIDEST_FOLD = 120
_LIST_ITEM = re.compile(r"\s*(?:[-*•+]|\(?\d{1,3}[.)]|\(?[a-zA-Z][.)])\s+\S")


def paragraphs(text: str) -> Iterator[str]:
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


def each_line(text: str) -> Iterator[str]:
    """Every line that is not blank is a paragraph (WikiExtractor writes so)."""
    return (line.strip() for line in text.split("\n") if line.strip())
