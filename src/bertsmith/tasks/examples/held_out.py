"""Holds out rows of a training file, divides rows into folds (stratified, equal texts together), and finds
rows that are evaluated although they were trained on.
"""

import hashlib
import unicodedata
from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Sequence
from typing import Any

import numpy as np

from bertsmith.arrays import Ints
from bertsmith.tasks.examples.columns import comparable_cells
from bertsmith.tasks.task import Task
from bertsmith.text.files.values import is_blank
from bertsmith.text.words import WORD

_RANDOM_VARIANCE = 0.25  # of the square root of a Poisson number
_FEW_SHARED = 0.05  # of the rows: fewer have no noticeable effect on a score
_GROUPS = "Name a column that says which rows belong together (group=COLUMN), or give"
CROSS_VALIDATION = "cross-validation"  # the name of an evaluation in which each fold is judged in turn


def hold_out(task: Task[Any], examples: Sequence[Any], share: float) -> tuple[list[Any], list[Any]]:
    """Divides training examples into train and dev by a hash of their texts, so that the split stays when
    rows are added. Texts that differ only in case, white space, punctuation and Unicode's form are on one
    side.

    The few texts of a small class aren't left to chance: each label, and the whole file, has a text in dev if
    its share is at least one, and keeps one in train.
    """
    texts = [group_of(task, example) for example in examples]
    spellings: dict[tuple[str, ...], tuple[str, ...]] = {}
    for example, text in zip(examples, texts, strict=True):
        spelling = _texts_that_divide(task, example)
        spellings[text] = min(spelling, spellings.get(text, spelling))
    hashes = {text: _hash_to_unit(spelling) for text, spelling in spellings.items()}
    texts_of_label: dict[Any, set[tuple[str, ...]]] = {}
    for example, text in zip(examples, texts, strict=True):
        for label in (None, *task.labels_of(example)):  # None: the whole
            texts_of_label.setdefault(label, set()).add(text)
    ordered = [sorted(label_texts, key=hashes.__getitem__) for label_texts in texts_of_label.values()]
    alone = {label_texts[0] for label_texts in ordered if len(label_texts) == 1}  # they stay in train
    dev = {text for text in hashes if hashes[text] < share} - alone
    dev |= {
        next((text for text in label_texts if text not in alone), label_texts[0])
        for label_texts in ordered
        if dev.isdisjoint(label_texts) and round(share * len(label_texts))
    }
    dev -= {label_texts[-1] for label_texts in ordered if dev.issuperset(label_texts)}
    return (
        [example for example, text in zip(examples, texts, strict=True) if text not in dev],
        [example for example, text in zip(examples, texts, strict=True) if text in dev],
    )


def shared_sources(
    task: Task[Any],
    train: Sequence[Any],
    examples: Sequence[Any],
    name: str,
    told: Collection[int] = (),
) -> list[str]:
    """Warns of sources on both sides: examples whose group is in train. If the file names no groups, pairs
    that share a text with pairs of train, otherwise equal texts in another group. Says nothing where there
    are few besides those `told` already, by their indices.
    """
    groups = {group_of(task, row) for row in train if not all(map(is_blank, task.group_key(row)))}
    texts = {text for example in train for text in _texts_to_share(task, example)}
    shared = [
        row
        for row, example in enumerate(examples)
        if group_of(task, example) in groups or not texts.isdisjoint(_texts_to_share(task, example))
    ]
    untold = len(set(shared).difference(told))
    if untold < _FEW_SHARED * len(examples) or not untold:
        return []
    return [
        f"{len(shared):,} of the {len(examples):,} rows of {name} have a text or a source in common with "
        f"train, the first in {examples[shared[0]].where}: the score on {name} is flattered by them. "
        f"{_advice(task)}"
    ]


def divided_sources(task: Task[Any], rows: Sequence[Any]) -> list[str]:
    """Warns of rows in cross-validation that share a text with rows of another group."""
    groups_of_text: dict[str, set[tuple[str, ...]]] = {}
    for row in rows:
        for text in _texts_to_share(task, row):
            groups_of_text.setdefault(text, set()).add(group_of(task, row))
    shared = [
        row for row in rows if any(len(groups_of_text[text]) > 1 for text in _texts_to_share(task, row))
    ]
    if len(shared) < _FEW_SHARED * len(rows) or not shared:
        return []
    return [
        f"{len(shared):,} of the {len(rows):,} rows have a text in common with others that judge them, the "
        f"first in {shared[0].where}: cross-validation is flattered by them. {_advice(task)}"
    ]


