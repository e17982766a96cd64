"""Rows of retrieval: a query, a document that answers it, perhaps others that don't, perhaps their scores.

| role | columns |
| --- | --- |
| query | query, question, anchor |
| positive | positive, document, passage, answer, sentence |
| negatives | negative, negatives, negative_1, negative_2 …: a text each, or a list of them |
| scores | scores: a teacher's, of the positive and of each negative, in that order |

Queries and positives may also have the names of any pair (see bertsmith.text.files.columns). Objects of JSON
may leave negatives and scores out: those that any object has are read.
"""

import hashlib
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from bertsmith.arrays import Ints
from bertsmith.errors import InputError
from bertsmith.text.files.columns import find_column, guess_columns, guess_label, named_column, plain_name
from bertsmith.text.files.rows import are_objects, read_column_names, read_keys, read_rows, stream_rows
from bertsmith.text.files.values import ID, as_category, as_id, as_number, as_text, is_blank, shown

Column = str | int
QUERIES = ("query", "question", "anchor")
POSITIVES = ("positive", "document", "passage", "answer", "sentence")
# Columns that say how relevant a document is, as reranking reads them.
_RELEVANCES = ("label", "labels", "relevance", "relevant", "isrelevant", "grade", "score", "similarity")
# Columns that do so if all their cells are yes or no, as in Quora's pairs, MRPC, or MS MARCO's passages.
_VERDICTS = (
    *("isduplicate", "duplicate", "quality", "isselected", "iscorrect", "correct", "isanswer", "ispositive"),
    *("ismatch", "match", "isparaphrase", "paraphrase", "relevancy", "judgment", "judgement"),
    *("goldlabel", "gold", "class", "target", "y"),
)
# Words that always mean no, and words that may mean something else, depending on other rows.
_DENIALS = (
    *("irrelevant", "notrelevant", "nonrelevant", "unrelated", "notrelated", "wrong", "incorrect"),
    *("contradiction", "notentailment", "notduplicate"),
)
_WRONG = ("0", "false", "f", "no", "n")
_NOT_WRONG = ("1", "true", "t", "yes", "y")
_NEGATIVE = re.compile(r"negatives?[ _-]?\d*", re.IGNORECASE)
_ROW_NAMES = re.compile(r"|Unnamed: \d+|.*id")  # columns that number the rows: pandas' index, or ids
# A list of texts. Braces aren't looked at: a document may be code.
_PRINTED = re.compile(r"""\[\s*(?:['"].*['"]\s*)?\]""", re.DOTALL)


@dataclass(frozen=True)
class QueryExample:
    """A query and documents: first the one that answers it, then those that don't. `scores` has one for each.

    If it isn't `labelled`, there is one document, and nothing is known about it. `id` is the row's id in the
    file, and `group` its value in the column of groups.
    """

    query: str
    documents: tuple[str, ...]
    where: str
    scores: tuple[float, ...] | None = None
    labelled: bool = True
    id: str | int | None = None
    group: str | None = None


@dataclass(frozen=True)
class QueryColumns:
    """The column of each role. `by_key`: rows are objects, which may lack negatives and scores."""

    query: Column
    positive: Column
    negatives: tuple[Column, ...] = ()
    scores: Column | None = None
    by_key: bool = False


def text_number(text: str) -> int:
    """A number (63 bits) that texts share if they are equal up to case and white space."""
    plain = " ".join(text.casefold().split()).encode("utf-8", "replace")
    return int.from_bytes(hashlib.blake2b(plain, digest_size=8).digest(), "big") >> 1


def is_negative(name: str) -> bool:
    """Whether a column of this name holds documents that don't answer the query."""
    return _NEGATIVE.fullmatch(name.strip()) is not None


def read_query_documents(
    path: Path | str,
    columns: QueryColumns,
    *,
    format: str | None,
    header: bool,
    encoding: str = "utf-8",
    most_negatives: int | None = None,
    labelled: bool = True,
    group: Column | None = None,
    optional_group: str | None = None,
) -> list[QueryExample]:
    """One example a row, with at most the first `most_negatives` of its negatives. `group` is the column of
    groups, or `optional_group`, which the file may lack. Raises InputError naming file and line.
    """
    if optional_group is not None:
        group = None
    needed: list[Column] = [columns.query, columns.positive]
    further = [*columns.negatives, *([] if columns.scores is None else [columns.scores])]
    layout: dict[str, Any] = {"format": format, "header": header, "encoding": encoding}
    layout["optional"] = [*(further if columns.by_key else []), *([] if labelled else [ID])]
    layout["optional"] += [] if optional_group is None else [optional_group]
    if not columns.by_key:
        needed += further
    if group is not None:
        needed.insert(2, group)
    negatives_at = 2 if group is None else 3
    scores_at = negatives_at + len(columns.negatives)
    examples = []
    for values, where in read_rows(path, needed, **layout):
        query, positive = (as_text(value, where) for value in values[:2])
        cells = values[negatives_at:scores_at]
        negatives = [text for cell in cells for text in _read_negatives(cell, where, columns.by_key)]
        documents = (positive, *negatives)
        has_scores = columns.scores is not None and not (columns.by_key and values[scores_at] is None)
        scores = _read_scores(values[scores_at], len(documents), where) if has_scores else None
        most = None if most_negatives is None else 1 + most_negatives
        document_scores = None if scores is None else scores[:most]
        id = None if labelled else as_id(values[-1])  # the last column
        group_cell = values[-1] if optional_group is not None else None if group is None else values[2]
        source = None if is_blank(group_cell) else as_category(group_cell)
        examples.append(QueryExample(query, documents[:most], where, document_scores, labelled, id, source))
    return examples


