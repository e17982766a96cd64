"""Sentences of tagged words, or text with entities marked in it: CoNLL-2003, CoNLL-U, JSON lines, lines.

| format | by the ending | a sentence |
| --- | --- | --- |
| conll | .conll, .iob, .iob2, .bio, .tsv | a word a line, a blank line behind; -DOCSTART- begins documents |
| conllu | .conllu | the same with # comments; word in column 2, tag in 4; `# newdoc` begins documents |
| jsonl, json | .jsonl, .ndjson, .json | {"words": [...], "tags": [...]}, or tokens, labels, ner_tags; or |
|             |                        | {"text": "...", "spans": [{"start": 0, "end": 4, "label": "PER"}]} |
| lines | | running text, a line each; without tags only, a blank line is an empty text |

Any other ending is conll where tags are wanted. Else the content decides between conll and lines: equally
wide lines in blocks, with blank lines between them, are columns.

A span may carry its own text, under "text", "surface", "mention" or "word": then it must stand there, as must
what another usual key ("value", "quote", "name") says if it stands where offsets in other units point to.
Spans without it are refused where many divide words that they would not divide in other units.

Columns are split at tabs where the first word's line has one, else at blanks. They count from 1. Tags are
returned as they stand, whatever their scheme. Each JSON object counts as a document; one without a text
(null, blank, no words) is a sentence without words.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, repeat
from pathlib import Path
from typing import Any, NamedTuple

from bertsmith.errors import InputError
from bertsmith.text.files import tables
from bertsmith.text.files.columns import column_number, unknown_column
from bertsmith.text.files.table_file import open_table
from bertsmith.text.files.values import ID, as_id, as_label, is_blank
from bertsmith.text.labelled.span_texts import SpanText, require_texts

FORMATS = {
    **dict.fromkeys((".conll", ".iob", ".iob2", ".bio", ".tsv"), "conll"),
    ".conllu": "conllu",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "json",
}
_TABLES = {".csv": "csv", ".parquet": "parquet", ".pq": "parquet", ".xlsx": "excel"}  # as pandas calls them
DOCUMENT_START = "-DOCSTART-"
WORD_KEYS = ("words", "tokens", "text")
TAG_KEYS = ("tags", "labels", "ner_tags")
SPAN_KEYS = ("spans", "entities")
SPAN_TEXT_KEYS = ("text", "surface", "mention", "word")
# Or what it is called, its kind, or its value in a normal form, which the text may have elsewhere.
_MAYBE_SPAN_TEXT_KEYS = (
    *("value", "span", "span_text", "quote", "exact", "string", "phrase", "token", "content"),
    *("surface_form", "surfaceForm", "covered_text", "coveredText", "mention_text", "entity_text"),
    *("name", "entity"),
)
_A_SPAN = '{"start": 0, "end": 5, "label": "PER"}'
# Of CoNLL-U: '1-2' is a contraction whose words follow, '8.1' a word that isn't in the text.
_NO_WORD = re.compile(r"[0-9]+[-.][0-9]+")


class TaggedSentence(NamedTuple):
    """Words with a tag each, the number of their document from 0, the place of the first word, and what the
    file calls them.
    """

    words: tuple[str, ...]
    tags: tuple[str, ...]
    document: int
    where: str
    id: str | int | None = None


class MarkedText(NamedTuple):
    """Running text, its entities as (label, start, end) in characters, its place, what the file calls it, and
    the entities' own texts, where the file has them.
    """

    text: str
    spans: tuple[tuple[str, int, int], ...]
    where: str
    id: str | int | None = None
    span_texts: tuple[tuple[str | None, bool], ...] = ()  # and whether it is certain that they are these


def read_tagged(
    path: str | Path,
    *,
    word_column: str | int | None = None,
    tag_column: str | int | None = None,
    format: str | None = None,
    tagged: bool = True,
    encoding: str = "utf-8",
) -> list[TaggedSentence | MarkedText]:
    """Every sentence of a file ('-': standard input, as JSON lines unless `format` says otherwise).

    Columns are numbers from 1, by default the first for the word and the last for the tag; for JSON they are
    keys. Unless a tag's column is given, every line must have as many columns as the first. `tagged=False`
    reads words or text only, and tags and spans are empty; then the ids of JSON's objects are read too.
    Raises InputError naming file and line: a missing column, unequal lengths, a tag that is no string.
    """
    table_ending = next((ending for ending in Path(path).suffixes[-2:] if ending.lower() in _TABLES), None)
    if format is None and table_ending is not None:
        raise InputError(
            f"{path}: words and their tags are read from CoNLL's columns or JSON lines, not from a table. "
            "Make it JSON lines with words or a text in each row, for instance in pandas: "
            f"pandas.read_{_TABLES[table_ending.lower()]}(FILE).to_json(OUT, orient='records', lines=True)"
        )
    by_ending = FORMATS if tagged else {**FORMATS, ".txt": "lines"}
    otherwise = "jsonl" if str(path) == "-" else "conll" if tagged else "lines"
    with open_table(path, format, encoding, by_ending, otherwise, whole_name=True) as table:
        found: list[TaggedSentence | MarkedText]
        if table.format in ("json", "jsonl"):
            records = tables.FORMATS[table.format].records(table.stream)
            found = list(_read_json_sentences(records, word_column, tag_column, tagged))
            marked = [each for each in found if isinstance(each, MarkedText)]
            require_texts(
                [
                    SpanText(each.text, *span, words, each.where, is_certain)
                    for each in marked
                    for span, (words, is_certain) in zip(each.spans, each.span_texts or repeat((None, False)))
                ]
            )
            _require_names(marked)
        else:
            lines, form = list(table.lines()), table.format
            if form == "lines" and format is None and _look_like_columns(lines):
                form = "conll"
            if form == "lines":
                found = [MarkedText(line, (), f"{table.name}, line {n}") for n, line in enumerate(lines, 1)]
            else:
                layout = _choose_layout(form, word_column, tag_column, tagged)
                found = list(_read_column_sentences(lines, layout, table.name))
    if not found:
        raise InputError(f"{table.name} has no sentences. Expected at least one, as {table.format}.")
    return found


def _look_like_columns(lines: Sequence[str]) -> bool:
    """Equally wide lines, in blocks of which at least one has several: sentences of running text, one a line,
    are of different lengths and have no blank lines between them.
    """
    blocks = [block for _, block in _split_blocks(lines, comments=False)]
    filled = [line for block in blocks for _, line in block]
    split = _split_at_tabs if filled and "\t" in filled[0] else _split_at_blanks
    divided = len(filled) < len(lines)
    return divided and len(filled) > len(blocks) and len({len(split(line)) for line in filled}) == 1


@dataclass(frozen=True)
class _ColumnLayout:
    """Which columns are read, as indices from 0; `tag` -1 is the last, None is no tag wanted. `even`: every
    line is as wide as the first.
    """

    word: int
    tag: int | None
    comments: bool
    even: bool

    @property
    def needed(self) -> int:
        """Columns that every line must have."""
        return max(self.word, self.tag or 0) + 1 if self.tag != -1 else self.word + 2


def _choose_layout(format: str, word: str | int | None, tag: str | int | None, tagged: bool) -> _ColumnLayout:
    default_word, default_tag = (2, 4) if format == "conllu" else (1, None)
    tag = default_tag if tag is None else tag
    tag_index = (-1 if tag is None else _column_index(tag)) if tagged else None
    return _ColumnLayout(
        _column_index(default_word if word is None else word), tag_index, format == "conllu", tag is None
    )


def _column_index(column: str | int) -> int:
    number = column_number(column)
    if number is None:
        raise InputError(f"No column {column!r}: CoNLL columns have numbers only, from 1.")
    return number - 1


def _read_column_sentences(
    all_lines: Sequence[str], layout: _ColumnLayout, name: str
) -> Iterator[TaggedSentence]:
    split: Callable[[str], list[str]] | None = None
    width: int | None = None
    for document, lines in _split_blocks(all_lines, layout.comments):
        split = split or (_split_at_tabs if "\t" in lines[0][1] else _split_at_blanks)
        rows = [(number, split(line)) for number, line in lines]
        if layout.comments:
            rows = [(number, fields) for number, fields in rows if not _NO_WORD.fullmatch(fields[0])]
        if not rows:  # nothing but contractions and words that aren't in the text
            continue
        width = width or len(rows[0][1])
        for number, fields in rows:
            _check_fields(fields, layout, width, f"{name}, line {number}")
        words = tuple(fields[layout.word] for _, fields in rows)
        tags = () if layout.tag is None else tuple(fields[layout.tag].strip() for _, fields in rows)
        yield TaggedSentence(words, tags, document, f"{name}, line {rows[0][0]}")


def _split_blocks(lines: Iterable[str], comments: bool) -> Iterator[tuple[int, list[tuple[int, str]]]]:
    """(document, its numbered lines) of each sentence. What precedes the first mark is document 0 too."""
    opening = "# newdoc" if comments else DOCUMENT_START
    marks, block = 0, list[tuple[int, str]]()
    for number, line in enumerate(chain(lines, [""]), start=1):
        is_mark = line.startswith(opening)
        if is_mark or not line.strip(" \t"):
            if block:
                yield max(marks - 1, 0), block
            marks, block = marks + is_mark, []
        elif not (comments and line.startswith("#")):
            block.append((number, line))


def _split_at_tabs(line: str) -> list[str]:
    return [field.strip(" ") for field in line.split("\t")]


def _split_at_blanks(line: str) -> list[str]:
    # Not str.split(): a no-break space can be a word of its own.
    return re.split("[ \t]+", line.strip(" \t"))


def _check_fields(fields: Sequence[str], layout: _ColumnLayout, width: int, where: str) -> None:
    needed = max(width, layout.needed) if layout.even else layout.needed
    if len(fields) < needed or (layout.even and len(fields) != needed):
        raise InputError(
            f"{where}: expected {needed} columns, found {len(fields)}: {' '.join(fields)[:60]!r}. "
            "Mend the line, or name the columns by number if their count may differ. Running text, a line "
            "each, can be predicted with --format lines."
        )
    if not fields[layout.word] or (layout.tag is not None and not fields[layout.tag].strip()):
        raise InputError(f"{where}: expected a word and a tag, found an empty column. Mend the line.")


def _read_json_sentences(
    found: Iterable[tables.Record], word_key: str | int | None, tag_key: str | int | None, tagged: bool
) -> Iterator[TaggedSentence | MarkedText]:
    for document, (fields, where) in enumerate(found):
        id = None if tagged else as_id(fields.get(ID))
        key = _find_key(fields, WORD_KEYS if word_key is None else (str(word_key),), where)
        text = fields[key]
        if text in (None, []) or (tagged and is_blank(text)):
            yield TaggedSentence((), (), document, where, id)
            continue
        if isinstance(text, str) and (key == "text" or word_key is not None):
            spans, texts = _read_spans(fields, text, tag_key, where) if tagged else ((), ())
            yield MarkedText(text, spans, where, id, texts)
            continue
        words = _require_strings(fields, key, where)
        tag_keys = TAG_KEYS if tag_key is None else (str(tag_key),)
        tags = _require_strings(fields, _find_key(fields, tag_keys, where), where) if tagged else ()
        tags = tuple(tag.strip() for tag in tags)
        if tagged and len(words) != len(tags):
            raise InputError(
                f"{where}: expected a tag for each word, found {len(words)} words and {len(tags)} tags."
            )
        yield TaggedSentence(words, tags, document, where, id)


def _require_names(marked: Sequence[MarkedText]) -> None:
    """Raises InputError where spans have tags of words, as a pipeline gives them piece by piece."""
    labels = {label: each.where for each in marked for label, _, _ in each.spans}
    tags = [label for label in labels if label == "O" or (label[:2] == "I-" and f"B{label[1:]}" in labels)]
    if tags:
        raise InputError(
            f"{labels[tags[0]]}: the label of a span is {tags[0]!r}, which is a word's tag. Give each entity "
            "one span, labelled by its kind alone, such as PER; and what is outside of all none."
        )


def _read_spans(
    fields: dict[str, Any], text: str, key: str | int | None, where: str
) -> tuple[tuple[tuple[str, int, int], ...], tuple[tuple[str | None, bool], ...]]:
    """Objects of start, end and label, in characters, and their own texts."""
    given = fields[_find_key(fields, SPAN_KEYS if key is None else (str(key),), where)]
    try:
        spans, texts = [], []
        for each in list(given):
            label, start, end = as_label(each["label"], where), int(each["start"]), int(each["end"])
            # pandas makes 4.0 of 4 beside a null; 4.5 would be a place cut off without a word.
            if (start, end) != (float(each["start"]), float(each["end"])):
                raise ValueError
            spans.append((label, start, end))
            texts.append(_find_span_text(each, text))
        return tuple(spans), tuple(texts) if any(words is not None for words, _ in texts) else ()
    except (TypeError, KeyError, ValueError, OverflowError) as error:
        raise InputError(
            f"{where}: expected 'spans', a list of objects such as {_A_SPAN}, in whole characters, "
            f"found {str(given)[:80]}."
        ) from error


def _find_span_text(span: dict[str, Any], text: str) -> tuple[str | None, bool]:
    """And whether it is certain that it is the span's own text."""
    own = next((words for key in SPAN_TEXT_KEYS if isinstance(words := span.get(key), str)), None)
    if own is not None:
        return own, True
    maybe = (span.get(key) for key in _MAYBE_SPAN_TEXT_KEYS)
    return next((words for words in maybe if isinstance(words, str) and words and words in text), None), False


def _find_key(fields: dict[str, Any], keys: Sequence[str], where: str) -> str:
    key = next((key for key in keys if key in fields), None)
    if key is None:
        raise unknown_column(keys[0], list(fields), where)
    return key


def _require_strings(fields: dict[str, Any], key: str, where: str) -> tuple[str, ...]:
    value = fields[key]
    if not isinstance(value, list):
        raise InputError(f"{where}: expected a list of strings under {key!r}, found {type(value).__name__}.")
    for place, item in enumerate(value, start=1):
        if not isinstance(item, str) or not item.strip():
            raise InputError(
                f"{where}: expected strings under {key!r}, found {item!r} as number {place}. "
                "Write the names of tags, not their numbers."
            )
    return tuple(value)
