"""Sources → batches of raw documents, one after the other, read piece by piece.

A batch is what one worker takes at a time. Files are read here, in one process, and only cut into documents:
that costs little beside what follows, and lets a single large file keep all workers busy. Of Python
packages only the paths are handed on, because parsing them is the work.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from bertsmith.text.corpus.formats import LAYOUTS, format_by_name, of_folder, read_texts
from bertsmith.text.corpus_settings import CorpusSettings, Format
from bertsmith.text.files import tables
from bertsmith.text.files.plain import LONGEST, Text
from bertsmith.text.files.streams import SourceFile, SourceStream, hash_of
from bertsmith.text.prose.pydocs import Package, Page, read_page
from bertsmith.text.prose.sentences import RawDocument

BATCH_CHARACTERS = 1_500_000
BATCH_DOCUMENTS = 4_000


@dataclass(frozen=True)
class UnreadPage:
    """A file of a Python package that the worker is to read."""

    source: int
    id: str
    page: Page

    def read(self) -> RawDocument:
        """Its prose."""
        return read_page(self.source, self.id, self.page.path)


@dataclass
class Batch:
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
            yield item.read() if isinstance(item, UnreadPage) else item


@dataclass
class Origin:
    """What reading found out about a source: its format, its hash, whether it was left out as binary."""

    format: str = ""
    sha256: str | None = None
    is_binary: bool = False


class Reader:
    """Iterates over the batches of all sources; `origins` then says what each source was."""

    def __init__(self, sources: Sequence[SourceFile | Package], settings: CorpusSettings) -> None:
        self._sources = sources
        self._settings = settings
        self._before = 0  # bytes of the sources already finished
        self.position = 0  # bytes read so far
        self.origins = [Origin() for _ in sources]
        self._texts_of: defaultdict[str, list[SourceFile]] = defaultdict(
            list
        )  # by folder, those to look into
        for source in sources:
            if isinstance(source, SourceFile) and format_by_name(source, settings) == "auto":
                self._texts_of[_folder(source)].append(source)
        self._folders: dict[str, Format | None] = {}

    def __iter__(self) -> Iterator[Batch]:
        batch = Batch()
        for item in self._documents():
            batch.add(item)
            if batch.is_full:
                yield batch
                batch = Batch()
        if batch.items:
            yield batch

    def _documents(self) -> Iterator[RawDocument | UnreadPage]:
        for index, source in enumerate(self._sources):
            if isinstance(source, Package):
                yield from self._package(index, source)
            elif format_by_name(source, self._settings) == "parquet":
                yield from self._parquet(index, source)
            else:
                yield from self._text_file(index, source)
            self._before += source.size
            self.position = self._before

    def _package(self, index: int, package: Package) -> Iterator[UnreadPage]:
        self.origins[index] = Origin(f"Python package {package.version}", package.sha256)
        for page in package.pages:
            self.position += page.size
            yield UnreadPage(index, f"{package.name}#{page.name}", page)

    def _parquet(self, index: int, file: SourceFile) -> Iterator[RawDocument]:
        self.origins[index] = Origin("parquet", hash_of(file))
        with SourceStream(file, self._settings) as stream, stream.seekable() as opened:
            rows = max(tables.parquet_rows(opened, file.name), 1)
            texts = tables.parquet(opened, file.name, self._settings.text_column)
            yield from self._raw_documents(index, "parquet", self._counted(texts, file.size, rows))

    def _counted(self, texts: Iterator[Text], size: int, rows: int) -> Iterator[Text]:
        """The position after each row, as if all took as much of the file."""
        for row, text in enumerate(texts, start=1):
            self.position = self._before + size * row // rows
            yield text

    def _text_file(self, index: int, file: SourceFile) -> Iterator[RawDocument]:
        with SourceStream(file, self._settings) as stream:
            if stream.looks_binary:
                self.origins[index].is_binary = True
                return
            format, texts = read_texts(stream, self._settings, lambda: self._format_of_folder(file))
            for document in self._raw_documents(index, format, texts):
                self.position = self._before + stream.position
                yield document
            self.origins[index] = Origin(format, stream.sha256)

    def _format_of_folder(self, file: SourceFile) -> Format | None:
        folder = _folder(file)
        if folder not in self._folders:
            self._folders[folder] = of_folder(self._texts_of[folder], self._settings)
        return self._folders[folder]

    def _raw_documents(self, index: int, format: Format, texts: Iterator[Text]) -> Iterator[RawDocument]:
        name, layout = self._sources[index].name, LAYOUTS.get(format, "folded")
        for id, text in texts:
            for part, piece in enumerate(_pieces(text)):
                yield RawDocument(index, f"{name}#{id}" + (f"/{part}" if part else ""), piece, layout)


def _folder(file: SourceFile) -> str:
    return file.path.rpartition("/")[0]


def _pieces(text: str) -> Iterator[str]:
    """The text, or, when it is too long to be held as sentences at once, its parts."""
    while len(text) > 2 * LONGEST:
        cut = max(text.rfind("\n", 0, LONGEST), text.rfind(" ", 0, LONGEST)) + 1 or LONGEST
        yield text[:cut]
        text = text[cut:]
    yield text
