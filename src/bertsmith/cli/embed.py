"""`bertsmith embed` and `bertsmith search`: texts as vectors, and the passages of an index for a question."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from json import dumps
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from rich.text import Text

from bertsmith.cli.options import (
    AS_NAMED,
    ComputeDtype,
    FileLayout,
    FileOrDash,
    Flag,
    Out,
    ReadableText,
    collect_options,
)
from bertsmith.cli.screen import console, error_console, paced_lines, print_note, print_warning
from bertsmith.errors import InputError, printable
from bertsmith.text.workers import Engine

if TYPE_CHECKING:
    from bertsmith.inference.embedding.embedder import Embedder
    from bertsmith.inference.embedding.job import Count, EmbeddingResult, Watch
    from bertsmith.inference.embedding.vectors import Int8Ranges
    from bertsmith.inference.index.search import Hit


# A blank for each: documents must not steer the terminal, and rich would take some of them away without
# moving the marks.
_CONTROL = {code: " " for code in (*range(32), *range(127, 160)) if chr(code) not in "\t\n"}
_FUSION = "Rank fusion: of the ranks by meaning and by words. Only the order of the scores counts."
_SCORES = {"vector": "cosine", "text": "BM25", "hybrid": "rank fusion score (RRF)"}
_SHOWN = 600  # characters of a passage; --json has all of it


def embed(
    model: str,
    input: FileOrDash,
    *,
    out: Out,
    overwrite: Flag = False,
    text: str | None = None,
    id: str | None = None,
    kind: Literal["document", "query"] = "document",
    prefix: str | None = None,
    prompt_name: str | None = None,
    max_length: int | None = None,
    long_texts: Literal["truncate", "windows"] = "truncate",
    dimensions: int | None = None,
    compute_dtype: ComputeDtype | None = None,
    store_dtype: Literal["float32", "int8", "binary"] = "float32",
    ranges: Path | None = None,
    shard_rows: int = 4096,
    layout: Annotated[FileLayout | None, AS_NAMED] = None,
    resume: Flag = False,
    engine: Engine = "local",
) -> None:
    """Embed each text of a file as a vector of length 1, and write a Parquet file.

    OUT has the columns id and vector; its metadata says how it was made. While the job runs, finished shards
    are kept in OUT.parts. If the job was killed, the same command with --resume
    continues where it stopped.

    Parameters
    ----------
    model
        A folder of Bertsmith's, of sentence-transformers or of any other BERT, minilm, or a model's name on
        the hub.
    input
        CSV, TSV, JSON lines, Parquet, or a .txt file with a text per line; - is standard input, read as JSON
        lines unless --format says otherwise.
    out
        The Parquet file to write.
    overwrite
        Replace the file if it exists.
    text
        The column of the text: its name, or its number counted from 1. By default it is found by its usual
        names.
    id
        The column of ids. By default the column id; if there is none, rows are numbered from 1.
    kind
        Which of the model's prefixes to put before each text.
    prefix
        Another prefix instead of the model's own; "" for none.
    prompt_name
        One of the model's prompts by its name, such as that of a task, instead of --kind's.
    max_length
        Tokens per text, special ones included. By default the model's limit.
    long_texts
        Longer texts: truncate them, or read them in windows and pool the vectors.
    dimensions
        Keep only so many dimensions, if the model was trained for that.
    compute_dtype
        Precision of the matrix products. By default int16 on a CPU: vectors with a cosine of 0.99999 to
        float32's, in two thirds of the time; float32 without the compiled kernels; bfloat16 on a GPU that has
        it, with a cosine of 0.9999. int8 takes two thirds of int16's time; the cosine is printed.
    store_dtype
        Precision of the stored vectors: int8 takes a quarter of the space, binary a thirty-second. What that
        costs is printed.
    ranges
        A file of int8 vectors by the same model, to use its ranges. Two int8 files compare only if they have
        the same ranges.
    shard_rows
        Rows per shard. If the job is killed, at most one shard is lost.
    resume
        Resume an interrupted job. A finished file of the same rows and settings stays as it is.
    engine
        ray computes on a Ray cluster: the one that RAY_ADDRESS names, or that this machine belongs to.
        Without a cluster it uses this machine alone.

    Examples
    --------
    bertsmith embed minilm articles.parquet --out vectors.parquet

    bertsmith embed minilm questions.csv --text question --kind query --out questions.parquet

    bertsmith embed runs/search/model - --format lines --store-dtype int8 --out lines.parquet --resume

    bertsmith embed minilm articles.parquet --out vectors.parquet --compute-dtype float32

    bertsmith embed minilm articles.parquet --out vectors.parquet --engine ray
    """
    import torch

    from bertsmith.inference.embedding.embedder import Embedder
    from bertsmith.inference.embedding.job import embed_file
    from bertsmith.tasks.checkpoints.sentence_folder import is_matryoshka

    dtype = None if compute_dtype is None else getattr(torch, compute_dtype)
    embedder = Embedder(
        *(model, prefix, prefix, max_length, long_texts, dimensions),
        compute_dtype=dtype,
        prompt_name=prompt_name,
    )
    if embedder.int8_choice is not None:
        print_note(str(embedder.int8_choice))
    if embedder.width < embedder.full_width and not is_matryoshka(embedder.folder):
        print_note(
            f"{embedder.folder} doesn't say that it was trained for fewer dimensions (Matryoshka). If it "
            f"wasn't, vectors of {embedder.width} of {embedder.full_width} may find less: compare both."
        )
    with _show_rates() as watch:
        result = embed_file(
            embedder,
            str(input),
            out,
            model=model,
            text=text,
            id=id,
            kind=kind,
            store_dtype=store_dtype,
            ranges=_read_ranges(ranges, embedder),
            shard_rows=shard_rows,
            resume=resume,
            overwrite=overwrite,
            engine=engine,
            watch=watch,
            **collect_options(layout),
        )
    _print_result(result)


def _read_ranges(path: Path | None, embedder: "Embedder") -> "Int8Ranges | None":
    from bertsmith.inference.embedding.vector_file import read_about

    if path is None:
        return None
    about = read_about(path)
    if about.int8_ranges is None:
        raise InputError(
            f"{path} holds no int8 vectors, so it has no ranges. Name a file made with --store-dtype int8."
        )
    same_model = about.model_sha256 == embedder.model_sha256
    if not same_model or about.tokenizer_sha256 not in ("", embedder.tokenizer.sha256):
        made_by = f"{about.model} with another vocabulary" if same_model else f"another model, {about.model}"
        raise InputError(
            f"{path} holds vectors of {made_by}: its ranges don't fit {embedder.folder}. "
            "Name a file made by the same model."
        )
    return about.int8_ranges


@contextmanager
def _show_rates() -> "Iterator[Watch]":
    """A line that is kept up to date in a terminal; elsewhere a line now and then."""
    with error_console.status("Embedding") as status:
        say = paced_lines()

        def watch(count: "Count") -> None:
            line = f"Embedding: {_format_rate(count)}"
            if error_console.is_terminal:
                status.update(line)
            else:
                say(line)

        yield watch


def _format_rate(count: "Count") -> str:
    seconds = max(count.seconds, 1e-9)
    return (
        f"{count.texts:,} texts, {count.tokens:,} tokens in {count.seconds:,.1f} s: "
        f"{count.texts / seconds:,.0f} texts/s, {count.tokens / seconds:,.0f} tokens/s"
    )


def _print_result(result: "EmbeddingResult") -> None:
    about, loss = result.about, result.loss
    lines = [_format_rate(result.computed) if result.computed.texts else "Nothing was left to compute."]
    if loss is not None:
        nearest = "nearest" if loss.k == 1 else f"{loss.k} nearest"
        kept = f", and {loss.neighbours_kept:.1%} of the {nearest} stay so" if loss.vectors > 2 else ""
        lines.append(
            f"{about.precision}: cosines are off by {loss.cosine_error:.4f} on average{kept}, among "
            f"{loss.vectors:,} vectors."
        )
    lines.append(
        f"{result.path}: {result.whole.texts:,} vectors, {about.dimensions} dimensions, {about.precision}"
    )
    console.print("\n".join(lines), markup=False, soft_wrap=True)
    if result.blank:
        print_warning(
            f"{result.blank:,} rows have no text, the first is {result.first_blank}: they got the vector of "
            "an empty text"
        )
    for sentence in result.doubts:
        print_warning(sentence)


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
        vector searches by meaning (by embeddings), text by words (BM25); hybrid fuses both rankings (RRF).
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
    from bertsmith.inference.index.index import Index

    opened = Index.open(index)
    hits = opened.search(query, k, mode, where, reranker, per_document)
    if json:
        for hit in hits:
            metadata = dict(hit.metadata)
            for name, value in metadata.items():
                if isinstance(value, float) and not isfinite(value):  # NaN and Infinity are no JSON
                    metadata[name] = None
            fields = asdict(hit) | {"metadata": metadata, "place": hit.place}
            sys.stdout.write(printable(dumps(fields, ensure_ascii=False, allow_nan=False)) + "\n")
        return
    kind = "relevance" if reranker else _SCORES[mode]
    for rank, hit in enumerate(hits, start=1):
        console.print(_format_heading(rank, hit, kind))
        console.print(_format_passage(hit))
        console.print()
    if not hits:
        console.print("Nothing was found.", markup=False)
    elif kind == _SCORES["hybrid"]:
        console.print(_FUSION, markup=False)


def _format_heading(rank: int, hit: "Hit", kind: str) -> Text:
    """The hit's rank, where it is, its title, and its score with its kind: kinds can't be compared."""
    heading = Text(f"{rank}  ")
    heading.append(_join_lines(hit.place), style="bold cyan")
    if hit.title:
        heading.append(f"  {_join_lines(hit.title)}", style="bold")
    heading.append(f"  {kind} {hit.score:.4f}", style="dim")
    return heading


def _join_lines(text: str) -> str:
    return " ".join(text.translate(_CONTROL).split())


def _format_passage(hit: "Hit") -> Text:
    """The passage's text, cut if it is long, with the query's words marked."""
    start, end = _find_window(hit)
    text = Text(hit.text[start:end].translate(_CONTROL))
    for begin, stop in hit.matches:
        if start <= begin and stop <= end:
            text.stylize("bold yellow", begin - start, stop - start)
    before, after = "… " if start else "", " …" if end < len(hit.text) else ""
    return Text.assemble(before, text, after)


def _find_window(hit: "Hit") -> tuple[int, int]:
    """The part of a long passage that begins a little before its first match."""
    if len(hit.text) <= _SHOWN:
        return 0, len(hit.text)
    first = hit.matches[0][0] if hit.matches else 0
    start = max(0, min(first - _SHOWN // 4, len(hit.text) - _SHOWN))
    if start:
        start = hit.text.find(" ", start, first) + 1 or start
    return start, start + _SHOWN