def find_query_columns(
    path: Path | str,
    query: Column | None,
    positive: Column | None,
    negative: Column | None,
    *,
    format: str | None,
    header: bool,
    encoding: str = "utf-8",
    labelled: bool = True,
) -> QueryColumns:
    """The columns of each role: as given or, for None, by the names in the file.

    Raises InputError if no column, or more than one, could have a role.
    """
    negatives: tuple[Column, ...] = () if negative is None else (negative,)
    if str(path) == "-" or not header:  # no names to go by
        if query is None or positive is None:
            raise InputError(f"{path}: name the columns of query and document: --text and --text-pair.")
        return QueryColumns(query, positive, negatives)
    names = read_column_names(path, format=format, header=header, encoding=encoding)
    if query is None or positive is None:
        query, positive = _find_pair(names, query, positive, str(path))
    if not labelled:
        return QueryColumns(query, positive)
    by_key = not negatives and are_objects(path, format=format, encoding=encoding)
    if by_key:
        names = read_keys(path, format=format, encoding=encoding)
    negatives = negatives or tuple(name for name in names if is_negative(name))
    return QueryColumns(query, positive, negatives, "scores" if "scores" in names else None, by_key)


def find_mined_columns(
    path: Path | str,
    query: Column | None,
    positive: Column | None,
    group: Column | None,
    **layout: Any,
) -> QueryColumns | None:
    """The columns of a file with negatives and without a label, leaving out scores; None for any other file.
    Raises InputError if a column without a role may be a label after all.
    """
    names = read_column_names(path, **layout)
    group_name = named_column(group, names)
    others = [name for name in names if name != group_name]
    if not any(map(is_negative, names)) or guess_label(others, str(path)) is not None:
        return None
    columns = find_query_columns(path, query, positive, None, **layout)
    roles = (columns.query, columns.positive, columns.scores, *columns.negatives)
    used_indices = {find_column(column, names, str(path)) for column in roles if column is not None}
    spare = [
        name for name in others if names.index(name) not in used_indices and not _ROW_NAMES.fullmatch(name)
    ]
    first = next(stream_rows(path, spare, **layout))
    for name, value in zip(spare, first.values, strict=True):
        if _is_number(value):
            raise InputError(
                f"{path} has a column of negatives, and a column {name!r} of numbers that is none of "
                "query, document, negatives and scores. If it is the label, give "
                f"--label {name!r}; if not, leave it out."
            )
    return replace(columns, scores=None)


def _is_number(value: Any) -> bool:
    try:
        return not isinstance(value, bool) and math.isfinite(float(value))
    except (TypeError, ValueError):
        return False


def require_answers(
    path: Path | str,
    columns: QueryColumns,
    label: Column | None,
    *,
    format: str | None,
    header: bool,
    encoding: str = "utf-8",
) -> bool:
    """Raises InputError if `label`, or a column named like one, is a relevance that is 0 or a contradiction
    in some row: its document is no answer, but would be learned as one. Returns whether the file has the
    column `label`.
    """
    layout: dict[str, Any] = {"format": format, "header": header, "encoding": encoding}
    if str(path) == "-":
        return True
    if header:
        by_key = are_objects(path, format=format, encoding=encoding)
        keys_layout: dict[str, Any] = {"format": format, "encoding": encoding}
        names = read_keys(path, **keys_layout) if by_key else read_column_names(path, **layout)
        roles = (columns.query, columns.positive, columns.scores, *columns.negatives)
        used, label_name = {named_column(role, names) for role in roles}, named_column(label, names)
        free = [name for name in names if name not in used]
        verdict_columns = [
            name for name in free if name == label_name or plain_name(name) in (*_RELEVANCES, *_VERDICTS)
        ]
        rows = read_rows(path, [], optional=verdict_columns, **layout) if verdict_columns else []
    else:
        label_name = None if label is None else str(label)
        verdict_columns = [] if label_name is None else [label_name]
        rows = read_rows(path, verdict_columns, **layout) if verdict_columns else []
    for index, column in enumerate(verdict_columns):
        cells = [(row.values[index], row.where) for row in rows if not is_blank(row.values[index])]
        wrong = [row for row in cells if plain_name(as_category(row[0])) in (*_WRONG, *_DENIALS)]
        may_be_grade = column == label_name or plain_name(column) in _RELEVANCES
        denies = any(plain_name(as_category(value)) in _DENIALS for value, _ in wrong)
        if wrong and (denies or all(_is_relevance(value, may_be_grade) for value, _ in cells)):
            value, where = wrong[0]
            raise InputError(
                f"{where}: {column!r} is {as_category(value)}, so the document is no answer, and retrieval "
                f"would learn it as one: {len(wrong):,} of {len(rows):,} rows are so. Keep the others, or "
                f"train reranking, which reads 0 and 1 (--label {column!r}). If the column says something "
                "else, rename it."
            )
    return label_name in verdict_columns


