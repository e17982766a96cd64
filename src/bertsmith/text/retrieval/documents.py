"""Files and tables → documents to be searched, one after the other, each with its place and its hash.

| a file | becomes |
| --- | --- |
| .csv, .tsv, .tab, .jsonl, .ndjson, .parquet, and .json when it was named itself | a document a row |
| .html, .htm, .xhtml | one document, its text as a browser shows it |
| a text that begins as WikiExtractor's do, or any with `format` | an article, or block, each |
| any other text: .txt, .md, .rst, .py … | one document, as it stands |
| binary: a NUL byte near its beginning, or the first bytes of PDF, ZIP and the like | none; it is counted |

A text of more than a million characters comes in parts, documents of their own, so that no file is ever in
memory whole. Places are counted in the characters of the decoded file, its line ends turned into \\n; of HTML
in those of its text.
"""

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from pydantic import Field

from bertsmith.errors import InputError
from bertsmith.progress import Progress
from bertsmith.text.corpus_settings import CorpusSettings
from bertsmith.text.files.plain import DOC_OPENING, LONGEST, Article, read_articles, read_blocks
from bertsmith.text.files.sources import as_utf8, find_sources
from bertsmith.text.files.streams import SourceFile, SourceStream, split_lines
from bertsmith.text.files.tables import find_format_by_ending
from bertsmith.text.prose.html_text import HtmlText
from bertsmith.text.retrieval.document_rows import COLUMNS_HELP, DocumentRow, as_filter_value, read_table
from bertsmith.text.retrieval.titles import find_title, read_front_matter
from bertsmith.text.tokens.tokenizer import replace_surrogates
from bertsmith.validation import UserSettings

_NO_TABLES = (".json", ".txt")  # in a folder: a program's settings more often, and texts
_PAGES = {".html", ".htm", ".xhtml"}
_BINARY_BEGINNINGS = (
    b"%PDF-",
    b"PK\x03\x04",
    b"\x1f\x8b",
    b"\x89PNG",
    b"\xff\xd8\xff",
    b"GIF8",
    b"\xd0\xcf\x11\xe0",
)


class DocumentSettings(UserSettings):
    """How documents are read; the defaults live here and nowhere else."""

    id: str | None = Field(default=None, description="A table's column of ids. " + COLUMNS_HELP + ".")
    text: str | None = Field(default=None, description="A table's column of texts.")
    title: str | None = Field(default=None, description="A table's column of titles.")
    format: str | None = Field(
        default=None,
        description="What a named file is: csv, tsv, jsonl, json or parquet; or how documents lie in text: "
        "file, blank-lines, lines or wikiextractor, as for `corpus build`.",
    )
    encoding: str = Field(default="utf-8", description="Encoding of files without a byte-order mark.")
    encoding_errors: str = Field(
        default="strict", description="Bad bytes: strict stops, replace puts U+FFFD."
    )
    include: tuple[str, ...] = Field(
        default=(), description="Glob patterns: read only files with such names."
    )
    exclude: tuple[str, ...] = Field(
        default=(), description="Glob patterns: leave out files with such names."
    )


class SearchDocument(NamedTuple):
    """A text to be found again. `start` and `line`: where it begins in its source, from 0 and from 1.

    `line` is None where the text isn't the file's own: rows of tables, and HTML. `where`: for messages.
    `file_date`: when the file was last written, as 2026-01-31; None for rows, and where nobody knows.
    """

    id: str
    text: str
    title: str
    source: str
    where: str
    start: int = 0
    line: int | None = 1
    metadata: Mapping[str, Any] = MappingProxyType({})
    file_date: str | None = None

    @property
    def columns(self) -> Mapping[str, Any]:
        """What an index can filter by besides."""
        return self.metadata if self.file_date is None else {"file_date": self.file_date, **self.metadata}

    @property
    def sha256(self) -> str:
        """Of all that goes into an index: two documents of equal hash need not be embedded twice.

        The file's date is not in it, since a copied or cloned folder has other dates and the same texts.
        """
        content = json.dumps(
            [self.title, self.text, self.start, self.line, self.source, dict(self.metadata)], default=str
        )
        return hashlib.sha256(content.encode("utf-8", "surrogatepass")).hexdigest()


