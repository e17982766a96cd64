"""The plain dictionaries of a run as rows of text, for the report's tables."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bertsmith.reporting import formatting

BIGGEST_SOURCES = 10
MOST_ROWS = 20
WORDS = {
    "mlm": "MLM",
    "nsp": "NSP",
    "sop": "SOP",
    "rtd": "RTD",
    "sha256": "SHA-256",
    "heldout": "held out",
    "vocab": "vocabulary",
    "mfu": "MFU",
}

# Numbers between 0 and 1 whose name contains one of these are shares, and shown as percentages.
SHARES = re.compile(
    "rate$|share|mfu|coverage|fraction|accuracy|whole_words|unknown_words|unknown_tokens|sentences_within"
)


@dataclass(frozen=True)
class Table:
    """Rows of text under their columns; `more` tells how many rows are not shown."""

    title: str
    columns: list[str]
    rows: list[list[str]]
    more: int = 0
    text_columns: frozenset[int] = frozenset({0})  # the others are numbers and set to the right


@dataclass(frozen=True)
class Setting:
    """One setting of the resolved recipe; `default` is None when it has its default value."""

    name: str
    value: str
    default: str | None


def settings(recipe: Mapping[str, Any], defaults: Mapping[str, Any] | None) -> list[Setting]:
    """The recipe in dotted names; those that differ from their default say what that is."""
    usual = dict(flatten(defaults or {}))
    found = []
    for name, value in flatten(recipe):
        differs = defaults is not None and usual.get(name) != value
        found.append(Setting(name, plain(value), plain(usual.get(name)) if differs else None))
    return found


def facts(mapping: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Names and readable values of whatever is a single value, however deep."""
    return [(label(name), readable(name, value)) for name, value in flatten(mapping) if not _is_table(value)]


def raw_facts(mapping: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The same with names and values as they are: a seed or a version is not to be rounded."""
    return [(name, plain(value)) for name, value in flatten(mapping)]


def table(title: str, rows: Sequence[Any], most: int = MOST_ROWS) -> Table:
    """Rows of dictionaries (their keys become columns), of plain sequences, or of single values."""
    shown, names = rows[:most], []
    if isinstance(rows[0], Mapping):
        names = list(dict.fromkeys(name for row in shown for name in row))
        cells = [[row.get(name) for name in names] for row in shown]
    else:
        cells = [list(row) if isinstance(row, list | tuple) else [row] for row in shown]
    text_columns = {column for row in cells for column, value in enumerate(row) if isinstance(value, str)}
    keys = names or [""] * max(map(len, cells))
    text = [[readable(key, value) for key, value in zip(keys, row)] for row in cells]
    return Table(
        title, [label(name) for name in names], text, len(rows) - len(shown), frozenset(text_columns)
    )


def corpus_tables(corpus: Mapping[str, Any]) -> list[Table]:
    """The splits and the biggest sources of a corpus manifest."""
    found = []
    counts = ("documents", "sentences", "words", "bytes")
    splits = {name: split.get("counts", split) for name, split in (corpus.get("splits") or {}).items()}
    if splits:
        rows = [
            [name, *(formatting.count(split.get(key)) for key in counts)] for name, split in splits.items()
        ]
        found.append(Table("Splits", ["Split", *(label(key) for key in counts)], rows))
    sources = sorted(corpus.get("sources") or [], key=_words, reverse=True)
    if sources:
        rows = []
        for source in sources[:BIGGEST_SOURCES]:
            kept = source.get("kept") or source
            duplicates = [source.get("exact_duplicates"), source.get("near_duplicates")]
            known = [number for number in duplicates if number is not None]
            values = [kept.get("documents"), kept.get("words"), sum(known) if known else None]
            counts_of_it = map(formatting.count, [*values, source.get("empty")])
            rows.append([plain(source.get("name")), *counts_of_it])
        columns = ["Source", "Documents", "Words", "Duplicates dropped", "Empty dropped"]
        found.append(Table("Biggest sources", columns, rows, max(0, len(sources) - BIGGEST_SOURCES)))
    return found


def corpus_facts(corpus: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Totals over all sources and what else the manifest says in single values."""
    sources = corpus.get("sources") or []
    totals = {
        name: sum(source.get(name) or 0 for source in sources)
        for name in ("exact_duplicates", "near_duplicates", "empty")
    }
    dropped = [
        (f"{label(name)} dropped", formatting.count(total)) for name, total in totals.items() if sources
    ]
    shown_elsewhere = ("splits", "sources", "settings", "format_version", "decontaminations")
    rest = {name: value for name, value in corpus.items() if name not in shown_elsewhere}
    checks = corpus.get("decontaminations") or []
    checked = [file["name"] for check in checks for file in check["against"]]
    against = [("Checked against", ", ".join(checked))] if checked else []
    return [("Sources", formatting.count(len(sources))), *dropped, *facts(rest), *against]


def vocabulary_facts(vocabulary: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The single values of a vocabulary report."""
    return facts(_with_pieces_joined(vocabulary))


def vocabulary_tables(vocabulary: Mapping[str, Any]) -> list[Table]:
    """Its words that break into many pieces, and its examples."""
    joined = _with_pieces_joined(vocabulary)
    return [table(label(name), value, most=10) for name, value in joined.items() if _is_table(value)]


def _with_pieces_joined(vocabulary: Mapping[str, Any]) -> dict[str, Any]:
    """Pieces of a word, or of an example, are read as one text."""

    def joined(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {name: joined(item) for name, item in value.items()}
        if not isinstance(value, list | tuple):
            return value
        only_text = bool(value) and all(isinstance(item, str) for item in value)
        return " ".join(value) if only_text else [joined(item) for item in value]

    return {name: joined(value) for name, value in vocabulary.items()}


def flatten(mapping: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, Any]]:
    """Flattens nested settings to pairs of a dotted name and a value."""
    for name, value in mapping.items():
        if isinstance(value, Mapping):
            yield from flatten(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def label(name: str) -> str:
    """`near_duplicates.share` as people write it: Near duplicates share."""
    words = [WORDS.get(word, word) for word in name.replace("_", " ").replace(".", " · ").split()]
    text = " ".join(words)
    return text[:1].upper() + text[1:]


def readable(name: str, value: Any) -> str:
    """A value for people: thousands set apart, shares as percentages."""
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return plain(value)
    if isinstance(value, int):
        return formatting.count(value)
    if isinstance(value, float):
        if SHARES.search(name) and 0 <= value <= 1:
            return formatting.percent(value) if value >= 0.01 or value == 0 else f"{100 * value:.2g} %"
        return f"{value:,.4g}"
    if isinstance(value, list | tuple):
        return ", ".join(readable(name, item) for item in value[:MOST_ROWS])
    return str(value)


def plain(value: Any) -> str:
    """A value as a recipe would have it."""
    if value is None or value == "":
        return formatting.UNKNOWN
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        items = (f"({plain(item)})" if isinstance(item, list | tuple) else plain(item) for item in value)
        return ", ".join(items) or formatting.UNKNOWN
    return str(value)


def _is_table(value: Any) -> bool:
    """Rows, or sentences: these need a line each."""
    if not isinstance(value, list | tuple) or not value:
        return False
    is_sentences = isinstance(value[0], str) and any(" " in item for item in value)
    return is_sentences or isinstance(value[0], Mapping | list | tuple)


def _words(source: Mapping[str, Any]) -> int:
    return int((source.get("kept") or source).get("words") or 0)
