"""A sentence with a tag for each word: from words and tags, or from a text with entities marked by character
offsets; and which token is read for each word.

W words, R rows that a head reads.
"""

from __future__ import annotations

import re
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from hashlib import blake2b
from itertools import chain
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, overload

import numpy as np
from tokenizers import pre_tokenizers

from bertsmith.arrays import Ints
from bertsmith.errors import InputError
from bertsmith.metrics.entities import NONE, Scheme, Span, spans_of_tags, tags_of_spans
from bertsmith.tasks.examples.encoding import Window, join_segments, owner, special_tokens, windows
from bertsmith.text.tokens.long_texts import BLANK, TextEncoding, split_text
from bertsmith.text.tokens.tokenizer import Tokenizer, replace_surrogates
from bertsmith.text.words import MARKS, WITHOUT_BLANKS

if TYPE_CHECKING:  # who computes without torch reads no tables
    from bertsmith.text.labelled.conll import MarkedText, TaggedSentence

# Between blanks, and each punctuation mark alone. BERT's tokenizer splits there too.
_RUNS = pre_tokenizers.BertPreTokenizer()
# Where blanks don't divide words, each character is one: in Chinese, Japanese, Thai, Lao, Tibetan, Burmese
# and Khmer, and in pictures. Several may be one piece of a tokenizer, which then has one tag.
_CHARACTERS = (
    f"{WITHOUT_BLANKS}\u3021-\u3029\u2e80-\u2fdf\u3100-\u312f\u3190-\u319f\u31a0-\u31ef"
    "\u0e00-\u109f\u1780-\u17ff\u1950-\u19ff\u1a20-\u1aaf\ua000-\ua4cf"
    "\U0001b000-\U0001b16f"
)
# Korean has blanks, and endings that stand behind a name without one: marked text divides it by the syllable,
# text that was tagged by words doesn't.
_HANGUL = "\u1100-\u11ff\u3130-\u318f\ua960-\ua97f\uac00-\ud7ff"
_PICTURES = "\u2190-\u2bff\U0001f000-\U0001faff"
_EXTENDING = f"[{MARKS}\ufe00-\ufe0f\u20e3\U0001f3fb-\U0001f3ff\U000e0020-\U000e007f]*"
_FORMAT = "\u00ad\u200b-\u200f\u202a-\u202e\u2060-\u2064\ufeff"  # shown as nothing
_FEWEST_DOCUMENTS = 10  # to divide a file by: fewer leave too little to choose by
_ONE_TAG = "A word has one tag: keep one of the two."


@cache  # compiling takes a tenth of the time in which a model is opened without torch
def _patterns(syllables: bool) -> tuple[re.Pattern[str], re.Pattern[str]]:
    """The pattern that finds a run to be divided, in which each of the characters without blanks, or each
    Korean syllable too, is a word, and that of a word in such a run.
    """
    characters = _CHARACTERS + _HANGUL if syllables else _CHARACTERS
    others = f"[^{characters}{_PICTURES}{_FORMAT}]+"
    word = (
        f"[\U0001f1e6-\U0001f1ff]{{2}}|[{_PICTURES}]{_EXTENDING}(?:\u200d[{_PICTURES}]{_EXTENDING})*"
        f"|[{characters}]{_EXTENDING}|{others}(?:[{_FORMAT}]+{others})*"
    )
    return re.compile(f"[{characters}{_PICTURES}]"), re.compile(word)


@dataclass(frozen=True)
class WordOffsets(Sequence[tuple[int, int]]):
    """(start, end) of each word in characters, in 12 bytes a word where tuples take 120. `runs` has the index
    of the first word of each run between blanks, which a tokenizer reads as a whole.
    """

    starts: array[int]
    ends: array[int]
    runs: array[int]

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
        """The words of the text that the offsets belong to."""
        return (text[start:end] for start, end in zip(self.starts, self.ends, strict=True))

    def words_of_runs(self) -> Iterator[range]:
        """The indices of the words of each run."""
        ends = chain(self.runs[1:], [len(self)])
        return (range(start, end) for start, end in zip(self.runs, ends, strict=bool(self.runs)))


class TaggedText(NamedTuple):
    """The words of a text, their offsets, their IOB2 tags, and the spans that had to be widened."""

    words: list[str]
    offsets: WordOffsets
    tags: list[str]
    widened: list[Span]


