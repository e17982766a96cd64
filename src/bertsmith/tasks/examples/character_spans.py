"""Entities marked in running text by character offsets ↔ words and their tags.

Offsets count characters as Python does (Unicode code points), half open: text[start:end] is the entity.
"""

import re
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from operator import itemgetter
from typing import NamedTuple, overload

from tokenizers import pre_tokenizers

from bertsmith.errors import InputError
from bertsmith.metrics.entities import Span, spans_of_tags, tags_of_spans
from bertsmith.text.tokens.long_texts import BLANK, text_parts
from bertsmith.text.tokens.tokenizer import without_surrogates
from bertsmith.text.words import MARKS, WITHOUT_BLANKS

# Between blanks, and each punctuation mark alone. BERT's tokenizer splits there too.
_RUNS = pre_tokenizers.BertPreTokenizer()
# Where blanks don't divide words, each character is one: in Chinese, Japanese, Thai, Lao, Tibetan, Burmese
# and Khmer, and in pictures. Several may be one piece of a tokenizer, which then has one tag.
_CHARACTERS = (
    f"{WITHOUT_BLANKS}\u3005-\u3007\u3021-\u3029\u2e80-\u2fdf\u3100-\u312f\u3190-\u319f\u31a0-\u31ff"
    "\uff66-\uff9f\u0e00-\u109f\u1780-\u17ff\u1950-\u19ff\u1a20-\u1aaf\ua000-\ua4cf"
    "\U0001b000-\U0001b16f\U00020000-\U0003fffd"
)
# Korean has blanks, and endings that stand behind a name without one: marked text divides it by the syllable,
# text that was tagged by words doesn't.
_HANGUL = "\u1100-\u11ff\u3130-\u318f\ua960-\ua97f\uac00-\ud7ff"
_PICTURES = "\u2190-\u2bff\U0001f000-\U0001faff"
_EXTENDING = f"[{MARKS}\ufe00-\ufe0f\u20e3\U0001f3fb-\U0001f3ff\U000e0020-\U000e007f]*"
_FORMAT = "\u00ad\u200b-\u200f\u202a-\u202e\u2060-\u2064\ufeff"  # shown as nothing


def _patterns(characters: str) -> tuple[re.Pattern[str], re.Pattern[str]]:
    """What divides a run, where each of `characters` is a word, and a word of such a run."""
    others = f"[^{characters}{_PICTURES}{_FORMAT}]+"
    word = (
        f"[\U0001f1e6-\U0001f1ff]{{2}}|[{_PICTURES}]{_EXTENDING}(?:\u200d[{_PICTURES}]{_EXTENDING})*"
        f"|[{characters}]{_EXTENDING}|{others}(?:[{_FORMAT}]+{others})*"
    )
    return re.compile(f"[{characters}{_PICTURES}]"), re.compile(word)


_BY_WORDS, _BY_SYLLABLES = _patterns(_CHARACTERS), _patterns(_CHARACTERS + _HANGUL)


@dataclass(frozen=True)
class WordOffsets(Sequence[tuple[int, int]]):
    """(start, end) of each word in characters, in 12 bytes a word where tuples take 120. `runs` are the
    numbers of those words with which begins what stands between blanks: a tokenizer reads it as a whole.
    """

    starts: "array[int]"
    ends: "array[int]"
    runs: "array[int]"

    def __len__(self) -> int:
        return len(self.starts)

    @overload
    def __getitem__(self, index: int) -> tuple[int, int]: ...
    @overload
    def __getitem__(self, index: slice) -> list[tuple[int, int]]: ...
    def __getitem__(self, index: int | slice) -> tuple[int, int] | list[tuple[int, int]]:
        if isinstance(index, slice):
            return list(zip(self.starts[index], self.ends[index], strict=True))
        return self.starts[index], self.ends[index]

    def words(self, text: str) -> Iterator[str]:
        """Of the text that they are of."""
        return (text[start:end] for start, end in zip(self.starts, self.ends, strict=True))

    def words_of_runs(self) -> Iterator[range]:
        """The numbers of the words of each run."""
        ends = chain(self.runs[1:], [len(self)])
        return (range(start, end) for start, end in zip(self.runs, ends, strict=bool(self.runs)))


