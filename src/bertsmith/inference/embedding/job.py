"""A table's texts → a Parquet file of vectors, shard by shard, so that a kill costs one shard at most."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from bertsmith.errors import InputError
from bertsmith.files import behind_links, is_standard_output, is_stream, make_folder, require_no_loss
from bertsmith.inference.embedding.embedder import EmbeddedChunk, Embedder, PromptKind
from bertsmith.inference.embedding.shards import ShardedRows, ShardFolder, require_same
from bertsmith.inference.embedding.vector_file import ROWS, About, decode, encode, read_about, vector_table
from bertsmith.inference.embedding.vectors import Int8Ranges, Loss, Precision, loss
from bertsmith.inference.lock import sole_writer
from bertsmith.text.files.rows import (
    are_objects,
    guess_text,
    quoting_warnings,
    read_column_names,
    read_keys,
    stream_rows,
)
from bertsmith.text.files.tables import Row
from bertsmith.text.files.values import as_text
from bertsmith.text.workers import Engine, ordered_by_ray, require_engine

SHARD_ROWS = 4096
_OTHER_FORMATS = frozenset(
    {".csv", ".tsv", ".json", ".jsonl", ".ndjson", ".txt", ".npy", ".npz", ".safetensors", ".gz", ".zst"}
)
_ID = "id"
_SPELLINGS = ("id", "ID", "Id")  # a stream's columns aren't known beforehand


@dataclass(frozen=True)
class Count:
    """Texts and tokens, and the seconds they took."""

    texts: int
    tokens: int
    seconds: float


Watch = Callable[[Count], None]


@dataclass(frozen=True)
class EmbeddingResult:
    """`whole` counts what is in the file, `computed` what this run added; `loss` is that of the precision on
    the first vectors of this run, None for float32. `blank` rows have no text, from `first_blank`
    on. `doubts` are sentences on what may have been misread.
    """

    path: Path
    about: About
    whole: Count
    computed: Count
    loss: Loss | None = None
    blank: int = 0
    first_blank: str = ""
    doubts: tuple[str, ...] = ()


def embed_file(
    embedder: Embedder,
    input: Path | str,
    out: Path | str,
    *,
    model: str = "",
    text: str | int | None = None,
    id: str | int | None = None,
    kind: PromptKind = "document",
    store_dtype: Precision = "float32",
    ranges: Int8Ranges | None = None,
    shard_rows: int = SHARD_ROWS,
    header: bool = True,
    format: str | None = None,
    encoding: str = "utf-8",
    resume: bool = False,
    overwrite: bool = False,
    engine: Engine = "local",
    watch: Watch | None = None,
) -> EmbeddingResult:
    """Vectors of a CSV, TSV, JSON lines, Parquet or text file, or of standard input ('-'); see vector_file.

    `model` is the name that the file notes, by default that of the embedder's folder. Without `text` the
    names of the columns decide; without `id` a column of that name is taken, else the row's number from 1.
    int8's `ranges` are learnt from the first shard unless given. With `resume` finished shards are kept, and
    a finished file of the same rows and settings is left as it is. With `engine` "ray" a cluster computes the
    shards, and this process reads the rows and writes. Memory: `shard_rows` vectors and the ids of three
    shards; on a cluster, of all shards of a round (see workers). Raises InputError for a file that exists
    unless `overwrite` says to replace it, a name that ends as another format's, ranges of another width,
    other rows or settings, rows that can't be read, and parts that another process is writing.
    """
    if shard_rows < 1:
        raise InputError(f"--shard-rows must be 1 or more, found {shard_rows}.")
    require_engine(engine)
    about = _describe(embedder, model, kind, store_dtype, ranges, engine)
    parts = ShardFolder(behind_links(out), about, shard_rows)
    finished = resume and not overwrite and parts.out.is_file()
    if not finished:
        if is_standard_output(out) or is_stream(out):
            raise InputError(
                f"{out} is not a file. Vectors are first written in parts beside a file, so name one "
                "as --out."
            )
        require_no_loss(parts.out, overwrite, [input, embedder.folder])
        if (ending := Path(out).suffix.lower()) in _OTHER_FORMATS:
            raise InputError(
                f"Vectors are written as Parquet, but {out} ends in {ending}. Give --out the ending .parquet."
            )
    layout: dict[str, Any] = {"header": header, "format": format, "encoding": encoding}
    found = _read_rows(input, text, id, layout)
    if finished:
        result = _verify_finished(parts, ShardedRows(found, shard_rows))
    else:
        make_folder(parts.folder)
        with sole_writer(parts.folder):
            parts.open(resume)
            result = _embed_missing_shards(embedder, found, parts, kind, engine, watch)
    texts = _read_texts_again(input, text, id, layout)
    return replace(result, doubts=tuple(quoting_warnings(input, texts, format)))


def _embed_missing_shards(
    embedder: Embedder,
    found: Iterator[Row],
    parts: ShardFolder,
    kind: PromptKind,
    engine: Engine,
    watch: Watch | None,
) -> EmbeddingResult:
    """The shards that aren't there, then the file of all."""
    hashes, texts, tokens = parts.done()
    rows = ShardedRows(found, parts.shard_rows, hashes)
    started, computed = time.monotonic(), Count(0, 0, 0.0)
    cost: Loss | None = None

    def report(texts: int, tokens: int) -> None:
        if watch is not None:
            watch(Count(texts, tokens, time.monotonic() - started))

    if engine == "ray":
        chunks = _embed_by_ray(embedder, rows, kind, report)
    else:
        chunks = embedder.embed_batches(rows.texts(), kind, rows.size, report)
    try:
        for number, chunk in enumerate(chunks, start=len(hashes)):
            if parts.about.precision == "int8" and parts.about.ranges is None:
                parts.note(parts.about.with_ranges(Int8Ranges.of(chunk.vectors)))
            if cost is None and parts.about.precision != "float32" and len(chunk.vectors) > 1:
                cost = loss(chunk.vectors, decode(encode(chunk.vectors, parts.about), parts.about))
            ids, digest = rows.waiting.popleft()
            parts.write(number, vector_table(ids, chunk.vectors, parts.about), digest, chunk.tokens)
            seconds = time.monotonic() - started
            computed = Count(computed.texts + len(ids), computed.tokens + chunk.tokens, seconds)
        parts.join(rows.shards, rows.sha256)
    finally:
        if not parts.shards():
            parts.remove()
    whole = Count(texts + computed.texts, tokens + computed.tokens, computed.seconds)
    return EmbeddingResult(parts.out, parts.about, whole, computed, cost, rows.blank, rows.first_blank)


