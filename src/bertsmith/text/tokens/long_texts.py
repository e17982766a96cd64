"""Tokenizes long texts part by part: the library needs some hundred bytes for each token of a text.

T tokens of a text.
"""

import re
import unicodedata
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice, pairwise
from typing import Any, Protocol, overload

import numpy as np
from tokenizers import Tokenizer as Backend
from tokenizers import models

from bertsmith.arrays import Int32s, Ints
from bertsmith.text.tokens.unigram import MARK, PlainTextEncoder, build_backend, list_parts, read_rules

PART = 1 << 14  # characters
_CHARACTERS_PER_TOKEN = 16  # English has about 5
_PARTS_AT_ONCE = 8
_NEAR_END = 1 << 10  # characters: the last blank of a part is mostly within these
_WORDS_AT_ONCE = 1 << 12
_NO_OFFSETS = np.zeros((0, 2), np.int32)

ASCII_PUNCTUATION = r"[!-/:-@\[-`{-~]"
#: Where a text may be cut: at a single blank between two words; before punctuation, which BERT's rules make a
#: word of its own; and before Chinese characters. So only a part of base64 or JSON without blanks is read if
#: few ids are needed.
BLANK = re.compile(r"(?<=\S)[ \t\n\r](?=\S)")
BLANK_OR_MARK = re.compile(rf"(?<=\S)[ \t\n\r](?=\S)|(?={ASCII_PUNCTUATION})")
BLANK_OR_MARK_OR_CHINESE = re.compile(rf"{BLANK_OR_MARK.pattern}|(?=[\u4e00-\u9fff])")
SPACE = re.compile(r"(?<=\S) (?=\S)")  # a byte-level token may begin with it
SPACE_OR_MARK = re.compile(rf"{SPACE.pattern}|(?<=[0-9A-Za-z])(?={ASCII_PUNCTUATION})")
WHITE_SPACE = re.compile(r"\s")
_WORD_START = re.compile(r"\S")
# Letters that the library's normalizer reads together with the one before, or with the one behind (Unicode
# Annex 29, rules GB6 to GB9b). Other characters that do so are no letters, digits or punctuation.
_JOINED_TO_LAST = re.compile("[\u0e33\u0eb3\u1100-\u11ff\ua960-\ua97f\ud7b0-\ud7ff\uff9e\uff9f]")
_JOINED_TO_NEXT = re.compile(
    "[\u0d4e\u1100-\u11ff\ua960-\ua97f\ud7b0-\ud7ff\U000111c2\U000111c3\U000113d1\U0001193f\U00011941"
    "\U00011a3a\U00011a84-\U00011a89\U00011d46\U00011f02]"
)
_MOST_CACHED = 1 << 16  # pairs of characters


class TextEncoding(Protocol):
    """The token ids (T,) of one text, and their offsets (T, 2) in characters."""

    @property
    def ids(self) -> Sequence[int]: ...

    @property
    def offsets(self) -> Sequence[tuple[int, int]] | Ints | Int32s: ...


@dataclass(frozen=True)
class CompactEncoding:
    """A TextEncoding in 4 bytes per token, and 8 more with offsets; without them these are (0, 2)."""

    ids: Sequence[int]
    offsets: Int32s


class CachedEncoding:
    """An encoding that is read many times: the library builds its ids and offsets again at each access."""

    def __init__(self, encoding: TextEncoding) -> None:
        self._encoding = encoding

    @cached_property
    def ids(self) -> Sequence[int]:
        """The token ids (T,), read from the library once."""
        return self._encoding.ids

    @cached_property
    def offsets(self) -> Sequence[tuple[int, int]] | Ints | Int32s:
        """The offsets (T, 2) in characters, read from the library once."""
        return self._encoding.offsets


