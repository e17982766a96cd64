"""The pages of the repository hold together, and say what the code says."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import BaseModel

from bertsmith.training.recipe import Recipe
from test_layers import own_imports

REPOSITORY = Path(__file__).parent.parent
SOURCE = REPOSITORY / "src" / "bertsmith"
MAP = REPOSITORY / "docs" / "map.md"
PAGES = [*sorted(REPOSITORY.glob("*.md")), *sorted(REPOSITORY.glob("docs/**/*.md"))]
LINK = re.compile(r"\]\((?!https?:|mailto:)([^)#\s]*)(?:#([^)\s]*))?\)")
each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(REPOSITORY)))


def read(page: Path) -> str:
    return page.read_text(encoding="utf-8")


@each_page
def test_every_link_leads_to_a_file(page: Path) -> None:
    links = [link for link, _ in LINK.findall(read(page))]
    assert [link for link in links if not (page.parent / link).exists()] == []


@each_page
def test_every_link_into_a_page_leads_to_a_heading(page: Path) -> None:
    for link, heading in LINK.findall(read(page)):
        target = page.parent / link if link else page
        if heading:
            assert heading in anchors(read(target)), f"{page.name} links to {target.name}#{heading}"


@each_page
def test_every_file_named_in_the_text_is_there(page: Path) -> None:
    named = re.findall(r"`((?:tests|bench|docs|src)/[\w./-]+)`", read(page))
    assert [name for name in named if not (REPOSITORY / name).exists()] == []


def anchors(text: str) -> set[str]:
    """As GitHub makes them of headings: letters, digits and hyphens."""
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_the_readme_is_read_in_minutes() -> None:
    assert (REPOSITORY / "README.md").stat().st_size <= 10 * 1024


def test_the_index_lists_every_page_of_the_documentation() -> None:
    index = read(REPOSITORY / "docs" / "index.md")
    listed = {REPOSITORY / "docs" / link for link, _ in LINK.findall(index)}
    assert {page for page in PAGES if page.parent.name == "docs" and page.stem != "index"} <= listed


def test_the_map_names_every_file_of_the_source_once_with_a_line_on_it() -> None:
    mapped = list(mapped_files(read(MAP)))
    there = {str(path.relative_to(SOURCE)) for path in SOURCE.rglob("*.py") if path.stem != "__init__"}
    assert len(mapped) == len(set(mapped)), "a file stands twice"
    assert set(mapped) == there


def mapped_files(page: str) -> Iterator[str]:
    """The files of the map, which is indented as the folders are: folder/file.py."""
    (tree,) = re.findall(r"```\nsrc/bertsmith/\n(.+?)```", page, re.DOTALL)
    folders: list[str] = []
    for line in tree.splitlines():
        found = re.fullmatch(r"((?: {4}){1,4})(\S+)  +\S.*", line)
        assert found, f"not a line of the map: {line!r}"
        indent, name = found.groups()
        del folders[len(indent) // 4 - 1 :]
        if name.endswith("/"):
            folders.append(name)
        elif name.endswith(".py"):
            yield "".join(folders) + name


def test_each_file_of_the_map_imports_only_from_those_above_it() -> None:
    modules = ["bertsmith." + file.removesuffix(".py").replace("/", ".") for file in mapped_files(read(MAP))]
    place = {module: number for number, module in enumerate(modules)}
    upside_down = [
        str(found)
        for found in own_imports(SOURCE)
        if place.get(found.importer, len(place)) < place.get(found.imported, -1)
    ]
    assert upside_down == []


def test_the_table_of_settings_has_each_with_its_default() -> None:
    page = read(REPOSITORY / "docs" / "pretraining-settings.md")
    rows = re.findall(r"^\| `([\w.]+)` \| (.+?) \| .+ \|$", page, re.MULTILINE)
    assert dict(rows) == dict(settings(Recipe))
    assert len(rows) == len(dict(rows)), "a setting stands twice"


def settings(
    section: type[BaseModel], prefix: str = "", values: BaseModel | None = None
) -> Iterator[tuple[str, str]]:
    """(dotted name, default as the table writes it) of every setting; `values` are the section's defaults."""
    for name, field in section.model_fields.items():
        kind = field.annotation
        default = field.get_default(call_default_factory=True) if values is None else getattr(values, name)
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            yield from settings(kind, f"{prefix}{name}.", default)
        else:
            yield prefix + name, "–" if field.is_required() else as_written(default)


def as_written(default: object) -> str:
    if default is None:
        return "–"
    if isinstance(default, bool):
        return str(default).lower()
    if isinstance(default, tuple):
        return str(list(default))
    return f"{default:g}" if isinstance(default, int | float) else f"`{default}`"
