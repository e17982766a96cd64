"""RoBERTa's byte-level BPE: no text is unknown, and the space before a word is part of its token."""

from pathlib import Path

from tokenizers import AddedToken, decoders, models, pre_tokenizers, processors
from tokenizers import Tokenizer as Backend

from bertsmith.errors import TokenizerError
from bertsmith.text.tokens.tokenizer_json import read_object, read_text, require_pieces

#: The 256 characters that stand for the 256 bytes in a byte-level vocabulary.
BYTE_SYMBOLS = frozenset(pre_tokenizers.ByteLevel.alphabet())
#: Symbols of bytes that never occur in UTF-8 (RFC 3629, section 1); GPT-NeoX and ModernBERT lack them.
_NEVER_IN_TEXT = frozenset(map(chr, (0xC0, 0xC1, *range(0xF5, 0x100))))


def read_byte_pairs(path: Path) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """(vocabulary, merges) from RoBERTa's files: vocab.json (token → id) at `path`, and merges.txt beside it.

    Raises TokenizerError for an id that is no integer, and for a line of merges.txt that is not a pair.
    """
    vocabulary = read_object(path, "a byte-level vocabulary (piece → id)")
    require_pieces(len(vocabulary), path)
    if not all(type(number) is int for number in vocabulary.values()):
        raise TokenizerError(f"{path}: every piece needs a whole number as its id.")
    path = path.with_name("merges.txt")
    lines = read_text(path, "the merges of a byte-level vocabulary").rstrip("\r\n").split("\n")
    merges: list[tuple[str, str]] = []
    for number, line in enumerate(lines, start=1):
        if line.startswith("#version"):
            continue
        parts = line.removesuffix("\r").split(" ")
        if len(parts) != 2:
            raise TokenizerError(
                f"{path}, line {number}: expected two symbols and one space between them, found {line!r}."
            )
        merges.append((parts[0], parts[1]))
    return vocabulary, merges


def build_byte_level_backend(
    vocabulary: dict[str, int],
    merges: list[tuple[str, str]],
    special: dict[str, str],
    *,
    add_prefix_space: bool,
    trim_offsets: bool = True,
) -> Backend:
    """RoBERTa's tokenizer. `special` maps roles to tokens. With `add_prefix_space` a text's first word is
    read as if a space stood before it.

    Raises TokenizerError for a merge whose token the vocabulary lacks.
    """
    try:
        model = models.BPE(vocabulary, merges, continuing_subword_prefix="", end_of_word_suffix="")
    except Exception as error:  # the library raises nothing narrower
        raise TokenizerError(f"vocab.json and merges.txt do not fit each other: {error}.") from error
    backend = Backend(model)
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=add_prefix_space)
    backend.decoder = decoders.ByteLevel()
    backend.post_processor = build_roberta_processor(backend, special, trim_offsets=trim_offsets)
    add_special_tokens(backend, special)
    return backend


def build_roberta_processor(
    backend: Backend, special: dict[str, str], *, trim_offsets: bool
) -> processors.RobertaProcessing:
    """RoBERTa's post-processor: adds special tokens; with `trim_offsets` offsets leave out blanks."""
    vocabulary, sep, cls = backend.get_vocab(), special["sep"], special["cls"]
    return processors.RobertaProcessing(
        (sep, vocabulary[sep]),
        (cls, vocabulary[cls]),
        trim_offsets=trim_offsets,
        add_prefix_space=backend.pre_tokenizer.add_prefix_space,
    )


def has_roberta_rules(backend: Backend) -> bool:
    """Whether `build_byte_level_backend` would give the same ids with this vocabulary and these merges."""
    model, pre_tokenizer = backend.model, backend.pre_tokenizer
    return (
        isinstance(model, models.BPE)
        and not model.ignore_merges
        and backend.normalizer is None
        and isinstance(pre_tokenizer, pre_tokenizers.ByteLevel)
        and pre_tokenizer.use_regex
    )


def add_special_tokens(backend: Backend, special: dict[str, str]) -> None:
    """Adds the special tokens. The mask absorbs the space before it, since RoBERTa predicts "Ġword" there."""
    mask = AddedToken(special["mask"], lstrip=True, special=True, normalized=False)
    tokens = [mask if token == special["mask"] else token for token in set(special.values())]
    backend.add_special_tokens(sorted(tokens, key=lambda token: backend.token_to_id(str(token)) or 0))


def require_byte_symbols(vocabulary: dict[str, int], path: Path) -> None:
    """Raises TokenizerError if a byte of UTF-8 has no symbol: it would silently vanish from texts."""
    needed = BYTE_SYMBOLS - _NEVER_IN_TEXT
    missing = sorted(needed - vocabulary.keys())
    if missing:
        raise TokenizerError(
            f"{path}: {len(missing)} of the {len(needed)} symbols for the bytes of texts are missing, "
            f"{missing[0]!r} among them. A byte-level vocabulary needs all of them."
        )
