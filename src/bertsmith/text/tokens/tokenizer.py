"""The tokenizer: text → tokens with ids and character offsets, and back.

    V   tokens in the vocabulary

The five special tokens are plain text where a text contains them: "[SEP]" in a forum post is split like any
other word, so that neither a corpus nor a user can forge the structure of a sequence.
`read_special_tokens=True` reads "[MASK]" as the special token, which fill-mask needs. Any other token that
was added to the vocabulary ("[WORLD]") is one token wherever it occurs in a text, as in transformers.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
from tokenizers import AddedToken, models, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as Backend

from bertsmith.argument_checks import (
    check_arguments,
    check_flag,
    check_path,
    check_text,
    describe_value,
    list_of,
    optional,
)
from bertsmith.errors import InputError, TokenizerError
from bertsmith.files import atomic_write, write_json
from bertsmith.text.tokens.byte_level import has_roberta_rules
from bertsmith.text.tokens.japanese import JapaneseEncoder, MecabSplitter
from bertsmith.text.tokens.long_texts import (
    BLANK,
    BLANK_OR_MARK,
    BLANK_OR_MARK_OR_CHINESE,
    SPACE,
    SPACE_OR_MARK,
    WHITE_SPACE,
    PieceEncoding,
    SentencePieceSplitter,
    TextEncoding,
    WordEncodings,
    can_be_cut,
    encode_in_parts,
    encode_words,
    trim_offsets,
)
from bertsmith.text.tokens.sequence_rules import USUAL_TRUNCATION, SequenceTemplate, Truncation, read_template
from bertsmith.text.tokens.tokenizer_files import find_special_tokens, read_backend
from bertsmith.text.tokens.unigram import (
    PlainTextEncoder,
    build_reading_backend,
    build_text_backend,
    lone_marks,
    word_marks,
)
from bertsmith.text.tokens.wordpiece import build_wordpiece_backend, has_bert_rules

Family = Literal["wordpiece", "byte-level", "unigram", "bpe"]

#: How byte-level vocabularies write a leading space, line feed, tab or carriage return.
LEADING_WHITE_SPACE = ("Ġ", "Ċ", "ĉ", "č")
_FAMILIES: dict[type, Family] = {
    models.WordPiece: "wordpiece",
    models.BPE: "byte-level",
    models.Unigram: "unigram",
}
LONE_SURROGATE = re.compile("[\ud800-\udfff]")


class Encoding(NamedTuple):
    """One text's tokens and their ids. `offsets` are (start, end) in characters of the original text."""

    ids: list[int]
    offsets: list[tuple[int, int]]
    tokens: list[str]


