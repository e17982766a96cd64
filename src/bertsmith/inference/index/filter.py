"""What a filter in SQL may ask for: comparisons, and functions whose result is no larger than what they read.

LanceDB's planner computes what it can at once, repeat('a', 1000000000) too, and takes a level of the stack
for each part of an expression: a thousand parts joined by || end the process.
"""

import re
from itertools import pairwise

LONGEST = 100_000  # characters: thousands of ids in a list
_DEEPEST = 20  # parentheses within each other
_MOST_PARTS = 200  # of what stands between AND and OR, but for the values of a list
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


def problem_of(where: str) -> str | None:
    """Why a filter is not to be given to LanceDB; None where nothing speaks against it."""
    if len(where) > LONGEST:
        return f"it has {len(where):,} characters, and at most {LONGEST:,} are read"
    tokens = [found for found in _TOKEN.finditer(where) if found.lastgroup != "comment"]
    return _strange_call(tokens) or _too_large(tokens)


def _strange_call(tokens: list[re.Match[str]]) -> str | None:
    for token in tokens:
        if token.lastgroup in ("word", "sign") and token[0].lower() in _TOO_MUCH:
            return f"it holds {_TOO_MUCH[token[0].lower()]}"
    for before, token in pairwise(tokens):
        called = token[0] == "(" and before.lastgroup in ("name", "word")
        if called and before[0].lower() not in _BEFORE_PARENTHESIS:
            return f"it calls {before[0]}, and may call {', '.join(FUNCTIONS)}"
        if token.lastgroup == "text" and before.lastgroup == "word" and before.end() == token.start():
            return f"it holds a text marked by {before[0]}"  # whose end other rules may decide
    return None


def _too_large(tokens: list[re.Match[str]]) -> str | None:
    """AND and OR join any number of terms; a term is as large as the parts that it has, those of the largest
    term within its parentheses among them.
    """
    levels = [[0]]
    between = False  # whose AND joins no terms
    for token in tokens:
        word = token[0].lower()
        if word in ("(", "["):
            levels.append([0])
        elif word in (")", "]") and len(levels) > 1:
            inner = max(levels.pop())
            levels[-1][-1] += inner + 1
        elif word == "or" or (word == "and" and not between):
            levels[-1].append(0)
        elif token.lastgroup not in ("text", "number", "comma"):
            levels[-1][-1] += 1
        between = word == "between" or (between and word != "and")
        if len(levels) > _DEEPEST:
            return f"its parentheses stand more than {_DEEPEST - 1} deep"
        if levels[-1][-1] > _MOST_PARTS:
            return f"a term of it has more than {_MOST_PARTS} parts"
    return None