@dataclass(frozen=True)
class WordEncodings(Sequence[TextEncoding]):
    """The token ids of many words, without offsets, in 4 bytes per token and 4 per word.

    The encoding of a word is built when it is accessed; a slice shares the same memory.
    """

    ids: "array[int]"  # of all words, one after the other
    ends: "array[int]"  # the end of each word's ids in `ids`
    words: range  # the indices of the words in this slice

    def __len__(self) -> int:
        return len(self.words)

    @overload
    def __getitem__(self, index: int) -> TextEncoding: ...
    @overload
    def __getitem__(self, index: slice) -> "WordEncodings": ...
    def __getitem__(self, index: int | slice) -> "TextEncoding | WordEncodings":
        if isinstance(index, slice):
            return replace(self, words=self.words[index])
        word = self.words[index]
        start = self.ends[word - 1] if word else 0
        return CompactEncoding(self.ids[start : self.ends[word]], _NO_OFFSETS)


Encode = Callable[[list[str]], Sequence[TextEncoding]]


def encode_in_parts(
    encode: Encode,
    texts: Sequence[str],
    where: re.Pattern[str],
    enough: int | None,
    offsets: bool,
    trim_blank: bool = False,
) -> list[TextEncoding]:
    """The encodings of texts by `encode`, with long texts cut where the pattern `where` matches.

    Texts not longer than a part are encoded at once. With `enough`, a longer one is read until it has at
    least that many ids. With `trim_blank`, the blank with which a later part begins is left out of its first
    token's offsets, since no text begins with it.
    """
    size = PART if enough is None else min(PART, _CHARACTERS_PER_TOKEN * enough)
    firsts = [text[: _find_cut(text, 0, where, size)] for text in texts]
    encodings: list[TextEncoding] = list(encode(firsts))
    for index, (text, first) in enumerate(zip(texts, firsts, strict=True)):
        if len(first) < len(text) and (enough is None or len(encodings[index].ids) < enough):
            parts = split_text(text, where, size)
            encodings[index] = _encode_long_text(encode, parts, enough, offsets, trim_blank)
    return encodings


def _encode_long_text(
    encode: Encode, parts: Iterator[tuple[int, str]], enough: int | None, offsets: bool, trim_blank: bool
) -> CompactEncoding:
    ids, all_spans = array("i"), array("i")
    while batch := list(islice(parts, _PARTS_AT_ONCE)):
        for (start, _), encoding in zip(batch, encode([part for _, part in batch]), strict=True):
            ids.extend(encoding.ids)
            if offsets:
                spans = np.array(encoding.offsets, np.int32).reshape(-1, 2)
                if trim_blank and start and len(spans):
                    spans[0] = (
                        1,
                        max(1, spans[0, 1]),
                    )  # empty, and after the blank, for a token that is the blank alone
                all_spans.frombytes((spans + start).tobytes())
        if enough is not None and len(ids) >= enough:
            break
    return CompactEncoding(ids, np.frombuffer(all_spans, np.int32).reshape(-1, 2))


def encode_words(
    encode: Callable[[Sequence[str]], list[Sequence[int]]], words: Sequence[str]
) -> WordEncodings:
    """Encodes each word on its own, some thousand at a time: the library's object for each one needs some
    hundred bytes.
    """
    ids, ends = array("i"), array("i")
    for start in range(0, len(words), _WORDS_AT_ONCE):
        for word_ids in encode(words[start : start + _WORDS_AT_ONCE]):
            ids.extend(word_ids)
            ends.append(len(ids))
    return WordEncodings(ids, ends, range(len(ends)))


def split_text(text: str, where: re.Pattern[str], size: int = PART) -> Iterator[tuple[int, str]]:
    """The parts of a text, cut where `where` matches, of about `size` characters: (start, part)."""
    start = 0
    while start < len(text):
        end = _find_cut(text, start, where, size)
        yield start, text[start:end]
        start = end


def _find_cut(text: str, start: int, where: re.Pattern[str], size: int) -> int:
    """The end of the part that begins at `start`: the last match of `where` within `size` characters, else
    the first one after these, else the text's end.
    """
    limit = start + size
    if limit >= len(text):
        return len(text)
    for begin in (max(limit - _NEAR_END, start + 1), start + 1):
        cuts = [match.start() for match in where.finditer(text, begin, limit)]
        if cuts:
            return cuts[-1]
    match = where.search(text, limit)
    return len(text) if match is None else match.start()


