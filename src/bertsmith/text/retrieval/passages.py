"""A document → passages of at most so many tokens, cut where a reader would: at paragraphs, sentences, lines.

    T   tokens of the document

A passage is a range of the document's characters: `text[start:end]` is the passage, whatever the text holds.
Every character that isn't blank lies in a passage. Each passage repeats the end of the one before, from the
beginning of a sentence where one begins in the overlap, so that what stands across a cut is found as well.
"""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from pydantic import Field, ValidationError

from bertsmith.errors import InputError
from bertsmith.text.corpus_settings import Language
from bertsmith.text.prose.sentences import split_sentences
from bertsmith.text.tokens.tokenizer import Tokenizer
from bertsmith.validation import UserSettings, first_problem

Offsets = npt.NDArray[np.int64]  # (T, 2)

_PARAGRAPH_END = re.compile(r"\n[^\S\n]*\n\s*")
_LINE_END = re.compile(r"\n\s*")
_BLANKS = re.compile(r"\s+")
# A passage may end at a paragraph in its last half, else at a sentence in its last half, and so on: shorter
# ones would multiply the vectors.
_SHORTEST = 0.5
# WordPiece makes one [UNK] of a word however long it is, and nothing of blanks: of either, so many characters
# count as a token, or a passage could be as long as its document.
_WIDEST = 100


class PassageSettings(UserSettings):
    """How documents are cut; the defaults live here and nowhere else."""

    tokens: int = Field(default=200, ge=8, description="of a passage at most, special tokens not counted")
    overlap: int = Field(
        default_factory=lambda given: min(40, given["tokens"] // 5),
        ge=0,
        description="tokens that a passage repeats of the one before, at most",
    )
    language: Language = Field(default="en", description="two-letter code: sentences, words and stems")

    def changed(self, values: Mapping[str, Any]) -> "PassageSettings":
        """The same with other values; an overlap that nobody chose follows the tokens. Raises InputError for
        a value that can't be.
        """
        try:
            return PassageSettings.model_validate(self.model_dump(exclude_unset=True) | dict(values))
        except ValidationError as error:
            raise InputError(f"passages: {first_problem(error, PassageSettings)}") from error

    def within(self, room: int) -> "PassageSettings":
        """The same for a model that reads `room` tokens, if that is less; a fifth is left for the title."""
        return self.changed({"tokens": max(8, min(self.tokens, room * 4 // 5))})

    def checked(self) -> "PassageSettings":
        """Raises InputError when a passage would hold little but what it repeats."""
        if self.overlap > self.tokens // 2:
            raise InputError(
                f"The overlap must be at most half of a passage's {self.tokens} tokens, found {self.overlap}."
            )
        return self


class Passage(NamedTuple):
    """`text` is the document's text from `start` to `end`, in characters; neither end is blank."""

    start: int
    end: int
    text: str


class CutPoints(NamedTuple):
    """Places between characters, sorted, the best kind first: after paragraphs, sentences, lines, words."""

    kinds: tuple[Sequence[int], ...]

    @classmethod
    def of(cls, text: str, language: str) -> "CutPoints":
        """The places of a text behind which something new begins."""
        paragraphs, lines, words = (
            [found.end() for found in pattern.finditer(text)]
            for pattern in (_PARAGRAPH_END, _LINE_END, _BLANKS)
        )
        return cls((paragraphs, list(sentence_ends(text, language)), lines, words))

    def last_in(self, low: int, high: int) -> int | None:
        """The last cut of the best kind with low < cut <= high."""
        for kind in self.kinds:
            at = bisect_right(kind, high) - 1
            if at >= 0 and kind[at] > low:
                return kind[at]
        return None

    def first_in(self, low: int, high: int) -> int | None:
        """The first cut of the best kind with low <= cut < high."""
        for kind in self.kinds:
            at = bisect_left(kind, low)
            if at < len(kind) and kind[at] < high:
                return kind[at]
        return None


def split_passages(text: str, tokenizer: Tokenizer, settings: PassageSettings) -> list[Passage]:
    """The passages of a document in order; none for a text of blanks."""
    (pieces,) = tokenizer.encode_pieces([text])
    offsets = _narrow_offsets(np.array(pieces.offsets, np.int64).reshape(-1, 2))  # (T, 2)
    if len(offsets) <= settings.tokens:
        whole = _trimmed(text, 0, len(text))
        return [whole] if whole is not None else []
    cuts = CutPoints.of(text, settings.language)
    ranges = _choose_ranges(len(text), offsets, cuts, settings)
    return [found for start, end in ranges if (found := _trimmed(text, start, end)) is not None]


def _narrow_offsets(offsets: Offsets) -> Offsets:
    """Tokens (T, 2), and the blanks between them, as ranges of at most `_WIDEST` characters; narrower blanks
    aren't among them.
    """
    edges = offsets.ravel()
    ranges = np.stack([edges[:-1], edges[1:]], axis=1)  # token, blanks, token, …, token
    widths = ranges[:, 1] - ranges[:, 0]
    counts = np.maximum(widths, 0) // _WIDEST
    counts[::2] = np.maximum(-(-widths[::2] // _WIDEST), 1)
    first = np.cumsum(counts) - counts
    starts = np.repeat(ranges[:, 0] - first * _WIDEST, counts) + np.arange(counts.sum()) * _WIDEST
    return np.stack([starts, np.minimum(starts + _WIDEST, np.repeat(ranges[:, 1], counts))], axis=1)


def _choose_ranges(
    length: int, offsets: Offsets, cuts: CutPoints, settings: PassageSettings
) -> Iterator[tuple[int, int]]:
    """Ranges of characters, each of at most `settings.tokens` tokens; `offsets`: (T, 2), theirs."""
    starts, ends = offsets.T
    start = 0
    while True:
        first = int(np.searchsorted(ends, start, "right"))  # the first token that ends behind `start`
        after = first + settings.tokens
        if after >= len(ends):
            yield start, length
            return
        earliest, latest = int(ends[first + int(settings.tokens * _SHORTEST) - 1]), int(starts[after])
        end = cuts.last_in(earliest, latest) or max(latest, earliest)
        yield start, end
        # The next one begins `overlap` tokens back at most, where a sentence begins if one does.
        back = int(np.searchsorted(ends, end, "right")) - settings.overlap
        begin = end
        if settings.overlap > 0 and back > 0:
            begin = cuts.first_in(max(int(ends[back - 1]), start + 1), end) or end
        start = max(begin, start + 1)


def _trimmed(text: str, start: int, end: int) -> Passage | None:
    """Without blanks around it; None when there is nothing else."""
    found = text[start:end]
    stripped = found.strip()
    if not stripped:
        return None
    start += len(found) - len(found.lstrip())
    return Passage(start, start + len(stripped), stripped)


def sentence_ends(text: str, language: str) -> Iterator[int]:
    """Places behind sentences and the blanks that follow them.

    The splitter folds white space; counting the characters that are not blank leads back to the text.
    """
    begin = 0
    for found in [*_PARAGRAPH_END.finditer(text), None]:
        end = found.end() if found else len(text)
        paragraph = text[begin:end]
        solid = [place for place, character in enumerate(paragraph) if not character.isspace()]
        count = 0
        for sentence in split_sentences(paragraph, language) if solid else []:
            count += sum(map(len, sentence.split()))
            if count < len(solid):
                yield begin + solid[count]
        yield end
        begin = end
