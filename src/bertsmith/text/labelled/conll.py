"""Reads sentences of tagged words, or texts with marked entities: CoNLL-2003, CoNLL-U, JSON lines, plain
lines.

| format | by the ending | a sentence |
| --- | --- | --- |
| conll | .conll, .iob, .iob2, .bio, .tsv | a word per line, then a blank line; -DOCSTART- begins documents |
| conllu | .conllu | the same with # comments; word in column 2, tag in 4; `# newdoc` begins documents |
| jsonl, json | .jsonl, .ndjson, .json | {"words": [...], "tags": [...]}, or tokens, labels, ner_tags; or |
|             |                        | {"text": "...", "spans": [{"start": 0, "end": 4, "label": "PER"}]} |
| lines | | a text per line, only for prediction; a blank line is an empty text |

A file with any other ending is read as conll if tags are needed. Otherwise its content decides between conll
and lines: blocks of lines with equally many columns, with blank lines between the blocks, are conll.

A span may have its own text, under "text", "surface", "mention" or "word": then this must be the text between
the offsets. The value of another usual key ("value", "quote", "name") is checked as well if it is the text
that offsets in other units point to. Spans without their own text are refused if many of them divide words
that they would not divide in other units.

Columns are split at tabs if the first word's line has one, else at blanks. They count from 1. Tags are
returned as the file has them, whatever their scheme. Each JSON object counts as a document; one without a
text (null, blank, no words) is a sentence without words.
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
# Ending -> pandas' name of the format.
_TABLES = {".csv": "csv", ".parquet": "parquet", ".pq": "parquet", ".xlsx": "excel"}
DOCUMENT_START = "-DOCSTART-"
WORD_KEYS = ("words", "tokens", "text")
TAG_KEYS = ("tags", "labels", "ner_tags")
SPAN_KEYS = ("spans", "entities")
SPAN_TEXT_KEYS = ("text", "surface", "mention", "word")
# Keys of the span's text or else of its name, its type or a normal form, which the text may have elsewhere.
_MAYBE_SPAN_TEXT_KEYS = (
    *("value", "span", "span_text", "quote", "exact", "string", "phrase", "token", "content"),
    *("surface_form", "surfaceForm", "covered_text", "coveredText", "mention_text", "entity_text"),
    *("name", "entity"),
)
_EXAMPLE_SPAN = '{"start": 0, "end": 5, "label": "PER"}'
# In CoNLL-U, '1-2' is a contraction whose words follow, and '8.1' a word that isn't in the text.
_NO_WORD = re.compile(r"[0-9]+[-.][0-9]+")


class TaggedSentence(NamedTuple):
    """The words of a sentence with a tag for each, or no tags; `id` is the file's own, if it has any.

    `document` is the number of their document, from 0; `where` is file and line of the first word.
    """

    words: tuple[str, ...]
    tags: tuple[str, ...]
    document: int
    where: str
    id: str | int | None = None


class MarkedText(NamedTuple):
    """A text with its entities, as (label, start, end) in characters; `id` is the file's own, if it has any.

    `where` is its file and line. `span_texts` has for each span its own text, if the file has it, and whether
    that is certain to be the span's text; it is empty if no span has one.
    """

    text: str
    spans: tuple[tuple[str, int, int], ...]
    where: str
    id: str | int | None = None
    span_texts: tuple[tuple[str | None, bool], ...] = ()


def read_tagged(
    path: str | Path,
    *,
    word_column: str | int | None = None,
    tag_column: str | int | None = None,
    format: str | None = None,
    tagged: bool = True,
    encoding: str = "utf-8",
) -> list[TaggedSentence | MarkedText]:
    """Reads every sentence of a file ('-': standard input, as JSON lines unless another `format` is given).

    Columns are numbers from 1, by default the first for the word and the last for the tag; for JSON they are
    keys. Unless a tag's column is given, every line must have as many columns as the first. With
    `tagged=False` only words or texts are read, and the ids of JSON's objects: tags and spans are empty.
    Raises InputError naming file and line for a missing column, for unequal numbers of words and tags, and
    for a tag that isn't a string.
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
        sentences: list[TaggedSentence | MarkedText]
        if table.format in ("json", "jsonl"):
            records = tables.FORMATS[table.format].records(table.stream)
            sentences = list(_read_json_sentences(records, word_column, tag_column, tagged))
            marked_texts = [sentence for sentence in sentences if isinstance(sentence, MarkedText)]
            require_texts(
                [
                    SpanText(marked.text, *span, span_text, marked.where, is_certain)
                    for marked in marked_texts
                    for span, (span_text, is_certain) in zip(
                        marked.spans, marked.span_texts or repeat((None, False))
                    )
                ]
            )
            _refuse_word_tags(marked_texts)
        else:
            lines, format_name = list(table.lines()), table.format
            if format_name == "lines" and format is None and _look_like_columns(lines):
                format_name = "conll"
            if format_name == "lines":
                sentences = [
                    MarkedText(line, (), f"{table.name}, line {number}")
                    for number, line in enumerate(lines, start=1)
                ]
            else:
                layout = _choose_layout(format_name, word_column, tag_column, tagged)
                sentences = list(_read_column_sentences(lines, layout, table.name))
    if not sentences:
        raise InputError(f"{table.name} has no sentences. Expected at least one, as {table.format}.")
    return sentences


