"""A vocabulary extended by the words of a corpus, and what has to be known to take them out again.

Of a WordPiece vocabulary each word is one piece more; of a byte-level one it may need pieces on the way to
it (see word_choice). Pieces that were there keep their ids, and the file without the added ones is the old
file to the byte.
"""

import json
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field
from tokenizers import normalizers

from bertsmith.door import door, kind, optional
from bertsmith.errors import TokenizerError
from bertsmith.progress import Progress
from bertsmith.text.tokens.tokenizer import Tokenizer, rebuild
from bertsmith.text.tokens.vocabulary import check_corpus
from bertsmith.text.tokens.vocabulary_report import VocabularyReport, vocabulary_report
from bertsmith.text.tokens.word_choice import ChosenWord, Merge, choose_byte_pair_words, choose_words
from bertsmith.text.tokens.word_counts import count_words
from bertsmith.validation import Strict, UserSettings

if TYPE_CHECKING:
    from bertsmith.text.corpus.corpus import Corpus

_SHORTEST, _LONGEST = 3, 40  # characters of a word: a table's cells and base64 are no words
_REPEATED = re.compile(r"(.)\1\1")  # "aaah", "xxx"


class ExtensionSettings(UserSettings):
    """Every choice of `bertsmith tokenizer extend`; the defaults live here and nowhere else.

    A word that occurs ten times gets a new row of embeddings from ten places: fewer teach it little.
    """

    words: int = Field(default=2_000, ge=1, le=100_000, description="Words to add, at most.")
    min_count: int = Field(default=10, ge=1, description="How often a word must occur to be added.")
    sample_bytes: int = Field(default=256 << 20, ge=1, description="Bytes of text to count, sampled by hash.")


class AddedWord(Strict):
    """A word, the pieces it was in, its occurrences, and the pieces it saved in all when it was chosen."""

    word: str
    pieces: tuple[str, ...]
    count: int
    saved: int


class Extension(Strict):
    """extension.json: what was added to a vocabulary of `base_pieces`, and how well both fit the corpus.

    `pieces` are the new ones in the order of their ids, `parts` the ids of the old pieces that each is made
    of; `merges` those of a byte-level vocabulary. The last `outside` of the old pieces were added tokens that
    the model's own vocabulary didn't have. `earlier` is an extension that this one came on top of.
    """

    format: Literal[1] = 1
    base_pieces: int
    base_sha256: str
    sha256: str
    words: tuple[AddedWord, ...]
    pieces: tuple[str, ...]
    parts: tuple[tuple[int, ...], ...]
    merges: tuple[Merge, ...] = ()
    outside: int = Field(default=0, ge=0)
    before: VocabularyReport
    after: VocabularyReport
    earlier: "Extension | None" = None


