"""The texts that a corpus and test files share, as a page and as rows for the terminal."""

from dataclasses import replace

from bertsmith.reporting import formatting
from bertsmith.reporting.page import render_page
from bertsmith.reporting.tables import Table
from bertsmith.text.corpus.manifest import Counts
from bertsmith.text.decontamination.contamination import Contamination, Example
from bertsmith.text.decontamination.scanning import KINDS

FILE_COLUMNS = ("test file", "rows", "too short", *KINDS, "found")
EXAMPLE_COLUMNS = ("row", "text", "in the corpus", "document", "kind", "share")
_LONGEST = 300  # characters of a text on the page


def file_rows(contamination: Contamination) -> list[tuple[str | int, ...]]:
    """A row for each test file, under FILE_COLUMNS."""
    return [
        (
            file.file.name,
            file.file.rows,
            file.too_short,
            *file.kinds.values(),
            f"{file.found:,} ({formatting.percent(file.found / file.file.rows)})",
        )
        for file in contamination.files
    ]


def example_row(example: Example, longest: int) -> list[str]:
    """The row of an example under EXAMPLE_COLUMNS, with texts cut to `longest` characters."""
    texts = (" ".join(text.split()) for text in (example.text, example.in_corpus))
    texts = (text if len(text) <= longest else text[: longest - 1] + "…" for text in texts)
    return [example.where, *texts, example.document, example.kind, f"{example.share:.0%}"]


def render_contamination(contamination: Contamination, removed: Counts | None, command: str) -> str:
    """The page as text, with the content of files escaped. `removed` has the counts of removed text; None if
    no corpus was written.
    """
    headline = [
        ("test rows found", f"{sum(file.found for file in contamination.files):,}"),
        (
            "documents that hold them",
            f"{contamination.documents:,} of {contamination.corpus.manifest.kept.documents:,}",
        ),
    ]
    if removed is not None:
        headline.append(("words removed", formatting.count(removed.words)))
    files = [
        [str(cell) if isinstance(cell, str) else f"{cell:,}" for cell in row]
        for row in file_rows(contamination)
    ]
    columns = [
        [file.file.name, column, f"{count:,}"]
        for file in contamination.files
        if len(file.columns) > 1
        for column, count in file.columns.items()
    ]
    return render_page(
        "decontamination.html.jinja",
        title="What the corpus has of the test files",
        status=f"Corpus {contamination.corpus.path.name}",
        headline=headline,
        warnings=[],
        files=Table("", [name.capitalize() for name in FILE_COLUMNS], files),
        columns=Table("", ["Test file", "Column", "Rows found"], columns, text_columns=frozenset({0, 1})),
        examples=[
            Table(
                f"Of {file.file.name}",
                [name.capitalize() for name in EXAMPLE_COLUMNS],
                [example_row(example, _LONGEST) for example in file.examples],
                text_columns=frozenset(range(4)),
            )
            for file in contamination.files
            if file.examples
        ],
        untitled=lambda table: replace(table, title=""),
        command=command,
    )