def _embed_by_ray(
    embedder: Embedder, rows: ShardedRows, kind: PromptKind, report: Callable[[int, int], None]
) -> Iterator[EmbeddedChunk]:
    """A shard's vectors depend on its texts alone, and so are the same wherever it is computed."""
    waiting, texts, tokens = rows.texts(), 0, 0
    shards = iter(lambda: list(islice(waiting, rows.size)), [])
    for chunk in ordered_by_ray(partial(_embed_shard, embedder, kind), ((shard,) for shard in shards)):
        yield chunk
        texts, tokens = texts + len(chunk.vectors), tokens + chunk.tokens
        report(texts, tokens)


def _embed_shard(embedder: Embedder, kind: PromptKind, texts: Sequence[str]) -> EmbeddedChunk:
    (shard,) = embedder.embed_batches(texts, kind, len(texts))
    return shard


def _describe(
    embedder: Embedder,
    model: str,
    kind: PromptKind,
    store_dtype: Precision,
    ranges: Int8Ranges | None,
    engine: Engine,
) -> About:
    products = embedder.compute_dtype if engine == "local" else embedder.dtype_of_copies
    if ranges is not None:
        if store_dtype != "int8":
            raise InputError(f"Ranges are for int8 vectors, found {store_dtype}. Add --store-dtype int8.")
        if len(ranges.lowest) != embedder.width:
            raise InputError(
                f"The ranges are for vectors of {len(ranges.lowest)} dimensions, but these have "
                f"{embedder.width}. Take ranges made with the same model and --dimensions."
            )
    about = About(
        model=model or embedder.folder.name,
        model_sha256=embedder.model_sha256,
        tokenizer_sha256=embedder.tokenizer.sha256,
        kind=kind,
        prefix=embedder.prefixes[kind],
        max_length=embedder.max_length,
        long_texts=embedder.long_texts,
        pooling=embedder.pooling,
        normalise=embedder.normalise,
        dimensions=embedder.width,
        products=str(products).removeprefix("torch."),
        precision=store_dtype,
    )
    return about if ranges is None else about.with_ranges(ranges)


