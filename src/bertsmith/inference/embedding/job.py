"""embed_file: embeds the texts of a table into a Parquet file of vectors.

Vectors are computed and written shard by shard, so that a job that is killed loses at most one shard. Read
`embed_file`, then `_embed_missing_shards`.
"""

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
from bertsmith.text.workers import Engine, map_in_order_by_ray, require_engine

SHARD_ROWS = 4096
_OTHER_FORMATS = frozenset(
    {".csv", ".tsv", ".json", ".jsonl", ".ndjson", ".txt", ".npy", ".npz", ".safetensors", ".gz", ".zst"}
)
_ID = "id"
_SPELLINGS = ("id", "ID", "Id")  # tried for a stream, whose columns aren't known beforehand


@dataclass(frozen=True)
class Count:
    """Numbers of texts and tokens, and the seconds that computing them took."""

    texts: int
    tokens: int
    seconds: float


Watch = Callable[[Count], None]


@dataclass(frozen=True)
class EmbeddingResult:
    """What `embed_file` wrote.

    `whole` counts the texts in the file, `computed` those that this run added. `loss` is what the storage
    precision costs, measured on the first vectors of this run; None for float32. `blank` is the number of
    rows without a text, the first of which is `first_blank`. `doubts` are sentences on what may have been
    misread.
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
    """Embeds the rows of a CSV, TSV, JSON lines, Parquet or text file, or of standard input ('-'), into the
    Parquet file `out` (see vector_file.py for its format).

    `model` is the model's name in the file's metadata, by default that of the embedder's folder. Without
    `text` the column of texts is guessed by its name; without `id` a column named id is used, or else the
    row's number, from 1. int8's `ranges` are learnt from the first shard unless given. With `resume`,
    finished shards are kept, and a finished file of the same rows and settings is left alone. With `engine`
    "ray" a cluster computes the shards, while this process reads the rows and writes. In memory are
    `shard_rows` vectors and the ids of three shards; on a cluster, of all shards of a round (see workers).

    Raises InputError if `out` exists, unless `overwrite`; for a name with another format's ending, ranges of
    another width, other rows or settings than the shards were made with, rows that can't be read, and shards
    that another process is writing.
    """
    if shard_rows < 1:
        raise InputError(f"--shard-rows must be 1 or more, found {shard_rows}.")
    require_engine(engine)
    about = _describe(embedder, model, kind, store_dtype, ranges, engine)
    parts = ShardFolder(behind_links(out), about, shard_rows)
    is_finished = resume and not overwrite and parts.out.is_file()
    if not is_finished:
        if is_standard_output(out) or is_stream(out):
            raise InputError(
                f"{out} is not a file. Vectors are first written in parts beside a file, so name one "
                "as --out."
            )
        require_no_loss(parts.out, overwrite, [input, embedder.folder])
        if (suffix := Path(out).suffix.lower()) in _OTHER_FORMATS:
            raise InputError(
                f"Vectors are written as Parquet, but {out} ends in {suffix}. Give --out the ending .parquet."
            )
    layout: dict[str, Any] = {"header": header, "format": format, "encoding": encoding}
    rows = _read_rows(input, text, id, layout)
    if is_finished:
        result = _verify_finished(parts, ShardedRows(rows, shard_rows))
    else:
        make_folder(parts.folder)
        with sole_writer(parts.folder):
            parts.open(resume)
            result = _embed_missing_shards(embedder, rows, parts, kind, engine, watch)
    texts = _read_texts_again(input, text, id, layout)
    return replace(result, doubts=tuple(quoting_warnings(input, texts, format)))


def _embed_missing_shards(
    embedder: Embedder,
    input_rows: Iterator[Row],
    parts: ShardFolder,
    kind: PromptKind,
    engine: Engine,
    watch: Watch | None,
) -> EmbeddingResult:
    """Computes the shards that are missing, then joins all of them into the file."""
    hashes, texts_before, tokens_before = parts.done()
    rows = ShardedRows(input_rows, parts.shard_rows, hashes)
    started, computed = time.monotonic(), Count(0, 0, 0.0)
    precision_loss: Loss | None = None

    def report(texts_before: int, tokens_before: int) -> None:
        if watch is not None:
            watch(Count(texts_before, tokens_before, time.monotonic() - started))

    if engine == "ray":
        chunks = _embed_by_ray(embedder, rows, kind, report)
    else:
        chunks = embedder.embed_batches(rows.texts(), kind, rows.size, report)
    try:
        for number, chunk in enumerate(chunks, start=len(hashes)):
            if parts.about.precision == "int8" and parts.about.ranges is None:
                parts.note(parts.about.with_ranges(Int8Ranges.of(chunk.vectors)))
            if precision_loss is None and parts.about.precision != "float32" and len(chunk.vectors) > 1:
                precision_loss = loss(chunk.vectors, decode(encode(chunk.vectors, parts.about), parts.about))
            ids, digest = rows.waiting.popleft()
            parts.write(number, vector_table(ids, chunk.vectors, parts.about), digest, chunk.tokens)
            seconds = time.monotonic() - started
            computed = Count(computed.texts + len(ids), computed.tokens + chunk.tokens, seconds)
        parts.join(rows.shards, rows.sha256)
    finally:
        if not parts.shards():
            parts.remove()
    total = Count(texts_before + computed.texts, tokens_before + computed.tokens, computed.seconds)
    return EmbeddingResult(
        parts.out, parts.about, total, computed, precision_loss, rows.blank, rows.first_blank
    )


def _embed_by_ray(
    embedder: Embedder, rows: ShardedRows, kind: PromptKind, report: Callable[[int, int], None]
) -> Iterator[EmbeddedChunk]:
    """Embeds shards on a Ray cluster. A shard's vectors depend on its texts alone, so they are the same on
    any machine.
    """
    texts_left, texts_done, tokens_done = rows.texts(), 0, 0
    shards = iter(lambda: list(islice(texts_left, rows.size)), [])
    for chunk in map_in_order_by_ray(partial(_embed_shard, embedder, kind), ((shard,) for shard in shards)):
        yield chunk
        texts_done, tokens_done = texts_done + len(chunk.vectors), tokens_done + chunk.tokens
        report(texts_done, tokens_done)


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
    """The result for a file that is finished. Raises InputError unless it is of these rows and settings."""
    about = read_about(parts.out)
    require_same(about, parts.about, parts.out)
    count = 0
    for _ in rows.texts():
        count += 1
        rows.waiting.clear()  # the ids aren't needed
    if pq.read_metadata(parts.out).metadata.get(ROWS.encode()) != rows.sha256.encode():
        raise InputError(
            f"{parts.out} was made from other rows than the input has now. Choose another --out, or remove "
            "it to embed the rows again."
        )
    parts.remove()
    counts = Count(count, 0, 0.0), Count(0, 0, 0.0)
    return EmbeddingResult(parts.out, about, *counts, None, rows.blank, rows.first_blank)


def _read_rows(
    input: Path | str, text: str | int | None, id: str | int | None, layout: dict[str, Any]
) -> Iterator[Row]:
    """Reads rows as (text,) or (text, id); a blank line of a text file is a row without a text."""
    if str(input) == "-":
        columns = ["text" if text is None else text, *([] if id is None else [id])]
        optional_columns = _SPELLINGS if id is None else ()
        rows = stream_rows(input, columns, optional=optional_columns, blank_lines=True, **layout)
        return _keep_ids_if_any(rows) if id is None else rows
    names = read_column_names(input, **layout)
    id = _find_id_column(names) if id is None else id
    json_layout = {name: layout[name] for name in ("format", "encoding")}
    if id is None and are_objects(input, **json_layout):
        # objects may omit keys: a column of ids that the first row lacks must still be found
        id = _find_id_column(read_keys(input, **json_layout))
    text = guess_text(input, **layout) if text is None else text
    return stream_rows(input, [text, *([] if id is None else [id])], blank_lines=True, **layout)


def _read_texts_again(
    input: Path | str, text: str | int | None, id: str | int | None, layout: dict[str, Any]
) -> Iterator[str]:
    """The texts once more. Lazy, because a pipe can't be opened twice; none for standard input."""
    if str(input) != "-":
        for row in _read_rows(input, text, id, layout):
            yield as_text(row.values[0], row.where)


def _keep_ids_if_any(rows: Iterator[Row]) -> Iterator[Row]:
    """Reduces a stream's rows to (text, id) or (text,): the first row shows how the column of ids is spelled.
    Raises InputError for a later row with an id if the first has none.
    """
    first = next(rows)
    id_column = [column for column, value in enumerate(first.values) if column and value is not None][:1]
    for row in chain([first], rows):
        row_id = next((value for value in row.values[1:] if value is not None), None)
        if not id_column and row_id is not None:
            raise InputError(
                f"{row.where} has the id {row_id!r}, and the first row has none. Give an id to all or to "
                "none."
            )
        yield Row(tuple(row.values[column] for column in (0, *id_column)), row.where)


def _find_id_column(names: Sequence[str]) -> str | None:
    return next((name for name in names if name.lower() == _ID), None)
