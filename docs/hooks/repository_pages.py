"""Links that leave docs/: what they lead to becomes pages of the site, below repository/.

On GitHub such a link opens the file itself. Here a Markdown file becomes a page, a folder a list of its
files, a picture is copied, and any other file is shown as a block of code. Such pages may link further.
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

REPOSITORY = Path(__file__).parents[2]
DOCS = REPOSITORY / "docs"
PICTURES = {".svg", ".png"}
# A block of code, to be passed over, or where a link within the repository leads.
CODE_OR_LINK = re.compile(
    r"^(?P<fence>`{3,}).*?^(?P=fence)|(?<=\]\()(?![a-z]+:|#)(?P<link>[^)#\s]+)", re.DOTALL | re.MULTILINE
)
# Headings of these pages would crowd out the documentation's in the search.
NOT_SEARCHED = "---\nsearch:\n  exclude: true\n---\n\n"


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds a page for each file outside of docs/ that is linked to, directly or by another such page."""
    waiting = [DOCS / file.src_uri for file in files.documentation_pages()]
    seen = set(waiting)
    while waiting:
        for target in linked(waiting.pop()):
            if target in seen:
                continue
            seen.add(target)
            if not target.is_relative_to(DOCS):
                files.append(as_file(target, config))
                waiting.append(target)
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Has each link lead to where its target is in the site."""
    source = source_of(page.file.src_uri)
    here = Path(page.file.src_uri).parent

    def moved(found: re.Match[str]) -> str:
        target = (source.parent / (found["link"] or "")).resolve()
        return os.path.relpath(uri_of(target), here) if found["link"] and target.exists() else found[0]

    return CODE_OR_LINK.sub(moved, markdown)


def linked(source: Path) -> Iterator[Path]:
    """What a Markdown file or a folder leads to."""
    if source.is_dir():
        yield from sorted(path for path in source.iterdir() if path.is_file())
    elif source.suffix == ".md" and source.exists():
        for found in CODE_OR_LINK.finditer(source.read_text(encoding="utf-8")):
            target = (source.parent / (found["link"] or "")).resolve()
            if found["link"] and target.exists():
                yield target


def uri_of(target: Path) -> str:
    """Where the site has a file or folder of the repository."""
    if target.is_relative_to(DOCS):
        return str(target.relative_to(DOCS))
    page = "" if target.suffix in {".md", *PICTURES} else ".md"
    return f"repository/{target.relative_to(REPOSITORY)}{page}"


def source_of(uri: str) -> Path:
    """The file of the repository that a page was made from."""
    return REPOSITORY / uri.removeprefix("repository/") if uri.startswith("repository/") else DOCS / uri


def as_file(target: Path, config: MkDocsConfig) -> File:
    if target.suffix in PICTURES:
        return File.generated(config, uri_of(target), content=target.read_bytes())
    return File.generated(config, uri_of(target), content=NOT_SEARCHED + as_page(target))


def as_page(target: Path) -> str:
    name = target.relative_to(REPOSITORY)
    if target.is_dir():
        files = (f"- [{each.name}]({name.name}/{each.name})" for each in linked(target))
        return "\n".join([f"# {name}", "", *files])
    text = target.read_text(encoding="utf-8")
    return text if target.suffix == ".md" else f"# {name}\n\n````{target.suffix[1:]}\n{text}\n````\n"
