"""Extracts the English prose from documentation in reStructuredText, Markdown, NumPy and Google style.

Code, doctests, tables, directives, headings and lines with types are left out. The remaining lines are joined
to paragraphs without inline markup, and only the sentences that read as English are kept. Read
`extract_prose` first.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence

from bertsmith.text.prose.sentences import split_sentences

Lines = Sequence[str]

_UNDERLINE = re.compile(r"\s*([=\-~^\"'`#*+.:_])\1{2,}\s*$")
_ADMONITION = re.compile(
    r"\s*\.\. (?:note|warning|tip|important|caution|seealso|attention|hint|danger|"
    r"versionadded|versionchanged|deprecated)::\s*(?:v?\d[\w.]*\s*)?"
)
# `name : type`, `name (type):`, or only a name or a type, with its description indented on the next line
_NAME_AND_TYPE = re.compile(r"\s*[`*]*\w+[`*]*(?:, [`*]*[\w.]+[`*]*)*(?:\s*:(?:\s.*)?|\s*\(.*\)\s*:\s*)?$")
# What precedes a description, which begins a paragraph:
_MARKER = re.compile(
    r"\s*[-*•+]\s+(?=\S)"  # a list item
    r"|\s*\(?\d{1,3}[.)]\s+(?=\S)"
    r"|\s*[:@](?:param|parameter|arg|argument|keyword|returns?|raises?|var|ivar|cvar|yields?)\b[^:]*:\s*"
    # Google's `name (type): description`, only if it is indented: at the margin, `Note: ...` is a sentence
    r"|\s+[`*]*[\w.]+[`*]*\s*(?:\((?:[^()]|\([^()]*\))*\))?\s*:\s+(?=\S)"
)
_INLINE: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"!\[[^\]]*\](?:\([^)]*\)|\[[^\]]*\])"), " "),  # ![image](address)
    (re.compile(r"\[([^\]]+)\](?:\([^)]*\)|\[[^\]]*\])"), r"\1"),  # [text](address), [text][label]
    (re.compile(r":math:`([^`]*)`"), r"\\\1"),  # `reads_as_english` refuses a sentence with a backslash
    (re.compile(r":[\w:+-]+:`([^`<]+?)\s*<[^`>]*>`"), r"\1"),  # :ref:`text <target>`
    (re.compile(r":[\w:+-]+:`[~!.]*(?:[\w.]+\.)?([^`]*)`"), r"\1"),  # :class:`~package.Name`
    (re.compile(r"`([^`<]+?)\s*<[^`>]*>`_{1,2}"), r"\1"),  # `text <address>`_
    (re.compile(r"``([^`]+)``"), r"\1"),
    (re.compile(r"`[~!.]*([^`]+)`_{0,2}"), r"\1"),
    (re.compile(r"<?https?://[^\s>)\]]+>?"), " "),
    (re.compile(r"\s*\[(?:#?\w{0,12}|\d+(?:, ?\d+)*)\]_"), ""),  # [1]_, a footnote
    (
        re.compile(r"(?<![\w*])\*{1,3}([^\s*](?:[^*]*[^\s*])?)\*{1,3}(?![\w*])"),
        r"\1",
    ),  # *emphasis*, **strong**
    (re.compile(r"(?<!\w)_([^\s_](?:[^_]*[^\s_])?)_(?!\w)"), r"\1"),
    (re.compile(r"(?<!\w)\|([\w .-]+)\|(?!\w)"), r"\1"),  # |substitution|
    (re.compile(r"\\([*_`|<>\[\]()# -])"), r"\1"),  # an escaped mark
    (re.compile(r"::(?=\s|$)"), ":"),
)

_ANY_MARK = re.compile(r"[`*_|\[<\\]|://|::")
_PLAIN_WORD = re.compile(r"[(\"'“‘]*[A-Za-z]+(?:['’\-/][A-Za-z]+)*[\"'”’)]*[.,;:!?]*[\"'”’)]*")
_SMALL_WORDS = re.compile(
    r"\b(?:the|an?|of|to|in|is|are|be|for|and|or|that|this|it|with|as|by|on|if|from|not|which|when|can|will|was|at|"
    r"you|has|have|its)\b",
    re.IGNORECASE,
)
FEWEST_WORDS = 4
PLAIN_SHARE = 0.75


def extract_prose(documentation: str) -> Iterator[str]:
    """Yields the paragraphs of English prose in a document, each on one line and without markup."""
    for paragraph in _join_lines_to_paragraphs(keep_running_text(documentation.expandtabs().split("\n"))):
        sentences = split_sentences(strip_inline_markup(paragraph), "en")
        prose = " ".join(filter(reads_as_english, sentences))
        if prose:
            yield prose


def keep_running_text(lines: Lines) -> Iterator[str]:
    """Yields the lines of running text; anything else becomes a blank line, which ends a paragraph."""
    index = 0
    while index < len(lines):
        size = _block_size(lines, index)
        yield "" if size else _ADMONITION.sub("", lines[index])
        index += size or 1


def _block_size(lines: Lines, index: int) -> int:
    """The number of lines of the code, table, directive, heading, field (:rtype:) or line with a parameter's
    name and type (`x : int`) that begins at `index`; 0 for running text.
    """
    line = lines[index]
    if not line.strip() or _ADMONITION.match(line):
        return 0
    for beginning, count_lines in _BLOCKS:
        if beginning.match(line):
            return count_lines(lines, index)
    previous = index - 1  # of the last line before this one that isn't blank
    while previous >= 0 and not lines[previous].strip():
        previous -= 1
    is_after_colons = previous >= 0 and lines[previous].rstrip().endswith("::")
    if is_after_colons and indent_width(line) > indent_width(lines[previous]):  # a literal block
        return _count_lines(
            lines, index, lambda later: not later.strip() or indent_width(later) >= indent_width(line)
        )
    next_line = lines[index + 1] if index + 1 < len(lines) else ""
    if _UNDERLINE.match(next_line):
        return 2
    if _NAME_AND_TYPE.match(line) and next_line.strip() and indent_width(next_line) > indent_width(line):
        return 1
    return 0


def _count_one(lines: Lines, index: int) -> int:
    return 1


def _count_to_blank_line(lines: Lines, index: int) -> int:
    return _count_lines(lines, index, lambda later: bool(later.strip()))


def _count_to_closing_fence(lines: Lines, index: int) -> int:
    fence = lines[index].strip()[:3]
    return 2 + _count_lines(lines, index + 1, lambda later: not later.strip().startswith(fence))


def _count_with_indented(lines: Lines, index: int) -> int:
    margin = indent_width(lines[index])
    return 1 + _count_lines(lines, index + 1, lambda later: not later.strip() or indent_width(later) > margin)


def _count_lines(lines: Lines, start: int, belongs: Callable[[str], bool]) -> int:
    """The number of consecutive lines, from `start` on, for which `belongs` is true."""
    end = start
    while end < len(lines) and belongs(lines[end]):
        end += 1
    return end - start


_BLOCKS: tuple[tuple[re.Pattern[str], Callable[[Lines, int], int]], ...] = (
    (re.compile(r"\s*(```|~~~)"), _count_to_closing_fence),
    (re.compile(r"\s*>>> ?"), _count_to_blank_line),
    (re.compile(r"\s*(\+[-=+]{3,}|\||[=-]{2,}(\s+[=-]{2,})+\s*$)"), _count_to_blank_line),  # tables
    (re.compile(r"\s*\.\.(\s|$)"), _count_with_indented),  # directives, footnotes, comments
    (_UNDERLINE, _count_one),
    (re.compile(r"\s*#{1,6}\s"), _count_one),  # Markdown's headings
    (re.compile(r"[A-Z][\w ]{2,20}:\s*$"), _count_one),  # Args:
    (
        re.compile(
            r"\s*:(?:type|rtype|vartype|class|meth|func|module|members|undoc-members|copyright|license|author)\b[^`]*:"
        ),
        _count_one,
    ),
)


def _join_lines_to_paragraphs(lines: Iterable[str]) -> Iterator[str]:
    """Yields paragraphs, whose lines are joined by blanks. They end at a blank line, a list item or argument,
    or a change of indentation.
    """
    paragraph: list[str] = []
    margin: int | None = None  # None: the line after a marker sets it
    for line in lines:
        marker = _MARKER.match(line)
        if paragraph and (marker or not line.strip() or margin not in (None, indent_width(line))):
            yield " ".join(paragraph)
            paragraph = []
        if line.strip():
            margin = None if marker else indent_width(line)
            paragraph.append(line[marker.end() :].strip() if marker else line.strip())
    if paragraph:
        yield " ".join(paragraph)


def indent_width(line: str) -> int:
    """The number of spaces at the beginning of a line."""
    return len(line) - len(line.lstrip(" "))


def strip_inline_markup(text: str) -> str:
    """Removes marks of emphasis, roles, links and code, but keeps their text; removes images, footnote marks
    and URLs. A formula (:math:) gets a backslash, by which `reads_as_english` refuses its sentence.
    """
    if not _ANY_MARK.search(text):
        return text
    for mark, replacement in _INLINE:
        text = mark.sub(replacement, text)
    return text


def reads_as_english(sentence: str) -> bool:
    """Whether a sentence has at least four words, three quarters of them plain (letters, with hyphens,
    apostrophes and punctuation), one like "the" or "of", and no backslash, the mark of a formula.
    """
    words = sentence.split()
    if len(words) < FEWEST_WORDS or "\\" in sentence:
        return False
    plain = sum(1 for word in words if _PLAIN_WORD.fullmatch(word))
    return plain >= PLAIN_SHARE * len(words) and _SMALL_WORDS.search(sentence) is not None
