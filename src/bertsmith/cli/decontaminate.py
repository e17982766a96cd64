"""`bertsmith corpus decontaminate`."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from bertsmith.cli.options import Out

if TYPE_CHECKING:
    from bertsmith.text.corpus.manifest import Counts
    from bertsmith.text.decontamination.decontaminating import Contamination

PAGE = "decontamination.html"
_SHOWN, _LONGEST = 3, 70  # examples of a file on the screen, characters of a text

Several = Annotated[tuple[str, ...], Parameter(consume_multiple=True, negative="")]


def decontaminate(
    corpus: Path,
    *,
    against: Several,
    out: Out | None = None,
    page: Path | None = None,
    column: Several = (),
    format: str | None = None,
    encoding: str = "utf-8",
    workers: int | None = None,
) -> None:
    """Find rows of test files in a corpus, and write the corpus without them.

    A row is found even if case or punctuation differs, or if one word in ten was replaced. With --out, the
    sentences that hold such rows are left out, and the new corpus's manifest names the test files.

    Parameters
    ----------
    corpus
        The corpus's folder.
    against
        Test files: CSV, TSV, JSON lines, Parquet, CoNLL, SQuAD's JSON or plain lines; or folders in the
        layout of BEIR or TREC.
    out
        The folder for the cleaned corpus and the page.
    page
        The page's file. By default decontamination.html in --out.
    column
        Columns of the test files whose texts to look for. By default all with running text.
    format
        csv, tsv, jsonl, json, parquet, lines, conll, conllu, squad, reqa, beir or trec. By default the file's
        ending and content decide.
    encoding
        The test files' encoding.
    workers
        Processes. By default one per core; for a small corpus a single one.

    Examples
    --------
    bertsmith corpus decontaminate corpora/law --against test.csv

    bertsmith corpus decontaminate corpora/law --against dev.tsv test.tsv squad.json --out corpora/clean

    bertsmith corpus decontaminate corpora/law --against beir/scifact --column query --page found.html
    """
    from bertsmith.cli.screen import print_paths, progress_bar
    from bertsmith.files import atomic_write, refuse_existing, require_free, require_writable
    from bertsmith.reporting.decontamination import render_contamination
    from bertsmith.text.corpus.corpus import Corpus
    from bertsmith.text.decontamination.decontaminating import find_contamination, write_decontaminated

    if out is not None:
        require_free(out)
    if page is not None:
        refuse_existing(page)
        require_writable(page)
    removed = None
    with progress_bar("Looking for test rows") as progress:
        found = find_contamination(
            Corpus.open(corpus),
            against,
            columns=column,
            format=format,
            encoding=encoding,
            workers=workers,
            progress=progress,
        )
        if out is not None:
            _, removed = write_decontaminated(found, out, progress=progress)
            page = page or out / PAGE
    if page is not None:
        command = _command(corpus, against, out, column, format, encoding)
        atomic_write(page, render_contamination(found, removed, command))
    _show(found, removed)
    written = {"corpus": out, "page": page}
    print_paths(**{name: path for name, path in written.items() if path is not None})


def _command(
    corpus: Path,
    against: tuple[str, ...],
    out: Path | None,
    column: tuple[str, ...],
    format: str | None,
    encoding: str,
) -> str:
    words = ["bertsmith", "corpus", "decontaminate", str(corpus), "--against", *against]
    words += ["--out", str(out)] if out else []
    words += ["--column", *column] if column else []
    words += ["--format", format] if format else []
    words += ["--encoding", encoding] if encoding != "utf-8" else []
    return shlex.join(words)


def _show(found: "Contamination", removed: "Counts | None") -> None:
    from bertsmith.cli.screen import console, print_note, print_table
    from bertsmith.reporting import formatting
    from bertsmith.reporting.decontamination import EXAMPLE_COLUMNS, FILE_COLUMNS, example_row, file_rows

    print_table(FILE_COLUMNS, file_rows(found), title=f"What {found.corpus.path} holds of the test files")
    for each in found.files:
        if each.examples:
            rows = [example_row(example, _LONGEST) for example in each.examples[:_SHOWN]]
            print_table(EXAMPLE_COLUMNS, rows, title=f"Of {each.file.name}")
        if len(each.columns) > 1 and each.found:
            counted = ", ".join(f"{count:,} in {name!r}" for name, count in each.columns.items())
            print_note(f"{each.file.name}: rows found {counted}")
    if removed is not None:
        sentences, words = (
            formatting.counted(*each) for each in ((removed.sentences, "sentence"), (removed.words, "word"))
        )
        documents = formatting.counted(found.documents, "document")
        console.print(
            f"Removed: {sentences}, {words}. Of {documents} concerned {removed.documents:,} went whole.",
            markup=False,
            soft_wrap=True,
        )
    elif found.documents:
        documents = formatting.counted(found.documents, "document")
        print_note(
            f"{documents} of the corpus concerned. --out FOLDER writes the corpus without what was found"
        )
