"""Measures how well a vocabulary fits a corpus: how far words are split, and what is lost as unknown."""

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

from bertsmith.errors import CorpusError
from bertsmith.progress import Progress
from bertsmith.text.corpus.manifest import Split
from bertsmith.text.tokens.tokenizer import Tokenizer
from bertsmith.text.tokens.unigram import BYTE_PIECE
from bertsmith.text.words import (
    ANY_SCRIPT,
    DIGITS,
    IN_ONE_RUN,
    MARKS,
    SCRIPTS_WITHOUT_BLANKS,
    SYMBOLS,
    WORD,
    script_of,
)
from bertsmith.validation import Strict

if TYPE_CHECKING:
    from bertsmith.text.corpus.corpus import Corpus

MAX_SENTENCES = 100_000
SENTENCES_AT_ONCE = 4_096
LENGTHS = (128, 512)
LISTED = 20
LISTED_OF_SCRIPT = 5
EXAMPLES = 5
_RUN = re.compile(f"[{IN_ONE_RUN}][{IN_ONE_RUN}{MARKS}]*|[^{IN_ONE_RUN}]+")


class SplitWord(Strict):
    """A word, its tokens, and its occurrences in the text measured."""

    word: str
    pieces: tuple[str, ...]
    count: int


class ScriptFit(Strict):
    """Figures on the words of one script, with its `share` of the characters of all words.

    Where a script has no blanks between words, its `words` are the runs of its characters, and
    `pieces_per_word` and `costliest` say nothing: compare `characters_per_piece`.
    """

    script: str
    share: float
    words: int
    pieces_per_word: float | None
    characters_per_piece: float
    unknown_words: float
    costliest: tuple[SplitWord, ...]


class SourceFit(Strict):
    """Figures on the words of one SOURCE that the corpus was built of, such as a folder for each language,
    with its `share` of the characters of all words. `pieces_per_word` is None where most of its characters
    stand in runs without blanks.
    """

    source: str
    share: float
    pieces_per_word: float | None
    characters_per_piece: float
    unknown_words: float


class VocabularyReport(Strict):
    """Figures on the words (runs of letters, digits and _, with their marks) and the sentences of one split
    of a corpus.

    `pieces_per_word` is also called fertility. `whole_words` is the share of words that are one token. Both
    are None if all text is in scripts without blanks between words. `unknown_words` and `unknown_tokens` are
    the shares of words with an [UNK], or spelt by bytes, and of tokens that are [UNK]. `scripts` has the
    same for each script, `sources` for each of the `LISTED` largest sources if there are several, the most
    used first.
    `sentences_within` maps a length in tokens to the share of sentences that fit. `most_broken` are the words
    with most tokens; `costliest` those whose splitting adds most tokens to the text: candidates for tokens of
    their own. `dropped` are the most frequent of the `dropped_characters` distinct characters of the training
    text that got no token; together they are the `dropped_share` of all its characters.
    """

    vocab_size: int
    asked_for: int
    alphabet: int
    lowercase: bool
    tokenizer_sha256: str
    split: Split
    sentences: int
    words: int
    tokens: int
    pieces_per_word: float | None
    whole_words: float | None
    unknown_words: float
    unknown_tokens: float
    tokens_per_character: float
    tokens_per_sentence: float
    sentences_within: dict[int, float]
    most_broken: tuple[SplitWord, ...]
    costliest: tuple[SplitWord, ...]
    unknown: tuple[SplitWord, ...]
    examples: tuple[tuple[str, ...], ...]
    dropped_characters: int = 0
    dropped_share: float = 0.0
    dropped: tuple[str, ...] = ()
    scripts: tuple[ScriptFit, ...] = ()
    sources: tuple[SourceFit, ...] = ()


