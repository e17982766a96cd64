"""The names of labels: what they say in words, and which look like a mistake: labels that look alike, several
labels in one, and stand-ins for a missing label.
"""

import csv
import os
import re
import unicodedata
from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from bertsmith.errors import InputError
from bertsmith.text.files.rows import are_lines, read_column_names, read_rows, tells_format
from bertsmith.text.files.tables import LINES_COLUMNS
from bertsmith.text.files.values import as_number, as_text, is_blank

_DIGITS = re.compile(r"[01](?:\s*[01])+")
_SCORE = re.compile(r"[-+]?\d+(?:[.,]\d+)?\s*%?")
# Characters that count as the same, beyond NFKC and casefold: the Turkish i with and without its dot, the
# typographic apostrophe, and (dropped) variation selectors, which only choose how a character is drawn.
_SAME_LOOK = {"ı": "i", "\u0307": None, "’": "'", **dict.fromkeys(map(chr, range(0xFE00, 0xFE10)))}
# What pandas reads as a missing value.
_WORD_BOUNDARY = re.compile(
    r"(?<=[a-zß-ÿ])(?=[A-ZÀ-Þ])|[_\s]+|(?<=\w)[-.:/]+(?=\w)"
)  # BookRestaurant, book_restaurant
_LETTERS = re.compile("L[LM]")  # a word's categories of Unicode: Thai and Hindi write vowels as marks
NAME, DESCRIPTION = "label", "description"  # columns of a table of labels
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


def humanise_label(label: str) -> str:
    """The words of a label's name: "card arrival" for card_arrival, "book restaurant" for BookRestaurant."""
    words = _WORD_BOUNDARY.sub(" ", label).split()
    return " ".join(word if word.isupper() else word.lower() for word in words) or label


def is_code(label: str) -> bool:
    """Whether a name means nothing by its words, as A1, 3 and X do."""
    words = humanise_label(label)
    has_script_without_spaces = any(ord(character) > 0x2E7F for character in words)  # 猫 is a word
    categories = "".join(
        unicodedata.category(character)[0] for character in unicodedata.normalize("NFC", words)
    )
    return not (has_script_without_spaces or _LETTERS.search(categories)) or (
        len(words) < 5 and any(map(str.isdigit, words))
    )


def are_mostly_codes(codes: Collection[str], names: int) -> bool:
    """Whether names that are codes are so many that the `names` say nothing together: half of them."""
    return bool(codes) and 2 * len(codes) >= names


def read_label_names(given: str | Sequence[str] | Mapping[str, str]) -> dict[str, str]:
    """The names of labels with their descriptions, "" for none. `given` are a list, names separated by commas
    (those that have a comma in quotation marks), a mapping of names to descriptions, or the path of a table
    with a column `label` and, if there are any, `description`; a plain text file has a name a line.

    Raises InputError for a table without a column `label`, for fewer than two names, for names that say the
    same, and where half of them are codes without a description.
    """
    where = "--labels"
    if isinstance(given, Mapping):
        pairs = [(str(name), str(description or "")) for name, description in given.items()]
    elif not isinstance(given, str):
        pairs = [(str(name), "") for name in given]
    elif is_label_table(given):
        where, pairs = given, _read_label_table(given)
    elif "," not in given and tells_format(given):
        raise InputError(
            f"--labels: there is no file {given}. Give a table, or the names: --labels 'a, b, c'."
        )
    else:
        pairs = [(name, "") for name in _split_names(given)]
    names = dict[str, str]()
    appearances = dict[str, str]()
    for name, description in pairs:
        name = name.strip()
        if not name:
            raise InputError(
                f"{where}: a name is empty. Expected names of labels, such as 'billing, delivery'."
            )
        look = label_appearance(humanise_label(name))
        if look in appearances:
            raise InputError(
                f"{where}: {appearances[look]!r} and {name!r} are the same words. Each label has a name of "
                "its own."
            )
        appearances[look] = name
        names[name] = description.strip()
    if len(names) < 2:
        raise InputError(
            f"{where}: expected the names of two labels or more, found {len(names)}. Separate names by "
            "commas, or give a table with the columns label and description."
        )
    codes = [name for name, description in names.items() if is_code(name) and not description]
    if are_mostly_codes(codes, len(names)):
        raise InputError(
            f"{where}: {codes[0]!r} means nothing to the model ({len(codes):,} of {len(names):,} names are "
            "numbers or codes). Give a table with the columns label and description, which says what each "
            "label is."
        )
    return names


def is_label_table(given: str) -> bool:
    """Whether labels are given as the path of a file that exists, and not as names."""
    return os.path.isfile(given)  # noqa: PTH113 - Path.is_file raises for 400 names, which are no path


def _split_names(given: str) -> list[str]:
    """The names in a list as in a row of CSV."""
    if '"' not in given:
        return given.split(",")
    try:
        return next(csv.reader([given], skipinitialspace=True, strict=True))
    except csv.Error as error:
        raise InputError(
            "--labels: expected names separated by commas, those that have a comma in quotation marks, as in "
            f"'\"late, lost\", billing'; found {given!r} ({error})."
        ) from error


def _read_label_table(path: str) -> list[tuple[str, str]]:
    """The names and descriptions in a table, or the lines of a plain text file."""
    if are_lines(path):
        return [(as_text(name, where), "") for (name,), where in read_rows(path, [LINES_COLUMNS[0]])]
    columns = read_column_names(path)
    name_column = next((column for column in columns if column.strip().lower() == NAME), None)
    if name_column is None:
        raise InputError(
            f"{path}: expected a column {NAME}, and {DESCRIPTION} if there are any; found "
            f"{' and '.join(map(repr, columns))}. Rename the column of the names; names without a header, "
            "one a line, go into a plain text file (.txt)."
        )
    more = [column for column in columns if column.strip().lower() == DESCRIPTION and column != name_column]
    return [
        (
            as_text(values[0], where),
            "" if len(values) < 2 or is_blank(values[1]) else as_text(values[1], where),
        )
        for values, where in read_rows(path, [name_column, *more[:1]])
    ]
