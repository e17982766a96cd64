"""A sentence with a tag for each word: from words and tags, or from a text with entities marked in it by
character offsets; and which piece of a tokenizer is read for each word.

W words, R rows that a head reads.
"""

import re
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from itertools import chain
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple, overload

import numpy as np
from tokenizers import pre_tokenizers

from bertsmith.arrays import Ints
from bertsmith.errors import InputError
from bertsmith.metrics.entities import NONE, Scheme, Span, spans_of_tags, tags_of_spans
from bertsmith.text.labelled.conll import MarkedText, TaggedSentence, read_tagged
from bertsmith.text.tokens.long_texts import BLANK, TextEncoding, split_text
from bertsmith.text.tokens.tokenizer import Tokenizer, replace_surrogates
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
_FEWEST_DOCUMENTS = 10  # to divide a file by: fewer leave too little to choose by
_ONE_TAG = "A word has one tag: keep one of the two."


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
    for before, part in split_text(replace_surrogates(text), BLANK):
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


@dataclass(frozen=True)
class TaggedExample:
    """Words, their tags (None where they are to be predicted), and where they stand in `text`, if given.
    `id` is what the file calls them, `group` their document, where the file has many.
    """

    words: tuple[str, ...]
    tags: tuple[str, ...] | None
    where: str
    text: str | None = None
    offsets: WordOffsets | None = field(default=None, compare=False)  # follow from the text
    widened: int = 0  # entities that were marked amid a word
    id: str | int | None = None
    group: str | None = None

    @property
    def runs(self) -> Sequence[str]:
        """What a tokenizer reads as a whole: the words, or what stands between the blanks of a text."""
        if self.text is None or self.offsets is None or len(self.offsets.runs) == len(self.offsets):
            return self.words
        starts, ends = self.offsets.starts, self.offsets.ends
        return [self.text[starts[words[0]] : ends[words[-1]]] for words in self.offsets.words_of_runs()]


def example_of_text(
    text: str, where: str, id: str | int | None = None, syllables: bool = False
) -> TaggedExample:
    """The words of a text, to be tagged; of Korean its words or its `syllables`."""
    offsets = word_offsets(text, syllables)
    return TaggedExample(tuple(offsets.words(text)), None, where, text, offsets, id=id)


def read_texts(path: Path | str, *, syllables: bool, **layout: Any) -> list[TaggedExample]:
    """What is to be tagged of a file; `layout` as `read_tagged` takes it."""
    return [as_example(each, None, syllables) for each in read_tagged(path, tagged=False, **layout)]


def read_examples(
    path: Path | str, *, scheme_of: Callable[[Sequence[Sequence[str]]], Scheme], **layout: Any
) -> list[TaggedExample]:
    """A tagged file's examples; `scheme_of` is asked for the scheme of its sentences' tags. In a file of ten
    documents or more each is of its document's group.
    """
    found = read_tagged(path, tagged=True, **layout)
    scheme = scheme_of([each.tags for each in found if isinstance(each, TaggedSentence)])
    examples = [as_example(each, scheme) for each in found]
    words: dict[int, list[str]] = {}
    for each in found:
        if isinstance(each, TaggedSentence):
            words.setdefault(each.document, []).extend(each.words)
    if not _FEWEST_DOCUMENTS <= len(words) < len(found):
        return examples
    # By what they say: a file that was moved, or named otherwise, is divided as before.
    names = {
        number: blake2b(" ".join(own).encode("utf-8", "replace"), digest_size=8).hexdigest()
        for number, own in words.items()
    }
    return [
        replace(example, group=names[each.document]) if isinstance(each, TaggedSentence) else example
        for example, each in zip(examples, found, strict=True)
    ]


def as_example(
    found: TaggedSentence | MarkedText, scheme: Scheme | None, syllables: bool = False
) -> TaggedExample:
    """What a file holds as an example, its tags in IOB2 if they are of entities. Without a `scheme` they are
    left out, and Korean is divided into words or `syllables`.

    Raises InputError for a tag of another scheme, and for spans that no tags of words could say.
    """
    if isinstance(found, TaggedSentence):
        tags = None if scheme is None else tuple(_in_iob2(found, scheme))
        return TaggedExample(found.words, tags, found.where, id=found.id)
    if scheme is None:
        return example_of_text(found.text, found.where, found.id, syllables)
    if scheme.name == NONE:
        raise InputError(
            f"{found.where}: spans mark entities, but scheme = {NONE} says that the tags mark none. Leave "
            "scheme out, or give words with their tags."
        )
    try:
        tagged = tag_text(found.text, [Span(*span) for span in found.spans])
    except InputError as error:
        raise InputError(f"{found.where}: {error}") from error
    return TaggedExample(
        tuple(tagged.words),
        tuple(tagged.tags),
        found.where,
        found.text,
        tagged.offsets,
        len(tagged.widened),
    )


