"""Reads sources as batches of raw documents, in order and a part of a file at a time.

A batch is the work of one worker. Files are read here, in one process, and only cut into documents: that
costs little compared with what follows, and lets a single large file keep all workers busy. For Python
packages only the paths are passed on, because parsing them is the main work.

Each file has a format. `--format` names it, or else the ending of the file's name: .jsonl, .ndjson, .json,
.csv, .tsv, .tab or .parquet (before .gz or .zst). Of a page (.html, .htm, .xhtml) the
text that a browser shows is one document. Any other file is text, and its beginning decides:
1. `<doc ` first: WikiExtractor's output.
2. No blank line between two lines: one document.
3. Google's convention, one sentence per line and a blank line between documents, if four lines in five end
   as sentences do, at most one in four contains the end of another sentence, as paragraphs do, and most
   blocks have two or more lines. A file that begins with a title is an article instead, and so are similar
   files of its folder: see `detect_folder_format`.
4. Otherwise the blank lines separate paragraphs of one document, unless the file is longer than 4 million
   characters (War and Peace has 3.3 million): then it is a collection, and they separate documents.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, groupby, islice

from bertsmith.text.corpus_settings import CorpusSettings, Format
from bertsmith.text.files import plain
from bertsmith.text.files.streams import SourceFile, SourceStream, hash_file, split_lines
from bertsmith.text.files.tables import FORMATS, TableFormat, find_format_by_ending
from bertsmith.text.prose.html_text import HTML_ENDINGS, HtmlText, extract_text
from bertsmith.text.prose.pydocs import DocumentationFile, Package, read_page
from bertsmith.text.prose.sentences import LineLayout, RawDocument

BATCH_CHARACTERS = 1_500_000
BATCH_DOCUMENTS = 4_000

LAYOUTS: dict[str, LineLayout] = {
    "wikiextractor": "paragraph-lines",
    "html": "paragraph-lines",
    "lines": "sentence-lines",
}  # others: folded
COLLECTION = 4_000_000  # characters; longer than any single book
SAMPLE_LINES = 2_000  # lines of a file that are examined
SAMPLE_FILES = 20  # files of a folder that are examined, evenly spread
_SENTENCE_END = re.compile(r"[.!?:;…。！？।؟۔][\"'”’»)\]]*\s*$")
# the end of a sentence and the beginning of another, which is neither a lower-case letter nor a digit
_NEXT_SENTENCE = re.compile(
    r"[.!?…।؟۔][\"'”’»)\]]*\s+[\"'“‘«(\[]*(?![0-9a-zà-öø-ÿа-яё])\w|[。！？][”’」』）]*\w"
)
_PLAIN_READERS = {
    "file": plain.read_one_document,
    "blank-lines": plain.read_blocks,
    "lines": plain.read_blocks,
    "wikiextractor": plain.read_wikiextractor,
    "html": plain.read_one_document,
}


@dataclass(frozen=True)
class UnreadPage:
    """A file of a Python package, which the worker reads."""

    source: int
    id: str
    page: DocumentationFile


@dataclass
class DocumentBatch:
    """Documents in order, read or still to be read. `size` is roughly their characters."""

    items: list[RawDocument | UnreadPage] = field(default_factory=list)
    size: int = 0

    def add(self, item: RawDocument | UnreadPage) -> None:
        """Appends one more document and adds its size."""
        self.items.append(item)
        self.size += item.page.size if isinstance(item, UnreadPage) else len(item.text)

    @property
    def is_full(self) -> bool:
        """Whether it is large enough for a worker; several such batches fit into memory."""
        return self.size >= BATCH_CHARACTERS or len(self.items) >= BATCH_DOCUMENTS

    def documents(self) -> Iterator[RawDocument]:
        """The documents, with pages of packages read now: to be called in the worker."""
        for item in self.items:
            if isinstance(item, UnreadPage):
                yield read_page(item.source, item.id, item.page.path)
            else:
                yield item


@dataclass
class SourceDetails:
    """What is known of a source once it is read: its format and hash, and whether it was binary."""

    format: str = ""
    sha256: str | None = None
    is_binary: bool = False


class SourceReader:
    """Iterates over the batches of all sources; afterwards `origins` has the details of each source."""

    def __init__(self, sources: Sequence[SourceFile | Package], settings: CorpusSettings) -> None:
        self._sources = sources
        self._settings = settings
        self._finished_bytes = 0  # of the sources already read
        self.position = 0  # bytes read so far
        self.origins = [SourceDetails() for _ in sources]
        self._text_files = defaultdict[str, list[SourceFile]](list)  # by folder: files of unknown format
        for source in sources:
            if isinstance(source, SourceFile) and format_by_name(source, settings) == "auto":
                self._text_files[_folder_name(source)].append(source)
        self._folder_formats: dict[str, Format | None] = {}

    def __iter__(self) -> Iterator[DocumentBatch]:
        batch = DocumentBatch()
        for item in self._read_documents():
            batch.add(item)
            if batch.is_full:
                yield batch
                batch = DocumentBatch()
        if batch.items:
            yield batch

    def _read_documents(self) -> Iterator[RawDocument | UnreadPage]:
        for index, source in enumerate(self._sources):
            if isinstance(source, Package):
                self.origins[index] = SourceDetails(f"Python package {source.version}", source.sha256)
                for page in source.pages:
                    self.position += page.size
                    yield UnreadPage(index, f"{source.name}#{page.name}", page)
            elif (table := FORMATS.get(format_by_name(source, self._settings))) and not table.IS_TEXT:
                yield from self._read_binary_table(index, source, table)
            else:
                yield from self._read_text_file(index, source)
            self._finished_bytes += source.size
            self.position = self._finished_bytes

    def _read_binary_table(self, index: int, file: SourceFile, table: TableFormat) -> Iterator[RawDocument]:
        self.origins[index] = SourceDetails(table.NAME, hash_file(file))
        with SourceStream(file, self._settings) as stream:
            rows = table.row_count(stream)
            texts = table.texts(stream, self._settings.text_column)

            def track_position() -> Iterator[plain.Text]:
                """The texts; `position` moves on after each row as if all rows were of equal size."""
                for row, text in enumerate(texts, start=1):
                    if rows is not None:
                        self.position = self._finished_bytes + file.size * row // rows
                    yield text

            yield from self._make_documents(index, table.NAME, track_position())

    def _read_text_file(self, index: int, file: SourceFile) -> Iterator[RawDocument]:
        with SourceStream(file, self._settings) as stream:
            if stream.looks_binary:
                self.origins[index].is_binary = True
                return
            format, texts = read_texts(stream, self._settings, lambda: self._detect_folder_format(file))
            for document in self._make_documents(index, format, texts):
                self.position = self._finished_bytes + stream.position
                yield document
            self.origins[index] = SourceDetails(format, stream.sha256)

    def _detect_folder_format(self, file: SourceFile) -> Format | None:
        folder = _folder_name(file)
        if folder not in self._folder_formats:
            self._folder_formats[folder] = detect_folder_format(self._text_files[folder], self._settings)
        return self._folder_formats[folder]

    def _make_documents(self, index: int, format: str, texts: Iterator[plain.Text]) -> Iterator[RawDocument]:
        name, layout = self._sources[index].name, LAYOUTS.get(format, "folded")
        for id, text in texts:
            for part, piece in enumerate(_split_long_text(text)):
                yield RawDocument(index, f"{name}#{id}" + (f"/{part}" if part else ""), piece, layout)


def _folder_name(file: SourceFile) -> str:
    return file.path.rpartition("/")[0]


def _split_long_text(text: str) -> Iterator[str]:
    """The text, or its parts if it is too long to be held in memory as sentences."""
    while len(text) > 2 * plain.LONGEST:
        cut = max(text.rfind("\n", 0, plain.LONGEST), text.rfind(" ", 0, plain.LONGEST)) + 1 or plain.LONGEST
        yield text[:cut]
        text = text[cut:]
    yield text


def format_by_name(file: SourceFile, settings: CorpusSettings) -> str:
    """The format of the settings, else that of the file's ending, else "auto": its content decides."""
    if settings.format != "auto":
        return settings.format
    if file.suffix == ".json":
        return "jsonl"
    if file.suffix in HTML_ENDINGS:
        return "html"
    table = None if file.suffix == ".txt" else find_format_by_ending(file.suffix)
    return "auto" if table is None else table.NAME


