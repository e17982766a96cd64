"""Entities as tags of words and as spans of words; which tags may follow each other; entity F1.

C labels (tags) of the model.

A tag is O, or a letter and the entity's label: B-PER. Four schemes are read, all by conlleval's rules (Tjong
Kim Sang and De Meulder 2003), which work without knowing the scheme and give illegal sequences a meaning:

    IOB2    B- begins each entity, I- continues it    (BIO; what the library works with)
    IOB1    I- begins one too, B- only if it touches another of the same label
    IO      I- only
    IOBES   E- ends an entity, S- is a whole one      (U- and L- of BILOU are read as S- and E-)
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from typing import Literal, NamedTuple

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
    for position, tag in enumerate([*tags, OUTSIDE]):
        current = _letter_and_label(tag)
        is_beginning = _is_beginning(before, current)
        if before[0] != OUTSIDE and (is_beginning or current[0] == OUTSIDE):
            spans.append(Span(before[1], start, position))
        if is_beginning:
            start = position
        before = current
    return spans


def _is_beginning(before: tuple[str, str], current: tuple[str, str]) -> bool:
    """Whether an entity begins at `current`; both are a letter and a label."""
    if current[0] == OUTSIDE:
        return False
    return current[0] in "BS" or before[0] in "OES" or before[1] != current[1]


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


def tag_metrics(
    gold: Sequence[Sequence[str]], guessed: Sequence[Sequence[str]], entities: bool
) -> dict[str, float]:
    """Precision, recall and F1 of entities by conlleval's rules, and the words' accuracy; for other tags
    accuracy only.
    """
    pairs = [pair for tags, others in zip(gold, guessed, strict=True) for pair in zip(tags, others)]
    accuracy = sum(tag == other for tag, other in pairs) / max(len(pairs), 1)
    if not entities:
        return {"accuracy": accuracy}
    micro = entity_scores(gold, guessed).micro
    return {"f1": micro.f1, "precision": micro.precision, "recall": micro.recall, "accuracy": accuracy}


def tag_counts(gold: Sequence[str], guessed: Sequence[str], entities: bool) -> tuple[int, int]:
    """For one sentence, the numerator and denominator of F1, or of accuracy."""
    if not entities:
        return sum(tag == other for tag, other in zip(gold, guessed, strict=False)), len(gold)
    micro = entity_scores([gold], [guessed]).micro
    return 2 * micro.correct, micro.predicted + micro.support


SchemeName = Literal["none", "io", "iob1", "iob2", "ioe1", "ioe2", "iobes", "bilou", "bmes", "bmewo"]
NONE: SchemeName = "none"

#: Of each scheme: the letter of an entity of one word, of the first of several, of those within, of the last.
#: The first that fits is the one that was meant. IOB1 and IOE1 have other letters where entities touch.
SCHEMES: dict[SchemeName, str] = {
    "io": "IIII",
    "iob2": "BBII",
    "iob1": "IIII",
    "ioe2": "EIIE",
    "ioe1": "IIII",
    "iobes": "SBIE",
    "bilou": "UBIL",
    "bmes": "SBME",
    "bmewo": "WBME",
}
_TOUCHING = {"iob1": "B", "ioe1": "E"}

#: By other names.
ALIASES: dict[str, SchemeName] = {
    **dict.fromkeys(("bio", "iob", "bio2"), "iob2"),
    "ioe": "ioe2",
    **dict.fromkeys(("bioes", "biose", "ioebs"), "iobes"),
    **dict.fromkeys(("bioul", "biolu"), "bilou"),
    **dict.fromkeys(("bmeso", "bmoes"), "bmes"),
    "bmeow": "bmewo",
}
_OUTSIDES = (OUTSIDE, "o", "0")
_SEPARATORS = "-_:./|–—"
_STANDARD = {"B": "B", "I": "I", "E": "E", "S": "S", "M": "I", "L": "E", "U": "S", "W": "S"}

# Tags without letters: by one of these names the others are known.
_OF_ENTITIES = {
    *("PER", "PERS", "PERSON", "LOC", "LOCATION", "ORG", "ORGANIZATION", "ORGANISATION", "GPE", "MISC"),
}
_OF_PUNCTUATION = {"COMMA", "PERIOD", "QUESTION", "FULLSTOP", "EXCLAMATION", "QUESTIONMARK"}


@dataclass(frozen=True)
class Scheme:
    """A scheme by its `name` in SCHEMES, or none: tags are taken as they are. `separator` is between letter
    and label; the letter comes last if it is a `suffix`, and is small if `lower`. Without `has_letters` tags
    are labels only, or letters only, for entities without a label.
    """

    name: SchemeName
    separator: str = "-"
    suffix: bool = False
    lower: bool = False
    has_letters: bool = True

    @property
    def letters(self) -> str:
        return SCHEMES[self.name] + _TOUCHING.get(self.name, "")

    def standard(self, tag: str) -> str | None:
        """The tag with the letters B, I, E, S and a hyphen; None for a tag that isn't of this scheme."""
        if self.name == NONE:
            return tag
        if tag in _OUTSIDES:
            return OUTSIDE
        if not self.has_letters:
            if len(tag) == 1 and tag.upper() in self.letters:
                return _STANDARD[tag.upper()]
            return f"I-{tag}" if self.name == "io" else None
        parts = divided(tag, self.separator, self.suffix, self.lower)
        if parts is None or parts[0] not in self.letters:
            return None
        return f"{_STANDARD[parts[0]]}-{parts[1]}"

    def fits(self, sentences: Sequence[Sequence[str]]) -> bool:
        """Whether all tags are of this scheme."""
        return all(self.standard(tag) is not None for tag in {*chain.from_iterable(sentences)})

    def in_iob2(self, tags: Sequence[str]) -> list[str]:
        """Converts tags to IOB2; all must be of this scheme."""
        return list(tags) if self.name == NONE else to_iob2([self.standard(tag) or tag for tag in tags])

    def __str__(self) -> str:
        if self.name == NONE:
            return "none. If they mark entities, name their scheme, such as scheme=iob2"
        shown = self.name.upper()
        if not self.has_letters:
            return f"{shown}, labels without letters" if self.name == "io" else f"{shown}, letters alone"
        letter = self.letters[1].lower() if self.lower else self.letters[1]
        parts = ("LABEL", letter) if self.suffix else (letter, "LABEL")
        return f"{shown}, written {self.separator.join(parts)}"


