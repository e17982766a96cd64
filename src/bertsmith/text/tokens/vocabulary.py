"""Learns a WordPiece or a Unigram vocabulary from a corpus.

WordPiece's trainer is that of the `tokenizers` library: it merges the most frequent pair, as in byte-pair
encoding, and writes the tokens with "##" (Google never published the trainer of the original, which merged by
likelihood). Two things are added here: the result is the same in every run, where the library breaks ties by
the order of a hash table; and memory is bounded, however much text there is. Unigram's trainer is in
unigram_training.py.
"""

import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from pydantic import Field, model_validator
from tokenizers import Tokenizer as Backend
from tokenizers import models, pre_tokenizers, trainers

from bertsmith.argument_checks import (
    any_of,
    check_arguments,
    check_flag,
    check_function,
    check_path,
    describe_value,
    instance_of,
    optional,
)
from bertsmith.errors import InputError, TokenizerError
from bertsmith.files import atomic_folder, is_empty_folder, write_json
from bertsmith.progress import Progress
from bertsmith.text.tokens.tokenizer import Tokenizer
from bertsmith.text.tokens.unigram import BYTE_PIECES, MARK, build_normalizer, build_unigram_backend
from bertsmith.text.tokens.unigram_training import Units, UnitSplitter, learn_unigram
from bertsmith.text.tokens.vocabulary_report import measure_vocabulary
from bertsmith.text.tokens.word_counts import CharacterCounts, WordCounts, count_words
from bertsmith.validation import UserSettings

if TYPE_CHECKING:
    from bertsmith.text.corpus.corpus import Corpus

#: In BERT's order; their ids are 0 to 4.
SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
_ROLES = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
#: Characters of "[MASK]" and "<0x41>": with so many times the lowest score, a text that has them is spelt by
#: other pieces.
_SPELT = 6

#: The most frequent words that merging looks at: about 1 kB each while it runs. 93 MB of Wikipedia have
#: 304,000; leaving out a third of those gives 0.04 % more tokens per word.
MAX_WORDS = 200_000
MAX_WORD_LENGTH = 100  # WordPiece calls longer words unknown
CHARACTERS_AT_ONCE = 1 << 16
_ALWAYS_KEPT = 1_000  # characters: so few cost little, and each one that is kept avoids unknown words
_SETTINGS = "training.json"


class VocabularySettings(UserSettings):
    """Every choice of `bertsmith tokenizer train`; the defaults live here and nowhere else.

    With more text than the default `sample_bytes` the vocabulary hardly gets better: from 46 MB to 91 MB of
    Wikipedia the tokens per word went from 1.1090 to 1.1081 (9 MB: 1.1132). 256 MiB leave room for corpora of
    several domains.
    """

    kind: Literal["wordpiece", "unigram"] = Field(
        default="wordpiece",
        description="wordpiece is BERT's; unigram is SentencePiece's, for scripts without blanks too.",
    )
    vocab_size: int = Field(
        default=30_522, ge=8, le=1_000_000, description="Pieces, special tokens included."
    )
    lowercase: bool | None = Field(
        default=None,
        description="Uncased: capitals are dropped, and by wordpiece accents too. wordpiece does so unless "
        "told otherwise.",
    )
    sample_bytes: int = Field(
        default=256 << 20, ge=1, description="Bytes of text to learn from, sampled by hash."
    )
    min_frequency: int = Field(
        default=2,
        ge=1,
        description="How often what becomes a piece must occur: a pair, or by unigram a text.",
    )
    alphabet_coverage: float = Field(
        default=0.9995,
        gt=0,
        le=1,
        description="Share of the text's characters, repeats counted, that the kept ones cover; the 1,000 "
        "most frequent are kept in any case. Words with others are [UNK]; by unigram only these characters.",
    )
    limit_alphabet: int | None = Field(
        default=None,
        ge=1,
        description="Different characters to keep, at most; by default as many as it takes.",
    )
    byte_fallback: bool = Field(
        default=False,
        description="By unigram: spell other characters by pieces of one byte each, 256 of the vocabulary.",
    )
    split_digits: bool = Field(default=False, description="By unigram: each digit is a piece of its own.")
    seed: int = Field(default=0, ge=0, lt=2**32, description="Another seed draws another sample.")

    @model_validator(mode="after")
    def _check_kind(self) -> "VocabularySettings":
        for name in ("byte_fallback", "split_digits"):
            if getattr(self, name) and self.kind != "unigram":
                raise ValueError(f"{name} is for kind unigram: choose that, or leave {name} out")
        return self

    @property
    def uncased(self) -> bool:
        """Whether texts are lowercased: as `lowercase` says, else for WordPiece alone."""
        return self.kind == "wordpiece" if self.lowercase is None else self.lowercase


