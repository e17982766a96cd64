"""Reads and checks a `tokenizer.json`.

The file comes from strangers and drives a parser written in another language, so only the components of BERT,
RoBERTa, SentencePiece and Gemma tokenizers pass: one regular expression, no component or key that isn't
listed here, no randomness (`dropout`). Everything is checked before the `tokenizers` library reads it.
"""

import json
from collections import Counter
from collections.abc import Collection
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from bertsmith.errors import TokenizerError
from bertsmith.files import parse_json
from bertsmith.text.tokens.unigram import (
    BYTE_PIECES,
    MAX_PIECE,
    convert_sentencepieces,
    find_charsmap_fault,
    read_sentencepieces,
)
from bertsmith.validation import describe_problem

_WHAT_IS_READ = (
    "Bertsmith reads WordPiece, byte-level BPE, Unigram and BPE tokenizers as BERT, RoBERTa, XLM-RoBERTa and "
    "Gemma have them, and of regular expressions only ' {2,}'."
)
#: RoBERTa's file has 2 MB, ModernBERT's 4 MB, multilingual BERT's 3 MB, XLM-RoBERTa's 17 MB, Gemma's 34 MB.
MAX_BYTES = 48 * 2**20
MAX_PIECES = 600_000  # LaBSE, the largest BERT that was published, has 501,153
_MAX_MERGES = 2 * MAX_PIECES
_MAX_VALUES = 5_000_000  # of a file: each takes memory; pieces have two or three, merges too
MAX_ADDED = 20_000  # every text is searched for each of them
_MAX_TEMPLATE = 16  # parts around two texts; RoBERTa's has six
_MOST_LIKELY = 1e6  # scores are log-probabilities: larger ones would add up to infinity
_BYTE_NAMES = frozenset(BYTE_PIECES)
_Vocabulary = Annotated[dict[str, int], Field(max_length=MAX_PIECES)]


class Component(BaseModel):
    """A component of tokenizer.json; pydantic refuses a key that its class doesn't list."""

    model_config = ConfigDict(extra="forbid", strict=True)


class WordPieceModel(Component):
    type: Literal["WordPiece"]
    vocab: _Vocabulary
    unk_token: str
    continuing_subword_prefix: str = "##"
    max_input_chars_per_word: int = Field(100, gt=0, le=10_000)


class BytePairModel(Component):
    type: Literal["BPE"]
    vocab: _Vocabulary
    merges: Annotated[list[str] | list[tuple[str, str]], Field(max_length=_MAX_MERGES)]
    unk_token: str | None = None
    dropout: None = None
    continuing_subword_prefix: Literal[""] | None = None
    end_of_word_suffix: Literal[""] | None = None
    fuse_unk: bool = False
    byte_fallback: bool = False
    ignore_merges: bool = False

    @model_validator(mode="after")
    def _check_bytes(self) -> "BytePairModel":
        """Gemma's kind: no character is unknown, and no piece but theirs stands for a byte."""
        if not self.byte_fallback:
            return self
        missing = next((piece for piece in BYTE_PIECES if piece not in self.vocab), None)
        if missing is not None:
            raise ValueError(f"it falls back on bytes (byte_fallback) and lacks {missing!r}")
        if self.ignore_merges:
            raise ValueError("with byte_fallback, ignore_merges would read a special token in a text")
        for merge in self.merges:
            left, right = merge.split(" ") if isinstance(merge, str) else merge
            if left in _BYTE_NAMES or right in _BYTE_NAMES or left + right in _BYTE_NAMES:
                raise ValueError(f"a merge, {left!r} with {right!r}, reads or makes the piece of a byte")
        return self


_Score = Annotated[float, Field(ge=-_MOST_LIKELY, le=_MOST_LIKELY, allow_inf_nan=False)]
_Piece = Annotated[str, Field(min_length=1, max_length=MAX_PIECE)]


