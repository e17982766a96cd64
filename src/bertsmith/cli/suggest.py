"""`bertsmith suggest`."""

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from bertsmith.cli.options import AS_NAMED, FileLayout, Flag, LabelledColumns, Out, given
from bertsmith.errors import InputError

if TYPE_CHECKING:
    from bertsmith.inference.suggesting.suggest import Suggestions

_SHOWN, _LONGEST = 10, 60  # rows on the screen, characters of a text


def suggest(
    model: str,
    file: Path,
    *,
    out: Out,
    overwrite: Flag = False,
    count: int = 50,
    labelled: Path | None = None,
    task: Literal["classification", "multi-label"] = "classification",
    separator: str | None = None,
    seed: int = 0,
    columns: Annotated[LabelledColumns | None, AS_NAMED] = None,
    layout: Annotated[FileLayout | None, AS_NAMED] = None,
) -> None:
    """Find the rows to label next, and the labels that are probably wrong.

    Among the rows without a label, it chooses some that the model is unsure of and that are unlike each
    other. They are written to rows.csv, for you to fill in. Each labelled row is judged by a model that
    learned from other rows; labels.csv lists the most doubtful first. report.html shows both.

    Parameters
    ----------
    model
        A fine-tuned model such as runs/NAME/model; or an encoder such as minilm, on which a linear model
        learns from the labelled rows.
    file
        Rows with and without labels, in any mixture. Rows of a plain text file have none.
    out
        The folder for rows.csv, labels.csv and report.html.
    overwrite
        Replace the folder, if an earlier suggest wrote it, with all that was filled in there.
    count
        Rows to choose for labelling.
    labelled
        A file with more labelled rows. For a fine-tuned model, by default those that it was trained on.
    task
        What the labels are for, if MODEL is an encoder.
    separator
        What stands between several labels in one cell. By default a comma, or what training had.
    seed
        Another seed draws other rows.

    Examples
    --------
    bertsmith suggest minilm tickets.csv --count 50 --out runs/next

    bertsmith suggest runs/intents/model unlabelled.txt --out runs/next

    bertsmith suggest minilm pool.jsonl --labelled rows.csv --label topic --out runs/next
    """
    from bertsmith.cli.screen import print_note, print_paths, progress_bar
    from bertsmith.inference.suggesting.folder import require_place, write_suggestions
    from bertsmith.inference.suggesting.suggest import suggest as find

    if count < 1:
        raise InputError(f"--count must be 1 or more, found {count}.")
    require_place(out, overwrite, [file, *([labelled] if labelled else [])])  # before the work, not after it
    said = given(columns, layout) | ({} if separator is None else {"separator": separator})
    with progress_bar("Reading") as progress:
        found = find(
            model, file, labelled=labelled, task=task, count=count, seed=seed, progress=progress, **said
        )
    options = {"count": count, "labelled": labelled, "task": task, "seed": seed} | said
    words = [*_words(model, file, options), "--out", str(out)]
    write_suggestions(out, found, shlex.join(words), overwrite)
    for note in found.notes:
        print_note(note)
    _show(found)
    paths = {"rows": out / "rows.csv"} if found.rows else {}
    paths |= {"labels": out / "labels.csv"} if found.doubts else {}
    print_paths(**paths, report=out / "report.html")


def _words(model: str, file: Path, options: Mapping[str, Any]) -> list[str]:
    """The command with what differs from its defaults."""
    usual = {"count": 50, "labelled": None, "task": "classification", "seed": 0}
    words = ["bertsmith", "suggest", model, str(file)]
    for name, value in options.items():
        if value is False:
            words.append(f"--no-{name}")
        elif value != usual.get(name):
            words += [f"--{name.replace('_', '-')}", str(value)]
    return words


def _show(found: "Suggestions") -> None:
    from bertsmith.cli.screen import print_note, print_table

    if found.rows:
        rows = [(_cut(row.example.text), row.guess, f"{row.confidence:.0%}") for row in found.rows[:_SHOWN]]
        title = f"{len(found.rows):,} of {found.without_label:,} rows to label next"
        print_table(("text", "it looks like", "sure"), rows, title=title)
    if found.doubts:
        wrong = [
            (_cut(each.example.text), found.label_of(each.example), each.guess)
            for each in found.wrong[:_SHOWN]
        ]
        title = f"{len(found.wrong):,} of {len(found.doubts):,} labels to look at"
        if wrong:
            print_table(("text", "label", "it looks like"), wrong, title=title)
        else:
            print_note(f"none of the {len(found.doubts):,} labels looks wrong")
    if found.contradictions:
        pairs = [
            (_cut(first.text), found.label_of(first), found.label_of(second))
            for first, second, _ in found.contradictions[:_SHOWN]
        ]
        title = f"{len(found.contradictions):,} pairs of nearly the same text with different labels"
        print_table(("text", "label", "and"), pairs, title=title)


def _cut(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"
