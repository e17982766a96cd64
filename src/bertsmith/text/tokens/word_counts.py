"""How often each word of a corpus occurs, counted in bounded memory.

What stands between blanks is counted first, and only then normalised and split at punctuation: running text
has twenty times fewer distinct words than words.
"""

import itertools
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from tokenizers import normalizers

from bertsmith.progress import Progress
from bertsmith.text.tokens.word_cache import BertWords

if TYPE_CHECKING:
    from bertsmith.text.corpus.corpus import Corpus
    from bertsmith.text.corpus.manifest import Split


#: Some 30 bytes each, and as many rows wait to be added. Of more than this half stay, and of the others their
#: words, which are thinned out in the same way.
MAX_RUNS = 700_000
DOCUMENTS_AT_ONCE = 256
CHARACTERS_AT_ONCE = 1_000_000  # end a batch earlier: 256 parts of novels have hundreds of megabytes
#: Of runs that are split at once. In Chinese each character is a word, and takes 30 times its bytes.
BYTES_AT_ONCE = 1 << 22
RUNS_AT_ONCE = 1 << 16  # as strings of Python's


@dataclass
class CharacterCounts:
    """Of words: how often each character occurs in them, and which ones continue a word."""

    occurrences: Counter[str] = field(default_factory=Counter)
    inside: set[str] = field(default_factory=set)

    def add(self, words: Mapping[str, int]) -> None:
        """Words, each with its number."""
        lengths = np.fromiter(map(len, words), np.int64, len(words))
        counts = np.fromiter(words.values(), np.int64, len(words))
        characters = np.frombuffer("".join(words).encode("utf-32-le"), np.uint32)
        occurrences = np.bincount(characters, np.repeat(counts, lengths))
        for code in np.flatnonzero(occurrences):
            self.occurrences[chr(code)] += int(occurrences[code])
        inside = np.delete(characters, np.cumsum(lengths) - lengths)
        self.inside.update(map(chr, np.unique(inside)))


@dataclass
class WordCounts:
    """Word → occurrences, and the characters of all words, also of those that were too rare to be kept."""

    words: Counter[str]
    characters: CharacterCounts

    @classmethod
    def of(cls, words: Counter[str]) -> "WordCounts":
        characters = CharacterCounts()
        characters.add(words)
        return cls(words, characters)