class Tokenizer:
    """A WordPiece (BERT), byte-level (RoBERTa), or SentencePiece tokenizer: Unigram (XLM-RoBERTa) or BPE with
    bytes for unknown characters (Gemma, mmBERT).

    It is immutable, safe to share between threads and can be sent to other processes. It never adds [CLS] or
    [SEP], pads or truncates: the code that builds model inputs does that, by `template` and `truncation`.
    """

    def __init__(
        self,
        backend: Backend,
        special: dict[str, str],
        truncation: Truncation = USUAL_TRUNCATION,
        one_segment: bool = False,
        splitter: MecabSplitter | None = None,
    ) -> None:
        """Wraps `backend`, an object of the tokenizers library, which must not be changed afterwards.

        `special` maps "pad", "unk", "cls", "sep" and "mask" to their tokens. With `one_segment` both texts of
        a pair are in segment 0, whatever the template says. `splitter` divides Japanese texts into words
        before the backend reads these. To read files, use `load`.
        """
        self.splitter = splitter
        self._special = special
        self.truncation = truncation
        self.one_segment = one_segment
        self.backend = backend
        self.backend.no_padding()
        self.backend.no_truncation()
        self.backend.encode_special_tokens = True  # in text, "[SEP]" is text
        self.family: Family = next(
            family for kind, family in _FAMILIES.items() if isinstance(backend.model, kind)
        )
        if self.family == "byte-level" and backend.model.byte_fallback:
            self.family = "bpe"
        #: Whether the pieces are SentencePiece's, which write a blank as "▁".
        self.is_sentencepiece: bool = self.family in ("unigram", "bpe")
        self.vocab_size: int = backend.get_vocab_size(with_added_tokens=True)
        self.pad_id, self.unk_id, self.cls_id, self.sep_id, self.mask_id = (
            self.token_to_id(special[role]) for role in ("pad", "unk", "cls", "sep", "mask")
        )
        self.special_ids: tuple[int, ...] = tuple(
            sorted({self.pad_id, self.unk_id, self.cls_id, self.sep_id, self.mask_id})
        )

    @classmethod
    @check_arguments(path=check_path, lowercase=optional(check_flag))
    def load(cls, path: Path | str, *, lowercase: bool | None = None) -> "Tokenizer":
        """Reads a folder, a `vocab.txt`, a `tokenizer.json`, or a folder of `vocab.json` and `merges.txt`.

        Cased or uncased is taken from `lowercase`, else from `tokenizer_config.json`, else from
        `tokenizer.json`; for a `vocab.txt` alone, a vocabulary without any capital is uncased.
        Raises TokenizerError when a file is missing, broken, unsafe or lacks a special token, and
        MissingExtra for a Japanese tokenizer without its dictionary.
        """
        backend, special, truncation, splitter = read_backend(Path(path), lowercase)
        return cls(backend, special, truncation, splitter=splitter)

    @classmethod
    @check_arguments(pieces=list_of(check_text), lowercase=check_flag)
    def from_pieces(cls, pieces: Sequence[str], *, lowercase: bool) -> "Tokenizer":
        """BERT's tokenizer over `pieces`, [CLS] and the like among them; a piece's index is its id.

        Raises TokenizerError for a duplicate piece and for missing special tokens.
        """
        special = find_special_tokens(set(pieces), {}, "The vocabulary")
        return cls(build_wordpiece_backend(list(pieces), special, lowercase=lowercase), special)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles the settings along with the backend, whose own pickling loses `encode_special_tokens`."""
        state = self.backend.to_str(), self._special, self.truncation, self.one_segment, self.splitter
        return _from_json, state

    def encode(self, text: str, *, read_special_tokens: bool = False) -> Encoding:
        """Tokenizes one text, without adding [CLS] and [SEP].

        With `read_special_tokens`, "[MASK]" and the other special tokens are recognised in the text. A
        lone surrogate is read as U+FFFD. Raises InputError for anything but a string.
        """
        if isinstance(self._encoder, JapaneseEncoder):
            compact = self._encoder.encode_text(
                replace_surrogates(text), read_special_tokens=read_special_tokens
            )
            ids, offsets = list(compact.ids), [(start, end) for start, end in compact.offsets.tolist()]
            return Encoding(ids, offsets, [self.id_to_token(number) for number in ids])
        encoder, true_ids = self._reading_encoder if read_special_tokens else (self._text_encoder, {})
        try:
            (encoding,) = encoder.encode([text], offsets=True)
        except TypeError:
            (encoding,) = encoder.encode(_clean_texts([text]), offsets=True)
        ids, offsets = encoding.ids, encoding.offsets
        if self.is_sentencepiece:
            ids = [true_ids.get(number, number) for number in ids]
            offsets = trim_offsets(text, ids, offsets, self.mark_ids)
        return Encoding(ids, offsets, [self.id_to_token(number) for number in ids])

    def encode_batch(self, texts: Sequence[str], enough: int | None = None) -> list[Sequence[int]]:
        """The token ids of many texts, the same as `encode` gives, in parallel and without offsets.

        With `enough`, a long text is tokenized only until it has at least that many ids, unless truncation
        keeps the end of a text. Raises InputError for anything but a list of strings.
        """
        encodings = self._encode_many(texts, enough, offsets=False)
        return [encoding.ids for encoding in encodings]

    def encode_pieces(self, texts: Sequence[str], enough: int | None = None) -> Sequence[TextEncoding]:
        """The ids and offsets of many texts, the same as `encode` gives, in parallel.

        The offsets of short texts are computed when they are read. `enough` and what is raised are as in
        `encode_batch`.
        """
        return self._encode_many(texts, enough, offsets=True)

    def encode_words(self, words: Sequence[str]) -> WordEncodings:
        """The token ids of many words, each tokenized on its own, in a compact form."""
        return encode_words(self.encode_batch, words)

    def _encode_many(self, texts: Sequence[str], enough: int | None, offsets: bool) -> Sequence[TextEncoding]:
        """Encodes many texts at once, and cuts long ones where the rules allow it."""

        def encode_parts(parts: Sequence[str]) -> Sequence[TextEncoding]:
            try:
                return self._text_encoder.encode(parts, offsets=offsets)
            except TypeError:
                return self._text_encoder.encode(_clean_texts(parts), offsets=offsets)

        if (
            isinstance(texts, str)
            or not isinstance(texts, Sequence)
            or not all(isinstance(text, str) for text in texts)
        ):
            texts = _clean_texts(texts)  # raises for all but an iterable of strings
        if self.truncation.direction == "left":
            enough = None
        if self._encoder is not None:
            try:
                return self._encoder.encode(texts, enough, offsets)
            except TypeError:
                return self._encoder.encode(_clean_texts(texts), enough, offsets)
        if self.is_sentencepiece and offsets:
            return [
                PieceEncoding(text, encoding, self.mark_ids)
                for text, encoding in zip(texts, encode_parts(texts), strict=True)
            ]
        if self._cut_pattern is None:
            return encode_parts(texts)
        trim_blank = offsets and self._cut_pattern is SPACE and self._keeps_first_blank
        return encode_in_parts(encode_parts, texts, self._cut_pattern, enough, offsets, trim_blank)

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """The text of token ids. What the normalizer removed (capitals, accents, spacing) is not restored.

        Raises TokenizerError for an id outside of 0 … V-1, which the library would silently leave out, and
        InputError for anything but a sequence of integers.
        """
        if isinstance(ids, str | bytes):
            raise InputError(f"Expected the ids of pieces, found {describe_value(ids)}.")
        try:
            values = list(ids)
            token_ids = [int(value) for value in values]
        except (TypeError, ValueError, OverflowError) as error:
            raise InputError(f"Expected the ids of pieces, found {describe_value(ids)}.") from error
        for value, token_id in zip(values, token_ids, strict=True):
            if value != token_id:  # such as 5.7, or "5"
                raise InputError(f"Expected the ids of pieces, found {describe_value(value)} among them.")
        unknown_id = next((token_id for token_id in token_ids if not 0 <= token_id < self.vocab_size), None)
        if unknown_id is not None:
            self.id_to_token(unknown_id)  # raises
        return self.backend.decode(token_ids, skip_special_tokens=skip_special_tokens)

    @check_arguments(token=check_text)
    def token_to_id(self, token: str) -> int:
        """The id of a token. Raises TokenizerError when the vocabulary doesn't hold it."""
        token_id = self.backend.token_to_id(token)
        if token_id is None:
            raise TokenizerError(f"The vocabulary of {self.vocab_size:,} pieces has no piece {token!r}.")
        return token_id

    def id_to_token(self, number: int) -> str:
        """The token with the id `number`. Raises TokenizerError when it is not in 0 … V-1."""
        is_id = isinstance(number, int | np.integer) and 0 <= number < self.vocab_size
        token = self.backend.id_to_token(int(number)) if is_id else None
        if token is None:
            raise TokenizerError(
                f"There is no piece {describe_value(number)}: ids run from 0 to {self.vocab_size - 1:,}."
            )
        return token

    @cached_property
    def pieces(self) -> tuple[str, ...]:
        """All V tokens of the vocabulary in the order of their ids."""
        ids = self.backend.get_vocab(with_added_tokens=True)
        return tuple(sorted(ids, key=ids.__getitem__))

    @cached_property
    def continues_word(self) -> npt.NDArray[np.bool_]:
        """(V,) bool, True where a token continues a word: "##ing", or "ing" where words begin with "Ġ" or
        "▁". See `begins_words`, which looks at the token before too.
        """
        if self.family == "wordpiece":
            prefix = self.backend.model.continuing_subword_prefix
            continuing = [token.startswith(prefix) and token != prefix for token in self.pieces]
        elif self.is_sentencepiece:
            continuing = word_marks(self.pieces)[0].tolist()
        else:
            continuing = [not token.startswith(LEADING_WHITE_SPACE) for token in self.pieces]
        flags = np.array(continuing, dtype=np.bool_)
        flags[list(self.special_ids)] = False
        flags.setflags(write=False)
        return flags

    @cached_property
    def next_in_word(self) -> npt.NDArray[np.int8]:
        """(V,) int8, what a token makes of the next one: 1 if that continues its word ("▁" alone), -1 if it
        begins a word (behind a script without blanks), 0 if `continues_word` decides, as it mostly does.
        """
        decides = word_marks(self.pieces)[1] if self.is_sentencepiece else np.zeros(self.vocab_size, np.int8)
        decides[list(self.special_ids)] = 0
        decides.setflags(write=False)
        return decides

    def begins_words(self, ids: Sequence[int]) -> npt.NDArray[np.bool_]:
        """(T,) bool, True where a token of a text begins a word: for the first one, where it would so inside
        of a text.
        """
        numbers = np.asarray(ids, np.int64)
        begins = ~self.continues_word[numbers]
        decides = self.next_in_word[numbers[:-1]]
        begins[1:] = (decides < 0) | (begins[1:] & (decides == 0))
        return begins

    @cached_property
    def blank_before_words(self) -> str:
        """What stands before a word, tokenized by itself, so that it has the tokens it has inside a sentence:
        a blank where that is part of a word's first token and isn't added by the rules, else nothing.
        """
        if not self.is_sentencepiece:
            return " " if self.family == "byte-level" else ""
        return "" if self.encode("a").ids == self.encode(" a").ids else " "

    @cached_property
    def template(self) -> SequenceTemplate:
        """The special tokens before, between and after the texts of a model input, and their segments."""
        template = read_template(self.backend, self.cls_id, self.sep_id)
        return replace(template, segments=(0, 0)) if self.one_segment else template

    def in_small_letters(self) -> "Tokenizer":
        """A copy of this tokenizer that lower-cases every text first and doesn't begin to strip accents."""
        content = json.loads(self.backend.to_str())
        normalizer = content["normalizer"] or {"type": "Sequence", "normalizers": []}
        if normalizer["type"] == "BertNormalizer" and not normalizer["lowercase"]:
            normalizer |= {"lowercase": True, "strip_accents": bool(normalizer["strip_accents"])}
        elif normalizer["type"] != "BertNormalizer":
            parts = normalizer["normalizers"] if normalizer["type"] == "Sequence" else [normalizer]
            parts = [{"type": "Lowercase"}, *(part for part in parts if part["type"] != "Lowercase")]
            normalizer = {"type": "Sequence", "normalizers": parts}
        small = rebuild(self, content | {"normalizer": normalizer})
        small.splitter = replace(self.splitter, lowercase=True) if self.splitter else None
        return small

    @cached_property
    def mark_ids(self) -> frozenset[int]:
        """The ids of SentencePiece's pieces that are a blank alone; none of other tokenizers."""
        return lone_marks(self.backend) if self.is_sentencepiece else frozenset()

    @cached_property
    def _encoder(self) -> SentencePieceSplitter | JapaneseEncoder | None:
        """Encodes Japanese texts, and others into SentencePiece's pieces, long ones in parts; None if the
        backend does so.
        """
        if self.splitter is not None:
            return JapaneseEncoder(self.splitter, self.backend, self.special_ids)
        if not self.is_sentencepiece or not can_be_cut(self._text_encoder.backend):
            return None
        return SentencePieceSplitter(self._text_encoder, self.unk_id, self.mark_ids)

    @cached_property
    def splits_at_blanks(self) -> bool:
        """Whether a text's ids are those of its blank-separated words, one after the other."""
        return (
            isinstance(self.backend.normalizer, normalizers.BertNormalizer)
            and isinstance(self.backend.pre_tokenizer, pre_tokenizers.BertPreTokenizer)
            and not self._searched_tokens
        )

    @cached_property
    def _cut_pattern(self) -> re.Pattern[str] | None:
        """Where a text can be cut without changing its ids; None if the rules may look past any character."""
        spellings = [
            spelling
            for token in self._searched_tokens
            for spelling in (token.content, self.normalise(token.content))
        ]
        if any(token.lstrip or token.rstrip for token in self._searched_tokens) or any(
            map(WHITE_SPACE.search, spellings)
        ):
            return None
        normalizer, pre_tokenizer = self.backend.normalizer, self.backend.pre_tokenizer
        if isinstance(pre_tokenizer, pre_tokenizers.ByteLevel) and pre_tokenizer.use_regex:
            may_begin_with_blank = pre_tokenizer.add_prefix_space or self._keeps_first_blank
            may_change = normalizer is not None and not isinstance(normalizer, normalizers.NFC)
            return SPACE if may_begin_with_blank or may_change or self._searched_tokens else SPACE_OR_MARK
        if not isinstance(normalizer, normalizers.BertNormalizer) or not isinstance(
            pre_tokenizer, pre_tokenizers.BertPreTokenizer
        ):
            return None
        if self._searched_tokens:
            return BLANK
        return BLANK_OR_MARK_OR_CHINESE if normalizer.handle_chinese_chars else BLANK_OR_MARK

    @cached_property
    def _keeps_first_blank(self) -> bool:
        """Whether only the first token of a text includes the blank before it in its offsets.

        The post-processor trims the blanks of later tokens, but takes the first one for a blank that the
        tokenizer added itself.
        """
        single, both = (
            self.text_backend.encode(text, add_special_tokens=False).offsets for text in (" a", "a a")
        )
        second_blank = both[
            len(both) // 2
        ]  # of the token with the second blank, which may be a token of its own
        return bool(single[0][0] != second_blank[0] - 1)

    @cached_property
    def _searched_tokens(self) -> list[AddedToken]:
        """The added tokens that are found in texts before these are split: all but the five special ones."""
        added = self.backend.get_added_tokens_decoder()
        return [token for number, token in added.items() if number not in self.special_ids]

    @cached_property
    def lowercase(self) -> bool:
        """Whether this is an uncased WordPiece tokenizer."""
        return self.family == "wordpiece" and self.normalise("A") == "a"

    @cached_property
    def sha256(self) -> str:
        """The SHA-256 of `tokenizer.json` as `save` writes it, without the truncation.

        Two tokenizers that differ only in how they truncate texts have the same hash.
        """
        settings = json.dumps(self.splitter.settings()) if self.splitter else ""
        return hashlib.sha256((self._json + settings).encode()).hexdigest()

    def normalise(self, text: str) -> str:
        """The text as the normalizer leaves it: cleaned and, if uncased, in lower case without accents."""
        normalizer = self.backend.normalizer
        return text if normalizer is None else normalizer.normalize_str(replace_surrogates(text))

    @check_arguments(folder=check_path)
    def save(self, folder: Path | str, *, segments: bool = True, max_length: int = 512) -> None:
        """Writes the files that transformers opens: tokenizer.json (but not for a Japanese tokenizer),
        tokenizer_config.json and, for WordPiece, vocab.txt.

        `max_length` is the longest input of the tokenizer's model, in tokens. `segments=False` is for a model
        without segments: transformers then produces no token_type_ids.
        Raises ResourceError when the disk is full or not writable.
        """
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        if self.splitter is None:
            atomic_write(folder / "tokenizer.json", self._json_with_truncation(max_length))
        if self.family == "wordpiece":
            atomic_write(folder / "vocab.txt", "".join(f"{piece}\n" for piece in self.pieces))
        settings = self._build_config() | {"model_max_length": max_length}
        if self.truncation.direction == "left":
            settings["truncation_side"] = "left"
        if self.one_segment or not segments:
            settings["model_input_names"] = ["input_ids", "attention_mask"]
        write_json(folder / "tokenizer_config.json", settings)

    def _json_with_truncation(self, max_length: int) -> str:
        """tokenizer.json with the truncation strategy, unless it is the usual one.

        The file can name a strategy only together with a length.
        """
        if self.truncation.strategy == USUAL_TRUNCATION.strategy:
            return self._json
        backend = Backend.from_str(self._json)
        backend.enable_truncation(
            max_length, strategy=self.truncation.strategy, direction=self.truncation.direction
        )
        return backend.to_str(pretty=True)

    @cached_property
    def _json(self) -> str:
        return self.backend.to_str(pretty=True)

    @cached_property
    def text_backend(self) -> Backend:
        """The backend that tokenizes texts: the five special tokens are plain text to it, and every other
        added token is recognised.

        The switch `encode_special_tokens` applies to all tokens marked as special: here only the five are.
        """
        if self.is_sentencepiece:
            return build_text_backend(self.backend, self.special_ids)
        added = self.backend.get_added_tokens_decoder()
        if all(token.special == (number in self.special_ids) for number, token in added.items()):
            return self.backend
        content = json.loads(self.backend.to_str())
        for token in content["added_tokens"]:
            token["special"] = token["id"] in self.special_ids
        backend = Backend.from_str(json.dumps(content))
        backend.encode_special_tokens = True
        return backend

    @cached_property
    def _text_encoder(self) -> PlainTextEncoder:
        """Tokenizes texts as `text_backend` does, which it builds if need be."""
        if self.family != "unigram":
            return PlainTextEncoder(self.text_backend)
        backend = build_text_backend(self.backend, self.special_ids, finds_special=True)
        return PlainTextEncoder(backend, self.special_ids, self.unk_id, lambda: self.text_backend)

    @cached_property
    def _reading_encoder(self) -> tuple[PlainTextEncoder, dict[int, int]]:
        """Tokenizes by a copy of the backend that recognises special tokens, since changing the switch isn't
        thread-safe; and the true ids of tokens that have another one there.
        """
        if self.is_sentencepiece:
            backend, true_ids = build_reading_backend(self.backend, self.text_backend, self.special_ids)
            return PlainTextEncoder(backend), true_ids
        backend = Backend.from_str(self.backend.to_str())
        backend.encode_special_tokens = False
        return PlainTextEncoder(backend), {}

    def _build_config(self) -> dict[str, Any]:
        """The content of tokenizer_config.json, from which transformers builds the same tokenizer.

        Its BERT and RoBERTa classes have their own rules and template and ignore those of tokenizer.json, so
        they are named only where these agree.
        """
        settings: dict[str, Any] = {f"{role}_token": token for role, token in self._special.items()}
        normalizer, pre_tokenizer = self.backend.normalizer, self.backend.pre_tokenizer
        template = read_template(self.backend, self.cls_id, self.sep_id)
        if self.splitter is not None:
            flags = ("content", "lstrip", "normalized", "rstrip", "single_word", "special")
            added = {
                str(number): {flag: getattr(token, flag) for flag in flags}
                for number, token in self.backend.get_added_tokens_decoder().items()
            }
            if any(template.segments):  # else transformers 5 passes none
                settings["model_input_names"] = ["input_ids", "token_type_ids", "attention_mask"]
            return settings | self.splitter.settings() | {"added_tokens_decoder": added}
        cls_ids, sep_ids = (self.cls_id,), (self.sep_id,)
        if has_bert_rules(self.backend) and template == SequenceTemplate(cls_ids, sep_ids, sep_ids):
            return settings | {
                "tokenizer_class": "BertTokenizer",
                "do_lower_case": normalizer.lowercase,
                "strip_accents": normalizer.strip_accents,
                "tokenize_chinese_chars": normalizer.handle_chinese_chars,
            }
        processor = self.backend.post_processor
        if (
            has_roberta_rules(self.backend)
            and template == SequenceTemplate(cls_ids, sep_ids * 2, sep_ids, (0, 0))
            and isinstance(processor, processors.RobertaProcessing)
            and processor.add_prefix_space == pre_tokenizer.add_prefix_space
        ):
            settings |= {} if processor.trim_offsets else {"trim_offsets": False}
            return settings | {
                "tokenizer_class": "RobertaTokenizer",
                "add_prefix_space": pre_tokenizer.add_prefix_space,
                "bos_token": self._special["cls"],
                "eos_token": self._special["sep"],
            }
        settings["tokenizer_class"] = "PreTrainedTokenizerFast"
        if any(template.segments):  # this class returns token_type_ids only if they are listed
            settings["model_input_names"] = ["input_ids", "token_type_ids", "attention_mask"]
        return settings