@dataclass
class SkippedDocuments:
    """What was passed over: names of binary files, places of empty documents, files not looked at, and
    files whose front matter can't be read, which is text then."""

    binary: list[str] = field(default_factory=list)
    empty: list[str] = field(default_factory=list)
    front_matter: list[str] = field(default_factory=list)
    hidden: int = 0
    excluded: int = 0

    def sentence(self) -> str:
        """'Left out: 2 binary files (a.png, b.pdf), 1 empty document (c.txt).', or nothing."""
        parts = [
            _format_count(len(self.binary), "binary file", self.binary),
            _format_count(len(self.empty), "empty document", self.empty),
            _format_count(self.hidden, "hidden file"),
            _format_count(self.excluded, "excluded file"),
        ]
        named = ", ".join(part for part in parts if part)
        unread = _format_count(len(self.front_matter), "front matter", self.front_matter)
        sentences = (
            f"Left out: {named}." if named else "",
            f"Taken as text, since it can't be read as YAML or TOML: {unread}." if unread else "",
        )
        return " ".join(filter(None, sentences))


class Documents:
    """The documents of SOURCES. Every iteration reads the files anew; `skipped` is of the last one.

    Raises InputError for a SOURCE that isn't there, a file in another encoding (which byte), a broken table
    (which line). Rows without text and files without any are skipped and counted. The files of the folder
    `leave_out` are no documents: an index may lie in the folder that it is of.
    """

    def __init__(
        self,
        sources: Sequence[str],
        settings: DocumentSettings | None = None,
        leave_out: Path | None = None,
    ) -> None:
        self.settings = settings or DocumentSettings()
        self._reading = CorpusSettings(
            encoding=self.settings.encoding,
            encoding_errors=self.settings.encoding_errors,
            include=self.settings.include,
            exclude=self.settings.exclude,
        )
        found = find_sources(list(sources), self._reading, leave_out)
        self._hidden, self._excluded = found.hidden, found.excluded
        files = [source for source in found.sources if isinstance(source, SourceFile)]
        if len(files) < len(found.sources):
            raise InputError(
                "pydocs: is a source of corpora only. Name files, folders or addresses to search."
            )
        self._named = {_name_by_path(file).name for file in files if "/" not in file.name}
        self.files = [_name_by_path(file) if "/" not in file.name else file for file in files]
        self.skipped = SkippedDocuments()

    @property
    def size(self) -> int:
        """Bytes on disk of all files."""
        return sum(file.size for file in self.files)

    def __iter__(self) -> Iterator[SearchDocument]:
        return self.of_files(lambda name: True)

    def of_files(
        self, wanted: Callable[[str], bool], progress: Progress | None = None
    ) -> Iterator[SearchDocument]:
        """The documents of those files whose name is wanted, none empty. Progress is in bytes of files."""
        self.skipped = SkippedDocuments(hidden=self._hidden, excluded=self._excluded)
        done = 0
        for file in self.files:
            if wanted(file.name):
                for document in self._of_file(file):
                    if document.text.strip():
                        yield document
                    else:
                        self.skipped.empty.append(document.where)
            done += file.size
            if progress is not None:
                progress(done, self.size, "bytes")

    def _of_file(self, file: SourceFile) -> Iterator[SearchDocument]:
        format = self._table_format(file)
        if format is not None:
            rows = read_table(file, format, self._reading, self.settings)
            return (part for row in rows for part in _row_documents(row, file.name))
        return self._of_text(file)

    def _table_format(self, file: SourceFile) -> str | None:
        named_itself, said = file.name in self._named, self.settings.format
        if named_itself and said in CONVENTIONS:
            return None
        if named_itself and (said or file.suffix == ".json"):
            return said or "json"
        found = None if file.suffix in _NO_TABLES else find_format_by_ending(file.suffix)
        return None if found is None else found.NAME

    def _of_text(self, file: SourceFile) -> Iterator[SearchDocument]:
        with SourceStream(file, self._reading) as stream:
            if stream.looks_binary or stream.head.startswith(_BINARY_BEGINNINGS):
                self.skipped.binary.append(file.name)
                return
            if file.suffix in _PAGES:
                yield from _page_documents(file, stream.chunks())
                return
            chunks = stream.chunks()
            first = next(chunks, "")
            read: Convention | None = read_articles if DOC_OPENING.match(first.lstrip()) else None
            if self.settings.format in CONVENTIONS:
                read = CONVENTIONS[self.settings.format]
            chunks = chain([first], chunks)
            yield from (
                self._text(file, chunks)
                if read is None
                else _article_documents(file, read(split_lines(chunks, LONGEST)))
            )

    def _text(self, file: SourceFile, chunks: Iterable[str]) -> Iterator[SearchDocument]:
        """One file as it stands; front matter of Markdown becomes its columns, and its places stay."""
        where, date, title = as_utf8(file.path), file.date, ""
        begin, line, metadata = 0, 1, dict[str, Any]()
        for number, (start, text) in enumerate(_split_parts(chunks), start=1):
            if number == 1:
                try:
                    front = read_front_matter(text, file.suffix)
                except ValueError:
                    front = None
                    self.skipped.front_matter.append(file.name)
                if front is not None:
                    begin, line = front.length, 1 + text.count("\n", 0, front.length)
                    metadata = {name: as_filter_value(value) for name, value in front.values.items()}
                    text = text[begin:]
                title = (front and front.title) or find_title(text, file.suffix)
            id = _part_id(file.name, number, where)
            begins = begin if number == 1 else start
            yield SearchDocument(id, text, title, file.name, where, begins, line, metadata, date)
            line += text.count("\n")


