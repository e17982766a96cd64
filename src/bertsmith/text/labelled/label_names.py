"""What the names of labels give away: which look alike, which are several in one, and which say that there is
none.
"""

import unicodedata
from collections.abc import Collection, Mapping

from bertsmith.errors import InputError
from bertsmith.text.files.values import as_number


def look(label: str) -> str:
    """What labels have in common that differ in case, in blanks or in Unicode's form alone."""
    folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", label).casefold())
    visible = (mark for mark in folded if not mark.isspace() and unicodedata.category(mark) != "Cf")
    return "".join(visible) or label


def look_alikes(counts: Mapping[str, int]) -> list[list[str]]:
    """Labels that look the same, those that occur most first."""
    by_look: dict[str, list[str]] = {}
    for label in sorted(counts, key=lambda name: (-counts[name], name)):
        by_look.setdefault(look(label), []).append(label)
    return [labels for labels in by_look.values() if len(labels) > 1]


def joined(labels: Collection[str], separator: str) -> list[str]:
    """Those that are others of the labels, two or more, with the separator between them."""
    parts = {label: [part.strip() for part in label.split(separator)] for label in labels}
    single = {part for some in parts.values() for part in some if len(some) == 1}
    several = [label for label, some in parts.items() if len(some) > 1 and all(some)]
    times: dict[str, int] = {}
    for label in several:
        for part in parts[label]:
            times[part] = times.get(part, 0) + 1
    return [label for label in several if all(part in single or times[part] > 1 for part in parts[label])]


def stand_ins(labels: Collection[str], known: Collection[str] = ()) -> set[str]:
    """Those that say that there is no label: -1, as in data sets of Hugging Face, beside 0, 1, 2 … or beside
    words; and '-' beside words, as in SNLI.

    Not what training knew; nor -1 beside 0 and 1 alone, nor '-' beside '+', which may well be classes.
    """
    others = set(known or labels) - {"-1", "-"}
    counted = others == {str(number) for number in range(len(others))} and len(others) > (1 if known else 2)
    words = len(others) > 1 and not any(map(is_number, others)) and "+" not in others
    marks = {"-1"} if counted else {"-1", "-"} if words else set[str]()
    return (marks & set(labels)) - set(known)


def is_number(label: str) -> bool:
    """Whether a label is spelled as a number."""
    try:
        as_number(label, "")
    except InputError:
        return False
    return True


def has_fraction(label: str) -> bool:
    """Whether a label is a number that isn't whole: likely a score."""
    return is_number(label) and not float(label).is_integer()
