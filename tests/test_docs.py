"""The pages of the repository hold together."""

import re
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parent.parent
PAGES = [*sorted(REPOSITORY.glob("*.md")), *sorted(REPOSITORY.glob("docs/**/*.md"))]
LINK = re.compile(r"\]\((?!https?:|#|mailto:)([^)#\s]+)")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(REPOSITORY)))
def test_every_link_leads_to_a_file(page: Path) -> None:
    links = LINK.findall(page.read_text(encoding="utf-8"))
    assert [link for link in links if not (page.parent / link).exists()] == []


def test_the_index_lists_every_page_of_the_documentation() -> None:
    index = (REPOSITORY / "docs" / "index.md").read_text(encoding="utf-8")
    listed = {REPOSITORY / "docs" / link for link in LINK.findall(index)}
    assert {page for page in PAGES if page.parent.name == "docs" and page.stem != "index"} <= listed
