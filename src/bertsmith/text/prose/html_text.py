"""Extracts title and text of an HTML page in chunks, so that a page of any size takes bounded memory."""

import re
from collections.abc import Iterable, Iterator
from html.parser import HTMLParser

HTML_ENDINGS = (".html", ".htm", ".xhtml")
# Of video and the like a browser shows what is within only if it can't show the thing itself. A formula's
# annotation is its source in TeX.
_HIDDEN_TAGS = {
    *("script", "style", "template", "noscript", "svg", "datalist", "annotation", "annotation-xml"),
    *("audio", "canvas", "iframe", "noframes", "video"),
}
# A paragraph ends with a blank line: passages are cut there first.
_PARAGRAPH_TAGS = {
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
    *("address", "caption", "center", "details", "dialog", "dir", "fieldset", "figcaption", "hgroup"),
    *("legend", "menu", "search", "summary"),
}
_LINE_TAGS = {"br", "li", "tr", "dt", "dd", "hr", "optgroup", "option"}
_CELL_TAGS = {"td", "th"}


class HtmlText(HTMLParser):
    """A parser that is fed a page in chunks; `take` returns the text since its last call.

    White space is folded as in a browser, except in <pre>. Scripts and styles are left out; the title is in
    `title`. As in a browser, tags that are never closed are no error.
    """

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.title = ""
        self._title_text = ""  # as it is on the page; it may come in several chunks
        self._text: list[str] = []
        self._hidden_depth = 0
        self._pre_depth = 0
        self._in_title = False

    def take(self) -> str:
        """Returns the text that was extracted since the last call."""
        text = "".join(self._text)
        self._text = []
        return text

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Breaks the line or the paragraph where a browser does; called by the parser."""
        self._hidden_depth += tag in _HIDDEN_TAGS
        self._pre_depth += tag == "pre"
        self._in_title = tag == "title" and not self.title and not self._hidden_depth  # <svg> has titles, too
        self._break(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Breaks the line at <br/> and the like. <script/> hides nothing: no end tag would follow."""
        self._break(tag)

    def handle_endtag(self, tag: str) -> None:
        """Ends hidden and preformatted text, the title, or a paragraph; called by the parser."""
        self._hidden_depth = max(0, self._hidden_depth - (tag in _HIDDEN_TAGS))
        self._pre_depth = max(0, self._pre_depth - (tag == "pre"))
        self._in_title = self._in_title and tag != "title"
        if tag not in _LINE_TAGS | _CELL_TAGS:
            self._break(tag)

    def handle_data(self, data: str) -> None:
        """Adds text to the title or to the page's text; called by the parser."""
        data = data.replace("\u00ad", "")  # a soft hyphen: not seen within a line, and it would end a word
        if self._in_title:
            self._title_text += data
            self.title = " ".join(self._title_text.split())
        elif not self._hidden_depth:
            self._text.append(data if self._pre_depth else re.sub(r"\s+", " ", data))

    def _break(self, tag: str) -> None:
        if self._in_title or self._hidden_depth:
            return
        if tag in _PARAGRAPH_TAGS:
            self._text.append("\n\n")
        elif tag in _LINE_TAGS:
            self._text.append("\n")
        elif tag in _CELL_TAGS:
            self._text.append("\t")


def extract_text(parser: HtmlText, chunks: Iterable[str]) -> Iterator[str]:
    """Yields the text of a page that comes in chunks; `parser` then has its title."""
    for chunk in chunks:
        parser.feed(chunk)
        yield parser.take()
    parser.close()
    yield parser.take()
