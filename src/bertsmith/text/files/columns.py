"""Finds the columns of a table that hold the text, its partner and the label: by name, number or a guess.

Numbers count from 1, as those of `cut` and of a spreadsheet do. A name takes precedence over a number: "2"
means the column called "2" if there is one. A column that isn't named is guessed by the names listed below,
whatever their case, spaces, dashes and underscores; `LESSER_TEXTS` and `LESSER_LABELS` count only if no
column has one of the other names. Two candidates for one role are an error: nothing is chosen silently.
"""

import re
from collections.abc import Mapping, Sequence
from itertools import chain, product
from typing import NamedTuple

from bertsmith.errors import InputError, did_you_mean

PAIRS = (
    *(("text", "textpair"), ("text1", "text2"), ("texta", "textb"), ("sentence1", "sentence2")),
    *(("sentencea", "sentenceb"), ("sent1", "sent2"), ("s1", "s2"), ("question1", "question2"), ("q1", "q2")),
    *(("string1", "string2"), ("#1string", "#2string"), ("premise", "hypothesis"), ("claim", "evidence")),
    *(("question", "sentence"), ("question", "answer"), ("question", "passage"), ("question", "context")),
    *(("query", "passage"), ("query", "document"), ("query", "answer"), ("context", "response")),
)
TEXTS = (
    *("text", "sentence", "content", "review", "comment", "utterance", "document", "question", "query"),
    *("message", "body", "post", "tweet", "sms", "email", "mail", "article", "passage", "paragraph"),
    *("reviewtext", "reviewbody", "commenttext", "tweettext", "messagetext", "fulltext", "statement"),
    *("transcript", "phrase", "prompt"),
)
LESSER_TEXTS = ("input", "abstract", "description", "summary", "headline", "title", "subject", "string")
LABELS = (
    *("label", "labels", "class", "category", "topic", "topics", "intent", "sentiment", "target"),
    *("score", "rating", "similarity", "similarityscore", "goldlabel", "quality"),
)
LESSER_LABELS = (
    *("categories", "classes", "tag", "tags", "emotion", "emotions", "polarity", "stance", "genre", "stars"),
    *("gold", "output", "y", "classlabel", "labeltext", "labelname", "relevance"),
)
_LONGEST_SHOWN = 80  # characters
BY_SEMICOLONS = "It looks separated by semicolons: save it with commas or tabs."
_SEPARATORS = {
    "\t": "It looks separated by tabs: --format tsv reads it.",
    ";": BY_SEMICOLONS,
    "|": "It looks separated by vertical bars: save it with commas or tabs.",
    ",": "It looks separated by commas: --format csv reads it.",
}


class Columns(NamedTuple):
    """The columns of a table by name or number; None if the table has no such column."""

    text: str | int
    text_pair: str | int | None
    label: str | int | None


def guess_columns(
    names: Sequence[str],
    where: str,
    *,
    text: str | int | None = None,
    text_pair: str | int | None = None,
    label: str | int | None = None,
    besides: Sequence[str] = (),
    labelled: bool = True,
) -> Columns:
    """The given columns; those that aren't given are guessed among the other `names`.

    The second text of a pair is guessed only if `text` isn't given either; a label only if `labelled`, and it
    is None if no name fits. `besides` are columns with another role. `where` is what messages call the file.
    Raises InputError, naming the columns and the option, if no column or more than one could be the text, or
    if more than one could be the label.
    """
    named_columns = {named_column(column, names) for column in (text, text_pair, label)}
    free_names = [name for name in names if name not in named_columns and name not in besides]
    if text is None:
        text, *partner = _guess_text_columns(
            _group_by_plain_name(free_names), where, named_column(text_pair, names)
        )
        text_pair = text_pair or next(iter(partner), None)
    if label is None and labelled:
        label = guess_label(free_names, where)
    return Columns(text, text_pair, label)


def guess_label(names: Sequence[str], where: str) -> str | None:
    """The column with a usual name for labels, or None. Raises InputError if several columns have one."""
    by_plain_name = _group_by_plain_name(names)
    candidates = (
        [column for name in label_names for column in by_plain_name.get(name, ())]
        for label_names in (LABELS, LESSER_LABELS)
    )
    labels = next(filter(None, candidates), [])
    if len(labels) > 1:
        raise InputError(f"{where}: {listed(labels)} could all be the label. Name one with --label.")
    return labels[0] if labels else None


def _group_by_plain_name(names: Sequence[str]) -> dict[str, list[str]]:
    groups: dict[str, list[str]] = {}
    for name in dict.fromkeys(names):
        groups.setdefault(plain_name(name), []).append(name)
    return groups


