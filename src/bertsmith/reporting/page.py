"""Renders self-contained HTML pages from the templates beside this file (*.html.jinja)."""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertsmith.files import atomic_write

_IMPORT = re.compile(r"^import .*;\n", re.MULTILINE)
_EXPORT = re.compile(r"^export ", re.MULTILINE)
REPORT_FILE = "report.html"
WEB = Path(__file__).parent / "web"  # scripts and a style sheet that the service's page shares

if TYPE_CHECKING:
    from markupsafe import Markup


def render_page(template: str, **values: Any) -> str:
    """The page as text. All values but our own markup are escaped, since texts and tokens may contain
    anything.
    """
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["breakable"] = breakable
    return environment.get_template(template).render(**values)


def write_page(folder: Path, template: str, **values: Any) -> Path:
    """Renders a page, writes it as the folder's report.html, and returns its path. The same values give the
    same bytes. Raises ResourceError when the disk is full or the folder can't be written.
    """
    path = folder / REPORT_FILE
    atomic_write(path, render_page(template, **values))
    return path


def breakable(text: object) -> "Markup":
    """The text escaped, with a possible line break after each underscore: otherwise a label of many words
    would be broken inside a word, or not at all.
    """
    from markupsafe import Markup, escape

    return Markup(str(escape(text)).replace("_", "_<wbr>"))


def as_markup(picture: str) -> "Markup":
    """One of our own SVG pictures as markup, which isn't escaped."""
    from markupsafe import Markup

    return Markup(picture)


def inline_scripts(*names: str) -> "Markup":
    """Files of the folder `WEB` as one script, without imports and exports, for a self-contained page. A file
    must come after those that it imports.
    """
    parts = ((WEB / name).read_text(encoding="utf-8") for name in names)
    script = "\n".join(_EXPORT.sub("", _IMPORT.sub("", part)) for part in parts)
    return as_markup(script)


def inline_style(name: str) -> "Markup":
    """The text of a style sheet in the folder `WEB`."""
    return as_markup((WEB / name).read_text(encoding="utf-8"))