def _verify_finished(parts: ShardFolder, rows: ShardedRows) -> EmbeddingResult:
    """The file as it is, if it is of these rows and settings."""
    noted = read_about(parts.out)
    require_same(noted, parts.about, parts.out)
    count = 0
    for _ in rows.texts():
        count += 1
        rows.waiting.clear()  # of ids that nobody asks for
    if pq.read_metadata(parts.out).metadata.get(ROWS.encode()) != rows.sha256.encode():
        raise InputError(
            f"{parts.out} was made from other rows than the input has now. Choose another --out, or remove "
            "it to embed the rows again."
        )
    parts.remove()
    counts = Count(count, 0, 0.0), Count(0, 0, 0.0)
    return EmbeddingResult(parts.out, noted, *counts, None, rows.blank, rows.first_blank)


def _read_rows(
    input: Path | str, text: str | int | None, id: str | int | None, layout: dict[str, Any]
) -> Iterator[Row]:
    """(text,) or (text, id) of each; a blank line of plain text is a row without a text."""
    if str(input) == "-":
        columns, more = [text or "text", *([id] if id else [])], () if id else _SPELLINGS
        found = stream_rows(input, columns, optional=more, blank_lines=True, **layout)
        return found if id else _keep_ids_if_any(found)
    names = read_column_names(input, **layout)
    id = id or _find_id_column(names)
    of_objects = {name: layout[name] for name in ("format", "encoding")}
    if not id and are_objects(input, **of_objects):
        # they may leave keys out, and ids that only some rows have are an error there
        id = _find_id_column(read_keys(input, **of_objects))
    text = guess_text(input, **layout) if text is None else text
    return stream_rows(input, [text, *([id] if id else [])], blank_lines=True, **layout)


def _read_texts_again(
    input: Path | str, text: str | int | None, id: str | int | None, layout: dict[str, Any]
) -> Iterator[str]:
    """Nothing is opened until one is asked for, as of a pipe; none of standard input, which is read once."""
    if str(input) != "-":
        for row in _read_rows(input, text, id, layout):
            yield as_text(row.values[0], row.where)


def _keep_ids_if_any(rows: Iterator[Row]) -> Iterator[Row]:
    """(text, id) of each, or (text,): the first row of a stream says which spelling it has. Raises InputError
    for an id where that has none.
    """
    first = next(rows)
    ids = [place for place, value in enumerate(first.values) if place and value is not None][:1]
    for row in chain([first], rows):
        other = next((value for value in row.values[1:] if value is not None), None)
        if not ids and other is not None:
            raise InputError(
                f"{row.where} has the id {other!r}, and the first row has none. Give an id to all or to none."
            )
        yield Row(tuple(row.values[place] for place in (0, *ids)), row.where)


def _find_id_column(names: Sequence[str]) -> str | None:
    return next((name for name in names if name.lower() == _ID), None)
