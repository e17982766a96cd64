"""Japanese BERTs (Tohoku University's and others): MeCab divides a text into words by a dictionary, and
WordPiece or single characters spell each word. No tokenizer.json can say so: tokenizer_config.json does.

A text is normalised first (NFKC), which changes its length: U+337F becomes four characters. Offsets are those
of the text as given.

T tokens of a text.
"""

import re
import unicodedata
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple

import numpy as np
from tokenizers import Tokenizer as Backend

from bertsmith.errors import MissingExtra, TokenizerError, require
from bertsmith.text.tokens.long_texts import PART, CompactEncoding, TextEncoding

#: transformers' class for such tokenizers.
JAPANESE_CLASS = "BertJapaneseTokenizer"
#: The dictionaries of MeCab by the names that `mecab_dic` has, which are those of their packages.
DICTIONARIES = ("unidic_lite", "ipadic", "unidic")
_PURPOSE = "This tokenizer, which divides Japanese texts into words,"
_SENTENCE_END = re.compile("[\u3002\uff0e\uff01\uff1f!?\n]")
_MOST_CACHED = 1 << 17  # words
_LONGEST_CACHED = 100  # characters of a word
_LOCK = Lock()  # MeCab's words are read from its memory, which the next text overwrites

Span = tuple[int, int]


class MecabWord(NamedTuple):
    """A word as it is looked up, and for each of its characters what it stands for in the text."""

    spelling: str
    spans: Sequence[Span]


@dataclass(frozen=True)
class MecabSplitter:
    """Divides texts into words. `characters`: each character of a word is a token of its own."""

    dictionary: str = "unidic_lite"
    characters: bool = False
    lowercase: bool = False

    def require_dictionary(self) -> None:
        """Raises MissingExtra without MeCab or the dictionary, and TokenizerError for one that is empty."""
        _open_mecab(self.dictionary)

    def settings(self) -> dict[str, Any]:
        """The entries of tokenizer_config.json that say so."""
        return {
            "tokenizer_class": JAPANESE_CLASS,
            "do_lower_case": self.lowercase,
            "word_tokenizer_type": "mecab",
            "mecab_kwargs": {"mecab_dic": self.dictionary},
            "subword_tokenizer_type": "character" if self.characters else "wordpiece",
        }

    def split(self, text: str) -> Iterator[MecabWord]:
        """The words of a text that has no lone surrogates. Blanks are in no word."""
        normalised, spans = _normalise(text)
        # MeCab would leave out all that follows a NUL.
        sentence = normalised.replace("\0", " ")
        with _LOCK:
            surfaces = [node.surface for node in _open_mecab(self.dictionary)(sentence)]
        end = 0
        for surface in surfaces:
            start = sentence.index(surface, end)
            end = start + len(surface)
            yield from self._spell(surface, spans[start:end])

    def _spell(self, surface: str, spans: Sequence[Span]) -> Iterator[MecabWord]:
        if self.lowercase:
            spans = [
                span for letter, span in zip(surface, spans, strict=True) for _ in range(len(letter.lower()))
            ]
            surface = surface.lower()
        if self.characters:
            for letter, span in zip(surface, spans, strict=True):
                yield MecabWord(letter, [span])
            return
        for word in re.finditer(r"\S+", surface):
            yield MecabWord(word.group(), spans[word.start() : word.end()])


@cache
def _open_mecab(dictionary: str) -> Any:
    require("fugashi", "japanese", _PURPOSE)
    import fugashi

    try:
        folder = Path(import_module(dictionary).DICDIR)
    except ImportError as error:
        if dictionary == "unidic":
            raise TokenizerError(
                f"{_PURPOSE} needs the dictionary unidic: pip install unidic && python -m unidic download"
            ) from error
        raise MissingExtra(dictionary.replace("_", "-"), "japanese", _PURPOSE) from error
    if not folder.is_dir():
        raise TokenizerError(f"{folder} has no dictionary. Download it: python -m unidic download")
    return fugashi.GenericTagger(f'-d "{folder}" -r "{folder / "mecabrc"}"')


def _normalise(text: str) -> tuple[str, Sequence[Span]]:
    """The text in NFKC, and for each of its characters (start, end) in the text as given."""
    whole = unicodedata.normalize("NFKC", text)
    if whole == text:
        return text, [(place, place + 1) for place in range(len(text))]
    parts, spans = list[str](), list[Span]()
    starts = [place for place, letter in enumerate(text) if not place or not _joins_last(letter)]
    for start, end in zip(starts, [*starts[1:], len(text)], strict=True):
        part = unicodedata.normalize("NFKC", text[start:end])
        letters = [unicodedata.normalize("NFKC", letter) for letter in text[start:end]]
        parts.append(part)
        if "".join(letters) == part:
            spans += [
                (place, place + 1)
                for place, letter in enumerate(letters, start=start)
                for _ in range(len(letter))
            ]
        else:
            spans += [(start, end)] * len(part)
    return "".join(parts), spans


@cache
def _joins_last(letter: str) -> bool:
    """Whether a character may become one with that before it: a mark, or the later part of a syllable of
    Hangul.
    """
    first = unicodedata.normalize("NFKC", letter)[0]
    return unicodedata.category(first)[0] == "M" or "\u1160" <= first <= "\u11ff"


