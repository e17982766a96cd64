"""Extends a vocabulary by words of a corpus, and records what is needed to remove them again.

In a WordPiece vocabulary each word becomes one more token; in a byte-level one it may also need the tokens
that are merged on the way to it (see word_choice). Existing tokens keep their ids, and removing the added
ones gives the old file, byte for byte.
"""

import json
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field
from tokenizers import normalizers

from bertsmith.argument_checks import check_arguments, instance_of, optional
from bertsmith.errors import TokenizerError
from bertsmith.progress import Progress
from bertsmith.text.tokens.tokenizer import Tokenizer, rebuild
from bertsmith.text.tokens.vocabulary import check_corpus
from bertsmith.text.tokens.vocabulary_report import VocabularyReport, measure_vocabulary
from bertsmith.text.tokens.word_cache import BertWords
from bertsmith.text.tokens.word_choice import ChosenWord, Merge, choose_byte_pair_words, choose_words
from bertsmith.text.tokens.word_counts import count_words
from bertsmith.validation import Strict, UserSettings

if TYPE_CHECKING:
    from bertsmith.text.corpus.corpus import Corpus

_SHORTEST, _LONGEST = 3, 40  # characters of a word: cells of tables and base64 are no words
_REPEATED = re.compile(r"(.)\1\1")  # "aaah", "xxx"


class ExtensionSettings(UserSettings):
    """Every choice of `bertsmith tokenizer extend`; the defaults live here and nowhere else.

    The embedding of a word that occurs ten times is trained on ten contexts; fewer teach it little.
    """

    words: int = Field(default=2_000, ge=1, le=100_000, description="Words to add, at most.")
    min_count: int = Field(default=10, ge=1, description="How often a word must occur to be added.")
    sample_bytes: int = Field(default=256 << 20, ge=1, description="Bytes of text to count, sampled by hash.")


class AddedWord(Strict):
    """A word, its former tokens, its occurrences, and the tokens it saved in all when it was chosen."""

    word: str
    pieces: tuple[str, ...]
    count: int
    saved: int


class Extension(Strict):
    """The content of extension.json: what was added to a vocabulary of `base_pieces` tokens.

    `pieces` are the new tokens in the order of their ids, `parts` the ids of the old tokens that each one
    consists of, `merges` the new merges of a byte-level vocabulary. The last `outside` of the old tokens were
    added tokens that the model's own vocabulary didn't have. `before` and `after` say how well the old and
    the new vocabulary fit the corpus. `earlier` is the extension that this one builds on.
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


@check_arguments(
    tokenizer=instance_of(Tokenizer), corpus=check_corpus, settings=optional(instance_of(ExtensionSettings))
)
def extend_tokenizer(
    tokenizer: Tokenizer,
    corpus: "Corpus",
    settings: ExtensionSettings | None = None,
    *,
    progress: Progress | None = None,
) -> tuple[Tokenizer, Extension]:
    """The tokenizer with those words of the train split that save most tokens, and what was added.

    Both reports are measured on the held-out split. The same tokenizer, corpus and settings give the same
    words. Raises TokenizerError if no word would save anything.
    """
    settings = settings or ExtensionSettings()
    _refuse_other_rules(tokenizer)
    normalizer = tokenizer.backend.normalizer
    if not isinstance(normalizer, normalizers.BertNormalizer):
        normalizer = normalizers.BertNormalizer(
            lowercase=tokenizer.normalise("A") == "a", strip_accents=tokenizer.normalise("\u00e9") == "e"
        )
    counts = count_words(
        corpus,
        sample_bytes=settings.sample_bytes,
        splitter=BertWords(normalizer),
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
    failed = [
        word
        for word, pieces in _encode_words(extended, [chosen.word for chosen in words]).items()
        if len(pieces) > 1
    ]
    if failed:  # by rules other than its vocabulary, such as a pre-tokenizer
        raise TokenizerError(
            f"{len(failed):,} of {len(words):,} added words, {failed[0]!r} among them, would still be in "
            "several pieces: the tokenizer's rules divide them. It can't be extended by whole words."
        )
    extension = Extension(
        base_pieces=tokenizer.vocab_size,
        base_sha256=tokenizer.sha256,
        sha256=extended.sha256,
        words=tuple(
            AddedWord(word=chosen.word, pieces=spelt[chosen.word], count=chosen.count, saved=chosen.saved)
            for chosen in words
        ),
        pieces=tuple(parts),
        parts=tuple(tuple(map(tokenizer.token_to_id, old)) for old in parts.values()),
        merges=tuple(merges),
        outside=outside,
        before=measure_vocabulary(tokenizer, corpus, progress=progress),
        after=measure_vocabulary(extended, corpus, progress=progress),
    )
    return extended, extension


def _refuse_other_rules(tokenizer: Tokenizer) -> None:
    if tokenizer.splitter is not None:
        raise TokenizerError(
            "A Japanese vocabulary can't be extended by words: MeCab's dictionary says what is a word. "
            "Extend another one, or go on without an extension."
        )
    if tokenizer.is_sentencepiece:
        name, needed = ("Unigram", "a score") if tokenizer.family == "unigram" else ("Gemma", "merges")
        raise TokenizerError(
            f"A {name} vocabulary can't be extended by words: each piece needs {needed} among the others'. "
            "Extend a WordPiece or byte-level one, or go on without an extension."
        )


def is_word(text: str, tokenizer: Tokenizer) -> bool:
    """Whether `text` is a word that can become a token: letters with their marks, of a usual length,
    unchanged by the normalizer, and not split by the pre-tokenizer, as RoBERTa's splits a word at a mark.
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
    """Each word's tokens as it is split inside a sentence."""
    encoded = tokenizer.encode_batch([_with_leading_blank(word, tokenizer) for word in words])
    return {
        word: tuple(tokenizer.pieces[number] for number in ids)
        for word, ids in zip(words, encoded, strict=True)
    }


