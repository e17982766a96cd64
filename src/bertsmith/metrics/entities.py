"""Entities as tags of words and as spans of words; which tags may follow each other; entity F1.

C labels (tags) of the model.

A tag is O, or a letter and the entity's label: B-PER. Four schemes are read, all by conlleval's rules
(Tjong Kim Sang and De Meulder 2003), which need not be told the scheme and give illegal sequences a meaning:
    IOB2    B- begins each entity, I- goes on         (BIO; what the library works with)
    IOB1    I- begins one too, B- only where it touches another of the same label
    IO      I- only
    IOBES   E- ends an entity, S- is a whole one      (U- and L- of BILOU are read as S- and E-)
"""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from bertsmith.errors import InputError

OUTSIDE = "O"
NAMELESS = "_"  # the label of entities whose tags are a bare B and I, as seqeval calls it
_TAG = re.compile(r"O|[BIESUL](-.*)?", re.DOTALL)
_IOB2_TAG = re.compile(r"O|[BI](-.*)?", re.DOTALL)
_BILOU = {"U": "S", "L": "E"}


class Span(NamedTuple):
    """An entity: its label, where it starts, and one past where it ends; counted in words or characters."""

    label: str
    start: int
    end: int


def spans_of_tags(tags: Sequence[str]) -> list[Span]:
    """Entities of one sentence in words, in order; they never overlap.

    Illegal sequences are read as conlleval and seqeval's default mode read them: O I-PER begins an entity,
    B-PER I-LOC is two. Raises InputError for a tag that is not of the schemes above.
    """
    spans: list[Span] = []
    start = 0
    before = (OUTSIDE, NAMELESS)
    for place, tag in enumerate([*tags, OUTSIDE]):
        now = _letter_and_label(tag)
        begins = _begins(before, now)
        if before[0] != OUTSIDE and (begins or now[0] == OUTSIDE):
            spans.append(Span(before[1], start, place))
        if begins:
            start = place
        before = now
    return spans


def _begins(before: tuple[str, str], now: tuple[str, str]) -> bool:
    """Whether an entity begins at `now`, each a letter and a label."""
    if now[0] == OUTSIDE:
        return False
    return now[0] in "BS" or before[0] in "OES" or before[1] != now[1]


def _letter_and_label(tag: str) -> tuple[str, str]:
    if not _TAG.fullmatch(tag):
        raise InputError(
            f"expected the tag of an entity: O, or one of B-, I-, E-, S- and a label, such as B-PER; "
            f"found {tag!r}. Tags that name no entities (parts of speech) have no entity spans or scores."
        )
    return _BILOU.get(tag[0], tag[0]), tag[2:] or NAMELESS


def tags_of_spans(spans: Iterable[Span], words: int) -> list[str]:
    """IOB2 tags of a sentence of so many words; the inverse of `spans_of_tags`.

    Raises ValueError when a span is empty, overlaps another, or leaves the sentence.
    """
    tags = [OUTSIDE] * words
    for span in spans:
        if not 0 <= span.start < span.end <= words or any(
            tag != OUTSIDE for tag in tags[span.start : span.end]
        ):
            raise ValueError(f"{span} is empty, overlaps another, or leaves the sentence of {words} words")
        suffix = "" if span.label == NAMELESS else f"-{span.label}"
        tags[span.start : span.end] = [f"B{suffix}"] + [f"I{suffix}"] * (span.end - span.start - 1)
    return tags


def to_iob2(tags: Sequence[str]) -> list[str]:
    """The same entities as IOB2, from any scheme above; what comes out is always a legal sequence.

    So it also mends a piece cut out of a longer sentence, which may begin amid an entity.
    """
    return tags_of_spans(spans_of_tags(tags), len(tags))


def are_entity_tags(tags: Iterable[str]) -> bool:
    """Whether all are tags of entities, in any scheme above; parts of speech and the like are not."""
    return all(_TAG.fullmatch(tag) for tag in tags)


