"""What a Markdown or reStructuredText file says of itself: its front matter, and its title."""

import re
import tomllib
from typing import Any, NamedTuple

from bertsmith.errors import require
from bertsmith.text.retrieval.document_rows import UntypedCell

_WITHIN = 2_000  # characters in which it is looked for
_HEADING = re.compile(r"^#[ \t]+(.*)$|^(\S.*)\n(?:={3,}|-{3,})[ \t]*$", re.MULTILINE)
_FRONT_MATTER = re.compile(
    r"\A(---|\+\+\+)[ \t]*\n(?![ \t]*\n)(.*?)^(?:\1|\.\.\.)[ \t]*(?:\n|\Z)", re.MULTILINE | re.DOTALL
)  # YAML or TOML; three dashes before a blank line are a rule
_LONGEST_FRONT_MATTER = 100_000  # characters
_CODE = re.compile(
    r"^ {0,3}(`{3,}(?=[^`\n]*$)|~{3,}).*?(?:^ {0,3}\1[`~]*[ \t]*$|\Z)", re.MULTILINE | re.DOTALL
)
_MARKDOWN = (".md", ".markdown")


class FrontMatter(NamedTuple):
    """Values by name, the title not among them, and how many characters of the text they take."""

    values: dict[str, Any]
    title: str
    length: int


def read_front_matter(text: str, suffix: str) -> FrontMatter | None:
    """What stands between the two `---` (YAML) or `+++` (TOML) at the beginning of a Markdown file.

    Returns None where there is none. YAML's scalars become `UntypedCell`s, like the cells of CSV: YAML's own
    rules would make `no` false and 12:30 the number 750. Raises ValueError where it can't be read.
    """
    match = _FRONT_MATTER.match(text) if suffix in _MARKDOWN else None
    if match is None or match.end() > _LONGEST_FRONT_MATTER:
        return None
    values = tomllib.loads(match[2]) if match[1] == "+++" else _parse_yaml(match[2])
    if values is None:
        return None
    title = values.pop("title", "")
    return FrontMatter(values, str(title).strip(), match.end())


def _parse_yaml(text: str) -> dict[str, Any] | None:
    """None for what is no mapping: a text may begin with a rule."""
    require("yaml", "retrieval", "Front matter in YAML", "pyyaml")
    import yaml

    try:
        if any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(text, yaml.BaseLoader)):
            raise ValueError("it has aliases (*name), which may grow without bounds")
        values = yaml.load(text, yaml.BaseLoader)  # texts, lists and objects: nothing else is made
    except (yaml.YAMLError, RecursionError) as error:
        raise ValueError(str(error)) from error
    if not isinstance(values, dict):
        return None
    plain = {"": None, "true": True, "false": False}
    return {
        str(name): plain.get(value, UntypedCell(value)) if isinstance(value, str) else value
        for name, value in values.items()
    }


def find_title(text: str, suffix: str) -> str:
    """The first heading of a text file, by its suffix (".md"); "" where it has none. The #s that may close a
    heading are left away; they stand behind a blank.
    """
    if suffix not in (*_MARKDOWN, ".rst"):
        return ""
    beginning = text[:_WITHIN]
    if suffix in _MARKDOWN:  # without front matter and code, whose comments and last lines look like headings
        beginning = _CODE.sub("", _FRONT_MATTER.sub("", beginning))
    found = _HEADING.search(beginning)
    if found is None:
        return ""
    if found[1] is None:
        return found[2].strip()
    title = found[1].strip()
    bare = title.rstrip("#")
    return bare.rstrip() if bare != bare.rstrip() else title
