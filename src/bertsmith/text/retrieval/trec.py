"""TREC's layout: documents and topics between tags, judgements ("qrels") in four columns.

    <doc> <docno>67</docno> <title>...</title> <text>...</text> </doc>
    <top> <num> Number: 301 <title> ... <desc> ... </top>
    301 0 67 1

Files are known by how they begin, whatever their names. Of a topic the title is the query. Tags other than
docno, title and text are passed over. Topics of the old TREC files don't close their tags.

In some collections, Cranfield's among them, judgements number the topics 1, 2, 3 in their order, while <num>
is another number. So it is read where the judged numbers aren't all among the <num>s, but all are places.
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
    """All files of documents that lie in a folder, its one file of topics and its one of judgements.

    Raises InputError naming file and line.
    """
    files = _find_files_by_kind(folder, encoding)
    gathered = RetrievalDataBuilder()
    for path in files["documents"]:
        for block, where in _read_blocks(path, "doc", encoding):
            number, title, text = (_find_field(block, name) for name in ("docno", "title", "text"))
            if not number or (title is None and text is None):
                raise InputError(f"{where}: expected <docno>, and <title> or <text>, in each <doc>.")
            gathered.add_document(number, join_title(title or "", text or ""), where)
    topics, judged = (_require_one_file(folder, kind, files[kind]) for kind in ("topics", "judgements"))
    for query, document, grade, where in read_qrels(judged, encoding):
        gathered.judge(query, document, grade, where)
    found = [_parse_topic(block, where) for block, where in _read_blocks(topics, "top", encoding)]
    numbers, judged_numbers = {number for number, _, _ in found}, gathered.judgements.keys()
    places = {str(place) for place in range(1, len(found) + 1)}
    by_order = not judged_numbers <= numbers and judged_numbers <= places
    for place, (number, text, where) in enumerate(found, start=1):
        gathered.add_query(str(place) if by_order else number, text, where)
    return gathered.finish(folder.name, judged.name, (_BY_ORDER,) if by_order else ())


def read_qrels(path: Path, encoding: str = "utf-8") -> Iterator[tuple[str, str, int, str]]:
    """(query, document, grade, place) of each line. Raises InputError naming it."""
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
    found: dict[str, list[Path]] = {kind: [] for kind in _BEGINNINGS}
    for path in sorted(each for each in folder.iterdir() if each.is_file() and each.name[0] != "."):
        head = _read_head(path, encoding)
        for kind, beginning in _BEGINNINGS.items():
            if beginning.match(head):
                found[kind].append(path)
    missing = [kind for kind, paths in found.items() if not paths]
    if missing:
        raise InputError(
            f"{folder}: found no {' and no '.join(missing)} in TREC's layout, where files begin with <doc>, "
            "with <top>, or with four columns. Is it another layout (--format beir, reqa, wikiqa)?"
        )
    return found


def _read_head(path: Path, encoding: str) -> bytes:
    """How a file begins; nothing of one that isn't text, such as a picture that lies beside the others."""
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
    """What stands between <tag> and </tag>, and the line it begins on."""
    with _open_text(path, encoding) as table:
        before, *pieces = re.split(f"<{tag}>", table.stream.text(), flags=re.IGNORECASE)
    line = 1 + before.count("\n")
    for piece in pieces:
        block, closed, _ = re.split(f"(</{tag}>|\\Z)", piece, maxsplit=1, flags=re.IGNORECASE)
        where = f"{path.name}, line {line}"
        if not closed:
            raise InputError(f"{where}: this <{tag}> has no </{tag}>. The file may have been cut.")
        yield block, where
        line += piece.count("\n")


def _parse_topic(block: str, where: str) -> tuple[str, str, str]:
    number = re.search(r"<num>\s*(?:Number:)?\s*([^\s<]+)", block, _ANY)
    title = re.search(r"<title>\s*(?:Topic:)?(.*?)(?=</?(?:title|desc|narr)>|\Z)", block, _ANY)
    if number is None or title is None:
        raise InputError(f"{where}: expected <num> and <title> in each <top>.")
    return number[1], _strip_markup(title[1]), where


def _find_field(block: str, tag: str) -> str | None:
    """The text of all such fields together; None without any."""
    found = re.findall(f"<{tag}>(.*?)</{tag}>", block, _ANY)
    return " ".join(_strip_markup(each) for each in found) if found else None


def _strip_markup(text: str) -> str:
    """Without tags, entities and line breaks."""
    return " ".join(html.unescape(re.sub(r"</?\w+>", " ", text)).split())
