"""Reads files and tables as documents to be searched, one at a time, each with its position and its hash.

| a file | becomes |
| --- | --- |
| .csv, .tsv, .tab, .jsonl, .ndjson, .parquet, and .json if it was named itself | a document per row |
| .html, .htm, .xhtml | one document: the text that a browser shows |
| a text that begins like WikiExtractor's, or any text with a `format` | a document per article or block |
| any other text: .txt, .md, .rst, .py … | one document, unchanged |
| binary: a NUL byte near its beginning, or the first bytes of PDF, ZIP and the like | none; it is counted |

A text of more than a million characters is split into parts, which are documents of their own, so that no
file is ever in memory as a whole. Positions are characters of the decoded file with its line ends turned into
\\n; in HTML, characters of the extracted text.
"""

import hashlib
import json
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from pydantic import Field

from bertsmith.errors import InputError, require
from bertsmith.progress import Progress
from bertsmith.text.corpus_settings import CorpusSettings
from bertsmith.text.files.plain import DOC_OPENING, LONGEST, Article, read_articles, read_blocks
from bertsmith.text.files.sources import as_utf8, find_sources
from bertsmith.text.files.streams import SourceFile, SourceStream, split_lines
from bertsmith.text.files.tables import find_format_by_ending
from bertsmith.text.prose.html_text import HTML_ENDINGS, HtmlText, extract_text
from bertsmith.text.retrieval.document_rows import (
    COLUMNS_HELP,
    DocumentRow,
    UntypedCell,
    as_filter_value,
    read_table,
)
from bertsmith.text.tokens.tokenizer import replace_surrogates
from bertsmith.validation import UserSettings

_NO_TABLES = (".json", ".txt")  # in a folder: mostly a program's settings, or a text
_BINARY_BEGINNINGS = (
    b"%PDF-",
    b"PK\x03\x04",
    b"\x1f\x8b",
    b"\x89PNG",
    b"\xff\xd8\xff",
    b"GIF8",
    b"\xd0\xcf\x11\xe0",
)
_TITLE_SEARCHED = 2_000  # characters at the beginning of a file in which a title is searched
# Not every line above a line of dashes is a heading: it may be a smaller heading, an item of a list, a quote,
# a tag, a row of a table or a rule.
_HEADING = re.compile(
    r"^#[ \t]+(.*)$"
    r"|^(?!#{2,6}[ \t]|[-*+][ \t]|[><]|\|.*\|[ \t]*$|([-*_=])\2{2,}[ \t]*$)(\S.*)\n(?:={2,}|-{2,})[ \t]*$",
    re.MULTILINE,
)
_MARK = r"[-=~^\"'`#*+_]"  # what headings of reStructuredText are underlined with, and perhaps overlined
_RST_HEADING = re.compile(
    rf"^(?:({_MARK})\1+[ \t]*\n[ \t]+)?"
    rf"(?!\.\.(?:[ \t]|$)|[-*+][ \t]|({_MARK})\2+[ \t]*$)(\S.*)\n({_MARK})\4+[ \t]*$",
    re.MULTILINE,
)
_FRONT_MATTER = re.compile(
    r"\A(---|\+\+\+)[ \t]*\n(?![ \t]*\n)(.*?)^(?:\1|\.\.\.)[ \t]*(?:\n|\Z)", re.MULTILINE | re.DOTALL
)  # YAML or TOML; three dashes before a blank line are a horizontal rule
_LONGEST_FRONT_MATTER = 100_000  # characters
_CODE_OR_COMMENT = re.compile(
    r"^ {0,3}(?:(`{3,}(?=[^`\n]*$)|~{3,}).*?(?:^ {0,3}\1[`~]*[ \t]*$|\Z)|<!--.*?(?:-->|\Z))",
    re.MULTILINE | re.DOTALL,
)
_MARKDOWN = (".md", ".markdown")
_NULLS = ("", "~", "null", "Null", "NULL")  # of YAML


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
    """One document to be searched.

    `source` is the name of its file, and `where` its place for messages. `start` and `line` are where the
    text begins in the source: the character from 0 and the line from 1; `line` is None if the text isn't the
    file's own, as with rows of tables and HTML. `file_date` is the day of the file's last change, such as
    2026-01-31; None for rows, and if it isn't known.
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
        """The metadata that an index can filter by, with the file's date."""
        return self.metadata if self.file_date is None else {"file_date": self.file_date, **self.metadata}

    @property
    def sha256(self) -> str:
        """The hash of all that goes into an index: a document of the same hash need not be embedded again.

        It leaves out the file's date: a copied or cloned folder has other dates, but the same texts.
        """
        content = json.dumps(
            [self.title, self.text, self.start, self.line, self.source, dict(self.metadata)], default=str
        )
        return hashlib.sha256(content.encode("utf-8", "surrogatepass")).hexdigest()


