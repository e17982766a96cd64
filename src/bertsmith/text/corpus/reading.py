"""Sources → batches of raw documents, one after the other, read piece by piece.

A batch is what one worker takes at a time. Files are read here, in one process, and only cut into documents:
that costs little beside what follows, and lets a single large file keep all workers busy. Of Python
packages only the paths are handed on, because parsing them is the work.

Each file follows a convention. `--format` names it, or else the file's name: .jsonl, .ndjson, .json, .csv,
.tsv, .tab or .parquet at its end (before .gz or .zst). Any other file is text, and its beginning decides:
1. `<doc ` first: WikiExtractor's output.
2. No blank line between two lines: one document.
3. Google's convention, one sentence a line and a blank line between documents, where four lines in five end
   as sentences do, at most one in four holds two of them, as paragraphs do, and most blocks have two lines
   and more. What begins with a title is an article, and so are its kind: see `detect_folder_format`.
4. Otherwise the blank lines separate paragraphs of one document, unless the file is longer than
   4 million characters. War and Peace has 3.3 million: so long a file is a collection, and they separate
   documents.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, groupby, islice

from bertsmith.text.corpus_settings import CorpusSettings, Format
from bertsmith.text.files import plain
from bertsmith.text.files.streams import SourceFile, SourceStream, hash_file
from bertsmith.text.files.tables import FORMATS, TableFormat, find_format_by_ending
from bertsmith.text.prose.pydocs import DocumentationFile, Package, read_page
from bertsmith.text.prose.sentences import LineLayout, RawDocument

BATCH_CHARACTERS = 1_500_000
BATCH_DOCUMENTS = 4_000

LAYOUTS: dict[str, LineLayout] = {
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
_PLAIN_READERS = {
    "file": plain.read_one_document,
    "blank-lines": plain.read_blocks,
    "lines": plain.read_blocks,
    "wikiextractor": plain.read_wikiextractor,
}


@dataclass(frozen=True)
class UnreadPage:
    """A file of a Python package that the worker is to read."""

    source: int
    id: str
    page: DocumentationFile


@dataclass
class DocumentBatch:
    """Documents, read or still to be read, in order. `size`: characters, roughly."""

    items: list[RawDocument | UnreadPage] = field(default_factory=list)
    size: int = 0

    def add(self, item: RawDocument | UnreadPage) -> None:
        """Takes in one more document."""
        self.items.append(item)
        self.size += item.page.size if isinstance(item, UnreadPage) else len(item.text)

    @property
    def is_full(self) -> bool:
        """Large enough to be worth a worker's while, small enough to hold several in memory."""
        return self.size >= BATCH_CHARACTERS or len(self.items) >= BATCH_DOCUMENTS

    def documents(self) -> Iterator[RawDocument]:
        """To be called in the worker: pages are read now."""
        for item in self.items:
            if isinstance(item, UnreadPage):
                yield read_page(item.source, item.id, item.page.path)
            else:
                yield item


@dataclass
class SourceDetails:
    """What reading found out about a source: its format, its hash, whether it was left out as binary."""

    format: str = ""
    sha256: str | None = None
    is_binary: bool = False