@door(tokenizer=kind(Tokenizer), corpus=check_corpus, settings=optional(kind(ExtensionSettings)))
def extend_tokenizer(
    tokenizer: Tokenizer,
    corpus: "Corpus",
    settings: ExtensionSettings | None = None,
    *,
    progress: Progress | None = None,
) -> tuple[Tokenizer, Extension]:
    """The tokenizer with the words of the train split that save most pieces; fit is that on held-out text.

    The same tokenizer, corpus and settings give the same words. Raises TokenizerError where no word would
    save anything.
    """
    settings = settings or ExtensionSettings()
    normalizer = tokenizer.backend.normalizer
    if not isinstance(normalizer, normalizers.BertNormalizer):
        normalizer = normalizers.BertNormalizer(
            lowercase=tokenizer.normalise("A") == "a", strip_accents=tokenizer.normalise("\u00e9") == "e"
        )
    counts = count_words(
        corpus,
        lowercase=tokenizer.lowercase,
        sample_bytes=settings.sample_bytes,
        normalizer=normalizer,
        progress=progress,
    ).words
    candidates = [
        word for word, count in counts.items() if count >= settings.min_count and is_word(word, tokenizer)
    ]
    spelt = _encode_words(tokenizer, candidates)
    words, parts, merges = _choose_words(tokenizer, counts, spelt, settings.words)
    if not words:
        raise TokenizerError(
            f"{corpus.path} has no word that occurs {settings.min_count:,} times and is in several pieces: "
            "the vocabulary fits it already. Lower --min-count, or go on without an extension."
        )
    outside = tokenizer.vocab_size - tokenizer.backend.get_vocab_size(with_added_tokens=False)
    extended = add_pieces(tokenizer, list(parts), merges)
    broken = [
        word
        for word, pieces in _encode_words(extended, [each.word for each in words]).items()
        if len(pieces) > 1
    ]
    if broken:  # by rules that the tokenizer has beside its vocabulary
        raise TokenizerError(
            f"{len(broken):,} of {len(words):,} added words, {broken[0]!r} among them, would still be in "
            "several pieces: the tokenizer's rules divide them. It can't be extended by whole words."
        )
    extension = Extension(
        base_pieces=tokenizer.vocab_size,
        base_sha256=tokenizer.sha256,
        sha256=extended.sha256,
        words=tuple(
            AddedWord(word=each.word, pieces=spelt[each.word], count=each.count, saved=each.saved)
            for each in words
        ),
        pieces=tuple(parts),
        parts=tuple(tuple(map(tokenizer.token_to_id, old)) for old in parts.values()),
        merges=tuple(merges),
        outside=outside,
        before=vocabulary_report(tokenizer, corpus, progress=progress),
        after=vocabulary_report(extended, corpus, progress=progress),
    )
    return extended, extension


def is_word(text: str, tokenizer: Tokenizer) -> bool:
    """Letters alone, with their marks, of a usual number; spelt as the tokenizer would spell it, and whole by
    its rules: RoBERTa's divide a word at a mark.
    """
    splitter = tokenizer.backend.pre_tokenizer
    return (
        _SHORTEST <= len(text) <= _LONGEST
        and all(unicodedata.category(letter)[0] in "LM" for letter in text)
        and not _REPEATED.search(text)
        and tokenizer.normalise(text) == text
        and (splitter is None or len(splitter.pre_tokenize_str(_with_leading_blank(text, tokenizer))) == 1)
    )


def _encode_words(tokenizer: Tokenizer, words: list[str]) -> dict[str, tuple[str, ...]]:
    """Each word's pieces inside a sentence."""
    encoded = tokenizer.encode_batch([_with_leading_blank(word, tokenizer) for word in words])
    return {
        word: tuple(tokenizer.pieces[number] for number in ids)
        for word, ids in zip(words, encoded, strict=True)
    }


def _with_leading_blank(word: str, tokenizer: Tokenizer) -> str:
    """Byte-level pieces have the blank before a word."""
    return f" {word}" if tokenizer.family == "byte-level" else word


def _choose_words(
    tokenizer: Tokenizer, counts: Mapping[str, int], spelt: Mapping[str, tuple[str, ...]], most: int
) -> tuple[list[ChosenWord], dict[str, tuple[str, ...]], list[Merge]]:
    """Words, the new pieces with the old ones each is made of, and the merges."""
    if tokenizer.family == "byte-level":
        stated = json.loads(tokenizer.backend.to_str())["model"]["merges"]
        pairs = (merge.split(" ") if isinstance(merge, str) else merge for merge in stated)
        merges = [(left, right) for left, right in pairs]  # the first that is done in front
        added = choose_byte_pair_words(counts, spelt, frozenset(tokenizer.pieces), merges, most)
        return added.words, added.parts, added.merges
    model = tokenizer.backend.model
    words = choose_words(
        counts,
        spelt,
        frozenset(tokenizer.pieces),
        most,
        prefix=model.continuing_subword_prefix,
        longest=model.max_input_chars_per_word,
    )
    return words, {word.word: spelt[word.word] for word in words}, []


