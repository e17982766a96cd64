"""Counts how often each word of a corpus occurs, in bounded memory.

Runs of non-blank characters are counted first, and only then normalised and split at punctuation: running
text has twenty times fewer distinct runs than runs in all.
"""

import itertools
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from tokenizers import normalizers

from bertsmith.progress import Progress
from bertsmith.text.tokens.word_cache import BertWords

if TYPE_CHECKING:
    from bertsmith.text.corpus.corpus import Corpus
    from bertsmith.text.corpus.manifest import Split


#: Distinct runs in memory: some 30 bytes each, and as many rows wait to be added. Of more than this the more
#: frequent half is kept; the others are split into words, of which the rare ones are dropped in the same way.
MAX_RUNS = 700_000
DOCUMENTS_AT_ONCE = 256
CHARACTERS_AT_ONCE = 1_000_000  # end a batch earlier: 256 parts of novels can have hundreds of megabytes
#: Bytes of the runs that are split at once. In Chinese each character is a word, and takes 30 times its
#: bytes.
BYTES_AT_ONCE = 1 << 22
RUNS_AT_ONCE = 1 << 16  # as Python strings


@dataclass
class CharacterCounts:
    """How often each character occurs in words, and which characters occur after a word's first one."""

    occurrences: Counter[str] = field(default_factory=Counter)
    inside: set[str] = field(default_factory=set)

    def add(self, words: Mapping[str, int]) -> None:
        """Counts the characters of some words; `words` maps each one to its occurrences."""
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
    """Word → occurrences, and the characters of all words, those of words too rare to be kept included."""

    words: Counter[str]
    characters: CharacterCounts

    @classmethod
    def of(cls, words: Counter[str]) -> "WordCounts":
        """The counts of these words and of their characters."""
        characters = CharacterCounts()
        characters.add(words)
        return cls(words, characters)


class WordSplitter(Protocol):
    """Rules that make words of runs of non-blank characters."""

    def split_column(self, runs: pa.Array) -> tuple[pa.Array, pa.Array]:
        """The words of a column of non-empty runs, and for each word the index of its run."""