def entities_of(example: TaggedExample, tags: Sequence[str]) -> list[dict[str, Any]]:
    """What such tags mark: by characters where the example has a text, else by words."""
    if example.text is not None and example.offsets is not None:
        return [
            {"label": s.label, "start": s.start, "end": s.end, "text": example.text[s.start : s.end]}
            for s in character_spans(tags, example.offsets)
        ]
    return [
        {
            "label": span.label,
            "first_word": span.start,
            "last_word": span.end - 1,
            "text": " ".join(example.words[span.start : span.end]),
        }
        for span in spans_of_tags(tags)
    ]


def _in_iob2(found: TaggedSentence, scheme: Scheme) -> list[str]:
    """A tag that is none of an entity among many that are would turn all of them into mere tags."""
    strange = next((tag for tag in found.tags if scheme.standard(tag) is None), None)
    if strange is not None:
        raise InputError(
            f"{found.where}: the tag {strange!r} is not that of an entity in {scheme}. Mend it, give the "
            f"scheme that the tags are in, such as scheme=iobes, or scheme={NONE} if they mark no entities."
        )
    return scheme.in_iob2(found.tags)


class TaggedTokens(NamedTuple):
    """`ids` of the sentence, `firsts` (R,) the places of those that are read, ascending, and `rows` (W,)
    which of these is each word's; None where each word has its own.
    """

    ids: "array[int]"
    firsts: Ints
    rows: Ints | None


def word_pieces(example: TaggedExample, pieces: Sequence[TextEncoding], tokenizer: Tokenizer) -> TaggedTokens:
    """The first piece of each word or, in a script without blanks, that which holds the word's beginning:
    offsets of pieces decide there. `pieces` are those of the example's runs.
    """
    ids, firsts, rows = array("i"), array("i"), array("i")
    divided = _MultiWordRuns(example, tokenizer) if pieces and len(pieces) < len(example.words) else None
    for number, piece in enumerate(pieces):
        found = None if divided is None else divided.pieces_of(number)
        # a word of control characters alone has no pieces; its tag is read from an unknown one
        of_run, places = found or (piece.ids or [tokenizer.unk_id], [0])
        for place in places:
            if not firsts or firsts[-1] != len(ids) + place:
                firsts.append(len(ids) + place)
            rows.append(len(firsts) - 1)
        ids.extend(of_run)
    alone = len(firsts) == len(rows)
    return TaggedTokens(ids, np.array(firsts, np.int64), None if alone else np.array(rows, np.int64))


class _MultiWordRuns:
    """The runs of a text that have several words, with their offsets."""

    def __init__(self, example: TaggedExample, tokenizer: Tokenizer) -> None:
        assert example.offsets is not None
        self._tokenizer = tokenizer
        self._blank = " " if tokenizer.family == "byte-level" else ""  # as `pieces_of` puts it before words
        self._words, self._offsets = example.words, example.offsets
        self._numbers = dict[int, range]()
        for number, words in enumerate(example.offsets.words_of_runs()):
            if len(words) > 1:
                self._numbers[number] = words
        runs = example.runs
        found = tokenizer.encode_pieces([self._blank + runs[number] for number in self._numbers])
        self._pieces = dict(zip(self._numbers, found, strict=True))

    def pieces_of(self, number: int) -> tuple[Sequence[int], Sequence[int]] | None:
        """The ids of a run, and (K,) the place among them of each word's; None for a run of one word."""
        if number not in self._numbers:
            return None
        words, pieces = self._numbers[number], self._pieces[number]
        ids = list(pieces.ids)
        bounds = np.array([self._offsets[word] for word in words]) - self._offsets[words[0]][0]  # (K, 2)
        offsets = np.asarray(pieces.offsets, np.int64).reshape(-1, 2) - len(self._blank)  # (T, 2)
        places = _places(bounds, offsets)
        return self._without_unknown(ids, places, [self._words[word] for word in words])

    def _without_unknown(
        self, ids: list[int], places: Ints, words: Sequence[str]
    ) -> tuple[list[int], list[int]]:
        """An unknown piece of several words, as a run of over a hundred characters is, says nothing of any of
        them: each is read by itself then.
        """
        found, of_words = list[int](), list[int]()
        for place, id in enumerate(ids or [self._tokenizer.unk_id]):
            here = [words[each] for each in np.flatnonzero(places == place).tolist()]
            if id != self._tokenizer.unk_id or len(here) < 2:
                of_words += [len(found)] * len(here)
                found.append(id)
                continue
            for of_word in self._tokenizer.encode_batch([self._blank + word for word in here]):
                of_words.append(len(found))
                found += of_word or [self._tokenizer.unk_id]
        return found, of_words


def _places(words: Ints, offsets: Ints) -> Ints:
    """(K, 2) characters of words and (T, 2) of pieces -> (K,) the piece of each word: the first that reaches
    into it, else that of the word before, for characters that the tokenizer leaves out.
    """
    if not len(offsets):
        return np.zeros(len(words), np.int64)
    found = np.searchsorted(np.maximum.accumulate(offsets[:, 1]), words[:, 0], side="right")
    within = np.minimum(found, len(offsets) - 1)
    has_own = (found < len(offsets)) & (offsets[within, 0] < words[:, 1])
    return np.maximum.accumulate(np.where(has_own, within, 0))
