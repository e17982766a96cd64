"""Metadata of documents as typed columns, and checks of SQL filters on them, like `year > 2015`.

The first build that has values for a column determines its kind, by all of them. CSV states no kinds: a
column is one of numbers if every cell is spelled like a number ("007" is not). Kinds never change afterwards,
because rows exist.

A filter may compare, and call functions whose result is no larger than their input. LanceDB's planner
evaluates constants at once, even repeat('a', 1000000000), and recurses for each part of an expression: a
thousand parts joined by || crash the process.
"""

import re
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import pyarrow as pa

from bertsmith.errors import InputError
from bertsmith.inference.index.manifest import FOLDED_TEXT, ColumnKind
from bertsmith.text.retrieval.document_rows import UntypedCell
from bertsmith.text.retrieval.documents import SearchDocument

OWN = (
    *("id", "document_id", "source", "start", "end", "line", "title", "text", FOLDED_TEXT),
    *("vector", "sha256", "added"),
)
_LANCE_OWN = re.compile("_row.*|_distance|_score|_relevance_score")
_ODD = re.compile(r"[^\w -]")
ARROW: dict[ColumnKind, pa.DataType] = {
    "text": pa.string(),
    "whole numbers": pa.int64(),
    "numbers": pa.float64(),
    "yes or no": pa.bool_(),
}
_WHOLE = re.compile(r"-?(?:0|[1-9][0-9]{0,17})")
_NUMBER = re.compile(r"-?[0-9]+\.[0-9]+(?:[eE][-+]?[0-9]+)?")
LONGEST = 100_000  # characters: thousands of ids in a list
_DEEPEST = 20  # parentheses within each other
_MOST_PARTS = 200  # of a term between AND and OR, not counting the values of a list
_TOKEN = re.compile(
    r"(?P<comment>--[^\n]*|/\*.*?\*/)|(?P<text>'(?:[^']|'')*')|(?P<name>`[^`]*`|\"(?:[^\"]|\"\")*\")"
    r"|(?P<number>\d[\d.]*)|(?P<word>\w+)|(?P<comma>,)|(?P<sign>\S)",
    re.DOTALL,
)
FUNCTIONS = (
    *("abs", "cast", "ceil", "character_length", "coalesce", "contains", "decimal", "ends_with", "floor"),
    *("left", "length", "lower", "nullif", "regexp_like", "regexp_match", "right", "round", "starts_with"),
    *("strpos", "substr", "substring", "trim", "try_cast", "upper"),
)
_BEFORE_PARENTHESIS = {"and", "or", "not", "in", "like", "ilike", "between", "is", *FUNCTIONS}
_TOO_MUCH = {"$": "$", "case": "CASE", "select": "SELECT"}
# LanceDB's messages about filters, and what they mean to the filter's author: they speak of its planner, its
# types and its source code.
_REASONS = (
    (re.compile(r"No field named (.+?)\. Valid"), "there is no column {0}; a text stands in 'single quotes'"),
    (
        re.compile(r"literal \w+\((.*?)\).*to literal of type"),
        "it compares a column of another kind with {0}",
    ),
    (re.compile(r"does not return a boolean"), "it is a value, and not a condition that is true or false"),
    (re.compile(r"[Dd]ivide by zero"), "it divides by 0"),
    (
        re.compile(r"Cannot cast \w+ '(.*?)' to"),
        "it casts {0!r}, which can't be cast so; try_cast gives null",
    ),
    (re.compile(r"[Rr]egular expression"), "its regular expression can't be read"),
    (re.compile(r"[Ee]scape character"), "ESCAPE takes one character"),
    (re.compile(r"Unterminated"), "a text in it has no closing quote"),
    (re.compile(r"found: EOF"), "it ends where more is expected"),
    (re.compile(r"found: (\S+?)\)? *(?:at Line|$)"), "it isn't SQL near {0}"),
)


def column_name(name: str) -> str:
    """A column's name in the index: without characters that mean something in SQL, such as `.` and `*`, and
    different from the index's own columns.
    """
    name = _ODD.sub("_", name) or "column"
    return f"{name}_" if name in OWN or _LANCE_OWN.fullmatch(name) else name