def _read_blocks(lines: Iterable[str]) -> Iterator[Article]:
    return (Article(id, "", text) for id, text in read_blocks(lines))


Convention = Callable[[Iterable[str]], Iterator[Article]]
CONVENTIONS: dict[str | None, Convention | None] = {
    "file": None,
    "blank-lines": _read_blocks,
    "lines": _read_blocks,
    "wikiextractor": read_articles,
}


def _article_documents(file: SourceFile, found: Iterable[Article]) -> Iterator[SearchDocument]:
    """The documents of a file that holds several, under the ids that a corpus gives them."""
    for id, title, text in found:
        where = f"{as_utf8(file.path)}, document {id}"
        for number, (start, part) in enumerate(_split_parts([text]), start=1):
            part_id = _part_id(f"{file.name}#{id}", number, where)
            yield SearchDocument(part_id, part, title, file.name, where, start, None)


def _page_documents(file: SourceFile, chunks: Iterable[str]) -> Iterator[SearchDocument]:
    parser = HtmlText()

    def pieces() -> Iterator[str]:
        for chunk in chunks:
            parser.feed(chunk)
            yield parser.take()
        parser.close()
        yield parser.take()

    for number, (start, text) in enumerate(_split_parts(pieces()), start=1):
        where = as_utf8(file.path)
        id = _part_id(file.name, number, where)
        yield SearchDocument(id, text, parser.title, file.name, where, start, None, file_date=file.date)


def _row_documents(row: DocumentRow, source: str) -> Iterator[SearchDocument]:
    for number, (start, text) in enumerate(_split_parts([replace_surrogates(row.text)]), start=1):
        id = _part_id(row.id or f"{source}#{row.number}", number, as_utf8(row.where))
        title = replace_surrogates(row.title)
        yield SearchDocument(id, text, title, source, as_utf8(row.where), start, None, row.metadata)


def _split_parts(pieces: Iterable[str]) -> Iterator[tuple[int, str]]:
    """(characters before it, text): at least one, none longer than `LONGEST`, cut at a line's end."""
    start, text, waiting, size = 0, "", list[str](), 0
    for piece in pieces:
        waiting.append(piece)
        size += len(piece)
        if size <= LONGEST:
            continue
        text, waiting = "".join(waiting), []
        while len(text) > LONGEST:
            # Behind the last line's end, else behind the last word's, unless both are far from there.
            ends = (text.rfind(mark, LONGEST // 2, LONGEST) + 1 for mark in "\n ")
            cut = next(filter(None, ends), LONGEST)
            yield start, text[:cut]
            start, text = start + cut, text[cut:]
        waiting, size = [text], len(text)
    rest = "".join(waiting)
    if rest or not start:
        yield start, rest


def _part_id(id: str, number: int, where: str) -> str:
    """Raises InputError for an id like a later part's: the document would be removed with another one."""
    if strip_part(id) != id:
        raise InputError(
            f"{where}: found the id {id!r}, but #part and a number end an id only where a long text is in "
            "parts. Give the document another id, or leave it out."
        )
    return id if number == 1 else f"{id}#part{number}"


def strip_part(id: str) -> str:
    """The id of the document whose part `id` is, or `id` itself."""
    return re.sub(r"#part\d+$", "", id)


def _name_by_path(file: SourceFile) -> SourceFile:
    """A file that was named itself goes by its path as named: its last part alone might be another's."""
    return replace(file, name=file.origin if "://" in file.origin else Path(file.origin).as_posix())


def _format_count(count: int, kind: str, names: Sequence[str] = ()) -> str:
    if not count:
        return ""
    named = f" ({', '.join(names[:3])}{', …' if count > 3 else ''})" if names else ""
    return f"{count:,} {kind}{'s' if count > 1 else ''}{named}"
