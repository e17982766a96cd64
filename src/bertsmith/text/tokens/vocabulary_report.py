"""Measures how well a vocabulary fits a corpus: how far words are split, and what is lost as unknown."""

from collections import Counter
from collections.abc import Callable, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any

from bertsmith.errors import CorpusError
from bertsmith.progress import Progress
from bertsmith.text.corpus.manifest import Split
from bertsmith.text.tokens.tokenizer import Tokenizer
from bertsmith.text.words import WORD
from bertsmith.validation import Strict

if TYPE_CHECKING:
    from bertsmith.text.corpus.corpus import Corpus

MAX_SENTENCES = 100_000
SENTENCES_AT_ONCE = 4_096
LENGTHS = (128, 512)
LISTED = 20
EXAMPLES = 5


class SplitWord(Strict):
    """A word, its tokens, and its occurrences in the text measured."""

    word: str
    pieces: tuple[str, ...]
    count: int


class VocabularyReport(Strict):
    """Figures on the words (runs of letters, digits and _, with their marks) and the sentences of one split
    of a corpus.

    `pieces_per_word` is also called fertility. `whole_words` is the share of words that are one token,
    `unknown_words` and `unknown_tokens` are the shares of words with an [UNK] and of tokens that are one.
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
    pieces_per_word: float
    whole_words: float
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
    all_sentences = (sentence for document in corpus.documents(split) for sentence in document.sentences)
    sentences = islice(all_sentences, 0, None, step)
    while batch := list(islice(sentences, SENTENCES_AT_ONCE)):
        tally.add(batch)
        if progress is not None:
            progress(len(tally.lengths), None, "sentences measured")
    if not tally.counts:
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
        self.counts: Counter[str] = Counter()
        self.examples: list[tuple[str, ...]] = []

    def add(self, sentences: list[str]) -> None:
        """Tokenizes some more sentences and adds them to the totals."""
        ids = self.tokenizer.encode_batch(sentences)
        self.lengths.extend(map(len, ids))
        self.unknown_tokens += sum(sentence.count(self.tokenizer.unk_id) for sentence in ids)
        self.characters += sum(map(len, sentences))
        for sentence in sentences:
            self.counts.update(WORD.findall(sentence))
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
        encoded = self.tokenizer.encode_batch([prefix + word for word in self.counts])
        words = [
            SplitWord(word=word, pieces=tuple(pieces[token_id] for token_id in ids), count=count)
            for (word, count), ids in zip(self.counts.items(), encoded, strict=True)
        ]
        unknown_token = self.tokenizer.pieces[self.tokenizer.unk_id]  # spelt as in `words`
        unknown_words = [word for word in words if unknown_token in word.pieces]
        known_words = [word for word in words if unknown_token not in word.pieces]
        split_words = [word for word in known_words if len(word.pieces) > 1]
        total = sum(self.counts.values())
        return {
            "words": total,
            "pieces_per_word": sum(len(word.pieces) * word.count for word in words) / total,
            "whole_words": sum(word.count for word in known_words if len(word.pieces) == 1) / total,
            "unknown_words": sum(word.count for word in unknown_words) / total,
            "most_broken": _take_heaviest(split_words, lambda word: len(word.pieces)),
            "costliest": _take_heaviest(split_words, lambda word: (len(word.pieces) - 1) * word.count),
            "unknown": _take_heaviest(unknown_words, lambda word: word.count),
        }


def _take_heaviest(words: list[SplitWord], weight: Callable[[SplitWord], int]) -> tuple[SplitWord, ...]:
    """The `LISTED` heaviest words; of equal weight the more frequent first, then by the alphabet."""
    return tuple(sorted(words, key=lambda word: (-weight(word), -word.count, word.word))[:LISTED])