def _guess_text_columns(
    by_plain_name: Mapping[str, Sequence[str]], where: str, partner: str | None
) -> tuple[str, ...]:
    """The column of the text, or the two of a pair. If the second text of a pair is given as `partner`, it is
    the column of the first.

    Raises InputError if no names or several fit.
    """
    pairs = [pair for pair in PAIRS if by_plain_name.keys() >= set(pair)]
    in_pairs = {name for pair in pairs for name in pair}
    unpaired = by_plain_name.keys() - in_pairs
    names = list(chain(*by_plain_name.values()))
    if separator_advice(names):  # also where the plain name drops the separator: "review\ttext"
        raise unknown_column("text", names, where)
    texts = [(name,) for name in TEXTS if name in unpaired]
    if not pairs and not texts:
        texts = [(name,) for name in LESSER_TEXTS if name in unpaired]
    candidates = [
        columns
        for plain_names in [*pairs, *texts]
        for columns in product(*(by_plain_name[name] for name in plain_names))
    ]
    if partner is not None:
        firsts = [
            first for first, second in PAIRS if second == plain_name(partner) and first in by_plain_name
        ]
        candidates = [(name,) for first in firsts for name in by_plain_name[first]] or candidates
        candidates = [columns for columns in candidates if len(columns) == 1]
    if len(candidates) == 1:
        return candidates[0]
    choices = " or ".join(" with ".join(columns) for columns in candidates)
    problem = (
        f"the text could be {choices}" if choices else "no column has a name that says it holds the text"
    )
    raise InputError(
        f"{where}: {problem}. There are: {listed(names)}. "
        "Name the text with --text and, for pairs, --text-pair."
    )


def named_column(column: str | int | None, names: Sequence[str]) -> str | None:
    """The name of a column given by its name or by its number from 1; None if there is no such column."""
    index = None if column is None else column_index(column, names)
    return None if index is None else names[index]


def column_index(column: str | int, names: Sequence[str]) -> int | None:
    """The index (from 0) of a column given by its name or by its number from 1: the first of several with
    that name, None if there is none.
    """
    if column in names:
        return names.index(str(column))
    number = column_number(column)
    return None if number is None or number > len(names) else number - 1


def find_column(column: str | int, names: Sequence[str], where: str) -> int:
    """The index (from 0) of a column given by its name or by its number from 1.

    Raises InputError if there is no such column, or several of that name.
    """
    if column in names and names.count(str(column)) > 1:
        numbers = listed([str(number) for number, name in enumerate(names, 1) if name == column])
        raise InputError(
            f"{where}: columns {numbers} are all called {column!r}. Give the number of the one you mean."
        )
    index = column_index(column, names)
    if index is None:
        raise unknown_column(column, names, where)
    return index


def column_number(column: str | int) -> int | None:
    """The number that `column` is or spells; None for a name. Raises InputError if the number is below 1."""
    if isinstance(column, str) and not re.fullmatch(r"-?[0-9]{1,9}", column):
        return None
    if int(column) < 1:
        raise InputError(f"There is no column {column}: columns count from 1, as those of `cut` do.")
    return int(column)


def unknown_column(column: str | int, names: Sequence[str], where: str) -> InputError:
    """The error for a missing column; it says which columns there are and which one may be meant."""
    if isinstance(column, str) and len(column) > _LONGEST_SHOWN:
        column = column[:_LONGEST_SHOWN] + "…"
    advice = separator_advice(names) or did_you_mean(str(column), names)
    return InputError(f"{where}: no column {column!r}. There are: {listed(names)}.{advice}")


def separator_advice(names: Sequence[str]) -> str:
    """Advice for the end of a message, if the only column name contains another separator; else ""."""
    separator = next((mark for mark in _SEPARATORS if len(names) == 1 and mark in names[0]), None)
    return "" if separator is None else f" {_SEPARATORS[separator]}"


def names_a_text(cell: str) -> bool:
    """Whether a cell is a usual name of a text column, so that its row must be a header."""
    return plain_name(cell) in {*TEXTS, *LESSER_TEXTS, *chain(*PAIRS)}


def plain_name(name: str) -> str:
    """A column's name as the lists above spell it: in lower case, without spaces, dashes and underscores."""
    return re.sub(r"[\s_-]+", "", name.lower())


def listed(names: Sequence[str]) -> str:
    """The first twenty names, for a message, and how many more there are; "none" if there are none."""
    shown = ", ".join(names[:20]) or "none"
    return shown + (f" and {len(names) - 20} more" if len(names) > 20 else "")