def word_offsets(text: str, syllables: bool = False) -> WordOffsets:
    """The start and end of each word of a text, in characters. With `syllables` each Korean syllable is a
    word.
    """
    divided, word_of = _patterns(syllables)
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

    A span that begins or ends amid a word is widened to the whole word and listed in `widened`. A tagger's
    entities consist of words: refusing the span would lose the row for a slip of the annotator's mouse, and
    widening it silently would hide that the gold has changed. Blanks at a span's ends don't count. Each
    Korean syllable is a word.

    Raises InputError for a span that leaves the text, holds no word, overlaps another, or would share a word
    with another.
    """
    offsets = word_offsets(text, syllables=True)
    in_words: list[Span] = []
    widened: list[Span] = []
    before: Span | None = None
    for span in sorted(spans, key=lambda span: (span.start, span.end)):
        _require_inside(text, span)
        if before is not None and span.start < before.end:
            raise InputError(f"{_describe(text, before)} and {_describe(text, span)} overlap. {_ONE_TAG}")
        covered = _find_words(text, offsets, span)
        if in_words and covered.start < in_words[-1].end and before is not None:
            raise InputError(
                f"{_describe(text, before)} and {_describe(text, span)} lie in one word. {_ONE_TAG}"
            )
        if offsets[covered.start][0] < span.start or offsets[covered.end - 1][1] > span.end:
            widened.append(span)
        in_words.append(covered)
        before = span
    words = list(offsets.words(text))
    return TaggedText(words, offsets, tags_of_spans(in_words, len(words)), widened)


def _find_words(text: str, offsets: Sequence[tuple[int, int]], span: Span) -> Span:
    """The words that share a character with the span."""
    first = bisect_right(offsets, span.start, key=itemgetter(1))  # words end, as they start, in order
    end = bisect_left(offsets, span.end, key=itemgetter(0))
    if first >= end:
        raise InputError(f"expected an entity of at least one word; {_describe(text, span)} has none")
    return Span(span.label, first, end)


def _require_inside(text: str, span: Span) -> None:
    if not 0 <= span.start < span.end <= len(text):
        raise InputError(
            f"expected a span of at least one character within the text of {len(text)} characters, "
            f"found {span.label} from {span.start} to {span.end}. Offsets count Unicode characters from 0: "
            "not bytes, nor UTF-16 units, as JavaScript counts."
        )


def _describe(text: str, span: Span) -> str:
    return f"the span {span.label} from {span.start} to {span.end} ({text[span.start : span.end]!r})"


def character_spans(tags: Sequence[str], offsets: Sequence[tuple[int, int]]) -> list[Span]:
    """Entities as character spans, from the tags of words and the words' offsets in the text.

    Raises ValueError if there isn't one tag for each word.
    """
    if len(tags) != len(offsets):
        raise ValueError(f"{len(tags)} tags for {len(offsets)} words")
    return [Span(label, offsets[start][0], offsets[end - 1][1]) for label, start, end in spans_of_tags(tags)]


@dataclass(frozen=True)
class TaggedExample:
    """Words, their tags (None if they are to be predicted), and their offsets in `text`, if there is one.
    `id` is the sentence's id in the file, `group` its document, if the file has many.
    """

    words: tuple[str, ...]
    tags: tuple[str, ...] | None
    where: str
    text: str | None = None
    offsets: WordOffsets | None = field(default=None, compare=False)  # determined by the text
    widened: int = 0  # how many entities began or ended amid a word
    id: str | int | None = None
    group: str | None = None

    @property
    def runs(self) -> Sequence[str]:
        """The strings that a tokenizer reads as a whole: the words, or what is between the blanks of
        a text.
        """
        if self.text is None or self.offsets is None or len(self.offsets.runs) == len(self.offsets):
            return self.words
        starts, ends = self.offsets.starts, self.offsets.ends
        return [self.text[starts[words[0]] : ends[words[-1]]] for words in self.offsets.words_of_runs()]


def example_of_text(
    text: str, where: str, id: str | int | None = None, syllables: bool = False
) -> TaggedExample:
    """The untagged words of a text; Korean is divided into words or `syllables`."""
    offsets = word_offsets(text, syllables)
    return TaggedExample(tuple(offsets.words(text)), None, where, text, offsets, id=id)


def read_texts(path: Path | str, *, syllables: bool, **layout: Any) -> list[TaggedExample]:
    """Reads the untagged examples of a file; `layout` as `read_tagged` takes it."""
    from bertsmith.text.labelled.conll import read_tagged

    return [as_example(sentence, None, syllables) for sentence in read_tagged(path, tagged=False, **layout)]


def read_examples(
    path: Path | str, *, scheme_of: Callable[[Sequence[Sequence[str]]], Scheme], **layout: Any
) -> list[TaggedExample]:
    """Reads a tagged file's examples. `scheme_of` is called for the scheme of its sentences' tags. In a file
    of ten documents or more, each example has its document as group.
    """
    from bertsmith.text.labelled.conll import TaggedSentence, read_tagged

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
    sentence: TaggedSentence | MarkedText, scheme: Scheme | None, syllables: bool = False
) -> TaggedExample:
    """An example from a sentence of a file, with entity tags in IOB2. Without a `scheme` tags are left out,
    and Korean is divided into words or `syllables`.

    Raises InputError for a tag of another scheme, and for spans that tags of words can't express.
    """
    from bertsmith.text.labelled.conll import TaggedSentence

    if isinstance(sentence, TaggedSentence):
        tags = None if scheme is None else tuple(_convert_tags(sentence, scheme))
        return TaggedExample(sentence.words, tags, sentence.where, id=sentence.id)
    if scheme is None:
        return example_of_text(sentence.text, sentence.where, sentence.id, syllables)
    if scheme.name == NONE:
        raise InputError(
            f"{sentence.where}: spans mark entities, but scheme = {NONE} says that the tags mark none. Leave "
            "scheme out, or give words with their tags."
        )
    try:
        tagged = tag_text(sentence.text, [Span(*span) for span in sentence.spans])
    except InputError as error:
        raise InputError(f"{sentence.where}: {error}") from error
    return TaggedExample(
        tuple(tagged.words),
        tuple(tagged.tags),
        sentence.where,
        sentence.text,
        tagged.offsets,
        len(tagged.widened),
    )


def entities_of(example: TaggedExample, tags: Sequence[str]) -> list[dict[str, Any]]:
    """The entities that the tags mark, located by characters if the example has a text, otherwise by
    words.
    """
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


def _convert_tags(sentence: TaggedSentence, scheme: Scheme) -> list[str]:
    """The tags in IOB2. Raises InputError for a tag that isn't of the scheme: one among many would turn all
    of them into mere labels.
    """
    other = next((tag for tag in sentence.tags if scheme.standard(tag) is None), None)
    if other is not None:
        raise InputError(
            f"{sentence.where}: the tag {other!r} is not that of an entity in {scheme}. Mend it, give the "
            f"scheme that the tags are in, such as scheme=iobes, or scheme={NONE} if they mark no entities."
        )
    return scheme.in_iob2(sentence.tags)


class TaggedTokens(NamedTuple):
    """`ids` of the sentence, `firsts` (R,) the positions of those that are read, ascending, and `rows` (W,)
    the row of each word; None if each word has a row of its own.
    """

    ids: array[int]
    firsts: Ints
    rows: Ints | None


def word_pieces(
    example: TaggedExample, pieces: Sequence[TextEncoding], tokenizer: Tokenizer, skip_mark: bool = True
) -> TaggedTokens:
    """The tokens of a sentence and the one read for each word: its first token or, in a script without
    blanks, the token that holds the word's beginning, by the tokens' offsets. `pieces` are the tokens of the
    example's runs.

    SentencePiece's "▁" stands alone before most words of Chinese and half of Thai's, when they are tokenized
    by themselves, and says nothing of the word: `skip_mark` takes the token behind it. Models that
    transformers fine-tuned learned to read the mark.
    """
    ids, firsts, rows = array("i"), array("i"), array("i")
    multi_word = _MultiWordRuns(example, tokenizer) if pieces and len(pieces) < len(example.words) else None
    for run, run_pieces in enumerate(pieces):
        divided = None if multi_word is None else multi_word.pieces_of(run)
        # a word of control characters alone has no tokens; its tag is read from an unknown one
        own_ids = run_pieces.ids or [tokenizer.unk_id]
        is_behind_mark = skip_mark and len(own_ids) > 1 and own_ids[0] in tokenizer.mark_ids
        run_ids, positions = divided or (own_ids, [int(is_behind_mark)])
        for position in positions:
            if not firsts or firsts[-1] != len(ids) + position:
                firsts.append(len(ids) + position)
            rows.append(len(firsts) - 1)
        ids.extend(run_ids)
    has_own_rows = len(firsts) == len(rows)
    return TaggedTokens(ids, np.array(firsts, np.int64), None if has_own_rows else np.array(rows, np.int64))


def windows_of_words(
    tokens: TaggedTokens, tokenizer: Tokenizer, max_length: int, stride: int | None
) -> tuple[Window, ...]:
    """Windows of a sentence's tokens, which share `stride` of them or a quarter. The head reads the first
    token of each word, in the window that shows most of its context.
    """
    room = max_length - special_tokens(tokenizer, 1)
    ranges = windows(tokens.ids, room, room // 4 if stride is None else stride)
    firsts = tokens.firsts
    owners = owner(ranges)[firsts] if len(firsts) else np.zeros(0, np.int64)
    ends = np.searchsorted(owners, np.arange(len(ranges)), "right")  # owners ascend, as windows do
    encoded_windows = list[Window]()
    for number, (start, end) in enumerate(ranges):
        owned = firsts[ends[number - 1] if number else 0 : ends[number]]
        rows = owned - start + len(tokenizer.template.before)  # after [CLS]
        if len(rows) or len(ranges) == 1:
            encoded_windows.append(Window(*join_segments(tokenizer, tokens.ids[start:end]), rows))
    return tuple(encoded_windows)


def spread_to_words(
    tags: list[str], confidence: Any, rows: Ints | None, scheme: Scheme
) -> tuple[list[str], Any]:
    """Tags and confidences of rows -> those of words, given each word's row (W,); None if every word has its
    own row. If words share a token, the later ones continue the entity of the first.
    """
    if rows is None:
        return tags, confidence
    row_tags = scheme.in_iob2(tags)
    word_tags = [row_tags[row] for row in rows.tolist()]
    if scheme.name != NONE:
        shared = np.flatnonzero(np.diff(rows) == 0) + 1
        for word in shared.tolist():
            word_tags[word] = word_tags[word] if word_tags[word] == "O" else f"I{word_tags[word][1:]}"
    return word_tags, confidence[rows]


def tagged_prediction(
    example: TaggedExample, row_tags: list[str], confidence: Any, rows: Ints | None, scheme: Scheme
) -> dict[str, Any]:
    """A prediction with words, tags, their confidences, and the entities with their positions."""
    tags, of_words = spread_to_words(row_tags, confidence, rows, scheme)
    return {
        "words": list(example.words),
        "tags": tags,
        "confidence": np.round(of_words, 6).tolist(),
        "entities": entities_of(example, scheme.in_iob2(tags)) if scheme.name != NONE else [],
    }


class _MultiWordRuns:
    """The runs of a text that hold several words, with their offsets."""

    def __init__(self, example: TaggedExample, tokenizer: Tokenizer) -> None:
        assert example.offsets is not None
        self._tokenizer = tokenizer
        self._blank = tokenizer.blank_before_words  # as `pieces_of` puts it before words
        self._words, self._offsets = example.words, example.offsets
        self._words_of_run = dict[int, range]()
        for run, words in enumerate(example.offsets.words_of_runs()):
            if len(words) > 1:
                self._words_of_run[run] = words
        runs = example.runs
        run_pieces = tokenizer.encode_pieces([self._blank + runs[run] for run in self._words_of_run])
        self._pieces = dict(zip(self._words_of_run, run_pieces, strict=True))

    def pieces_of(self, number: int) -> tuple[Sequence[int], Sequence[int]] | None:
        """The token ids of a run, and the position among them of each word's token (K,); None for a run of
        one word.
        """
        if number not in self._words_of_run:
            return None
        words, pieces = self._words_of_run[number], self._pieces[number]
        ids = list(pieces.ids)
        bounds = np.array([self._offsets[word] for word in words]) - self._offsets[words[0]][0]  # (K, 2)
        offsets = np.asarray(pieces.offsets, np.int64).reshape(-1, 2) - len(self._blank)  # (T, 2)
        tokens = _token_of_word(bounds, offsets)
        return self._divide_unknown(ids, tokens, [self._words[word] for word in words])

    def _divide_unknown(
        self, ids: list[int], tokens: Ints, words: Sequence[str]
    ) -> tuple[list[int], list[int]]:
        """Tokenises the words of an unknown token one by one, because it says nothing about any of them. A
        run of over a hundred characters is one unknown token.
        """
        divided_ids, token_of_word = list[int](), list[int]()
        for position, token_id in enumerate(ids or [self._tokenizer.unk_id]):
            token_words = [words[index] for index in np.flatnonzero(tokens == position).tolist()]
            if token_id != self._tokenizer.unk_id or len(token_words) < 2:
                token_of_word += [len(divided_ids)] * len(token_words)
                divided_ids.append(token_id)
                continue
            for word_ids in self._tokenizer.encode_batch([self._blank + word for word in token_words]):
                token_of_word.append(len(divided_ids))
                divided_ids += word_ids or [self._tokenizer.unk_id]
        return divided_ids, token_of_word


def _token_of_word(words: Ints, offsets: Ints) -> Ints:
    """Characters of words (K, 2) and of tokens (T, 2) -> the token of each word (K,): the first that reaches
    into it. A word that the tokenizer leaves out has the token of the word before.
    """
    if not len(offsets):
        return np.zeros(len(words), np.int64)
    first_reaching = np.searchsorted(np.maximum.accumulate(offsets[:, 1]), words[:, 0], side="right")
    bounded = np.minimum(first_reaching, len(offsets) - 1)
    has_own = (first_reaching < len(offsets)) & (offsets[bounded, 0] < words[:, 1])
    return np.maximum.accumulate(np.where(has_own, bounded, 0))