def repeated_texts(task: Task[Any], train: Sequence[Any]) -> list[str]:
    """Warns of training rows whose text an earlier row has, ignoring case and white space: copies count
    twice, and two labels of one text contradict each other. Rows with other columns beside the text are other
    rows. Where the file names groups, only within one: a short turn of a conversation occurs in many.
    """
    first_row: dict[Hashable, Any] = {}
    copies: list[tuple[Any, Any]] = []
    contradictions: list[tuple[Any, Any]] = []
    cells = comparable_cells([getattr(row, "columns", ()) for row in train], task.column_kinds)
    for row, columns in zip(train, cells, strict=True):
        texts = _normalise(task.texts(row))
        group = group_of(task, row) if names_groups(task) else ()
        earlier = first_row.setdefault((group, texts, columns), row)
        if earlier is not row and not all(map(is_blank, texts)):
            same = _answers_of(task, earlier) == _answers_of(task, row)
            (copies if same else contradictions).append((earlier, row))
    return [
        f"of {len(train):,} training rows {len(pairs):,} {meaning} (the first: {pairs[0][1].where}, as "
        f"{pairs[0][0].where})"
        for pairs, meaning in (
            (copies, "repeat text and label of an earlier one, and count twice"),
            (contradictions, "have the text of an earlier one and another label: which holds?"),
        )
        if pairs
    ]


def _answers_of(task: Task[Any], row: Any) -> tuple[Any, ...]:
    """What a labelled row teaches: its labels or number, a sentence's tags, a question's answers."""
    labels = set(task.labels_of(row)) or getattr(row, "label", None)
    return labels, *(getattr(row, name, None) for name in ("tags", "answers", "scores"))


def _texts_to_share(task: Task[Any], example: Any) -> Sequence[str]:
    """The texts of an example that may be on both sides though they shouldn't. For pairs without named groups
    each text; for rows with groups all texts as one, which another group may have too. A single text is on
    one side anyway; documents of a search are the same for all queries. Blank texts say nothing.
    """
    if task.is_pretokenized:
        return ()
    texts = _normalise(task.texts(example))
    if names_groups(task):
        texts = ("\n".join(texts),)
    elif len(texts) == 1 or type(task).group_key is not Task.group_key:
        return ()
    return [text for text in texts if not is_blank(text)]


def names_groups(task: Task[Any]) -> bool:
    """Whether the settings name a column of groups."""
    return getattr(task.settings, "group", None) is not None


def _advice(task: Task[Any]) -> str:
    return f"{'Give' if names_groups(task) else _GROUPS} --dev of other sources"


def shared_with_train(
    task: Task[Any], train: Sequence[Any], examples: Sequence[Any], name: str, trained_on: str
) -> list[str]:
    """Warns of texts that are also in the training file, because they make a score look better than it is."""
    train_texts, texts = ([task.texts(example) for example in rows] for rows in (train, examples))
    shared = shared_texts(train_texts, texts)
    if not shared:
        return []
    first = " ".join(texts[shared[0]])
    return [
        f"{len(shared):,} of the {len(examples):,} {name} texts occur in {trained_on} too, such as "
        f"{first[:80]!r}: the score on {name} is flattered by them"
    ]


def remove_held(task: Task[Any], examples: Sequence[Any], held: Sequence[Any]) -> list[Any]:
    """The unlabelled examples whose texts no row `held` for dev or test has, by the rule of `hold_out`. Rows
    without any text are compared by the columns beside it, and words of a sentence however it was divided.
    """
    rows = [*held, *examples]
    texts_of_rows = [
        ["".join(task.identity(row))] if task.is_pretokenized else task.identity(row) for row in rows
    ]
    cells = comparable_cells([getattr(row, "columns", ()) for row in rows], task.column_kinds)
    keys = [
        (_words_of(texts), columns if all(map(is_blank, texts)) else ())
        for texts, columns in zip(texts_of_rows, cells, strict=True)
    ]
    held_keys = set(keys[: len(held)])
    return [row for row, key in zip(examples, keys[len(held) :], strict=True) if key not in held_keys]


def _hash_to_unit(texts: Sequence[str]) -> float:
    """Hashes texts to a number in [0, 1)."""
    digest = hashlib.blake2b("\x1f".join(texts).encode("utf-8", "replace"), digest_size=8).digest()
    return int.from_bytes(digest, "big") / 2**64


