"""A vocabulary extended by the words of a corpus, and what has to be known to take them out again.

Of a WordPiece vocabulary each word is one piece more; of a byte-level one it may need pieces on the way to it
(see bertsmith.text.tokens.byte_pair_choice). Pieces that were there keep their ids.
"""

import re
import unicodedata
from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

from pydantic import Field
from tokenizers import normalizers

from bertsmith.door import door, kind, optional
from bertsmith.errors import TokenizerError
from bertsmith.progress import Progress
from bertsmith.text.tokens.added_pieces import Merge, merges_of, outside_model, with_pieces, without_pieces
from bertsmith.text.tokens.byte_pair_choice import choose_byte_pair_words
from bertsmith.text.tokens.tokenizer import Tokenizer
from bertsmith.text.tokens.vocabulary import corpus_folder
from bertsmith.text.tokens.vocabulary_report import VocabularyReport, vocabulary_report
from bertsmith.text.tokens.word_choice import ChosenWord, choose_words
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


@door(tokenizer=kind(Tokenizer), corpus=corpus_folder, settings=optional(kind(ExtensionSettings)))
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
    spelt = _spelt(tokenizer, candidates)
    words, parts, merges = _chosen(tokenizer, counts, spelt, settings.words)
    if not words:
        raise TokenizerError(
            f"{corpus.path} has no word that occurs {settings.min_count:,} times and is in several pieces: "
            "the vocabulary fits it already. Lower --min-count, or go on without an extension."
        )
    extended = with_pieces(tokenizer, list(parts), merges)
    _require_whole(extended, words)
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
        outside=outside_model(tokenizer),
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
        and (splitter is None or len(splitter.pre_tokenize_str(_in_sentence(text, tokenizer))) == 1)
    )


def without_extension(tokenizer: Tokenizer, extension: Extension) -> Tokenizer:
    """The tokenizer as it was. Raises TokenizerError when it isn't the one that was extended."""
    if tokenizer.pieces[extension.base_pieces :] != extension.pieces:
        raise TokenizerError(
            f"The tokenizer's pieces from id {extension.base_pieces:,} on aren't the "
            f"{len(extension.pieces):,} that extension.json names. Use the folder that `bertsmith tokenizer "
            "extend` wrote, or one trained from it."
        )
    return without_pieces(tokenizer, len(extension.pieces), len(extension.merges), extension.outside)


def _spelt(tokenizer: Tokenizer, words: list[str]) -> dict[str, tuple[str, ...]]:
    """Each word's pieces inside a sentence."""
    encoded = tokenizer.encode_batch([_in_sentence(word, tokenizer) for word in words])
    return {
        word: tuple(tokenizer.pieces[number] for number in ids)
        for word, ids in zip(words, encoded, strict=True)
    }


def _in_sentence(word: str, tokenizer: Tokenizer) -> str:
    """Byte-level pieces have the blank before a word."""
    return f" {word}" if tokenizer.family == "byte-level" else word


def _chosen(
    tokenizer: Tokenizer, counts: Mapping[str, int], spelt: Mapping[str, tuple[str, ...]], most: int
) -> tuple[list[ChosenWord], dict[str, tuple[str, ...]], list[Merge]]:
    """Words, the new pieces with the old ones each is made of, and the merges."""
    if tokenizer.family == "byte-level":
        merges = merges_of(tokenizer)
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
    return words, {each.word: spelt[each.word] for each in words}, []


def _require_whole(tokenizer: Tokenizer, words: list[ChosenWord]) -> None:
    """Each word must now be one piece, whatever rules the tokenizer has beside its vocabulary."""
    spelt = _spelt(tokenizer, [each.word for each in words])
    broken = [word for word, pieces in spelt.items() if len(pieces) > 1]
    if broken:
        raise TokenizerError(
            f"{len(broken):,} of {len(words):,} added words, {broken[0]!r} among them, would still be in "
            "several pieces: the tokenizer's rules divide them. It can't be extended by whole words."
        )
