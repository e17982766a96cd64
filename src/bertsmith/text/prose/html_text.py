"""HTML → its title and its text, a piece at a time, so that a page of any size takes bounded memory."""

import re
from html.parser import HTMLParser

_UNSEEN = {"script", "style", "template", "noscript", "svg"}
# What a browser begins on a new line. A paragraph's end is a blank line, which passages are cut at first.
_PARAGRAPHS = {
    *(
        "p",
        "div",
        "section",
        "article",
        "header",
        "footer",
        "main",
        "nav",
        "aside",
        "table",
        "ul",
        "ol",
        "dl",
    ),
    *("h1", "h2", "h3", "h4", "h5", "h6", "pre", "blockquote", "figure", "form", "body", "title"),
}
_LINES = {"br", "li", "tr", "dt", "dd", "hr", "option"}
_CELLS = {"td", "th"}


class HtmlText(HTMLParser):
    """Feed it pieces of a page; `take` gives the text that has come together since it was last asked.

    White space is what a browser would show, except in <pre>. Scripts and styles are left out, and the title
    is kept apart. Tags that are never closed are no error, as in a browser.
    """

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.title = ""
        self._text: list[str] = []
        self._unseen = 0
        self._preformatted = 0
        self._in_title = False

    def take(self) -> str:
        """The text since the last call."""
        text = "".join(self._text)
        self._text = []
        return text

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Called by the parser."""
        self._unseen += tag in _UNSEEN
        self._preformatted += tag == "pre"
        self._in_title = tag == "title" and not self.title and not self._unseen  # a picture has one, too
        self._break(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Called by the parser for <br/>; of <script/> and the like nothing follows that would close it."""
        self._break(tag)

    def handle_endtag(self, tag: str) -> None:
        """Called by the parser."""
        self._unseen = max(0, self._unseen - (tag in _UNSEEN))
        self._preformatted = max(0, self._preformatted - (tag == "pre"))
        self._in_title = self._in_title and tag != "title"
        if tag not in _LINES | _CELLS:
            self._break(tag)

    def handle_data(self, data: str) -> None:
        """Called by the parser."""
        if self._in_title:
            self.title = " ".join(f"{self.title} {data}".split())
        elif not self._unseen:
            self._text.append(data if self._preformatted else re.sub(r"\s+", " ", data))

    def _break(self, tag: str) -> None:
        if self._in_title or self._unseen:
            return
        if tag in _PARAGRAPHS:
            self._text.append("\n\n")
        elif tag in _LINES:
            self._text.append("\n")
        elif tag in _CELLS:
            self._text.append("\t")