class MetadataColumns:
    """The kinds of metadata columns. Those given are fixed; the kinds of others are learnt by `observe`."""

    def __init__(self, settled: Mapping[str, ColumnKind]) -> None:
        self._settled = dict(settled)
        self._learnt: dict[str, ColumnKind | None] = {}
        self._names: dict[str, str] = {}

    @property
    def kinds(self) -> dict[str, ColumnKind]:
        """Kinds by column. Columns without any value are left out: a later build may determine them."""
        return self._settled | {name: kind for name, kind in self._learnt.items() if kind is not None}

    def observe(self, document: SearchDocument) -> None:
        """Learns kinds from a document's values. Raises InputError for a value that a fixed column can't
        hold, and for two columns that would get one name.
        """
        for original, value in document.columns.items():
            name = column_name(original)
            if self._names.setdefault(name, original) != original:
                raise InputError(
                    f"{document.where}: the columns {self._names[name]!r} and {original!r} would both be "
                    f"called {name!r} in the index. Rename one."
                )
            if name in self._settled:
                _convert(value, self._settled[name], name, document.where)
            else:
                self._learnt[name] = _wider_kind(self._learnt.get(name), _kind_of(value))

    def values(self, document: SearchDocument) -> dict[str, Any]:
        """A document's metadata by the index's column names, each value converted to its column's kind."""
        kinds = self.kinds
        named = {column_name(name): value for name, value in document.columns.items()}
        return {
            name: _convert(value, kinds[name], name, document.where)
            for name, value in named.items()
            if name in kinds
        }


def _is_missing(value: Any) -> bool:
    """None, or NaN: LanceDB takes that for greater than any number."""
    return value is None or value != value


def _kind_of(value: Any) -> ColumnKind | None:
    if _is_missing(value):
        return None
    if isinstance(value, bool):
        return "yes or no"
    if isinstance(value, int):
        return "whole numbers" if -(2**63) <= value < 2**63 else "text"
    if isinstance(value, float):
        return "numbers"
    if isinstance(value, UntypedCell):
        if _WHOLE.fullmatch(value):
            return "whole numbers"
        return "numbers" if _NUMBER.fullmatch(value) else "text"
    return "text"


def _wider_kind(kind: ColumnKind | None, other: ColumnKind | None) -> ColumnKind | None:
    if kind is None or other is None or kind == other:
        return kind or other
    return "numbers" if {kind, other} == {"whole numbers", "numbers"} else "text"


def _convert(value: Any, kind: ColumnKind, name: str, where: str) -> Any:
    if _is_missing(value):
        return None
    if kind == "text":
        return str(value)
    if _wider_kind(kind, _kind_of(value)) != kind:
        raise InputError(
            f"{where}: the column {name!r} of this index holds {kind}, found {value!r}. "
            "Mend the value, or build another index."
        )
    return {"whole numbers": int, "numbers": float, "yes or no": bool}[kind](value)


def filter_problem(where: str) -> str | None:
    """Why a filter must not be passed to LanceDB, as a clause for a message; None if it may."""
    if len(where) > LONGEST:
        return f"it has {len(where):,} characters, and at most {LONGEST:,} are read"
    tokens = [token for token in _TOKEN.finditer(where) if token.lastgroup != "comment"]
    return _refused_call(tokens) or _refused_size(tokens)


def _refused_call(tokens: list[re.Match[str]]) -> str | None:
    for token in tokens:
        if token.lastgroup in ("word", "sign") and token[0].lower() in _TOO_MUCH:
            return f"it holds {_TOO_MUCH[token[0].lower()]}"
    for before, token in pairwise(tokens):
        is_call = token[0] == "(" and before.lastgroup in ("name", "word")
        if is_call and before[0].lower() not in _BEFORE_PARENTHESIS:
            return f"it calls {before[0]}, and may call {', '.join(FUNCTIONS)}"
        if token.lastgroup == "text" and before.lastgroup == "word" and before.end() == token.start():
            return f"it holds a text marked by {before[0]}"  # whose end other rules may decide
    return None


def _refused_size(tokens: list[re.Match[str]]) -> str | None:
    """Why an expression is too large, or None. AND and OR may join any number of terms. A term's size is the
    number of its parts, including those of the largest term within its parentheses.
    """
    term_sizes = [[0]]
    in_between = False  # BETWEEN's AND joins no terms
    for token in tokens:
        word = token[0].lower()
        if word in ("(", "["):
            term_sizes.append([0])
        elif word in (")", "]") and len(term_sizes) > 1:
            inner = max(term_sizes.pop())
            term_sizes[-1][-1] += inner + 1
        elif word == "or" or (word == "and" and not in_between):
            term_sizes[-1].append(0)
        elif token.lastgroup not in ("text", "number", "comma"):
            term_sizes[-1][-1] += 1
        in_between = word == "between" or (in_between and word != "and")
        if len(term_sizes) > _DEEPEST:
            return f"its parentheses stand more than {_DEEPEST - 1} deep"
        if term_sizes[-1][-1] > _MOST_PARTS:
            return f"a term of it has more than {_MOST_PARTS} parts"
    return None


def filter_reason(error: Exception) -> str:
    """Translates LanceDB's message about a filter into words that the filter's author understands."""
    text = str(error)
    matches = ((pattern.search(text), reason) for pattern, reason in _REASONS)
    unknown = "it can't be computed for the columns it names"
    return next((reason.format(*match.groups()) for match, reason in matches if match), unknown)
