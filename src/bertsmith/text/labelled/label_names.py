"""Finds labels whose names look like a mistake: labels that look alike, several labels in one, and stand-ins
for a missing label.
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Collection, Mapping

from bertsmith.errors import InputError
from bertsmith.text.files.values import as_number

_DIGITS = re.compile(r"[01](?:\s*[01])+")
_SCORE = re.compile(r"[-+]?\d+(?:[.,]\d+)?\s*%?")
# Characters that count as the same, beyond NFKC and casefold: the Turkish i with and without its dot, the
# typographic apostrophe, and (dropped) variation selectors, which only choose how a character is drawn.
_SAME_LOOK = {"ı": "i", "\u0307": None, "’": "'", **dict.fromkeys(map(chr, range(0xFE00, 0xFE10)))}
# What pandas reads as a missing value.
_NO_VALUE = {"#N/A", "<NA>", "N/A", "NA", "NULL", "NaN", "None", "n/a", "nan", "null"}


def label_appearance(label: str) -> str:
    """A label without case, blanks and Unicode's form: labels that differ only in these have the same."""
    folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", label).casefold())
    folded = folded.translate(str.maketrans(_SAME_LOOK))
    visible = (
        character
        for character in folded
        if not character.isspace() and unicodedata.category(character) != "Cf"
    )
    return "".join(visible) or label


def find_look_alikes(counts: Mapping[str, int]) -> list[list[str]]:
    """The groups of labels that look the same, each with its most frequent label first."""
    by_appearance: dict[str, list[str]] = {}
    for label in sorted(counts, key=lambda name: (-counts[name], name)):
        by_appearance.setdefault(label_appearance(label), []).append(label)
    return [labels for labels in by_appearance.values() if len(labels) > 1]


def find_joined_labels(labels: Collection[str], separator: str) -> list[str]:
    """The labels that consist of two or more of the other labels, with `separator` between them."""
    parts = {label: [part.strip() for part in label.split(separator)] for label in labels}
    single_labels = {label_parts[0] for label_parts in parts.values() if len(label_parts) == 1}
    candidates = [label for label, label_parts in parts.items() if len(label_parts) > 1 and all(label_parts)]
    counts = Counter(part for label in candidates for part in parts[label])
    return [
        label
        for label in candidates
        if all(part in single_labels or counts[part] > 1 for part in parts[label])
    ]


def find_stand_ins(labels: Collection[str], known: Collection[str] = ()) -> set[str]:
    """The labels that stand for a missing one: -1, as in data sets of Hugging Face, and -100, which PyTorch's
    losses ignore, if the other labels are 0, 1, 2 … or words; '-' if they are words, as in SNLI.

    `known` are the labels of training, which are never among them. Nor is -1 beside only 0 and 1, nor '-'
    beside '+': these may well be classes.
    """
    others = set(known or labels) - {"-1", "-100", "-"}
    are_indices = len(others) > 1 and others == {str(number) for number in range(len(others))}
    are_words = len(others) > 1 and not any(map(is_number, others)) and "+" not in others
    stand_ins = {"-100"} if are_indices or are_words else set[str]()
    stand_ins |= {"-1"} if are_words or (are_indices and (known or len(others) > 2)) else set()
    stand_ins |= {"-"} if are_words else set()
    return (stand_ins & set(labels)) - set(known)


def is_number(label: str) -> bool:
    """Whether a label is spelled as a number."""
    try:
        as_number(label, "")
    except InputError:
        return False
    return True


def find_missing_values(labels: Collection[str]) -> list[str]:
    """The labels that the writer of a table may have put in for a missing value, sorted: "NA", "null" …"""
    return sorted(_NO_VALUE.intersection(labels))


def find_placeholders(labels: Collection[str]) -> list[str]:
    """-1 and -100 among numbers, where `find_stand_ins` can't tell whether they stand for a missing label;
    and among words, for tasks with several labels a text, which don't ask it.
    """
    placeholders = {"-1", "-100"} & set(labels)
    others = set(labels) - placeholders
    are_alike = all(label.isdigit() for label in others) or not any(map(is_number, others))
    return sorted(placeholders) if others - {"1"} and are_alike else []


def are_multi_hot(labels: Collection[str]) -> bool:
    """Whether all labels are multi-hot lists without brackets, "0 1 0" or "010", of the same length."""
    lengths = {len("".join(label.split())) for label in labels if _DIGITS.fullmatch(label)}
    return len(lengths) == 1 and all(map(_DIGITS.fullmatch, labels))


def are_scores(labels: Collection[str]) -> bool:
    """Whether all labels are numbers, with a point, a comma or a percent sign, and not all are integers."""
    return all(map(_SCORE.fullmatch, labels)) and not all(label.lstrip("-+").isdecimal() for label in labels)


def has_fraction(label: str) -> bool:
    """Whether a label is a number with a fraction, and so likely a score."""
    return is_number(label) and not float(label).is_integer()


def format_counts(counts: Mapping[str, int], labels: Collection[str]) -> str:
    """Labels with how often they occur, for a message: "'a' (12) and 'A' (3)"."""
    return " and ".join(f"{label!r} ({counts[label]:,})" for label in labels)