@dataclass
class SkippedDocuments:
    """What was left out: names of binary files, places of empty documents, numbers of hidden and excluded
    files.

    `front_matter` are the names of files whose front matter can't be parsed; it is read as text then.
    """

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
    """The documents of the SOURCEs. Each iteration reads the files anew; `skipped` is what the last one left
    out.

    Rows and files without text are skipped and counted. Files of the folder `leave_out` are never documents:
    an index may be in the folder that it searches. Raises InputError for a SOURCE that doesn't exist, for a
    table format if no file was named itself, and, naming byte or line, for a file in another encoding and for
    a broken table.
    """

    def __init__(
        self,
        sources: Sequence[str],
        settings: DocumentSettings | None = None,
        leave_out: Path | None = None,
    ) -> None:
        self.settings = settings or DocumentSettings()
        self._corpus_settings = CorpusSettings(
            encoding=self.settings.encoding,
            encoding_errors=self.settings.encoding_errors,
            include=self.settings.include,
            exclude=self.settings.exclude,
        )
        listing = find_sources(list(sources), self._corpus_settings, leave_out)
        self._hidden, self._excluded = listing.hidden, listing.excluded
        files = [source for source in listing.sources if isinstance(source, SourceFile)]
        if len(files) < len(listing.sources):
            raise InputError(
                "pydocs: is a source of corpora only. Name files, folders or addresses to search."
            )
        self._named_files = {_name_by_path(file).name for file in files if "/" not in file.name}
        format = self.settings.format
        if format is not None and format not in CONVENTIONS and not self._named_files:
            raise InputError(
                f"The format {format!r} is for files that are named themselves, and the sources are folders. "
                f"Name the files, or choose one of {', '.join(map(str, CONVENTIONS))}."
            )
        self.files = [_name_by_path(file) if "/" not in file.name else file for file in files]
        self.skipped = SkippedDocuments()

    @property
    def size(self) -> int:
        """The total size of all files on disk, in bytes."""
        return sum(file.size for file in self.files)

    def __iter__(self) -> Iterator[SearchDocument]:
        return self.read_files(lambda name: True)

    def read_files(
        self, is_selected: Callable[[str], bool], progress: Progress | None = None
    ) -> Iterator[SearchDocument]:
        """Yields the documents of the files for whose name `is_selected` returns true, without empty ones.

        `progress` is called with the bytes of the files read, and of all files.
        """
        self.skipped = SkippedDocuments(hidden=self._hidden, excluded=self._excluded)
        bytes_done = 0
        for file in self.files:
            if is_selected(file.name):
                for document in self._read_file(file):
                    if document.text.strip():
                        yield document
                    else:
                        self.skipped.empty.append(document.where)
            bytes_done += file.size
            if progress is not None:
                progress(bytes_done, self.size, "bytes")

    def _read_file(self, file: SourceFile) -> Iterator[SearchDocument]:
        format = self._choose_table_format(file)
        if format is not None:
            rows = read_table(file, format, self._corpus_settings, self.settings)
            return (part for row in rows for part in _row_documents(row, file.name))
        return self._read_text_file(file)

    def _choose_table_format(self, file: SourceFile) -> str | None:
        """The name of the table format to read a file by; None to read it as text.

        `settings.format` may name one for files that were named themselves, not for those of a folder.
        """
        format = self.settings.format
        if file.name in self._named_files:
            if format in CONVENTIONS:
                return None
            if format or file.suffix == ".json":
                return format or "json"
        table_format = None if file.suffix in _NO_TABLES else find_format_by_ending(file.suffix)
        return None if table_format is None else table_format.NAME

    def _read_text_file(self, file: SourceFile) -> Iterator[SearchDocument]:
        with SourceStream(file, self._corpus_settings) as stream:
            if stream.looks_binary or stream.head.startswith(_BINARY_BEGINNINGS):
                self.skipped.binary.append(file.name)
                return
            if file.suffix in HTML_ENDINGS:
                yield from _html_documents(file, stream.chunks())
                return
            chunks = stream.chunks()
            first_chunk = next(chunks, "")
            convention: Convention | None = None
            if DOC_OPENING.match(first_chunk.lstrip()):
                convention = read_articles
            if self.settings.format in CONVENTIONS:
                convention = CONVENTIONS[self.settings.format]
            chunks = chain([first_chunk], chunks)
            yield from (
                self._whole_text_documents(file, chunks)
                if convention is None
                else _article_documents(file, convention(split_lines(chunks, LONGEST)))
            )

    def _whole_text_documents(self, file: SourceFile, chunks: Iterable[str]) -> Iterator[SearchDocument]:
        """One document of the whole file, or its parts. Front matter of Markdown becomes metadata instead of
        text; positions are still those in the file.
        """
        where, date, title = as_utf8(file.path), file.date, ""
        first_start, line, metadata = 0, 1, dict[str, Any]()
        for number, (start, text) in enumerate(_split_parts(chunks), start=1):
            if number == 1:
                try:
                    front_matter = read_front_matter(text, file.suffix)
                except ValueError:
                    front_matter = None
                    self.skipped.front_matter.append(file.name)
                if front_matter is not None:
                    first_start = front_matter.length
                    line = 1 + text.count("\n", 0, first_start)
                    metadata = {name: as_filter_value(value) for name, value in front_matter.values.items()}
                    text = text[first_start:]
                title = (front_matter and front_matter.title) or find_title(text, file.suffix)
            id = _part_id(file.name, number, where)
            start = first_start if number == 1 else start
            yield SearchDocument(id, text, title, file.name, where, start, line, metadata, date)
            line += text.count("\n")


