"""How often each word of a corpus occurs, counted in bounded memory.

What stands between blanks is counted first, and only then normalised and split at punctuation: running text
has twenty times fewer distinct words than words.
"""

import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tokenizers import normalizers

from bertsmith.progress import Progress
from bertsmith.text.tokens.bert_words import BertWords

if TYPE_CHECKING:
    from bertsmith.text.corpus.corpus import Corpus
    from bertsmith.text.corpus.manifest import Split


#: About 130 bytes each; more than this are thinned out, which makes words 0.03 % longer in pieces on 90 MB of
#: Wikipedia, where 0.8 million are distinct.
MAX_RUNS = 700_000
DOCUMENTS_AT_ONCE = 256


@dataclass
class Characters:
    """Of words: how often each character occurs in them, and which ones continue a word."""

    occurrences: Counter[str] = field(default_factory=Counter)
    inside: set[str] = field(default_factory=set)

    def add(self, words: Iterable[tuple[str, int]]) -> None:
        """Words, each with its number."""
        for word, count in words:
            self.inside.update(word[1:])
            for character in word:
                self.occurrences[character] += count


@dataclass
class WordCounts:
    """Word → occurrences, and the characters of all words, also of those that were too rare to be kept."""

    words: Counter[str]
    characters: Characters

    @classmethod
    def of(cls, words: Counter[str]) -> "WordCounts":
        characters = Characters()
        characters.add(words.items())
        return cls(words, characters)


def count_words(
    corpus: "Corpus",
    *,
    split: "Split" = "train",
    lowercase: bool,
    sample_bytes: int,
    seed: int = 0,
    progress: Progress | None = None,
) -> WordCounts:
    """Of words as BERT's rules make them ("don't" is three), in a sample of `sample_bytes`.

    The same corpus, settings and seed give the same counts. Of a corpus with more than `MAX_RUNS`
    distinct words the rarest are forgotten along the way, so that a word may be counted too low by a few;
    characters are all counted.
    """
    counts: Counter[str] = Counter()
    split_run, characters = BertWords(normalizers.BertNormalizer(lowercase=lowercase)), Characters()
    for text in _sampled_text(corpus, split, sample_bytes, seed, progress):
        counts.update(text.split())
        if len(counts) > MAX_RUNS:
            counts, rare = _frequent_and_rare(counts, MAX_RUNS // 2)
            characters.add(_as_bert_words(rare, split_run).items())
    words = _as_bert_words(counts, split_run)
    characters.add(words.items())
    return WordCounts(words, characters)


def _sampled_text(
    corpus: "Corpus", split: "Split", sample_bytes: int, seed: int, progress: Progress | None
) -> Iterator[str]:
    """The sample, some hundred documents at a time.

    Sentences are chosen, not documents, so that a corpus of a few huge documents is sampled evenly too;
    and by their hash, so that the choice needs neither the whole list nor a random generator's state.
    """
    size = corpus.manifest.splits[split].counts
    share = min(1.0, sample_bytes / max(size.bytes, 1))
    limit = int(share * 2**32)
    chosen: list[str] = []
    for number, document in enumerate(corpus.documents(split), start=1):
        if share == 1.0:
            chosen.extend(document.sentences)
        else:
            chosen.extend(s for s in document.sentences if zlib.crc32(s.encode(), seed) < limit)
        if number % DOCUMENTS_AT_ONCE == 0:
            yield " ".join(chosen)
            chosen = []
            if progress is not None:
                progress(number, size.documents, "documents read")
    yield " ".join(chosen)


def _frequent_and_rare(counts: Counter[str], keep: int) -> tuple[Counter[str], Counter[str]]:
    """At most `keep` of the most frequent words, none of those as frequent as the first one left out; and the
    others.
    """
    first_left_out = sorted(counts.values(), reverse=True)[keep]
    frequent, rare = Counter[str](), Counter[str]()
    for word, count in counts.items():
        (frequent if count > first_left_out else rare)[word] = count
    return frequent, rare


def _as_bert_words(counts: Counter[str], split: BertWords) -> Counter[str]:
    words: Counter[str] = Counter()
    for run, count in counts.items():
        for word in split(run):
            words[word] += count
    return words
