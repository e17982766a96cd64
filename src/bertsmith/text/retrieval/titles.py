"""Reads the front matter and the title of Markdown and reStructuredText files."""

import re
import tomllib
from typing import Any, NamedTuple

from bertsmith.errors import require
from bertsmith.text.retrieval.document_rows import UntypedCell

_SEARCHED = 2_000  # characters at the beginning of a file in which a title is searched
# Not every line above a line of dashes is a heading: it may be a smaller heading, an item of a list, a quote,
# a tag, a row of a table or a rule.
_HEADING = re.compile(
    r"^#[ \t]+(.*)$"
    r"|^(?!#{2,6}[ \t]|[-*+][ \t]|[><]|\|.*\|[ \t]*$|([-*_=])\2{2,}[ \t]*$)(\S.*)\n(?:={2,}|-{2,})[ \t]*$",
    re.MULTILINE,
)
_MARK = r"[-=~^\"'`#*+_]"  # what headings of reStructuredText are underlined with, and perhaps overlined
_RST_HEADING = re.compile(
    rf"^(?:({_MARK})\1+[ \t]*\n[ \t]+)?"
    rf"(?!\.\.(?:[ \t]|$)|[-*+][ \t]|({_MARK})\2+[ \t]*$)(\S.*)\n({_MARK})\4+[ \t]*$",
    re.MULTILINE,
)
_FRONT_MATTER = re.compile(
    r"\A(---|\+\+\+)[ \t]*\n(?![ \t]*\n)(.*?)^(?:\1|\.\.\.)[ \t]*(?:\n|\Z)", re.MULTILINE | re.DOTALL
)  # YAML or TOML; three dashes before a blank line are a horizontal rule
_LONGEST_FRONT_MATTER = 100_000  # characters
_CODE_OR_COMMENT = re.compile(
    r"^ {0,3}(?:(`{3,}(?=[^`\n]*$)|~{3,}).*?(?:^ {0,3}\1[`~]*[ \t]*$|\Z)|<!--.*?(?:-->|\Z))",
    re.MULTILINE | re.DOTALL,
)
_MARKDOWN = (".md", ".markdown")
_NULLS = ("", "~", "null", "Null", "NULL")  # of YAML


class FrontMatter(NamedTuple):
    """The values by name, without the title, the title, and the length of the front matter in characters."""

    values: dict[str, Any]
    title: str
    length: int


def read_front_matter(text: str, suffix: str) -> FrontMatter | None:
    """Parses what is between two lines `---` (YAML) or `+++` (TOML) at the beginning of a Markdown file.

    Returns None if there is no front matter. YAML's scalars become `UntypedCell`s, like the cells of CSV:
    YAML's own rules would make `no` false and 12:30 the number 750. Raises ValueError if it can't be parsed.
    """
    match = _FRONT_MATTER.match(text) if suffix in _MARKDOWN else None
    if match is None or match.end() > _LONGEST_FRONT_MATTER:
        return None
    values = tomllib.loads(match[2]) if match[1] == "+++" else _parse_yaml(match[2])
    if values is None:
        return None
    title = values.pop("title", None)
    return FrontMatter(values, "" if title is None else str(title).strip(), match.end())


def _parse_yaml(text: str) -> dict[str, Any] | None:
    """The mapping; None if it is none: a text may begin with a horizontal rule."""
    require("yaml", "retrieval", "Front matter in YAML", "pyyaml")
    import yaml

    try:
        if any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(text, yaml.BaseLoader)):
            raise ValueError("it has aliases (*name), which may grow without bounds")
        values = yaml.load(text, yaml.BaseLoader)  # makes only strings, lists and mappings
    except (yaml.YAMLError, RecursionError) as error:
        raise ValueError(str(error)) from error
    if not isinstance(values, dict):
        return None
    constants = {**dict.fromkeys(_NULLS), "true": True, "false": False}
    return {
        str(name): constants.get(value, UntypedCell(value)) if isinstance(value, str) else value
        for name, value in values.items()
    }


def find_title(text: str, suffix: str) -> str:
    """The first heading of a Markdown or reStructuredText file, as the `suffix` tells (".md"); "" if it has
    none.

    The #s that may close a heading after a blank are not part of it.
    """
    if suffix not in (*_MARKDOWN, ".rst"):
        return ""
    beginning = text[:_SEARCHED]
    if suffix in _MARKDOWN:  # front matter, code and comments have lines that look like headings
        beginning = _CODE_OR_COMMENT.sub("", _FRONT_MATTER.sub("", beginning))
    heading = (_HEADING if suffix in _MARKDOWN else _RST_HEADING).search(beginning)
    if heading is None:
        return ""
    if suffix == ".rst" or heading[1] is None:
        return heading[3].strip()
    title = heading[1].strip()
    without_hashes = title.rstrip("#")
    return without_hashes.rstrip() if without_hashes != without_hashes.rstrip() else title