def _look_like_columns(lines: Sequence[str]) -> bool:
    """Whether all lines have equally many columns, and are in blocks of which at least one has several lines.

    Sentences of running text, one per line, differ in length and have no blank lines between them.
    """
    blocks = [block for _, block in _split_blocks(lines, comments=False)]
    word_lines = [line for block in blocks for _, line in block]
    split = _split_at_tabs if word_lines and "\t" in word_lines[0] else _split_at_blanks
    has_separators = len(word_lines) < len(lines)
    widths = {len(split(line)) for line in word_lines}
    return has_separators and len(word_lines) > len(blocks) and len(widths) == 1


@dataclass(frozen=True)
class _ColumnLayout:
    """The columns to read, as indices from 0: a `tag` of -1 is the last column, None reads no tags.

    `comments`: lines that begin with # are comments. `even`: every line must have as many columns as the
    first.
    """

    word: int
    tag: int | None
    comments: bool
    even: bool

    @property
    def needed(self) -> int:
        """The number of columns that every line must have."""
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
        if not rows:  # only contractions and words that aren't in the text
            continue
        width = width or len(rows[0][1])
        for number, fields in rows:
            _check_fields(fields, layout, width, f"{name}, line {number}")
        words = tuple(fields[layout.word] for _, fields in rows)
        tags = () if layout.tag is None else tuple(fields[layout.tag].strip() for _, fields in rows)
        yield TaggedSentence(words, tags, document, f"{name}, line {rows[0][0]}")


def _split_blocks(lines: Iterable[str], comments: bool) -> Iterator[tuple[int, list[tuple[int, str]]]]:
    """Yields (document, numbered lines) of each sentence; what precedes the first document's mark is document
    0, too.
    """
    document_mark = "# newdoc" if comments else DOCUMENT_START
    mark_count, block = 0, list[tuple[int, str]]()
    for number, line in enumerate(chain(lines, [""]), start=1):
        is_mark = line.startswith(document_mark)
        if is_mark or not line.strip(" \t"):
            if block:
                yield max(mark_count - 1, 0), block
            mark_count, block = mark_count + is_mark, []
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
    records: Iterable[tables.Record], word_key: str | int | None, tag_key: str | int | None, tagged: bool
) -> Iterator[TaggedSentence | MarkedText]:
    for document, (fields, where) in enumerate(records):
        id = None if tagged else as_id(fields.get(ID))
        key = _find_key(fields, WORD_KEYS if word_key is None else (str(word_key),), where)
        text = fields[key]
        if text in (None, []) or (tagged and is_blank(text)):
            mark_keys = (*TAG_KEYS, *SPAN_KEYS) if tag_key is None else (str(tag_key),)
            mark_key = next((mark_key for mark_key in mark_keys if fields.get(mark_key)), None)
            if tagged and mark_key is not None:
                raise InputError(
                    f"{where}: found {mark_key!r}, but no text under {key!r}. Mend or remove the row."
                )
            yield TaggedSentence((), (), document, where, id)
            continue
        if isinstance(text, str) and (key == "text" or word_key is not None):
            spans, texts = _read_spans(fields, text, tag_key, where) if tagged else ((), ())
            yield MarkedText(text, spans, where, id, texts)
            continue
        words = _require_strings(fields, key, where, "Name the key of the text or of its words with --text.")
        if word_key is None:
            _refuse_second_list(fields, key, WORD_KEYS, len(words), "the words", "--text", where)
        tags: tuple[str, ...] = ()
        if tagged:
            key = _find_key(fields, TAG_KEYS if tag_key is None else (str(tag_key),), where)
            tags = _require_strings(fields, key, where, "Write the names of tags, not their numbers.")
            if tag_key is None:
                _refuse_second_list(fields, key, TAG_KEYS, len(words), "the tags", "--label", where)
        tags = tuple(tag.strip() for tag in tags)
        if tagged and len(words) != len(tags):
            raise InputError(
                f"{where}: expected a tag for each word, found {len(words)} words and {len(tags)} tags."
            )
        yield TaggedSentence(words, tags, document, where, id)


