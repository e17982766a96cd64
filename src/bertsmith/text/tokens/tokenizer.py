"""Text → pieces with ids and character offsets, and back.

    V   pieces in the vocabulary

Text is text: what looks like one of the five special tokens in it ("[SEP]" in a forum post) is split like
any other word, so that a corpus or a user can't forge the structure of a sequence. `read_special_tokens=True`
turns that round for text in which "[MASK]" is meant, as in fill-mask. Any other token that was added to the
vocabulary ("[WORLD]") is itself wherever a text spells it, as in transformers.
"""

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
from tokenizers import AddedToken, models, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as Backend

from bertsmith.door import door, flag, found, optional, place, several, text
from bertsmith.errors import InputError, TokenizerError
from bertsmith.files import atomic_write, write_json
from bertsmith.text.tokens.byte_level import has_roberta_rules
from bertsmith.text.tokens.long_texts import (
    BLANK,
    BLANK_OR_MARK,
    BLANK_OR_MARK_OR_CHINESE,
    SPACE,
    SPACE_OR_MARK,
    WHITE_SPACE,
    TextEncoding,
    WordEncodings,
    encode_in_parts,
    encode_words,
)
from bertsmith.text.tokens.sequence_rules import USUAL_TRUNCATION, SequenceTemplate, Truncation, read_template
from bertsmith.text.tokens.tokenizer_files import find_special_tokens, read_backend
from bertsmith.text.tokens.wordpiece import build_wordpiece_backend, has_bert_rules

Family = Literal["wordpiece", "byte-level"]

#: How byte-level vocabularies write a leading space, line feed, tab or carriage return.
LEADING_WHITE_SPACE = ("Ġ", "Ċ", "ĉ", "č")
LONE_SURROGATE = re.compile("[\ud800-\udfff]")


class Encoding(NamedTuple):
    """One text in pieces. `offsets` are (start, end) in characters of the text as it was given."""

    ids: list[int]
    offsets: list[tuple[int, int]]
    tokens: list[str]


