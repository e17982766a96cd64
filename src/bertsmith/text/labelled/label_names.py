"""What the names of labels give away: which look alike, which are several in one, and which say that there is
none.
"""

import re
import unicodedata
from collections.abc import Collection, Mapping

from bertsmith.errors import InputError
from bertsmith.text.files.values import as_number

_DIGITS = re.compile(r"[01](?:\s*[01])+")
_SCORE = re.compile(r"[-+]?\d+(?:[.,]\d+)?\s*%?")
# Of case and of form, beyond NFKC and casefold: Turkish i, with and without its dot; the marks that choose a
# picture or a character's colour; and a typographic apostrophe.
_SAME = {"ı": "i", "\u0307": None, "’": "'", **dict.fromkeys(map(chr, range(0xFE00, 0xFE10)))}
# What pandas reads as no value.
_NO_VALUE = {"#N/A", "<NA>", "N/A", "NA", "NULL", "NaN", "None", "n/a", "nan", "null"}


def label_appearance(label: str) -> str:
    """What labels have in common that differ in case, in blanks or in Unicode's form alone."""
    folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", label).casefold())
    folded = folded.translate(str.maketrans(_SAME))
    visible = (mark for mark in folded if not mark.isspace() and unicodedata.category(mark) != "Cf")
    return "".join(visible) or label


def find_look_alikes(counts: Mapping[str, int]) -> list[list[str]]:
    """Labels that look the same, those that occur most first."""
    by_look: dict[str, list[str]] = {}
    for label in sorted(counts, key=lambda name: (-counts[name], name)):
        by_look.setdefault(label_appearance(label), []).append(label)
    return [labels for labels in by_look.values() if len(labels) > 1]


def find_joined_labels(labels: Collection[str], separator: str) -> list[str]:
    """Those that are others of the labels, two or more, with the separator between them."""
    parts = {label: [part.strip() for part in label.split(separator)] for label in labels}
    single = {part for some in parts.values() for part in some if len(some) == 1}
    several = [label for label, some in parts.items() if len(some) > 1 and all(some)]
    times: dict[str, int] = {}
    for label in several:
        for part in parts[label]:
            times[part] = times.get(part, 0) + 1
    return [label for label in several if all(part in single or times[part] > 1 for part in parts[label])]


def find_stand_ins(labels: Collection[str], known: Collection[str] = ()) -> set[str]:
    """Those that say that there is no label: -1, as in data sets of Hugging Face, or -100, which its losses
    pass over, beside 0, 1, 2 … or beside words; and '-' beside words, as in SNLI.

    Not what training knew; nor -1 beside 0 and 1 alone, nor '-' beside '+', which may well be classes.
    """
    others = set(known or labels) - {"-1", "-100", "-"}
    counted = len(others) > 1 and others == {str(number) for number in range(len(others))}
    words = len(others) > 1 and not any(map(is_number, others)) and "+" not in others
    marks = {"-100"} if counted or words else set[str]()
    marks |= {"-1"} if words or (counted and (known or len(others) > 2)) else set()
    marks |= {"-"} if words else set()
    return (marks & set(labels)) - set(known)


def is_number(label: str) -> bool:
    """Whether a label is spelled as a number."""
    try:
        as_number(label, "")
    except InputError:
        return False
    return True


def find_missing_values(labels: Collection[str]) -> list[str]:
    """Those that a table's writer may have put where there was no label."""
    return sorted(_NO_VALUE.intersection(labels))


def are_multi_hot(labels: Collection[str]) -> bool:
    """Whether each is a printed multi-hot list without its brackets, "0 1 0" or "010": all of one length."""
    lengths = {len("".join(label.split())) for label in labels if _DIGITS.fullmatch(label)}
    return len(lengths) == 1 and all(map(_DIGITS.fullmatch, labels))


def are_scores(labels: Collection[str]) -> bool:
    """Whether all are numbers, and not all whole: with a point or a comma, or in percent."""
    return all(map(_SCORE.fullmatch, labels)) and not all(label.lstrip("-+").isdecimal() for label in labels)


def has_fraction(label: str) -> bool:
    """Whether a label is a number that isn't whole: likely a score."""
    return is_number(label) and not float(label).is_integer()


def format_counts(counts: Mapping[str, int], labels: Collection[str]) -> str:
    """Some labels with how often they occur, for a message."""
    return " and ".join(f"{label!r} ({counts[label]:,})" for label in labels)