def shared_texts(train: Iterable[Sequence[str]], test: Iterable[Sequence[str]]) -> list[int]:
    """Rows of `test`, from 0, whose texts are those of a row of `train`, ignoring case, white space and
    Unicode's form (an accent as a character of its own or not).

    Rows without any text don't count, because there is nothing to remember.
    """
    known = set(map(_normalise, train))
    return [
        row
        for row, texts in enumerate(map(_normalise, test))
        if texts in known and not all(map(is_blank, texts))
    ]


def _normalise(texts: Sequence[str]) -> tuple[str, ...]:
    return tuple(" ".join(_fold(text).split()) for text in texts)


def _fold(text: str) -> str:
    return unicodedata.normalize("NFC", text.casefold())


def folds_of(
    task: Task[Any], examples: Sequence[Any], count: int, seed: int = 0, *, stratified: bool = True
) -> Ints:
    """(E,): each example's fold, from 0 to `count` - 1; the same for the same examples and seed.

    Iterative stratification (Sechidis et al. 2011, algorithm 1): examples of the rarest label are assigned
    first, each to the fold that lacks this label most, then to the smallest. Not `stratified`, they are
    divided by chance into folds of the same size. Examples that the task keeps together stay together, as do
    those whose texts most models read alike, because one would answer for the other.
    """
    generator = np.random.default_rng([seed, count])
    groups: dict[tuple[str, ...], list[int]] = {}
    for number, example in enumerate(examples):
        groups.setdefault(group_of(task, example), []).append(number)
    members = list(groups.values())
    labels = [
        Counter(label for row in rows for label in set(task.labels_of(examples[row])) if stratified)
        for rows in members
    ]
    groups_of_label: dict[Hashable, list[int]] = {}
    for group in generator.permutation(len(members)).tolist():
        for label in labels[group]:
            groups_of_label.setdefault(label, []).append(group)
    rarest_first = sorted(groups_of_label, key=lambda label: (len(groups_of_label[label]), str(label)))
    fold_of_group = np.full(len(members), -1)
    sizes, label_counts = np.zeros(count), {label: np.zeros(count) for label in groups_of_label}
    in_order = [group for label in rarest_first for group in groups_of_label[label]]
    rarest_label = {group: label for label in reversed(rarest_first) for group in groups_of_label[label]}
    for group in [*dict.fromkeys(in_order), *generator.permutation(len(members)).tolist()]:
        if fold_of_group[group] >= 0:
            continue
        of_label = label_counts[rarest_label[group]] if group in rarest_label else sizes
        fold = int(np.lexsort((generator.random(count), sizes, of_label))[0])
        fold_of_group[group] = fold
        sizes[fold] += len(members[group])
        for label, occurrences in labels[group].items():
            label_counts[label][fold] += occurrences
    folds = np.zeros(len(examples), np.int64)
    for rows, fold in zip(members, fold_of_group.tolist(), strict=True):
        folds[rows] = fold
    return folds


def seem_drawn_at_random(task: Task[Any], examples: Sequence[Any]) -> bool:
    """Whether each example has one label, and labels have about as different numbers of them as by chance, or
    more so: the square root of a number of random draws has a variance of a quarter (Anscombe 1948).
    """
    labels = [tuple(task.labels_of(example)) for example in examples]
    roots = np.sqrt(list(Counter(labels).values()))
    one = all(len(label) == 1 for label in labels)
    return one and len(roots) > 1 and float(np.var(roots, ddof=1)) > _RANDOM_VARIANCE / 4


def group_of(task: Task[Any], example: Any) -> tuple[str, ...]:
    """A key that is equal for examples that belong in one fold: the words of their texts. A text without
    words, such as an emoji, is its own key, but for white space. Rows without any text belong together by
    the columns beside it alone.
    """
    return _words_of(_texts_that_divide(task, example))


def _texts_that_divide(task: Task[Any], example: Any) -> tuple[str, ...]:
    """The texts of `group_key`, and for a row without any text the cells of its columns after them."""
    texts = tuple(task.group_key(example))
    cells = getattr(example, "columns", ()) if all(map(is_blank, texts)) else ()
    return (*texts, *("" if cell is None else str(cell) for cell in cells))


def _words_of(texts: Sequence[str]) -> tuple[str, ...]:
    return tuple(" ".join(WORD.findall(text) or text.split()) for text in map(_fold, texts))