def _read_blocks(lines: Iterable[str]) -> Iterator[Article]:
    """The blocks of a file as articles without a title."""
    return (Article(id, "", text) for id, text in read_blocks(lines))


Convention = Callable[[Iterable[str]], Iterator[Article]]
CONVENTIONS: dict[str | None, Convention | None] = {
    "file": None,
    "blank-lines": _read_blocks,
    "lines": _read_blocks,
    "wikiextractor": read_articles,
}


def _article_documents(file: SourceFile, articles: Iterable[Article]) -> Iterator[SearchDocument]:
    """The documents of a file that has several, with the same ids as in a corpus."""
    for id, title, text in articles:
        where = f"{as_utf8(file.path)}, document {id}"
        for number, (start, part) in enumerate(_split_parts([text]), start=1):
            part_id = _part_id(f"{file.name}#{id}", number, where)
            yield SearchDocument(part_id, part, title, file.name, where, start, None)


def _html_documents(file: SourceFile, chunks: Iterable[str]) -> Iterator[SearchDocument]:
    parser = HtmlText()
    for number, (start, text) in enumerate(_split_parts(extract_text(parser, chunks)), start=1):
        where = as_utf8(file.path)
        id = _part_id(file.name, number, where)
        yield SearchDocument(id, text, parser.title, file.name, where, start, None, file_date=file.date)


def _row_documents(row: DocumentRow, source: str) -> Iterator[SearchDocument]:
    for number, (start, text) in enumerate(_split_parts([replace_surrogates(row.text)]), start=1):
        id = _part_id(row.id or f"{source}#{row.number}", number, as_utf8(row.where))
        title = replace_surrogates(row.title)
        yield SearchDocument(id, text, title, source, as_utf8(row.where), start, None, row.metadata)