def measure_vocabulary(
    tokenizer: Tokenizer,
    corpus: "Corpus",
    *,
    asked_for: int | None = None,
    seen: Mapping[str, int] | None = None,
    progress: Progress | None = None,
) -> VocabularyReport:
    """Measures `tokenizer` on the held-out split, or on the train split of a corpus without one.

    Of a large split at most `MAX_SENTENCES` sentences, evenly spread, are read. `asked_for` is the vocabulary
    size that training was asked for, `seen` maps each character of the training text to its occurrences.
    Raises CorpusError if the corpus has no words.
    """
    split: Split = "heldout" if corpus.manifest.splits["heldout"].counts.sentences else "train"
    tally = Tally(tokenizer)
    step = max(1, -(-corpus.manifest.splits[split].counts.sentences // MAX_SENTENCES))
    origins = {entry.name: entry.origin for entry in corpus.manifest.sources}
    all_sentences = (
        (origins[document.source], sentence)
        for document in corpus.documents(split)
        for sentence in document.sentences
    )
    sentences = islice(all_sentences, 0, None, step)
    while batch := list(islice(sentences, SENTENCES_AT_ONCE)):
        tally.add(batch)
        if progress is not None:
            progress(len(tally.lengths), None, "sentences measured")
    if not any(tally.counts_by_source.values()):
        raise CorpusError(f"{corpus.path} holds no words to measure the vocabulary on.")
    seen = seen or {}
    dropped = sorted(seen.keys() - set(tokenizer.pieces), key=lambda character: (-seen[character], character))
    return VocabularyReport(
        vocab_size=tokenizer.vocab_size,
        asked_for=asked_for or tokenizer.vocab_size,
        alphabet=sum(len(piece) == 1 for piece in tokenizer.pieces),
        lowercase=tokenizer.normalise("A") == "a",
        tokenizer_sha256=tokenizer.sha256,
        split=split,
        **tally.sentence_figures(),
        **tally.word_figures(),
        dropped_characters=len(dropped),
        dropped_share=sum(seen[character] for character in dropped) / max(sum(seen.values()), 1),
        dropped=tuple(dropped[:LISTED]),
    )


class Tally:
    """Running totals over the sentences measured so far."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.lengths: list[int] = []
        self.unknown_tokens = 0
        self.characters = 0
        self.counts_by_source: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self.examples: list[tuple[str, ...]] = []

    def add(self, sentences_with_sources: list[tuple[str, str]]) -> None:
        """Tokenizes some more sentences, each behind the name of its source, and adds them to the totals."""
        sentences = [sentence for _, sentence in sentences_with_sources]
        ids = self.tokenizer.encode_batch(sentences)
        self.lengths.extend(map(len, ids))
        self.unknown_tokens += sum(sentence.count(self.tokenizer.unk_id) for sentence in ids)
        self.characters += sum(map(len, sentences))
        for source, sentence in sentences_with_sources:
            words = WORD.findall(sentence)
            self.counts_by_source[source].update(
                words if sentence.isascii() else chain.from_iterable(map(_RUN.findall, words))
            )
        fitting = [sentence for sentence in sentences if 20 <= len(sentence) <= 160]
        spread = fitting[:: max(1, len(fitting) // EXAMPLES)]
        for sentence in spread[: EXAMPLES - len(self.examples)]:
            self.examples.append(tuple(self.tokenizer.encode(sentence).tokens))

    def sentence_figures(self) -> dict[str, Any]:
        """The report's fields about sentences and tokens, by name."""
        sentences, tokens = len(self.lengths), sum(self.lengths)
        return {
            "sentences": sentences,
            "tokens": tokens,
            "unknown_tokens": self.unknown_tokens / max(tokens, 1),
            "tokens_per_character": tokens / max(self.characters, 1),
            "tokens_per_sentence": tokens / sentences,
            "sentences_within": {
                limit: sum(length <= limit for length in self.lengths) / sentences for limit in LENGTHS
            },
            "examples": tuple(self.examples),
        }

    def word_figures(self) -> dict[str, Any]:
        """The report's fields about words, by name."""
        # A byte-level vocabulary has other tokens for a word inside a sentence: with the space before it.
        prefix = self.tokenizer.blank_before_words
        pieces = self.tokenizer.pieces
        counts = Counter[str]()
        for counts_of_source in self.counts_by_source.values():
            counts.update(counts_of_source)
        encoded = self.tokenizer.encode_batch([prefix + word for word in counts])
        words = [
            SplitWord(word=word, pieces=tuple(pieces[token_id] for token_id in ids), count=count)
            for (word, count), ids in zip(counts.items(), encoded, strict=True)
        ]
        unknown_token = self.tokenizer.pieces[self.tokenizer.unk_id]  # spelt as in `words`
        is_unknown = {piece for piece in pieces if piece == unknown_token or BYTE_PIECE.fullmatch(piece)}
        by_script: dict[str, list[SplitWord]] = {}
        for word in words:
            by_script.setdefault(_script_of_word(word.word), []).append(word)
        characters = sum(len(word) * count for word, count in counts.items())
        scripts = [_measure_script(*script, is_unknown, characters) for script in by_script.items()]
        unknown_words = [word for word in words if not is_unknown.isdisjoint(word.pieces)]
        divided = [word for script in by_script.keys() - SCRIPTS_WITHOUT_BLANKS for word in by_script[script]]
        known_words = [word for word in divided if is_unknown.isdisjoint(word.pieces)]
        split_words = [word for word in known_words if len(word.pieces) > 1]
        total = sum(word.count for word in divided)
        return {
            "words": total,
            "pieces_per_word": _pieces_per_word(divided),
            "whole_words": sum(word.count for word in known_words if len(word.pieces) == 1) / total
            if total
            else None,
            "unknown_words": sum(word.count for word in unknown_words) / sum(counts.values()),
            "most_broken": _take_heaviest(split_words, lambda word: len(word.pieces)),
            "costliest": _take_heaviest(split_words, lambda word: (len(word.pieces) - 1) * word.count),
            "unknown": _take_heaviest(unknown_words, lambda word: word.count),
            "scripts": tuple(sorted(scripts, key=lambda fit: (-fit.share, fit.script))),
            "sources": self._source_figures(words, {word.word for word in divided}, is_unknown, characters),
        }

    def _source_figures(
        self, words: list[SplitWord], divided: set[str], is_unknown: set[str], characters: int
    ) -> tuple[SourceFit, ...]:
        """Of each source, if there are several. `divided` are the words between blanks."""
        pieces_of = {word.word: word.pieces for word in words}
        fits = []
        for source, counts in self.counts_by_source.items() if len(self.counts_by_source) > 1 else ():
            own_characters = sum(len(word) * count for word, count in counts.items())
            own_divided = [word for word in counts if word in divided]
            total = sum(counts[word] for word in own_divided)
            is_divided = 2 * sum(len(word) * counts[word] for word in own_divided) > own_characters
            pieces = sum(len(pieces_of[word]) * counts[word] for word in own_divided)
            unknown = sum(counts[word] for word in counts if not is_unknown.isdisjoint(pieces_of[word]))
            all_pieces = sum(len(pieces_of[word]) * count for word, count in counts.items())
            fit = SourceFit(
                source=source,
                share=own_characters / characters,
                pieces_per_word=pieces / total if is_divided else None,
                characters_per_piece=own_characters / max(all_pieces, 1),
                unknown_words=unknown / max(sum(counts.values()), 1),
            )
            fits.append(fit)
        return tuple(sorted(fits, key=lambda fit: (-fit.share, fit.source))[:LISTED])


def _script_of_word(word: str) -> str:
    """The script of a word's first letter, or what it has instead of letters."""
    if word.isascii():
        return "Latin" if any(map(str.isalpha, word)) else DIGITS if any(map(str.isdigit, word)) else SYMBOLS
    scripts = [script for script in map(script_of, word) if script != ANY_SCRIPT]
    return next((script for script in scripts if script not in (DIGITS, SYMBOLS)), (scripts or [SYMBOLS])[0])


def _measure_script(script: str, words: list[SplitWord], is_unknown: set[str], characters: int) -> ScriptFit:
    """The figures of a script with these words, in a text with so many characters in words."""
    occurrences = sum(word.count for word in words)
    own_characters = sum(len(word.word) * word.count for word in words)
    unknown = sum(word.count for word in words if not is_unknown.isdisjoint(word.pieces))
    has_blanks = script not in SCRIPTS_WITHOUT_BLANKS
    split_words = [word for word in words if len(word.pieces) > 1 and is_unknown.isdisjoint(word.pieces)]
    costliest = _take_heaviest(split_words, lambda word: (len(word.pieces) - 1) * word.count)
    return ScriptFit(
        script=script,
        share=own_characters / characters,
        words=occurrences,
        pieces_per_word=_pieces_per_word(words) if has_blanks else None,
        characters_per_piece=own_characters / max(sum(len(word.pieces) * word.count for word in words), 1),
        unknown_words=unknown / occurrences,
        costliest=costliest[:LISTED_OF_SCRIPT] if has_blanks else (),
    )


def _pieces_per_word(words: list[SplitWord]) -> float | None:
    occurrences = sum(word.count for word in words)
    return sum(len(word.pieces) * word.count for word in words) / occurrences if occurrences else None


def _take_heaviest(words: list[SplitWord], weight: Callable[[SplitWord], int]) -> tuple[SplitWord, ...]:
    """The `LISTED` heaviest words; of equal weight the more frequent first, then by the alphabet."""
    return tuple(sorted(words, key=lambda word: (-weight(word), -word.count, word.word))[:LISTED])
