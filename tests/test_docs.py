"""The pages of the repository hold together, and say what the code says."""

import re
import sys
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from bertsmith.compression.distilling.recipes import DistilRecipe, EncoderDistilRecipe
from bertsmith.tasks.registry import TASKS, find_task
from bertsmith.training.finetune_recipe import FinetuneRecipe
from bertsmith.training.finetuning.search import TuneSettings
from bertsmith.training.recipe import Recipe

REPOSITORY = Path(__file__).parent.parent
SOURCE = REPOSITORY / "src" / "bertsmith"
sys.path.append(str(REPOSITORY / "docs" / "hooks"))
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
    assert (REPOSITORY / "README.md").stat().st_size <= 9 * 1024


def test_the_index_lists_every_page_of_the_documentation() -> None:
    index = read(REPOSITORY / "docs" / "index.md")
    listed = {REPOSITORY / "docs" / link for link, _ in LINK.findall(index)}
    assert {page for page in (REPOSITORY / "docs").glob("*.md") if page.stem != "index"} <= listed


def test_the_documentation_is_read_in_an_afternoon() -> None:
    pages = list((REPOSITORY / "docs").glob("*.md"))
    assert len(pages) <= 30
    assert sum(len(read(page).split()) for page in pages) <= 45_000


@pytest.mark.parametrize("section", [Recipe, FinetuneRecipe, TuneSettings, DistilRecipe, EncoderDistilRecipe])
def test_every_setting_says_what_it_means(section: type[BaseModel]) -> None:
    meanings = [(name, meaning) for name, _, _, meaning in reference_pages().fields(section)]
    assert [name for name, meaning in meanings if not meaning and name != "settings"] == []


@pytest.mark.parametrize("task", TASKS)
def test_every_setting_of_a_task_says_what_it_means(task: str) -> None:
    fields = reference_pages().fields(find_task(task).Settings)
    assert [name for name, _, _, meaning in fields if not meaning] == []


def test_every_file_of_the_source_says_what_it_is_for() -> None:
    """The map of the site is made of these sentences."""
    sentences = {path: reference_pages().first_sentence(path) for path in SOURCE.rglob("*.py")}
    assert [str(path) for path, sentence in sentences.items() if len(sentence.split()) < 3] == []


def reference_pages() -> Any:
    return pytest.importorskip("reference_pages", reason="needs the extra docs")
