"""The title of a Markdown or reStructuredText file: its first heading."""

import re

_WITHIN = 2_000  # characters in which it is looked for
_HEADING = re.compile(r"^#[ \t]+(.*)$|^(\S.*)\n(?:={3,}|-{3,})[ \t]*$", re.MULTILINE)
_FRONT_MATTER = re.compile(
    r"\A(---|\+\+\+)[ \t]*\n(?![ \t]*\n).*?^(?:\1|\.\.\.)[ \t]*$", re.MULTILINE | re.DOTALL
)  # YAML or TOML; three dashes before a blank line are a rule
_CODE = re.compile(
    r"^ {0,3}(`{3,}(?=[^`\n]*$)|~{3,}).*?(?:^ {0,3}\1[`~]*[ \t]*$|\Z)", re.MULTILINE | re.DOTALL
)
_MARKDOWN = (".md", ".markdown")


def title_of(text: str, suffix: str) -> str:
    """Of a text file by its suffix (".md"); "" where it has none. The #s that may close a heading are left
    away; they stand behind a blank.
    """
    if suffix not in (*_MARKDOWN, ".rst"):
        return ""
    beginning = text[:_WITHIN]
    found = _HEADING.search(_prose(beginning) if suffix in _MARKDOWN else beginning)
    if found is None:
        return ""
    if found[1] is None:
        return found[2].strip()
    title = found[1].strip()
    bare = title.rstrip("#")
    return bare.rstrip() if bare != bare.rstrip() else title


def _prose(markdown: str) -> str:
    """Without front matter and blocks of code, whose comments and last lines look like headings."""
    return _CODE.sub("", _FRONT_MATTER.sub("", markdown))
