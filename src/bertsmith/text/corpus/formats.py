"""Which convention a file follows, and the reader for each.

A name ending in .jsonl, .ndjson, .json, .csv, .tsv, .tab or .parquet (before .gz or .zst) settles it. Any
other file is text, and its beginning decides:
1. `<doc ` first: WikiExtractor's output.
2. No blank line between two lines: one document.
3. Google's convention, one sentence a line and a blank line between documents, where four lines in five end
   as sentences do, at most one in four holds two of them, as paragraphs do, and most blocks have two lines
   and more. What begins with a title is an article, and so are its kind: see `of_folder`.
4. Otherwise the blank lines separate paragraphs of one document, unless the file is longer than
   4 million characters. War and Peace has 3.3 million: so long a file is a collection, and they separate
   documents.
`--format` overrides all of this.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, groupby, islice

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
    ".tab": "tsv",
    ".parquet": "parquet",
}
LAYOUTS: dict[Format, LineLayout] = {
    "wikiextractor": "paragraph-lines",
    "lines": "sentence-lines",
}  # others: folded
COLLECTION = 4_000_000  # characters; longer than any one book
LOOKED_AT = 2_000  # lines whose ends are looked at
NEIGHBOURS = 20  # files of a folder that are looked at, evenly spread
_SENTENCE_END = re.compile(r"[.!?:;…。！？।؟۔][\"'”’»)\]]*\s*$")
# behind the end of a sentence another one, which begins neither in lower case nor with a digit
_NEXT_SENTENCE = re.compile(
    r"[.!?…।؟۔][\"'”’»)\]]*\s+[\"'“‘«(\[]*(?![0-9a-zà-öø-ÿа-яё])\w|[。！？][”’」』）]*\w"
)


def format_by_name(file: SourceFile, settings: CorpusSettings) -> Format:
    """The format asked for, else the one the file's name tells, else 'auto': look inside."""
    return settings.format if settings.format != "auto" else BY_SUFFIX.get(file.suffix, "auto")


def read_texts(
    stream: SourceStream, settings: CorpusSettings, folder: Callable[[], Format | None]
) -> tuple[Format, Iterator[plain.Text]]:
    """The format of a file that isn't Parquet, and its documents as (id within the file, text). `folder`
    gives what `of_folder` says of the files beside it.
    """
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
        if format in ("file", "lines") and sum(map(len, sample)) < COLLECTION:
            format = folder() or format
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
    blocks = [list(block) for is_filled, block in groupby(lines[:LOOKED_AT], bool) if is_filled]
    if len(blocks) < 2:
        return "file"
    if _has_sentence_lines(blocks):
        return "lines"
    return "blank-lines" if sum(map(len, sample)) >= COLLECTION else "file"  # counted as `_sample` does


def _has_sentence_lines(blocks: Sequence[Sequence[str]]) -> bool:
    filled = list(chain.from_iterable(blocks))
    ends = sum(1 for line in filled if _SENTENCE_END.search(line))
    paragraphs = sum(1 for line in filled if _NEXT_SENTENCE.search(line))
    single = sum(1 for block in blocks if len(block) == 1)
    has_title = len(blocks[0]) == 1 and not _SENTENCE_END.search(blocks[0][0])
    return (
        ends >= 0.8 * len(filled)
        and paragraphs <= 0.25 * len(filled)
        and single < 0.5 * len(blocks)
        and not has_title
    )


def of_folder(files: Sequence[SourceFile], settings: CorpusSettings) -> Format | None:
    """`file` or `lines`, where four in five of a folder's text files are so: the others look different by
    chance, such as a short article. None where they differ. WikiExtractor's and long files don't count.
    """
    formats = list[Format]()
    for file in files[:: -(-len(files) // NEIGHBOURS)]:
        with SourceStream(file, settings) as stream:
            if not stream.looks_binary:
                formats.append(detect(list(islice(stream.lines(plain.LONGEST), LOOKED_AT))))
    counts = Counter[Format](format for format in formats if format in ("file", "lines"))
    return next((format for format, count in counts.items() if count >= 0.8 * counts.total()), None)


def _sample(lines: Iterator[str]) -> list[str]:
    sample, size = [], 0
    for line in lines:
        sample.append(line)
        size += len(line) + 1
        if size >= COLLECTION + len(sample):
            break
    return sample