class TaggedText(NamedTuple):
    """The words of a text, where each stands in it, their IOB2 tags, and the spans that had to be widened."""

    words: list[str]
    offsets: WordOffsets
    tags: list[str]
    widened: list[Span]


def word_offsets(text: str, syllables: bool = False) -> WordOffsets:
    """Where each word of a text starts, and one past where it ends, in characters. With `syllables` each
    of Korean is a word.
    """
    divided, word_of = _BY_SYLLABLES if syllables else _BY_WORDS
    starts, ends, runs = array("i"), array("i"), array("i")
    for before, part in text_parts(without_surrogates(text), BLANK):
        for run, (start, end) in _RUNS.pre_tokenize_str(part):
            runs.append(len(starts))
            if run.isascii() or not divided.search(run):
                starts.append(before + start)
                ends.append(before + end)
                continue
            for word in word_of.finditer(part, start, end):
                starts.append(before + word.start())
                ends.append(before + word.end())
    return WordOffsets(starts, ends, runs)


def tag_text(text: str, spans: Iterable[Span]) -> TaggedText:
    """Words and IOB2 tags of a text whose entities are given as character spans.

    A span that begins or ends amid a word is widened to the whole word, and listed in `widened`: an entity of
    a tagger is made of words, refusing would lose the row for a slip of the annotator's mouse, and doing it
    in silence would hide that the gold has changed. Blanks at a span's ends don't count. Of Korean each
    syllable is a word.
    Raises InputError for a span that leaves the text, holds no word, overlaps another, or would share a word
    with another.
    """
    offsets = word_offsets(text, syllables=True)
    in_words: list[Span] = []
    widened: list[Span] = []
    before: Span | None = None
    for span in sorted(spans, key=lambda span: (span.start, span.end)):
        _refuse_outside(text, span)
        if before is not None and span.start < before.end:
            raise InputError(f"{_told(text, before)} and {_told(text, span)} overlap. {_ONE_TAG}")
        covered = _words_of_span(text, offsets, span)
        if in_words and covered.start < in_words[-1].end and before is not None:
            raise InputError(f"{_told(text, before)} and {_told(text, span)} lie in one word. {_ONE_TAG}")
        if offsets[covered.start][0] < span.start or offsets[covered.end - 1][1] > span.end:
            widened.append(span)
        in_words.append(covered)
        before = span
    words = list(offsets.words(text))
    return TaggedText(words, offsets, tags_of_spans(in_words, len(words)), widened)


_ONE_TAG = "A word has one tag: keep one of the two."


def _words_of_span(text: str, offsets: Sequence[tuple[int, int]], span: Span) -> Span:
    """The words that share a character with the span."""
    first = bisect_right(offsets, span.start, key=itemgetter(1))  # words end, as they start, in order
    end = bisect_left(offsets, span.end, key=itemgetter(0))
    if first >= end:
        raise InputError(f"expected an entity of at least one word; {_told(text, span)} has none")
    return Span(span.label, first, end)


def _refuse_outside(text: str, span: Span) -> None:
    if not 0 <= span.start < span.end <= len(text):
        raise InputError(
            f"expected a span of at least one character within the text of {len(text)} characters, "
            f"found {span.label} from {span.start} to {span.end}. Offsets count Unicode characters from 0: "
            "not bytes, nor UTF-16 units, as JavaScript counts."
        )


def _told(text: str, span: Span) -> str:
    return f"the span {span.label} from {span.start} to {span.end} ({text[span.start : span.end]!r})"


def character_spans(tags: Sequence[str], offsets: Sequence[tuple[int, int]]) -> list[Span]:
    """Entities as character spans, from the tags of words and where these words stand in the text.

    Raises ValueError when there is not one tag for each word.
    """
    if len(tags) != len(offsets):
        raise ValueError(f"{len(tags)} tags for {len(offsets)} words")
    return [Span(label, offsets[start][0], offsets[end - 1][1]) for label, start, end in spans_of_tags(tags)]
