"""Documentation in reStructuredText, Markdown, NumPy and Google style → the English prose in it.

Code, doctests, tables, directives, headings and type lines are left out. The lines that stay are joined to
paragraphs and freed of inline markup; of each paragraph the sentences stay that read as English.
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
# `name : type`, `name (type):`, or a bare name or type, with its description further in on the next line
_NAME_AND_TYPE = re.compile(r"\s*[`*]*\w+[`*]*(?:, [`*]*[\w.]+[`*]*)*(?:\s*:(?:\s.*)?|\s*\(.*\)\s*:\s*)?$")
# What stands before a description, which begins a paragraph of its own:
_MARKER = re.compile(
    r"\s*[-*•+]\s+(?=\S)"  # a list item
    r"|\s*\(?\d{1,3}[.)]\s+(?=\S)"
    r"|\s*[:@](?:param|parameter|arg|argument|keyword|returns?|raises?|var|ivar|cvar|yields?)\b[^:]*:\s*"
    # Google's `name (type): description`; only where indented, for at the margin `Note: ...` is a sentence
    r"|\s+[`*]*[\w.]+[`*]*\s*(?:\((?:[^()]|\([^()]*\))*\))?\s*:\s+(?=\S)"
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
_PLAIN_WORD = re.compile(r"[(\"'“‘]*[A-Za-z]+(?:['’\-/][A-Za-z]+)*[\"'”’)]*[.,;:!?]*[\"'”’)]*")
_SMALL_WORDS = re.compile(
    r"\b(?:the|an?|of|to|in|is|are|be|for|and|or|that|this|it|with|as|by|on|if|from|not|which|when|can|will|was|at|"
    r"you|has|have|its)\b",
    re.IGNORECASE,
)
FEWEST_WORDS = 4
PLAIN_SHARE = 0.75


def extract_prose(documentation: str) -> Iterator[str]:
    """Paragraphs of English, each on one line."""
    for paragraph in _join_paragraphs(keep_running_text(documentation.expandtabs().split("\n"))):
        sentences = split_sentences(strip_inline_markup(paragraph), "en")
        kept = " ".join(filter(reads_as_english, sentences))
        if kept:
            yield kept


def keep_running_text(lines: Lines) -> Iterator[str]:
    """The lines that are running text; what is left out becomes a blank line, the end of a paragraph."""
    index = 0
    while index < len(lines):
        size = _block_size(lines, index)
        yield "" if size else _ADMONITION.sub("", lines[index])
        index += size or 1


def _block_size(lines: Lines, index: int) -> int:
    """Number of lines of the code, table, directive or heading that begins here; 0 for text."""
    line = lines[index]
    if not line.strip() or _ADMONITION.match(line):
        return 0
    for beginning, size in _BLOCKS:
        if beginning.match(line):
            return size(lines, index)
    before = index - 1
    while before >= 0 and not lines[before].strip():
        before -= 1
    is_after_colons = before >= 0 and lines[before].rstrip().endswith("::")
    if is_after_colons and indent(line) > indent(lines[before]):  # a literal block
        return _count(lines, index, lambda later: not later.strip() or indent(later) >= indent(line))
    following = lines[index + 1] if index + 1 < len(lines) else ""
    if _UNDERLINE.match(following):
        return 2
    if _NAME_AND_TYPE.match(line) and following.strip() and indent(following) > indent(line):
        return 1
    return 0


def _count_one(lines: Lines, index: int) -> int:
    return 1


def _count_to_blank_line(lines: Lines, index: int) -> int:
    return _count(lines, index, lambda later: bool(later.strip()))


def _count_to_closing_fence(lines: Lines, index: int) -> int:
    fence = lines[index].strip()[:3]
    return 2 + _count(lines, index + 1, lambda later: not later.strip().startswith(fence))


def _count_with_indented(lines: Lines, index: int) -> int:
    inner = indent(lines[index])
    return 1 + _count(lines, index + 1, lambda later: not later.strip() or indent(later) > inner)


def _count(lines: Lines, start: int, belongs: Callable[[str], bool]) -> int:
    """How many lines from `start` on belong together."""
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


def _join_paragraphs(lines: Iterable[str]) -> Iterator[str]:
    """Lines joined until a blank line, a list item or argument, or a change of indentation."""
    paragraph: list[str] = []
    margin: int | None = None  # None: the line after a marker sets it
    for line in lines:
        marker = _MARKER.match(line)
        if paragraph and (marker or not line.strip() or margin not in (None, indent(line))):
            yield " ".join(paragraph)
            paragraph = []
        if line.strip():
            margin = None if marker else indent(line)
            paragraph.append(line[marker.end() :].strip() if marker else line.strip())
    if paragraph:
        yield " ".join(paragraph)


def indent(line: str) -> int:
    """Leading spaces."""
    return len(line) - len(line.lstrip(" "))


def strip_inline_markup(text: str) -> str:
    """Emphasis, roles, links and code marks removed, their text kept; addresses dropped."""
    if not _ANY_MARK.search(text):
        return text
    for mark, replacement in _INLINE:
        text = mark.sub(replacement, text)
    return text


def reads_as_english(sentence: str) -> bool:
    """Four words or more, three in four of them plain letters, at least one a small word such as 'the'."""
    words = sentence.split()
    if len(words) < FEWEST_WORDS or "\\" in sentence:
        return False
    plain = sum(1 for word in words if _PLAIN_WORD.fullmatch(word))
    return plain >= PLAIN_SHARE * len(words) and _SMALL_WORDS.search(sentence) is not None
