"""What GitHub's Markdown has and Python-Markdown lacks."""

import re

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import Files
from mkdocs.structure.pages import Page

# A block of code that says which file it is: ```csv train.csv
NAMED_BLOCK = re.compile(r"^(```\w+) (\S+)$", re.MULTILINE)


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Shows the name of a block's file above it."""
    return NAMED_BLOCK.sub(r'\1 title="\2"', markdown)