def check_corpus(value: Any, name: str) -> None:
    """For `check_arguments`: raises InputError unless `value`, the argument `name`, is an opened corpus."""
    if not hasattr(value, "documents"):
        raise InputError(f"{name} must be a Corpus, as Corpus.open gives it, found {describe_value(value)}.")


@check_arguments(
    corpus=any_of(check_corpus, check_path),
    out=check_path,
    settings=optional(instance_of(VocabularySettings)),
    overwrite=check_flag,
    progress=optional(check_function),
)
def train_tokenizer(
    corpus: "Corpus | Path | str",
    out: Path | str,
    settings: VocabularySettings | None = None,
    *,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> Tokenizer:
    """Learns a vocabulary from the train split and writes the tokenizer's folder with its `report.json`.

    `corpus` may be a path. The same corpus and settings give the same files, byte for byte. A corpus too
    small for `vocab_size` gives fewer tokens, which the report says. With `overwrite` a folder that this
    function wrote is replaced, but nothing else. Raises TokenizerError if the train split has no words or
    `vocab_size` has no room for the alphabet, InputError if `out` exists.
    """
    from bertsmith.text.corpus.corpus import (
        open_corpus,
    )  # imported here, because --help reads the settings above

    corpus, settings = open_corpus(corpus), settings or VocabularySettings()
    out = Path(out)
    if overwrite:  # never replace the corpus, nor a folder that isn't a tokenizer's
        if corpus.path.resolve().is_relative_to(out.resolve()):
            raise InputError(f"{out} holds the corpus that is read. Choose another place for the tokenizer.")
        if out.exists() and not is_empty_folder(out) and not (out / _SETTINGS).is_file():
            raise InputError(
                f"{out} is no tokenizer's folder (it has no {_SETTINGS}), and is not replaced. Choose "
                "another place for the tokenizer."
            )
    with atomic_folder(out, overwrite=overwrite) as folder:
        splitter = None
        if settings.kind == "unigram":
            normalizer = build_normalizer(lowercase=settings.uncased)
            splitter = UnitSplitter(normalizer, split_digits=settings.split_digits)
        counts = count_words(
            corpus,
            lowercase=settings.uncased,
            sample_bytes=settings.sample_bytes,
            seed=settings.seed,
            splitter=splitter,
            progress=progress,
        )
        if settings.kind == "unigram":
            scored = learn_scored_pieces(counts, settings, progress=progress)
            backend = build_unigram_backend(scored, _ROLES, lowercase=settings.uncased)
            tokenizer = Tokenizer(backend, _ROLES)
        else:
            pieces = learn_pieces(counts, settings, progress=progress)
            tokenizer = Tokenizer.from_pieces(pieces, lowercase=settings.uncased)
        report = measure_vocabulary(
            tokenizer,
            corpus,
            asked_for=settings.vocab_size,
            seen=counts.characters.occurrences,
            progress=progress,
        )
        tokenizer.save(folder)
        write_json(folder / "report.json", report.model_dump(mode="json"))
        write_json(folder / _SETTINGS, settings.model_dump(mode="json"))
    return tokenizer


def learn_pieces(
    counts: WordCounts, settings: VocabularySettings, *, progress: Progress | None = None
) -> list[str]:
    """The vocabulary in the order of its ids: special tokens, characters, then tokens as they were merged.

    Raises TokenizerError if there are no words, or no room for the characters.
    """
    alphabet = _choose_alphabet(counts.characters, settings)
    alphabet += [f"##{character}" for character in alphabet if character in counts.characters.inside]
    initial = [*SPECIAL_TOKENS, *alphabet]
    _require_room(alphabet, len(SPECIAL_TOKENS), settings)
    # The library numbers "##x" in the order of a hash table and breaks ties by these numbers. Passed as
    # special tokens, which come first and in order, they have the same numbers in every run.
    trainer = trainers.WordPieceTrainer(
        vocab_size=settings.vocab_size,
        min_frequency=settings.min_frequency,
        special_tokens=initial,
        show_progress=False,
    )
    backend = Backend(models.WordPiece(unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.train_from_iterator(_repeat_words(counts.words, set(alphabet), progress), trainer)
    ids = backend.get_vocab()
    return sorted(ids, key=ids.__getitem__)


def learn_scored_pieces(
    counts: WordCounts, settings: VocabularySettings, *, progress: Progress | None = None
) -> list[tuple[str, float]]:
    """The Unigram vocabulary in the order of its ids, with the scores: special tokens, with `byte_fallback`
    those of bytes, then the likeliest pieces first.

    `counts` are those of units, as `UnitSplitter` makes them. Raises as `learn_pieces` does.
    """
    alphabet = _choose_alphabet(counts.characters, settings)
    others = [*SPECIAL_TOKENS, *(BYTE_PIECES if settings.byte_fallback else ())]
    _require_room(alphabet, len(others), settings)
    units = Units.of(counts.words, alphabet)
    size = settings.vocab_size - len(others)
    learned = learn_unigram(units, alphabet, size, settings.min_frequency, progress)
    lowest = min(score for _, score in learned)
    return [*((piece, _SPELT * lowest) for piece in others), *learned]


def _require_room(alphabet: Sequence[str], others: int, settings: VocabularySettings) -> None:
    """Raises TokenizerError if there is no alphabet, or no room for it beside `others` pieces."""
    if not set(alphabet) - {MARK}:
        raise TokenizerError("The train split holds no words. Build the corpus from a source with text.")
    if len(alphabet) + others > settings.vocab_size:
        what = "special tokens" if others == len(SPECIAL_TOKENS) else "special tokens and bytes"
        raise TokenizerError(
            f"A vocabulary of {settings.vocab_size:,} pieces has no room for {others} {what} and the "
            f"{len(alphabet):,} pieces of the alphabet. Ask for more than {len(alphabet) + others:,} "
            "(--vocab-size), or keep fewer characters (--limit-alphabet)."
        )


def _choose_alphabet(characters: CharacterCounts, settings: VocabularySettings) -> list[str]:
    """The most frequent characters, sorted.

    As many as cover `alphabet_coverage` of the text (some thousand of Chinese), at least the 1,000 most
    frequent (so all of an alphabet's hundred), and at most `limit_alphabet`.
    """
    occurrences = characters.occurrences
    ranked = sorted(occurrences, key=lambda character: (-occurrences[character], character))
    cumulative = np.cumsum([occurrences[character] for character in ranked])
    needed = int(np.searchsorted(cumulative, settings.alphabet_coverage * cumulative[-1:].sum())) + 1
    limit = min(settings.limit_alphabet or len(ranked), max(needed, _ALWAYS_KEPT))
    return sorted(ranked[:limit])


def _repeat_words(words: Counter[str], alphabet: set[str], progress: Progress | None) -> Iterator[str]:
    """Text in which each of the MAX_WORDS most frequent words is repeated as often as it was counted, since
    the trainer takes only text.

    Words with characters outside the alphabet are left out: as a whole they will be [UNK].
    """
    # Ties are broken by hash: in alphabetical order, those kept would all begin with the same letters.
    ranked = sorted(words, key=lambda word: (-words[word], zlib.crc32(word.encode()), word))
    frequent = ranked[:MAX_WORDS]
    batch: list[str] = []
    size = 0
    for number, word in enumerate(frequent):
        if len(word) > MAX_WORD_LENGTH or not alphabet.issuperset(word):
            continue
        count, repeats = words[word], max(1, CHARACTERS_AT_ONCE // (len(word) + 1))
        for written in range(0, count, repeats):
            batch.append(f"{word} " * min(repeats, count - written))
            size += len(batch[-1])
            if size >= CHARACTERS_AT_ONCE:
                yield "".join(batch)
                batch, size = [], 0
                if progress is not None:
                    progress(number, len(frequent), "distinct words")
    yield "".join(batch)
    if progress is not None:
        progress(len(frequent), len(frequent), "distinct words")
