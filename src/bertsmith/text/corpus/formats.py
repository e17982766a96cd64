"""Which convention a file follows, and the reader for each.

A name ending in .jsonl, .ndjson, .json, .csv, .tsv or .parquet (before .gz or .zst) settles it. Any other
file is text, and its beginning decides:
1. `<doc ` first: WikiExtractor's output.
2. No blank line between two lines: one document.
3. Blank lines, blocks of two lines and more on average, and four lines in five that end as sentences do:
   Google's convention, one sentence a line and a blank line between documents.
4. Otherwise the blank lines separate paragraphs of one document, unless the file is longer than
   4 million characters. War and Peace has 3.3 million: so long a file is a collection, and they separate
   documents.
`--format` overrides all of this.
"""

import re
from collections.abc import Iterator, Sequence
from itertools import chain

from bertsmith.text.corpus_settings import CorpusSettings, Format
from bertsmith.text.files import plain, tables
from bertsmith.text.files.streams import SourceFile, SourceStream
from bertsmith.text.prose.sentences import LineLayout

BY_SUFFIX: dict[str, Format] = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".csv": "csv",
    ".tsv": "tsv",
    ".parquet": "parquet",
}
LAYOUTS: dict[Format, LineLayout] = {
    "wikiextractor": "paragraph-lines",
    "lines": "sentence-lines",
}  # others: folded
COLLECTION = 4_000_000  # characters; longer than any one book
LOOKED_AT = 2_000  # lines whose ends are looked at
_SENTENCE_END = re.compile(r"[.!?:;…。！？।؟۔][\"'”’»)\]]*\s*$")


def format_by_name(file: SourceFile, settings: CorpusSettings) -> Format:
    """The format asked for, else the one the file's name tells, else 'auto': look inside."""
    return settings.format if settings.format != "auto" else BY_SUFFIX.get(file.suffix, "auto")


def read_texts(stream: SourceStream, settings: CorpusSettings) -> tuple[Format, Iterator[plain.Text]]:
    """The format of a file that isn't Parquet, and its documents as (id within the file, text)."""
    name, column = stream.file.name, settings.text_column
    format = format_by_name(stream.file, settings)
    if format == "jsonl":
        return format, tables.json_lines(stream.lines(tables.LONGEST_LINE), name, column)
    if format in ("csv", "tsv"):
        return format, tables.separated(stream.whole_lines(tables.LONGEST_LINE), name, column, format)
    lines = stream.lines(plain.LONGEST)
    if format == "auto":
        sample = _sample(lines)
        format, lines = detect(sample), chain(sample, lines)
    return format, _PLAIN_READERS[format](lines)


_PLAIN_READERS = {
    "file": plain.one_document,
    "blank-lines": plain.blocks,
    "lines": plain.blocks,
    "wikiextractor": plain.wikiextractor,
}


def detect(sample: Sequence[str]) -> Format:
    """The convention of a text file, by its first `COLLECTION` characters or, if shorter, all of it."""
    lines = [line.rstrip() for line in sample]
    first = next((line for line in lines if line), "")
    if plain.DOC_OPENING.match(first):
        return "wikiextractor"
    blocks = _block_count(lines[:LOOKED_AT])
    if blocks < 2:
        return "file"
    filled = [line for line in lines[:LOOKED_AT] if line]
    like_sentences = sum(1 for line in filled if _SENTENCE_END.search(line))
    if len(filled) >= 2 * blocks and like_sentences >= 0.8 * len(filled):
        return "lines"
    return "blank-lines" if sum(map(len, sample)) >= COLLECTION else "file"  # counted as `_sample` does


def _block_count(lines: Sequence[str]) -> int:
    """Runs of lines that are not blank."""
    return sum(1 for before, line in zip(["", *lines], lines) if line and not before)


def _sample(lines: Iterator[str]) -> list[str]:
    sample, size = [], 0
    for line in lines:
        sample.append(line)
        size += len(line) + 1
        if size >= COLLECTION + len(sample):
            break
    return sample