def trim_offsets(
    text: str, ids: Sequence[int], offsets: Sequence[tuple[int, int]], lone: frozenset[int]
) -> list[tuple[int, int]]:
    """The offsets (T, 2) without white space in front. A piece of `lone` that a text doesn't spell is empty,
    where the next word begins: the library gives it the blank before, or that word's first character.
    """
    trimmed = []
    for token_id, (start, end) in zip(ids, offsets, strict=True):
        while start < end and text[start].isspace():
            start += 1
        if token_id in lone and not text.startswith(MARK, start, end):
            while start < len(text) and text[start].isspace():
                start += 1
            end = start
        trimmed.append((start, end))
    return trimmed


class PieceEncoding:
    """A TextEncoding of the library whose offsets are trimmed, when they are first read."""

    def __init__(self, text: str, encoding: TextEncoding, lone: frozenset[int]) -> None:
        self._text, self._encoding, self._lone = text, encoding, lone

    @property
    def ids(self) -> Sequence[int]:
        """The ids of the pieces (T,), special ones included."""
        return self._encoding.ids

    @cached_property
    def offsets(self) -> list[tuple[int, int]]:
        """The offsets (T, 2) in characters."""
        offsets: Any = self._encoding.offsets
        return trim_offsets(self._text, self._encoding.ids, offsets, self._lone)


def can_be_cut(backend: Backend) -> bool:
    """Whether `SentencePieceSplitter` knows the rules of a backend: one of SentencePiece's three shapes or
    Gemma's, and added tokens that are found wherever a text has them, with nothing around.
    """
    rules = read_rules(backend)
    kinds = [part["type"] for part in list_parts(rules["pre_tokenizer"], "pretokenizers")]
    searched = [token for token in backend.get_added_tokens_decoder().values() if not token.special]
    # Gemma has line ends among them, which nothing in its rules changes.
    has_blank = " ".__eq__ if isinstance(backend.model, models.BPE) else str.isspace
    return kinds in ([], ["Metaspace"], ["WhitespaceSplit", "Metaspace"], ["Split"]) and not any(
        token.lstrip
        or token.rstrip
        or token.single_word
        or token.normalized
        or any(map(has_blank, token.content))
        for token in searched
    )


