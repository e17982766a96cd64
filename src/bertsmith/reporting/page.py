"""Pages that need nothing else, from the templates beside this file (*.html.jinja)."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from markupsafe import Markup


def render_page(template: str, **values: Any) -> str:
    """The page as text. Everything but markup of our own is escaped: texts and tokens may hold anything."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(template).render(**values)


def as_markup(picture: str) -> "Markup":
    """A picture that we drew ourselves, to stand in a page as it is."""
    from markupsafe import Markup

    return Markup(picture)
