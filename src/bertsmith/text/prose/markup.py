"""Documentation in reStructuredText, Markdown, NumPy and Google style → its running text, line by line.

Code, doctests, tables, directives, headings and type lines are left out. What stays is judged in prose.py.
"""

import re
from collections.abc import Callable, Iterator, Sequence

Lines = Sequence[str]

_UNDERLINE = re.compile(r"\s*([=\-~^\"'`#*+.:_])\1{2,}\s*$")
_ADMONITION = re.compile(
    r"\s*\.\. (?:note|warning|tip|important|caution|seealso|attention|hint|danger|"
    r"versionadded|versionchanged|deprecated)::\s*(?:v?\d[\w.]*\s*)?"
)
# `name : type`, `name (type):`, or a bare name or type, with its description further in on the next line
_NAME_AND_TYPE = re.compile(r"\s*[`*]*\w+[`*]*(?:, [`*]*[\w.]+[`*]*)*(?:\s*:(?:\s.*)?|\s*\(.*\)\s*:\s*)?$")


def running_lines(lines: Lines) -> Iterator[str]:
    """The lines that are running text; what is left out becomes a blank line, the end of a paragraph."""
    index = 0
    while index < len(lines):
        size = _block_size(lines, index)
        yield "" if size else _ADMONITION.sub("", lines[index])
        index += size or 1


def indent(line: str) -> int:
    """Leading spaces."""
    return len(line) - len(line.lstrip(" "))


def _block_size(lines: Lines, index: int) -> int:
    """Number of lines of the code, table, directive or heading that begins here; 0 for text."""
    line = lines[index]
    if not line.strip() or _ADMONITION.match(line):
        return 0
    for beginning, size in _BLOCKS:
        if beginning.match(line):
            return size(lines, index)
    if _is_literal(lines, index):
        return _count(lines, index, lambda later: not later.strip() or indent(later) >= indent(line))
    following = lines[index + 1] if index + 1 < len(lines) else ""
    if _UNDERLINE.match(following):
        return 2
    if _NAME_AND_TYPE.match(line) and following.strip() and indent(following) > indent(line):
        return 1
    return 0


def _is_literal(lines: Lines, index: int) -> bool:
    """An indented block after a paragraph that ends in '::'."""
    before = index - 1
    while before >= 0 and not lines[before].strip():
        before -= 1
    return (
        before >= 0 and lines[before].rstrip().endswith("::") and indent(lines[index]) > indent(lines[before])
    )


def _one(lines: Lines, index: int) -> int:
    return 1


def _to_blank_line(lines: Lines, index: int) -> int:
    return _count(lines, index, lambda later: bool(later.strip()))


def _to_closing_fence(lines: Lines, index: int) -> int:
    fence = lines[index].strip()[:3]
    return 2 + _count(lines, index + 1, lambda later: not later.strip().startswith(fence))


def _with_indented(lines: Lines, index: int) -> int:
    inner = indent(lines[index])
    return 1 + _count(lines, index + 1, lambda later: not later.strip() or indent(later) > inner)


def _count(lines: Lines, start: int, belongs: Callable[[str], bool]) -> int:
    """How many lines from `start` on belong together."""
    end = start
    while end < len(lines) and belongs(lines[end]):
        end += 1
    return end - start


_BLOCKS: tuple[tuple[re.Pattern[str], Callable[[Lines, int], int]], ...] = (
    (re.compile(r"\s*(```|~~~)"), _to_closing_fence),
    (re.compile(r"\s*>>> ?"), _to_blank_line),
    (re.compile(r"\s*(\+[-=+]{3,}|\||[=-]{2,}(\s+[=-]{2,})+\s*$)"), _to_blank_line),  # tables
    (re.compile(r"\s*\.\.(\s|$)"), _with_indented),  # directives, footnotes, comments
    (_UNDERLINE, _one),
    (re.compile(r"\s*#{1,6}\s"), _one),  # Markdown's headings
    (re.compile(r"[A-Z][\w ]{2,20}:\s*$"), _one),  # Args:
    (
        re.compile(
            r"\s*:(?:type|rtype|vartype|class|meth|func|module|members|undoc-members|copyright|license|author)\b[^`]*:"
        ),
        _one,
    ),
)

_INLINE: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"!\[[^\]]*\](?:\([^)]*\)|\[[^\]]*\])"), " "),  # ![image](address)
    (re.compile(r"\[([^\]]+)\](?:\([^)]*\)|\[[^\]]*\])"), r"\1"),  # [text](address), [text][label]
    (re.compile(r":math:`([^`]*)`"), r"\\\1"),  # the back-slash makes the sentence fail the test of prose
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


def without_inline_markup(text: str) -> str:
    """Emphasis, roles, links and code marks removed, their text kept; addresses dropped."""
    if not _ANY_MARK.search(text):
        return text
    for mark, replacement in _INLINE:
        text = mark.sub(replacement, text)
    return text