def remove_extension(tokenizer: Tokenizer, extension: Extension) -> Tokenizer:
    """The tokenizer as it was. Raises TokenizerError when it isn't the one that was extended."""
    if tokenizer.pieces[extension.base_pieces :] != extension.pieces:
        raise TokenizerError(
            f"The tokenizer's pieces from id {extension.base_pieces:,} on aren't the "
            f"{len(extension.pieces):,} that extension.json names. Use the folder that `bertsmith tokenizer "
            "extend` wrote, or one trained from it."
        )
    return remove_pieces(tokenizer, len(extension.pieces), len(extension.merges), extension.outside)


def add_pieces(tokenizer: Tokenizer, pieces: Sequence[str], merges: Iterable[Merge] = ()) -> Tokenizer:
    """`pieces` get the ids from V on; `merges` of a byte-level vocabulary come behind all others.

    Raises TokenizerError for a piece that is there already, and where an added token would be read elsewhere.
    """
    content, vocabulary = json.loads(tokenizer.backend.to_str()), set(tokenizer.pieces)
    # Added tokens outside the model's vocabulary join it: the library numbers them behind whatever is in it.
    for token in content["added_tokens"]:
        if token["content"] not in content["model"]["vocab"] and _would_be_read(token, tokenizer):
            raise TokenizerError(
                f"The added token {token['content']!r} is read only where a text spells it in these letters, "
                "or where it stands alone. As a piece of the vocabulary it would be read elsewhere too. The "
                "vocabulary can't be extended."
            )
        content["model"]["vocab"].setdefault(token["content"], token["id"])
    for number, piece in enumerate(pieces, start=tokenizer.vocab_size):
        if piece in vocabulary:
            raise TokenizerError(f"The piece {piece!r} is in the vocabulary already. Each may stand once.")
        vocabulary.add(piece)
        content["model"]["vocab"][piece] = number
    if tokenizer.family == "byte-level":
        content["model"]["merges"] += [list(merge) for merge in merges]
    return rebuild(tokenizer, content)


def _would_be_read(token: dict[str, Any], tokenizer: Tokenizer) -> bool:
    """True where the vocabulary would find the token in a text that spells it otherwise, in capitals say, or
    within a word.
    """
    spelling, model = token["content"], tokenizer.backend.model
    if tokenizer.family == "byte-level" and not model.ignore_merges:
        return False  # no merge leads to it
    splitter = tokenizer.backend.pre_tokenizer
    whole = splitter is None or len(splitter.pre_tokenize_str(spelling)) == 1
    within = tokenizer.family == "wordpiece" and spelling.startswith(model.continuing_subword_prefix)
    found = (whole or within) and tokenizer.normalise(spelling) == spelling
    return found and (not token["normalized"] or token["single_word"])


def remove_pieces(tokenizer: Tokenizer, count: int, merges: int = 0, outside: int = 0) -> Tokenizer:
    """Without the last `count` pieces and the last `merges` merges: what `add_pieces` added to a tokenizer
    with so many pieces `outside` its model.

    Raises TokenizerError when one of these is not the model's own, as a special token that was added later.
    """
    content, base = json.loads(tokenizer.backend.to_str()), tokenizer.vocab_size - count
    # id_to_token has small letters for an added token that an uncased tokenizer compares in them
    for number, piece in enumerate(tokenizer.pieces[base:], start=base):
        if content["model"]["vocab"].pop(piece, None) != number:
            raise TokenizerError(
                f"The piece {piece!r} was added to the tokenizer by other means, after the words that are "
                "to be removed. Remove it first."
            )
    for piece in tokenizer.pieces[base - outside : base]:
        content["model"]["vocab"].pop(piece, None)
    if merges:
        del content["model"]["merges"][-merges:]
    return rebuild(tokenizer, content)