def read_texts(
    stream: SourceStream, settings: CorpusSettings, folder: Callable[[], Format | None]
) -> tuple[str, Iterator[plain.Text]]:
    """The format of a file that holds text, and its documents as (id within the file, text).

    `folder` returns what `detect_folder_format` returns for the files in the same folder.
    """
    format = format_by_name(stream.file, settings)
    if format not in ("auto", *_PLAIN_READERS):
        return format, FORMATS[format].texts(stream, settings.text_column)
    lines = stream.lines(plain.LONGEST)
    if format == "html":
        lines = split_lines(extract_text(HtmlText(), stream.chunks()), plain.LONGEST)
    if format == "auto":
        sample = _read_sample(lines)
        format, lines = detect_format(sample), chain(sample, lines)
        if format in ("file", "lines") and sum(map(len, sample)) < COLLECTION:
            format = folder() or format
    return format, _PLAIN_READERS[format](lines)


def _read_sample(lines: Iterator[str]) -> list[str]:
    """The next lines, with `COLLECTION` characters or all that there are."""
    sample, size = [], 0
    for line in lines:
        sample.append(line)
        size += len(line) + 1
        if size >= COLLECTION + len(sample):
            break
    return sample


def detect_format(sample: Sequence[str]) -> Format:
    """The format of a text file by a sample of its lines: the first `COLLECTION` characters, or all of it."""
    lines = [line.rstrip() for line in sample]
    first = next((line for line in lines if line), "")
    if plain.DOC_OPENING.match(first):
        return "wikiextractor"
    blocks = [list(block) for has_text, block in groupby(lines[:SAMPLE_LINES], bool) if has_text]
    if len(blocks) < 2:
        return "file"
    if _has_sentence_lines(blocks):
        return "lines"
    return "blank-lines" if sum(map(len, sample)) >= COLLECTION else "file"  # counted as `_read_sample` does