class UnigramModel(Component):
    """SentencePiece's unigram model (Kudo 2018): the pieces in the order of their ids, with their scores."""

    type: Literal["Unigram"]
    vocab: Annotated[list[tuple[_Piece, _Score]], Field(min_length=1, max_length=MAX_PIECES)]
    unk_id: int = Field(ge=0)
    byte_fallback: bool = False

    @model_validator(mode="after")
    def _check_pieces(self) -> "UnigramModel":
        if self.unk_id >= len(self.vocab):
            raise ValueError(f"unk_id is {self.unk_id}, but ids run from 0 to {len(self.vocab) - 1:,}")
        pieces = {piece for piece, _ in self.vocab}
        if len(pieces) < len(self.vocab):
            repeated = Counter(piece for piece, _ in self.vocab).most_common(1)[0][0]
            raise ValueError(f"the piece {repeated!r} stands twice: which id is meant?")
        missing = [piece for piece in BYTE_PIECES if piece not in pieces]
        if self.byte_fallback and missing:
            raise ValueError(f"it falls back on bytes (byte_fallback) and lacks {missing[0]!r}")
        return self


class BertNormalizer(Component):
    type: Literal["BertNormalizer"]
    clean_text: bool
    handle_chinese_chars: bool
    strip_accents: bool | None
    lowercase: bool


class UnicodeNormalizer(Component):
    type: Literal["NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents", "Nmt"]


class Strip(Component):
    """White space at a text's ends is removed."""

    type: Literal["Strip"]
    strip_left: bool
    strip_right: bool


class Prepend(Component):
    type: Literal["Prepend"]
    prepend: str = Field(min_length=1, max_length=1)


class Pattern(Component):
    """What is replaced: a text, or the one expression with which SentencePiece's blanks are joined."""

    String: str | None = Field(None, min_length=1)
    Regex: Literal[" {2,}"] | None = None

    @model_validator(mode="after")
    def _check_one(self) -> "Pattern":
        if (self.String is None) == (self.Regex is None):
            raise ValueError("expected either String or Regex in a pattern")
        return self


class Replace(Component):
    """A normalizer, or a part of a decoder."""

    type: Literal["Replace"]
    pattern: Pattern
    content: str

    @model_validator(mode="after")
    def _check_length(self) -> "Replace":
        """Refuses what makes texts longer: eight such steps would fill the memory."""
        if len(self.content) > max(1, len(self.pattern.String or "")):
            raise ValueError("a text may not be replaced by a longer one")
        return self


class CharacterTable(Component):
    """SentencePiece's table of the characters and what each is replaced by: a double array, in base64."""

    type: Literal["Precompiled"]
    precompiled_charsmap: str

    @field_validator("precompiled_charsmap")
    @classmethod
    def _check_table(cls, value: str) -> str:
        if fault := find_charsmap_fault(value):
            raise ValueError(f"the table of characters {fault}")
        return value


class NormalizerSequence(Component):
    type: Literal["Sequence"]
    normalizers: list["SingleNormalizer"] = Field(max_length=8)


SingleNormalizer = Annotated[
    BertNormalizer | UnicodeNormalizer | Strip | Prepend | Replace | CharacterTable,
    Field(discriminator="type"),
]
Normalizer = Annotated[SingleNormalizer | NormalizerSequence, Field(discriminator="type")]


class PlainPreTokenizer(Component):
    type: Literal["BertPreTokenizer", "Whitespace", "WhitespaceSplit"]


class ByteLevel(Component):
    """The pre-tokenizer, the decoder and the post-processor of byte-level tokenizers share these fields."""

    type: Literal["ByteLevel"]
    add_prefix_space: bool = True
    trim_offsets: bool = True
    use_regex: bool = True  # the library's own expression, not one from the file


class Digits(Component):
    type: Literal["Digits"]
    individual_digits: bool


class Punctuation(Component):
    type: Literal["Punctuation"]
    behavior: str


class Metaspace(Component):
    """SentencePiece's blank: a pre-tokenizer and a decoder. Older files have the last two fields."""

    type: Literal["Metaspace"]
    replacement: Literal["\u2581"] = "\u2581"
    prepend_scheme: Literal["always", "first", "never"] = "always"
    split: bool = True
    add_prefix_space: bool | None = None
    str_rep: Literal["\u2581"] | None = None


class BlankSplit(Component):
    """Gemma's pre-tokenizer, which never finds a blank: the normalizer has replaced them all."""

    type: Literal["Split"]
    pattern: dict[Literal["String"], Literal[" "]]
    behavior: Literal["MergedWithPrevious"]
    invert: Literal[False]


class PreTokenizerSequence(Component):
    type: Literal["Sequence"]
    pretokenizers: list["SinglePreTokenizer"] = Field(max_length=8)