def divided(tag: str, separator: str, suffix: bool, lower: bool) -> tuple[str, str] | None:
    """The capital letter and the label of a tag that is written in this way; None for any other tag."""
    if len(tag) < 3:
        return None
    letter, between, label = (tag[-1], tag[-2], tag[:-2]) if suffix else (tag[0], tag[1], tag[2:])
    is_one = between == separator and letter.upper() in _STANDARD and letter.islower() == lower
    return (letter.upper(), label) if is_one else None


def recognise(sentences: Sequence[Sequence[str]], name: SchemeName | None = None) -> Scheme:
    """The scheme of a file's tags, or, with a `name`, how the scheme of this name is written there. A few
    tags may not belong to it. Raises InputError if it is unclear whether the tags mark entities.
    """
    counts = Counter(chain.from_iterable(sentences))
    inside = Counter({tag: count for tag, count in counts.items() if tag not in _OUTSIDES})
    if name == NONE:
        return Scheme(NONE)
    writing, count = _find_writing(inside)
    divisions = {tag: divided(tag, *writing) for tag in inside}
    letters = {parts[0] for parts in divisions.values() if parts is not None}
    others = [tag for tag, parts in divisions.items() if parts is None]
    is_odd = len(others) == 1 and len(inside) > 2 and letters & {"B", "I"}
    if is_odd and count * 2 < inside.total():
        entity = next(tag for tag, parts in divisions.items() if parts is not None)
        raise InputError(
            f"the tags look as if they mark entities, such as {entity!r}, but for {others[0]!r}. Write O for "
            f"what is outside of all entities, or give scheme={NONE} if they mark none."
        )
    if count and count * 2 >= inside.total():
        if name is not None:
            return Scheme(name, *writing)
        if "B" in letters or "I" in letters or inside.total() < counts.total():
            return _find_scheme(letters, sentences, writing)
    if name is not None:
        return Scheme(name, has_letters=False) if inside else Scheme(name)
    return _scheme_without_letters(sentences, counts, inside)


def _find_writing(inside: Counter[str]) -> tuple[tuple[str, bool, bool], int]:
    """The most frequent writing (separator, suffix, lower), and how many words have a tag that is
    written so.
    """
    writings = [
        (separator, suffix, lower)
        for suffix in (False, True)
        for separator in _SEPARATORS
        for lower in (False, True)
    ]

    def words(writing: tuple[str, bool, bool]) -> int:
        return sum(count for tag, count in inside.items() if divided(tag, *writing))

    best = max(writings, key=words)
    return best, words(best)