def count_words(
    corpus: "Corpus",
    *,
    split: "Split" = "train",
    lowercase: bool,
    sample_bytes: int,
    seed: int = 0,
    normalizer: normalizers.BertNormalizer | None = None,
    progress: Progress | None = None,
) -> WordCounts:
    """Of words as BERT's rules make them ("don't" is three), in a sample of `sample_bytes`. `normalizer`: a
    tokenizer's own in the place of BERT's usual one, which takes the accents off what it lower-cases.

    The same corpus, settings and seed give the same counts. Of a corpus with more than `MAX_RUNS`
    distinct words the rarest are forgotten along the way, so that a word may be counted too low by a few;
    characters are all counted.
    """
    split_run = BertWords(normalizer or normalizers.BertNormalizer(lowercase=lowercase))
    characters = CharacterCounts()
    counts, added = [_count_runs([])], 0
    words = _count_runs([])  # of runs that were rare: in Japanese almost each is, and few of their words are
    for sentences in _sample_sentences(corpus, split, sample_bytes, seed, progress):
        counts.append(_count_runs(sentences))
        added += len(counts[-1])
        if added > MAX_RUNS:
            counts, added = [_sum_counts(counts)], 0
            if len(counts[0]) > MAX_RUNS:
                counts[0], rare = _split_by_frequency(counts[0], MAX_RUNS // 2)
                words = _thin_out(_sum_counts([words, _split_into_bert_words(rare, split_run)]), characters)
    words = _thin_out(
        _sum_counts([words, _split_into_bert_words(_sum_counts(counts), split_run)]), characters
    )
    counted = _as_counter(words)
    characters.add(counted)
    pa.default_memory_pool().release_unused()  # 200 MB that merging has a use for
    return WordCounts(counted, characters)


def _sample_sentences(
    corpus: "Corpus", split: "Split", sample_bytes: int, seed: int, progress: Progress | None
) -> Iterator[list[str]]:
    """The sentences of the sample, those of some hundred documents or some megabytes at a time.

    Sentences are chosen, not documents, so that a corpus of a few huge documents is sampled evenly too;
    and by their hash, so that the choice needs neither the whole list nor a random generator's state.
    """
    size = corpus.manifest.splits[split].counts
    share = min(1.0, sample_bytes / max(size.bytes, 1))
    limit = int(share * 2**32)
    chosen, characters = list[str](), 0
    for number, document in enumerate(corpus.documents(split), start=1):
        some: Sequence[str] = document.sentences
        if share < 1.0:
            some = [sentence for sentence in some if zlib.crc32(sentence.encode(), seed) < limit]
        chosen += some
        characters += sum(map(len, some))
        if number % DOCUMENTS_AT_ONCE == 0 or characters >= CHARACTERS_AT_ONCE:
            yield chosen
            chosen, characters = [], 0
            if progress is not None:
                progress(number, size.documents, "documents read")
    yield chosen


# -- tables of runs, each with its number --------------------------------------------------------------------


def _count_runs(sentences: list[str]) -> pa.Table:
    """Split at U+0020 only: what other white space does is for BERT's rules to say."""
    runs = pc.split_pattern(pa.array(sentences, pa.large_string()), " ").flatten()
    counts = pc.value_counts(runs.filter(pc.not_equal(runs, "")))
    return pa.table({"run": counts.field("values"), "count": counts.field("counts")})


def _sum_counts(tables: list[pa.Table]) -> pa.Table:
    """One row a run."""
    rows = pa.concat_tables(tables).combine_chunks()
    runs = rows["run"].combine_chunks().dictionary_encode()
    counts = np.bincount(runs.indices, rows["count"], minlength=len(runs.dictionary))  # exact up to 2^53
    return pa.table({"run": runs.dictionary, "count": counts.astype(np.int64)})


def _split_by_frequency(counts: pa.Table, keep: int) -> tuple[pa.Table, pa.Table]:
    """`keep` of the most frequent runs, and the others. Of those as frequent as the last one the first by
    their hash, which are the same each time: where almost all are there once, they are a sample of the text.
    """
    numbers = counts["count"].to_numpy()
    least = np.partition(numbers, -keep)[-keep]
    frequent, tied = numbers > least, np.flatnonzero(numbers == least)
    hashes = np.empty(len(tied), np.uint32)
    for start in range(0, len(tied), RUNS_AT_ONCE):
        runs = counts["run"].take(tied[start : start + RUNS_AT_ONCE]).to_pylist()
        hashes[start : start + len(runs)] = [zlib.crc32(run.encode()) for run in runs]
    frequent[tied[np.argsort(hashes, kind="stable")[: keep - frequent.sum()]]] = True
    return counts.filter(pa.array(frequent)), counts.filter(pa.array(~frequent))


def _thin_out(words: pa.Table, characters: CharacterCounts) -> pa.Table:
    """Half of `MAX_RUNS` words, where there are more; the others leave their characters."""
    if len(words) <= MAX_RUNS:
        return words
    frequent, rare = _split_by_frequency(words, MAX_RUNS // 2)
    characters.add(_as_counter(rare))
    return frequent


def _as_counter(counts: pa.Table) -> Counter[str]:
    return Counter(dict(zip(counts["run"].to_pylist(), counts["count"].to_pylist(), strict=True)))


def _split_into_bert_words(counts: pa.Table, split: BertWords) -> pa.Table:
    tables = [_count_runs([])]
    ends = np.cumsum(pc.binary_length(counts["run"])) // BYTES_AT_ONCE
    starts = np.flatnonzero(np.diff(ends, prepend=-1)).tolist()
    for start, end in itertools.pairwise([*starts, len(counts)]):
        part = counts.slice(start, end - start)
        words, runs = split.of_column(part["run"].combine_chunks())
        tables.append(_sum_counts([pa.table({"run": words, "count": part["count"].take(runs)})]))
    return _sum_counts(tables)