SinglePreTokenizer = Annotated[
    PlainPreTokenizer | ByteLevel | Digits | Punctuation | Metaspace | BlankSplit, Field(discriminator="type")
]
PreTokenizer = Annotated[SinglePreTokenizer | PreTokenizerSequence, Field(discriminator="type")]


class PairProcessing(Component):
    type: Literal["BertProcessing", "RobertaProcessing"]
    sep: tuple[str, int]
    cls: tuple[str, int]
    trim_offsets: bool = True
    add_prefix_space: bool = True


class TemplateRole(Component):
    """A text ("A" or "B"), or a special token by its name; `type_id` is its segment."""

    id: str
    type_id: int = Field(ge=0, le=1)


class TemplatePart(Component):
    """One part of a template: either a special token or a text."""

    SpecialToken: TemplateRole | None = None
    Sequence: TemplateRole | None = None


class TemplateToken(Component):
    """The ids and tokens that the name of a special token stands for in a template."""

    id: str
    ids: list[int] = Field(max_length=1)
    tokens: list[str] = Field(max_length=1)


class TemplateProcessing(Component):
    type: Literal["TemplateProcessing"]
    single: list[TemplatePart] = Field(max_length=_MAX_TEMPLATE)
    pair: list[TemplatePart] = Field(max_length=_MAX_TEMPLATE)
    special_tokens: dict[str, TemplateToken] = Field(max_length=_MAX_TEMPLATE)

    @model_validator(mode="after")
    def _check_order_of_texts(self) -> "TemplateProcessing":
        for parts, texts in ((self.single, ["A"]), (self.pair, ["A", "B"])):
            text_ids = [part.Sequence.id for part in parts if part.Sequence is not None]
            if text_ids != texts:
                raise ValueError(f"expected the texts {' '.join(texts)} in a template, found {text_ids}")
        return self


class PostProcessorSequence(Component):
    type: Literal["Sequence"]
    processors: list["SinglePostProcessor"] = Field(max_length=8)

    @model_validator(mode="after")
    def _check_processors(self) -> "PostProcessorSequence":
        """Refuses two processors that add tokens: a template of the library panics on another's output."""
        if sum(not isinstance(processor, ByteLevel) for processor in self.processors) > 1:
            raise ValueError("only one processor may add special tokens; the others must be ByteLevel")
        return self


SinglePostProcessor = Annotated[PairProcessing | TemplateProcessing | ByteLevel, Field(discriminator="type")]
PostProcessor = Annotated[
    PairProcessing | TemplateProcessing | ByteLevel | PostProcessorSequence, Field(discriminator="type")
]


class WordPieceDecoder(Component):
    type: Literal["WordPiece"]
    prefix: str
    cleanup: bool


class PlainDecoder(Component):
    type: Literal["ByteFallback", "Fuse"]


class StripDecoder(Component):
    type: Literal["Strip"]
    content: str = Field(min_length=1, max_length=1)
    start: int = Field(ge=0)
    stop: int = Field(ge=0)


class DecoderSequence(Component):
    type: Literal["Sequence"]
    decoders: list["SingleDecoder"] = Field(max_length=8)


SingleDecoder = Annotated[
    WordPieceDecoder | ByteLevel | Metaspace | Replace | PlainDecoder | StripDecoder,
    Field(discriminator="type"),
]
Decoder = Annotated[SingleDecoder | DecoderSequence, Field(discriminator="type")]


class SearchedToken(Component):
    """A token that texts are searched for before they are split, and how they are searched."""

    content: str = Field(min_length=1)
    special: bool
    single_word: bool
    lstrip: bool
    rstrip: bool
    normalized: bool


class AddedToken(SearchedToken):
    """A token that was added to the vocabulary, with its id."""

    id: int


class TokenizerFile(Component):
    """The whole file. Padding is read and dropped: the library never pads."""

    version: str
    model: Annotated[WordPieceModel | BytePairModel | UnigramModel, Field(discriminator="type")]
    added_tokens: list[AddedToken] = Field(max_length=MAX_ADDED)
    normalizer: Normalizer | None = None
    pre_tokenizer: PreTokenizer | None
    post_processor: PostProcessor | None = None
    decoder: Decoder | None = None
    truncation: dict[str, Any] | None = None
    padding: Any = None