def count_words(
    corpus: "Corpus",
    *,
    split: "Split" = "train",
    lowercase: bool = False,
    sample_bytes: int,
    seed: int = 0,
    splitter: WordSplitter | None = None,
    progress: Progress | None = None,
) -> WordCounts:
    """Counts words as BERT's rules split them ("don't" is three), in a sample of `sample_bytes` of `split`.

    `splitter` has other rules than BERT's usual ones, which strip the accents where they lower-case. The
    same corpus, settings and seed give the same counts. If a corpus has more than `MAX_RUNS` distinct words,
    the rarest are dropped along the way, so that a word's count may be a few too low. All characters are
    counted.
    """
    split_run = splitter or BertWords(normalizers.BertNormalizer(lowercase=lowercase))
    characters = CharacterCounts()
    run_tables, rows = [_count_runs([])], 0
    words = _count_runs(
        []
    )  # those of rare runs: in Japanese almost all runs are rare, few of their words are
    for sentences in _sample_sentences(corpus, split, sample_bytes, seed, progress):
        run_tables.append(_count_runs(sentences))
        rows += len(run_tables[-1])
        if rows > MAX_RUNS:
            run_tables, rows = [_sum_counts(run_tables)], 0
            if len(run_tables[0]) > MAX_RUNS:
                run_tables[0], rare = _split_by_frequency(run_tables[0], MAX_RUNS // 2)
                words = _thin_out(_sum_counts([words, _split_into_words(rare, split_run)]), characters)
    words = _thin_out(_sum_counts([words, _split_into_words(_sum_counts(run_tables), split_run)]), characters)
    word_counts = _as_counter(words)
    characters.add(word_counts)
    pa.default_memory_pool().release_unused()  # 200 MB, which the merging of pairs needs
    return WordCounts(word_counts, characters)


def _sample_sentences(
    corpus: "Corpus", split: "Split", sample_bytes: int, seed: int, progress: Progress | None
) -> Iterator[list[str]]:
    """The sentences of the sample, from a few hundred documents or a few megabytes at a time.

    Sentences are sampled, not documents, so that a corpus of a few huge documents is sampled evenly too. They
    are chosen by their hash, which needs neither the list of all sentences nor a random generator's state.
    """
    total = corpus.manifest.splits[split].counts
    share = min(1.0, sample_bytes / max(total.bytes, 1))
    limit = int(share * 2**32)
    chosen, characters = list[str](), 0
    for number, document in enumerate(corpus.documents(split), start=1):
        sentences: Sequence[str] = document.sentences
        if share < 1.0:
            sentences = [sentence for sentence in sentences if zlib.crc32(sentence.encode(), seed) < limit]
        chosen += sentences
        characters += sum(map(len, sentences))
        if number % DOCUMENTS_AT_ONCE == 0 or characters >= CHARACTERS_AT_ONCE:
            yield chosen
            chosen, characters = [], 0
            if progress is not None:
                progress(number, total.documents, "documents read")
    yield chosen


# -- tables of runs and their counts ------------------------------------------------------------------------


def _count_runs(sentences: list[str]) -> pa.Table:
    """The runs of the sentences, and their counts. Only U+0020 separates runs: BERT's rules, which are
    applied later, treat other white space.
    """
    runs = pc.split_pattern(pa.array(sentences, pa.large_string()), " ").flatten()
    counts = pc.value_counts(runs.filter(pc.not_equal(runs, "")))
    return pa.table({"run": counts.field("values"), "count": counts.field("counts")})


def _sum_counts(tables: list[pa.Table]) -> pa.Table:
    """Adds up tables of counts: one row for each distinct run."""
    rows = pa.concat_tables(tables).combine_chunks()
    runs = rows["run"].combine_chunks().dictionary_encode()
    counts = np.bincount(runs.indices, rows["count"], minlength=len(runs.dictionary))  # exact up to 2^53
    return pa.table({"run": runs.dictionary, "count": counts.astype(np.int64)})


def _split_by_frequency(counts: pa.Table, keep: int) -> tuple[pa.Table, pa.Table]:
    """The `keep` most frequent runs, and the others.

    Of runs as frequent as the last one kept, those with the lowest hashes are kept: the choice is the same in
    every run, and a sample of the text where almost all runs occur once.
    """
    occurrences = counts["count"].to_numpy()
    threshold = np.partition(occurrences, -keep)[-keep]
    frequent, tied = occurrences > threshold, np.flatnonzero(occurrences == threshold)
    hashes = np.empty(len(tied), np.uint32)
    for start in range(0, len(tied), RUNS_AT_ONCE):
        runs = counts["run"].take(tied[start : start + RUNS_AT_ONCE]).to_pylist()
        hashes[start : start + len(runs)] = [zlib.crc32(run.encode()) for run in runs]
    frequent[tied[np.argsort(hashes, kind="stable")[: keep - frequent.sum()]]] = True
    return counts.filter(pa.array(frequent)), counts.filter(pa.array(~frequent))


def _thin_out(words: pa.Table, characters: CharacterCounts) -> pa.Table:
    """Keeps half of `MAX_RUNS` words if there are more, and counts the others' characters."""
    if len(words) <= MAX_RUNS:
        return words
    frequent_words, rare_words = _split_by_frequency(words, MAX_RUNS // 2)
    characters.add(_as_counter(rare_words))
    return frequent_words


def _as_counter(counts: pa.Table) -> Counter[str]:
    return Counter(dict(zip(counts["run"].to_pylist(), counts["count"].to_pylist(), strict=True)))


def _split_into_words(counts: pa.Table, split: WordSplitter) -> pa.Table:
    """The counts of the words that the runs consist of, in a table of the same columns."""
    tables = [_count_runs([])]
    ends = np.cumsum(pc.binary_length(counts["run"])) // BYTES_AT_ONCE
    starts = np.flatnonzero(np.diff(ends, prepend=-1)).tolist()
    for start, end in itertools.pairwise([*starts, len(counts)]):
        part = counts.slice(start, end - start)
        words, runs = split.split_column(part["run"].combine_chunks())
        tables.append(_sum_counts([pa.table({"run": words, "count": part["count"].take(runs)})]))
    return _sum_counts(tables)
