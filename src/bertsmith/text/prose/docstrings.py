"""The documentation inside a Python file, found by parsing it and never by importing it."""

import ast
import gc
import inspect
import re
import warnings
from collections.abc import Iterator
from typing import NamedTuple

# Two lines and more that hold nothing but a comment: explanations. A single line mostly names what follows.
_COMMENT_BLOCK = re.compile(r"^(?P<indent>[ \t]*)#(?: .*)?\n(?:(?P=indent)#(?: .*)?\n)+", re.MULTILINE)
_COMMENT_SIGN = re.compile(r"^[ \t]*# ?", re.MULTILINE)
_LICENCE = re.compile(r"copyright|licen[sc]e|all rights reserved|warranty", re.IGNORECASE)


class DocstringLines(NamedTuple):
    """A piece of documentation and the lines of the file it stands on, counted from 1."""

    first_line: int
    last_line: int
    text: str


def documentation(source: str, every_string: bool = False) -> list[str]:
    """Docstrings and explanatory comments of a module in the order they are written, indentation removed.

    That is every string that stands alone as a statement (docstrings, and the strings some projects put
    below an attribute), every string given to a call or a name that has `doc` in it (add_docstr(...),
    _shared_doc = ...), and comments of two lines and more, but for licences, which head every file.
    With `every_string`, all strings of several lines.
    Raises SyntaxError, ValueError or RecursionError for what this Python can't parse.
    """
    tree = _parsed(source)
    strings = _as_passages(_long_strings(tree) if every_string else _strings(tree))
    taken = {line for passage in strings for line in range(passage.first_line, passage.last_line + 1)}
    comments = [passage for passage in _comments(source) if passage.first_line not in taken]
    return [passage.text for passage in sorted(strings + comments)]


def _parsed(source: str) -> ast.Module:
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


def _comments(source: str) -> list[DocstringLines]:
    found, line, seen = [], 1, 0
    for block in _COMMENT_BLOCK.finditer(source):
        line, seen = line + source.count("\n", seen, block.start()), block.start()
        if not _LICENCE.search(block.group()):
            text = _COMMENT_SIGN.sub("", block.group())
            found.append(DocstringLines(line, line + block.group().count("\n") - 1, text))
    return found


def _as_passages(strings: Iterator[ast.Constant]) -> list[DocstringLines]:
    return [
        DocstringLines(string.lineno, string.end_lineno or string.lineno, inspect.cleandoc(str(string.value)))
        for string in strings
    ]


def _strings(block: ast.AST) -> Iterator[ast.Constant]:
    for statement in _statements(block):
        if isinstance(statement, ast.Expr):
            yield from _of_expression(statement.value)
        elif isinstance(statement, ast.Assign) and any(map(_speaks_of_docs, statement.targets)):
            yield from _long_strings(statement.value)
        else:
            yield from _strings(statement)


def _statements(block: ast.AST) -> Iterator[ast.AST]:
    """Statements nested directly in a block, a branch, a handler: expressions are not entered."""
    for name in ("body", "orelse", "handlers", "finalbody"):
        nested = getattr(block, name, None)
        if isinstance(nested, list):
            yield from nested


def _of_expression(expression: ast.expr) -> Iterator[ast.Constant]:
    if isinstance(expression, ast.Constant) and isinstance(expression.value, str):
        yield expression
    elif isinstance(expression, ast.Call) and _speaks_of_docs(expression.func):
        for argument in (*expression.args, *(keyword.value for keyword in expression.keywords)):
            yield from _long_strings(argument)


def _speaks_of_docs(target: ast.expr) -> bool:
    name = getattr(target, "id", None) or getattr(target, "attr", None) or ""
    return "doc" in name.lower()


def _long_strings(tree: ast.AST) -> Iterator[ast.Constant]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and "\n" in node.value:
            yield node
