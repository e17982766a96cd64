"""Suggestions as a folder.

rows.csv     the rows to label: fill in the label's column, and put them beside those you have
labels.csv   every labelled row, the most doubtful first
report.html  both to look at, and rows of nearly the same text that have different labels
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
    """Raises InputError, before any work, where something is called `out`: unless it is an empty folder, or
    one of suggestions alone that holds none of `reads`, and `overwrite` says to replace it. Raises as
    `require_writable_folder` does where no `out` can be made.
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


def write_suggestions(out: Path, found: Suggestions, command: str, overwrite: bool = False) -> None:
    """`command` is what to type to get them again. Raises InputError when `out` exists, unless `overwrite`
    says to replace it; see `require_place`.
    """
    *beside, label = found.columns
    with atomic_folder(out, overwrite=overwrite) as folder:
        rows = ([*_row_cells(row.example), "", row.guess, f"{row.confidence:.4f}"] for row in found.rows)
        if found.rows:
            _write_csv(folder / _ROWS, [*beside, label, "guess", "confidence"], rows)
        doubts = (
            [
                *_row_cells(doubt.example),
                found.label_of(doubt.example),
                doubt.guess,
                f"{doubt.confidence:.4f}",
                "yes" if doubt.wrong else "no",
                doubt.example.where,
            ]
            for doubt in found.doubts
        )
        if found.doubts:
            names = [*beside, label, "guess", "confidence", "doubtful", "where"]
            _write_csv(folder / _LABELS, names, doubts)
        (folder / _REPORT).write_text(render_suggestions(found, command), encoding="utf-8")


def render_suggestions(found: Suggestions, command: str) -> str:
    """The page as text; texts and labels are escaped."""
    headline = []
    if found.rows:
        headline.append(("rows to label next", f"{len(found.rows):,} of {found.without_label:,}"))
    if found.doubts:
        headline.append(("labels to look at", f"{len(found.wrong):,} of {len(found.doubts):,}"))
    if found.contradictions:
        headline.append(("near copies that disagree", formatting.counted(len(found.contradictions), "pair")))
    return render_page(
        "suggest.html.jinja",
        title="What to label next",
        status=found.task,
        headline=headline,
        warnings=found.notes,
        rows=_make_table(
            ["Text", "It looks like", "Sure"],
            [[_shorten(row.example), row.guess, f"{row.confidence:.0%}"] for row in found.rows],
            {0, 1},
        ),
        copies=found.copies,
        doubts=_make_table(
            ["Text", "Label", "It looks like", "Chance of the label", "Where"],
            [
                [
                    *(_shorten(each.example), found.label_of(each.example), each.guess),
                    *(f"{each.confidence:.1%}", each.example.where),
                ]
                for each in found.wrong
            ],
            {0, 1, 2, 4},
        ),
        contradictions=_make_table(
            ["One text", "Its label", "The other", "Its label", "Alike"],
            [
                [
                    *(_shorten(contradiction.first), found.label_of(contradiction.first)),
                    *(_shorten(contradiction.second), found.label_of(contradiction.second)),
                    f"{contradiction.likeness:.0%}",
                ]
                for contradiction in found.contradictions
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
    """Its texts, and what was read beside them; a blank cell stays blank."""
    return [*_row_texts(row), *row.columns]


def _shorten(row: TextExample) -> str:
    text = " / ".join(_row_texts(row))
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"