def _is_relevance(value: Any, may_be_grade: bool) -> bool:
    if as_category(value).lower() in (*_WRONG, *_NOT_WRONG):
        return True
    try:
        return may_be_grade and as_number(value, "") >= 0
    except InputError:
        return False


def _find_pair(
    names: Sequence[str], query: Column | None, positive: Column | None, path: str
) -> tuple[Column, Column]:
    plain = {name.strip().lower(): name for name in names}
    queries = [plain[name] for name in QUERIES if name in plain] if query is None else [query]
    positives = [plain[name] for name in POSITIVES if name in plain] if positive is None else [positive]
    if len(queries) == len(positives) == 1:
        return queries[0], positives[0]
    guessed = guess_columns(names, path, text=query, text_pair=positive, labelled=False)
    if guessed.text_pair is None:
        raise InputError(
            f"{path}: retrieval needs a query and a document that answers it. There are: {', '.join(names)}. "
            "Name the two with --text and --text-pair."
        )
    return guessed.text, guessed.text_pair


def _read_negatives(cell: Any, where: str, of_objects: bool) -> list[str]:
    """The negatives in a cell: none, one text, or a list of them. Raises InputError for a printed list in a
    table's cell, which would be read as one text.
    """
    if is_blank(cell):
        return []
    if isinstance(cell, str) and not of_objects and _PRINTED.fullmatch(cell.strip()):
        raise InputError(
            f"{where}: expected a negative or a list of them, found a printed list, {shown(cell)}. Save the "
            "table as JSON lines or Parquet, which hold lists, or give each a column: negative_1, negative_2."
        )
    return [as_text(text, where) for text in (cell if isinstance(cell, list | tuple) else [cell])]


def _read_scores(cell: Any, documents: int, where: str) -> tuple[float, ...]:
    """Scores from a list of numbers, or from a table's cell with commas between them."""
    parts = cell.split(",") if isinstance(cell, str) else cell
    if not isinstance(parts, list | tuple) or len(parts) != documents:
        raise InputError(
            f"{where}: expected {documents} scores, of the positive and of each negative, found {cell!r}. "
            "Mend or remove the row."
        )
    return tuple(as_number(part, where) for part in parts)


def apart(texts: Sequence[Sequence[int]], order: Ints, batch_size: int) -> list[Ints]:
    """Batches in which no two examples share a text; texts[example] has the numbers of an example's texts.

    Each example joins the first batch that has room after all batches with one of its texts. What is left at
    the end is in smaller batches. Batches of one are left out, unless there is no other batch.
    """
    batches: list[list[int]] = []
    open_from = 0  # all batches before are full
    free_from: dict[int, int] = {}  # text -> the first batch after all those that have it
    for example in order.tolist():
        index = max(open_from, *(free_from.get(text, 0) for text in texts[example]))
        while index < len(batches) and len(batches[index]) == batch_size:
            index += 1
        if index == len(batches):
            batches.append([])
        batches[index].append(example)
        free_from |= dict.fromkeys(texts[example], index + 1)
        while open_from < len(batches) and len(batches[open_from]) == batch_size:
            open_from += 1
    usable = [batch for batch in batches if len(batch) > 1] or batches
    return [np.array(batch, np.int64) for batch in usable]


def together(groups: Ints, order: Ints, batch_size: int) -> list[Ints]:
    """Batches of about `batch_size` examples that don't divide groups, given each example's group (E,).

    Groups are in the order of their first examples. A group larger than a batch is a batch by itself.
    """
    members: dict[int, list[int]] = {}
    for example in order.tolist():
        members.setdefault(int(groups[example]), []).append(example)
    ends = np.cumsum([len(rows) for rows in members.values()])
    batches = -(-len(order) // batch_size)
    batch_of_group = (ends - 1) * batches // len(order)
    last_of_batch = np.flatnonzero(np.diff(batch_of_group))
    return np.split(np.array(list(chain(*members.values())), np.int64), ends[last_of_batch])