class SourceReader:
    """Iterates over the batches of all sources; `origins` then says what each source was."""

    def __init__(self, sources: Sequence[SourceFile | Package], settings: CorpusSettings) -> None:
        self._sources = sources
        self._settings = settings
        self._before = 0  # bytes of the sources already finished
        self.position = 0  # bytes read so far
        self.origins = [SourceDetails() for _ in sources]
        self._texts_of = defaultdict[str, list[SourceFile]](list)  # by folder, those to look into
        for source in sources:
            if isinstance(source, SourceFile) and format_by_name(source, settings) == "auto":
                self._texts_of[_folder(source)].append(source)
        self._folders: dict[str, Format | None] = {}

    def __iter__(self) -> Iterator[DocumentBatch]:
        batch = DocumentBatch()
        for item in self._documents():
            batch.add(item)
            if batch.is_full:
                yield batch
                batch = DocumentBatch()
        if batch.items:
            yield batch

    def _documents(self) -> Iterator[RawDocument | UnreadPage]:
        for index, source in enumerate(self._sources):
            if isinstance(source, Package):
                self.origins[index] = SourceDetails(f"Python package {source.version}", source.sha256)
                for page in source.pages:
                    self.position += page.size
                    yield UnreadPage(index, f"{source.name}#{page.name}", page)
            elif (table := FORMATS.get(format_by_name(source, self._settings))) and not table.IS_TEXT:
                yield from self._binary_table(index, source, table)
            else:
                yield from self._text_file(index, source)
            self._before += source.size
            self.position = self._before

    def _binary_table(self, index: int, file: SourceFile, table: TableFormat) -> Iterator[RawDocument]:
        self.origins[index] = SourceDetails(table.NAME, hash_file(file))
        with SourceStream(file, self._settings) as stream:
            rows = table.row_count(stream)
            texts = table.texts(stream, self._settings.text_column)

            def counted() -> Iterator[plain.Text]:
                """The position after each row, as if all took as much of the file."""
                for row, text in enumerate(texts, start=1):
                    if rows is not None:
                        self.position = self._before + file.size * row // rows
                    yield text

            yield from self._raw_documents(index, table.NAME, counted())

    def _text_file(self, index: int, file: SourceFile) -> Iterator[RawDocument]:
        with SourceStream(file, self._settings) as stream:
            if stream.looks_binary:
                self.origins[index].is_binary = True
                return
            format, texts = read_texts(stream, self._settings, lambda: self._format_of_folder(file))
            for document in self._raw_documents(index, format, texts):
                self.position = self._before + stream.position
                yield document
            self.origins[index] = SourceDetails(format, stream.sha256)

    def _format_of_folder(self, file: SourceFile) -> Format | None:
        folder = _folder(file)
        if folder not in self._folders:
            self._folders[folder] = detect_folder_format(self._texts_of[folder], self._settings)
        return self._folders[folder]

    def _raw_documents(self, index: int, format: str, texts: Iterator[plain.Text]) -> Iterator[RawDocument]:
        name, layout = self._sources[index].name, LAYOUTS.get(format, "folded")
        for id, text in texts:
            for part, piece in enumerate(_split_long_text(text)):
                yield RawDocument(index, f"{name}#{id}" + (f"/{part}" if part else ""), piece, layout)


def _folder(file: SourceFile) -> str:
    return file.path.rpartition("/")[0]


def _split_long_text(text: str) -> Iterator[str]:
    """The text, or, when it is too long to be held as sentences at once, its parts."""
    while len(text) > 2 * plain.LONGEST:
        cut = max(text.rfind("\n", 0, plain.LONGEST), text.rfind(" ", 0, plain.LONGEST)) + 1 or plain.LONGEST
        yield text[:cut]
        text = text[cut:]
    yield text


def format_by_name(file: SourceFile, settings: CorpusSettings) -> str:
    """The format asked for, else the one the file's name tells, else 'auto': look inside."""
    if settings.format != "auto":
        return settings.format
    if file.suffix == ".json":
        return "jsonl"
    table = None if file.suffix == ".txt" else find_format_by_ending(file.suffix)
    return "auto" if table is None else table.NAME


def read_texts(
    stream: SourceStream, settings: CorpusSettings, folder: Callable[[], Format | None]
) -> tuple[str, Iterator[plain.Text]]:
    """The format of a file that holds text, and its documents as (id within the file, text). `folder` gives
    what `detect_folder_format` says of the files beside it.
    """
    format = format_by_name(stream.file, settings)
    if format not in ("auto", *_PLAIN_READERS):
        return format, FORMATS[format].texts(stream, settings.text_column)
    lines = stream.lines(plain.LONGEST)
    if format == "auto":
        sample = _read_sample(lines)
        format, lines = detect_format(sample), chain(sample, lines)
        if format in ("file", "lines") and sum(map(len, sample)) < COLLECTION:
            format = folder() or format
    return format, _PLAIN_READERS[format](lines)


def _read_sample(lines: Iterator[str]) -> list[str]:
    sample, size = [], 0
    for line in lines:
        sample.append(line)
        size += len(line) + 1
        if size >= COLLECTION + len(sample):
            break
    return sample


def detect_format(sample: Sequence[str]) -> Format:
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
    return "blank-lines" if sum(map(len, sample)) >= COLLECTION else "file"  # counted as `_read_sample` does


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


def detect_folder_format(files: Sequence[SourceFile], settings: CorpusSettings) -> Format | None:
    """`file` or `lines`, where four in five of a folder's text files are so: the others look different by
    chance, such as a short article. None where they differ. WikiExtractor's and long files don't count.
    """
    formats = list[Format]()
    for file in files[:: -(-len(files) // NEIGHBOURS)]:
        with SourceStream(file, settings) as stream:
            if not stream.looks_binary:
                formats.append(detect_format(list(islice(stream.lines(plain.LONGEST), LOOKED_AT))))
    counts = Counter[Format](format for format in formats if format in ("file", "lines"))
    return next((format for format, count in counts.items() if count >= 0.8 * counts.total()), None)
