"""`pydocs:`: the documentation of the installed Python packages, and of Python itself, as a corpus.

Every user has it: some million words of English by many authors, on a few thousand subjects. There is a
document for each module, of its docstrings and longer comments in order; for each page of documentation that
a package ships; and for a package's long description. Nothing is imported or run. `pydocs:numpy,torch` reads
only these packages.
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
# Two or more lines of only a comment: an explanation. A single line mostly names what follows.
_COMMENT_BLOCK = re.compile(r"^(?P<indent>[ \t]*)#(?: .*)?\n(?:(?P=indent)#(?: .*)?\n)+", re.MULTILINE)
_COMMENT_SIGN = re.compile(r"^[ \t]*# ?", re.MULTILINE)
_LICENCE = re.compile(r"copyright|licen[sc]e|all rights reserved|warranty", re.IGNORECASE)


@dataclass(frozen=True)
class DocumentationFile:
    """One file of documentation: its `name` is its path in the package, `size` is in bytes."""

    name: str
    path: Path
    size: int


@dataclass(frozen=True)
class Package:
    """An installed distribution, or the standard library, with the files that may contain documentation.

    `origin` is the SOURCE that named it.
    """

    name: str
    origin: str
    version: str
    pages: tuple[DocumentationFile, ...]
    sha256: str | None  # of its RECORD, which has the hashes of all files

    @property
    def size(self) -> int:
        """The total size of its files of documentation, in bytes."""
        return sum(page.size for page in self.pages)


def find_packages(source: str) -> list[Package]:
    """The packages that `pydocs:name,name` names, or for `pydocs:` all of them; 'python' is the standard
    library.

    Raises InputError for a package that isn't installed.
    """
    installed = _find_installed()
    names = source.removeprefix(PREFIX).split(",")
    chosen_names = list(dict.fromkeys(_normalise_name(name) for name in names if name.strip()))
    for name in chosen_names:
        if name != STANDARD_LIBRARY and name not in installed:
            suggestion = did_you_mean(name, installed)
            raise InputError(f"{source}: no package {name} is installed here.{suggestion}")
    packages = [
        _describe_package(name, installed[name], source)
        for name in chosen_names or sorted(installed)
        if name in installed
    ]
    if not chosen_names or STANDARD_LIBRARY in chosen_names:
        packages.append(_describe_standard_library(source))
    return packages


def _find_installed() -> dict[str, Distribution]:
    """The installed distributions by normalised name; the one that Python would import if there are two."""
    installed: dict[str, Distribution] = {}
    for distribution in distributions():
        name = distribution.metadata["Name"]
        if name:
            installed.setdefault(_normalise_name(name), distribution)
    return installed


def _normalise_name(name: str) -> str:
    return name.strip().lower().replace("_", "-").replace(".", "-")


def _describe_package(name: str, distribution: Distribution, origin: str) -> Package:
    record = distribution.read_text("RECORD")
    if record is None:
        files = list(map(str, distribution.files or ()))
    else:  # five times faster than distribution.files, which makes a path object of each file
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
    """Whether a file may contain documentation, by its path in the package with forward slashes."""
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
    except OSError:  # it was removed since it was listed
        return []
    return [DocumentationFile(name, path, size)] if 0 < size <= LARGEST_FILE else []


def read_page(source: int, id: str, path: Path) -> RawDocument:
    """The prose of one file, a paragraph per line; empty if it has none or can't be parsed.

    A paragraph occurs only once, because classes repeat the documentation of their parents.
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
    """A docstring or comment, with the first and the last of its lines in the file, counted from 1."""

    first_line: int
    last_line: int
    text: str


def extract_documentation(source: str, every_string: bool = False) -> list[str]:
    """The docstrings and explanatory comments of a module, in its order and without indentation.

    These are the strings that are statements (docstrings, and the strings some projects put below an
    attribute), strings that are passed to a call or assigned to a name with `doc` in it (add_docstr(...),
    _shared_doc = ...), and comments of two lines or more, except licences, which are in every file. With
    `every_string`, all strings of several lines. Raises SyntaxError, ValueError or RecursionError for what
    this Python can't parse.
    """
    tree = _parse(source)
    strings = [
        DocstringLines(string.lineno, string.end_lineno or string.lineno, inspect.cleandoc(str(string.value)))
        for string in (_find_long_strings(tree) if every_string else _find_strings(tree))
    ]
    string_lines = {line for string in strings for line in range(string.first_line, string.last_line + 1)}
    comments = [comment for comment in _find_comments(source) if comment.first_line not in string_lines]
    return [passage.text for passage in sorted(strings + comments)]


def _parse(source: str) -> ast.Module:
    # A syntax tree has a million small objects and no cycle: the search for cycles took a third of the time.
    gc_was_enabled = gc.isenabled()
    gc.disable()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about old escapes in other people's code
            return ast.parse(source)
    finally:
        if gc_was_enabled:
            gc.enable()


def _find_comments(source: str) -> list[DocstringLines]:
    comments, line, counted_to = [], 1, 0
    for block in _COMMENT_BLOCK.finditer(source):
        line += source.count("\n", counted_to, block.start())
        counted_to = block.start()
        if not _LICENCE.search(block.group()):
            text = _COMMENT_SIGN.sub("", block.group())
            comments.append(DocstringLines(line, line + block.group().count("\n") - 1, text))
    return comments


def _find_strings(block: ast.AST) -> Iterator[ast.Constant]:
    """Yields the strings of documentation in a block, with its nested blocks, branches and handlers."""
    bodies = (getattr(block, name, None) for name in ("body", "orelse", "handlers", "finalbody"))
    for statement in chain.from_iterable(body for body in bodies if isinstance(body, list)):
        value = statement.value if isinstance(statement, ast.Expr) else None
        if isinstance(value, ast.Constant) and isinstance(value.value, str):
            yield value
        elif isinstance(value, ast.Call) and _names_documentation(value.func):
            for argument in (*value.args, *(keyword.value for keyword in value.keywords)):
                yield from _find_long_strings(argument)
        elif isinstance(statement, ast.Expr):
            continue
        elif isinstance(statement, ast.Assign) and any(map(_names_documentation, statement.targets)):
            yield from _find_long_strings(statement.value)
        else:
            yield from _find_strings(statement)


def _names_documentation(target: ast.expr) -> bool:
    """Whether the name or attribute has "doc" in it."""
    name = getattr(target, "id", None) or getattr(target, "attr", None) or ""
    return "doc" in name.lower()


def _find_long_strings(tree: ast.AST) -> Iterator[ast.Constant]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and "\n" in node.value:
            yield node