def _has_sentence_lines(blocks: Sequence[Sequence[str]]) -> bool:
    """Whether blocks of lines without blank ones have one sentence per line (point 3 above)."""
    lines = list(chain.from_iterable(blocks))
    ends = sum(1 for line in lines if _SENTENCE_END.search(line))
    paragraphs = sum(1 for line in lines if _NEXT_SENTENCE.search(line))
    single_lines = sum(1 for block in blocks if len(block) == 1)
    has_title = len(blocks[0]) == 1 and not _SENTENCE_END.search(blocks[0][0])
    return (
        ends >= 0.8 * len(lines)
        and paragraphs <= 0.25 * len(lines)
        and single_lines < 0.5 * len(blocks)
        and not has_title
    )


def detect_folder_format(files: Sequence[SourceFile], settings: CorpusSettings) -> Format | None:
    """`file` or `lines` if at least four in five of a folder's text files have that format, else None.

    The others, such as a short article, look different by chance. Files in WikiExtractor's format and
    collections aren't counted.
    """
    formats = list[Format]()
    for file in files[:: -(-len(files) // SAMPLE_FILES)]:
        with SourceStream(file, settings) as stream:
            if not stream.looks_binary:
                formats.append(detect_format(list(islice(stream.lines(plain.LONGEST), SAMPLE_LINES))))
    counts = Counter[Format](format for format in formats if format in ("file", "lines"))
    return next((format for format, count in counts.items() if count >= 0.8 * counts.total()), None)
