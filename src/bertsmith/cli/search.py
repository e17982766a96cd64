"""`bertsmith search`."""

import sys
from dataclasses import asdict
from json import dumps
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from bertsmith.cli.options import Flag, ReadableText
from bertsmith.errors import printable

if TYPE_CHECKING:
    from rich.text import Text

    from bertsmith.inference.index.search import Hit

# A blank for each: documents must not steer the terminal, and rich would take some of them away without
# moving the marks.
_CONTROL = {code: " " for code in (*range(32), *range(127, 160)) if chr(code) not in "\t\n"}
_SCORES = {"vector": "cosine", "text": "BM25", "hybrid": "RRF"}
_SHOWN = 600  # characters of a passage; --json has all of it


def search(
    index: Path,
    query: ReadableText,
    *,
    mode: Literal["hybrid", "vector", "text"] = "hybrid",
    k: int = 10,
    where: str | None = None,
    reranker: str | None = None,
    per_document: Flag = False,
    json: Flag = False,
) -> None:
    """Find the passages of an index that answer a question, best first, with its words marked.

    Parameters
    ----------
    index
        The index's folder.
    query
        The question, or words to search for.
    mode
        vector searches by meaning, text by words (BM25); hybrid fuses both rankings.
    k
        Passages to show, or documents with --per-document.
    where
        An SQL filter on the columns that `bertsmith index info` lists.
    reranker
        A model trained on pairs. It reads the 50 best passages beside the query and reorders them.
    per_document
        Show the best passage of each document, not several of one.
    json
        Print a JSON object for each hit, one per line.

    Examples
    --------
    bertsmith search indexes/handbook "how do I book a day off?"

    bertsmith search indexes/papers "graph neural networks" --where "year >= 2020" --k 3

    bertsmith search indexes/handbook "parental leave" --reranker runs/reranker/model --json
    """
    from bertsmith.cli.screen import console
    from bertsmith.inference.index.index import Index

    opened = Index.open(index)
    hits = opened.search(query, k, mode, where, reranker, per_document)
    if json:
        _print_json(hits)
        return
    kind = "relevance" if reranker else _SCORES[mode]
    for rank, hit in enumerate(hits, start=1):
        console.print(_heading(rank, hit, kind))
        console.print(_passage(hit))
        console.print()
    if not hits:
        console.print("Nothing was found.", markup=False)


def _print_json(hits: "list[Hit]") -> None:
    for hit in hits:
        metadata = {name: None if _is_no_json(value) else value for name, value in hit.metadata.items()}
        fields = asdict(hit) | {"metadata": metadata, "place": hit.place}
        sys.stdout.write(printable(dumps(fields, ensure_ascii=False, allow_nan=False)) + "\n")


def _is_no_json(value: object) -> bool:
    """NaN and Infinity, which a column of numbers may hold."""
    return isinstance(value, float) and not isfinite(value)


def _heading(rank: int, hit: "Hit", kind: str) -> "Text":
    """Number, place, title, and the score with what it is: scores of different kinds don't compare."""
    from rich.text import Text

    heading = Text(f"{rank}  ")
    heading.append(_on_one_line(hit.place), style="bold cyan")
    if hit.title:
        heading.append(f"  {_on_one_line(hit.title)}", style="bold")
    heading.append(f"  {kind} {hit.score:.4f}", style="dim")
    return heading


def _on_one_line(text: str) -> str:
    return " ".join(text.translate(_CONTROL).split())


def _passage(hit: "Hit") -> "Text":
    """As it stands, cut when it is long, the query's words marked."""
    from rich.text import Text

    start, end = _window(hit)
    text = Text(hit.text[start:end].translate(_CONTROL))
    for begin, stop in hit.matches:
        if start <= begin and stop <= end:
            text.stylize("bold yellow", begin - start, stop - start)
    before, after = "… " if start else "", " …" if end < len(hit.text) else ""
    return Text.assemble(before, text, after)


def _window(hit: "Hit") -> tuple[int, int]:
    """The part of a long passage that begins a little before its first match."""
    if len(hit.text) <= _SHOWN:
        return 0, len(hit.text)
    first = hit.matches[0][0] if hit.matches else 0
    start = max(0, min(first - _SHOWN // 4, len(hit.text) - _SHOWN))
    if start:
        start = hit.text.find(" ", start, first) + 1 or start
    return start, start + _SHOWN
