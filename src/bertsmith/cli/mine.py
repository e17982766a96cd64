"""`bertsmith mine`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from bertsmith.cli.options import AS_NAMED, FileLayout, Flag, OutOrDash, TextColumns, given

if TYPE_CHECKING:
    from bertsmith.inference.ranking.mining import Mined


def mine(
    model: str,
    pairs: Path,
    *,
    out: OutOrDash,
    overwrite: Flag = False,
    documents: Path | None = None,
    negatives: int = 4,
    depth: int = 100,
    ratio: float = 0.95,
    margin: float = 0.0,
    skip: int = 0,
    document_text: str = "text",
    missing: Literal["refuse", "drop"] = "refuse",
    columns: Annotated[TextColumns | None, AS_NAMED] = None,
    layout: Annotated[FileLayout | None, AS_NAMED] = None,
) -> None:
    """Find hard negatives: documents near a query that don't answer it.

    Each pair is written with its negatives, the nearest first, as a row that `bertsmith finetune retrieval`
    and `bertsmith finetune reranking` read. A column `scores` is left out, since the negatives have no
    teacher's score yet.

    Parameters
    ----------
    model
        The model that searches: a folder such as runs/NAME/model, minilm, or a model's name on the hub.
    pairs
        Rows of a query and a document that answers it, as for `bertsmith finetune retrieval`.
    out
        The file of JSON lines; - is standard output.
    overwrite
        Replace the file if it exists.
    documents
        The documents to search: a table, or a .txt file with a text per line. --format counts for it too, if
        its ending tells none; --header and --encoding do in any case. By default the documents of the pairs.
    negatives
        Negatives per pair, at most. Those that a pair has already count.
    depth
        How many of the nearest documents to look at.
    ratio
        A negative's cosine with the query is at most this share of the answer's.
    margin
        A negative's cosine is at least this far below the answer's.
    skip
        How many of the nearest documents are never taken.
    document_text
        The column of the text in --documents.
    missing
        Pairs of which a text is missing: refuse or drop them.

    Examples
    --------
    bertsmith mine minilm pairs.jsonl --out mined.jsonl

    bertsmith mine runs/search/model pairs.tsv --documents manual.csv --document-text body --out mined.jsonl
    """
    from bertsmith.cli.screen import error_console, progress_bar
    from bertsmith.files import require_output
    from bertsmith.inference.embedding.embedder import Embedder
    from bertsmith.inference.ranking.mining import Guard
    from bertsmith.inference.ranking.mining import mine as run
    from bertsmith.model.locate import locate_model
    from bertsmith.tasks.retrieval import Retrieval, RetrievalSettings
    from bertsmith.text.files.jsonl import write_jsonl
    from bertsmith.text.files.values import as_text, is_blank
    from bertsmith.text.labelled.rows import quoting_warnings, read_rows, tells_format

    reads = [pairs, *([documents] if documents else []), locate_model(model).folder]
    require_output(out, overwrite, reads)
    task = Retrieval(RetrievalSettings(missing=missing, **given(columns, layout)))
    rows = task.read(pairs)
    for sentence in task.left_out:
        error_console.print(sentence, markup=False, soft_wrap=True)
    task.check(rows)
    searched = [row.documents[0] for row in rows]
    if documents is not None:
        settings = task.settings
        format = None if tells_format(documents) else settings.format
        found = read_rows(
            documents,
            [document_text],
            format=format,
            header=settings.header,
            encoding=settings.encoding,
        )
        texts = (as_text(values[0], where) for values, where in found)
        searched = [text for text in texts if not is_blank(text)]
        for sentence in quoting_warnings(documents, searched, format):
            error_console.print(sentence, markup=False, soft_wrap=True)
    with progress_bar("Embedding") as progress:
        embedder = Embedder(model)
        if embedder.caveat:
            error_console.print(embedder.caveat, markup=False, soft_wrap=True)
        mined = run(
            embedder,
            rows,
            searched,
            negatives=negatives,
            depth=depth,
            guard=Guard(ratio, margin, skip),
            progress=progress,
        )
    write_jsonl(mined.rows, out)
    _tell(mined, scored=any(row.scores is not None for row in rows))


def _tell(mined: "Mined", scored: bool) -> None:
    """What was found and what was not taken; beside the output, which may be the standard one."""
    from bertsmith.cli.screen import error_console

    if scored:
        error_console.print("The pairs' scores were left out: no teacher has scored the negatives found.")
    reasons = "; ".join(f"{count:,} {reason}" for reason, count in mined.passed_over.most_common())
    error_console.print(
        f"{mined.negatives:,} negatives for {len(mined.rows):,} pairs. Passed over: {reasons or 'nothing'}.",
        markup=False,
        soft_wrap=True,
    )