def require_pieces(count: int, path: Path) -> None:
    """Raises TokenizerError for a vocabulary with more tokens than any published model has."""
    if count > MAX_PIECES:
        raise TokenizerError(f"{path} has {count:,} pieces; a vocabulary has at most {MAX_PIECES:,}.")


def read_bytes(path: Path, what: str) -> bytes:
    """The content of a small file, whose size is checked before it is read; `what` names it in messages.

    Raises TokenizerError when it is missing, not a plain file, empty, or larger than MAX_BYTES.
    """
    if not path.is_file():
        raise TokenizerError(f"{path} does not exist: expected {what}.")
    size = path.stat().st_size
    if size > MAX_BYTES:
        raise TokenizerError(f"{path} has {size:,} bytes; {what} has at most {MAX_BYTES:,}.")
    if size == 0:
        raise TokenizerError(f"{path} is empty: expected {what}.")
    return path.read_bytes()


def read_text(path: Path, what: str) -> str:
    """The content of a small UTF-8 file, with or without a byte-order mark. Raises as `read_bytes` does."""
    content = read_bytes(path, what)
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise TokenizerError(
            f"{path} is not UTF-8: byte {error.start} is 0x{content[error.start]:02x}. "
            "Save it again as UTF-8 (vocabularies of BERT always are)."
        ) from error


def read_object(path: Path, what: str) -> dict[str, Any]:
    """The JSON object in a small file, `what` in messages. Raises TokenizerError for other content."""
    return _parse_object(read_text(path, what), path, what)


def read_tokenizer_json(path: Path) -> dict[str, Any]:
    """The checked content of a `tokenizer.json`, without its padding.

    Raises TokenizerError, which names the first part that is not allowed.
    """
    text = read_text(path, "a tokenizer.json")
    if (values := text.count(",")) > _MAX_VALUES:
        raise TokenizerError(
            f"{path} has {values:,} values; a tokenizer.json has at most {_MAX_VALUES:,}: a vocabulary of "
            f"{MAX_PIECES:,} pieces."
        )
    content = _parse_object(text, path, "a tokenizer.json")
    model = content.get("model")
    # Older files don't name the model's type, but only Unigram has a list of pieces with scores.
    if isinstance(model, dict) and isinstance(model.get("vocab"), list) and "type" not in model:
        model["type"] = "Unigram"
        text = json.dumps(content)
    _check_content(text, path)
    return content | {"padding": None}


def read_sentencepiece_model(
    path: Path, layout: str, settings: dict[str, Any], special: Collection[str]
) -> dict[str, Any]:
    """The checked content of a tokenizer.json from SentencePiece's `.model` file at `path`.

    See `convert_sentencepieces` for the arguments. Raises TokenizerError.
    """
    try:
        model = read_sentencepieces(read_bytes(path, "a model of SentencePiece"), MAX_PIECES)
        content = convert_sentencepieces(model, layout, settings, special)
    except UnicodeDecodeError as error:
        raise TokenizerError(f"{path} has a piece that is not UTF-8. It may have been altered.") from error
    except ValueError as error:
        raise TokenizerError(
            f"{path} {error}. Take the tokenizer.json of this model, if it has one."
        ) from error
    _check_content(json.dumps(content), path)
    return content


def _check_content(text: str, path: Path) -> None:
    try:
        TokenizerFile.model_validate_json(text)
    except ValidationError as error:
        raise TokenizerError(f"{path}: {describe_problem(error, TokenizerFile)} {_WHAT_IS_READ}") from None


def _parse_object(text: str, path: Path, what: str) -> dict[str, Any]:
    try:
        value = parse_json(text, lambda pairs: _require_distinct_keys(pairs, path))
    except (ValueError, RecursionError) as error:  # too many digits or brackets are errors of their own
        raise TokenizerError(
            f"{path} is not valid JSON ({error}). It may have been cut or altered."
        ) from error
    if not isinstance(value, dict):
        raise TokenizerError(f"{path} holds a {type(value).__name__}: expected {what}, a JSON object.")
    return value


def _require_distinct_keys(pairs: list[tuple[str, Any]], path: Path) -> dict[str, Any]:
    """Raises TokenizerError for a repeated key: in a vocabulary it would silently change an id."""
    distinct = dict(pairs)
    if len(distinct) < len(pairs):
        counts = Counter(key for key, _ in pairs)
        raise TokenizerError(f"{path} holds the key {counts.most_common(1)[0][0]!r} twice in one object.")
    return distinct
