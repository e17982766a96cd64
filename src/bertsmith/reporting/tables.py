"""Formats the plain dictionaries of a run as rows of text, for the report's tables, and says in a line what
the metrics in a table mean.
"""

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
# Metrics in plain words, for the line below a table; files keep the short names.
_ABBREVIATIONS = {"ndcg": "nDCG", "mrr": "MRR", "map": "MAP"}
_MEANINGS = {
    "ndcg": "1 where the best documents come first",
    "mrr": "1 / rank of the first right one",
    "map": "1 where all right ones come before all others",
    "recall": "the share of the right documents that are found",
    "f1": "1 where everything is found and nothing is wrongly found",
    "macro": "the mean of the labels' F1 (1 where a label is given to all its rows and to no others)",
    "micro": "F1 of all labels counted together: 1 where all are given and none wrongly",
    "matthews": "−1 to 1; 0 is chance",
    "spearman": "−1 to 1; 1 where the order is right, 0 is chance",
    "pearson": "−1 to 1; 1 where predictions rise and fall in step with the right numbers, 0 is chance",
    "ece": "how far confidence is from how often it is right",
    "temperature": (
        "divides the model's raw scores (logits) so that a confidence of 80 % is right 80 % of the time"
    ),
}
_TITLES = {
    "f1": "F1",
    "macro": "macro F1",
    "micro": "micro F1",
    "matthews": "Matthews correlation",
    "spearman": "Spearman correlation",
    "pearson": "Pearson correlation",
    "ece": "calibration error",
}
CLASS_FIGURES = (
    "Precision: of the rows that got this label, the share that has it. Recall: of the rows that have it, "
    "the share that got it. F1: between the two, nearer to the lower."
)
_RANKING_ONLY = "recall"  # explained for rankings (recall@10); of classes it is the usual recall


@dataclass(frozen=True)
class Table:
    """A table of texts; `more` is the number of rows that are left out."""

    title: str
    columns: list[str]
    rows: list[list[str]]
    more: int = 0
    text_columns: frozenset[int] = frozenset({0})  # the others have numbers, aligned to the right


@dataclass(frozen=True)
class Setting:
    """One setting of the resolved recipe; `default` is None when it has its default value."""

    name: str
    value: str
    default: str | None


def settings(recipe: Mapping[str, Any], defaults: Mapping[str, Any] | None) -> list[Setting]:
    """The recipe's settings in dotted names, with the default of those that differ from it."""
    usual = dict(flatten(defaults or {}))
    rows = []
    for name, value in flatten(recipe):
        differs = defaults is not None and usual.get(name) != value
        rows.append(Setting(name, plain(value), plain(usual.get(name)) if differs else None))
    return rows


def facts(mapping: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The readable names and values of all single values, at any depth."""
    return [(label(name), readable(name, value)) for name, value in flatten(mapping) if not _is_table(value)]


def raw_facts(mapping: Mapping[str, Any]) -> list[tuple[str, str]]:
    """All names and values as they are, since a seed or a version must not be rounded."""
    return [(name, plain(value)) for name, value in flatten(mapping)]


def table(title: str, rows: Sequence[Any], most: int = MOST_ROWS) -> Table:
    """A table of at most `most` rows: dictionaries, whose keys become columns, sequences, or single
    values.
    """
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
    tables = []
    counts = ("documents", "sentences", "words", "bytes")
    splits = {name: split.get("counts", split) for name, split in (corpus.get("splits") or {}).items()}
    if splits:
        rows = [
            [name, *(formatting.count(split.get(key)) for key in counts)] for name, split in splits.items()
        ]
        tables.append(Table("Splits", ["Split", *(label(key) for key in counts)], rows))
    sources = sorted(corpus.get("sources") or [], key=_words, reverse=True)
    if sources:
        rows = []
        for source in sources[:BIGGEST_SOURCES]:
            kept_counts = source.get("kept") or source
            duplicates = [source.get("exact_duplicates"), source.get("near_duplicates")]
            known = [number for number in duplicates if number is not None]
            values = [kept_counts.get("documents"), kept_counts.get("words"), sum(known) if known else None]
            formatted = map(formatting.count, [*values, source.get("empty")])
            rows.append([plain(source.get("name")), *formatted])
        columns = ["Source", "Documents", "Words", "Duplicates dropped", "Empty dropped"]
        tables.append(Table("Biggest sources", columns, rows, max(0, len(sources) - BIGGEST_SOURCES)))
    return tables


def corpus_facts(corpus: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The totals over all sources, and the other single values of a corpus manifest."""
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
    return facts(_join_pieces(vocabulary))


def vocabulary_tables(vocabulary: Mapping[str, Any]) -> list[Table]:
    """The tables of a vocabulary report: words of many pieces, and examples."""
    join = _join_pieces(vocabulary)
    return [table(label(name), value, most=10) for name, value in join.items() if _is_table(value)]


def _join_pieces(vocabulary: Mapping[str, Any]) -> dict[str, Any]:
    """The report with the pieces of each word or example joined to one text."""

    def join(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {name: join(item) for name, item in value.items()}
        if not isinstance(value, list | tuple):
            return value
        only_text = bool(value) and all(isinstance(item, str) for item in value)
        return " ".join(value) if only_text else [join(item) for item in value]

    return {name: join(value) for name, value in vocabulary.items()}


def flatten(mapping: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, Any]]:
    """Flattens nested settings to pairs of a dotted name and a value."""
    for name, value in mapping.items():
        if isinstance(value, Mapping):
            yield from flatten(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def label(name: str) -> str:
    """A dotted name as a heading: `near_duplicates.share` becomes Near duplicates · share."""
    words = [WORDS.get(word, word) for word in name.replace("_", " ").replace(".", " · ").split()]
    text = " ".join(words)
    return text[:1].upper() + text[1:]


def readable(name: str, value: Any) -> str:
    """Formats a value for readers, with thousands separators, and shares as percentages."""
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
    """Formats a value as in a recipe, without rounding; a dash for None and an empty text."""
    if value is None or value == "":
        return formatting.UNKNOWN
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        items = (f"({plain(item)})" if isinstance(item, list | tuple) else plain(item) for item in value)
        return ", ".join(items) or formatting.UNKNOWN
    return str(value)


def _is_table(value: Any) -> bool:
    """Whether a value is a list of rows or of sentences, which need a line each."""
    if not isinstance(value, list | tuple) or not value:
        return False
    is_sentences = isinstance(value[0], str) and any(" " in item for item in value)
    return is_sentences or isinstance(value[0], Mapping | list | tuple)


def _words(source: Mapping[str, Any]) -> int:
    return int((source.get("kept") or source).get("words") or 0)


def metric_title(name: str) -> str:
    """The name of a ranking metric as papers spell it: "ndcg@10" becomes "nDCG@10"."""
    metric, at, depth = name.partition("@")
    return _ABBREVIATIONS.get(metric, metric) + at + depth


def explain_metrics(names: Iterable[str]) -> str:
    """One line on those of the metrics that need a word, by their names in files ("ndcg@10", "matthews",
    "ece_after"); empty where none does. Metrics of the same kind are explained once.
    """
    explained = dict[str, str]()
    for name in names:
        metric, at, _ = name.partition("@")
        kind = metric.split("_")[0]
        if kind not in _MEANINGS or kind in explained or (kind == _RANKING_ONLY and not at):
            continue
        explained[kind] = f"{_TITLES.get(kind) or metric_title(name)}: {_MEANINGS[kind]}"
    return "; ".join(explained.values()) + ("." if explained else "")