def rebuild(tokenizer: Tokenizer, content: dict[str, Any]) -> Tokenizer:
    """A tokenizer from the changed content of a tokenizer.json, with all other settings of `tokenizer`."""
    backend = Backend.from_str(json.dumps(content, ensure_ascii=False))
    return Tokenizer(
        backend, tokenizer._special, tokenizer.truncation, tokenizer.one_segment, tokenizer.splitter
    )


def _from_json(content: str, *settings: Any) -> Tokenizer:
    return Tokenizer(Backend.from_str(content), *settings)


def _clean_texts(texts: Sequence[str]) -> list[str]:
    """Replaces lone surrogates, which the library refuses. Raises InputError for what is no list of texts."""
    if isinstance(texts, str) or not isinstance(texts, Iterable):
        raise InputError(f"Expected a list of texts, found {describe_value(texts)}.")
    return [replace_surrogates(text) for text in texts]


def replace_surrogates(text: str) -> str:
    """The text with U+FFFD in the place of every lone surrogate, so that offsets stay the same.

    BERT's cleaning drops U+FFFD. Raises InputError for anything but a string.
    """
    if not isinstance(text, str):
        raise InputError(f"Expected a text, found {describe_value(text)}.")
    return LONE_SURROGATE.sub("\ufffd", text)