class SentencePieceSplitter:
    """Tokenizes long texts part by part, with the pieces of the whole text.

    A text is cut at a blank or, in a run without blanks, between two characters that stand next to each other
    in no piece: every way to spell the text has a boundary there, and no merge of BPE reads across it. Such a
    part begins without "▁". Scores are added up from a part's beginning, so that between two spellings that
    are equally likely the rounding may choose another one.

    Where no such place is within a part, as in a million times the same letter, it is cut all the same, and
    a few pieces there may be others.
    """

    def __init__(self, encoder: PlainTextEncoder, unk_id: int, lone: frozenset[int]) -> None:
        """`encoder` tokenizes the parts; see `can_be_cut` for the rules that its backend may have."""
        backend = self._backend = encoder.backend
        self._encoder, self._unk_id, self._lone = encoder, unk_id, lone
        content = read_rules(backend)
        splitters = list_parts(content["pre_tokenizer"], "pretokenizers")
        rules = list_parts(content["normalizer"], "normalizers")
        kinds = [part["type"] for part in splitters]
        always = any(part.get("prepend_scheme") == "always" for part in splitters)
        # XLM-RoBERTa's shape: no blank is left, and each word is marked. Elsewhere a blank becomes the mark.
        self._marks_words = "WhitespaceSplit" in kinds and always
        self._is_one_run = "WhitespaceSplit" not in kinds and not any(part.get("split") for part in splitters)
        added = list(backend.get_added_tokens_decoder().values())
        tokens = sorted((token.content for token in added if not token.special), key=len, reverse=True)
        self._tokens = re.compile("|".join(map(re.escape, tokens))) if tokens else None
        patterns = [part["pattern"].get("String") or "" for part in rules if part["type"] == "Replace"]
        self._read_together = _neighbours([*tokens, *patterns])
        for part in splitters:
            if part["type"] == "Metaspace":
                part["prepend_scheme"] = "never"
        local = [part for part in rules if part["type"] not in ("Prepend", "Strip")]
        # as Gemma's does: no character changes what is made of its neighbours
        self._reads_singly = all(
            part["type"] == "Replace" and len(part["pattern"].get("String") or "") == 1 for part in rules
        )
        content["normalizer"] = {"type": "Sequence", "normalizers": local}
        self._normalizer = build_backend(content, backend.model, []).normalizer
        later = [
            part | {"strip_left": False} if part["type"] == "Strip" else part
            for part in rules
            if part["type"] != "Prepend"
        ]
        content["normalizer"] = {"type": "Sequence", "normalizers": later}
        self._continuing_encoder = encoder.with_rules(content)
        self._normalised: dict[str, str] = {}
        self._cuts: dict[tuple[str, str], bool] = {}

    @cached_property
    def _in_pieces(self) -> set[tuple[str, str]]:
        """The pairs of characters that stand next to each other in a piece."""
        return _neighbours(self._backend.get_vocab(with_added_tokens=False))

    def encode(self, texts: Sequence[str], enough: int | None, offsets: bool) -> list[TextEncoding]:
        """The pieces of many texts. With `enough`, a long text is read until it has at least that many."""
        size = PART if enough is None else min(PART, _CHARACTERS_PER_TOKEN * enough)
        firsts = [next(self.split(text, size), (0, "", False))[1] for text in texts]
        encodings = self._encode_parts([(0, first, False) for first in firsts], offsets)
        for index, (text, first) in enumerate(zip(texts, firsts, strict=True)):
            if len(first) < len(text) and (enough is None or len(encodings[index].ids) < enough):
                encodings[index] = self._encode_long_text(text, size, enough, offsets)
        return encodings

    def _encode_parts(self, parts: Sequence[tuple[int, str, bool]], offsets: bool) -> list[TextEncoding]:
        encodings: list[TextEncoding] = [CompactEncoding((), _NO_OFFSETS)] * len(parts)
        for continues, encoder in ((False, self._encoder), (True, self._continuing_encoder)):
            indices = [index for index, part in enumerate(parts) if part[2] == continues]
            texts = [parts[index][1] for index in indices]
            for index, text, encoding in zip(
                indices, texts, encoder.encode(texts, offsets=offsets), strict=True
            ):
                encodings[index] = PieceEncoding(text, encoding, self._lone) if offsets else encoding
        return encodings

    def _encode_long_text(self, text: str, size: int, enough: int | None, offsets: bool) -> CompactEncoding:
        ids, spans, parts = array("i"), array("i"), self.split(text, size)
        while batch := list(islice(parts, _PARTS_AT_ONCE)):
            for (start, part, continues), encoding in zip(
                batch, self._encode_parts(batch, offsets), strict=True
            ):
                # unknown characters in a row are one piece
                joined = int(
                    continues and bool(ids) and ids[-1] == self._unk_id and encoding.ids[:1] == [self._unk_id]
                )
                ids.extend(encoding.ids[joined:])
                if offsets:
                    part_spans = np.array(encoding.offsets, np.int32).reshape(-1, 2) + start
                    at_end = (part_spans == start + len(part)).all(1)
                    if at_end.any():  # blanks whose word begins in another part
                        at_end &= np.isin(encoding.ids, list(self._lone))
                        word = _WORD_START.search(text, start + len(part))
                        part_spans[at_end] = word.start() if word else len(text)
                    if joined:
                        spans[-1] = int(part_spans[0, 1])
                    spans.frombytes(part_spans[joined:].astype(np.int32).tobytes())
            if enough is not None and len(ids) > enough:  # the last one may still grow
                break
        return CompactEncoding(ids, np.frombuffer(spans, np.int32).reshape(-1, 2))

    def split(self, text: str, size: int = PART) -> Iterator[tuple[int, str, bool]]:
        """The parts of a text of at most `size` characters: (start, part, whether it begins without "▁")."""
        start, continues = 0, False
        while start < len(text):
            end, next_continues = self._find_end(text, start, min(start + size, len(text)), continues)
            yield start, text[start:end], continues
            start, continues = end, next_continues

    def _find_end(self, text: str, start: int, limit: int, continues: bool) -> tuple[int, bool]:
        """The end of the part that begins at `start`, and whether the next one begins without "▁"."""
        if continues:
            # What comes behind an added token, or a blank that is split at, is marked again.
            token = self._tokens.search(text, start + 1, limit) if self._tokens else None
            end = token.start() if token else limit
            if self._marks_words:
                blanks = [letter for letter in set(text[start:end]) if _has_blank(self._normalise(letter))]
                end = min([end, *(text.index(letter, start, end) for letter in blanks)])
            if end == start:  # the part's first character is such a blank
                return self._find_end(text, start, limit, False)
            if end < limit:
                return end, False
        if limit == len(text):
            return limit, False
        near = max(limit - _NEAR_END, start + 1)
        for begin, end in ((near, limit), (start + 1, near)):
            for cut in reversed([match.start() for match in SPACE.finditer(text, begin, end + 1)]):
                if self._may_cut_at_blank(text[cut - 1], text[cut + 1]):
                    return cut, not self._marks_words
            for cut in range(end, begin - 1, -1):
                if self._may_cut(text[cut - 1], text[cut]):
                    return cut, True
        pairs = ((cut, text[cut - 1 : cut + 1]) for cut in range(limit, start, -1))
        cut = next((cut for cut, pair in pairs if " " not in pair and self._stand_apart(*pair)), limit)
        return cut, not (self._marks_words and text[cut - 1 : cut + 1].strip() != text[cut - 1 : cut + 1])

    def _stand_apart(self, last: str, following: str) -> bool:
        return self._reads_singly or _stand_apart(last, following)

    def _normalise(self, letters: str) -> str:
        if letters not in self._normalised:
            if len(self._normalised) == _MOST_CACHED:
                self._normalised.clear()
            self._normalised[letters] = self._normalizer.normalize_str(letters)
        return self._normalised[letters]

    def _may_cut_at_blank(self, last: str, following: str) -> bool:
        """Whether a text may be cut before a blank between these two."""
        if not (self._stand_apart(last, " ") and self._stand_apart(" ", following)):
            return False
        normalised = self._normalise(last)
        pair = (normalised[-1:], MARK)
        return not self._is_one_run or (bool(normalised) and pair not in self._in_pieces)

    def _may_cut(self, last: str, following: str) -> bool:
        """Whether no piece, and no rule before the pieces, looks at these two together."""
        pair = (last, following)
        if pair not in self._cuts:
            if len(self._cuts) == _MOST_CACHED:
                self._cuts.clear()
            left, right = self._normalise(last), self._normalise(following)
            self._cuts[pair] = (
                " " not in pair
                and self._stand_apart(last, following)
                and pair not in self._read_together
                and self._normalise(last + following) == left + right
                and bool(left and right)
                and not _has_blank(left + right)
                and (left[-1], right[0]) not in self._in_pieces
                and (left[-1], right[0]) not in self._read_together
            )
        return self._cuts[pair]


def _stand_apart(last: str, following: str) -> bool:
    """Whether two neighbouring characters are read one by one by normalizers: blanks, letters, digits and
    marks that join no other.
    """
    return (
        (last == " " or last.isalnum() or unicodedata.category(last)[0] == "P")
        and (following == " " or following.isalnum() or unicodedata.category(following)[0] == "P")
        and not _JOINED_TO_NEXT.match(last)
        and not _JOINED_TO_LAST.match(following)
    )


def _has_blank(text: str) -> bool:
    return any(map(str.isspace, text))


def _neighbours(spellings: Iterable[str]) -> set[tuple[str, str]]:
    return {pair for spelling in spellings for pair in pairwise(spelling)}