def are_iob2_labels(labels: Sequence[str]) -> bool:
    """Whether a model's labels are an IOB2 scheme: O, B- and I- only, and no I-X without its B-X."""
    if not all(_IOB2_TAG.fullmatch(label) for label in labels):
        return False
    begun = {_letter_and_label(label)[1] for label in labels if label[0] == "B"}
    return all(_letter_and_label(label)[1] in begun for label in labels if label[0] == "I")


def legal_transitions(labels: Sequence[str]) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """Which labels may begin a sentence (C,), and which may follow which: pairs[before, after] (C, C).

    In IOB2, I-X follows only B-X or I-X. Any other set of labels (parts of speech, IO, IOB1, IOBES) may go
    in any order: a rule that does not fit the data would forbid what is right.
    """
    legal = np.ones((len(labels) + 1, len(labels)), np.bool_)  # the last row: at the start
    if are_iob2_labels(labels):
        befores = [*map(_letter_and_label, labels), (OUTSIDE, NAMELESS)]
        for place, (letter, label) in enumerate(befores[:-1]):
            if letter == "I":
                legal[:, place] = [before[0] != OUTSIDE and before[1] == label for before in befores]
    return legal[-1], legal[:-1]


@dataclass(frozen=True)
class EntityCounts:
    """How many entities were predicted just as in the gold, were predicted, and are in the gold.

    An entity is correct when its label and both of its ends are. Counts add up over sentences and processes.
    """

    correct: int
    predicted: int
    support: int

    def __add__(self, other: "EntityCounts") -> "EntityCounts":
        return EntityCounts(
            self.correct + other.correct, self.predicted + other.predicted, self.support + other.support
        )

    @property
    def precision(self) -> float:
        """Correct of the predicted; 0 when nothing was predicted, as in seqeval."""
        return self.correct / self.predicted if self.predicted else 0.0

    @property
    def recall(self) -> float:
        """Correct of those in the gold; 0 when there are none."""
        return self.correct / self.support if self.support else 0.0

    @property
    def f1(self) -> float:
        """Harmonic mean of precision and recall; 0 when there is neither gold nor prediction."""
        both = self.predicted + self.support
        return 2 * self.correct / both if both else 0.0


class EntityScores(NamedTuple):
    """Over all entities (micro average), and by label in alphabetic order."""

    micro: EntityCounts
    by_label: dict[str, EntityCounts]


def entity_scores(gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]) -> EntityScores:
    """Precision, recall and F1 of entities, for tags of sentences.

    The rules are conlleval's, which are those of seqeval's default mode (not its strict mode): see
    `spans_of_tags`. Raises InputError when the numbers of sentences or words differ.
    """
    counts = entity_counts(gold, predicted)
    return EntityScores(sum(counts.values(), EntityCounts(0, 0, 0)), counts)


def entity_counts(
    gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]
) -> dict[str, EntityCounts]:
    """Counts by label, of every label in gold or prediction; as `entity_scores`, which adds them up."""
    if len(gold) != len(predicted):
        raise InputError(
            f"expected a prediction for each of {len(gold)} sentences, found {len(predicted)} predictions"
        )
    correct: Counter[str] = Counter()
    found: Counter[str] = Counter()
    support: Counter[str] = Counter()
    for sentence, (gold_tags, tags) in enumerate(zip(gold, predicted, strict=True)):
        if len(gold_tags) != len(tags):
            raise InputError(
                f"expected a tag for each of the {len(gold_tags)} words of sentence {sentence} "
                f"(counted from 0), found {len(tags)} tags"
            )
        gold_spans, spans = spans_of_tags(gold_tags), spans_of_tags(tags)
        correct.update(span.label for span in set(gold_spans).intersection(spans))
        found.update(span.label for span in spans)
        support.update(span.label for span in gold_spans)
    return {
        label: EntityCounts(correct[label], found[label], support[label])
        for label in sorted(found.keys() | support.keys())
    }
