"""The documentation inside a Python file, found by parsing it and never by importing it."""

import ast
import gc
import inspect
import warnings
from collections.abc import Iterator


def docstrings(source: bytes, every_string: bool = False) -> list[str]:
    """Documentation of a module in the order it is written, indentation removed.

    That is every string that stands alone as a statement (docstrings, and the strings some projects put
    below an attribute), and every string given to a call or a name that has `doc` in it: add_docstr(...),
    add_newdoc(...), _shared_doc = ... With `every_string`, all strings of several lines.
    Raises SyntaxError, ValueError or RecursionError for what this Python can't parse.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # old escapes in other people's code
        tree = _parsed(source)
    strings = _long_strings(tree) if every_string else _documentation(tree)
    return [inspect.cleandoc(string) for string in strings]


def _parsed(source: bytes) -> ast.Module:
    # A syntax tree is a million small objects and no cycle: looking for cycles took a third of the time.
    collecting = gc.isenabled()
    gc.disable()
    try:
        return ast.parse(source)
    finally:
        if collecting:
            gc.enable()


def _documentation(block: ast.AST) -> Iterator[str]:
    for statement in _statements(block):
        if isinstance(statement, ast.Expr):
            yield from _of_expression(statement.value)
        elif isinstance(statement, ast.Assign) and any(map(_speaks_of_docs, statement.targets)):
            yield from _long_strings(statement.value)
        else:
            yield from _documentation(statement)


def _statements(block: ast.AST) -> Iterator[ast.AST]:
    """Statements nested directly in a block, a branch, a handler: expressions are not entered."""
    for name in ("body", "orelse", "handlers", "finalbody"):
        nested = getattr(block, name, None)
        if isinstance(nested, list):
            yield from nested


def _of_expression(expression: ast.expr) -> Iterator[str]:
    if isinstance(expression, ast.Constant) and isinstance(expression.value, str):
        yield expression.value
    elif isinstance(expression, ast.Call) and _speaks_of_docs(expression.func):
        for argument in (*expression.args, *(keyword.value for keyword in expression.keywords)):
            yield from _long_strings(argument)


def _speaks_of_docs(target: ast.expr) -> bool:
    name = getattr(target, "id", None) or getattr(target, "attr", None) or ""
    return "doc" in name.lower()


def _long_strings(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and "\n" in node.value:
            yield node.value