def read_splitter(config: Mapping[str, Any], where: Path, lowercase: bool) -> MecabSplitter | None:
    """How the settings of a BertJapaneseTokenizer divide texts; None if by BERT's own rules ("basic").

    `where` is tokenizer_config.json. Raises TokenizerError for what isn't read, and as
    `MecabSplitter.require_dictionary` does.
    """
    words = config.get("word_tokenizer_type") or "basic"
    subwords = config.get("subword_tokenizer_type") or "wordpiece"
    if words not in ("mecab", "basic"):
        raise TokenizerError(
            f"{where}: word_tokenizer_type is {words!r}; texts are divided by 'mecab' or 'basic'. Use a "
            "model whose words are MeCab's, such as tohoku-nlp/bert-base-japanese-v3."
        )
    if subwords not in ("wordpiece", "character"):
        raise TokenizerError(
            f"{where}: subword_tokenizer_type is {subwords!r}; words are spelt by 'wordpiece' or "
            "'character'. Use a model with one of these, or one with a tokenizer.json."
        )
    for key in ("do_word_tokenize", "do_subword_tokenize"):
        if config.get(key) is False:
            raise TokenizerError(f"{where}: {key} is false; only true is read.")
    if words == "basic":
        if subwords == "character":
            raise TokenizerError(
                f"{where}: word_tokenizer_type is 'basic' and subword_tokenizer_type 'character'; characters "
                "are read of MeCab's words alone. Use a model with word_tokenizer_type 'mecab'."
            )
        return None
    options = dict(config.get("mecab_kwargs") or {})
    dictionary = options.pop("mecab_dic", "unidic_lite")
    if dictionary not in DICTIONARIES:
        raise TokenizerError(
            f"{where}: mecab_dic is {dictionary!r}; expected {', '.join(DICTIONARIES)}: a dictionary of the "
            "system may be another one on the next machine."
        )
    unread = next((key for key, value in options.items() if value not in (None, "", True, [])), None)
    if unread is not None:
        raise TokenizerError(f"{where}: mecab_kwargs has {unread!r}; only mecab_dic is read. Remove it.")
    splitter = MecabSplitter(dictionary, subwords == "character", lowercase)
    splitter.require_dictionary()
    return splitter


class JapaneseEncoder:
    """The tokens of MeCab's words, and their offsets. Added tokens are found in a text before it is divided.

    A long text is divided part by part, cut behind a sentence: MeCab weighs whole texts, and its memory grows
    with them.
    """

    def __init__(self, splitter: MecabSplitter, backend: Backend, special_ids: Sequence[int]) -> None:
        """`backend` has the vocabulary, WordPiece's, and the added tokens."""
        self._splitter = splitter
        self._words = Backend(backend.model)
        tokens = backend.get_added_tokens_decoder()
        self._names = {token.content: number for number, token in tokens.items()}
        self._special = {str(backend.id_to_token(number)) for number in special_ids}
        self._cache: dict[str, tuple[list[int], list[Span]]] = {}

    def encode(self, texts: Sequence[str], enough: int | None, offsets: bool) -> list[TextEncoding]:
        """The tokens of many texts. With `enough`, a long text is read until it has at least that many."""
        return [self.encode_text(text, enough) for text in texts]

    def encode_text(
        self, text: str, enough: int | None = None, *, read_special_tokens: bool = False
    ) -> CompactEncoding:
        """The tokens of one text. Raises TypeError for a lone surrogate."""
        if not text.isascii() and re.search("[\ud800-\udfff]", text):
            raise TypeError("a lone surrogate")
        ids, spans = array("i"), array("i")
        for start, part, number in self._divide(text, read_special_tokens):
            if number is not None:
                ids.append(number)
                spans.extend((start, start + len(part)))
                continue
            for word in self._splitter.split(part):
                numbers, places = self._encode_word(word.spelling)
                ids.extend(numbers)
                for first, last in places:
                    spans.extend((start + word.spans[first][0], start + word.spans[last - 1][1]))
            if enough is not None and len(ids) >= enough:
                break
        return CompactEncoding(ids, np.frombuffer(spans, np.int32).reshape(-1, 2))

    def _divide(self, text: str, read_special_tokens: bool) -> Iterator[tuple[int, str, int | None]]:
        """The parts of a text: (start, part, the id if it is an added token)."""
        names = sorted(
            (name for name in self._names if read_special_tokens or name not in self._special),
            key=len,
            reverse=True,
        )
        end = 0
        for token in re.finditer("|".join(map(re.escape, names)), text) if names else ():
            yield from _cut(text, end, token.start())
            yield token.start(), token.group(), self._names[token.group()]
            end = token.end()
        yield from _cut(text, end, len(text))

    def _encode_word(self, word: str) -> tuple[list[int], list[Span]]:
        known = self._cache.get(word)
        if known is None:
            if word in self._special:  # text is text
                pieces = [self._words.encode(letter, add_special_tokens=False) for letter in word]
                known = (
                    [number for piece in pieces for number in piece.ids],
                    [(place, place + 1) for place, piece in enumerate(pieces) for _ in piece.ids],
                )
            else:
                encoding = self._words.encode(word, add_special_tokens=False)
                known = encoding.ids, encoding.offsets
            if len(word) <= _LONGEST_CACHED:
                if len(self._cache) >= _MOST_CACHED:
                    self._cache.clear()
                self._cache[word] = known
        return known


def _cut(text: str, start: int, end: int) -> Iterator[tuple[int, str, None]]:
    """A run of text in parts of at most PART characters: (start, part, None)."""
    while end - start > PART:
        ends = [match.end() for match in _SENTENCE_END.finditer(text, start + PART // 2, start + PART)]
        cut = ends[-1] if ends else start + PART
        yield start, text[start:cut], None
        start = cut
    if start < end:
        yield start, text[start:end], None
