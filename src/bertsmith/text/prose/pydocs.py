"""`pydocs:`: the documentation of the Python packages installed on this machine, and of Python itself.

Every user has it: some million words of English, of many hands, on a few thousand subjects. One document a
module, made of its docstrings and its longer comments in order; one for each page of documentation that a
package ships; one for its long description. Nothing is imported or run. `pydocs:numpy,torch` takes these
packages only.
"""

import ast
import csv
import gc
import inspect
import os
import re
import sysconfig
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from importlib.metadata import Distribution, distributions
from itertools import chain
from pathlib import Path
from platform import python_version
from typing import NamedTuple

from bertsmith.errors import InputError, did_you_mean
from bertsmith.text.prose.markup import extract_prose
from bertsmith.text.prose.sentences import RawDocument

PREFIX = "pydocs:"
STANDARD_LIBRARY = "python"
LARGEST_FILE = 4_000_000  # bytes; larger ones are tables written as code
_ENDINGS = (".py", ".md", ".rst", ".txt", "/metadata")
_LEFT_OUT_FOLDERS = {
    "tests",
    "test",
    "testing",
    "_test",
    "idle_test",
    "site-packages",
    "__pycache__",
    "licenses",
}
_LEFT_OUT_NAMES = ("test_", "conftest", "license", "licence", "copying", "notice", "authors", "requirements")
# Two lines and more that hold nothing but a comment: explanations. A single line mostly names what follows.
_COMMENT_BLOCK = re.compile(r"^(?P<indent>[ \t]*)#(?: .*)?\n(?:(?P=indent)#(?: .*)?\n)+", re.MULTILINE)
_COMMENT_SIGN = re.compile(r"^[ \t]*# ?", re.MULTILINE)
_LICENCE = re.compile(r"copyright|licen[sc]e|all rights reserved|warranty", re.IGNORECASE)


@dataclass(frozen=True)
class DocumentationFile:
    """One file of documentation: its place in the package, and where it lies."""

    name: str
    path: Path
    size: int


@dataclass(frozen=True)
class Package:
    """An installed distribution, or the standard library, and the files that may hold documentation."""

    name: str
    origin: str
    version: str
    pages: tuple[DocumentationFile, ...]
    sha256: str | None  # of the RECORD, which lists the hashes of all files

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(page.size for page in self.pages)


def find_packages(source: str) -> list[Package]:
    """The packages `pydocs:` or `pydocs:name,name` stands for, by name; a name may be 'python' itself.

    Raises InputError for a package that isn't installed.
    """
    installed = _find_installed()
    names = source.removeprefix(PREFIX).split(",")
    wanted = list(dict.fromkeys(_normalise_name(name) for name in names if name.strip()))
    for name in wanted:
        if name != STANDARD_LIBRARY and name not in installed:
            meant = did_you_mean(name, installed)
            raise InputError(f"{source}: no package {name} is installed here.{meant}")
    packages = [
        _describe_package(name, installed[name], source)
        for name in wanted or sorted(installed)
        if name in installed
    ]
    if not wanted or STANDARD_LIBRARY in wanted:
        packages.append(_describe_standard_library(source))
    return packages


def _find_installed() -> dict[str, Distribution]:
    """By normalised name; of a package installed twice the one that Python would import."""
    found: dict[str, Distribution] = {}
    for distribution in distributions():
        name = distribution.metadata["Name"]
        if name:
            found.setdefault(_normalise_name(name), distribution)
    return found


def _normalise_name(name: str) -> str:
    return name.strip().lower().replace("_", "-").replace(".", "-")


def _describe_package(name: str, distribution: Distribution, origin: str) -> Package:
    record = distribution.read_text("RECORD")
    if record is None:
        files = list(map(str, distribution.files or ()))
    else:  # distribution.files makes a path object of every header of every library: five times slower
        files = [row[0] for row in csv.reader(record.splitlines()) if row]
    pages = []
    for file in sorted(files):
        if _may_hold_documentation(file):
            pages += _find_page(file, Path(str(distribution.locate_file(file))))
    digest = sha256(record.encode()).hexdigest() if record else None
    return Package(name, origin, distribution.version, tuple(pages), digest)


def _describe_standard_library(origin: str) -> Package:
    folder = Path(sysconfig.get_paths()["stdlib"])
    pages = []
    for directory, folders, files in os.walk(folder):
        folders[:] = sorted(set(folders) - _LEFT_OUT_FOLDERS)
        for file in sorted(files):
            name = Path(directory, file).relative_to(folder).as_posix()
            if name.endswith(".py") and _may_hold_documentation(name):
                pages += _find_page(name, folder / name)
    return Package(STANDARD_LIBRARY, origin, python_version(), tuple(pages), None)


