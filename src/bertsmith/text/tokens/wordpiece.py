"""BERT's WordPiece: reads vocab.txt, and builds the tokenizer with BERT's normalizer and pre-tokenizer."""

from collections import Counter
from pathlib import Path

from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from bertsmith.errors import TokenizerError
from bertsmith.text.tokens.tokenizer_json import read_text, require_pieces

#: The characters with Unicode's property White_Space. Python's str.rstrip strips U+001C to U+001F too.
_WHITE_SPACE = (
    "".join(
        map(
            chr,
            [*range(0x09, 0x0E), 0x20, 0x85, 0xA0, 0x1680, *range(0x2000, 0x200B), 0x2028, 0x2029, 0x202F],
        )
    )
    + "\u205f\u3000"
)


def read_vocabulary(path: Path) -> list[str]:
    """The tokens of a `vocab.txt`; a token's index is its id.

    Only line feeds end a line: BERT's Chinese vocabulary has U+2028, a line separator, as a token. White
    space at a line's end is removed, as in transformers, unless the line holds nothing else: such a token
    never occurs, since BERT's rules split texts at white space.
    Raises TokenizerError for a duplicate (naming both lines) and for an empty line.
    """
    text = read_text(path, "a vocabulary with one piece per line")
    require_pieces(text.count("\n"), path)
    lines = [line.removesuffix("\r") for line in text.rstrip("\r\n").split("\n")]
    pieces = [line.rstrip(_WHITE_SPACE) or line for line in lines]
    line_of: dict[str, int] = {}
    for number, piece in enumerate(pieces, start=1):
        if not piece:
            raise TokenizerError(f"{path}, line {number} is empty: expected one piece per line. Remove it.")
        if piece in line_of:
            raise TokenizerError(
                f"{path} holds the piece {piece!r} twice, in lines {line_of[piece]} and {number}. "
                "Each piece may stand once, because its line is its id; rename one, e.g. to [unused0]."
            )
        line_of[piece] = number
    return pieces


def build_wordpiece_backend(
    pieces: list[str],
    special: dict[str, str],
    *,
    lowercase: bool,
    strip_accents: bool | None = None,
    chinese_characters: bool = True,
) -> Backend:
    """BERT's tokenizer with the vocabulary `pieces`, whose indices are their ids.

    It cleans a text, separates Chinese characters, lower-cases and strips accents, splits, and applies
    WordPiece. `special` maps roles to tokens. Raises TokenizerError for a duplicate token.
    """
    vocabulary = {piece: number for number, piece in enumerate(pieces)}
    if len(vocabulary) < len(pieces):
        repeated = Counter(pieces).most_common(1)[0][0]
        raise TokenizerError(f"The piece {repeated!r} stands twice in the vocabulary. Each may stand once.")
    backend = Backend(models.WordPiece(vocabulary, unk_token=special["unk"], max_input_chars_per_word=100))
    backend.normalizer = normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=chinese_characters,
        strip_accents=strip_accents,
        lowercase=lowercase,
    )
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece(prefix="##")
    cls, sep = special["cls"], special["sep"]
    backend.post_processor = processors.TemplateProcessing(
        single=f"{cls}:0 $A:0 {sep}:0",
        pair=f"{cls}:0 $A:0 {sep}:0 $B:1 {sep}:1",
        special_tokens=[(cls, vocabulary[cls]), (sep, vocabulary[sep])],
    )
    backend.add_special_tokens(sorted(special.values(), key=vocabulary.__getitem__))
    return backend


def has_bert_rules(backend: Backend) -> bool:
    """Whether `build_wordpiece_backend` would, with the right flags, give the same ids by this vocabulary."""
    model, normalizer = backend.model, backend.normalizer
    return (
        isinstance(model, models.WordPiece)
        and (model.continuing_subword_prefix, model.max_input_chars_per_word) == ("##", 100)
        and isinstance(normalizer, normalizers.BertNormalizer)
        and normalizer.clean_text
        and isinstance(backend.pre_tokenizer, pre_tokenizers.BertPreTokenizer)
    )
