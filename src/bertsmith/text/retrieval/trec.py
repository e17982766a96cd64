"""Reads test collections in TREC's layout: documents and topics in tags, judgements ("qrels") in four
columns.

    <doc> <docno>67</docno> <title>...</title> <text>...</text> </doc>
    <top> <num> Number: 301 <title> ... <desc> ... </top>
    301 0 67 1

Files are recognised by how they begin, whatever their names. The query is the topic's title. Tags other than
docno, title and text are ignored. In old TREC files the tags of topics aren't closed.

In some collections, such as Cranfield's, judgements number the topics 1, 2, 3 in their order, while <num> is
another number. They are read like that if the judged numbers aren't all among the <num>s, but all count
topics.
"""

import codecs
import html
import re
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

from bertsmith.errors import InputError
from bertsmith.text.files.table_file import TableFile, open_table
from bertsmith.text.retrieval.beir import parse_grade
from bertsmith.text.retrieval.retrieval_data import RetrievalData, RetrievalDataBuilder, join_title

_BEGINNINGS = {
    kind: re.compile(rb"\s*(?:<\?xml[^>]*>\s*)?(?:<(?!doc>|top>)\w+>\s*)?<" + tag + rb">", re.IGNORECASE)
    for kind, tag in {"documents": b"doc", "topics": b"top"}.items()
}
_BEGINNINGS["judgements"] = re.compile(rb"\s*(?:\S+[ \t]+){3}-?\d+[ \t]*(?:\r?\n|\Z)")
_ANY = re.IGNORECASE | re.DOTALL
_BY_ORDER = "The judgements' numbers are the topics' places in their file, not what <num> says."


def read_trec(folder: Path, split: str, encoding: str) -> RetrievalData:
    """Reads all files of documents in a folder, its one file of topics and its one file of judgements.

    Raises InputError naming file and line.
    """
    files = _find_files_by_kind(folder, encoding)
    builder = RetrievalDataBuilder()
    for path in files["documents"]:
        for block, where in _read_blocks(path, "doc", encoding):
            number, title, text = (_find_field(block, name) for name in ("docno", "title", "text"))
            if not number or (title is None and text is None):
                raise InputError(f"{where}: expected <docno>, and <title> or <text>, in each <doc>.")
            builder.add_document(number, join_title(title or "", text or ""), where)
    topic_file = _require_one_file(folder, "topics", files["topics"])
    judgement_file = _require_one_file(folder, "judgements", files["judgements"])
    for query, document, grade, where in read_qrels(judgement_file, encoding):
        builder.judge(query, document, grade, where)
    topics = [_parse_topic(block, where) for block, where in _read_blocks(topic_file, "top", encoding)]
    numbers, judged_numbers = {number for number, _, _ in topics}, builder.judgements.keys()
    positions = {str(position) for position in range(1, len(topics) + 1)}
    by_order = not judged_numbers <= numbers and judged_numbers <= positions
    for position, (number, text, where) in enumerate(topics, start=1):
        builder.add_query(str(position) if by_order else number, text, where)
    return builder.finish(folder.name, judgement_file.name, (_BY_ORDER,) if by_order else ())


def read_qrels(path: Path, encoding: str = "utf-8") -> Iterator[tuple[str, str, int, str]]:
    """Yields (query, document, grade, file and line) of each line. Raises InputError naming the line."""
    with _open_text(path, encoding) as table:
        for line, text in enumerate(table.lines(), start=1):
            fields, where = text.split(), f"{table.name}, line {line}"
            if fields and len(fields) != 4:
                raise InputError(
                    f"{where}: expected 4 columns (query, 0, document, grade), found {len(fields)}."
                )
            if fields:
                yield fields[0], fields[2], parse_grade(fields[3], where), where


def _open_text(path: Path, encoding: str) -> AbstractContextManager[TableFile]:
    return open_table(path, "trec", encoding, {}, otherwise="trec")


def _find_files_by_kind(folder: Path, encoding: str) -> dict[str, list[Path]]:
    files: dict[str, list[Path]] = {kind: [] for kind in _BEGINNINGS}
    for path in sorted(path for path in folder.iterdir() if path.is_file() and path.name[0] != "."):
        head = _read_head(path, encoding)
        for kind, beginning in _BEGINNINGS.items():
            if beginning.match(head):
                files[kind].append(path)
    missing = [kind for kind, paths in files.items() if not paths]
    if missing:
        raise InputError(
            f"{folder}: found no {' and no '.join(missing)} in TREC's layout, where files begin with <doc>, "
            "with <top>, or with four columns. Is it another layout (--format beir, reqa, wikiqa)?"
        )
    return files


def _read_head(path: Path, encoding: str) -> bytes:
    """The first bytes of a file; none of one that isn't text, such as a picture beside the others."""
    try:
        with _open_text(path, encoding) as table:
            return table.stream.head[:4096].removeprefix(codecs.BOM_UTF8)
    except InputError:
        return b""


def _require_one_file(folder: Path, kind: str, paths: list[Path]) -> Path:
    if len(paths) > 1:
        names = ", ".join(path.name for path in paths)
        raise InputError(f"{folder}: expected one file of {kind}, found {names}. Leave one of them there.")
    return paths[0]


def _read_blocks(path: Path, tag: str, encoding: str) -> Iterator[tuple[str, str]]:
    """Yields what is between <tag> and </tag>, with the file and the line where it begins."""
    with _open_text(path, encoding) as table:
        preamble, *pieces = re.split(f"<{tag}>", table.stream.text(), flags=re.IGNORECASE)
    line = 1 + preamble.count("\n")
    for piece in pieces:
        block, closed, _ = re.split(f"(</{tag}>|\\Z)", piece, maxsplit=1, flags=re.IGNORECASE)
        where = f"{path.name}, line {line}"
        if not closed:
            raise InputError(f"{where}: this <{tag}> has no </{tag}>. The file may have been cut.")
        yield block, where
        line += piece.count("\n")


def _parse_topic(block: str, where: str) -> tuple[str, str, str]:
    """(number, title, where) of a topic. Raises InputError if it lacks one of them."""
    number = re.search(r"<num>\s*(?:Number:)?\s*([^\s<]+)", block, _ANY)
    title = re.search(r"<title>\s*(?:Topic:)?(.*?)(?=</?(?:title|desc|narr)>|\Z)", block, _ANY)
    if number is None or title is None:
        raise InputError(f"{where}: expected <num> and <title> in each <top>.")
    return number[1], _strip_markup(title[1]), where


def _find_field(block: str, tag: str) -> str | None:
    """The text of all fields with this tag, joined; None if there is none."""
    contents = re.findall(f"<{tag}>(.*?)</{tag}>", block, _ANY)
    return " ".join(map(_strip_markup, contents)) if contents else None


def _strip_markup(text: str) -> str:
    """The text without tags and line breaks, its entities replaced by characters."""
    return " ".join(html.unescape(re.sub(r"</?\w+>", " ", text)).split())
