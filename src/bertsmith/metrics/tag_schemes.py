"""Which scheme the tags of a file are written in, and the same tags in IOB2.

A tag of an entity is a letter and the entity's label, B-PER; O is outside of all. Schemes differ in their
letters, files in how they write them: PER-B, B_PER, b-per, 0 for O. Tags that are labels alone, without
letters, may be entities too (IO), or be what they are: parts of speech, languages, marks of punctuation.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Literal

from bertsmith.errors import InputError
from bertsmith.metrics.entities import NAMELESS, OUTSIDE, Span, spans_of_tags, to_iob2

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
    """`name` of SCHEMES, or none: tags are what they are. `separator` stands between letter and label, the
    letter behind if it is a `suffix`, and small if `lower`. `has_letters`: else tags are labels alone, or
    letters alone are entities without one.
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
        """The tag by the letters B, I, E, S and with a hyphen; None for one that is not of this scheme."""
        if self.name == NONE:
            return tag
        if tag in _OUTSIDES:
            return OUTSIDE
        if not self.has_letters:
            if len(tag) == 1 and tag.upper() in self.letters:
                return _STANDARD[tag.upper()]
            return f"I-{tag}" if self.name == "io" else None
        found = divided(tag, self.separator, self.suffix, self.lower)
        if found is None or found[0] not in self.letters:
            return None
        return f"{_STANDARD[found[0]]}-{found[1]}"

    def fits(self, sentences: Sequence[Sequence[str]]) -> bool:
        """Whether all tags are of this scheme."""
        return all(self.standard(tag) is not None for tag in {*chain.from_iterable(sentences)})

    def in_iob2(self, tags: Sequence[str]) -> list[str]:
        """All of which must be of this scheme."""
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
    """The capital letter and the label of a tag that is written so."""
    if len(tag) < 3:
        return None
    letter, between, label = (tag[-1], tag[-2], tag[:-2]) if suffix else (tag[0], tag[1], tag[2:])
    is_one = between == separator and letter.upper() in _STANDARD and letter.islower() == lower
    return (letter.upper(), label) if is_one else None


def recognise(sentences: Sequence[Sequence[str]], name: SchemeName | None = None) -> Scheme:
    """The scheme of a file's tags, or as the scheme of this `name` is written there. A few tags may not be of
    it. Raises InputError where it is unclear whether they are entities.
    """
    counts = Counter(chain.from_iterable(sentences))
    inside = Counter({tag: count for tag, count in counts.items() if tag not in _OUTSIDES})
    if name == NONE:
        return Scheme(NONE)
    written, count = _best_writing(inside)
    divisions = {tag: divided(tag, *written) for tag in inside}
    letters = {found[0] for found in divisions.values() if found is not None}
    others = [tag for tag, found in divisions.items() if found is None]
    is_odd = len(others) == 1 and len(inside) > 2 and letters & {"B", "I"}
    if is_odd and count * 2 < inside.total():
        entity = next(tag for tag, found in divisions.items() if found is not None)
        raise InputError(
            f"the tags look as if they mark entities, such as {entity!r}, but for {others[0]!r}. Write O for "
            f"what is outside of all entities, or give scheme={NONE} if they mark none."
        )
    if count and count * 2 >= inside.total():
        if name is not None:
            return Scheme(name, *written)
        if "B" in letters or "I" in letters or inside.total() < counts.total():
            return _named(letters, sentences, written)
    if name is not None:
        return Scheme(name, has_letters=False) if inside else Scheme(name)
    return _without_letters(sentences, counts, inside)


def _best_writing(inside: Counter[str]) -> tuple[tuple[str, bool, bool], int]:
    """Separator, suffix and lower, and how many words have a tag that is written so."""
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


def _named(letters: set[str], sentences: Sequence[Sequence[str]], written: tuple[str, bool, bool]) -> Scheme:
    """The first scheme that has these letters and these sequences, else the first with the letters."""
    possible = [scheme for name in SCHEMES if letters <= {*(scheme := Scheme(name, *written)).letters}]
    if not possible:
        letters_of = {name: ", ".join(dict.fromkeys(Scheme(name).letters)) for name in SCHEMES}
        schemes = ", ".join(f"{name.upper()} ({known})" for name, known in letters_of.items())
        raise InputError(
            f"the tags have the letters {', '.join(sorted(letters))}, which no scheme has together: they "
            f"are {schemes}. Mend them, or give scheme={NONE} if they mark no entities."
        )
    return next((each for each in possible if _is_legal(each, sentences)), possible[0])


def _is_legal(scheme: Scheme, sentences: Sequence[Sequence[str]]) -> bool:
    """Whether the tags that are of the scheme are as it would write them."""
    for tags in sentences:
        standard = [scheme.standard(tag) or OUTSIDE for tag in tags]
        if list(_as_written(scheme.name, spans_of_tags(standard), len(tags))) != standard:
            return False
    return True


def _as_written(name: SchemeName, spans: Sequence[Span], words: int) -> Iterator[str]:
    """By the standard letters."""
    single, first, within, last = (_STANDARD[letter] for letter in SCHEMES[name])
    at = 0
    for number, (label, start, end) in enumerate(spans):
        yield from (OUTSIDE for _ in range(start - at))
        letters = [first, *within * (end - start - 2), last] if end - start > 1 else [single]
        if name == "iob1" and number and spans[number - 1][::2] == (label, start):
            letters[0] = "B"
        if name == "ioe1" and spans[number + 1 : number + 2] and spans[number + 1][:2] == (label, end):
            letters[-1] = "E"
        yield from (letter if label == NAMELESS else f"{letter}-{label}" for letter in letters)
        at = end
    yield from (OUTSIDE for _ in range(words - at))


def _without_letters(
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
        fitting = [each for each in bare if names <= {*each.letters}]
        if "B" in names and ("I" in names or "M" in names):
            raise _unclear(inside, fitting[0].name if fitting else "iob2")
        if any(_is_legal(each, sentences) for each in fitting):
            raise _unclear(inside, fitting[0].name)
    elif not are_letters and "0" not in inside and not names & _OF_PUNCTUATION:
        said = any(character.isalpha() for name in names for character in name)
        if said and 2 * inside.total() < counts.total():
            raise _unclear(inside, "io")
    return Scheme(NONE)


def _unclear(inside: Counter[str], name: SchemeName) -> InputError:
    shown = ", ".join(tag for tag, _ in inside.most_common(4))
    return InputError(
        f"it is unclear whether the tags {shown} beside O mark entities. Give scheme={name} if they do, or "
        f"scheme={NONE} if each says what its word is."
    )


def scheme_name(said: str) -> str:
    """As SCHEMES has it, by whatever name."""
    return ALIASES.get(said.lower(), said.lower())