def _with_leading_blank(word: str, tokenizer: Tokenizer) -> str:
    """The word as it stands inside a sentence: in a byte-level vocabulary the blank belongs to the token."""
    return tokenizer.blank_before_words + word


def _choose_words(
    tokenizer: Tokenizer, counts: Mapping[str, int], spelt: Mapping[str, tuple[str, ...]], most: int
) -> tuple[list[ChosenWord], dict[str, tuple[str, ...]], list[Merge]]:
    """The words, the new tokens with the old ones that each consists of, and the new merges."""
    if tokenizer.family == "byte-level":
        file_merges = json.loads(tokenizer.backend.to_str())["model"]["merges"]
        pairs = (merge.split(" ") if isinstance(merge, str) else merge for merge in file_merges)
        merges = [(left, right) for left, right in pairs]  # in the order in which they apply
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
    """The tokenizer as it was before the extension. Raises TokenizerError if it isn't the extended one."""
    if tokenizer.pieces[extension.base_pieces :] != extension.pieces:
        raise TokenizerError(
            f"The tokenizer's pieces from id {extension.base_pieces:,} on aren't the "
            f"{len(extension.pieces):,} that extension.json names. Use the folder that `bertsmith tokenizer "
            "extend` wrote, or one trained from it."
        )
    return remove_pieces(tokenizer, len(extension.pieces), len(extension.merges), extension.outside)


def add_pieces(tokenizer: Tokenizer, pieces: Sequence[str], merges: Iterable[Merge] = ()) -> Tokenizer:
    """A tokenizer in which `pieces` get the ids from V on, and `merges` come after all others.

    `merges` are for a byte-level vocabulary. Raises TokenizerError for a token that the vocabulary has
    already, and if an added token outside the model's vocabulary would be recognised in more texts once it is
    part of it.
    """
    _refuse_other_rules(tokenizer)
    content, vocabulary = json.loads(tokenizer.backend.to_str()), set(tokenizer.pieces)
    # Added tokens outside the model's vocabulary join it: the library numbers them after whatever is in it.
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
    """Whether the token, as part of the vocabulary, would also be recognised where the added token isn't: in
    texts that spell it otherwise, such as in capitals, or within a word.
    """
    spelling, model = token["content"], tokenizer.backend.model
    if tokenizer.family == "byte-level" and not model.ignore_merges:
        return False  # no merge leads to it
    splitter = tokenizer.backend.pre_tokenizer
    stays_whole = splitter is None or len(splitter.pre_tokenize_str(spelling)) == 1
    continues_word = tokenizer.family == "wordpiece" and spelling.startswith(model.continuing_subword_prefix)
    reachable = (stays_whole or continues_word) and tokenizer.normalise(spelling) == spelling
    return reachable and (not token["normalized"] or token["single_word"])


def remove_pieces(tokenizer: Tokenizer, count: int, merges: int = 0, outside: int = 0) -> Tokenizer:
    """The tokenizer without its last `count` tokens and its last `merges` merges: undoes `add_pieces`.

    `outside` is how many tokens of the former tokenizer were not in its model's vocabulary. Raises
    TokenizerError if one of the tokens is not the model's own, such as a special token that was added later.
    """
    content, base = json.loads(tokenizer.backend.to_str()), tokenizer.vocab_size - count
    # Not by id_to_token: it gives an added token in lower case if an uncased tokenizer searches it so.
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