def _refuse_word_tags(marked_texts: Sequence[MarkedText]) -> None:
    """Raises InputError if spans are labelled with words' tags, such as B-PER and I-PER: a pipeline's raw
    output.
    """
    where_by_label = {label: marked.where for marked in marked_texts for label, _, _ in marked.spans}
    tags = [
        label
        for label in where_by_label
        if label == "O" or (label[:2] == "I-" and f"B{label[1:]}" in where_by_label)
    ]
    if tags:
        raise InputError(
            f"{where_by_label[tags[0]]}: the label of a span is {tags[0]!r}, which is a word's tag. "
            "Give each entity one span, labelled by its kind alone, such as PER; and what is outside of all "
            "none."
        )


def _read_spans(
    fields: dict[str, Any], text: str, key: str | int | None, where: str
) -> tuple[tuple[tuple[str, int, int], ...], tuple[tuple[str | None, bool], ...]]:
    """The spans as (label, start, end) in characters, and their own texts."""
    objects = fields[_find_key(fields, SPAN_KEYS if key is None else (str(key),), where)]
    if key is None and any(fields.get(other) and fields[other] != objects for other in SPAN_KEYS):
        raise InputError(
            f"{where}: {' and '.join(map(repr, SPAN_KEYS))} could both be the spans. Name one with --label."
        )
    try:
        spans, texts = [], []
        for span in list(objects):
            label, start, end = as_label(span["label"], where), int(span["start"]), int(span["end"])
            # pandas makes 4.0 of 4 beside a null, which is fine; 4.5 would be silently cut to 4.
            if (start, end) != (float(span["start"]), float(span["end"])):
                raise ValueError
            if "_" in f"{span['start']}{span['end']}":  # int() reads "1_0" as 10
                raise ValueError
            spans.append((label, start, end))
            texts.append(_find_span_text(span, text))
        return tuple(spans), tuple(texts) if any(span_text is not None for span_text, _ in texts) else ()
    except (TypeError, KeyError, ValueError, OverflowError) as error:
        raise InputError(
            f"{where}: expected 'spans', a list of objects such as {_EXAMPLE_SPAN}, in whole characters, "
            f"found {str(objects)[:80]}."
        ) from error


def _find_span_text(span: dict[str, Any], text: str) -> tuple[str | None, bool]:
    """The span's own text, if the object has one, and whether it is certain that it is that."""
    own_text = next((value for key in SPAN_TEXT_KEYS if isinstance(value := span.get(key), str)), None)
    if own_text is not None:
        return own_text, True
    values = (span.get(key) for key in _MAYBE_SPAN_TEXT_KEYS)
    maybe = next((value for value in values if isinstance(value, str) and value and value in text), None)
    return maybe, False


def _find_key(fields: dict[str, Any], keys: Sequence[str], where: str) -> str:
    """The first of `keys` that has a value; if all are null, the first that there is."""
    present = [key for key in keys if key in fields]
    if not present:
        raise unknown_column(keys[0], list(fields), where)
    return next((key for key in present if fields[key] is not None), present[0])


def _refuse_second_list(
    fields: dict[str, Any], key: str, keys: Sequence[str], length: int, role: str, option: str, where: str
) -> None:
    """Raises InputError if another of the usual `keys` than `key` has as many strings, but other ones."""
    for other_key in keys:
        value: Any = fields.get(other_key)
        is_second = isinstance(value, list) and len(value) == length and value != fields[key]
        if is_second and all(isinstance(item, str) for item in value):
            raise InputError(
                f"{where}: {key!r} and {other_key!r} could both be {role}. Name one with {option}."
            )


def _require_strings(fields: dict[str, Any], key: str, where: str, advice: str) -> tuple[str, ...]:
    value = fields[key]
    if not isinstance(value, list):
        raise InputError(f"{where}: expected a list of strings under {key!r}, found {type(value).__name__}.")
    for number, item in enumerate(value, start=1):
        if not isinstance(item, str) or not item.strip():
            raise InputError(
                f"{where}: expected strings under {key!r}, found {item!r} as number {number}. {advice}"
            )
    return tuple(value)