def _find_scheme(
    letters: set[str], sentences: Sequence[Sequence[str]], writing: tuple[str, bool, bool]
) -> Scheme:
    """The first scheme with these letters and legal sequences, otherwise the first with the letters."""
    candidates = [scheme for name in SCHEMES if letters <= {*(scheme := Scheme(name, *writing)).letters}]
    if not candidates:
        letters_of = {name: ", ".join(dict.fromkeys(Scheme(name).letters)) for name in SCHEMES}
        schemes = ", ".join(f"{name.upper()} ({known})" for name, known in letters_of.items())
        raise InputError(
            f"the tags have the letters {', '.join(sorted(letters))}, which no scheme has together: they "
            f"are {schemes}. Mend them, or give scheme={NONE} if they mark no entities."
        )
    return next((scheme for scheme in candidates if _is_legal(scheme, sentences)), candidates[0])


def _is_legal(scheme: Scheme, sentences: Sequence[Sequence[str]]) -> bool:
    """Whether the tags that belong to the scheme are as the scheme would write them."""
    for tags in sentences:
        standard = [scheme.standard(tag) or OUTSIDE for tag in tags]
        if list(_write_tags(scheme.name, spans_of_tags(standard), len(tags))) != standard:
            return False
    return True


def _write_tags(name: SchemeName, spans: Sequence[Span], words: int) -> Iterator[str]:
    """The tags of a sentence in this scheme, with the standard letters."""
    single, first, within, last = (_STANDARD[letter] for letter in SCHEMES[name])
    position = 0
    for number, (label, start, end) in enumerate(spans):
        yield from (OUTSIDE for _ in range(start - position))
        letters = [first, *within * (end - start - 2), last] if end - start > 1 else [single]
        if name == "iob1" and number and spans[number - 1][::2] == (label, start):
            letters[0] = "B"
        if name == "ioe1" and spans[number + 1 : number + 2] and spans[number + 1][:2] == (label, end):
            letters[-1] = "E"
        yield from (letter if label == NAMELESS else f"{letter}-{label}" for letter in letters)
        position = end
    yield from (OUTSIDE for _ in range(words - position))


def _scheme_without_letters(
    sentences: Sequence[Sequence[str]], counts: Counter[str], inside: Counter[str]
) -> Scheme:
    if not inside:
        return Scheme("iob2")
    names = {tag.upper() for tag in inside}
    has_outside = inside.total() < counts.total()
    if has_outside and names & _OF_ENTITIES:
        return Scheme("io", has_letters=False)
    are_letters = names <= _STANDARD.keys()
    if are_letters and len(names) > 1:
        bare = [Scheme(name, has_letters=False) for name in SCHEMES if name != "io"]
        fitting = [scheme for scheme in bare if names <= {*scheme.letters}]
        if "B" in names and ("I" in names or "M" in names):
            raise _unclear_tags(inside, fitting[0].name if fitting else "iob2")
        if any(_is_legal(scheme, sentences) for scheme in fitting):
            raise _unclear_tags(inside, fitting[0].name)
    elif not are_letters and "0" not in inside and not names & _OF_PUNCTUATION:
        has_names = any(character.isalpha() for name in names for character in name)
        if has_names and 2 * inside.total() < counts.total():
            raise _unclear_tags(inside, "io")
    return Scheme(NONE)


def _unclear_tags(inside: Counter[str], name: SchemeName) -> InputError:
    shown = ", ".join(tag for tag, _ in inside.most_common(4))
    return InputError(
        f"it is unclear whether the tags {shown} beside O mark entities. Give scheme={name} if they do, or "
        f"scheme={NONE} if each says what its word is."
    )


def scheme_name(name: str) -> str:
    """The name in SCHEMES of a scheme that is given by any of its names."""
    return ALIASES.get(name.lower(), name.lower())


@lru_cache(maxsize=8)
def scheme_of_labels(labels: tuple[str, ...], trained_here: bool) -> Scheme:
    """The scheme of a model's labels. If letters alone could mean entities or not, B and I are taken as
    entities.
    """
    if trained_here and are_entity_tags(labels):
        return Scheme("iobes")
    try:
        scheme = recognise([labels])
    except InputError:
        scheme = Scheme("iob2", has_letters=False)
    return scheme if scheme.fits([labels]) else Scheme(NONE)
