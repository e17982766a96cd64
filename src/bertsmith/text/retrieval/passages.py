"""Splits a document into passages of a limited number of tokens, cut at paragraphs, sentences, lines or
words.

    T   tokens of the document

A passage is a range of the document's characters: `text[start:end]` is exactly the passage. Every character
that isn't blank is in a passage. Each passage repeats the end of the one before, if possible from the
beginning of a sentence, so that search also finds what spans a cut.
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
from bertsmith.validation import UserSettings, describe_problem

Offsets = npt.NDArray[np.int64]  # (T, 2)

_PARAGRAPH_END = re.compile(r"\n[^\S\n]*\n\s*")
_LINE_END = re.compile(r"\n\s*")
_BLANKS = re.compile(r"\s+")
# A passage ends at a paragraph in its last half, else at a sentence in its last half, and so on: shorter
# passages would multiply the vectors.
_SHORTEST = 0.5  # of the most tokens that it may have
# WordPiece makes one [UNK] of a word however long it is, and nothing of blanks. So this many characters of
# either count as a token: otherwise a passage could be as long as its document.
_WIDEST = 100


class PassageSettings(UserSettings):
    """How documents are cut; the defaults live here and nowhere else."""

    tokens: int = Field(default=200, ge=8, description="of a passage at most, special tokens not counted")
    overlap: int = Field(
        default_factory=lambda given: min(40, given["tokens"] // 5),
        ge=0,
        description="tokens that a passage repeats of the one before, at most",
    )
    language: Language = Field(
        default="en", description="two-letter code: sentences, words and stems; mul: several"
    )

    def changed(self, values: Mapping[str, Any]) -> "PassageSettings":
        """A copy with other values; an overlap that wasn't set follows the tokens. Raises InputError for a
        value that isn't allowed.
        """
        try:
            return PassageSettings.model_validate(self.model_dump(exclude_unset=True) | dict(values))
        except ValidationError as error:
            raise InputError(f"passages: {describe_problem(error, PassageSettings)}") from error

    def within(self, room: int) -> "PassageSettings":
        """A copy that fits a model that reads `room` tokens: passages take four fifths of it at most, the
        title the rest.
        """
        return self.changed({"tokens": max(8, min(self.tokens, room * 4 // 5))})

    def checked(self) -> "PassageSettings":
        """Returns itself. Raises InputError if a passage could repeat more than half of its tokens."""
        if self.overlap > self.tokens // 2:
            raise InputError(
                f"The overlap must be at most half of a passage's {self.tokens} tokens, found {self.overlap}."
            )
        return self


class Passage(NamedTuple):
    """The `text` of a document from character `start` to `end`, without blanks at its ends."""

    start: int
    end: int
    text: str


class CutPoints(NamedTuple):
    """Positions to cut a text at, sorted; the best kind first: ends of paragraphs, of sentences, of lines, of
    words.
    """

    kinds: tuple[Sequence[int], ...]

    @classmethod
    def of(cls, text: str, language: str) -> "CutPoints":
        """Finds the cut points of a text: the positions where a paragraph, a sentence, a line or a word
        begins.
        """
        paragraphs, lines, words = (
            [match.end() for match in pattern.finditer(text)]
            for pattern in (_PARAGRAPH_END, _LINE_END, _BLANKS)
        )
        return cls((paragraphs, list(sentence_ends(text, language)), lines, words))

    def last_in(self, low: int, high: int) -> int | None:
        """The last cut of the best kind with low < cut <= high."""
        for kind in self.kinds:
            index = bisect_right(kind, high) - 1
            if index >= 0 and kind[index] > low:
                return kind[index]
        return None

    def first_in(self, low: int, high: int) -> int | None:
        """The first cut of the best kind with low <= cut < high."""
        for kind in self.kinds:
            index = bisect_left(kind, low)
            if index < len(kind) and kind[index] < high:
                return kind[index]
        return None


def split_passages(text: str, tokenizer: Tokenizer, settings: PassageSettings) -> list[Passage]:
    """The passages of a document in order; none for a blank text."""
    (encoding,) = tokenizer.encode_pieces([text])
    offsets = _narrow_offsets(np.array(encoding.offsets, np.int64).reshape(-1, 2))  # (T, 2)
    if len(offsets) <= settings.tokens:
        passage = _make_passage(text, 0, len(text))
        return [] if passage is None else [passage]
    cuts = CutPoints.of(text, settings.language)
    ranges = _choose_ranges(len(text), offsets, cuts, settings)
    passages: list[Passage] = []
    for start, end in ranges:
        passage = _make_passage(text, start, end)
        # Where a range has only blanks beyond the overlap, the passage before has all of its text.
        if passage is not None and not (passages and passage.end <= passages[-1].end):
            passages.append(passage)
    return passages


def _narrow_offsets(offsets: Offsets) -> Offsets:
    """Splits the ranges of tokens (T, 2), and the blanks between them, into ranges of at most `_WIDEST`
    characters.

    Narrower blanks are left out.
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
    """Yields ranges of characters, each of at most `settings.tokens` of the tokens at `offsets` (T, 2)."""
    starts, ends = offsets.T
    start = 0
    while True:
        first = int(np.searchsorted(ends, start, "right"))  # the first token that ends after `start`
        after = first + settings.tokens
        if after >= len(ends):
            yield start, length
            return
        earliest, latest = int(ends[first + int(settings.tokens * _SHORTEST) - 1]), int(starts[after])
        end = cuts.last_in(earliest, latest) or max(latest, earliest)
        yield start, end
        # The next passage begins at most `overlap` tokens before `end`, at a sentence if one begins there.
        back = int(np.searchsorted(ends, end, "right")) - settings.overlap
        next_start = end
        if settings.overlap > 0 and back > 0:
            next_start = cuts.first_in(max(int(ends[back - 1]), start + 1), end) or end
        start = max(next_start, start + 1)


def _make_passage(text: str, start: int, end: int) -> Passage | None:
    """The passage in a range, without the blanks at its ends; None if the range is blank."""
    untrimmed = text[start:end]
    stripped = untrimmed.strip()
    if not stripped:
        return None
    start += len(untrimmed) - len(untrimmed.lstrip())
    return Passage(start, start + len(stripped), stripped)


def sentence_ends(text: str, language: str) -> Iterator[int]:
    """Yields the positions after each sentence and the blanks that follow it.

    The splitter folds white space, so sentences are located by counting the characters that aren't blank.
    """
    start = 0
    for paragraph_end in [*_PARAGRAPH_END.finditer(text), None]:
        end = paragraph_end.end() if paragraph_end else len(text)
        paragraph = text[start:end]
        positions = [index for index, character in enumerate(paragraph) if not character.isspace()]
        count = 0
        for sentence in split_sentences(paragraph, language) if positions else []:
            count += sum(map(len, sentence.split()))
            if count < len(positions):
                yield start + positions[count]
        yield end
        start = end
