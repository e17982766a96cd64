"""Writes suggestions as a folder.

rows.csv     the rows to label: fill in the label's column, then append them to those you have
labels.csv   every labelled row, the most doubtful first
report.html  both as a page, and rows with nearly the same text and different labels
"""

import csv
import io
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from bertsmith.errors import InputError
from bertsmith.files import atomic_folder, is_empty_folder, require_writable_folder
from bertsmith.inference.suggesting.suggest import Suggestions
from bertsmith.reporting import formatting
from bertsmith.reporting.page import render_page
from bertsmith.reporting.tables import Table
from bertsmith.tasks.examples.text_task import TextExample

_ROWS, _LABELS, _REPORT = "rows.csv", "labels.csv", "report.html"
_SHOWN, _LONGEST = 100, 300  # rows of a table, characters of a text


def require_place(out: Path, overwrite: bool, reads: Iterable[Path]) -> None:
    """Raises InputError, before any work, if `out` exists, unless it is an empty folder, or a folder of
    suggestions alone that holds none of the files `reads` and that `overwrite` allows to replace. Raises as
    `require_writable_folder` does if `out` can't be made.
    """
    if out.exists() and not is_empty_folder(out):
        if not overwrite:
            raise InputError(f"{out} already exists. Choose another --out, or replace it with --overwrite.")
        names = {path.name for path in out.iterdir()} if out.is_dir() else set[str]()
        if not {_ROWS, _LABELS} & names or not names <= {_ROWS, _LABELS, _REPORT}:
            raise InputError(
                f"{out} is not {_ROWS}, {_LABELS} and {_REPORT} alone, as suggest wrote them, so it is not "
                "replaced. Choose another --out."
            )
        for path in reads:
            if path.resolve().is_relative_to(out.resolve()):
                raise InputError(
                    f"{path} lies in {out}, which is replaced. Choose another --out, or move the file."
                )
    require_writable_folder(out)


def write_suggestions(out: Path, suggestions: Suggestions, command: str, overwrite: bool = False) -> None:
    """Writes the folder `out`. `command` is the command line that repeats the suggestions. Raises InputError
    when `out` exists, unless `overwrite`; see `require_place`.
    """
    *columns_before, label = suggestions.columns
    with atomic_folder(out, overwrite=overwrite) as folder:
        rows = (
            [*_row_cells(row.example), "", row.guess, f"{row.confidence:.4f}"] for row in suggestions.rows
        )
        if suggestions.rows:
            _write_csv(folder / _ROWS, [*columns_before, label, "guess", "confidence"], rows)
        doubts = (
            [
                *_row_cells(doubt.example),
                suggestions.label_of(doubt.example),
                doubt.guess,
                f"{doubt.confidence:.4f}",
                "yes" if doubt.wrong else "no",
                doubt.example.where,
            ]
            for doubt in suggestions.doubts
        )
        if suggestions.doubts:
            names = [*columns_before, label, "guess", "confidence", "doubtful", "where"]
            _write_csv(folder / _LABELS, names, doubts)
        (folder / _REPORT).write_text(render_suggestions(suggestions, command), encoding="utf-8")


def render_suggestions(suggestions: Suggestions, command: str) -> str:
    """Renders report.html. Texts and labels are escaped."""
    headline = []
    if suggestions.rows:
        headline.append(("rows to label next", f"{len(suggestions.rows):,} of {suggestions.without_label:,}"))
    if suggestions.doubts:
        headline.append(("labels to look at", f"{len(suggestions.wrong):,} of {len(suggestions.doubts):,}"))
    if suggestions.contradictions:
        headline.append(
            ("near copies that disagree", formatting.counted(len(suggestions.contradictions), "pair"))
        )
    return render_page(
        "suggest.html.jinja",
        title="What to label next",
        status=suggestions.task,
        headline=headline,
        warnings=suggestions.notes,
        rows=_make_table(
            ["Text", "It looks like", "Sure"],
            [[_shorten(row.example), row.guess, f"{row.confidence:.0%}"] for row in suggestions.rows],
            {0, 1},
        ),
        copies=suggestions.copies,
        doubts=_make_table(
            ["Text", "Label", "It looks like", "Chance of the label", "Where"],
            [
                [
                    *(_shorten(item.example), suggestions.label_of(item.example), item.guess),
                    *(f"{item.confidence:.1%}", item.example.where),
                ]
                for item in suggestions.wrong
            ],
            {0, 1, 2, 4},
        ),
        contradictions=_make_table(
            ["One text", "Its label", "The other", "Its label", "Alike"],
            [
                [
                    *(_shorten(contradiction.first), suggestions.label_of(contradiction.first)),
                    *(_shorten(contradiction.second), suggestions.label_of(contradiction.second)),
                    f"{contradiction.likeness:.0%}",
                ]
                for contradiction in suggestions.contradictions
            ],
            {0, 1, 2, 3},
        ),
        command=command,
    )


def _make_table(columns: list[str], rows: list[list[str]], words: set[int]) -> Table:
    return Table("", columns, rows[:_SHOWN], max(len(rows) - _SHOWN, 0), frozenset(words))


def _write_csv(path: Path, names: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    text = io.StringIO()
    writer = csv.writer(text)  # ends lines by \r\n: else Python 3.11 leaves a text's \r without quotes
    writer.writerow(names)
    writer.writerows(rows)
    path.write_bytes(text.getvalue().encode("utf-8", "backslashreplace"))


def _row_texts(row: TextExample) -> list[str]:
    return [row.text] if row.text_pair is None else [row.text, row.text_pair]


def _row_cells(row: TextExample) -> list[Any]:
    """A row's cells for a CSV file: its texts and the columns read beside them; blank cells stay blank."""
    return [*_row_texts(row), *row.columns]


def _shorten(row: TextExample) -> str:
    text = " / ".join(_row_texts(row))
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"