def _split_parts(chunks: Iterable[str]) -> Iterator[tuple[int, str]]:
    """Yields the parts of a text as (characters before the part, part), at least one.

    None is longer than `LONGEST`; they are cut at the end of a line if there is one.
    """
    start, text, unsplit, size = 0, "", list[str](), 0
    for chunk in chunks:
        unsplit.append(chunk)
        size += len(chunk)
        if size <= LONGEST:
            continue
        text, unsplit = "".join(unsplit), []
        while len(text) > LONGEST:
            # After the last line's end, else after the last word's, unless both are in the first half.
            ends = (text.rfind(mark, LONGEST // 2, LONGEST) + 1 for mark in "\n ")
            cut = next(filter(None, ends), LONGEST)
            yield start, text[:cut]
            start, text = start + cut, text[cut:]
        unsplit, size = [text], len(text)
    rest = "".join(unsplit)
    if rest or not start:
        yield start, rest


def _part_id(id: str, number: int, where: str) -> str:
    """The id of a document's part; the first part has the document's.

    Raises InputError for an id like that of a later part: removing another document would remove this one.
    """
    if strip_part(id) != id:
        raise InputError(
            f"{where}: found the id {id!r}, but #part and a number end an id only where a long text is in "
            "parts. Give the document another id, or leave it out."
        )
    return id if number == 1 else f"{id}#part{number}"


def strip_part(id: str) -> str:
    """The id of the document of which `id` is a part, or `id` itself."""
    return re.sub(r"#part\d+$", "", id)


def _name_by_path(file: SourceFile) -> SourceFile:
    """The file under its path as the user gave it, for a file that was named itself: its last part alone
    might be another file's name, too.
    """
    return replace(file, name=file.origin if "://" in file.origin else Path(file.origin).as_posix())


def _format_count(count: int, kind: str, names: Sequence[str] = ()) -> str:
    if not count:
        return ""
    named = f" ({', '.join(names[:3])}{', …' if count > 3 else ''})" if names else ""
    return f"{count:,} {kind}{'s' if count > 1 else ''}{named}"


class FrontMatter(NamedTuple):
    """The values by name, without the title, the title, and the length of the front matter in characters."""

    values: dict[str, Any]
    title: str
    length: int


def read_front_matter(text: str, suffix: str) -> FrontMatter | None:
    """Parses what is between two lines `---` (YAML) or `+++` (TOML) at the beginning of a Markdown file.

    Returns None if there is no front matter. YAML's scalars become `UntypedCell`s, like the cells of CSV:
    YAML's own rules would make `no` false and 12:30 the number 750. Raises ValueError if it can't be parsed.
    """
    match = _FRONT_MATTER.match(text) if suffix in _MARKDOWN else None
    if match is None or match.end() > _LONGEST_FRONT_MATTER:
        return None
    values = tomllib.loads(match[2]) if match[1] == "+++" else _parse_yaml(match[2])
    if values is None:
        return None
    title = values.pop("title", None)
    return FrontMatter(values, "" if title is None else str(title).strip(), match.end())


def _parse_yaml(text: str) -> dict[str, Any] | None:
    """The mapping; None if it is none: a text may begin with a horizontal rule."""
    require("yaml", "retrieval", "Front matter in YAML", "pyyaml")
    import yaml

    try:
        if any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(text, yaml.BaseLoader)):
            raise ValueError("it has aliases (*name), which may grow without bounds")
        values = yaml.load(text, yaml.BaseLoader)  # makes only strings, lists and mappings
    except (yaml.YAMLError, RecursionError) as error:
        raise ValueError(str(error)) from error
    if not isinstance(values, dict):
        return None
    constants = {**dict.fromkeys(_NULLS), "true": True, "false": False}
    return {
        str(name): constants.get(value, UntypedCell(value)) if isinstance(value, str) else value
        for name, value in values.items()
    }


def find_title(text: str, suffix: str) -> str:
    """The first heading of a Markdown or reStructuredText file, as the `suffix` tells (".md"); "" if it has
    none.

    The #s that may close a heading after a blank are not part of it.
    """
    if suffix not in (*_MARKDOWN, ".rst"):
        return ""
    beginning = text[:_TITLE_SEARCHED]
    if suffix in _MARKDOWN:  # front matter, code and comments have lines that look like headings
        beginning = _CODE_OR_COMMENT.sub("", _FRONT_MATTER.sub("", beginning))
    heading = (_HEADING if suffix in _MARKDOWN else _RST_HEADING).search(beginning)
    if heading is None:
        return ""
    if suffix == ".rst" or heading[1] is None:
        return heading[3].strip()
    title = heading[1].strip()
    without_hashes = title.rstrip("#")
    return without_hashes.rstrip() if without_hashes != without_hashes.rstrip() else title