class Tokenizer:
    """A WordPiece (BERT) or byte-level (RoBERTa) tokenizer.

    Immutable, and safe to share between threads and to send to other processes. It never adds [CLS] or
    [SEP], never pads and never cuts: sequences are built in the data layer, by its `template` and
    `truncation`.
    """

    def __init__(
        self,
        backend: Backend,
        special: dict[str, str],
        truncation: Truncation = USUAL_TRUNCATION,
        one_segment: bool = False,
    ) -> None:
        """`special` maps "pad", "unk", "cls", "sep" and "mask" to their tokens; use `load` for files. With
        `one_segment` the second text of a pair is of the first one's, whatever the template says.

        `backend`, the tokenizers library's object, belongs to this one from here on and must not be changed.
        """
        self._special = special
        self.truncation = truncation
        self.one_segment = one_segment
        self.backend = backend
        self.backend.no_padding()
        self.backend.no_truncation()
        self.backend.encode_special_tokens = True  # in text, "[SEP]" is text
        self.family: Family = "wordpiece" if isinstance(backend.model, models.WordPiece) else "byte-level"
        self.vocab_size: int = backend.get_vocab_size(with_added_tokens=True)
        self.pad_id, self.unk_id, self.cls_id, self.sep_id, self.mask_id = (
            self.token_to_id(special[role]) for role in ("pad", "unk", "cls", "sep", "mask")
        )
        self.special_ids: tuple[int, ...] = tuple(
            sorted({self.pad_id, self.unk_id, self.cls_id, self.sep_id, self.mask_id})
        )

    @classmethod
    @door(path=place, lowercase=optional(flag))
    def load(cls, path: Path | str, *, lowercase: bool | None = None) -> "Tokenizer":
        """Reads a folder, a `vocab.txt`, a `tokenizer.json`, or a folder of `vocab.json` and `merges.txt`.

        Cased or uncased is taken from `lowercase`, else from `tokenizer_config.json`, else from
        `tokenizer.json`; for a `vocab.txt` alone, a vocabulary without any capital is uncased.
        Raises TokenizerError when a file is missing, broken, unsafe or lacks a special token.
        """
        return cls(*read_backend(Path(path), lowercase))

    @classmethod
    @door(pieces=several(text), lowercase=flag)
    def from_pieces(cls, pieces: Sequence[str], *, lowercase: bool) -> "Tokenizer":
        """BERT's tokenizer over `pieces`, [CLS] and the like among them; a piece's index is its id.

        Raises TokenizerError for a piece that stands twice and for missing special tokens.
        """
        special = find_special_tokens(set(pieces), {}, "The vocabulary")
        return cls(build_wordpiece_backend(list(pieces), special, lowercase=lowercase), special)

    def __reduce__(self) -> tuple[Any, ...]:
        """The library's own pickling forgets that special tokens in text are text."""
        return _from_json, (self.backend.to_str(), self._special, self.truncation, self.one_segment)

    def encode(self, text: str, *, read_special_tokens: bool = False) -> Encoding:
        """The pieces of one text, without [CLS] and [SEP].

        With `read_special_tokens`, "[MASK]" and its like in the text become the special token.
        """
        backend = self._reading_backend if read_special_tokens else self.text_backend
        try:
            encoding = backend.encode(text, add_special_tokens=False)
        except TypeError:
            encoding = backend.encode(replace_surrogates(text), add_special_tokens=False)
        ids = encoding.ids
        return Encoding(ids, encoding.offsets, [self.id_to_token(number) for number in ids])

    def encode_batch(self, texts: Sequence[str], enough: int | None = None) -> list[Sequence[int]]:
        """The ids of many texts, in parallel and without offsets; the same ids as `encode` gives. With
        `enough`, of a long text at least so many: it is not read to its end, unless that is what is kept.
        """
        found = self._in_parts(self.text_backend.encode_batch_fast, texts, enough, offsets=False)
        return [pieces.ids for pieces in found]

    def encode_pieces(self, texts: Sequence[str], enough: int | None = None) -> Sequence[TextEncoding]:
        """Many texts in parallel: the ids and offsets of `encode`, offsets made only when asked for. `enough`
        as in `encode_batch`.
        """
        return self._in_parts(self.text_backend.encode_batch, texts, enough, offsets=True)

    def encode_words(self, words: Sequence[str]) -> WordEncodings:
        """The ids of many words, each by itself: those of `encode_batch`, without offsets, for a sentence of
        any length in little memory.
        """
        return encode_words(self.encode_batch, words)

    def _in_parts(
        self, encode: Callable[..., Any], texts: Sequence[str], enough: int | None, offsets: bool
    ) -> Sequence[TextEncoding]:
        def encoded(some: Sequence[str]) -> Sequence[TextEncoding]:
            try:
                found: Sequence[TextEncoding] = encode(some, add_special_tokens=False)
            except TypeError:
                found = encode(_clean_texts(some), add_special_tokens=False)
            return found

        if (
            isinstance(texts, str)
            or not isinstance(texts, Sequence)
            or not all(isinstance(one, str) for one in texts)
        ):
            texts = _clean_texts(texts)  # which says what is wrong
        if self._where_to_cut is None:
            return encoded(texts)
        if self.truncation.direction == "left":
            enough = None
        trims = offsets and self._where_to_cut is SPACE and self._keeps_first_blank
        return encode_in_parts(encoded, texts, self._where_to_cut, enough, offsets, trims)

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Readable text of `ids`. What the normaliser took away (capitals, accents, spacing) stays lost.

        Raises TokenizerError for an id that is not in 0 … V-1: the library would leave it out.
        """
        if isinstance(ids, str | bytes):
            raise InputError(f"Expected the ids of pieces, found {found(ids)}.")
        try:
            numbers = [int(i) for i in ids]
        except (TypeError, ValueError) as error:
            raise InputError(f"Expected the ids of pieces, found {found(ids)}.") from error
        strange = next((number for number in numbers if not 0 <= number < self.vocab_size), None)
        if strange is not None:
            self.id_to_token(strange)  # which says so
        return self.backend.decode(numbers, skip_special_tokens=skip_special_tokens)

    @door(token=text)
    def token_to_id(self, token: str) -> int:
        """Raises TokenizerError when the vocabulary doesn't hold `token`."""
        number = self.backend.token_to_id(token)
        if number is None:
            raise TokenizerError(f"The vocabulary of {self.vocab_size:,} pieces has no piece {token!r}.")
        return number

    def id_to_token(self, number: int) -> str:
        """Raises TokenizerError when `number` is not in 0 … V-1."""
        is_id = isinstance(number, int | np.integer) and 0 <= number < self.vocab_size
        token = self.backend.id_to_token(int(number)) if is_id else None
        if token is None:
            raise TokenizerError(
                f"There is no piece {found(number)}: ids run from 0 to {self.vocab_size - 1:,}."
            )
        return token

    @cached_property
    def pieces(self) -> tuple[str, ...]:
        """All V pieces in the order of their ids."""
        by_piece = self.backend.get_vocab(with_added_tokens=True)
        return tuple(sorted(by_piece, key=by_piece.__getitem__))

    @cached_property
    def continues_word(self) -> npt.NDArray[np.bool_]:
        """(V,) True where a piece continues a word: "##ing", or "ing" where words start with "Ġ"."""
        if self.family == "wordpiece":
            prefix = self.backend.model.continuing_subword_prefix
            continues = [piece.startswith(prefix) and piece != prefix for piece in self.pieces]
        else:
            continues = [not piece.startswith(LEADING_WHITE_SPACE) for piece in self.pieces]
        flags = np.array(continues, dtype=np.bool_)
        flags[list(self.special_ids)] = False
        flags.setflags(write=False)
        return flags

    @cached_property
    def template(self) -> SequenceTemplate:
        """Which special tokens stand around texts."""
        template = read_template(self.backend, self.cls_id, self.sep_id)
        return replace(template, segments=(0, 0)) if self.one_segment else template

    def in_small_letters(self) -> "Tokenizer":
        """The same for texts that are put into small letters first, accents kept."""
        content = json.loads(self.backend.to_str())
        normalizer = content["normalizer"] or {"type": "Sequence", "normalizers": []}
        if normalizer["type"] == "BertNormalizer" and not normalizer["lowercase"]:
            normalizer |= {"lowercase": True, "strip_accents": bool(normalizer["strip_accents"])}
        elif normalizer["type"] != "BertNormalizer":
            parts = normalizer["normalizers"] if normalizer["type"] == "Sequence" else [normalizer]
            parts = [{"type": "Lowercase"}, *(part for part in parts if part["type"] != "Lowercase")]
            normalizer = {"type": "Sequence", "normalizers": parts}
        return rebuild(self, content | {"normalizer": normalizer})

    @cached_property
    def splits_at_blanks(self) -> bool:
        """True when the ids of a text are those of its blank-separated words, one after the other."""
        return (
            isinstance(self.backend.normalizer, normalizers.BertNormalizer)
            and isinstance(self.backend.pre_tokenizer, pre_tokenizers.BertPreTokenizer)
            and not self._searched
        )

    @cached_property
    def _where_to_cut(self) -> re.Pattern[str] | None:
        """Where a text can be cut so that its parts have the ids of the whole; None where nobody knows."""
        spellings = [
            spelt for token in self._searched for spelt in (token.content, self.normalise(token.content))
        ]
        if any(token.lstrip or token.rstrip for token in self._searched) or any(
            map(WHITE_SPACE.search, spellings)
        ):
            return None
        normalizer, pre_tokenizer = self.backend.normalizer, self.backend.pre_tokenizer
        if isinstance(pre_tokenizer, pre_tokenizers.ByteLevel) and pre_tokenizer.use_regex:
            puts_blank = pre_tokenizer.add_prefix_space or self._keeps_first_blank
            changes = normalizer is not None and not isinstance(normalizer, normalizers.NFC)
            return SPACE if puts_blank or changes or self._searched else SPACE_OR_MARK
        if not isinstance(normalizer, normalizers.BertNormalizer) or not isinstance(
            pre_tokenizer, pre_tokenizers.BertPreTokenizer
        ):
            return None
        if self._searched:
            return BLANK
        return BLANK_OR_MARK_OR_CHINESE if normalizer.handle_chinese_chars else BLANK_OR_MARK

    @cached_property
    def _keeps_first_blank(self) -> bool:
        """True where a text's first piece spans the blank before it, and no later piece does so: where the
        post-processor expects one that was put there.
        """
        first, both = (
            self.text_backend.encode(text, add_special_tokens=False).offsets for text in (" a", "a a")
        )
        later = both[len(both) // 2]  # the piece with the second blank, which may be that alone
        return bool(first[0][0] != later[0] - 1)

    @cached_property
    def _searched(self) -> list[AddedToken]:
        """The added tokens that a text is searched for before it is split: all but the five special ones."""
        added = self.backend.get_added_tokens_decoder()
        return [token for number, token in added.items() if number not in self.special_ids]

    @cached_property
    def lowercase(self) -> bool:
        """True for an uncased tokenizer."""
        return self.family == "wordpiece" and self.normalise("A") == "a"

    @cached_property
    def sha256(self) -> str:
        """Of `tokenizer.json` as `save` writes it, but for how texts are cut: two tokenizers that give the
        same ids have the same.
        """
        return hashlib.sha256(self._json.encode()).hexdigest()

    def normalise(self, text: str) -> str:
        """`text` as the vocabulary sees it: cleaned, and lower-cased without accents when uncased."""
        normalizer = self.backend.normalizer
        return text if normalizer is None else normalizer.normalize_str(replace_surrogates(text))

    @door(folder=place)
    def save(self, folder: Path | str, *, segments: bool = True, max_length: int = 512) -> None:
        """Writes what transformers opens: tokenizer.json, tokenizer_config.json, and WordPiece's vocab.txt.

        `max_length` is the longest input of the model that it belongs to, in tokens. Without `segments`, for
        a model that has none, it makes no token_type_ids there.
        Raises ResourceError when the disk is full or not writable.
        """
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        atomic_write(folder / "tokenizer.json", self._json_cutting_at(max_length))
        if self.family == "wordpiece":
            atomic_write(folder / "vocab.txt", "".join(f"{piece}\n" for piece in self.pieces))
        settings = self._settings() | {"model_max_length": max_length}
        if self.truncation.direction == "left":
            settings["truncation_side"] = "left"
        if self.one_segment or not segments:
            settings["model_input_names"] = ["input_ids", "attention_mask"]
        write_json(folder / "tokenizer_config.json", settings)

    def _json_cutting_at(self, max_length: int) -> str:
        """With the strategy, where it isn't the usual one, which the file can't name without a length."""
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
        """The library's object that reads texts: in them the five special tokens are text, and every other
        added token is itself. Its switch is for all that are called special: so the five are, and no others.
        """
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
    def _reading_backend(self) -> Backend:
        """A twin that sees special tokens in text: the library's switch isn't thread-safe."""
        backend = Backend.from_str(self.backend.to_str())
        backend.encode_special_tokens = False
        return backend

    def _settings(self) -> dict[str, Any]:
        """tokenizer_config.json: enough for transformers to build the same tokenizer from vocab.txt alone.

        Its classes of BERT and RoBERTa have their own rules and template, whatever tokenizer.json says.
        """
        settings: dict[str, Any] = {f"{role}_token": token for role, token in self._special.items()}
        normalizer, pre_tokenizer = self.backend.normalizer, self.backend.pre_tokenizer
        cls, sep = (self.cls_id,), (self.sep_id,)
        template = read_template(self.backend, self.cls_id, self.sep_id)
        if has_bert_rules(self.backend) and template == SequenceTemplate(cls, sep, sep):
            return settings | {
                "tokenizer_class": "BertTokenizer",
                "do_lower_case": normalizer.lowercase,
                "strip_accents": normalizer.strip_accents,
                "tokenize_chinese_chars": normalizer.handle_chinese_chars,
            }
        processor = self.backend.post_processor
        if (
            has_roberta_rules(self.backend)
            and template == SequenceTemplate(cls, sep * 2, sep, (0, 0))
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
        if any(template.segments):  # which that class makes only if it is told to
            settings["model_input_names"] = ["input_ids", "token_type_ids", "attention_mask"]
        return settings


def rebuild(tokenizer: Tokenizer, content: dict[str, Any]) -> Tokenizer:
    """The same with other pieces or rules: `content` is what its tokenizer.json would hold."""
    backend = Backend.from_str(json.dumps(content, ensure_ascii=False))
    return Tokenizer(backend, tokenizer._special, tokenizer.truncation, tokenizer.one_segment)


def _from_json(content: str, special: dict[str, str], truncation: Truncation, one_segment: bool) -> Tokenizer:
    return Tokenizer(Backend.from_str(content), special, truncation, one_segment)


def _clean_texts(texts: Sequence[str]) -> list[str]:
    """What the library didn't take, without what it can't."""
    if isinstance(texts, str) or not isinstance(texts, Iterable):
        raise InputError(f"Expected a list of texts, found {found(texts)}.")
    return [replace_surrogates(text) for text in texts]


def replace_surrogates(text: str) -> str:
    """Half of a UTF-16 pair is no character; U+FFFD keeps the offsets, and BERT's cleaning drops it. Raises
    InputError for what is no text.
    """
    if not isinstance(text, str):
        raise InputError(f"Expected a text, found {found(text)}.")
    return LONE_SURROGATE.sub("\ufffd", text)