def _may_hold_documentation(file: str) -> bool:
    """By its path in the package, with forward slashes."""
    if not file.lower().endswith(_ENDINGS):
        return False
    *folders, name = file.lower().split("/")
    if any(folder.endswith((".dist-info", ".egg-info")) for folder in folders):
        return name == "metadata"
    return (
        name != "metadata"
        and not _LEFT_OUT_FOLDERS.intersection(folders)
        and not name.startswith(_LEFT_OUT_NAMES)
    )


def _find_page(name: str, path: Path) -> list[DocumentationFile]:
    try:
        size = path.stat().st_size
    except OSError:  # listed but removed since
        return []
    return [DocumentationFile(name, path, size)] if 0 < size <= LARGEST_FILE else []


def read_page(source: int, id: str, path: Path) -> RawDocument:
    """The prose of one file, each paragraph on a line and only once, for classes repeat what their parents
    say; empty when there is none or it can't be parsed.
    """
    return RawDocument(source, id, "\n".join(dict.fromkeys(_read_paragraphs(path))), "paragraph-lines")


def _read_paragraphs(path: Path) -> Iterator[str]:
    try:
        text = path.read_text(encoding="utf-8-sig", errors="replace")
    except OSError:  # removed since it was listed, or another user's
        return
    if path.suffix != ".py":
        # METADATA: header lines, a blank line, then the package's description
        yield from extract_prose(text.partition("\n\n")[2] if path.name == "METADATA" else text)
        return
    try:
        for passage in extract_documentation(text, every_string=path.parent.name == "pydoc_data"):
            yield from extract_prose(passage)
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # templates, and code for another Python
        return


class DocstringLines(NamedTuple):
    """A piece of documentation and the lines of the file it stands on, counted from 1."""

    first_line: int
    last_line: int
    text: str


def extract_documentation(source: str, every_string: bool = False) -> list[str]:
    """Docstrings and explanatory comments of a module in the order they are written, indentation removed.

    That is every string that stands alone as a statement (docstrings, and the strings some projects put
    below an attribute), every string given to a call or a name that has `doc` in it (add_docstr(...),
    _shared_doc = ...), and comments of two lines and more, but for licences, which head every file.
    With `every_string`, all strings of several lines.
    Raises SyntaxError, ValueError or RecursionError for what this Python can't parse.
    """
    tree = _parse(source)
    strings = [
        DocstringLines(string.lineno, string.end_lineno or string.lineno, inspect.cleandoc(str(string.value)))
        for string in (_find_long_strings(tree) if every_string else _find_strings(tree))
    ]
    taken = {line for passage in strings for line in range(passage.first_line, passage.last_line + 1)}
    comments = [passage for passage in _find_comments(source) if passage.first_line not in taken]
    return [passage.text for passage in sorted(strings + comments)]


def _parse(source: str) -> ast.Module:
    # A syntax tree is a million small objects and no cycle: looking for cycles took a third of the time.
    collecting = gc.isenabled()
    gc.disable()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # old escapes in other people's code
            return ast.parse(source)
    finally:
        if collecting:
            gc.enable()


def _find_comments(source: str) -> list[DocstringLines]:
    found, line, seen = [], 1, 0
    for block in _COMMENT_BLOCK.finditer(source):
        line, seen = line + source.count("\n", seen, block.start()), block.start()
        if not _LICENCE.search(block.group()):
            text = _COMMENT_SIGN.sub("", block.group())
            found.append(DocstringLines(line, line + block.group().count("\n") - 1, text))
    return found


def _find_strings(block: ast.AST) -> Iterator[ast.Constant]:
    """Of statements nested in a block, a branch, a handler; of expressions those that stand alone."""
    bodies = (getattr(block, name, None) for name in ("body", "orelse", "handlers", "finalbody"))
    for statement in chain.from_iterable(body for body in bodies if isinstance(body, list)):
        value = statement.value if isinstance(statement, ast.Expr) else None
        if isinstance(value, ast.Constant) and isinstance(value.value, str):
            yield value
        elif isinstance(value, ast.Call) and _speaks_of_docs(value.func):
            for argument in (*value.args, *(keyword.value for keyword in value.keywords)):
                yield from _find_long_strings(argument)
        elif isinstance(statement, ast.Expr):
            continue
        elif isinstance(statement, ast.Assign) and any(map(_speaks_of_docs, statement.targets)):
            yield from _find_long_strings(statement.value)
        else:
            yield from _find_strings(statement)


def _speaks_of_docs(target: ast.expr) -> bool:
    name = getattr(target, "id", None) or getattr(target, "attr", None) or ""
    return "doc" in name.lower()


def _find_long_strings(tree: ast.AST) -> Iterator[ast.Constant]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and "\n" in node.value:
            yield node
